"""Private training of any model on one machine: users' rows come from a function of yours, the rest is ours.

    def rows(users, point):                      # users (k,), point (d,): one row a user, (k, d)
        return np.stack([average_gradient(point, items[user]) for user in users])

    trained = quoron.train_rows(
        rows, users=1000, dimension=d, epsilon=2, delta=1e-6, clip_norm=1, radius=10
    )
    trained.model, trained.statement

`rows` is a black box, so plans, refusals and proofs are those of the plug-in for Flower (docs/flower.md): rows are
clipped here, nothing is assumed of convexity, smoothness or size. What is written, and in which order, each step
harmless to repeat after a crash:

    start.npz            the public model that it begins with, if that is not zero
    rows.json            what was fixed: its name, its public seed, every setting
    ledger.sqlite        the noise key; later rounds and releases, and until the end the state
    lifetime ledger      the charge, before `rows` is called
    model.npz, ...       what was released
    lifetime ledger      the model's digest, and the end

Until the end ledger.sqlite is private (mode 0600). Page: docs/models.md.

Items by user as arrays: from a table, arrays or tensors, a mapping of them, a Dataset or a DataLoader of torch.

Which items users take when has the same shapes for all, whatever anybody holds:

    timetable = Timetable(items, items_per_user=50, local=LocalSGD(batch_size=10))
    minibatches = timetable.minibatches(round, users, noise)     # places and weights, (k, steps, batch)

Every user has the same `steps` x `batch` places: a place without an item repeats one of the user's own with weight
zero. So shapes say nothing of anybody's items, and the kernels that compute a user's row are the same whatever others
hold. A user of more than `items_per_user` items takes part with so many of them, drawn again in each round.
"""

import hashlib
import io
import json
import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import Any, Required, TypedDict, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from quoron.arguments import entry_point
from quoron.evaluation.evaluation import Evaluation
from quoron.evaluation.figures import of_means
from quoron.evaluation.scores import held_users, parts
from quoron.reports.pages import write_rows
from quoron.results import M
from quoron.results import Run as Released
from quoron.run_folder import ROWS, Identity, RunFolder, claim_for, flat, public_row, write
from quoron.training import lifetime
from quoron.training.memory import make_sure_of_answers
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import FAR, Answers, Question, Status, combined
from quoron_privacy.accounts.gdp import mu_for
from quoron_privacy.errors import ConfigError, DataError, LedgerError, OtherVersion, RunError, count, positive
from quoron_privacy.histograms.held_out import HeldMeans
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.noise.streams import NoiseSource, SecureNoise, SeededNoise, StartedNoise, of_the_run
from quoron_privacy.release import Sums
from quoron_server.algorithms import ALGORITHMS
from quoron_server.black_box import UNKNOWN_CLIP, Asked
from quoron_server.parameters import Assumption, Kind
from quoron_server.plan import EVALUATED, EVERYONE, Guarantee, Privacy, RunPlan, check_delta
from quoron_server.problem import Problem
from quoron_server.rounds import Evaluations, Observer
from quoron_server.runs import Run
from quoron_server.wording import ReleaseGuarantee, plan_json, sentence

Vector = NDArray[np.float64]
Bytes = NDArray[np.uint8]
ONE_PASS = "one-pass-dp-sgd"
_log = logging.getLogger("quoron")
FILE = "start.npz"
_WEIGHTS, _FIXED = "start", "fixed "  # keys in the file; a name follows the second


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """The public model that training starts from, kept in the run's folder: an interrupted run goes on from there.

    A script that makes a module again without a seed makes another one. Rows depend on what is not trained, too.
    """

    weights: Vector  # (d,)
    fixed: Mapping[str, Bytes] = field(default_factory=dict)  # by name, the bytes of what is not trained

    @classmethod
    def read(cls, path: Path) -> "Start | None":
        """Return what `write` wrote; None if there is no such file. LedgerError for another file."""
        if not path.is_file():
            return None
        try:
            with np.load(path, allow_pickle=False) as arrays:
                weights = np.asarray(arrays[_WEIGHTS], np.float64)
                names = [name for name in arrays.files if name.startswith(_FIXED)]
                return cls(weights, {name.removeprefix(_FIXED): np.asarray(arrays[name], np.uint8) for name in names})
        except (OSError, ValueError, KeyError) as error:
            raise LedgerError(
                f"Expected the start of the run in {path}, got a file that cannot be read ({type(error).__name__}). "
                "Put back the file that the run wrote."
            ) from None

    @property
    def shapes(self) -> tuple[int, dict[str, int]]:
        """Return how many numbers it has, and how many bytes of what is not trained."""
        return len(self.weights), {name: len(found) for name, found in self.fixed.items()}

    @property
    def digest(self) -> str:
        """What makes a start this one and no other."""
        found = hashlib.sha256(self.weights.astype("<f8").tobytes())
        for name in sorted(self.fixed):
            found.update(f"{name} {len(self.fixed[name])} ".encode() + self.fixed[name].tobytes())
        return found.hexdigest()

    def write(self, path: Path) -> None:
        """Write it completely or not at all; no file where it is zero, the default."""
        if not self.fixed and not self.weights.any():
            path.unlink(missing_ok=True)
            return
        short = self.weights.astype(np.float32)
        exact = short if np.array_equal(short, self.weights) else self.weights
        arrays: dict[str, Any] = {_WEIGHTS: exact} | {_FIXED + name: found for name, found in self.fixed.items()}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        write(path, buffer.getvalue())


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TrainedRows(Released[M]):
    """What was trained by rows that somebody else computes."""

    plan: RunPlan
    rounds: int  # that were carried out: fewer than planned where it stopped early
    evaluation: Evaluation | None = None  # of users that were held out; None: nobody was
    history: tuple[tuple[int, Evaluation], ...] = ()  # after so many rounds, with `evaluate_every`

    def rows(self) -> list[tuple[str, str]]:
        """Return those of the plan, when it stopped, and how good the model is."""
        planned, measured = self.plan.cost.rounds, [] if self.evaluation is None else self.evaluation.rows()
        early = [("stopped early", f"after {self.rounds} of {planned} rounds")] if self.rounds < planned else []
        return [("algorithm", self.plan.algorithm), *self.plan.rows()[-3:], *early, *measured]

    @property
    def guarantee(self) -> Guarantee:
        """ε, δ, adjacency, trust model and assumptions; `statement` says it in words."""
        return self.plan.guarantee


