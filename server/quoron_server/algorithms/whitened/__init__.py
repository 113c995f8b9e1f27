"""For few users: whiten, then track with everybody in every round."""
