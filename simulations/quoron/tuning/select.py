"""Private selection for whatever a program trains: networks, trees, models of any library.

    def trial(setting, at):                                # called a secret number of times; show nothing of it
        weights = at.train(rows)                           # by `methods`, of the users who train
        return at.score(accuracy(weights, at.held_out)), weights

    by_clip = lambda setting: {"clip_norm": setting["clip"], "radius": 10}
    chosen = quoron.select(
        settings, trial, users=1000, dimensions=d, methods=by_clip, epsilon=2, delta=1e-6
    )
    chosen.candidate, chosen.model, chosen.statement

`at` has the users who train and those who score, split in secret, and what a trial may spend on either. Who trains by
mechanisms of their own says in `base` what one whole call costs, as a pair or several of `quoron_privacy.accounts.pair`
(`Pair.approximate(epsilon, delta)` where no more is known). Page: docs/tuning.md; proof: docs/privacy/selection.md.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from quoron.arguments import entry_point, shortened
from quoron.evaluation.split import held_out
from quoron.results import Run
from quoron.run_folder import CHOICE, MODEL, SEARCH, RunFolder, numbered
from quoron.training import lifetime
from quoron.training.rows import Method, Rows, RowsEngine, Vector, algorithm_of, origin_of, problem_of
from quoron.training.start import Identity
from quoron.tuning.scoring import Effort, mu_of, noise_for, pair_of, planned_with, private_mean
from quoron.tuning.searching import THEOREM, Outcome, Price, SearchRun, room_for, within
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import ConfigError, UsageError, count
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Adjacency
from quoron_privacy.selection.price import calibrate
from quoron_server.algorithms import ALGORITHMS
from quoron_server.black_box import Asked
from quoron_server.parameters import Kind
from quoron_server.plan import EVERYONE, Privacy, RunPlan, check_delta
from quoron_server.rounds import without_ledger
from quoron_server.wording import TEXTS, guaranteed, simulated

OWN = "tune.json of quoron.select"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class _Training:
    """How one candidate is trained: planned and verified before anything is charged."""

    plan: RunPlan
    algorithm: Any
    chunk: int | None


@dataclass(slots=True)
class Trial:
    """One trial, for the function that carries it out: its users, its noise, and what it may spend, once each."""

    training: NDArray[np.int64]  # users who train, (n,); empty where `base` says what a trial costs
    held_out: NDArray[np.int64]  # users who score, (h,)
    noise: NoiseSource  # of this trial alone, for mechanisms of one's own
    _training: _Training | None = field(repr=False)
    _mean: GaussianNoise | None = field(repr=False)  # None: `base` says what a trial costs
    _spent: set[str] = field(default_factory=set, repr=False)

    def train(self, rows: Rows, *, start: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """A model (dimension,) of the training users, as `quoron.train_rows` makes one; once a trial, charged nowhere.

        `rows` gets numbers of users as `training` has them.
        """
        self._pay("train")
        if (own := self._training) is None:
            raise UsageError("Expected quoron.select(..., methods=...) where trials train, got Trial.train without.")
        problem, users = own.plan.problem, self.training
        origin = origin_of(start, problem.dimension)
        engine = RowsEngine(lambda _, some, point, __: rows(users[some], point), problem, origin, self.noise, own.chunk)
        return np.asarray(origin + without_ledger(own.algorithm, engine, self.noise)[0])

    def score(self, scores: Any) -> float:
        """The mean with noise of one number in [0, 1] of each held-out user, (h,), in their order; once a trial.

        What is no number counts as 0, as a user's who has nothing to score by.
        """
        mean = self._pay("score")
        found = np.asarray(scores, np.float64)
        if found.shape != self.held_out.shape:
            raise UsageError(f"Expected one score for each of {len(self.held_out)} held-out users, got {found.shape}.")
        return private_mean(found, mean, self.noise)

    def _pay(self, what: str) -> GaussianNoise:
        if self._mean is None:
            raise UsageError(f"Expected mechanisms of your own where base is declared, got Trial.{what}.")
        if what in self._spent:
            raise UsageError(f"Expected one call of Trial.{what} in a trial, got another: it is paid for once.")
        self._spent.add(what)
        return self._mean


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Selected(Run[Vector]):
    """What a search chose: `model` is what the best trial returned, `statement` the promise of the whole search."""

    candidate: Any
    name: str
    score: float  # with noise; of the best of several, so rather too high
    price: Mapping[str, Any]

    def rows(self) -> list[tuple[str, str]]:
        """What was chosen, by which score."""
        return [("chosen", self.name), ("score", f"{self.score:.4g}, of the best of several"), *Run.rows(self)]


@entry_point
def select(
    candidates: Mapping[str, Any] | Sequence[Any],
    trial: Callable[[Any, Trial], tuple[float, NDArray[np.float64]]],
    *,
    epsilon: float,
    delta: float,
    allow_large_delta: bool = False,
    dimensions: int | Callable[[Any], int],
    users: int | None = None,
    methods: Method | Callable[[Any], Method] | None = None,
    base: Pair | Sequence[Pair] | None = None,
    data: Any = None,
    n_trials: float | None = None,
    max_trials: int | None = None,
    padded: bool = False,
    holdout: float | None = None,
    seed: int | None = None,
    population: str | None = None,
    ledger: str | Path | None = None,
    out: str | Path | None = None,
) -> Selected:
    """Try candidates a secret number of times, each time one at random, and release the best by its private score.

    Args:
        candidates: public: plain values, or anything by names.
        trial: `trial(candidate, at)` trains, scores, and returns the score with noise and the model, numbers (d,). It
            must show, keep and raise nothing that depends on anybody's data, and draw its noise from `at`. A score or
            a model that is not finite counts as the worst there is.
        epsilon, delta: of the whole search. A δ above 1/n is refused without `allow_large_delta=True`.
        dimensions: d, how many numbers a model has; or a function of the candidate that says it.
        users: how many there are, numbered from 0: `at` splits them, and trains and scores within the promise.
        methods: what `at.train` trains by, `{"algorithm": ..., "options": ..., "radius": ..., "clip_norm": ...}`, or a
            function of the candidate that returns it; planned before any charge.
        base: instead of `users`, what one whole trial costs: the pairs of which every user is in one.
        data: what trials compute with, an array, bytes or a list of these: a search that goes on is refused with other
            data. Its digest is kept in private, and erased. Without, that it is the same is assumed, by name.
        n_trials, max_trials, padded, holdout: as of `tune` (docs/tuning.md).
        seed: SIMULATED: of all noise. Nothing is promised or charged.
        population, ledger: whose privacy budget is charged, in which file.
        out: the run's folder.

    The whole price is charged before `trial` is first called. Interrupted, the same call with the same `out` goes on:
    the same trials, whose noise is a function of the run's key. Raises ConfigError, Infeasible where trials cost more
    than is promised, BudgetExceeded, LedgerError, OtherVersion; NothingReleased where no trial gave finite numbers.
    """
    effort, named = Effort(n_trials, max_trials, padded, holdout), _named(candidates)
    options = list(named.values())
    Privacy(epsilon, delta)  # which checks them
    if (users is None) == (base is None):
        raise ConfigError("Expected either users or base, which say what a trial costs, got both or neither.")
    if methods is not None and users is None:
        raise ConfigError("Expected no methods beside base, which says what a trial costs, got some. Leave them out.")
    widths = [_of(dimensions, each) for each in options]
    for each in widths:
        count(dimensions=each)
    given = None if methods is None else [_method(_of(methods, each)) for each in options]
    private = None if data is None else _digest(data)
    folder = _claimed(out)
    begun = folder.path / SEARCH
    identity = Identity(**folder.read_json(SEARCH)["identity"]) if begun.is_file() else Identity.fresh("select")
    asking = Price(effort.of(len(named)), (), epsilon, delta, "replace-one", len(named), effort.padded)
    apart = 0
    mean: GaussianNoise | None = None
    trainings: list[_Training] | None = None
    if users is not None:
        count(users=users)
        if seed is None:
            check_delta(delta, users, allowed=allow_large_delta, key="allow_large_delta")
        apart = effort.held(users, calibrate(epsilon, delta, asking.trials))
        wanted = None if given is None else list(zip(given, widths, strict=True))
        (mean, trainings), price = within(asking, lambda *spent: _planned(wanted, users, apart, spent, identity.seed))
    else:
        price = _declared(asking, base)
    said = {"trains": trainings is not None, "declared": base is not None, "same": data is not None}
    statement = _statement(price, **said, seeded=seed is not None)
    asked = {
        "names": list(named),
        "price": price.as_json(),
        "users": users,
        "effort": asdict(effort),
        "dimensions": widths,
        "data": private is not None,
        "methods": None if given is None else given,
    }
    text = json.dumps(asked, sort_keys=True, default=str)
    run = SearchRun(
        folder=folder.path,
        name=identity.run,
        text=text,
        price=price,
        population=population or EVERYONE,
        statement=statement,
        account=None if seed is not None else lifetime.account(lifetime.place(ledger)),
        simulation_seed=seed,
    )
    if not run.ledger.is_file():
        run.check()
        folder.write_json(SEARCH, {"kind": OWN, "identity": asdict(identity), "asked": json.loads(text)})

    def perform(place: int, noise: NoiseSource, source: NoiseSource) -> Outcome:
        training = np.empty(0, np.int64)
        scoring = training
        if users is not None:
            split = held_out(source, users, apart)
            training, scoring = np.flatnonzero(~split), np.flatnonzero(split)
        own = None if trainings is None else trainings[place]
        score, weights = trial(options[place], Trial(training, scoring, noise, own, mean))
        found = np.asarray(weights, np.float64)
        if found.shape != (widths[place],):
            raise UsageError(
                f"Expected a trial to return a score and a model of shape ({widths[place]},), as dimensions says, got "
                f"shape {found.shape}."
            )
        return Outcome(float(score), found)

    best = run.carry_out(perform, inputs=lambda: private, data="data", room=max(map(room_for, widths)))
    model, name = best.weights, list(named)[best.candidate]
    folder.write_model(model)
    folder.write_json(CHOICE, {"name": name, "score": best.score, "price": price.as_json()})
    run.end(model=model)
    return Selected(model, model, statement, folder.path, options[best.candidate], name, best.score, price.as_json())


def _of(said: T | Callable[[Any], T], candidate: Any) -> T:
    """What is said for a candidate: the same for all, or by a function of it."""
    return said(candidate) if callable(said) else said


def _method(method: Any) -> Method:
    """Raise ConfigError for what is no mapping of a method's arguments with a radius."""
    known = Method.__annotations__
    if not isinstance(method, Mapping) or "radius" not in method or not method.keys() <= known.keys():
        raise ConfigError(
            f"Expected methods as a mapping with a radius, of {', '.join(known)}, or a function of the candidate that "
            f"returns one, got {shortened(method)}."
        )
    return cast(Method, method)


