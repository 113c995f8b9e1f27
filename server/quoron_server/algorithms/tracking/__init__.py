"""The recommended method: one pass, a private metric, recursive gradients under correlated noise."""
