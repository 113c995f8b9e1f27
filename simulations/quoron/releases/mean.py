"""The mean over users, private for every user as a whole, in one call.

    >>> rng = np.random.default_rng(0)
    >>> visits = rng.normal(5.0, 1.0, size=(10_000, 3))
    >>> found = mean(visits, epsilon=1.0, bound=1000.0, seed=1)
    >>> found.method, bool(np.abs(found.value - visits.mean(axis=0)).max() < 0.02), bool(found.radius < 10.0)
    ('learnt', True, True)

| method      | what is released                                                               |
| ----------- | ------------------------------------------------------------------------------ |
| `learnt`    | where users are, how far apart and in what shape, then the mean clipped to it  |
| `clip`      | the mean clipped at `bound`, with noise                                        |
| `two-stage` | that with part of the budget, then the mean clipped around it                  |
| `range`     | private ranges of rotated coordinates, then the mean clipped around them       |
| `robust`    | whether all but the declared `outliers` agree; if so, the mean of those who do |
| `auto`      | `robust` where outliers are declared, else `learnt` where users are enough to  |
|             | be found, else the least noisy of `clip`, `two-stage` and `range`              |

`learnt` needs no `spread`: from n μ = 15 (√d + 3.5) on it finds users in a `bound` a thousand times too large; in a
larger one its error grows. What it finds, `centre` and `radius`, is released with the value. The forecast of the error
is logged to "quoron" before the charge. A few users at a far corner move all but `robust`, which leaves them out:

    >>> visits[:100] = 11.0
    >>> found = mean(visits, epsilon=1.0, bound=20.0, spread=6.0, outliers=0.01, seed=1)
    >>> found.method, bool(np.abs(found.value - visits[100:].mean(axis=0)).max() < 0.1)
    ('robust', True)

Source: Bassily & Sun (2023), Algorithms 1, 2, 3 and 6; Lowy, Liu & Asi (2024) for the outliers; `learnt` is ours.
Proofs: docs/privacy/private-mean.md.
"""

import logging
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quoron.arguments import DELTA, ReleaseArguments, entry_point
from quoron.results import Release
from quoron_privacy.accounts import gdp
from quoron_privacy.accounts.roots import least_number
from quoron_privacy.errors import ConfigError, DataError, Infeasible, NothingReleased, non_negative
from quoron_privacy.gaussian import LARGEST
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.means import private_range
from quoron_privacy.means.adaptive_mean import TAIL, AdaptiveMean, enough_users, gaussians
from quoron_privacy.means.private_range import Crude, TruncatedMean
from quoron_privacy.noise.streams import NoiseSource, RandomStream, SeededNoise, total_variation
from quoron_server.plan import MAX_EPSILON, Privacy
from quoron_server.wording import ReleaseGuarantee

if TYPE_CHECKING:
    from quoron_privacy import mechanisms
else:
    mechanisms = OnFirstUse("quoron_privacy.mechanisms")  # where outliers are declared


Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
Method = Literal["auto", "learnt", "clip", "two-stage", "range", "robust"]

_log = logging.getLogger("quoron")
FAILURE = 1e-3  # chance that a user within `spread` is clipped
_CRUDE: dict[str, Crude] = {"clip": "none", "two-stage": "gaussian", "range": "range"}
_NUMBERS = "biuf"  # kinds of numpy types that are numbers


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """What the ℓ2 distance from the users' mean stays within in 95 % of runs, by public numbers (private-mean#m9)."""

    least: float  # for users who are all alike, or, where nothing is learnt, all who keep to the declared bounds
    times: float = 0.0  # more of it for the radius of a ball that holds all users
    where: str = ""  # for which data alone it is stated

    def within(self, radius: float) -> float:
        """Return the bound for users in a ball of that radius."""
        return self.least + self.times * radius

    def __str__(self) -> str:
        grows = f" + {self.times:.3g} times the radius of a ball that holds all users" if self.times else ""
        return f"at most {self.least:.3g}{grows}, in 95 % of runs{self.where}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PrivateMean(Release):
    """What was released, and what is promised about it."""

    value: Vector  # (d,)
    noise_scale: float  # standard deviation of `value`, per coordinate, from noise alone
    radius: float  # users farther than this from the centre were moved towards it, or, if robust, from most left out
    method: str
    error: ErrorBound  # as forecast before the charge
    epsilon: float
    delta: float
    statement: str  # the guarantee, in a sentence
    centre: Vector | None = None  # (d,) that was learnt, released as `value` is
    unseen: float | None = None  # share of users who may lie far beyond a radius that was learnt, unnoticed

    def rows(self) -> list[tuple[str, str]]:
        """Return the first coordinates, the method and its noise."""
        first = ", ".join(f"{number:.4g}" for number in self.value[:4]) + (", ..." if len(self.value) > 4 else "")
        noise = f"standard deviation {self.noise_scale:.3g} a coordinate"
        value, error = ("value", f"{first} ({len(self.value):,} numbers)"), ("error", str(self.error))
        return [value, ("method", self.method), ("noise", noise), error]

    def records(self) -> list[dict[str, float]]:
        """Return one mapping a coordinate."""
        return [{"value": float(value)} for value in self.value]