class BlackBox(TypedDict, total=False):
    """The arguments of every function that trains a black box: its algorithm, public numbers, the guarantee."""

    algorithm: str | None  # a name from `quoron show algorithms`; None: "one-pass-dp-sgd"
    options: Mapping[str, Any] | None  # of that algorithm: `rounds`, `rate`, `step_size`, ...; the plan chooses others
    items_per_user: int | None  # for step sizes alone; of torch and JAX the most that take part, drawn in each round
    radius: float | None  # the model stays within this distance of its start; of torch and JAX None: it is not bounded
    smoothness: float | None  # of users' average losses, if known; for step sizes alone
    clip_norm: float | None  # rows are shortened to it. None: it follows the users, privately, for a share of ε
    epsilon: Required[float]
    delta: float  # 1e-6 of torch and JAX, unless given; above 1/n it is refused without allow_large_delta
    allow_large_delta: bool
    seed: int | None  # SIMULATED: of all noise, for made-up data only, as it protects nobody. None: from the system
    population: str | None  # whose privacy budget is charged; None: "everyone"


class Training(BlackBox, total=False):
    """And of those that train it on this machine."""

    chunk: int | None  # users computed at once: bounds memory; of torch and JAX 64, else a cohort, unless given
    out: str | Path | None  # the run's folder; None: the next under runs/
    ledger: str | Path | None  # the file of privacy budgets; None: QUORON_LEDGER, or the platform's place
    observers: Sequence[Observer]  # called with the public figures of every round
    holdout: float | None  # share of the users that are not trained on but measure the model, for the same ε
    metrics: Mapping[str, "Metric"] | None  # what they measure, by name: numbers in [0, 1]
    evaluate_every: int | None  # rounds after which they measure it, too; None: they measure the final model alone
    patience: int | None  # stop where the first metric rose no more over so many of these evaluations; None: never


def algorithm_of(method: BlackBox) -> tuple[str, dict[str, Any]]:
    """Return the name of the algorithm, and its options, where a step size that is a function became its values."""
    name, options = method.get("algorithm"), dict(method.get("options") or {})
    if callable(options.get("step_size")):
        if options.get("rounds") is None or "schedule" in options:
            raise ConfigError("Expected options.rounds and no schedule where options.step_size is a function.")
        count(rounds=options["rounds"])
        steps = [float(options["step_size"](round_)) for round_ in range(options["rounds"])]
        largest = max(steps, default=0.0)
        if not largest > 0:
            raise ConfigError(f"Expected a function as options.step_size with positive values, got {largest} at most.")
        options |= {"step_size": largest, "schedule": tuple(step / largest for step in steps)}
    return ONE_PASS if name is None else name, options


def problem_of(method: BlackBox, *, users: int, dimension: int) -> Problem:
    """Return the problem of a black box: its bound on gradients is the clip, and nothing is said of convexity."""
    items, clip_norm = method.get("items_per_user"), method.get("clip_norm")
    if clip_norm is not None:
        positive(clip_norm=clip_norm)
    return Problem(
        users=users,
        items_per_user=1 if items is None else items,
        dimension=dimension,
        domain=L2Ball(_needed(method, "radius")),
        lipschitz=UNKNOWN_CLIP if clip_norm is None else clip_norm,
        smoothness=method.get("smoothness"),
    )


def _needed(method: BlackBox, name: str) -> Any:
    if (value := method.get(name)) is None:
        raise ConfigError(f"Expected {name}, got none.")
    return value


def origin_of(start: NDArray[np.float64] | None, dimension: int) -> Vector:
    """Return where training starts, (d,), zero by default. ConfigError for another shape or numbers not finite."""
    try:
        origin = np.zeros(dimension) if start is None else np.array(start, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"Expected start to be {dimension} finite numbers, got something else.") from None
    if origin.shape != (dimension,) or not np.isfinite(origin).all():
        raise ConfigError(f"Expected start to be {dimension} finite numbers, got shape {origin.shape}. Flatten it.")
    return origin


Users = NDArray[np.int64]
Rows = Callable[[Users, Vector], Any]  # users (k,), point (d,) -> (k, d): numpy, or anything with DLPack
Computation = Callable[[int, Users, Vector, NoiseSource], Any]  # the same, with the round, and its randomness
Summation = Callable[[Question, Users, Vector, NoiseSource, float], Sums]  # the reduction of users' answers, made there
Watch = Callable[[int, Vector], None]  # a round from 0, and the point (d,) of its question

