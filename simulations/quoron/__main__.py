"""`python -m quoron` and the `quoron` command."""

import sys


def main() -> int:
    """Run the command line and return its exit code."""
    from quoron.cli import invoke  # imported here, so that `import quoron.__main__` stays cheap

    return invoke(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
