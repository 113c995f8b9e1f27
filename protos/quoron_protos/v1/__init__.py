"""Version 1 of the messages; changes stay backwards-compatible."""