CHUNK = 64  # users whose rows a framework computes at once
Metric = Callable[..., Any]  # see `train_rows`, or that of a framework


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(Asked):
    """All that makes it this run and no other, but for its seed."""

    held: int = 0  # users that are held out
    measured: tuple[str, ...] = ()  # what is measured with them
    every: int | None = None  # after so many rounds each
    patience: int | None = None  # evaluations on average no better than as many before: then it stops
    model: str = ""  # what else has to be the same after an interruption, for the caller
    allow_large_delta: bool = False  # accept δ above 1/n

    @classmethod
    def of(cls, training: Training, *, users: int, start: Start, model: str = "") -> "Setting":
        """Return the setting. ConfigError for users that are held out without a metric, or the reverse."""
        holdout, metrics = training.get("holdout"), training.get("metrics")
        every, patience = training.get("evaluate_every"), training.get("patience")
        if (holdout is None) != (not metrics):
            raise ConfigError(f"Expected holdout and metrics together, got holdout={holdout} and metrics={metrics}.")
        if every is not None and holdout is None:
            raise ConfigError(f"Expected holdout with evaluate_every, got evaluate_every={every} alone.")
        if patience is not None and every is None:
            raise ConfigError(f"Expected evaluate_every with patience, got patience={patience} alone.")
        count(evaluate_every=1 if every is None else every, patience=1 if patience is None else patience)
        held = held_users(users, holdout)
        algorithm, options = algorithm_of(training)
        return cls(
            held=held,
            measured=tuple(metrics or ()),
            every=every,
            patience=patience,
            problem=problem_of(training, users=users - held, dimension=len(start.weights)),
            privacy=Privacy(training["epsilon"], _needed(training, "delta")),
            clip_norm=training.get("clip_norm"),
            algorithm=algorithm,
            options=options,
            start=start.digest,
            model=model,
            simulation_seed=training.get("seed"),
            group=training.get("population") or EVERYONE,
            allow_large_delta=training.get("allow_large_delta", False),
        )

    def plan(self, seed: int) -> RunPlan:
        """Return the plan of one trusted machine, verified against its theorem; `seed` is public."""
        if self.simulation_seed is None:
            allowed = self.allow_large_delta
            check_delta(self.privacy.delta, self.problem.users, allowed=allowed, key="allow_large_delta")
        made = self.planned(seed, curated=True)
        kinds = [Kind.OWN_ROWS]  # what nobody can check of a function
        if made.guarantee.rests_on(Kind.FORGETFUL_CLIENTS):
            kinds.append(Kind.FORGETFUL_FUNCTION)
        plan = made.as_curated(map(Assumption, kinds))
        if self.held:
            promise, planned = plan.guarantee, plan.cost.rounds
            asked: dict[str, Any] = {"epsilon": promise.epsilon, "delta": promise.delta, "adjacency": promise.adjacency}
            rounds = () if self.every is None else tuple(range(self.every - 1, planned - 1, self.every))
            if self.every is not None and not (rounds and promise.trust_model == "central-broadcast"):
                raise ConfigError(
                    f"Expected evaluate_every below the {planned} rounds of an algorithm that releases every point, "
                    f"got evaluate_every={self.every} with {plan.algorithm}, {promise.trust_model}."
                )
            means = HeldMeans.calibrate(users=self.held, figures=len(self.measured), rounds=rounds, **asked)
            plan = replace(plan, guarantee=replace(promise, held_out=means))
        ALGORITHMS[self.algorithm].verify(plan)
        plan.require_deployable(trust_clients=False)
        return plan if self.simulation_seed is None else plan.simulated()


@dataclass(frozen=True, slots=True, eq=False)
class RowsEngine:
    """Answers that `compute` gives for all users of a cohort, `chunk` at a time, at points that count from `start`.

    Every user has one slot, in a uniform order from the run's noise, the same whenever it goes on: how users are
    numbered says nothing of who is asked together. A row that is not finite, or absurdly long, is the zero row.
    """

    compute: Computation
    problem: Problem
    start: Vector  # (d,)
    noise: NoiseSource
    chunk: int | None = None  # users; None: a cohort at once
    watch: Watch | None = None
    summing: Summation | None = None  # for questions of a ClippedSum: rows do not leave the process that computes them
    among: Users | None = None  # those that are asked at all; None: all
    enclosed: bool = False  # no one is shown the points: rounds of a large model share a commit

    def ask(self, question: Question) -> Answers | Sums:
        """One row an asked user, in slot order, or their sums, of which it holds no rows but a chunk's.

        Raises RunError for rows of another shape, and what `compute` raises.

        Which users stand in a chunk, and where, follows from the cohort alone.
        """
        order = of_the_run(self.noise).stream("order of users").permutation(self.problem.users)
        order = order if self.among is None else self.among[order]
        users, task, reduction = order[question.cohort], question.task, question.reduction
        if self.watch is not None:  # under trust model `central-broadcast` everything that is sent out is released
            self.watch(question.round, self.start + task.points[0])  # type: ignore[attr-defined]
        step = self.chunk or max(1, len(users))
        if self.summing is not None and isinstance(reduction, ClippedSum) and len(users):
            largest, start, noise = self._largest(question), self.start, self.noise
            some = (users[first : first + step].copy() for first in range(0, len(users), step))
            return reduce(add, (self.summing(question, part, start, noise, largest) for part in some))
        parts = (self._part(question, users[first : first + step]) for first in range(0, max(1, len(users)), step))
        if reduction is not None:
            return reduce(add, (reduction.of(part.values, part.answered) for part in parts))
        gathered = list(parts)
        return Answers(
            np.concatenate([part.values for part in gathered]), np.concatenate([part.status for part in gathered])
        )

    def _part(self, question: Question, users: Users) -> Answers:
        """Answers of some of the users asked."""

        def gradient(point: Vector) -> NDArray[np.float64]:
            rows = self.compute(question.round, users.copy(), self.start + point, self.noise)
            return as_matrix(rows, (len(users), self.problem.dimension))

        values = combined(question.task, gradient) if len(users) else np.zeros((0, self.problem.dimension))
        status = np.full(len(users), Status.ANSWERED, np.uint8)
        return Answers.checked(values, status, largest=self._largest(question))

    def _largest(self, question: Question) -> float:
        """Of the numbers of an answer that counts; a small clip norm does not lower it, as rows may be far longer."""
        return FAR * max(1.0, question.task.honest(self.problem.bounds))


ROUNDS = ((3.0, 40), (5.0, 80), (math.inf, 120))  # up to so much room, n μ / (2 √d)
COHORT, LEAST_RATE = 2_000, 0.1
TRAVEL = 1.2  # rounds times the step; released sums may lengthen the whole path up to 4 times
ITEMS = 32  # of a user that take part
FARTHEST = 1e6  # a radius that bounds nothing
COARSE = 0.05  # of a metric: more noise than improvements that training is stopped by


