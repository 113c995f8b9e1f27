"""Mechanisms for a training loop of one's own: user-level private in six lines, whatever computes the rows.

    >>> import numpy as np
    >>> from quoron_privacy import ClippedMean, SecureNoise
    >>> visits = np.random.default_rng(0).normal(0.2, 0.1, size=(20_000, 3))  # a row a user
    >>> mean = ClippedMean.calibrate(1.0, 1e-6, users=20_000, dimension=3, cohort=2_000, rounds=30, clip_norm=2.0)
    >>> model, state, noise = np.zeros(3), mean.init(), SecureNoise.fresh()
    >>> for _ in range(mean.rounds):
    ...     users = mean.cohort(state, noise)
    ...     gradient, state = mean(model - visits[users], state, noise)
    ...     model = model - 0.5 * gradient
    >>> bool(np.abs(model - 0.2).max() < 0.1), mean.guarantee[:47]
    (True, '(1, 1e-06)-differential privacy for all items o')

Every mechanism has the same five parts:

* `X.calibrate(epsilon, delta, ...)` finds the least noise for all rounds together and has it verified by the second
  account. Infeasible names what would do.
* `guarantee` is the promise in one sentence, `pair` its privacy loss, `dp_event` the same for dp-accounting.
* `init()` gives the state before the first round. It is secret where noise is correlated.
* `cohort(state, noise)` draws the users of the coming round, (k,). They stay secret where sampling is to amplify.
* `value, state = x(rows, state, noise)` releases one round: rows (k, dimension), one of each user, to a value
  (dimension,) of the same kind, dtype and device. NumPy, torch and JAX arrays alike.

Rows may depend on everything released before and on the items of their own user, on nothing else. A row that is not
finite is an absent user's. A state serves one release: with secret noise a second one is refused, and noise is never
drawn twice alike. `SeededNoise` is for tests and protects no user.

Sources and proofs: docs/privacy/noise.md, subsampling.md, outlier-mean.md, subsampled-lottery.md, prefix-noise.md,
private-mean.md and local-model.md. Page: docs/own-loop.md.
"""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args

import numpy as np
from numpy.typing import NDArray

from quoron_privacy import local
from quoron_privacy.accounts import gdp
from quoron_privacy.accounts.lifetime import Charge, Limit, Spent, compose
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.accounts.roots import least_number
from quoron_privacy.arrays import Matrix, Vector
from quoron_privacy.errors import (
    BudgetExceeded,
    ConfigError,
    Infeasible,
    RunError,
    UsageError,
    VerificationError,
    count,
    positive,
    probability,
)
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.means import private_range
from quoron_privacy.means.clipping import ClippedSum, clip_rows
from quoron_privacy.noise.streams import NoiseSource, StartedNoise, total_variation
from quoron_privacy.prefix import noise as prefix
from quoron_privacy.release import Adjacency, guaranteed
from quoron_privacy.robust import smooth_test, subsampled_test
from quoron_privacy.robust.outlier_mean import LARGEST_COHORT
from quoron_privacy.robust.smooth_test import OneShot
from quoron_privacy.robust.subsampled_test import SubsampledTest
from quoron_privacy.schedule import Sampling, Schedule, Users

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Tested = OneShot | SubsampledTest