@entry_point
def mean(
    users: ArrayLike | Sequence[ArrayLike],
    *,
    epsilon: float,
    delta: float = DELTA,
    bound: float,
    spread: float | None = None,
    outliers: float | None = None,
    method: Method = "auto",
    **charged: Unpack[ReleaseArguments],
) -> PrivateMean:
    """Return the mean over users of each user's own mean, (ε, δ)-private when one user is replaced by any other.

    Args:
        users: (n, d) numbers, one row a user, also as a data frame; or for each user its own (items, d) array, which
            counts by its mean.
        epsilon, delta: the guarantee for one whole user, charged to the ledger before any value is read.
        bound: ℓ2 norm that a user's mean is clipped to; from public knowledge.
        spread: radius of a ball that holds all users' means, wherever it lies; from public knowledge. `two-stage`,
            `range` and `robust` need it. A wrong bound or spread costs accuracy and never privacy.
        outliers: share of users that may lie anywhere, outside `spread` too; for `robust`. A wrong one costs the value.
        method: see the table above.
        population, ledger: whose privacy budget is charged, in which file.
        seed: SIMULATED: noise and rotation come from it, come again, and protect nobody, as the guarantee
            then begins; charged to a given ledger only. None: from the system.

    Users with anything that is not finite count as absent: the divisor stays n, so they count as the centre that others
    are clipped around.

    Raises:
        DataError: no users, users of different dimensions.
        ConfigError: a parameter out of range.
        Infeasible: too few users for the method asked for, or for the outliers declared, or so few that the error may
            be as long as `bound`, or, where `auto` or `learnt` know it, as `spread`; names how many users, or which ε,
            would do. Public numbers decide, before anything is charged.
        BudgetExceeded: the population's limit leaves no room; nothing is released.
        NothingReleased: `robust` found privately that too few users agree. (ε, δ) is spent all the same.
    """
    values = _user_means(users)
    privacy = Privacy(epsilon, delta)
    for name, number in (("bound", bound), ("spread", 1.0 if spread is None else spread)):
        if not 1e-100 < number < 1e100:
            raise ConfigError(f"Expected {name} in (1e-100, 1e100), got {name}={number}.")
    if method not in ("auto", "learnt", "robust", *_CRUDE):
        raise ConfigError(f"Expected method in auto, learnt, clip, two-stage, range, robust, got method={method!r}.")
    if outliers is not None and method not in ("auto", "robust"):
        raise ConfigError(f"Expected no outliers with method={method!r}, which keeps them. Use method='robust'.")
    if outliers is not None:
        non_negative(outliers=outliers)
    robust = method == "robust" or outliers is not None
    if (robust or method in ("two-stage", "range")) and spread is None:
        asked = f"outliers={outliers:g}" if outliers is not None else f"method={method!r}"
        raise ConfigError(f"Expected spread with {asked}, got none. Use method='clip' where it is unknown.")
    plan: Callable[[int, Privacy], _Planned]
    radius = bound if spread is None or method not in ("auto", "learnt") or robust else min(bound, spread)
    if robust and spread is not None:
        plan = partial(_robust, dimension=values.shape[1], bound=bound, spread=spread, outliers=outliers or 0.0)
    else:
        plan = partial(_plan, dimension=values.shape[1], bound=bound, spread=spread, method=method)
    planned = _useful(plan, len(values), privacy, radius)
    _log.info("private mean by method %s: %s", planned.method, planned.error)
    from quoron.releases.once import release_once, verify_gaussian  # heavy

    mu, variation = planned.mu, total_variation(gaussians=planned.gaussians)
    theorem = f"docs/privacy/private-mean.md{planned.theorem}"
    promise = ReleaseGuarantee.central(epsilon, delta, "numbers", theorem)

    def verify() -> None:
        if mu is not None:  # a robust mean is verified where it is calibrated
            verify_gaussian("private mean", mu, variation, epsilon, delta)

    def draw(noise: NoiseSource) -> tuple[PrivateMean | None, dict[str, Any]]:
        released = planned.release(values, noise)
        if released is None:
            return None, {"mean": None, "method": planned.method}
        value, scale, radius, *learnt = released
        promised = epsilon, delta, promise.statement
        result = PrivateMean(value, scale, radius, planned.method, planned.error, *promised, *learnt)
        return result, {"mean": value.tolist(), "method": planned.method}

    result, statement = release_once("mean", promise, draw, verify, mu=mu, variation=variation, **charged)
    if result is None:
        raise NothingReleased(
            f"Nothing was released: by a private test, more than {100 * (outliers or 0.0):g} % of the users lie "
            f"farther than spread={spread:g} from one point. What it cost, (epsilon={epsilon:g}, delta={delta:g}), is "
            "spent; declare a larger spread or more outliers."
        )
    return replace(result, statement=statement)


