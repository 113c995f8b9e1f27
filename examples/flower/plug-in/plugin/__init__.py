"""A Flower project that existed before quoron: its own model, data and loss."""
