"""A search, whatever is tried: its price before it begins, its trials, and the one that is released.

What is written, and in which order, each step harmless to repeat after a crash:

    config.toml, tune.json   what was fixed from public facts: candidates, the law of the number of trials, the price
    ledger.sqlite            the noise key, of which the number of trials and every draw are functions
    lifetime ledger          the whole price, before anything is looked at
    ledger.sqlite            the best trial, before it is shown; the key is erased in the same transaction

A trial is judged by one number in [0, 1] of each held-out user: higher is better, each user weighs one. Of classes with
chances it is by the Brier score, half the squared distance between the chances and what came; of other classes how
often the model is right; of numbers by |error| over the declared range. Errors are held at what `worst` says, twice
that of a model that knows nothing: settings differ well below, and the noise of a score is that of its whole range. It
is the mean over a user's rows, so that nobody counts by how many there are.

Nothing is written of trials. After a kill they are carried out again: noise depends on the key and on the trial alone,
so that each comes out as it did.

Users are split once, by a draw from the search's secret noise: those held out score every trial, and all others train
every trial. A user is in one of both, so a trial costs the worse of what training and scoring cost
(docs/privacy/selection.md#se3).
"""

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack, cast, overload

import numpy as np

from quoron.arguments import TrainingArguments, entry_point
from quoron.config import Config, TableSection, estimates_bounds, require_epsilon
from quoron.data.columns import Label
from quoron.data.users import Declared, Vector
from quoron.evaluation.scores import held_users, means, parts, products, usable
from quoron.planning.plans import Plan, Prepared, choose
from quoron.reports.summary import Choice
from quoron.results import Printed, in_units
from quoron.run_folder import CHOICE, MODEL, SEARCH, Identity, RunFolder, claim
from quoron.simulation.comparison import Cell, Request, value_text
from quoron.simulation.problem import encoding_of, loss_of, make_domain, with_columns
from quoron.simulation.problem import problem as problem_of
from quoron.simulation.sources import Source, described
from quoron.training import lifetime, result
from quoron.training.evaluated import batches
from quoron.training.memory import ONCE, memory_for
from quoron.training.result import DoubtfulModel, TrainedTable
from quoron.training.run import complete, digest_of
from quoron.training.table import CuratorEngine, TableRows, TableSetup, check_section, load_rows, refuse_frame
from quoron_client.data.items import ItemBatch
from quoron_client.losses import Classification, Logistic, Loss, Regression, Softmax
from quoron_privacy.accounts import gdp, sensitivity_recount
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import ConfigError, Infeasible, NothingReleased, QuoronError, positive
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import (
    NoiseSource,
    OtherStreams,
    RandomStream,
    StartedNoise,
    total_variation,
)
from quoron_privacy.release import Adjacency, Release
from quoron_privacy.selection import verified
from quoron_privacy.selection.price import Selection, calibrate, rounded
from quoron_privacy.selection.trials import Trials, drawn
from quoron_server.algorithms import ALGORITHMS
from quoron_server.parameters import Assumption, Kind
from quoron_server.plan import EVALUATED, MAX_EPSILON, MIN_EPSILON, RunPlan
from quoron_server.rounds import other_run, without_ledger
from quoron_server.runs import Run, end
from quoron_server.wording import sentence