def completed(training: "ModuleTraining", users: int, dimension: int) -> "ModuleTraining":
    """Return the arguments with defaults for missing ones, by a public rule of n, d, ε and δ (docs/results.md).

    It is `dp-sgd-wor` in rounds of everybody up to 2,000 users, beyond that of 2,000 or a tenth: 40, 80 or 120, the
    more the less noise there is beside a row. Rows have one small norm (Bu et al. 2023, "Automatic clipping"); steps
    are `normalised` and add up to 1.2 for each number, or to more by releases. The model is the last quarter's mean.
    `dp-sgd-poisson` with neither a step nor a clip norm gets the same, with half the noise, as it protects zero-out.
    """
    given: dict[str, Any] = {name: value for name, value in training.items() if value is not None}
    own = dict(given.get("options") or {})
    filled: dict[str, Any] = {"items_per_user": ITEMS, "radius": FARTHEST, "delta": 1e-6}
    zero_out = given.get("algorithm") == "dp-sgd-poisson" and "clip_norm" not in given and "step_size" not in own
    if "algorithm" not in given or zero_out:
        mu = mu_for(_needed(training, "epsilon"), given.get("delta", filled["delta"]))
        mu *= 2 if zero_out else 1  # of a user who is replaced in the same noise
        room = users * mu / (2 * math.sqrt(max(dimension, 1)))
        if room < 1:
            _log.warning(
                "noise moves this model further than all users together: n mu / (2 sqrt(d)) is %.2g, below 1. It takes "
                "about %d users, a larger epsilon, or fewer trained weights",
                *(room, math.ceil(2 * math.sqrt(max(dimension, 1)) / mu)),
            )
        rounds = own.get("rounds") or next(rounds for most, rounds in ROUNDS if room < most)
        rule: dict[str, Any] = {"rounds": rounds, "rate": min(1.0, max(COHORT / max(users, 1), LEAST_RATE))}
        if own.get("optimiser", "normalised") in ("normalised", "adam"):
            falls = own.get("schedule") in ("linear", "cosine")
            steps = (rounds + 1) / 2 if falls else rounds  # the sum of all factors
            rule |= {"optimiser": "normalised", "second_momentum": 0.99, "step_size": TRAVEL / steps}
            rule |= {"suffix": max(1, rounds // 4)}
            filled["clip_norm"] = 0.001  # shorter than most rows
        filled |= {"algorithm": "dp-sgd-wor", "options": rule | own}
        given.pop("options", None)
        taken = (filled | given)["algorithm"]
        _log.info("chosen by the numbers of users and weights and epsilon: %s, %s", taken, filled["options"])
    return cast("ModuleTraining", filled | given)


def as_matrix(rows: Any, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Rows of any framework as float64. RunError for another shape, or for what neither numpy nor DLPack can carry."""
    if not isinstance(rows, np.ndarray) and hasattr(rows, "__dlpack__"):
        try:
            rows = np.from_dlpack(rows, device="cpu")
        except (TypeError, BufferError, RuntimeError, ValueError) as error:
            raise RunError(
                f"Expected rows that DLPack carries to numpy, got {type(rows).__name__}: {error} Detach them from "
                "their graph, and return them as float32 or float64 on the processor."
            ) from error
    try:
        array = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise RunError(f"Expected rows of numbers, got {type(rows).__name__}. Return an array.") from error
    if array.shape != shape:
        raise RunError(f"Expected one row of {shape[1]} numbers for each of {shape[0]} users, got shape {array.shape}.")
    return array


@entry_point
def train_rows(
    rows: Rows,
    *,
    users: int,
    dimension: int,
    start: NDArray[np.float64] | None = None,
    watch: Watch | None = None,
    **training: Unpack[Training],
) -> TrainedRows[Vector]:
    """Train any model of `dimension` numbers with (ε, δ)-differential privacy for all items of each of `users` users.

    `rows(user_ids, point)` gets distinct numbers below `users`, shape (k,), and a model, shape (d,). It returns (k, d),
    row i for user_ids[i]: an average gradient at that model, or a local update, the model less what local training
    makes of it. Rows are clipped at `clip_norm` here. One that is not finite is the zero row, as a user without items
    should be.

    Args:
        rows, users, dimension: see above.
        epsilon, delta: the guarantee. A δ above 1/n is refused without `allow_large_delta=True`.
        radius: the model stays within this ℓ2 distance of `start`.
        clip_norm: longer rows are shortened to it. None: it follows the users, privately, for a share of ε, and
            `options` need a `step_size`.
        algorithm, options: a name from `quoron show algorithms`, and its `rounds`, `step_size`, `rate`, ...; the plan
            chooses what is left out. `step_size` may be a function of the round, from 0, such as a schedule of optax.
        smoothness, items_per_user: public, for step sizes only.
        chunk: users in one call of `rows`, at most: bounds its memory; by default a cohort at once.
        start: public start, shape (d,); zero by default. Its values must not depend on protected data. It is kept with
            the run, which goes on from it: another one is refused by name, none taken.
        seed: for made-up data only: of all noise, which then comes again. The guarantee begins with SIMULATED, and
            nothing is charged.
        population, ledger: whose privacy budget is charged, in which file.
        out: the run's folder; by default runs/rows-1, or the next that is free.
        watch: called before each round with its number and the released point that it asks at; evaluate on public data
            there.
        holdout: share of the users that are not trained on but measure the final model, for the same ε, as nobody is
            in both parts (docs/evaluation.md).
        metrics: of these users, by name: metric(user_ids, model) returns (k,) numbers in [0, 1], NaN for a user without
            items. Means over users, with 95 % intervals, are in `evaluation` of the result.
        evaluate_every: rounds after which they measure the released point as well, for the same ε: with K evaluations
            each has √K times the noise. They are in `history`, and in `public` of the observers' events.
        patience: stop once the first metric, of which more is better, was on average no higher in the last so many of
            these evaluations than in as many before. The point that stands is the model. docs/evaluation.md says what
            is given back.
        observers: called with the public figures of every round.

    Nobody checks what the items are (docs/train.md): `rows` alone knows.

    The plan reads nothing but these arguments. The run is charged before `rows` is first called. Interrupted, the same
    call with the same `out` and the same data goes on after the last committed round, which stands, with noise of its
    own: the same privacy for one charge. A simulation goes on to the same bits, as far as `rows` answers the same. A
    complete run returns its model and calls nothing.

    Raises:
        ConfigError: naming why, for algorithms that need more than gradients.
        QuoronError: Infeasible, BudgetExceeded, LedgerError, OtherVersion, RunError.
    """
    count(users=users, dimension=dimension)
    stored = None if start is not None else begun_with(training)
    begin = stored or Start(origin_of(start, dimension))
    setting, metrics = Setting.of(training, users=users, start=begin), training.get("metrics")

    def compute(round_: int, asked: Users, point: Vector, noise: NoiseSource) -> Any:
        del round_, noise
        return rows(asked, point)

    def measured(asked: Users, point: Vector) -> Any:
        return np.stack([metric(asked, point) for metric in (metrics or {}).values()], axis=1)

    return carry_out(compute, setting, begin, training, watch=watch, figures=measured if metrics else None)


def begun_with(training: Training) -> Start | None:
    """Return the start that the run in `out` began with; None where none has begun, or it began at zero."""
    out = training.get("out")
    return Start.read(Path(out) / FILE) if out is not None and Identity.stored(RunFolder(Path(out)), ROWS) else None


def start_of(training: Training, own: Start) -> Start:
    """Return the start that the run in `out` began with if it is one of this model, said in the log; else its own."""
    stored = begun_with(training)
    if stored is None or stored.shapes != own.shapes or stored.digest == own.digest:
        return own
    _log.warning("this model is not the one that the run in %s began with, which goes on from that", training["out"])
    return stored


def released(folder: str | Path, own: Start) -> Start:
    """Return the weights that the run in `folder` released, with all that it did not train, for a model like `own`.

    Raises:
        RunError: the run is not complete, or its files have changed.
        ConfigError: it trained a model of another shape.
    """
    run = RunFolder(Path(folder))
    run.summary()  # written after the model
    begun = Start.read(run.path / FILE)
    start = Start(run.model(), {} if begun is None else begun.fixed)
    if start.shapes != own.shapes:
        raise ConfigError(
            f"Expected a model of {len(start.weights):,} numbers and {len(start.fixed):,} parts that are not trained, "
            f"as the run in {folder} made it, got one of another shape, of {len(own.weights):,} and {len(own.fixed):,}."
        )
    return start


def carry_out(
    compute: Computation,
    setting: Setting,
    start: Start,
    training: Training,
    *,
    chunk: int | None = None,
    watch: Watch | None = None,
    summing: Summation | None = None,
    figures: Rows | None = None,
    enclosed: bool = False,
) -> TrainedRows[Vector]:
    """Plan, charge, train from wherever the store stands, keep the model, erase what is secret.

    `chunk` is of training, unless that has its own. With `enclosed` none but `watch` is shown a point.
    """
    out, chunk = training.get("out"), chunk if training.get("chunk") is None else training.get("chunk")
    if chunk is not None:
        count(chunk=chunk)
    begun = None if out is None else Identity.stored(RunFolder(Path(out)), ROWS)
    seed = setting.simulation_seed
    identity = begun or (Identity.fresh("rows") if seed is None else replace(Identity.fresh("rows"), seed=seed))
    run = Run(
        name=identity.run,
        plan=setting.plan(identity.seed),
        digest=hashlib.sha256(setting.as_text().encode()).hexdigest(),
        group=setting.group,
        account=partial(lifetime.opened, training.get("ledger")) if seed is None else None,  # nothing is promised
        simulation_seed=seed,
    )
    try:
        run.check()
        if begun is None:
            make_sure_of_answers(run.plan)
        folder = claim_for(out, "rows", lambda path: (path / ROWS).is_file(), "a run of rows")
        if begun is None:
            start.write(folder.path / FILE)
        record = {"identity": asdict(identity), "setting": setting.as_text()}
        own = folder.begin(run, {ROWS: record, "plan.json": plan_json(run.plan)})
    except OtherVersion as error:
        raise OtherVersion(f"{error}{'' if out is None or begun is None else _differing(out, setting)}") from None
    with closing(own):
        run.charge()
        words = (StartedNoise.fresh if seed is None else StartedNoise.simulated)(run.noise(own))
        among, evaluations = None, None
        if setting.held and figures is not None:
            among, held_out = parts(run.plan.problem.users + setting.held, setting.held, run.noise(own))
            evaluations = _evaluations(run.plan, setting, figures, start.weights, held_out)
        enclosed = enclosed and watch is None
        engine = RowsEngine(compute, run.plan.problem, start.weights, words, chunk, watch, summing, among, enclosed)
        step = run.carry_out(own, engine, training.get("observers", ()), evaluations=evaluations)
        events, released = own.events(), own.released(EVALUATED)
    model, statement = start.weights + step, sentence(run.plan.guarantee)
    folder.write_model(model)
    folder.write_rounds([public_row(event) if seed is None else flat(event) for event in events])
    evaluation = None if released is None else _figures(run.plan, setting, released, statement)
    between = ((event["round"] + 1, event["public"].get("evaluation")) for event in events)
    history = tuple((at, _figures(run.plan, setting, means, statement)) for at, means in between if means is not None)
    extra = {} if evaluation is None else {"evaluation": evaluation.as_json()}
    folder.write_json("summary.json", {"statement": statement, "rounds": len(events)} | extra)
    trained = TrainedRows(model, model, statement, folder.path, run.plan, len(events), evaluation, history)
    write_rows(folder, trained, "public weights (start.npz)" if start.weights.any() else "zero")
    run.end(model=step)
    if run.account is not None:
        with run.account() as kept:
            stopped = setting.patience is not None and len(events) < run.plan.cost.rounds
            if stopped and not run.give_back(kept, len(events)):
                _log.warning("%s stopped early and stays charged in full (docs/evaluation.md says when)", run.name)
    return trained


def _evaluations(plan: RunPlan, setting: Setting, figures: Rows, start: Vector, held_out: Users) -> Evaluations:
    """Return what held-out users say of a model, with noise of this start alone, or from a simulation's seed."""
    held, seed, patience = plan.guarantee.held_out, setting.simulation_seed, setting.patience
    assert isinstance(held, HeldMeans)
    if patience is not None and (noise := 1.96 * held.errors[1] / math.sqrt(patience)) > COARSE:
        more = "Take a larger evaluate_every, patience or holdout, or fewer metrics."
        _log.warning(
            "noise alone moves a mean of %d evaluations by ± %.2f, so it may stop by chance. %s", patience, noise, more
        )

    def release(moved: Vector, number: int) -> tuple[Any, dict[str, Any]]:
        values = as_matrix(figures(held_out.copy(), start + moved), (len(held_out), held.figures))
        source: NoiseSource = SecureNoise.fresh() if seed is None else SeededNoise(seed)
        means = held.release(values, source.stream("held out", "means", number))
        return [entry for entry, _ in held.releases()], {"means": means.tolist()}

    def enough(released: Sequence[dict[str, Any]]) -> bool:
        if patience is None or len(released) < 2 * patience:
            return False
        sums = np.array([event["means"][1] for event in released[-2 * patience :]])
        before, last = sums.reshape(2, patience).mean(axis=1)
        return bool(last <= before)  # of sums, as how many have items is the same

    return Evaluations(release, held.rounds, enough)


def _figures(plan: RunPlan, setting: Setting, released: dict[str, Any], statement: str) -> Evaluation:
    held = plan.guarantee.held_out
    assert isinstance(held, HeldMeans)
    promise = ReleaseGuarantee(plan.guarantee.epsilon, plan.guarantee.delta, statement)
    return of_means(held, setting.measured, np.array(released["means"], np.float64), promise)


def _differing(out: str | Path, setting: Setting) -> str:
    """Return the names of settings that are not those that the run in this folder began with."""
    stored = json.loads(RunFolder(Path(out)).read_json(ROWS)["setting"])
    own = json.loads(setting.as_text())
    names = [name for name in own if own[name] != stored.get(name)]
    return f" Different here: {', '.join(names)}." if names else ""


Array = NDArray[Any]
Data = Any  # a DataFrame, a Dataset of Hugging Face, arrays or tensors, a mapping of them, a Dataset or a DataLoader


class ModuleTraining(Training, total=False):
    """The arguments of every function that trains on items: whose each is, and of a table which columns it has."""

    user: str | Sequence[Any] | NDArray[Any] | None  # the name of an entry or column, or the user of each item
    offsets: Sequence[int] | NDArray[np.int64] | None  # where items are sorted by user: user u has those from u's on
    features: Sequence[str] | None  # columns of a table
    label: str | None  # the name of the entry or column that is the target


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """Items of n users, in the order of users; who has none is a user all the same."""

    parts: tuple[Array, ...]  # each (N, ...): what an item consists of, such as an image and its label
    offsets: NDArray[np.int64]  # (n + 1,): user u has items offsets[u] to offsets[u + 1]
    names: tuple[str, ...] = ()  # of the parts, where data have names

    @property
    def users(self) -> int:
        """n."""
        return len(self.offsets) - 1

    @property
    def counts(self) -> NDArray[np.int64]:
        """m_u of each user, shape (n,). Private."""
        return np.diff(self.offsets)

    @property
    def at_least_one(self) -> tuple[Array, ...]:
        """The parts, of an item that is nobody's where there is none: users without items look somewhere too."""
        return self.parts if len(self.parts[0]) else self.blank(1)

    def blank(self, *shape: int) -> tuple[Array, ...]:
        """As many items that are nobody's: zeros of the items' shape and type."""
        return tuple(np.zeros((*shape, *part.shape[1:]), part.dtype) for part in self.parts)

    def given(self, parts: "Parts") -> "Parts":
        """Return the arguments that a function gets for these parts: a mapping where they have names."""
        return (dict(zip(self.names, parts, strict=True)),) if self.names else parts


def items_of(
    data: Data,
    *,
    user: str | Sequence[Any] | NDArray[Any] | None = None,
    offsets: Sequence[int] | NDArray[np.int64] | None = None,
    features: Sequence[str] | None = None,
    label: str | None = None,
    **_: Any,
) -> Items:
    """Return the items of `data`; `user` names an entry or has the user of each item, `offsets` is for sorted arrays.

    The entry `label` comes last. DataError for data that do not fit together, and for an item without a user.
    """
    if (user is None) == (offsets is None):
        raise DataError("Expected either user or offsets, which say whose each item is; got both or neither.")
    names: tuple[str, ...] = ()
    if (columns := _columns(data)) is not None:
        if not isinstance(user, str) or features is None:
            raise DataError("Expected user, a column, and features, columns, with a table.")
        wanted = [user, *features, *([] if label is None else [label])]
        if missing := [name for name in wanted if name not in columns]:
            raise DataError(f"Expected the columns {', '.join(missing)} in the table, found none of these names.")
        table = _read(data, wanted)
        parts = _features([table[name] for name in features])
        parts += [] if label is None else [_numbers(table[label])]
        owners: Any = table[user]
    else:
        if features is not None:
            raise DataError("Expected features, names of columns, with a table only.")
        found = _parts(data)
        for name in (user, label):
            if isinstance(name, str) and name not in found:
                raise DataError(f"Expected data with an entry {name!r}, got {', '.join(map(str, found))}.")
        owners = None if user is None else np.asarray(found.pop(user) if isinstance(user, str) else user)
        if label is not None:
            found[label] = found.pop(label)  # comes last
        names, parts = tuple(name for name in found if isinstance(name, str)), [*map(_numbers, found.values())]
        if not parts:
            raise DataError("Expected at least one array of items, got none.")
    sizes = {len(part) for part in parts}
    if len(sizes) != 1:
        raise DataError(f"Expected arrays of one length, one entry an item, got lengths {sorted(sizes)}.")
    (size,) = sizes
    if owners is None:
        ends = np.asarray(offsets)
        good = ends.ndim == 1 and len(ends) >= 2 and np.issubdtype(ends.dtype, np.integer)
        if not good or ends[0] != 0 or ends[-1] != size or (np.diff(ends) < 0).any():
            raise DataError(f"Expected offsets that ascend from 0 to the {size} items, one more than users.")
        return Items(tuple(parts), ends.astype(np.int64), names)
    if owners.shape != (size,):
        raise DataError(f"Expected user to name one user for each of {size} items, got shape {owners.shape}.")
    if any(one is None or one != one for one in owners.tolist()):
        raise DataError("Expected a user for every item, got items without one. Leave them out.")
    users, codes = np.unique(owners, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    ends = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=len(users)))]).astype(np.int64)
    return Items(tuple(part[order] for part in parts), ends, names)