_BLOCK = 1 << 22  # numbers that are turned into float64 at a time
_ACCOUNTS = 1 - 1e-8  # of μ, by which the two accounts' rounding may differ
_LEAST_EPSILON = 1e-4
_OWN_ROWS = "a row depends on the items of its own user and on what was released before, on nothing else"
_SECRET = "cohort membership stays secret"


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Where a mechanism stands between two rounds. Keep it as secret as the noise; use it once."""

    round: int = 0  # releases so far
    memory: Any = None  # what the next release needs of the last ones
    _left: list[None] = field(default_factory=lambda: [None], repr=False)

    def use(self) -> None:
        """Raise RunError where the state has served a release before: two of one round would cost two rounds."""
        try:
            self._left.pop()  # one of several threads has it
        except IndexError:
            raise RunError(
                f"Expected a state that was not used, got that of round {self.round} again. Go on with the state that "
                "the release returned, or calibrate for more rounds."
            ) from None


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """What all mechanisms have; all fields are public numbers."""

    theorem: ClassVar[str]
    separate: ClassVar[bool] = True  # rounds are Gaussian releases of their own, given those before
    against: ClassVar[str] = "anyone who sees what is released (the machine that computes the rows is trusted)"

    epsilon: float
    delta: float
    dimension: int
    schedule: Schedule

    @property
    def rounds(self) -> int:
        """Releases, at most."""
        return self.schedule.rounds

    @property
    @abstractmethod
    def pair(self) -> DominatingPair:
        """Privacy loss of all rounds together, by the second account."""

    @property
    def guarantee(self) -> str:
        """What is promised to every user, in one sentence, with secret noise."""
        assumed = (_OWN_ROWS, _SECRET) if self.schedule.secret else (_OWN_ROWS,)
        adjacency = self.schedule.adjacency
        return f"{guaranteed(self.epsilon, self.delta, adjacency, self.against, self.theorem, assuming=assumed)}."

    @property
    def dp_event(self) -> "DpEvent":
        """All rounds as an event of dp-accounting; UsageError where it has none for them."""
        if (event := self.pair.event()) is None:
            raise UsageError(
                f"Expected a mechanism that dp-accounting knows, got {type(self).__name__}: see {self.theorem}."
            )
        return event

    def charge(self, run: str, group: str = "users") -> Charge:
        """Return what all rounds cost the users of a group, for a `Ledger` or a `Limit`."""
        mu, variation = (self.pair.mu, self.pair.variation) if self.pair.is_gaussian else (None, 0.0)
        return Charge(run, group, self.epsilon, self.delta, mu, self.schedule.adjacency, variation)

    def init(self) -> State:
        """Return the state before the first round."""
        return State(0, self._begin())

    def cohort(self, state: State, noise: NoiseSource) -> Users:
        """Return the users, from 0, whose rows the coming release takes: (k,)."""
        return self.schedule.members(state.round, _drawn_once(noise))

    def __call__(self, rows: Any, state: State, noise: NoiseSource) -> tuple[Any, State]:
        """Release one round.

        Args:
            rows: one row of each user of the cohort, (k, dimension), or an iterator of such blocks. Any order; a row
                that is not finite, or is missing, is an absent user's.
            state: of `init`, or of the release before.
            noise: `SecureNoise.fresh()`; the same one for all rounds.

        Returns:
            The value, (dimension,), of the kind of `rows`, and the next state.

        Raises:
            ConfigError: rows of another shape, or more than a cohort has; the state is not used up.
            RunError: a state that was used, or one round too many.
        """
        if state.round >= self.rounds:
            raise RunError(f"Expected at most rounds={self.rounds} releases, got one more. Calibrate for more rounds.")
        blocks, back = _blocks(rows, self.dimension)
        made = self._summed(blocks)
        state.use()
        value, memory = self._release(made, state, _drawn_once(noise))
        return None if value is None else back(value), State(state.round + 1, memory)

    def _begin(self) -> Any:
        return None

    @property
    def _variation(self) -> float:
        """Total variation of all samples from exact noise; two for each number of a round at most."""
        return total_variation(gaussians=2 * self.rounds * self.dimension)

    @classmethod
    def _verified(cls, epsilon: float, delta: float, dimension: int, schedule: Schedule, **own: Any) -> Self:
        """Return the mechanism with its own numbers; VerificationError unless the second account accepts it."""
        made = cls(epsilon=epsilon, delta=delta, dimension=dimension, schedule=schedule, **own)
        made.verify()
        return made

    def verify(self) -> None:
        """Raise VerificationError unless the second account finds the mechanism within its guarantee."""
        if not (found := self.pair.delta(self.epsilon, self.delta)) <= self.delta:
            raise VerificationError(
                f"Expected delta <= {self.delta:g} of {type(self).__name__}, the second account: {found:g}."
            )

    def _within(self, rows: int, most: int) -> None:
        if rows > most:
            raise ConfigError(f"Expected at most {most:,} rows, one of each user of the cohort, got {rows:,}.")

    def _summed(self, blocks: Iterator[Matrix]) -> Any:
        """Return all that a release reads of the rows: here themselves, one a user, NaN where one is missing."""
        made = list(blocks)
        missing = self.schedule.cohort - sum(map(len, made))
        self._within(self.schedule.cohort - missing, self.schedule.cohort)
        return np.concatenate([*made, np.full((missing, self.dimension), np.nan)])

    @abstractmethod
    def _release(self, made: Any, state: State, noise: NoiseSource) -> tuple[Vector | None, Any]:
        """Return a value and what the next release needs."""


@dataclass(frozen=True, kw_only=True)
class OfClippedRows(Mechanism):
    """Of rows it reads the sum of those clipped in ℓ2, in integers: the same for any blocks and order."""

    clip_norm: float

    def _summed(self, blocks: Iterator[Matrix]) -> Vector:
        size, coins = self.schedule.cohort, self.schedule.sampling == "poisson"
        reduction = ClippedSum(self.clip_norm, size)
        sums = reduction.of(np.zeros((0, self.dimension)), np.zeros(0, np.bool_))
        for block in blocks:
            sums = sums + reduction.of(block, np.ones(len(block), np.bool_))
            self._within(sums.answered, 64 * size if coins else size)
        return reduction.mean(sums)


@dataclass(frozen=True, kw_only=True)
class ClippedMean(OfClippedRows):
    """The mean of rows clipped in ℓ2, with independent Gaussian noise: the step of DP-FedAvg and user-level DP-SGD.

    Who is absent adds zero, and the divisor stays the cohort's size. Source: docs/privacy/noise.md#n6, with secret
    cohorts docs/privacy/subsampling.md (Lowy, Liu & Asi 2024 and Bassily & Sun 2023 use it as their baseline).
    """

    noise: GaussianNoise  # of a round

    @property
    def theorem(self) -> str:  # type: ignore[override]
        """Where the guarantee is proved."""
        schedule = self.schedule
        if not schedule.secret:
            return "docs/privacy/gaussian.md"
        coins = "k2" if schedule.adjacency == "zero-out" else "k3"
        return f"docs/privacy/subsampling.md#{coins if schedule.sampling == 'poisson' else 'k1'}"

    @classmethod
    def calibrate(
        cls,
        epsilon: float,
        delta: float,
        *,
        users: int,
        dimension: int,
        clip_norm: float,
        cohort: int | None = None,
        rounds: int = 1,
        sampling: Sampling | None = None,
        adjacency: Adjacency = "replace-one",
    ) -> "ClippedMean":
        """Return the least noise for (ε, δ) of all rounds; Infeasible, ConfigError.

        Args:
            users: all of them, n.
            dimension: numbers in a row.
            clip_norm: rows are shortened to this ℓ2 norm.
            cohort: users of a round; None: everybody.
            rounds: releases, at most.
            sampling: see `Schedule`.
            adjacency: a user is replaced by any other, or adds nothing to the sums.
        """
        schedule = Schedule.of(users, cohort, rounds, sampling, adjacency)
        mu = schedule.round_mu(epsilon, _left(epsilon, delta, rounds, dimension)) * _ACCOUNTS
        moved = mean_sensitivity(clip_norm, schedule.cohort, schedule.moved)
        noise = GaussianNoise.for_mu(sensitivity=moved, mu=mu, dimension=dimension)
        return cls._verified(epsilon, delta, dimension, schedule, clip_norm=clip_norm, noise=noise)

    @cached_property
    def pair(self) -> DominatingPair:
        """Privacy loss of all rounds together, by the second account."""
        return self.schedule.pair(self.noise.effective_mu(self.dimension)).with_variation(self._variation)

    def _release(self, made: Vector, state: State, noise: NoiseSource) -> tuple[Vector, None]:
        return self.noise.release(made, noise.stream("clipped-mean", state.round)), None


@dataclass(frozen=True, kw_only=True)
class PrefixNoise(OfClippedRows):
    """The mean of clipped rows with correlated noise: running sums stay close, as DP-FTRL and momentum need them.

    Cohorts are batches of a public order, and need no secrecy. The value is a round's mean with its own noise;
    the sum of the first t values has noise that grows with the logarithm of t. `factorisation` is blt (buffered linear
    Toeplitz), banded or tree. Source: Denisov, McMahan, Rush, Smith & Thakurta (2022);
    docs/privacy/prefix-noise.md.
    """

    theorem: ClassVar[str] = "docs/privacy/prefix-noise.md"
    separate: ClassVar[bool] = False

    noise: prefix.PrefixNoise  # of the sums

    @classmethod
    def calibrate(
        cls,
        epsilon: float,
        delta: float,
        *,
        users: int,
        dimension: int,
        clip_norm: float,
        cohort: int,
        rounds: int,
        factorisation: str = prefix.DEFAULT,
        adjacency: Adjacency = "replace-one",
    ) -> "PrefixNoise":
        """Return the least noise for (ε, δ) of all sums together; arguments as of `ClippedMean.calibrate`."""
        schedule = Schedule.of(users, cohort, rounds, None if cohort == users else "public-schedule", adjacency)
        mu = gdp.mu_for(epsilon, _left(epsilon, delta, rounds, dimension)) * _ACCOUNTS
        noise = prefix.PrefixNoise.for_mu(
            rounds=rounds,
            sensitivity=mean_sensitivity(clip_norm, schedule.cohort, adjacency),
            mu=mu,
            dimension=dimension,
            factorisation=factorisation,
            participations=schedule.participations,
            separation=schedule.separation,
        )
        return cls._verified(epsilon, delta, dimension, schedule, clip_norm=clip_norm, noise=noise)

    @cached_property
    def pair(self) -> DominatingPair:
        """Privacy loss of all sums together, by what the sampler does."""
        moved = mean_sensitivity(self.clip_norm, self.schedule.cohort, self.schedule.adjacency)
        return DominatingPair.gaussian(prefix.mu(self.noise, moved, self.dimension), self._variation)

    def _begin(self) -> prefix.PrefixState:
        return self.noise.start(self.dimension)

    def _release(self, made: Vector, state: State, noise: NoiseSource) -> tuple[Vector, prefix.PrefixState]:
        _, after = self.noise.release(state.memory, made, noise)
        return self.noise.added(state.memory, after, made), after


@dataclass(frozen=True, kw_only=True)
class OutlierMean(Mechanism):
    """The mean of a cohort without its outliers, behind a private test that most rows lie close together.

    A row counts fully if most others lie within the radius τ = 2 `spread`; farther ones weigh nothing. Where too few
    agree the value is None: nothing was released, and later rounds go on. Noise follows the spread, whatever the length
    of rows. A wrong spread costs accuracy or releases, never privacy.

    Source: Lowy, Liu & Asi (2024), Algorithms 1 and 2, with constants and a test of our own:
    docs/privacy/outlier-mean.md#o3 where a user takes part once, else docs/privacy/subsampled-lottery.md#o4.
    """

    separate: ClassVar[bool] = False

    radius: float  # τ
    account: Tested
    noise: GaussianNoise  # of a round

    @classmethod
    def calibrate(
        cls,
        epsilon: float,
        delta: float,
        *,
        users: int,
        dimension: int,
        spread: float,
        cohort: int | None = None,
        rounds: int = 1,
        sampling: Sampling | None = None,
        outliers: float = 0.01,
    ) -> "OutlierMean":
        """Return the least noise for (ε, δ) of all rounds; Infeasible with the cohort that would do, ConfigError.

        Args:
            spread: all users but the outliers lie in a ball of this radius, wherever it is.
            outliers: share of the users who may lie anywhere, below a half; the test forgives so many.
            users, dimension, cohort, rounds, sampling: as of `ClippedMean.calibrate`; not poisson, as a test needs a
                cohort of fixed size.
        """
        schedule = Schedule.of(users, cohort, rounds, sampling, "replace-one")
        positive(spread=spread)
        if schedule.sampling == "poisson":
            raise ConfigError("Expected a cohort of fixed size, got sampling='poisson'. Use without-replacement.")
        if schedule.cohort > LARGEST_COHORT:
            many = f"{schedule.cohort:,} users are too many to compare with one another"
            raise Infeasible("outlier mean", many, f"a cohort of at most {LARGEST_COHORT:,}")
        if not 0 <= outliers < 0.5:
            raise ConfigError(f"Expected outliers in [0, 0.5), got outliers={outliers}: most have to agree.")
        account = _tested(epsilon, _left(epsilon, delta, rounds, dimension), schedule, outliers)
        radius = 2 * spread * (1 + 1e-9)
        noise = GaussianNoise(account.mean.sensitivity * radius, smooth_test.release_scale(account, radius, dimension))
        return cls._verified(epsilon, delta, dimension, schedule, radius=radius, account=account, noise=noise)

    @property
    def theorem(self) -> str:  # type: ignore[override]
        """Where the guarantee is proved."""
        several = isinstance(self.account, SubsampledTest)
        return "docs/privacy/subsampled-lottery.md#o4" if several else "docs/privacy/outlier-mean.md#o3"

    @cached_property
    def pair(self) -> DominatingPair:
        """Privacy loss of all tests and releases of a user together, by the second account."""
        smooth_test.verify_scale(self.account, self.noise.scale, self.radius, self.dimension)
        if isinstance(self.account, SubsampledTest):
            return subsampled_test.pair(self.account).with_variation(self._variation)
        certified = smooth_test.verify_one_shot(self.account, self.epsilon, self.delta)
        return DominatingPair.approximate(self.epsilon, certified).with_variation(self._variation)

    def _begin(self) -> Vector:
        return np.zeros(self.dimension)

    def _release(self, made: Matrix, state: State, noise: NoiseSource) -> tuple[Vector | None, Vector]:
        reference: Vector = state.memory
        at: Any = {"radius": self.radius, "reference": reference}
        seen = self.account.mean.observe(made, np.ones(len(made), np.bool_), **at)
        if not self.account.test.decide(seen.score, noise.stream("test", state.round)):
            return None, reference
        mean = self.account.mean.aggregate(made, seen.weights, **at)
        value = reference + self.noise.release(mean, noise.stream("outlier-mean", state.round))
        return value, value


@dataclass(frozen=True, kw_only=True)
class TruncatedMean(Mechanism):
    """The mean of rows clipped around a centre that is found privately first: noise follows the spread, not the bound.

    Source: Bassily & Sun (2023), Algorithm 1, with the noise added once; docs/privacy/private-mean.md.
    """

    theorem: ClassVar[str] = "docs/privacy/private-mean.md"

    mean: private_range.TruncatedMean  # of a round

    @classmethod
    def calibrate(
        cls,
        epsilon: float,
        delta: float,
        *,
        users: int,
        dimension: int,
        bound: float,
        spread: float,
        rounds: int = 1,
    ) -> "TruncatedMean":
        """Return the least noise for (ε, δ) of all rounds, everybody in each of them; Infeasible, ConfigError.

        Args:
            bound: rows lie within this distance of zero; it may be far too large.
            spread: and within this distance of some point.
            users, dimension, rounds: as of `ClippedMean.calibrate`.
        """
        schedule = Schedule.of(users, None, rounds, None, "replace-one")
        mu = schedule.round_mu(epsilon, _left(epsilon, delta, rounds, dimension)) * _ACCOUNTS
        found = []
        for kind in get_args(private_range.Crude):
            with suppress(Infeasible):
                found.append(
                    private_range.calibrate(kind, users=users, dimension=dimension, bound=bound, spread=spread, mu=mu)
                )
        if not found:
            raise Infeasible("truncated mean", f"{users:,} users are too few", "more users or a larger epsilon")
        best = min(found, key=lambda mean: mean.noise.scale)
        return cls._verified(epsilon, delta, dimension, schedule, mean=best)

    @cached_property
    def pair(self) -> DominatingPair:
        """Privacy loss of all rounds together."""
        return self.schedule.pair(self.mean.mu(self.dimension)).with_variation(self._variation)

    def _release(self, made: Matrix, state: State, noise: NoiseSource) -> tuple[Vector, None]:
        there = np.asarray(np.isfinite(made).all(axis=1), np.bool_)
        public = noise.stream("rotation", state.round)
        return self.mean.release(made, there, noise.stream("truncated-mean", state.round), public), None


@dataclass(frozen=True, kw_only=True)
class LocalReport(Mechanism):
    """Reports that are private before they leave a user: rows clipped around zero, with Gaussian noise of their own.

    `x(rows, state, noise)` runs at the user and returns a report for each row, (k, dimension); subtract a public centre
    before, where there is one. `mean(reports)` is the server's. Source: Bassily & Sun (2023), Algorithm 1, line 2 and
    Theorem 4.3; docs/privacy/local-model.md#r2.
    """

    theorem: ClassVar[str] = "docs/privacy/local-model.md#r2"
    against: ClassVar[str] = "everybody but the user itself, the server too"

    clip_norm: float
    noise: GaussianNoise  # of a report

    @classmethod
    def calibrate(
        cls, epsilon: float, delta: float, *, dimension: int, clip_norm: float, rounds: int = 1
    ) -> "LocalReport":
        """Return the least noise for (ε, δ) of a user's reports in all rounds; Infeasible, ConfigError."""
        schedule = Schedule.of(1, None, rounds, None, "replace-one")
        mu = schedule.round_mu(epsilon, _left(epsilon, delta, rounds, dimension)) * _ACCOUNTS
        noise = GaussianNoise.for_mu(sensitivity=2 * clip_norm, mu=mu, dimension=dimension)
        return cls._verified(epsilon, delta, dimension, schedule, clip_norm=clip_norm, noise=noise)

    @cached_property
    def pair(self) -> DominatingPair:
        """Privacy loss of one user's reports."""
        return self.schedule.pair(self.noise.effective_mu(self.dimension)).with_variation(self._variation)

    def mean(self, reports: Any) -> Any:
        """Return the mean of reports (k, dimension), as the server makes it; an adversarial one moves it little.

        Each counts only up to the clip norm and what its noise explains.
        """
        blocks, back = _blocks(reports, self.dimension)
        rows = np.concatenate([np.zeros((0, self.dimension)), *blocks])
        longest = self.clip_norm + self.noise.scale * (math.sqrt(self.dimension) + math.sqrt(2 * math.log(1e9)))
        return back(local.mean_of_reports(rows, np.ones(len(rows), np.bool_), np.zeros(self.dimension), longest))

    def _summed(self, blocks: Iterator[Matrix]) -> Matrix:
        return np.concatenate([np.zeros((0, self.dimension)), *blocks])

    def _release(self, made: Matrix, state: State, noise: NoiseSource) -> tuple[Matrix, None]:
        return self.noise.release(clip_rows(made, self.clip_norm), noise.stream("report", state.round)), None