@dataclass(frozen=True, slots=True)
class _Planned:
    """A method with its noise, by public numbers alone."""

    method: str
    theorem: str  # a place in docs/privacy/private-mean.md
    error: ErrorBound
    release: Callable[[Matrix, NoiseSource], tuple[Any, ...] | None]  # value, noise scale, radius, what was learnt
    mu: float | None = None  # what it releases is μ-GDP, but for so many Gaussian samples; None: nothing of the kind
    gaussians: int = 0


def _of_noise(scale: float, dimension: int) -> ErrorBound:
    return ErrorBound(scale * (math.sqrt(dimension) + TAIL))


def _user_means(users: Any) -> Matrix:
    """One row a user. A user's own overflow or NaN stays in that user's row."""
    if hasattr(users, "columns") and hasattr(users, "astype"):
        users = _table(users)
    if isinstance(users, np.ndarray) and users.ndim == 2:
        values = _numbers(users)
    elif isinstance(users, Mapping | str | bytes) or not np.iterable(users):
        raise DataError(f"Expected users as arrays of numbers, got a {type(users).__name__}. Pass its rows.")
    else:
        rows = [np.atleast_2d(_numbers(own)) for own in users]
        if len({row.shape[1:] for row in rows}) > 1 or any(row.ndim != 2 or not len(row) for row in rows):
            raise DataError("Expected each user to have at least one item and all the same dimension.")
        with np.errstate(all="ignore"):
            values = np.array([row.mean(axis=0) for row in rows])
    if values.ndim != 2 or not values.size:
        raise DataError(f"Expected users as an (n, d) array or as one (items, d) array each, got shape {values.shape}.")
    return values


def _table(table: Any) -> Matrix:
    """The (n, d) values of a data frame as of pandas, missing ones as NaN; DataError names columns of other things."""
    wrong = [str(name) for name, kind in zip(table.columns, table.dtypes, strict=True) if kind.kind not in _NUMBERS]
    if wrong:
        raise DataError(f"Expected a table of numbers, got others in columns {', '.join(wrong)}. Leave them out.")
    values: Matrix = table.astype("float64").to_numpy()
    return values


def _numbers(own: ArrayLike) -> Matrix:
    """Return an array of numbers as float64; words, dates and objects are refused, not read as numbers."""
    try:
        values = np.asarray(own)
    except (TypeError, ValueError) as error:
        raise DataError("Expected users as arrays of numbers, got something else.") from error
    if values.dtype.kind not in _NUMBERS:
        raise DataError(f"Expected users as arrays of numbers, got values of type {values.dtype}.")
    if isinstance(own, np.ma.MaskedArray):  # what is masked is not there, whatever lies under it
        return np.ma.filled(own.astype(np.float64), np.nan)
    return values.astype(np.float64, copy=False)


def _useful(plan: Callable[[int, Privacy], _Planned], users: int, privacy: Privacy, radius: float) -> _Planned:
    """Return the plan if its error is below `radius`; else Infeasible, with the users or the ε that would do."""

    def useful(number: int, epsilon: float) -> bool:
        try:
            return plan(number, Privacy(min(epsilon, MAX_EPSILON), privacy.delta)).error.within(radius) < radius
        except Infeasible:
            return False

    try:
        planned = plan(users, privacy)
        if planned.error.within(radius) < radius:
            return planned
        condition = f"the error is {planned.error}, which may be as long as what is declared, {radius:g}"
    except Infeasible as refused:
        if refused.users is None:
            raise
        condition = refused.condition
    needed = least_number(lambda number: useful(number, privacy.epsilon), users + 1, most=1 << 50)
    first, most = int(100 * privacy.epsilon), int(100 * MAX_EPSILON)
    hundredths = least_number(lambda number: useful(users, number / 100), first + 1, most=most)
    also = "" if hundredths is None else f", or epsilon >= {hundredths / 100:g}"
    asked = f"{users:,} users at epsilon={privacy.epsilon:g}, delta={privacy.delta:g} are too few: {condition}"
    raise Infeasible("private mean", asked, f"users >= {needed:,}{also}", users=needed)


