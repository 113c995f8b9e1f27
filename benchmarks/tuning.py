"""What private selection loses against the best of twenty settings, on tables that come with quoron and made ones.

    python benchmarks/tuning.py > tuning.jsonl                       # all cells, ten searches each: about an hour
    python benchmarks/tuning.py --table flights --epsilon 2 --repeats 3
    python benchmarks/tuning.py --summary tuning.jsonl
    python benchmarks/tuning.py --pooled --table storms --epsilon 4  # what is kept at other noise than the score's own

A fifth of the users are kept from everything, for figures (AUC; of numbers r = correlation). On the others twenty
settings are searched with the whole ε; beside it every setting is trained as often as there are searches, with what one
trial of that search may spend, and its figure is the mean of these. `best` is the largest of twenty means, so a little
too large; `loss` is it less the mean figure of what the searches chose; `typical` the mean of all settings. `kept`, of
searches put together from the settings' own trials with noise of other sizes, is the share of best - typical that the
chosen one has above typical.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from quoron.data.table import auc
from quoron.model import Model
from quoron.run_folder import Identity
from quoron.simulation.sources import described, write_example
from quoron.training import tuning as tables
from quoron.training.tuning import Candidate, TableSearch, TrialNoise, best_trial, prepare
from quoron_privacy.noise.streams import NoiseSource, SeededNoise, StartedNoise

METHODS = ("auto", "whitened-tracking", "tracking-srgd", "one-pass-dp-sgd")
RIDGES = (0.0, 0.001, 0.01, 0.1, 1.0)
SHIPPED = ("scorecard", "storms")
MADE = (("plain", 20_000, 10), ("unequal", 20_000, 10), ("rare", 20_000, 10), ("plain", 5_000, 5))
EPSILONS = (1.0, 4.0)
NOISES = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16)  # of a score


def people(name: str, folder: Path) -> tuple[Any, pd.DataFrame, str]:
    """A description, rows, and the column of users."""
    written = write_example(name, folder)
    toml = next(path for path in written if path.suffix == ".toml")
    config, _, _ = described(toml, None, None, {})
    return config, pd.read_csv(next(path for path in written if path.suffix == ".csv")), config.population.user


def made(shape: str, users: int, columns: int) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row a user, two classes: columns alike, of unequal spreads, or a label that one user in twenty has."""
    rng = np.random.default_rng(columns)
    features = rng.normal(0, 1, (users, columns)) * (np.geomspace(1, 0.05, columns) if shape == "unequal" else 1.0)
    true = rng.normal(0, 1, columns) / np.sqrt(columns) * 2 / features.std(axis=0)
    label = rng.uniform(size=users) < 1 / (1 + np.exp(-(features @ true) + (4.0 if shape == "rare" else 0.0)))
    frame = pd.DataFrame({f"x{place}": features[:, place] for place in range(columns)})
    ranges = {f"x{place}": (-4.0, 4.0) for place in range(columns)}
    return frame.assign(user=np.arange(users), y=label), {"user": "user", "label": "y", "columns": {"numeric": ranges}}