class Ledger:
    """What several mechanisms may cost the same users together: a limit that none of them passes.

        >>> ledger = Ledger(epsilon=2.0, delta=1e-5)
        >>> pilot = ClippedMean.calibrate(1.0, 1e-6, users=10_000, dimension=3, clip_norm=1.0)
        >>> ledger.charge(pilot).words(), ledger.charge(pilot).epsilon < 2.0
        ('ε = 1, δ = 1e-06', True)

    Charge a mechanism before its first release. Guarantees may be chosen by what was released before (lifetime#lt2). It
    is kept in memory; `quoron ledger charge` writes the same charges to a file for a lifetime.
    """

    def __init__(self, epsilon: float, delta: float, *, gaussian_share: float = 0.5) -> None:
        """A share `gaussian_share` of both is for mechanisms that are μ-GDP, which add up to less."""
        self.limit = Limit("users", epsilon, delta, gaussian_share)
        self.charges: list[Charge] = []
        self._last: Mechanism | None = None

    def charge(self, mechanism: Mechanism, run: str = "") -> Spent:
        """Add what a mechanism costs and return what all of them do; BudgetExceeded, with nothing added, beyond."""
        wanted = mechanism.charge(run or f"{type(mechanism).__name__}-{len(self.charges) + 1}")
        if not self.limit.has_room(self.charges, wanted):
            raise BudgetExceeded(
                f"Expected room for {wanted.words()}, got a limit of {self.limit.words()} with "
                f"{len(self.charges)} mechanisms charged. Calibrate for a smaller epsilon."
            )
        self.charges.append(wanted)
        self._last = mechanism
        return compose(self.charges)

    def give_back(self, mechanism: Mechanism, state: State) -> Spent:
        """End a mechanism, take back what rounds after `state` would have cost, and return the total of the charges.

        When to stop may depend on what was released: rounds are runs of their own in the Gaussian account, whose order
        the history decides (lifetime#lt2). So it takes a mechanism with fresh Gaussian noise on cohorts that are not
        secret, charged last and to that account. ConfigError for any other; RunError for a state that was used.
        """
        if self._last is not mechanism:
            raise ConfigError("Expected the mechanism that was charged last, got another. Give back before you charge.")
        counted = self.limit.account(self.charges[:-1])
        entered = counted.after(self.charges[-1]).square > counted.square
        if mechanism.schedule.secret or not (mechanism.separate and entered):
            raise ConfigError(
                "Expected fresh Gaussian noise on cohorts that are not secret, charged to the Gaussian share, got "
                f"{type(mechanism).__name__} with sampling={mechanism.schedule.sampling!r} and {self.limit.words()}: "
                "its rounds are proved as one."
            )
        spent = []
        if state.round:
            made = replace(mechanism, schedule=replace(mechanism.schedule, rounds=state.round))
            epsilon = min(max(made.pair.epsilon(made.delta), _LEAST_EPSILON), mechanism.epsilon)
            spent = [replace(made, epsilon=epsilon).charge(self.charges[-1].run)]
        state.use()
        self.charges[-1:], self._last = spent, None
        return compose(self.charges)


