"""Clients on Flower: what they are sent and send, and the ClientApp of a SuperNode that holds one user's items."""
