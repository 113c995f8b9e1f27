"""Where numba keeps what it compiles: beside the source or at home, and for an account without either in a folder of
its own among the temporary files.

Numba looks for such places by itself. It ends with an error where it finds none, which is how a service account without
a home would hear of it.
"""

import os
import stat
import tempfile
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

import quoron_protos

_NUMBA = "NUMBA_CACHE_DIR"


def ensure(environment: MutableMapping[str, str]) -> None:
    """Name a folder of this account's own in `environment`, unless it names one or the libraries will find theirs.

    Nobody else can have put anything there: what numba keeps is code.
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
    """The same at every start, so that nothing is compiled twice; another where somebody else was faster."""
    folder = temporary / f"quoron-{os.geteuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077
    return folder if ours else Path(tempfile.mkdtemp(prefix="quoron-", dir=temporary))