Plan = tuple[GaussianNoise, list[_Training] | None]


def _planned(
    wanted: list[tuple[Method, int]] | None, users: int, apart: int, spent: tuple[float, float], seed: int
) -> tuple[Plan, list[Pair]]:
    """The noise of scores, what trains each candidate, and their pairs, where a trial may spend (μ, δ)."""
    noise, own = noise_for(mu_of(*spent), apart), Privacy(planned_with(*spent), spent[1])
    made = [_trained(method, users - apart, width, own, seed) for method, width in wanted or ()]
    pairs = [pair for each in made for pair in ALGORITHMS[each.plan.algorithm].pairs(each.plan)]
    return (noise, None if wanted is None else made), [*pairs, pair_of(noise, apart)]


def _declared(asking: Price, base: Pair | Sequence[Pair] | None) -> Price:
    """The price of trials that cost what somebody says. Raises what `Price.verify` raises."""
    assert base is not None
    pairs = (base,) if isinstance(base, Pair) else tuple(base)
    adjacency: Adjacency = next((pair.adjacency for pair in pairs if pair.adjacency != "none"), "replace-one")
    price = replace(asking, pairs=pairs, adjacency=adjacency)
    price.verify()
    return price


def _trained(method: Method, users: int, dimension: int, spent: Privacy, seed: int) -> _Training:
    """What trains one candidate. Raises what planning raises."""
    algorithm, options = algorithm_of(method)
    asked = Asked(
        problem=problem_of(method, users=users, dimension=dimension),
        privacy=spent,
        clip_norm=method.get("clip_norm"),
        algorithm=algorithm,
        options=options,
    )
    plan = asked.planned(seed, curated=True).as_curated()
    plan.require_deployable(trust_clients=False)
    return _Training(plan, ALGORITHMS[plan.algorithm].make(plan), method.get("chunk"))


