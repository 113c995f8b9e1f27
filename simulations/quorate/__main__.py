"""`python -m quorate` and the `quorate` command."""

import sys


def main() -> int:
    """Run the command line and return its exit code."""
    from quorate.cli import invoke  # imported here, so that `import quorate.__main__` stays cheap

    return invoke(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
