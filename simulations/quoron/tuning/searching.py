"""A search, whatever is tried: its price before it begins, its trials, and the one that is released.

What is written, and in which order, each step harmless to repeat after a crash:

    config.toml, tune.json   what was fixed from public facts: candidates, the law of the number of trials, the price
    ledger.sqlite            the noise key, of which the number of trials and every draw are functions
    lifetime ledger          the whole price, before anything is looked at
    private/search           after every trial: how many are done, and the best so far; nothing of it outside
    ledger.sqlite            the best trial, before it is told; the key is erased
    private/                 removed

A kill goes on from the private file: the same number of trials, the same candidates in the same order, and noise that
depends on the key and on the trial alone, so that a trial which was cut off comes out as it would have.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from quoron.tuning.private_state import WORST, Known, Outcome, PrivateState, erase
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import Infeasible, NothingReleased
from quoron_privacy.noise.streams import NoiseSource, OtherStreams, RandomStream, SecureNoise, SeededNoise, StartedNoise
from quoron_privacy.release import Adjacency, Release
from quoron_privacy.selection import verified
from quoron_privacy.selection.price import Selection, calibrate, rounded
from quoron_privacy.selection.trials import Trials, drawn
from quoron_server.books.ledger import Ledger
from quoron_server.parameters import Kind
from quoron_server.plan import PREFACE
from quoron_server.rounds import other_run
from quoron_server.runs import end

if TYPE_CHECKING:  # whoever charges brings it
    from quoron_server.books.lifetime_ledger import PopulationLedger

T = TypeVar("T")
Perform = Callable[[int, NoiseSource], Outcome]  # a candidate, by its place, with the noise of its trial
THEOREM = "docs/privacy/selection.md#se1"
_AGAIN = 6  # times that trials are planned with less, where some cost more than Gaussian ones


@dataclass(frozen=True)
class Price:
    """What a search promises and costs, and what it is beside: public, before anything is looked at."""

    trials: Trials
    pairs: tuple[Pair, ...]  # of one trial
    epsilon: float  # of the whole search
    delta: float
    adjacency: Adjacency
    candidates: int
    padded: bool

    def verify(self) -> None:
        """VerificationError unless the second account finds it within its promise; Infeasible where it costs more."""
        if (found := self.selection.promised(self.delta)) > self.epsilon * (1 + 1e-9):
            raise Infeasible("selection", f"these trials cost epsilon={found:.3g}, not {self.epsilon:g}", "less noise")
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
        """Plain numbers, and what a trial, and a search in the open, cost."""
        chosen = self.selection
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": self.adjacency,
            "candidates": self.candidates,
            "trials": self.trials.words,
            "mean_trials": rounded(self.trials.mean * (1 + 1e-9)),
            "most_trials": self.trials.most,
            "padded": self.padded,
            "trial_epsilon": rounded(chosen.trial_epsilon(self.delta)),
            "open_search_epsilon": rounded(chosen.naive_epsilon(self.delta, self.candidates)),
            "chance_that_one_setting_is_never_tried": rounded(self.trials.missed(1 / self.candidates)),
        }


def within(asked: Price, plan: Callable[[float, float], tuple[T, Sequence[Pair]]]) -> tuple[T, Price]:
    """What `plan` makes of what a trial may spend, (μ, δ), and the price of its pairs, verified: within that `asked`.

    Where some cost more than Gaussian ones, trials are planned with less. Raises what `plan` and `Price.verify` raise.
    """
    each, mu = max(1e-12, asked.delta / (2 * asked.trials.mean)), calibrate(asked.epsilon, asked.delta, asked.trials)
    for _ in range(_AGAIN):
        made, pairs = plan(mu, each)
        price = replace(asked, pairs=_worst(pairs))
        cost = price.selection.promised(asked.delta)
        if cost <= asked.epsilon * (1 + 1e-9):
            break
        mu = rounded(mu * (min(0.97, rounded(asked.epsilon / cost)) if math.isfinite(cost) else 0.5))
    price.verify()
    return made, price


def _worst(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """Each other one, and of the Gaussian ones one that is as bad as the worst of them."""
    gaussian = [pair for pair in pairs if pair.is_gaussian]
    others = tuple(dict.fromkeys(pair for pair in pairs if not pair.is_gaussian))
    return (Pair.gaussian(max(pair.mu for pair in gaussian), max(pair.lack for pair in gaussian)), *others)


@dataclass(frozen=True, slots=True)
class TrialNoise(OtherStreams):
    """The noise of one trial: streams of the run's own source, of which no other trial draws."""

    source: NoiseSource
    trial: int

    def stream(self, *labels: str | int) -> RandomStream:
        """See NoiseSource."""
        return self.source.stream("trial", self.trial, *labels)


