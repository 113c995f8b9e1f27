"""SGD with a clip and Gaussian noise in every round: one pass, many, sampled, and none without noise."""