def of_one_user(data: Data) -> Items:
    """Return the items of one user, who has all of `data`."""
    entries = _parts(data)
    return items_of(entries, offsets=np.array([0, len(next(iter(entries.values()), ()))]))


def _columns(data: Data) -> list[str] | None:
    """Names of a table's columns: of a DataFrame, or a Dataset of Hugging Face; None for what is no table."""
    if hasattr(data, "columns"):
        return [str(name) for name in data.columns]
    return list(data.column_names) if hasattr(data, "column_names") and hasattr(data, "with_format") else None


def _read(data: Data, names: list[str]) -> dict[str, Array]:
    """Columns of a table as arrays, (N,) or, where entries are arrays of one shape, (N, ...)."""
    columns = data if hasattr(data, "columns") else data.select_columns(names).with_format("numpy")[:]
    return {name: _dense(name, np.asarray(columns[name])) for name in names}


def _dense(name: str, column: Array) -> Array:
    if column.dtype != object or not len(column) or np.ndim(column[0]) == 0:
        return column
    try:
        return np.stack(list(column))
    except ValueError as error:
        raise DataError(f"Expected entries of one shape in the column {name}, got several. Pad them.") from error


def _features(columns: list[Array]) -> list[Array]:
    """Columns of numbers are one array (N, p) of float32; each column of arrays is one of its own, of its own type."""
    if all(column.ndim == 1 and column.dtype != object for column in columns):
        try:
            return [np.column_stack([column.astype(np.float32) for column in columns])]
        except ValueError:  # whose words quote a value
            raise DataError("Expected features of numbers, got a column with some that are none. Encode it.") from None
    return [_numbers(column) for column in columns]


