"""One question to everybody: least squares from a private second moment."""
