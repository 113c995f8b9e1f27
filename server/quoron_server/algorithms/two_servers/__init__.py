"""Plans and runs of two servers, neither of which sees an answer: imported for that trust model alone."""
