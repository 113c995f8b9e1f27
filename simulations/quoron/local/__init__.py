"""Federations on this machine: a coordinator and its clients as processes, over mutual TLS, that end with whoever
started them."""
