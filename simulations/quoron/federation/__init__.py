"""Federations on this machine, of our own clients or Flower's, and what the operator of a remote one asks for."""