def _plan(
    users: int, privacy: Privacy, *, dimension: int, bound: float, spread: float | None, method: Method
) -> _Planned:
    """Return the plan of any method but `robust`; `auto` learns wherever users are enough to find their place."""
    if method in ("auto", "learnt"):
        mu = _mu(privacy, gaussians(dimension))
        if method == "learnt" or users >= enough_users(dimension, mu):
            return _learnt(AdaptiveMean(users, dimension, bound, mu, spread))
    return _central(users, dimension, privacy, bound, spread, method)


def _robust(users: int, privacy: Privacy, *, dimension: int, bound: float, spread: float, outliers: float) -> _Planned:
    from quoron_privacy.robust.outlier_mean import REACH  # heavy

    calibrated = partial(
        mechanisms.OutlierMean.calibrate,
        privacy.epsilon,
        privacy.delta,
        users=users,
        dimension=dimension,
        outliers=outliers,
    )
    # Users beyond REACH · τ would count as outliers, and sums beyond LARGEST · σ would be cut.
    spread = max(spread, bound / REACH)
    planned = calibrated(spread=spread)
    if (cut := 2 * bound / (LARGEST * planned.noise.scale)) > 1:
        planned = calibrated(spread=spread * cut)

    def release(values: Matrix, noise: NoiseSource) -> tuple[Any, ...] | None:
        value, _ = planned(values, planned.init(), noise)
        return None if value is None else (value, planned.noise.scale, planned.radius)

    error = replace(_of_noise(planned.noise.scale, dimension), where=" without outliers")
    return _Planned("robust", "#m5", error, release)


def _learnt(planned: AdaptiveMean) -> _Planned:
    def release(values: Matrix, noise: NoiseSource) -> tuple[Any, ...]:
        found = planned.release(values, np.ones(len(values), np.bool_), noise.stream("mean"), _public(noise))
        return found.value, found.deviation, found.radius, found.centre, found.unseen

    return _Planned("learnt", "#m7", ErrorBound(*planned.error), release, planned.mu, gaussians(planned.dimension))


def _central(users: int, dimension: int, privacy: Privacy, bound: float, spread: float | None, method: str) -> _Planned:
    mu = _mu(privacy, 2 * dimension)  # two Gaussian samples a column at most
    chosen, planned = _choose(users, dimension, bound, spread, mu, method)

    def release(values: Matrix, noise: NoiseSource) -> tuple[Any, ...]:
        value = planned.release(values, np.ones(len(values), np.bool_), noise.stream("mean"), _public(noise))
        return value, planned.noise.scale, planned.radius

    return _Planned(chosen, "", _of_noise(planned.noise.scale, dimension), release, mu, 2 * dimension)


def _mu(privacy: Privacy, samples: int) -> float:
    """The largest μ for so many Gaussian samples, below which the second account finds no δ above the guarantee's."""
    return gdp.mu_for(privacy.epsilon, privacy.delta, gaussians=samples) * (1 - 1e-9)


def _choose(
    users: int, dimension: int, bound: float, spread: float | None, mu: float, method: str
) -> tuple[str, TruncatedMean]:
    """Return the method asked for, or of all feasible ones that with the least noise: a function of public numbers."""
    found: list[tuple[str, TruncatedMean]] = []
    for name, crude in _CRUDE.items():
        if method not in ("auto", name) or (name != "clip" and spread is None):
            continue
        try:
            mean = private_range.calibrate(
                crude, users=users, dimension=dimension, bound=bound, spread=spread, mu=mu, failure=FAILURE
            )
        except Infeasible:
            if method != "auto":
                raise
            continue
        found.append((name, mean))
    if not found:
        raise Infeasible("private mean", f"mu={mu:g} is below the resolution of the noise", "a larger epsilon")
    return min(found, key=lambda entry: entry[1].noise.scale)


def _public(noise: NoiseSource) -> RandomStream:
    """Public randomness is a stream of its own, never that of the noise."""
    seed = noise.seed if isinstance(noise, SeededNoise) else secrets.randbits(62)
    return SeededNoise(seed).stream("public")
