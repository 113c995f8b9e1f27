"""Draw docs/images/quickstart.svg from a run folder: python scripts/make_readme_picture.py runs/quickstart-1

Two panels side by side: excess risk by round, and the private radius where the algorithm has one.
"""

import sys
from pathlib import Path

from quoron.reports.pictures import Axis, alone, chart
from quoron.reports.sections import radius_lines, risk_lines
from quoron.reports.summary import from_json
from quoron.run_folder import RunFolder

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "quickstart.svg"


def main() -> int:
    """Draw the picture of the run folder given as the argument."""
    if len(sys.argv) != 2:
        print("usage: python scripts/make_readme_picture.py RUN", file=sys.stderr)
        return 2
    folder = RunFolder(Path(sys.argv[1]))
    rounds = folder.rounds()
    panels = (
        ("Excess risk by round", "excess risk", risk_lines(from_json(folder.summary()), rounds), True),
        ("Private radius by round", "radius", radius_lines(rounds), False),
    )
    drawn = [chart(title, lines, Axis("rounds"), Axis(up, log=log)) for title, up, lines, log in panels if lines]
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_bytes(alone(drawn))
    print(PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