WORST = -np.finfo(np.float64).max.item()  # the score of a trial whose numbers are not finite: below all others


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What one trial would release."""

    score: float  # with noise, higher is better
    weights: Vector  # (d,)
    events: tuple[Mapping[str, Any], ...] = ()  # what its rounds made public
    candidate: int = -1  # that was tried, by its place; set by the search

    @property
    def settled(self) -> "Outcome":
        """Return it with the worst score, and zeros, if a number is not finite: a failed trial says nothing by itself.

        An error would show the observer of a run a trial that is not released.
        """
        finite = bool(np.isfinite(self.score) & np.isfinite(self.weights).all())
        return self if finite else Outcome(WORST, np.zeros(self.weights.shape), candidate=self.candidate)


T = TypeVar("T")
Perform = Callable[[int, NoiseSource, NoiseSource], Outcome]  # a candidate's place, noise of its trial, of the search
THEOREM = "docs/privacy/selection.md#se1"
_AGAIN = 6  # times that trials are planned with less, where some cost more than Gaussian ones


@dataclass(frozen=True)
class Price:
    """What a search promises and costs, and what it is beside: public, before anything is looked at."""

    trials: Trials
    pairs: tuple[DominatingPair, ...]  # of one trial
    epsilon: float  # of the whole search
    delta: float
    adjacency: Adjacency
    candidates: int
    padded: bool

    def verify(self) -> None:
        """VerificationError unless the second account finds it within its promise; Infeasible where it costs more."""
        if (spent := self.selection.promised(self.delta)) > self.epsilon * (1 + 1e-9):
            raise Infeasible("selection", f"these trials cost epsilon={spent:.3g}, not {self.epsilon:g}", "less noise")
        verified.check(self.trials, self.pairs, self.epsilon, self.delta)

    @property
    def assumed(self) -> Kind:
        """What nobody may learn by the clock: how many trials there were; of always as many, which setting was when."""
        return Kind.SECRET_ORDER if self.padded else Kind.SECRET_DURATION

    @cached_property
    def selection(self) -> Selection:
        """The mechanism."""
        return Selection(self.trials, self.pairs)

    def as_json(self) -> dict[str, Any]:
        """Plain numbers, and what a trial costs."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": self.adjacency,
            "candidates": self.candidates,
            "trials": self.trials.words,
            "mean_trials": rounded(self.trials.mean * (1 + 1e-9)),
            "most_trials": self.trials.most,
            "padded": self.padded,
            "trial_epsilon": rounded(self.selection.trial_epsilon(self.delta)),
            "chance_that_one_setting_is_never_tried": rounded(self.trials.missed(1 / self.candidates)),
        }


def within(asked: Price, plan: Callable[[float, float], tuple[T, Sequence[DominatingPair]]]) -> tuple[T, Price]:
    """What `plan` makes of what a trial may spend, (μ, δ), and the price of its pairs, verified: within that `asked`.

    Where some cost more than Gaussian ones, trials are planned with less. Raises what `plan` and `Price.verify` raise.
    """
    delta, mu = max(1e-12, asked.delta / (2 * asked.trials.mean)), calibrate(asked.epsilon, asked.delta, asked.trials)
    for _ in range(_AGAIN):
        planned, pairs = plan(mu, delta)
        price = replace(asked, pairs=_worst(pairs))
        cost = price.selection.promised(asked.delta)
        if cost <= asked.epsilon * (1 + 1e-9):
            break
        mu = rounded(mu * (min(0.97, rounded(asked.epsilon / cost)) if math.isfinite(cost) else 0.5))
    price.verify()
    return planned, price


def _worst(pairs: Sequence[DominatingPair]) -> tuple[DominatingPair, ...]:
    """Each other one, and of the Gaussian ones one that is as bad as the worst of them."""
    gaussian = [pair for pair in pairs if pair.is_gaussian]
    others = tuple(dict.fromkeys(pair for pair in pairs if not pair.is_gaussian))
    variation = max(pair.variation for pair in gaussian)
    return (DominatingPair.gaussian(max(pair.mu for pair in gaussian), variation), *others)


@dataclass(frozen=True, slots=True)
class TrialNoise(OtherStreams):
    """The noise of one trial: streams of the run's own source, of which no other trial draws."""

    source: NoiseSource
    trial: int

    def stream(self, *labels: str | int) -> RandomStream:
        """See NoiseSource."""
        return self.source.stream("trial", self.trial, *labels)


def best_trial(price: Price, noise: NoiseSource, perform: Perform) -> Outcome:
    """Carry out all trials, and return the best; of equal scores the earlier one.

    Nothing is raised, shown or written of single trials: one whose numbers are not finite has the worst score, and no
    warning of it is shown. What `perform` raises is passed on: it must not depend on anybody's values.
    """
    best, number = None, price.trials.draw(noise)
    for trial in range(price.trials.most if price.padded else number):
        candidate = drawn(noise, trial, price.candidates)
        with np.errstate(all="ignore"), warnings.catch_warnings():  # a warning tells of the trial that it is of
            warnings.simplefilter("ignore")
            outcome = perform(candidate, StartedNoise(TrialNoise(noise, trial), "search"), noise).settled
        if trial < number and (best is None or outcome.score > best.score):
            best = replace(outcome, candidate=candidate)
    assert best is not None  # at least one trial
    return best