def _digest(data: Any) -> bytes:
    """Of what trials compute with: private."""
    found = hashlib.blake2b(digest_size=32, person=b"quoron-select")
    for each in data if isinstance(data, list | tuple) else [data]:
        array = np.frombuffer(each, np.uint8) if isinstance(each, bytes) else np.asarray(each)
        if array.dtype.hasobject or isinstance(each, str):  # a text would be the name of a file, not what is in it
            raise ConfigError(f"Expected data as arrays, bytes or a list of them, got {shortened(each)}.")
        found.update(f"{array.dtype.str} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).view(np.uint8).data)
    return found.digest()


def _named(candidates: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    if isinstance(candidates, Mapping):
        found = {str(name): each for name, each in candidates.items()}
    else:
        try:
            found = {json.dumps(each, sort_keys=True): each for each in candidates}
        except TypeError:
            raise ConfigError("Expected candidates that are plain values, or a mapping of names, got others.") from None
    if len(found) < 2 or len(found) < len(candidates):
        raise ConfigError(f"Expected two candidates or more, all different, got {len(found)} of {len(candidates)}.")
    return found


def _claimed(out: str | Path | None) -> RunFolder:
    if out is None:
        return numbered(Path("runs"), "select")
    folder = RunFolder(Path(out))
    other = folder.path.exists() and not (folder.path / SEARCH).is_file()
    if other and (not folder.path.is_dir() or any(folder.path.iterdir())):
        raise ConfigError(f"Expected an empty folder or one of a search, got out={str(out)!r}. Choose another.")
    folder.path.mkdir(parents=True, exist_ok=True)
    if (folder.path / MODEL).is_file():
        raise ConfigError(f"Expected a folder of quoron.select, got {folder.path} of another search.")
    return folder


def _statement(price: Price, *, trains: bool, declared: bool, same: bool, seeded: bool) -> str:
    assumed = [TEXTS[price.assumed]]
    if declared:
        assumed.append("a trial costs what its declared pair says")
    else:
        assumed.append("a held-out user's score depends on its own items and on the trial's model, on no other user's")
    if trains:
        assumed += [TEXTS[Kind.OWN_ROWS], TEXTS[Kind.FORGETFUL_FUNCTION]]
    if not same:
        assumed.append("a search that is interrupted goes on with the same data")
    assumed.append("nothing that a trial does, such as raising, printing or keeping something, shows anything of users")
    against = "anyone who sees the chosen model, its score and all else that this search shows or keeps"
    words = guaranteed(price.epsilon, price.delta, price.adjacency, against, THEOREM, assuming=assumed)
    return f"{simulated(words) if seeded else words}."