def _parts(data: Data) -> dict[Any, Any]:
    """Return arrays with one entry an item, by name or place, of arrays, a Dataset or a DataLoader.

    A DataLoader collates item by item: one that pads to the longest of a batch would make items depend on each other.
    """
    collate = getattr(data, "collate_fn", None)
    if isinstance(data, Mapping):
        return dict(data)
    if isinstance(data, tuple | list | str) or hasattr(data, "dtype") or not (collate or hasattr(data, "__getitem__")):
        return dict(enumerate(data if isinstance(data, tuple | list) else (data,)))
    source: Any = data.dataset if collate else data
    rows = [source[index] for index in range(len(source))] if hasattr(source, "__getitem__") else list(source)
    if not rows:
        raise DataError("Expected a Dataset with items, got an empty one.")
    rows = [collate([row]) for row in rows] if collate else rows
    rows = [row if isinstance(row, tuple | list | Mapping) else (row,) for row in rows]
    join: Any = np.concatenate if collate else np.stack
    try:
        keys = rows[0] if isinstance(rows[0], Mapping) else range(len(rows[0]))
        return {key: join([_array(row[key]) for row in rows]) for key in keys}
    except (ValueError, LookupError):  # whose words quote a value
        raise DataError(
            "Expected items of one shape with the same parts, got several. Pad to a fixed length."
        ) from None


