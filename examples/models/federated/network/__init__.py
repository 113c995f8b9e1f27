"""A network, its loss and its data, trained on one machine or on a Flower federation."""