def _left(epsilon: float, delta: float, rounds: int, dimension: int) -> float:
    """Return δ less what the samplers of all rounds add; Infeasible where that is all of it."""
    if not _LEAST_EPSILON <= epsilon < math.inf:
        raise ConfigError(f"Expected a finite epsilon >= {_LEAST_EPSILON:g}, got epsilon={epsilon}.")
    probability(delta=delta)
    count(dimension=dimension)
    return math.nextafter(gdp.left(epsilon, delta, gaussians=2 * rounds * dimension), 0.0)


def _tested(epsilon: float, delta: float, schedule: Schedule, outliers: float) -> Tested:
    """The test and aggregate of every round; Infeasible with the users that do, where cohorts are the same share."""
    with suppress(Infeasible):
        return _account(epsilon, delta, schedule, outliers)
    share = schedule.users / schedule.cohort

    def fits(size: int) -> bool:
        with suppress(Infeasible):
            larger = replace(schedule, users=math.ceil(share * size), cohort=size)
            return size <= LARGEST_COHORT and bool(_account(epsilon, delta, larger, outliers))
        return False

    least = least_number(fits, 2 * schedule.cohort, low=schedule.cohort, most=LARGEST_COHORT)
    if least is None:
        raise Infeasible("outlier mean", f"no cohort makes up for outliers={outliers:g}", "fewer outliers")
    condition = f"a cohort of {schedule.cohort:,} is too small to find out privately whether its rows agree"
    also = f" with cohort >= {least:,}" if share > 1 else f" (better {3 * least:,})"
    raise Infeasible.too_few("outlier mean", condition, math.ceil(share * least), also=also)