TWICE = 2.0  # trials a candidate in the mean, by default
HELD_OUT = 0.1, 0.3  # default share of users that score: at least, and at most, where they are few
USELESS = 0.02  # deviation of a score from which it tells few settings apart


_STEPS = 2.0**40  # of a user's score: their sum is exact


def score_name(loss: Loss) -> str:
    """Return what it is, for people."""
    if isinstance(loss, Classification) and not isinstance(loss, Logistic | Softmax):
        return "accuracy per user"
    what = "Brier score" if isinstance(loss, Classification) else "|error| / range"
    return f"1 - {what} / {worst(loss):.2g} per user"


def worst(loss: Loss) -> float:
    """Return the error of a row that counts 0, and every larger one: twice that of who knows nothing.

    Of K chances that are alike the Brier score is (1 - 1/K)/2; who always says the middle of a range is off by a
    quarter of it, of labels all over it.
    """
    return 1 - 1 / loss.outputs if isinstance(loss, Softmax) else 0.5


def user_scores(weights: Vector, loss: Loss, items: ItemBatch) -> Vector:
    """(k,) in [0, 1]; 0 of a user without rows that can be used."""
    with np.errstate(all="ignore"):  # whatever a model says of whatever row
        rows = np.clip(np.nan_to_num(_rows(weights, loss, items), nan=0.0), 0.0, 1.0)
    return np.asarray(np.clip(means(rows[:, None], items, usable(items))[:, 0], 0.0, 1.0))


def planned_with(mu: float, delta: float) -> float:
    """Return ε of what is planned with (ε, δ) on the curve of `mu`; no more than anything is planned with."""
    return min(gdp.epsilon_for(mu, delta), MAX_EPSILON)


def private_mean(scores: Vector, noise: GaussianNoise, source: NoiseSource) -> float:
    """Of users' scores (k,), which are brought to a grid first, so that their sum is exact in any order."""
    bounded = np.clip(np.nan_to_num(np.asarray(scores, np.float64), nan=0.0), 0.0, 1.0)
    total = int(np.rint(bounded * _STEPS).astype(np.int64).sum())
    mean = np.array([total / (_STEPS * len(bounded))])
    return float(noise.release(mean, source.stream("score"))[0])


def _rows(weights: Vector, loss: Loss, items: ItemBatch) -> Vector:
    """(N,)."""
    scores = products(items, weights, loss.outputs)
    if loss.outputs > 1:
        labels = items.labels.astype(np.int64)
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        if not isinstance(loss, Softmax):
            return np.asarray(np.argmax(scores, axis=1) == labels, np.float64)
        own = np.take_along_axis(chances, labels[:, None], axis=1)[:, 0]
        return np.asarray(1 - ((chances**2).sum(axis=1) - 2 * own + 1) / 2 / worst(loss))
    if isinstance(loss, Logistic):
        return np.asarray(1 - 1 / (1 + np.exp(np.clip(items.labels * scores[:, 0], -700, 700))) ** 2 / worst(loss))
    if isinstance(loss, Classification):
        return np.asarray(items.labels * scores[:, 0] > 0, np.float64)
    bound = 2 * loss.label_bound if isinstance(loss, Regression) else 2.0
    return np.asarray(1 - np.abs(scores[:, 0] - items.labels) / bound / worst(loss))


