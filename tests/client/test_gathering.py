"""Rows become items in one pass, to the bits of a slow reference: whatever the batches, the order and the threads."""
