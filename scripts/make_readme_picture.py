"""Draw docs/images/quickstart.svg from a run folder: python scripts/make_readme_picture.py runs/quickstart-1

Two panels side by side: excess risk by round, and the private radius, or concentration scores, or the cohort: whatever
the algorithm has first.
"""

import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from quoron.reports import plots
from quoron.reports.summary import from_json
from quoron.run_folder import RunFolder

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "quickstart.svg"


def main() -> int:
    """Draw the picture of the run folder given as the argument."""
    if len(sys.argv) != 2:
        print("usage: python scripts/make_readme_picture.py RUN", file=sys.stderr)
        return 2
    folder = RunFolder(Path(sys.argv[1]))
    summary, rounds = from_json(folder.summary()), folder.rounds()
    shown = [plot for plot in plots.PLOTS if plots.drawable(plot, rounds)]
    wanted = ("Excess risk by round", "Private radius by round", "Scores against the threshold", "Cohort by round")
    chosen = sorted((plot for plot in shown if plot.title in wanted), key=lambda plot: wanted.index(plot.title))[:2]
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    # Text as outlines and a white ground: the picture looks the same wherever it is shown.
    with mpl.rc_context(plots.STYLE), mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "quickstart"}):
        figure = Figure(figsize=(10.0, 3.6), layout="constrained", facecolor="white")
        for axes, plot in zip(figure.subplots(1, len(chosen), squeeze=False)[0], chosen, strict=True):
            plot.draw(axes, summary, rounds)
            axes.set_title(plot.title, loc="left", fontsize=11)
        figure.savefig(PICTURE, format="svg", metadata={"Date": None})
    print(PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
