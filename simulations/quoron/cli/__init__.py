"""The command line: it reads words into one call each."""
