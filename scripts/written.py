"""A page that a script writes: in its place or, with `--check` among the words, only compared with what is there."""

import sys
from pathlib import Path


def page(path: Path, text: str) -> int:
    """The script's exit code: 1 for a page that is out of date."""
    if "--check" not in sys.argv[1:]:
        path.write_text(text, encoding="utf-8")
    elif not path.exists() or path.read_text(encoding="utf-8") != text:
        print(f"{path} is out of date: run python scripts/{Path(sys.argv[0]).name}", file=sys.stderr)
        return 1
    return 0
