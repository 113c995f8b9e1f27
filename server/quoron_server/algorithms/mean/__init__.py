"""SGD on private means clipped around a centre: Bassily & Sun's Algorithm 4, and ours around the last release."""