FIXED = ("privacy.", "run.", "train.", "population.user", "population.path", "population.kind", "population.label")
_Planned = tuple[list["Candidate"], list[tuple[str, str]], GaussianNoise]  # settings, those left out, noise of scores


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One setting, planned for one trial."""

    cell: Cell
    config: Config  # with what a trial may spend
    planned: Plan

    @property
    def loss(self) -> Loss:
        """Of its configuration."""
        return loss_of(self.config)

    @property
    def name(self) -> str:
        """For people: the algorithm that is carried out, and what varies."""
        own = self.planned.plan.algorithm
        label = own if self.cell.algorithm == own else f"{self.cell.algorithm} ({own})"
        return " ".join([label, *(f"{key}={value_text(value)}" for key, value in self.cell.varied)])


@dataclass(frozen=True, eq=False, repr=False)
class TableSearch(Printed):
    """A search over settings of one table, ready to be charged."""

    request: Request  # the configuration, and what varies
    candidates: tuple[Candidate, ...]
    refused: tuple[tuple[str, str], ...]  # settings that nothing can be planned for, and why
    price: Price
    effort: Mapping[str, Any]  # how many trials, whether padded, and how many users score, as `prepare` takes them
    identity: Identity
    users: int  # all of them
    held_out: int  # of these, held out
    noise: GaussianNoise  # of a trial's score
    rows_of: "_Rows"
    seeded: bool  # a simulation
    _algorithms: dict[int, Any] = field(default_factory=dict)  # by the place of their candidate

    @property
    def asked(self) -> dict[str, Any]:
        """What was asked for, as `resume` reads it."""
        return self.request.as_json() | {"effort": self.effort, "seeded": self.seeded}

    @property
    def statement(self) -> str:
        """The promise in a sentence."""
        return sentence(self.promised(self.candidates[0].planned.plan).guarantee)

    def promised(self, plan: RunPlan) -> RunPlan:
        """Return the plan of a trial with what the whole search promises."""
        guarantee = replace(
            plan.guarantee,
            epsilon=self.price.epsilon,
            delta=self.price.delta,
            theorem=f"{THEOREM} over {plan.guarantee.theorem}",
        )
        searched = replace(plan, guarantee=guarantee).assuming([Assumption(self.price.assumed)])
        return searched.simulated() if self.seeded else searched

    @property
    def run(self) -> Run:
        """What begins and is charged, with the price of the whole search."""
        config, price = self.request.config, self.price
        return Run(
            name=self.identity.run,
            plan=self.promised(self.candidates[0].planned.plan),
            digest=config.digest(),
            group=config.train.population,
            account=None if self.seeded else partial(lifetime.opened, config.train.ledger),
            simulation_seed=config.run.seed if self.seeded else None,
            cost={"epsilon": price.epsilon, "delta": price.delta, "adjacency": price.adjacency},
            contents={"tune": self.asked, "search": self.as_json()},
        )

    @property
    def doubts(self) -> tuple[str, ...]:
        """That no setting's plan is better than not training, said of the first; () where one is."""
        warnings = [candidate.planned.doubts for candidate in self.candidates]
        return warnings[0] if all(warnings) else ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is public and amiss."""
        remarks = [f"left out, as nothing can be planned for it: {name}: {why}" for name, why in self.refused]
        if self.noise.scale > USELESS * (1 + 1e-3):
            remarks.append(
                f"a trial's score is off by {self._noise_text} by its noise alone: settings that differ by less "
                "are told apart by luck: hold out more users (evaluate), try fewer settings, or raise epsilon."
            )
        return tuple(remarks)

    @property
    def _noise_text(self) -> str:
        """The noise of a score; of numbers in the label's units too, as a share of a wide range looks like little."""
        first, noise = self.candidates[0], f"± {self.noise.scale:.2g}"
        if not isinstance(first.loss, Regression):
            return noise
        label = cast(TableSection, first.config.population).label
        low, high = (label and label.range) or (0.0, 0.0)
        units = self.noise.scale * worst(first.loss) * (high - low)
        return f"{noise} ({in_units(units)} of the label's units)" if high > low else noise

    def digest(self) -> bytes:
        """Of what trials compute with, under every setting; private, and erased at the end."""
        others = {self.rows_of.key(candidate.config): candidate for candidate in self.candidates}
        digests = b"".join(digest_of(self.rows_of.of(candidate.config).items) for candidate in others.values())
        return hashlib.blake2b(digests, digest_size=32, person=b"quoron-tuning").digest()

    def perform(self, place: int, noise: NoiseSource, source: NoiseSource) -> Outcome:
        """One trial: the candidate at this place, trained and scored with the noise of the trial."""
        candidate = self.candidates[place]
        rows, plan = self.rows_of.of(candidate.config), candidate.planned.plan
        declared, items = replace(rows.declared, domain=plan.problem.domain), rows.items
        training, scoring = parts(self.users, self.held_out, source)
        order = None if plan.asks_everybody else plan.seed
        engine = CuratorEngine(declared, items, noise, seed=order, among=training)
        if place not in self._algorithms:  # which is verified, once
            self._algorithms[place] = ALGORITHMS[plan.algorithm].make(plan)
        weights, events = without_ledger(self._algorithms[place], engine, noise)
        scores = [user_scores(weights, declared.loss, batch) for batch in batches(declared, items, scoring)]
        score = private_mean(np.concatenate(scores), self.noise, noise)
        return Outcome(score, weights, events)

    def as_json(self) -> dict[str, Any]:
        """Return what is fixed before anything is read."""
        return {
            "price": self.price.as_json(),
            "statement": self.statement,
            "candidates": [
                {"name": trial.name, "varied": dict(trial.cell.varied), "algorithm": trial.planned.plan.algorithm}
                for trial in self.candidates
            ],
            "refused": [{"name": name, "why": why} for name, why in self.refused],
            "users": self.users,
            "held_out": self.held_out,
            "score": score_name(self.candidates[0].loss),
            "score_noise": self.noise.scale,
            "remarks": [*self.doubts, *self.remarks],
        }

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of each line people see before it begins."""
        price, promise = self.price.as_json(), self.candidates[0].planned.plan.guarantee
        times = price["epsilon"] / price["trial_epsilon"]
        missed = price["chance_that_one_setting_is_never_tried"]
        padded = "always as many; each trial's own time tells its setting"
        clock = padded if self.price.padded else "NOT padded: anyone who sees how long it takes learns more"
        return [
            ("settings", f"{len(self.candidates):,}"),
            ("trials", f"{self.price.trials.words}; a setting is never tried with chance {missed:.2g}"),
            ("the whole search", f"ε = {price['epsilon']:.4g}, δ = {price['delta']:g}, {self.price.adjacency}"),
            ("one trial", f"ε = {price['trial_epsilon']:.4g} at the same δ: the search costs {times:.2f} times that"),
            ("users", f"{self.users - self.held_out:,} train, {self.held_out:,} score every trial"),
            ("score", f"{score_name(self.candidates[0].loss)}, off by {self._noise_text} by noise"),
            ("a trial is planned with", f"ε = {promise.epsilon:.4g}, δ = {promise.delta:.2g}"),
            ("the clock", clock),
        ]


def prepare(
    config: Config,
    base: Path,
    *,
    identity: Identity,
    frame: Any = None,
    seeded: bool = False,
    vary: Mapping[str, Sequence[Any]] | None = None,
    algorithms: Sequence[str] | None = None,
    **effort: Any,
) -> TableSearch:
    """Read, check, plan and price; every wrong request is refused here. Raises ConfigError, DataError, Infeasible.

    `vary`, `algorithms`, and as `effort` n_trials, max_trials, padded and holdout: as of `tune`.
    """
    if not seeded:
        require_epsilon(config.privacy.model_fields_set, "tuning")
    if estimates_bounds(config):
        raise ConfigError(
            "Expected a table whose features are declared to tune on, got one of which some are to be estimated: "
            "every trial would estimate them again. Run `quoron bounds` once and put its lines into the configuration, "
            "or take the declared.toml of a run of `quoron train`."
        )
    if config.train.holdout is not None:
        raise ConfigError(
            f"Expected no train.holdout for a search, got {config.train.holdout:g}: its own held-out users score "
            "every trial. Say how many in holdout=, and evaluate the chosen model on other people."
        )
    config = with_columns(config, base, frame)
    names = (config.algorithm.name,) if algorithms is None else algorithms
    if (key := next((key for key in vary or () if key.startswith(FIXED)), None)) is not None:
        raise ConfigError(
            f"Expected settings of a method or of columns to vary, got {key}: a search has one guarantee, to the "
            "same users for the same label. Leave it out."
        )
    request = Request.of(config, algorithms=names, vary=vary, seeds=1)
    cells = request.cells()
    if len(cells) < 2:
        raise ConfigError("Expected two settings or more to try, got one. Give vary, or several algorithms.")
    (epsilon, delta), padded = (config.privacy.epsilon, config.privacy.delta), bool(effort.get("padded"))
    mean, most = effort.get("n_trials"), effort.get("max_trials")
    mean = max(2.0, TWICE * len(cells)) if mean is None else mean
    positive(trials=mean)
    law = Trials.negative_binomial(mean, most=math.ceil(3 * mean) if most is None and padded else most)
    rows = _Rows(base, frame)
    declared_tables = [rows.of(cell.config).declared for cell in cells]
    users = declared_tables[0].users
    if any(declared.users != users for declared in declared_tables):
        raise ConfigError("Expected settings of the same users, got some of others. Vary what does not change them.")
    if (share := effort.get("holdout")) is None:  # so that the noise of a score is small, if it can be
        share = min(max(1 / (calibrate(epsilon, delta, law) * USELESS * users), HELD_OUT[0]), HELD_OUT[1])
    held_out = held_users(users, share)

    def plan(mu: float, delta: float) -> tuple[_Planned, list[DominatingPair]]:
        candidates, refused = _planned(cells, declared_tables, (mu, delta), held_out, identity)
        own = gdp.mu_for(planned_with(mu, delta), delta, gaussians=1)
        noise = GaussianNoise.for_mu(sensitivity=1 / held_out, mu=own, dimension=1)  # of a mean of scores in [0, 1]
        plans = [candidate.planned.plan for candidate in candidates]
        pairs = [pair for plan in plans for pair in ALGORITHMS[plan.algorithm].pairs(plan)]
        score = DominatingPair.gaussian(
            sensitivity_recount.mu(1 / held_out, noise.scale, 1), total_variation(gaussians=1)
        )
        return (candidates, refused, noise), [*pairs, score]  # by what is drawn: the second account's own

    asked = Price(law, (), epsilon, delta, config.privacy.adjacency, len(cells), padded)
    (candidates, refused, noise), price = within(asked, plan)
    price = replace(price, candidates=len(candidates))
    planned = (tuple(candidates), tuple(refused), price)
    return TableSearch(request, *planned, effort, identity, users, held_out, noise, rows, seeded)


def _planned(
    cells: Sequence[Cell], tables: Sequence[Declared], budget: tuple[float, float], held_out: int, identity: Identity
) -> tuple[list[Candidate], list[tuple[str, str]]]:
    mu, delta = budget
    epsilon = planned_with(mu, delta)
    if epsilon < MIN_EPSILON:
        raise Infeasible("selection", f"a trial would have epsilon={epsilon:.2g}", "a larger epsilon, or fewer trials")
    candidates: list[Candidate] = []
    refused: list[tuple[str, str]] = []
    errors: list[QuoronError] = []
    for cell, declared in zip(cells, tables, strict=True):
        training = replace(declared, users=declared.users - held_out)
        try:
            privacy, run = {"epsilon": epsilon, "delta": delta}, {"seed": identity.seed}
            config = cell.config.but(privacy=privacy, train={"data_quality": 0.0, "holdout": None}, run=run)
            planned = choose(config, problem_of(config, training), alternatives=False)
            plan = planned.plan.as_curated()
            plan.require_deployable(trust_clients=True)
        except (Infeasible, ConfigError) as error:
            refused.append((cell.named, str(error)))
            errors.append(error)
            continue
        candidates.append(Candidate(cell, config, replace(planned, plan=plan)))
    if not candidates:
        raise errors[0]
    return candidates, refused


class _Rows:
    """Rows of one table as settings encode them: read once for all settings that encode them alike."""

    def __init__(self, base: Path, frame: Any) -> None:
        self._base, self._frame = base, frame
        self._held: dict[str, TableRows] = {}

    @staticmethod
    def key(config: Config) -> str:
        """Alike for settings that encode rows alike."""
        encoding = encoding_of(check_section(config), loss_of(config))
        return json.dumps([encoding.as_json(), config.population.items_per_user], sort_keys=True, default=str)

    def of(self, config: Config) -> TableRows:
        """As `config` encodes and declares them. Raises what `load_rows` raises."""
        loss, key = loss_of(config), self.key(config)
        encoding = encoding_of(check_section(config), loss)
        if key not in self._held:
            self._held.clear()  # before others are read
            self._held[key] = load_rows(config, self._base, self._frame)
            self._held[key].drop_marks()
        rows = self._held[key]
        domain, dimension = make_domain(config.domain, config.loss.feature_norm), encoding.dimension * loss.outputs
        declared = replace(rows.declared, loss=loss, domain=domain, dimension=dimension)
        return replace(rows, declared=declared)


CHOSEN = "chosen.toml"
UNCHECKED = "a search looks at nothing but scores"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tuned(TrainedTable):
    """The model of the best trial, with the promise of the whole search."""

    choice: Choice

    def rows(self) -> list[tuple[str, str]]:
        """Return what was chosen, and the first lines of its model's."""
        return [*self.choice.rows()[:3], *self.summary.rows()[:4]]

    def as_json(self) -> dict[str, Any]:
        """Return those of the summary, with the choice."""
        return TrainedTable.as_json(self) | {"choice": asdict(self.choice)}


