"""Messy tables: what `quoron train` makes of each, with ranges declared and with nothing declared but user and label.

    python benchmarks/messy_tables.py                              # all, both ways: some minutes
    python benchmarks/messy_tables.py --table "decimal commas" --way declared
    python benchmarks/messy_tables.py --markdown > table.md

Each is one clean table of 2,000 users that something has been done to, as it happens to people, and what somebody would
type who has not noticed. There are four ends:

    model     on users held out, whose table is as messy, it beats always giving the same answer
    told      it does not, and a warning of the run names the column, or what is wrong with all rows, with the fix; or
              nothing could be trained by what was bought, which an error says
    refused   before the charge, with the fix
    SILENT    a null model that nobody was told of; CHARGED, an error after the charge, and CRASH are as bad

A model may come with warnings, too. What nobody is told of has to reach half of what the clean table gives. `-` where a
way makes no sense. The exit status is 1 if anything is SILENT, CHARGED or a CRASH.
"""

import argparse
import math
import re
import sys
import tempfile
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import messy_cells
import messy_files
import messy_kinds
import numpy as np
from messy_sheets import (
    RANGES,
    WARDS,
    WAYS,
    Draw,
    Mess,
    Sheet,
    Spoil,
    Way,
    plain,
)

USERS, HELD_OUT, EPSILON = 2_000, 1_000, 4.0
BETTER = {"auc": 0.6, "accuracy over the commonest": 0.04, "r2": 0.03}  # noise alone may reach that
CLEAR = {"auc": 0.68, "accuracy over the commonest": 0.08, "r2": 0.1}  # and by luck seldom this
NULL = (
    "no row that can be used",
    "of the labels",
    "no better off",
    "No better than not training",
)  # what is said of a null model as a whole
MESSES = [*messy_cells.MESSES, *messy_files.MESSES, *messy_kinds.MESSES]


@dataclass(frozen=True)
class End:
    """What became of a table, by one of the two ways."""

    kind: Literal["model", "told", "refused", "SILENT", "CHARGED", "CRASH", "-"]
    figure: float = math.nan
    said: tuple[str, ...] = ()  # warnings, or the error

    @property
    def bad(self) -> bool:
        """Whether it may not be."""
        return self.kind in ("SILENT", "CHARGED", "CRASH")

    def words(self) -> str:
        """On one line."""
        figure = "" if math.isnan(self.figure) else f" {self.figure:.2f}"
        return f"{self.kind}{figure}"


def tried(each: Mess, way: Way, *, users: int = USERS, epsilon: float = EPSILON, seed: int = 0) -> End:
    """Train on it, and ask the model of others."""
    import quoron
    from quoron.training import lifetime
    from quoron.training.result import DoubtfulModel
    from quoron_privacy.errors import QuoronError

    typed_in = asked(each, way)
    if typed_in is None:
        return End("-")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        known, others = (place / "known", place / "others")
        known.mkdir()
        others.mkdir()
        sheet, draw = Sheet.made(users, 2 * seed, rare=each.rare), np.random.default_rng(seed)
        each.spoil(sheet, draw)
        source = each.write(sheet, known)
        ledger = place / "lifetime.sqlite"
        try:
            with warnings.catch_warnings(record=True) as beforehand:
                warnings.simplefilter("error")
                warnings.simplefilter("always", DoubtfulModel)
                source = str(source) if isinstance(source, Path) else source
                run = quoron.train(
                    source, epsilon=epsilon, out=place / "run", ledger=ledger, progress=False, **typed_in
                )
        except QuoronError as error:
            charged = ledger.exists()
            if charged:
                with lifetime.opened(ledger) as kept:
                    charged = kept.spent("everyone").epsilon > 0
            named = "Nothing was trained" in str(error) and any(word in str(error) for word in each.says)
            return End("refused" if not charged else "told" if named else "CHARGED", said=(str(error),))
        except Exception as error:
            return End("CRASH", said=(f"{type(error).__name__}: {error}",))
        told = (*run.summary.warnings, *(str(each.message) for each in beforehand))
        other = Sheet.made(HELD_OUT, 2 * seed + 1, rare=each.rare)
        other.columns["who"] = [f"p{row:05}" for row in range(len(other.ill))]
        (replace(each, spoil=without_users(each.spoil)) if each.only_users else each).spoil(other, draw)
        figure = figure_of(
            each, run.model, other, plain(other, others) if each.only_users else each.write(other, others)
        )
    named = any(word in said for said in told for word in (*each.says, *NULL))
    null = each.always or (each.null and way == "declared")
    if named and (null or any(map(nothing_learnt, told))):
        return End("told", figure, told)
    if figure >= (BETTER[each.figure] if named else each.clear or CLEAR[each.figure]):
        return End("model", figure, told)
    return End("told" if named else "SILENT", figure, told)


