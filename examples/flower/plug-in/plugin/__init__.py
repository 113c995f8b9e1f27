"""A Flower project that existed before quorate: its own model, data and loss."""
