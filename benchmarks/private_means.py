"""Errors of private means in multiples of an oracle's: one that learns its radius, those that are told, CoinPress.

    python benchmarks/private_means.py > means.jsonl                      # minutes
    python benchmarks/private_means.py --learnt --epsilon 0.5 >> learnt.jsonl  # the one that learns, by itself
    python benchmarks/private_means.py --plain --epsilon 0.5 >> learnt.jsonl  # with floats for exact noise: quicker
    python benchmarks/private_means.py --summary means.jsonl              # the table of docs/results.md
    python benchmarks/private_means.py --forecast > forecast.jsonl        # how often forecasts of errors hold
    python benchmarks/private_means.py --shape heavy --users 3000 --columns 4 --epsilon 1 --bound 1e3

Users lie about a point nearly half the bound away, which is so many times their median distance from it. The oracle is
one clipped mean with all of μ around that very point, by the radius that is best in the mean over draws: nobody can
make it. Where that radius leaves most users outside, it answers with the point that it was told, so it has no error but
that of sampling, and no release could: beside it stands the best radius that hears half of a move of all users, or
more. `clip` knows the bound, `two-stage` also the radius that holds all users, `coinpress` the largest variance in
any direction and the best number of its steps. Errors are roots of mean squares over draws of users and noise, against
the users' own mean. One JSON object for a cell and method.

Forecasts are those of `auto`, for a ball no larger than the least that holds all users. `--summary` of both parts ends
with the share of cells within 1.3 times the oracle, from 10,000 users on, and the share of runs within their forecast.
"""

import argparse
import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import quoron
from quoron_privacy.accounts import gdp
from quoron_privacy.errors import Infeasible
from quoron_privacy.means import adaptive_mean
from quoron_privacy.means.adaptive_mean import AdaptiveMean
from quoron_privacy.means.clipping import clip_rows

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
Line = dict[str, Any]

DELTA, DRAWS = 1e-6, 8
NOISES, NUMBERS = 16, 120  # draws of noise at least, and numbers that are compared
SHAPES: dict[str, Callable[[np.random.Generator, int, int], Matrix]] = {
    "normal": lambda rng, n, d: rng.normal(size=(n, d)),
    "one-large": lambda rng, n, d: rng.normal(size=(n, d)) * np.append(10.0, np.ones(d - 1)),
    "heavy": lambda rng, n, d: rng.normal(size=(n, d)) / np.sqrt(rng.chisquare(2.5, (n, 1)) / 2.5),
    "exponential": lambda rng, n, d: rng.exponential(size=(n, d)) - 1.0,
    "lognormal": lambda rng, n, d: np.exp(rng.normal(size=(n, d))) - math.exp(0.5),
    "rare": lambda rng, n, d: (rng.random((n, d)) < 0.05) - 0.05,
    "far-cluster": lambda rng, n, d: rng.normal(size=(n, d)) + 20.0 * (rng.random((n, 1)) < 0.01) - 0.2,
    "uniform": lambda rng, n, d: rng.uniform(-1.0, 1.0, size=(n, d)),
    "two-clusters": lambda rng, n, d: rng.normal(size=(n, d)) + 3.0 * (rng.random((n, 1)) < 0.2) - 0.6,
    "t3": lambda rng, n, d: rng.standard_t(3, size=(n, d)),
    "scales": lambda rng, n, d: rng.normal(size=(n, d)) * np.where(rng.random((n, 1)) < 0.2, 10.0, 1.0),
    "factor": lambda rng, n, d: rng.normal(size=(n, d)) + 3.0 * rng.normal(size=(n, 1)),
    "one-user-far": lambda rng, n, d: np.where(np.arange(n)[:, None] == 0, 200.0, rng.normal(size=(n, d))),
}
SIZES = ((1_000, 1), (1_000, 10), *((users, columns) for users in (10_000, 100_000) for columns in (1, 3, 10, 100)))
BOUNDS = (10.0, 1e3, 1e6)
FORECAST = ("normal", "t3", "scales", "factor", "far-cluster")
FORECAST_USERS, FORECAST_COLUMNS = (50, 200, 500, 1_000, 3_000, 10_000, 100_000), (1, 2, 5, 20, 100)
FORECAST_EPSILONS, FORECAST_BOUNDS = (0.25, 0.5, 1.0, 2.0, 8.0), (10.0, 1e3, 1e5)
METHODS = ("learnt", "clip", "two-stage", "coinpress")
FLOATS = np.random.default_rng(0)  # of noise, where a release has no other floats
PLAIN = "plain"  # the one that learns, with noise in floats: what is released differs by the grid of noise alone


