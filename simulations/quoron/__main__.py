"""`python -m quoron` and the `quoron` command."""

import gc
import sys


def main() -> int:
    """Run the command line and return its exit code."""
    from quoron.cli import invoke  # imported here, so that `import quoron.__main__` stays cheap

    # Libraries bring a hundred thousand objects that last: looking through them all the time is a tenth of a command.
    gc.set_threshold(50_000, 20, 20)
    return invoke(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