@dataclass(frozen=True, slots=True)
class Best:
    """The trial that is released."""

    candidate: int
    outcome: Outcome


def noise_of(key: bytes, *, simulated: bool) -> NoiseSource:
    """The source of a key."""
    return SeededNoise(int(key)) if simulated else SecureNoise(key)


def search(price: Price, noise: NoiseSource, perform: Perform, state: PrivateState | None = None) -> Best:
    """Carry out the trials that are left, and return the best of all.

    Nothing is raised, told or written of single trials but to `state`: one whose numbers are not finite has the worst
    score, and no warning of it is shown. What `perform` raises is passed on: it must not depend on anybody's values.
    """
    known = Known() if state is None else state.read()
    number = price.trials.draw(noise)
    for trial in range(known.done, price.trials.most if price.padded else number):
        candidate = drawn(noise, trial, price.candidates)
        with np.errstate(all="ignore"), warnings.catch_warnings():  # a warning tells of the trial that it is of
            warnings.simplefilter("ignore")
            outcome = perform(candidate, StartedNoise(TrialNoise(noise, trial), "search"))
        known = known.after(candidate, outcome.settled, counts=trial < number)
        if state is not None:
            state.write(known)
    assert known.best is not None  # at least one trial
    return Best(known.candidate, known.best)


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """The durable side of a search."""

    folder: Path
    name: str  # in the lifetime ledger
    text: str  # all that makes it this search and no other
    digest: str
    price: Price
    group: str
    statement: str
    account: Callable[[], AbstractContextManager["PopulationLedger"]] | None  # None: a simulation, charged to nobody
    simulation_seed: int | None = None

    @property
    def ledger(self) -> Path:
        """The run's own."""
        return self.folder / "ledger.sqlite"

    def check(self) -> None:
        """BudgetExceeded if the account has no room for it now."""
        if self.account is not None:
            with self.account() as population:
                population.check(self.name, group=self.group, **self._charge)

    def begin(self) -> Ledger:
        """Its ledger, and the charge; OtherVersion if another search began here."""
        if not self.ledger.is_file():
            key = SecureNoise.fresh() if self.simulation_seed is None else SeededNoise(self.simulation_seed)
            own = Ledger.create(self.ledger, plan=self.text, config_digest=self.digest, noise_key=key.export_key())
        else:
            own = Ledger.open(self.ledger)
        try:
            if (own.plan_json, own.config_digest) != (self.text, self.digest):
                raise other_run(self.ledger, "settings to try, or price")
            if self.account is not None:
                with self.account() as population:
                    population.charge(self.name, group=self.group, statement=self.statement, **self._charge)
        except BaseException:
            own.close()
            raise
        return own

    def noise(self, own: Ledger) -> NoiseSource:
        """The source that it began with."""
        return noise_of(own.noise_key, simulated=self.simulation_seed is not None)

    def carry_out(self, own: Ledger, perform: Perform, *, room: int, entries: tuple[Release, ...] = ()) -> Best:
        """From wherever it stands to the end: the best trial, kept before it is told. What was secret is erased.

        NothingReleased, with all of it charged, where the best of them is no model.
        """
        if not own.finished:
            state = PrivateState(self.folder, own.noise_key, room)

            def draw() -> tuple[tuple[Release, ...], dict[str, Any]]:
                best = search(self.price, self.noise(own), perform, state)
                said = {"candidate": best.candidate, "score": best.outcome.score, "events": list(best.outcome.events)}
                return entries, {"selected": said}

            own.release_once(PREFACE, draw)
            kept = state.read().best
            assert kept is not None
            own.finish(kept.weights)
        erase(self.folder)
        preface = own.released(PREFACE)
        assert preface is not None
        said = preface["selected"]
        if said["score"] <= WORST:
            self.end("failed")
            raise NothingReleased(
                "Nothing was chosen, and the whole of epsilon is spent: no trial's score and model were finite numbers."
            )
        return Best(said["candidate"], Outcome(said["score"], own.model, tuple(said["events"])))

    def end(self, status: Any = "complete", *, model: Any = None) -> None:
        """In the lifetime ledger: what became of it."""
        if self.account is not None:
            with self.account() as population:
                end(population, self.name, status, model=model)

    @property
    def _charge(self) -> dict[str, Any]:
        return {"epsilon": self.price.epsilon, "delta": self.price.delta, "adjacency": self.price.adjacency}