def carry_out(search: TableSearch, folder: RunFolder) -> Tuned:
    """Return the whole search, from wherever its folder stands. Raises what `_best` raises.

    Warns with DoubtfulModel before the charge where no setting's plan is better than not training.
    """
    if (folder.path / MODEL).is_file():
        raise complete(folder, "search")
    if not folder.ledger.is_file():
        search.run.check()
        for doubt in search.doubts:
            warnings.warn(doubt, DoubtfulModel, stacklevel=2)
    with memory_for("the rest of this search", ONCE):
        best = _best(search, folder)
        tuned = _write_best(search, folder, best)
    search.run.end(model=best.weights)
    return tuned


def _best(search: TableSearch, folder: RunFolder) -> Outcome:
    """Begin and charge a search, or go on from where it stands, to the end: the best trial, kept before it is reported.

    What was secret is erased. NothingReleased, with all of it charged, where the best trial is no model; OtherVersion
    if another search began here, or one on another table.
    """
    run, record = search.run, {"identity": asdict(search.identity), **search.asked}
    with closing(folder.begin(run, {"config.toml": search.request.config.as_toml(), SEARCH: record})) as own:
        run.charge()
        if not own.finished:
            if not own.same_inputs(search.digest()):
                raise other_run(folder.path, "table")
            best = best_trial(search.price, run.noise(own), search.perform)
            chosen = {"candidate": best.candidate, "score": best.score, "events": list(best.events)}
            release = Release("private-selection", {"mean_trials": search.price.trials.mean})
            own.finish(best.weights, (release,), {"selected": chosen})
        released = own.released(EVALUATED)
        assert released is not None
        selected = released["selected"]
        if selected["score"] <= WORST:
            run.end("failed", model=None)
            raise NothingReleased(
                "Nothing was chosen, and the whole of epsilon is spent: no trial's score and model were finite numbers."
            )
        return Outcome(selected["score"], own.model, tuple(selected["events"]), selected["candidate"])


