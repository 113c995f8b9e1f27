"""Write golden results again, all or those named, and print what changed: `scripts/regold [plans runs ...]`."""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def main(names: list[str]) -> int:
    """Record what is named, or all; print each difference; 2 for a name that is not known."""
    sys.path.insert(0, str(ROOT / "tests"))
    from golden import recording

    unknown = [name for name in names if name not in recording.RECORDERS]
    if unknown:
        print(f"Expected names among {', '.join(recording.RECORDERS)}, got {', '.join(unknown)}.", file=sys.stderr)
        return 2
    for name in names or recording.RECORDERS:
        parts, record = recording.RECORDERS[name]
        found = {}
        for part in parts:
            with tempfile.TemporaryDirectory() as folder:
                found |= dict(record(Path(folder), part))
        golden = recording.read(name) if (recording.FOLDER / f"{name}.jsonl").exists() else {}
        changed = list(recording.differences(golden, found))
        print(f"{name}: {len(found)} results, {len(changed)} differences", *changed, sep="\n  ")
        recording.write(name, found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
