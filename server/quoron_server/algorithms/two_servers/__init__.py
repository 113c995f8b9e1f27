"""Plans and runs of two servers, neither of which sees an answer: imported where the exposure is two-servers alone."""