@dataclass(frozen=True, slots=True)
class FloatNoise:
    """What `GaussianNoise` is to the mean that learns; for measuring errors, not for releases."""

    scale: float

    @classmethod
    def for_mu(cls, *, sensitivity: float, mu: float, dimension: int) -> "FloatNoise":
        """Noise of a release of that sensitivity."""
        return cls(sensitivity / mu)

    def release(self, value: Vector, stream: Any) -> Vector:
        """With noise."""
        floats = stream if isinstance(stream, np.random.Generator) else FLOATS
        noisy: Vector = value + self.scale * floats.normal(size=value.shape)
        return noisy


def mean_cells(
    shapes: tuple[str, ...] = tuple(SHAPES),
    sizes: tuple[tuple[int, int], ...] = SIZES,
    epsilons: tuple[float, ...] = (1.0,),
    bounds: tuple[float, ...] = BOUNDS,
    draws: int = DRAWS,
    methods: tuple[str, ...] = METHODS,
) -> Iterator[Line]:
    """A line for each cell and method: its error, and how many times the oracle's it is."""
    for shape in shapes:
        for users, columns in sizes:
            few = 2 if users * columns > 10**6 else draws * (3 if columns == 1 and users <= 10_000 else 1)
            tables = [
                SHAPES[shape](np.random.default_rng([draw, users, columns]), users, columns) for draw in range(few)
            ]
            for epsilon in epsilons:
                best, hearing = oracle(tables, gdp.mu_for(epsilon, DELTA))
                for times in bounds:
                    cell = {"part": "mean", "shape": shape, "users": users, "columns": columns, "epsilon": epsilon}
                    for method in methods:
                        error = root_mean_square(method, tables, epsilon, times)
                        over = {"error": error, "times_oracle": error / best, "times_hearing": error / hearing}
                        yield cell | {"bound": times, "method": method} | over


