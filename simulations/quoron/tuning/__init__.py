"""Private selection among settings, methods and models: which of them to release, for little more than one run."""