def _array(part: Any) -> Array:
    """Of an array, or of a tensor anywhere."""
    return np.asarray(part.numpy(force=True) if hasattr(part, "detach") else part)


def _numbers(part: Any) -> Array:
    try:
        numbers = _array(part).copy()  # its own memory: the part may be shared
    except (TypeError, ValueError) as error:
        raise DataError(
            f"Expected numbers, got {type(part).__name__} that numpy cannot hold. Give them as float32."
        ) from error
    if numbers.dtype.kind not in "biuf":
        raise DataError(f"Expected numbers, got entries of type {numbers.dtype}. Encode and pad them.")
    if numbers.ndim == 0:
        raise DataError("Expected one entry an item, got a single number.")
    return numbers.astype(np.float32) if numbers.dtype == np.float64 else numbers


@dataclass(frozen=True, slots=True)
class LocalSGD:
    """What a user does with the model: so many passes over its items in shuffled batches. A row is how far it went."""

    epochs: int = 1
    batch_size: int = 10
    step_size: float = 0.1  # η

    def __post_init__(self) -> None:
        count(epochs=self.epochs, batch_size=self.batch_size)
        positive(step_size=self.step_size)


@dataclass(frozen=True, slots=True, eq=False)
class Minibatches:
    """Which items users take when. All of a user's follows from how many items it has itself, and its own dice."""

    places: NDArray[np.int64]  # (k, steps, batch), into the items of all users
    weights: NDArray[np.float32]  # (k, steps, batch), each step's sum to one, or to zero where there is none


