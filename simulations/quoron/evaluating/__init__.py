"""How good a model is, for people: figures of held-out users that may be shown to anybody."""
