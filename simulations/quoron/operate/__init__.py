"""For those who run a federation: the control plane's client, submissions, Flower's ServerApp."""
