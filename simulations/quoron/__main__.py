"""`python -m quoron` and the `quoron` command."""

import gc
import importlib.util
import os
import stat
import sys
import tempfile
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

import quoron_protos


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
    keep_compiled(os.environ)
    code = invoke(sys.argv[1:])
    gc.freeze()  # nobody has to look through them once more at the end, for what a fifth of a plan takes
    return code


_NUMBA = "NUMBA_CACHE_DIR"


def keep_compiled(environment: MutableMapping[str, str]) -> None:
    """Name a folder of this account's own in `environment` for what numba compiles, unless it names or will find one.

    Numba ends with an error where it finds none, as for an account without a home. Nobody else can have put anything
    there: what numba keeps is code.
    """
    source = Path(quoron_protos.__file__).parent
    home = Path(environment.get("XDG_CACHE_HOME") or Path("~").expanduser() / ".cache")
    if _NUMBA in environment or _may_write(source) or _may_write(home):
        return
    environment[_NUMBA] = str(_own_folder(Path(tempfile.gettempdir())) / "numba")


def _may_write(folder: Path) -> bool:
    """In it, or where it would be made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _own_folder(temporary: Path) -> Path:
    """Return the same at every start, so that nothing is compiled twice; another where somebody else was faster."""
    folder = temporary / f"quoron-{os.geteuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
    return folder if ours else Path(tempfile.mkdtemp(prefix="quoron-", dir=temporary))


if __name__ == "__main__":
    sys.exit(main())
