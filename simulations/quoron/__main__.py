"""`python -m quoron` and the `quoron` command."""

import gc
import importlib.util
import os
import sys

from quoron.data import caches


def main() -> int:
    """Run the command line and return its exit code."""
    if importlib.util.find_spec("fcntl") is None:
        print(f"Expected Linux or macOS, got {sys.platform}. On Windows, run quoron in WSL.", file=sys.stderr)
        return 2
    from quoron.cli.app import invoke  # imported here, so that `import quoron.__main__` stays cheap

    # Idle threads of OpenBLAS go to sleep after 2^16 ticks, some 30 µs, instead of keeping a processor busy for 30 ms
    # at each start and after each product.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "16")
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "true")  # it would look through all that is installed for some
    # Libraries bring a quarter of a million objects that last: looking through them is up to a tenth of a command.
    gc.set_threshold(500_000, 20, 20)
    # Whatever a library or a program of somebody else's writes for us, under whatever umask: others may not change it.
    os.umask(os.umask(0o077) | 0o022)
    caches.ensure(os.environ)
    code = invoke(sys.argv[1:])
    gc.freeze()  # nobody has to look through them once more at the end, for what a fifth of a plan takes
    return code


if __name__ == "__main__":
    sys.exit(main())
