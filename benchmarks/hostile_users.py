"""What hostile users cost, and what it costs to be ready for them: what is left of what there is to learn, by method.

    python benchmarks/hostile_users.py                             # all tables, attacks and shares: some minutes
    python benchmarks/hostile_users.py --table plain --attack little --share 0.05 --algorithm filtered-sgd

Tables are of `shapes.py`; everybody is hostile in the same way in every round:

    far      the same gradient of length 1,000 along one feature, an extreme moment, and a loss in the model's favour
    little   all at 1.5 deviations of the honest answers' mean in every coordinate, on one side ("a little is enough")
    flipped  the gradient the other way, as of labels that are all wrong
    zero     a gradient of zeros

One JSON object a cell, `left` as in `cells.py`. `robust` is whitened-tracking with that option, `auto` what is taken
where the share is declared; the other methods are told the share, whitened-tracking by name is not. A method is left
out where its plan has more than 15 million gradients.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from cells import model, plan_of, short, start_excess
from shapes import SHAPES, table

from quoron.data import TablePopulation
from quoron.engine.inline import InlineEngine
from quoron_client.protocol.questions import Answers, AverageLoss, Question
from quoron_privacy.errors import QuoronError
from quoron_server.plan import RunPlan

TABLES = {"plain": (3_000, 10), "correlated": (10_000, 15), "single": (20_000, 10), "onehot": (5_000, 12)}
SHARES = (0.0, 0.01, 0.05, 0.1)
METHODS = ("auto", "whitened-tracking", "robust", "recentred-sgd", "tracking-srgd", "outlier-iterates", "outlier-gd")
METHODS += ("filtered-sgd", "accelerated-erm", "median-sgd", "winsorised-erm")
FAR_LENGTH, LITTLE = 1e3, 1.5
MOST_GRADIENTS = 15_000_000
Matrix = np.ndarray


def far(values: Matrix, bad: Matrix) -> None:
    """In a factor along the first feature; the last coordinate of a gradient."""
    values[bad] = 0.0
    values[bad, 0] = values[bad, -1] = FAR_LENGTH


def little(values: Matrix, bad: Matrix) -> None:
    """Where nobody stands alone."""
    honest = values[~bad]
    if len(honest):
        values[bad] = honest.mean(axis=0) + LITTLE * honest.std(axis=0)


def opposite(values: Matrix, bad: Matrix) -> None:
    """The other way."""
    values[bad] *= -1.0


def zero(values: Matrix, bad: Matrix) -> None:
    """Nothing."""
    values[bad] = 0.0


ATTACKS: Mapping[str, Callable[[Matrix, Matrix], None]] = {
    "far": far,
    "little": little,
    "flipped": opposite,
    "zero": zero,
}


class Hostile:
    """An engine some of whose users are hostile."""

    def __init__(self, population: TablePopulation, attack: str, share: float, seed: int) -> None:
        self.engine, self.attack = InlineEngine(population), ATTACKS[attack]
        self.bad = np.random.default_rng(seed).permutation(population.users)[: round(share * population.users)]

    def ask(self, question: Question) -> Answers:
        """Of the engine, but for them."""
        answers = self.engine.ask(replace(question, reduction=None))  # a row each, to be summed later
        assert isinstance(answers, Answers)
        bad = np.isin(question.cohort, self.bad)
        if bad.any() and isinstance(question.task, AverageLoss):
            answers.values[bad] = [0.0, FAR_LENGTH]  # as if it were much better off than at the start
        elif bad.any():
            self.attack(answers.values, bad)
        return answers


def _plan(people: TablePopulation, method: str, epsilon: float, share: float) -> RunPlan:
    """Of who declares that share, but whitened-tracking by name."""
    name = "whitened-tracking" if method == "robust" else method
    options = {"robust": method == "robust"} if name == "whitened-tracking" else {}
    return plan_of(people, name, epsilon, options=options, hostile_share=share)


def main() -> None:
    """Print one JSON object a cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="append", choices=SHAPES)
    parser.add_argument("--attack", action="append", choices=ATTACKS)
    parser.add_argument("--share", action="append", type=float)
    parser.add_argument("--epsilon", action="append", type=float)
    parser.add_argument("--algorithm", action="append", choices=METHODS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--draw", type=int, default=1)
    chosen = parser.parse_args()
    for name in chosen.table or TABLES:
        people = table(name, *TABLES.get(name, (3_000, 10)), chosen.draw)
        start = start_excess(people)
        for epsilon in chosen.epsilon or (1.0, 4.0):
            for share in chosen.share or SHARES:
                for method in chosen.algorithm or METHODS:
                    values = {"table": name, "epsilon": epsilon, "share": share, "asked": method}
                    try:  # what is declared is at least 1 %: who declares nobody is not ready for anybody
                        plan = _plan(people, method, epsilon, max(share, 0.01))
                    except QuoronError as error:
                        print(json.dumps(values | {"refused": str(error)[:200]}), flush=True)
                        continue
                    if plan.cost.gradient_evaluations > MOST_GRADIENTS and method != "auto":
                        continue
                    for attack in chosen.attack or ATTACKS if share else ("far",):
                        engines = (Hostile(people, attack, share, seed) for seed in range(chosen.seeds))
                        models = [model(people, plan, seed, engine) for seed, engine in enumerate(engines)]
                        said = {"attack": attack if share else "nobody", "algorithm": plan.algorithm}
                        found = [short(100 * people.excess_risk(each) / start) for each in models]
                        values |= said | {"left": found}
                        print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main()