@dataclass(frozen=True, slots=True, eq=False)
class Timetable:
    """Minibatches of any users in any round. `local` None asks for average gradients."""

    items: Items
    items_per_user: int
    local: LocalSGD | None

    def __post_init__(self) -> None:
        count(items_per_user=self.items_per_user)

    @property
    def steps(self) -> int:
        """Gradients that each user takes one after the other."""
        return 1 if self.local is None else self.local.epochs * -(-self.items_per_user // self.local.batch_size)

    @property
    def batch(self) -> int:
        """Items of one gradient."""
        return self.items_per_user if self.local is None else min(self.local.batch_size, self.items_per_user)

    def dice(self, round_: int, users: Users, noise: NoiseSource) -> NDArray[np.uint64]:
        """Return a seed below 2^63 for each of `users` (k,), of its own, the same again for the same round."""
        return _words(noise.stream("dice", round_).words(1)[0], users) >> np.uint64(1)

    def minibatches(self, round_: int, users: Users, noise: NoiseSource) -> Minibatches:
        """Return those of `users` (k,). A user's depend on no other user's items: a row moves by its user alone."""
        counts, first = self.items.counts[users], self.items.offsets[users]
        places = np.zeros((len(users), self.steps, self.batch), np.int64)
        weights = np.zeros(places.shape, np.float32)
        places += np.where(counts > 0, first, 0)[:, None, None]  # where a step has fewer items
        sizes, passes = np.minimum(counts, self.items_per_user), 1 if self.local is None else self.local.epochs
        owner, ends = np.repeat(np.arange(len(users)), sizes), sizes.cumsum()
        rank = np.arange(len(owner)) - np.repeat(ends - sizes, sizes)
        item = rank.copy()
        for row in np.flatnonzero(counts > sizes).tolist():
            stream = noise.stream("items", round_, int(users[row]))
            item[ends[row] - sizes[row] : ends[row]] = stream.subset(int(counts[row]), int(sizes[row]))
        for number in range(passes):
            order = item
            if self.local is not None:  # its user's items in a new order, user after user
                seeds = _words(noise.stream("orders", round_, number).words(1)[0], users)
                order = item[np.lexsort((_words(seeds[owner], item), owner))]
            step = rank // self.batch + number * (self.steps // passes)
            places[owner, step, rank % self.batch] = first[owner] + order
            weights[owner, step, rank % self.batch] = 1
        return Minibatches(places, weights / np.maximum(weights.sum(axis=2, keepdims=True), 1))


def _words(seeds: NDArray[np.uint64] | np.uint64, places: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return words of streams by SplitMix64 (Steele, Lea & Flood 2014): for orders of items alone, never for noise."""
    words = seeds + (places.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ words >> np.uint64(shift)) * np.uint64(factor)
    found: NDArray[np.uint64] = words ^ words >> np.uint64(31)
    return found


Parts = tuple[Any, ...]


def train_model(
    items: Items,
    training: ModuleTraining,
    start: Start,
    described: str,
    *,
    compute: Computation,
    summing: Summation | None = None,
    model_at: Callable[[Vector], M],
    measured_at: Callable[[Vector], Any],
    parts_of: Callable[..., Parts],
    watch: Callable[[int, M], None] | None,
) -> TrainedRows[M]:
    """Train a model of some framework on these items; arguments and errors as of `train_rows`.

    `compute` returns rows of users at any point (d,), `described` is what else has to be the same where an interrupted
    run goes on. Metrics take the model `measured_at` a point, and `parts_of` arrays of items (m, ...).
    """
    setting, figures = Setting.of(training, users=items.users, start=start, model=described), None
    if metrics := training.get("metrics"):
        require_metrics(items, metrics, measured_at(start.weights), parts_of)
        figures = figures_of(items, metrics, measured_at, parts_of)
    watched = None if watch is None else lambda round_, point: watch(round_, model_at(point))
    done = carry_out(
        compute,
        setting,
        start,
        training,
        chunk=CHUNK,
        watch=watched,
        summing=summing,
        figures=figures,
        enclosed=True,
    )
    return cast("TrainedRows[M]", replace(done, model=model_at(done.weights)))  # type: ignore[arg-type]


def figures_of(
    items: Items, metrics: Mapping[str, Metric], model_at: Callable[[Vector], Any], parts_of: Callable[..., Parts]
) -> Rows:
    """Return the means over each user's items of metric(model, *parts), a column a metric.

    `model_at` makes the model of a point (d,), `parts_of` what it takes of arrays of items (m, ...). A user is shown to
    it alone, and what it says of others does not depend on it. Where it raises for a user's items, or says something of
    another shape, that user is one without items: an error would tell of them, and so would a warning.
    """

    def figures(users: Users, point: Vector) -> Any:
        model, rows = model_at(point), np.full((len(users), len(metrics)), np.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whatever one is of, it is of private items
            for place, user in enumerate(users):
                own = slice(items.offsets[user], items.offsets[user + 1])
                if own.stop > own.start:
                    try:
                        parts = items.given(parts_of(*(part[own] for part in items.parts)))
                        measured = [_measured(metric, model, parts) for metric in metrics.values()]
                        rows[place] = np.stack(measured, axis=1).reshape(own.stop - own.start, -1).mean(axis=0)
                    except Exception:  # as an error
                        continue
        return rows

    return figures


def require_metrics(items: Items, metrics: Mapping[str, Metric], model: Any, parts_of: Callable[..., Parts]) -> None:
    """Raise ConfigError, by items of nobody, for a metric that does not return one number an item."""
    for name, metric in metrics.items():
        try:
            said = _measured(metric, model, items.given(parts_of(*items.blank(2))))
        except Exception as error:
            raise ConfigError(
                f"Expected the metric {name!r} to take some items at once; on two of zeros it raised "
                f"{type(error).__name__}: {error}"
            ) from error
        if said.shape != (2,):
            raise ConfigError(
                f"Expected the metric {name!r} to return one number an item, got shape {said.shape} for two items."
            )


def _measured(metric: Metric, model: Any, parts: Parts) -> NDArray[np.float64]:
    """Return the numbers of items (m,), in [0, 1]."""
    values = metric(model, *parts)
    rows = np.asarray(values.detach().cpu().double() if hasattr(values, "detach") else values, np.float64)
    return np.asarray(np.clip(rows[:, 0] if rows.ndim == 2 and rows.shape[1] == 1 else rows, 0.0, 1.0))