def forecast_cells(shapes: tuple[str, ...], draws: int = DRAWS) -> Iterator[Line]:
    """A line for each cell: the method that is chosen, and in how many runs its error is within the forecast."""
    for shape, users, columns in itertools.product(shapes, FORECAST_USERS, FORECAST_COLUMNS):
        for epsilon, times in itertools.product(FORECAST_EPSILONS, FORECAST_BOUNDS):
            line = {"part": "forecast", "shape": shape, "users": users, "columns": columns, "epsilon": epsilon}
            ratios, errors, method = [], [], "refused"
            for draw in range(max(1, draws * 10**5 // max(10**5, users * columns))):
                table = SHAPES[shape](np.random.default_rng([draw, users, columns]), users, columns)
                table -= table.mean(axis=0)
                lengths = np.linalg.norm(table, axis=1)
                typical = float(np.median(lengths))
                bound = max(times * typical, 2.1 * float(lengths.max()))
                radius = float(np.linalg.norm(table - table[lengths.argmax()], axis=1).max()) / 2  # or a larger one
                away = 0.45 * bound / math.sqrt(columns)
                try:
                    found = quoron.mean(table + away, epsilon=epsilon, delta=DELTA, bound=bound, seed=draw)
                except Infeasible:
                    break
                errors.append(float(np.linalg.norm(found.value - away)) / typical)
                ratios.append(errors[-1] * typical / found.error.within(radius))
                method = found.method
            yield line | {"bound": times, "method": method, "of_forecast": ratios, "lengths": errors}


def oracle(tables: list[Matrix], mu: float) -> tuple[float, float]:
    """Of one clipped mean around zero, the point about which users are drawn: by any radius; by one that hears users.

    It hears of a move of all users the share by which its clipped mean moves, were they evenly around their point.
    """
    lengths = np.concatenate([np.linalg.norm(table, axis=1) for table in tables])
    users, columns = tables[0].shape
    tried = np.quantile(lengths, [*np.linspace(0.02, 0.98, 25), 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999, 1.0])

    def square(radius: float) -> float:
        off = [clip_rows(table, radius).mean(axis=0) - table.mean(axis=0) for table in tables]
        return columns * (2 * radius / users / mu) ** 2 + float(np.mean([np.sum(each**2) for each in off]))

    def hears(radius: float) -> bool:
        across = float(np.minimum(1.0, radius / np.maximum(lengths, 1e-300)).mean())
        return across * (1 - 1 / columns) + float(np.mean(lengths <= radius)) / columns >= 0.5

    squares = {radius: square(radius) for radius in tried[tried > 0].tolist()}
    return math.sqrt(min(squares.values())), math.sqrt(min(at for radius, at in squares.items() if hears(radius)))


def root_mean_square(method: str, tables: list[Matrix], epsilon: float, times: float) -> float:
    """Error over all tables; nan where too few users are asked."""
    lengths = [np.linalg.norm(table, axis=1) for table in tables]
    typical = float(np.median(np.concatenate(lengths)))
    squares = []
    for draw, table in enumerate(tables):
        spread = float(lengths[draw].max())
        bound = max(times * typical, 2.1 * spread)
        away = table + 0.45 * bound / math.sqrt(table.shape[1])
        mean = away.mean(axis=0)
        if method == "coinpress":
            deviation = math.sqrt(max(np.linalg.eigvalsh(np.atleast_2d(np.cov(table.T)))))
            mu, rng = gdp.mu_for(epsilon, DELTA), np.random.default_rng(draw)
            found = [coinpress(away / deviation, bound / deviation, mu, steps, rng) for steps in (1, 2, 3, 4, 6, 8, 10)]
            squares.append([np.sum((each * deviation - mean) ** 2) for each in found])
            continue
        again = range(-(-max(NOISES, NUMBERS // table.shape[1]) // len(tables)))
        if method == PLAIN:
            users, columns = table.shape
            learnt = AdaptiveMean(users, columns, bound, gdp.mu_for(epsilon, DELTA))
            for run in again:
                rng = np.random.default_rng([draw, run])
                squares += [[np.sum((learnt.release(away, np.ones(len(away), bool), rng, rng).value - mean) ** 2)]]
            continue
        try:
            values = [
                quoron.mean(
                    away,
                    epsilon=epsilon,
                    delta=DELTA,
                    bound=bound,
                    spread=spread if method == "two-stage" else None,
                    method=method,
                    seed=draw + 1000 * run,
                ).value
                for run in again
            ]
        except Infeasible:
            return math.nan
        squares += [[np.sum((value - mean) ** 2)] for value in values]
    return math.sqrt(np.mean(squares, axis=0).min())


def coinpress(users: Matrix, radius: float, mu: float, steps: int, rng: np.random.Generator) -> Vector:
    """The mean of users whose covariance is at most the identity, within `radius` of zero.

    Biswas, Dong, Kamath & Ullman (2020), CoinPress, Algorithms MVM and MVMRec, with the constants of their experiments:
    a tail of 0.01, a quarter of the budget for all steps but the last. ρ-zCDP by Gaussian noise is √(2ρ)-GDP.
    """
    n, d = users.shape
    tail = math.sqrt(d + 2 * math.sqrt(d * math.log(100)) + 2 * math.log(100))
    centre = np.zeros(d)
    for step in range(steps):
        share = 1.0 if steps == 1 else 0.75 if step == steps - 1 else 0.25 / (steps - 1)
        clip = min(math.sqrt(radius**2 + 6 * radius + tail**2), radius + tail)
        noise = 2 * clip / n / (mu * math.sqrt(share))
        centre = centre + clip_rows(users, clip, centre).mean(axis=0) + noise * rng.normal(size=d)
        radius = tail * math.sqrt(1 / n + noise**2)
    return centre


def summary(lines: list[Line], figure: str = "times_oracle") -> Iterator[str]:
    """A Markdown table: sizes and bounds down, shapes across; the one that learns, and below it CoinPress."""
    shapes = list(dict.fromkeys(line["shape"] for line in lines))
    at = {
        (line["shape"], line["users"], line["columns"], line["epsilon"], line["bound"], line["method"]): line
        for line in lines
    }
    yield f"| n, d, ε, bound | {' | '.join(shapes)} |"
    yield "|---" * (len(shapes) + 1) + "|"
    for users, columns, epsilon, bound in dict.fromkeys(key[1:5] for key in at):
        cells = []
        for shape in shapes:
            told = [
                at[shape, users, columns, epsilon, bound, method][figure]
                for method in ("learnt", PLAIN, "coinpress")
                if (shape, users, columns, epsilon, bound, method) in at
            ]
            cells.append(" / ".join("–" if math.isnan(each) else f"{each:.3g}" for each in told))
        yield f"| {users:,}, {columns}, {epsilon:g}, {bound:g} | {' | '.join(cells)} |"


def shares(lines: list[Line]) -> Iterator[str]:
    """The two shares that `docs/results.md` names, with how many cells and runs they are of."""
    cells = [line for line in lines if line["part"] == "mean" and line["users"] >= 10_000]
    for epsilon in sorted({line["epsilon"] for line in cells}):
        over = [line["times_oracle"] for line in cells if line["epsilon"] == epsilon]
        near = np.mean([each <= 1.3 for each in over])
        yield f"ε = {epsilon:g}: {near:.0%} of {len(over)} cells within 1.3 times the oracle, {max(over):.3g} at worst"
    for method in sorted({line["method"] for line in lines if line["part"] == "forecast"}):
        own = [line["of_forecast"] for line in lines if line["part"] == "forecast" and line["method"] == method]
        runs = [ratio <= 1 for ratios in own for ratio in ratios]
        if not runs:
            yield f"{method}: {len(own)} cells"
            continue
        least = min(np.mean([ratio <= 1 for ratio in ratios]) for ratios in own)
        yield f"{method}: {np.mean(runs):.1%} of {len(runs)} runs within the forecast, {least:.0%} in the worst cell"


def main() -> None:
    """Everything, or the cells that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--users", type=int)
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--bound", type=float)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--learnt", action="store_true", help="no other method")
    parser.add_argument("--plain", action="store_true", help="no other method, and noise in floats")
    parser.add_argument("--forecast", action="store_true", help="forecasts of errors, with noise in floats")
    parser.add_argument("--summary", type=Path)
    parser.add_argument("--hearing", action="store_true", help="multiples of the error of a radius that hears users")
    asked = parser.parse_args()
    if asked.summary:
        lines = [json.loads(line) for line in asked.summary.read_text().splitlines()]
        means = [line for line in lines if line["part"] == "mean"]
        print("\n".join([*summary(means, "times_hearing" if asked.hearing else "times_oracle"), *shares(lines)]))
        return
    shapes = (asked.shape,) if asked.shape else tuple(SHAPES)
    sizes = ((asked.users, asked.columns),) if asked.users else SIZES
    bounds = (asked.bound,) if asked.bound else BOUNDS
    methods = METHODS[:1] if asked.learnt else (PLAIN,) if asked.plain else METHODS
    if asked.plain or asked.forecast:
        adaptive_mean.GaussianNoise = FloatNoise  # type: ignore[attr-defined, assignment]
    if asked.forecast:
        for line in forecast_cells((asked.shape,) if asked.shape else FORECAST, asked.draws):
            print(json.dumps(line), flush=True)
        return
    for line in mean_cells(shapes, sizes, (asked.epsilon,), bounds, asked.draws, methods):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