def parted(frame: pd.DataFrame, user: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of four fifths of the users, and of the others."""
    names = np.array(sorted(frame[user].astype(str).unique()))
    apart = set(np.random.default_rng(0).permutation(names)[: len(names) // 5].tolist())
    test = frame[user].astype(str).isin(apart)
    return frame[~test].reset_index(drop=True), frame[test].reset_index(drop=True)


def figure(found: TableSearch, candidate: Candidate, weights: np.ndarray, test: pd.DataFrame) -> float:
    """AUC of the second class; of numbers the correlation."""
    held = found.rows_of.of(candidate.config)
    model = Model.released(weights, held.encoding, candidate.loss, candidate.planned.plan, made=None)
    label = held.encoding.label
    usable = test.dropna(subset=[label.column, *model.feature_names_in_])
    scores = model.decision_function(usable)
    if not hasattr(label, "operator") and usable[label.column].dtype != bool:
        numbers = usable[label.column].to_numpy(float)
        return float(np.corrcoef(scores, numbers)[0, 1]) if np.std(scores) > 0 else 0.0
    if usable[label.column].dtype == bool:
        return auc(scores, usable[label.column].to_numpy())
    return auc(scores, (usable[label.column] >= label.number).to_numpy())


def pooled(found: TableSearch, table: TableSearch, test: pd.DataFrame, repeats: int) -> dict[str, float]:
    """What searches keep, by the noise of their score: put together from every setting's trials, 4,000 of each size."""
    original, scores, figures = tables.private_mean, [], []
    try:
        tables.private_mean = lambda own, *_: float(np.mean(own))
        for place, candidate in enumerate(found.candidates):
            for repeat in range(repeats):
                source = SeededNoise(5000 + repeat)
                outcome = table.perform(place, StartedNoise(TrialNoise(source, place), "alone"), source)
                scores.append(outcome.score)
                figures.append(figure(found, candidate, outcome.weights, test))
    finally:
        tables.private_mean = original
    told = np.array(figures).reshape(-1, repeats)
    clean, best, typical = np.array(scores).reshape(-1, repeats), told.mean(axis=1).max(), told.mean()
    law, draw, kept = np.array(found.price.trials.chances), np.random.default_rng(0), {}
    for scale in NOISES:
        chosen = []
        for _ in range(4000):
            tried = draw.integers(0, len(told), draw.choice(len(law), p=law / law.sum()) + 1)
            split = draw.integers(0, repeats)  # one for all trials of a search
            won = tried[np.argmax(clean[tried, split] + draw.normal(0, scale, len(tried)))]
            chosen.append(told[won, split])
        kept[f"{scale:g}"] = float((np.mean(chosen) - typical) / (best - typical))
    return kept


def cell(
    name: str, shape: tuple[str, int, int] | None, epsilon: float, repeats: int, every: float | None, alone_only: bool
) -> Iterator[dict[str, Any]]:
    """One line: the figures of searches, and of every setting."""
    with tempfile.TemporaryDirectory() as place:
        if shape is None:
            config, frame, user = people(name, Path(place))
        else:
            frame, columns = made(*shape)
            config, _, _ = described(frame, None, None, columns)
            user = columns["user"]
        training, test = parted(frame, user)
        users = training[user].nunique()
        settings = {"epsilon": epsilon, "delta": min(1e-5, 1 / (10 * users))}
        config = config.model_copy(update={"privacy": config.privacy.model_copy(update=settings)})
        config = config.model_copy(update={"algorithm": type(config.algorithm)()})
        found = prepare(
            config,
            Path(place),
            vary={"loss.ridge": list(RIDGES)},
            algorithms=list(METHODS),
            holdout=every,
            identity=Identity("benchmark", 1, ""),
            frame=training,
            seeded=True,
        )
        table = found
        if alone_only:
            kept = pooled(found, table, test, repeats)
            yield {"table": name, "users": users, "epsilon": epsilon, "score_noise": found.noise.scale, "kept": kept}
            return
        chosen, names, tried = [], [], []
        for repeat in range(repeats):
            source = SeededNoise(1000 + repeat)
            best = best_trial(found.price, source, table.perform)
            names.append(found.candidates[best.candidate].name)
            chosen.append(figure(found, found.candidates[best.candidate], best.weights, test))
            tried.append(found.price.trials.draw(source))
        alone = {
            each.name: alone_figures(found, table, place_, test, repeats)
            for place_, each in enumerate(found.candidates)
        }
    means = {each: float(np.mean(values)) for each, values in alone.items()}
    top = max(means, key=lambda each: means[each])
    yield {
        "table": name if shape is None else f"{name} {shape[1]}x{shape[2]}",
        "users": users,
        "epsilon": epsilon,
        "trial_epsilon": found.price.selection.trial_epsilon(found.price.delta),
        "settings": len(found.candidates),
        "evaluate": every,
        "score_noise": found.noise.scale,
        "trials": tried,
        "chosen": float(np.mean(chosen)),
        "each": chosen,
        "names": names,
        "best": means[top],
        "best_name": top,
        "typical": float(np.mean(list(means.values()))),
        "worst": min(means.values()),
        "loss": means[top] - float(np.mean(chosen)),
    }


def alone_figures(found: TableSearch, table: TableSearch, place: int, test: pd.DataFrame, repeats: int) -> list[float]:
    """A setting's figure with noise of its own, as often as it is asked for."""
    values = []
    for repeat in range(repeats):
        source: NoiseSource = SeededNoise(5000 + repeat)
        outcome = table.perform(place, StartedNoise(TrialNoise(source, place), "alone"), source)
        values.append(figure(found, found.candidates[place], outcome.weights, test))
    return values


def summary(paths: list[str]) -> None:
    """A table in Markdown."""
    lines = [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]
    print("| table | users | ε | one trial | best of 20 | chosen | lost | all settings, mean | worst |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for each in lines:
        figures = " | ".join(f"{each[key]:.3f}" for key in ("best", "chosen", "loss", "typical", "worst"))
        print(
            f"| {each['table']} | {each['users']:,} | {each['epsilon']:g} | {each['trial_epsilon']:.2f} | {figures} |"
        )
    print(f"\nlost in the mean: {np.mean([each['loss'] for each in lines]):.4f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--table")
    parser.add_argument("--epsilon", type=float)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--holdout", type=float)
    parser.add_argument("--pooled", action="store_true")
    parser.add_argument("--summary", nargs="+")
    given = parser.parse_args()
    if given.summary:
        summary(given.summary)
        return
    cells: list[tuple[str, tuple[str, int, int] | None]] = [(name, None) for name in SHIPPED]
    cells += [(shape[0], shape) for shape in MADE]
    for name, shape in cells:
        for epsilon in EPSILONS if given.epsilon is None else (given.epsilon,):
            if given.table in (None, name):
                for line in cell(name, shape, epsilon, given.repeats, given.holdout, given.pooled):
                    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
