"""How good a model is for held-out users: who is held out, the scores, and figures with intervals."""
