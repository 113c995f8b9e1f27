"""Bassily & Sun, Algorithm 5: one report a user, private before it leaves the client."""
