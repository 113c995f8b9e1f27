"""A user's own items: columns, features, batches."""
