"""Machine for compiled loops: nothing here knows of privacy or of users."""