def nothing_learnt(warning: str) -> bool:
    """Whether a warning says that the model is null: a figure above one half is then luck."""
    found = re.search(r"about ([\d,]+) of ([\d,]+) users .* have no row", warning)
    if found is None:
        return "no better off" in warning or "No better than not training" in warning
    lost, users = (int(each.replace(",", "")) for each in found.groups())
    return lost > 0.9 * users


def without_users(spoil: Spoil) -> Spoil:
    """The same, of nobody's name."""

    def spoilt(sheet: Sheet, draw: Draw) -> None:
        who = sheet.columns["who"]
        spoil(sheet, draw)
        sheet.columns["who"] = who

    return spoilt


MEANING = "classes", "positive", "range"


def asked(each: Mess, way: Way) -> dict[str, Any] | None:
    """What is typed."""
    usual: dict[str, Any] = {"user": "who", "label": each.label}
    if way == "undeclared":
        return None if each.undeclared is None else usual | each.undeclared
    columns: dict[str, Any] = {"numeric": RANGES, "categorical": {"ward": WARDS}}
    meaning = {key: said for key, said in each.declared.items() if key in MEANING}
    columns |= {key: said for key, said in each.declared.items() if key not in meaning}
    return usual | {"label": {"column": each.label, **meaning}, "columns": columns}


def figure_of(each: Mess, model: Any, sheet: Sheet, source: Any) -> float:
    """Of a model, on rows held out. Where a number is missing it counts as the middle of its range."""
    from quoron_client.data import columns, tables
    from quoron_client.data.encoding import Range

    filling = replace(model, encoding=replace(model.encoding, missing="midpoint"))
    features = replace(filling.encoding, label=None, weight=None).columns
    table = tables.read(source, tuple(dict.fromkeys((*features, "who"))))
    place = {who: row for row, who in enumerate(sheet.columns["who"])}
    rows = np.array([place.get(who, -1) for who in columns.texts(table, "who").to_pylist()], np.int64)
    scores = filling.decision_function(table)[rows >= 0]
    rows = rows[rows >= 0]
    if each.figure == "accuracy over the commonest" and not isinstance(model.encoding.label, Range):
        kind, commonest = sheet.kind, np.bincount(sheet.kind).argmax()
        kinds = dict(zip(map(plainly, sheet.columns["ill"]), kind, strict=True))
        guessed = np.full(len(kind), commonest)
        predicted = np.asarray(model.classes_)[scores.argmax(1) if scores.ndim > 1 else (scores > 0).astype(int)]
        guessed[rows] = [kinds.get(plainly(each), commonest) for each in predicted]
        return float(np.mean(guessed == kind) - np.mean(kind == commonest))
    if each.figure == "auc" and not isinstance(model.encoding.label, Range):
        said = np.array([plainly(cell) == plainly(model.classes_[0]) for cell in sheet.columns["ill"]])
        scores = -scores if said.any() and sheet.ill[said].mean() > 0.5 else scores
    everybody = np.full(len(sheet.ill), np.median(scores) if len(scores) else 0.0)
    everybody[rows] = scores
    if each.figure != "auc":
        units = getattr(model.encoding.label, "in_units", lambda values: values)
        return float(1 - np.mean((units(everybody) - sheet.amount) ** 2) / np.var(sheet.amount))
    return auc(everybody, sheet.ill)


def plainly(value: Any) -> str:
    """A label as it is meant."""
    return str(value).strip().lower().removeprefix("+").removesuffix(".0")


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Area under the curve, ties as halves."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    positive = int(labels.sum())
    below = ranks[labels == 1].sum() - positive * (positive + 1) / 2
    return float(below / (positive * (len(labels) - positive)))


def line(each: Mess, ends: dict[Way, End], *, markdown: bool) -> str:
    """Of the table."""
    if not markdown:
        said = "".join(f"\n        {way}: {text[:300]}" for way, end in ends.items() for text in end.said)
        return f"{each.name:50} " + "  ".join(f"{way}: {end.words():14}" for way, end in ends.items()) + said
    said = next((text for end in ends.values() for text in end.said if end.kind != "model"), "")
    return f"| {each.name} | " + " | ".join(end.words() for end in ends.values()) + f" | {said[:160]} |"


def main() -> None:
    """Print a line a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="append", help="a part of its name")
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--users", type=int, default=USERS)
    parser.add_argument("--epsilon", type=float, default=EPSILON)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--markdown", action="store_true")
    given = parser.parse_args()
    bad = 0
    for each in MESSES:
        if given.table and not any(part in each.name for part in given.table):
            continue
        ends = {
            way: tried(each, way, users=given.users, epsilon=given.epsilon, seed=given.seed)
            for way in given.way or WAYS
        }
        bad += sum(end.bad for end in ends.values())
        print(line(each, ends, markdown=given.markdown), flush=True)
    print(f"{bad} of them are SILENT, CHARGED or a CRASH")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
