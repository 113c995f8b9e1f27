"""What a client computes: gradients, local SGD, second moments, within certified bounds."""