def resume(folder: RunFolder) -> Tuned:
    """Go on with the search in a folder, for its one charge: the same trials, nothing drawn again. Or read it."""
    record = folder.read_json(SEARCH)
    config = folder.config()
    if (folder.path / MODEL).is_file():
        done = stored(folder)
        if not record["seeded"]:
            with lifetime.opened(config.train.ledger) as population:
                end(population, Identity(**record["identity"]).run, model=done.weights)
        return done
    refuse_frame(config, folder, "quoron.tune")
    search = prepare(
        config,
        folder.path,
        identity=Identity.stored(folder, SEARCH) or Identity.fresh(folder.path.name),
        seeded=record["seeded"],
        vary=record["vary"],
        algorithms=record["algorithms"],
        **record["effort"],
    )
    return carry_out(search, folder)


def stored(folder: RunFolder) -> Tuned:
    """Return a complete search as its folder keeps it."""
    done, choice = result.stored(folder), Choice(**folder.read_json(CHOICE))
    return Tuned(done.model, done.weights, done.statement, done.directory, done.summary, choice)


def _write_best(search: TableSearch, folder: RunFolder, best: Outcome) -> Tuned:
    """Return the files of the trial that is released; the model last."""
    candidate = search.candidates[best.candidate]
    rows = search.rows_of.of(candidate.config)
    planned = replace(candidate.planned, plan=search.promised(candidate.planned.plan))
    choice = Choice(
        candidate.name,
        dict(candidate.cell.varied),
        candidate.planned.plan.algorithm,
        best.score,
        score_name(candidate.loss),
        search.noise.scale,
        search.price.as_json(),
    )
    remarks = (*planned.remarks, *search.remarks)
    setup = TableSetup(replace(rows, warnings=(*rows.warnings, *search.remarks)), search.identity, UNCHECKED)
    prepared = Prepared(search.request.config, setup, replace(planned, remarks=remarks), "", search.identity.run)
    folder.write_json("plan.json", prepared.planned.as_json() | {"search": search.as_json()})
    folder.write_text(CHOSEN, candidate.cell.config.as_toml())
    folder.write_json(CHOICE, asdict(choice))
    done = result.write(prepared, folder, np.asarray(best.weights), best.events)
    return Tuned(done.model, done.weights, done.statement, done.directory, done.summary, choice)