def _account(epsilon: float, delta: float, schedule: Schedule, outliers: float) -> Tested:
    size, forgiven = schedule.cohort, _forgiven(outliers, schedule)
    if schedule.participations == 1 and not schedule.secret:
        if size * (size - forgiven) < 4:
            raise Infeasible("outlier mean", "fewer than four users agree", "more users")
        return smooth_test.release(epsilon, delta, size, forgiven=forgiven)
    return subsampled_test.calibrate(
        epsilon,
        delta,
        users=schedule.users if schedule.secret else size,
        cohort_size=size,
        releases=schedule.participations,
        forgiven=forgiven,
    )


def _forgiven(outliers: float, schedule: Schedule) -> int:
    """By how much the average count of a cohort may miss its size: pairs with an outlier, of whom a deviation more."""
    size, far = schedule.cohort, Fraction(repr(float(outliers))) * schedule.cohort
    if schedule.sampling != "everybody":
        far += Fraction(4 * math.sqrt(far))
    near = max(0, size - math.ceil(far))
    return -(-(size**2 - near**2) // size)


def _drawn_once(noise: NoiseSource) -> NoiseSource:
    """Streams that no other call has; of a seed those that the seed and the round say."""
    try:
        noise.require_deployable()
    except RunError:
        return StartedNoise.simulated(noise)
    return StartedNoise.fresh(noise)


def _blocks(rows: Any, dimension: int) -> tuple[Iterator[Matrix], Callable[[NDArray[Any]], Any]]:
    """Return rows in float64, some at a time, and what makes a value of their kind."""
    if hasattr(rows, "shape"):
        return _parts(rows, dimension), _like(rows)
    if isinstance(rows, list | tuple):
        given = np.array(rows, np.float64)
        return _parts(given, dimension), _like(given)
    parts = iter(rows)
    first = next(parts, np.zeros((0, dimension)))

    def every() -> Iterator[Matrix]:
        yield from _parts(first, dimension)
        for part in parts:
            yield from _parts(part, dimension)

    return every(), _like(first)


def _parts(rows: Any, dimension: int) -> Iterator[Matrix]:
    shape = tuple(rows.shape)
    if len(shape) != 2 or shape[1] != dimension:
        raise ConfigError(f"Expected rows of shape (users, {dimension:,}), got shape {shape}.")
    step = max(1, _BLOCK // dimension)
    for first in range(0, shape[0], step):
        part = rows[first : first + step]
        if hasattr(part, "detach"):  # torch, on any device and of any precision
            part = part.detach().cpu().double().numpy()
        yield np.asarray(part, np.float64)


def _like(rows: Any) -> Callable[[NDArray[Any]], Any]:
    """Return what makes an array of the library, dtype and device of `rows`."""
    library = type(rows).__module__.partition(".")[0]
    if library == "torch":
        torch = sys.modules["torch"]
        return lambda value: torch.as_tensor(value, dtype=rows.dtype, device=rows.device)
    if library in ("jax", "jaxlib"):
        return lambda value: sys.modules["jax"].numpy.asarray(value, rows.dtype)
    dtype = rows.dtype if np.issubdtype(getattr(rows, "dtype", np.float64), np.floating) else np.float64
    return lambda value: value.astype(dtype)
