"""All randomness of the server: streams of words, exact samplers on top, and where the words come from."""