class TuningArguments(TrainingArguments, total=False):
    """The arguments of a search."""

    vary: Mapping[str, Sequence[Any]] | None
    algorithms: Sequence[str] | None
    n_trials: float | None
    max_trials: int | None
    padded: bool
    seed: int | None


_CONFIGURED = {*TrainingArguments.__annotations__, "seed"} - {"holdout"}  # the others are of the search


@overload
def tune(
    source: Source,
    user: str | None = ...,
    label: str | Label | None = ...,
    *,
    dry_run: Literal[True],
    **arguments: Unpack[TuningArguments],
) -> TableSearch: ...
@overload
def tune(
    source: Source,
    user: str | None = ...,
    label: str | Label | None = ...,
    *,
    dry_run: Literal[False] = ...,
    **arguments: Unpack[TuningArguments],
) -> Tuned: ...
@entry_point
def tune(
    source: Source,
    user: str | None = None,
    label: str | Label | None = None,
    *,
    dry_run: bool = False,
    **arguments: Unpack[TuningArguments],
) -> Tuned | TableSearch:
    """Train for real with several settings, and release the best by a private score, for little more than one run.

    Args:
        vary: dotted keys, each with the values to try; all combinations.
        algorithms: names, `auto` among them; default: the one that is configured.
        n_trials: in the mean; twice as many as settings unless given. How many there are is secret.
        max_trials: five times the mean unless given; three times where `padded`.
        padded: always carry out so many, so that the clock does not tell how many counted.
        holdout: share of the users that score every trial; 0.1 to 0.3, by how many there are, unless given.
        seed: SIMULATED: of all noise. It promises nothing, and nothing is charged.
        dry_run: return the search alone: what it would promise, cost and try. Nothing is charged, and no value is read.
        source, user, label, epsilon, delta, ...: as of `train`; (ε, δ) is the guarantee of the whole search.

    A secret number of trials each take one of the settings at random. Nothing is shown or kept of any but the best, and
    one charge is made before any value is read. Interrupted, it goes on with the same call and `out`, or
    `quoron resume`: the same trials, with the same noise.

    Raises:
        QuoronError: with the thing, its value and the fix; BudgetExceeded beyond the population's limit.
    """
    seeded = arguments.get("seed") is not None
    configured = {name: value for name, value in arguments.items() if name in _CONFIGURED}
    searched: dict[str, Any] = {name: value for name, value in arguments.items() if name not in _CONFIGURED}
    config, name, frame = described(source, user, label, configured, secret=not seeded)
    folder = None if config.run.out is None else RunFolder(Path(config.run.out))
    identity = Identity.stored(folder, SEARCH) or Identity.fresh(name)
    search = prepare(config, Path.cwd(), identity=identity, frame=frame, seeded=seeded, **searched)
    if dry_run:
        return search
    claimed = claim(search.request.config, name)
    with claimed.resumable():
        return carry_out(search, claimed)
