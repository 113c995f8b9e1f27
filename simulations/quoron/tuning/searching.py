"""A search, whatever is tried: its price before it begins, its trials, and the one that is released.

What is written, and in which order, each step harmless to repeat after a crash:

    config.toml, tune.json   what was fixed from public facts: candidates, the law of the number of trials, the price
    ledger.sqlite            the noise key, of which the number of trials and every draw are functions
    lifetime ledger          the whole price, before anything is looked at
    private/search           after every trial: how many are done, and the best so far; nothing of it outside
    ledger.sqlite            the best trial, before it is shown; the key is erased
    private/                 removed

After a kill the search goes on from the private file: the same number of trials, and the same candidates in the same
order. Noise depends on the key and on the trial alone, so that a trial which was cut off comes out as it would have.

What a search knows while it goes on, and nobody may: how many trials are done, and the best so far.

One file, mode 0600, in a folder that nobody else may open; encrypted by the run's noise key, always as long, written
whole after every trial. At the end the key is erased from the run's ledger, and then the file: what a disk keeps of it
says nothing.
"""

import base64
import json
import math
import os
import secrets
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from quoron_client.durable import OWN, PRIVATE, make_folder, replace_whole, sync_folder
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import Infeasible, LedgerError, RunError
from quoron_privacy.noise.streams import NoiseSource, OtherStreams, RandomStream, StartedNoise
from quoron_privacy.release import Adjacency
from quoron_privacy.selection import verified
from quoron_privacy.selection.price import Selection, calibrate, rounded
from quoron_privacy.selection.trials import Trials, drawn
from quoron_server.algorithms.one_round.method import MOST_COLUMNS
from quoron_server.parameters import Kind

FOLDER, FILE = "private", "search"
WORST = -np.finfo(np.float64).max.item()  # the score of a trial whose numbers are not finite: below all others
_BASE, _NUMBER, _ROUND = 4096, 32, 512  # bytes: of the whole, of a number as text, of a round's few public numbers
_NONCE = 12
Vector = NDArray[np.float64]


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


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """How far a search is."""

    done: int = 0  # trials
    best: Outcome | None = None

    def after(self, outcome: Outcome, *, counts: bool) -> "Known":
        """With one trial more; of equal scores the earlier one stays, which is as good as tossing a coin."""
        better = counts and (self.best is None or outcome.score > self.best.score)
        return Known(self.done + 1, outcome if better else self.best)


@dataclass(frozen=True, slots=True)
class PrivateState:
    """The file of one search."""

    run: Path  # its folder
    key: bytes = field(repr=False)  # of the run's noise
    room: int  # bytes, at least as many as any candidate's outcome takes: so the file's size tells none

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.run / FOLDER / FILE

    def read(self) -> Known:
        """How far it is. LedgerError for another file than this run wrote."""
        if not self.path.is_file():
            return Known()
        try:
            raw = self.path.read_bytes()
            said = json.loads(self._cipher.decrypt(raw[:_NONCE], raw[_NONCE:], None))
            best = said["best"]
            if best is not None:
                best = Outcome(best["score"], _vector(best["weights"]), tuple(best["events"]), best["candidate"])
            return Known(said["done"], best)
        except Exception:  # whatever is wrong is wrong with the file; nothing of it may be shown
            raise LedgerError(
                f"Expected {self.path} as this search wrote it, got another file. Put it back, or begin a new search."
            ) from None

    def write(self, known: Known) -> None:
        """Keep it: complete or not at all. RunError where it cannot be."""
        best = None if known.best is None else asdict(known.best) | {"weights": _text(known.best.weights)}
        text = json.dumps({"done": known.done, "best": best}).encode()
        if len(text) > self.room:
            raise LedgerError(f"Expected an outcome within {self.room} bytes, as planned, got a larger one.")
        nonce, padded = secrets.token_bytes(_NONCE), text.ljust(self.room)
        try:
            make_folder(self.path.parent, mode=OWN)
            replace_whole(self.path, nonce + self._cipher.encrypt(nonce, padded, None), mode=PRIVATE)
        except OSError as error:
            raise RunError(f"Cannot write {self.path}: {error.strerror}. Make room, then continue.") from error

    @property
    def _cipher(self) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305  # planning needs none

        return ChaCha20Poly1305(blake2b(b"", key=self.key, digest_size=32, person=b"quoron-search").digest())


def erase(run: Path) -> None:
    """Remove whatever a search kept in the folder of its run."""
    folder = run / FOLDER
    if folder.is_dir():
        for path in folder.iterdir():
            handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
            try:
                os.ftruncate(handle, 0)
            finally:
                os.close(handle)
        shutil.rmtree(folder)
        sync_folder(run)


def room_for(dimension: int, rounds: int) -> int:
    """Bytes that no outcome exceeds of a model of so many numbers, and of what so many rounds make public.

    A run of one round may make its second moments public; others a few numbers a round.
    """
    moments = (dimension + 1) * (dimension + 2) // 2 if rounds == 1 and dimension <= MOST_COLUMNS else 0
    return _BASE + _NUMBER * (dimension + moments) + _ROUND * rounds


def _text(weights: Sequence[float] | Vector) -> str:
    return base64.b64encode(np.asarray(weights, "<f8").tobytes()).decode()


def _vector(text: str) -> Vector:
    return np.frombuffer(base64.b64decode(text), "<f8").astype(np.float64)


T = TypeVar("T")
Perform = Callable[[int, NoiseSource, NoiseSource], Outcome]  # a candidate's place, noise of its trial, of the search
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


def search(price: Price, noise: NoiseSource, perform: Perform, state: PrivateState | None = None) -> Outcome:
    """Carry out the trials that are left, and return the best of all.

    Nothing is raised, shown or written of single trials but to `state`: one whose numbers are not finite has the worst
    score, and no warning of it is shown. What `perform` raises is passed on: it must not depend on anybody's values.
    """
    known = Known() if state is None else state.read()
    number = price.trials.draw(noise)
    for trial in range(known.done, price.trials.most if price.padded else number):
        candidate = drawn(noise, trial, price.candidates)
        with np.errstate(all="ignore"), warnings.catch_warnings():  # a warning tells of the trial that it is of
            warnings.simplefilter("ignore")
            outcome = perform(candidate, StartedNoise(TrialNoise(noise, trial), "search"), noise)
        known = known.after(replace(outcome.settled, candidate=candidate), counts=trial < number)
        if state is not None:
            state.write(known)
    assert known.best is not None  # at least one trial
    return known.best
