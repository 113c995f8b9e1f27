"""Two servers that do not collude: integer rows, masks, seals, and noise that each of them adds by itself."""
