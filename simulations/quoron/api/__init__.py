"""What people call: one module a door, with what it does of its own. `quoron/__init__.pyi` lists all public names."""
