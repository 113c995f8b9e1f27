"""Private selection for whatever a program trains: networks, trees, models of any library.

    def trial(setting, at):                                # called a secret number of times; show nothing of it
        weights = at.train(rows, dimension=d, method=Method(clip_norm=setting["clip"], radius=10))
        return at.score(accuracy(weights, at.held_out)), weights

    chosen = quoron.select(settings, trial, users=1000, privacy=Privacy(2, 1e-6))
    chosen.candidate, chosen.model, chosen.statement

`at` has the users who train and those who score, split in secret, and what a trial may spend on either. Who trains by
mechanisms of their own says in `base` what one whole call costs, as a pair or several of `quoron_privacy.accounts.pair`
(`Pair.approximate(epsilon, delta)` where no more is known). Page: docs/tuning.md; proof: docs/privacy/selection.md.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron.evaluating.split import held_out, held_users
from quoron.run_folder import MODEL, SEARCH, RunFolder, numbered
from quoron.sections import Keep, Method, Privacy, door, only
from quoron.training import lifetime
from quoron.training.black_box import ONE_PASS, Vector, origin_of, problem_of
from quoron.training.rows import METHOD, Rows, RowsEngine
from quoron.training.start import Identity
from quoron.training.trained import Trained
from quoron.tuning.effort import Effort
from quoron.tuning.private_state import Outcome
from quoron.tuning.scoring import noise_for, private_mean
from quoron.tuning.searching import THEOREM, Books, Price
from quoron_privacy.accounts import gdp
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import ConfigError, UsageError, count
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.sources import SeededNoise
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Adjacency
from quoron_privacy.selection.price import Selection, calibrate
from quoron_server.algorithms import ALGORITHMS
from quoron_server.black_box import Asked
from quoron_server.budget import EVERYONE, check_delta
from quoron_server.plan import Privacy as PlanPrivacy
from quoron_server.runs import end
from quoron_server.wording import TEXTS

OWN = "tune.json of quoron.select"
_OVER = SeededNoise(0)  # of a search that is over: nothing is drawn
LACK = 2.0**-100  # total variation that samplers of a trial may lack; those of a million rounds lack less
ROOM = 1 << 16  # bytes that the private file grows by


@dataclass(slots=True)
class Trial:
    """One trial, for whoever carries it out: its users, its noise, and what it may spend, once each."""

    training: NDArray[np.int64]  # users who train, (n,); empty where `base` says what a trial costs
    held_out: NDArray[np.int64]  # users who score, (h,)
    noise: NoiseSource  # of this trial alone, for mechanisms of one's own
    _privacy: PlanPrivacy | None = field(repr=False)
    _mean: GaussianNoise | None = field(repr=False)
    _mu: float = field(repr=False)
    _slots: int = field(repr=False)  # seed of public slots
    _spent: set[str] = field(default_factory=set, repr=False)

    def train(
        self, rows: Rows, *, dimension: int, method: Method, start: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """A model (dimension,) of the training users, as `quoron.train_rows` makes one; once a trial, charged nowhere.

        `rows` gets numbers of users as `training` has them. ConfigError for a method that is not Gaussian as a whole.
        """
        privacy = self._pay("train")
        only("Trial.train", (*METHOD, "chunk"), method)
        origin, users = origin_of(start, dimension), self.training
        asked = Asked(
            problem=problem_of(method, users=len(users), dimension=dimension, door="Trial.train"),
            privacy=privacy,
            clip_norm=method.clip_norm,
            algorithm=method.algorithm or ONE_PASS,
            options=dict(method.options),
        )
        plan = asked.planned(self._slots, curated=True).as_curated()
        pairs = ALGORITHMS[plan.algorithm].pairs(plan)
        if not all(pair.is_gaussian and pair.mu <= self._mu and pair.lack <= LACK for pair in pairs):
            raise ConfigError(
                f"Expected a method that is Gaussian as a whole, got {plan.algorithm}: a search is priced before it "
                "knows what trials do. Choose one-pass-dp-sgd or dp-ftrl, or declare `base`."
            )
        algorithm = ALGORITHMS[plan.algorithm].make(plan)
        engine = RowsEngine(
            lambda _, some, point, __: rows(users[some], point), plan.problem, origin, self.noise, method.chunk
        )
        state = algorithm.init()
        while (question := algorithm.request(state, self.noise)) is not None:
            answers = engine.ask(question)
            state = algorithm.update(state, answers, self.noise).state
        return np.asarray(origin + algorithm.model(state))

    def score(self, scores: Any) -> float:
        """The mean with noise of one number in [0, 1] of each held-out user, (h,), in their order; once a trial."""
        self._pay("score")
        found = np.asarray(scores, np.float64)
        if found.shape != self.held_out.shape:
            raise UsageError(f"Expected one score for each of {len(self.held_out)} held-out users, got {found.shape}.")
        assert self._mean is not None
        return private_mean(found, self._mean, self.noise)

    def _pay(self, what: str) -> PlanPrivacy:
        if self._privacy is None:
            raise UsageError(f"Expected mechanisms of your own where base is declared, got Trial.{what}.")
        if what in self._spent:
            raise UsageError(f"Expected one call of Trial.{what} in a trial, got another: it is paid for once.")
        self._spent.add(what)
        return self._privacy


@dataclass(frozen=True, slots=True, eq=False)
class Selected(Trained[Vector]):
    """What a search chose: `model` is what the best trial returned, `statement` the promise of the whole search."""

    candidate: Any
    name: str
    score: float  # with noise; of the best of several, so rather too high
    price: Mapping[str, Any]


@door
def select(
    candidates: Mapping[str, Any] | Sequence[Any],
    trial: Callable[[Any, Trial], tuple[float, NDArray[np.float64]]],
    *,
    privacy: Privacy,
    users: int | None = None,
    base: Pair | Sequence[Pair] | None = None,
    effort: Effort = Effort(),  # noqa: B008  # frozen
    keep: Keep = Keep(),  # noqa: B008  # frozen
) -> Selected:
    """Try candidates a secret number of times, each time one at random, and release the best by its private score.

    Args:
        candidates: public: plain values, or anything by names.
        trial: `trial(candidate, at)` trains, scores, and returns the score with noise and the model, numbers (d,). It
            must show, keep and raise nothing that depends on anybody's data, and draw its noise from `at`.
        privacy: ε and δ of the whole search; with `simulation_seed` nothing is promised or charged.
        users: how many there are, numbered from 0: `at` splits them, and trains and scores within the promise.
        base: instead of `users`, what one whole trial costs: the pairs of which every user is in one.
        effort: trials in the mean, law, padding, share held out (docs/tuning.md).
        keep: the run's folder, and whose lifetime account is charged, in which file.

    The whole price is charged before `trial` is first called. Interrupted, the same call with the same `out` goes on:
    the same trials, whose noise is a function of the run's key. Raises ConfigError, Infeasible where `base` costs more
    than is promised, BudgetExceeded, LedgerError, OtherVersion.
    """
    only("select", ("epsilon", "delta", "allow_large_delta", "simulation_seed"), privacy)
    only("select", ("out", "group", "ledger"), keep)
    named = _named(candidates)
    epsilon, delta = privacy.needed("select")
    law, seed = effort.of(len(named)), privacy.simulation_seed
    folder = _claimed(keep.out)
    begun = folder.path / SEARCH
    identity = Identity(**folder.read_json(SEARCH)["identity"]) if begun.is_file() else Identity.fresh("select")
    own, mean, mu, apart = None, None, 0.0, 0
    if (users is None) == (base is None):
        raise ConfigError("Expected either users or base, which say what a trial costs, got both or neither.")
    if users is not None:
        count(users=users)
        if seed is None:
            check_delta(delta, users, allowed=privacy.allow_large_delta, key="allow_large_delta")
        apart, each = held_users(users, effort.evaluate), max(1e-12, delta / (2 * law.mean))
        mu = calibrate(epsilon, delta, law)
        own = PlanPrivacy(gdp.epsilon_for(mu, each) * (1 - 1e-9), each)
        mean = noise_for(mu * (1 - 1e-9), apart)
        pairs: tuple[Pair, ...] = (Pair.gaussian(mu, LACK),)
    else:
        assert base is not None
        pairs = (base,) if isinstance(base, Pair) else tuple(base)
    adjacency: Adjacency = next((pair.adjacency for pair in pairs if pair.adjacency != "none"), "replace-one")
    price = Price(law, pairs, epsilon, delta, adjacency, len(named), effort.padded)
    price.verify()
    statement = _statement(price, base is not None, seeded=seed is not None)
    asked = {"names": list(named), "price": price.as_json(), "users": users, "effort": effort.as_json()}
    text = json.dumps(asked, sort_keys=True)
    books = Books(
        folder=folder.path,
        name=identity.run,
        text=text,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        price=price,
        group=keep.group or EVERYONE,
        statement=statement,
        account=None if seed is not None else lifetime.account(lifetime.place(keep.ledger)),
        simulation_seed=seed,
    )
    if not books.ledger.is_file():
        books.check()
        folder.write_json(SEARCH, {"kind": OWN, "identity": asdict(identity), "asked": asked})
    options = list(named.values())

    def perform(place: int, noise: NoiseSource) -> Outcome:
        training = np.empty(0, np.int64)
        scoring = training
        if users is not None:
            split = held_out(source, users, apart)
            training, scoring = np.flatnonzero(~split), np.flatnonzero(split)
        score, weights = trial(options[place], Trial(training, scoring, noise, own, mean, mu, identity.seed))
        found = np.asarray(weights, np.float64)
        if found.ndim != 1 or not np.isfinite(found).all() or not np.isfinite(score):
            raise UsageError("Expected a trial to return a finite score and finite numbers of shape (d,), got others.")
        return Outcome(float(score), found)

    with closing(books.begin()) as ledger:
        source = _OVER if ledger.finished else books.noise(ledger)
        best = books.carry_out(ledger, perform, room=ROOM)
    folder.write_model(best.outcome.weights)
    name = list(named)[best.candidate]
    folder.write_json("choice.json", {"name": name, "score": best.outcome.score, "price": price.as_json()})
    if books.account is not None:
        with books.account() as population:
            end(population, books.name, model=best.outcome.weights)
    model = best.outcome.weights
    told = model, model, statement, folder.path
    return Selected(*told, options[best.candidate], name, best.outcome.score, price.as_json())


def price_of(candidates: int, base: Pair | Sequence[Pair], delta: float, effort: Effort = Effort()) -> float:  # noqa: B008
    """ε of a search over so many candidates whose trials each cost `base`: what `select` asks for at least."""
    pairs = (base,) if isinstance(base, Pair) else tuple(base)
    return Selection(effort.of(candidates), pairs).promised(delta)


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


def _statement(price: Price, declared: bool, *, seeded: bool) -> str:
    assumed = [TEXTS[price.assumed]]
    if declared:
        assumed.append("a trial costs what its declared pair says")
    assumed.append("nothing that a trial does, such as raising, printing or keeping something, shows anything of users")
    text = (
        f"({price.epsilon:g}, {price.delta:g})-differential privacy for all items of any one user at once, adjacency "
        f"{price.adjacency}: protects against whoever sees the chosen model, its score and all else that this search "
        f"shows or keeps; assuming {'; '.join(assumed)}; by {THEOREM}."
    )
    return f"SIMULATED, with noise from a seed, which protects nobody. With secret noise: {text}" if seeded else text
