"""Audits of mechanisms for a loop of one's own: whole transcripts of all rounds, of one user against its opposite."""

from typing import Any

import numpy as np

from audits.harness import Audit, Labelled, Still, case, events, gaussian_ratio, ratios
from quoron_privacy import (
    ClippedMean,
    Ledger,
    LocalReport,
    OutlierMean,
    PrefixNoise,
    SeededNoise,
    TruncatedMean,
    mechanisms,
)
from quoron_privacy.errors import RunError
from quoron_privacy.mechanisms import Schedule, State

EPSILON, DELTA, USERS = 1.0, 0.01, 6


class Quiet(Still):
    """A source without noise that protects nobody."""

    def require_deployable(self) -> None:
        """Refuses."""
        raise RunError("No noise.")


class OneRun(Labelled):
    """Of one run, from a seed."""

    def require_deployable(self) -> None:
        """Refuses."""
        self.source.require_deployable()


def transcript(mechanism: Any, own: float, noise: Any, *, sums: bool = False) -> np.ndarray:
    """All values of a run in which one user sends `own` and everybody else zero, in units of its noise; (numbers,)."""
    state, values = mechanism.init(), []
    for _ in range(mechanism.rounds):
        rows = np.zeros((USERS, 1))
        rows[mechanism.cohort(state, noise)[0] if mechanism.schedule.users == 1 else 1] = own
        value, state = mechanism(rows[mechanism.cohort(state, noise)], state, noise)
        values.append(value / mechanism.noise.scale)
    found = np.concatenate([np.ravel(value) for value in values])
    return np.linalg.solve(noise_matrix(mechanism), found) if sums else found


def noise_matrix(mechanism: PrefixNoise) -> np.ndarray:
    """What makes the noise of the values of independent noise, by playing the sampler: N = C⁻¹ Z, (rounds, rounds)."""
    factors, rounds = mechanism.noise.factors, mechanism.rounds
    columns = []
    for at in range(rounds):
        memory, column = np.zeros((factors.slots, 1)), np.zeros(rounds)
        for t in range(rounds):
            own = np.array([float(t == at)]) - factors.predict(t, memory)
            memory, column[t] = factors.remember(t, memory, own), own[0]
        columns.append(column)
    return np.array(columns).T


def measured(make: Any, *, ends: tuple[float, float], draws: int = 2_000, sums: bool = False) -> np.ndarray:
    """Log-likelihood ratios of the transcript."""
    made, source = make(), SeededNoise(11)
    drawn = np.array([transcript(made, ends[0], OneRun(source, run), sums=sums) for run in range(draws)])
    near, far = (transcript(made, own, OneRun(Quiet(), 0), sums=sums) for own in ends)
    return gaussian_ratio(drawn, near, far, 1.0)


def clipped() -> ClippedMean:
    """Two rounds of everybody."""
    return ClippedMean.calibrate(EPSILON, DELTA, users=USERS, dimension=1, rounds=2, clip_norm=1.0)


def correlated() -> PrefixNoise:
    """Two passes over three batches."""
    return PrefixNoise.calibrate(EPSILON, DELTA, users=USERS, cohort=2, rounds=6, dimension=1, clip_norm=1.0)


def local() -> LocalReport:
    """Two reports of every user."""
    return LocalReport.calibrate(EPSILON, DELTA, dimension=1, rounds=2, clip_norm=1.0)


def sampled(*, sampling: str, adjacency: str, ends: tuple[float, float], draws: int = 2_000) -> np.ndarray:
    """Log-likelihood ratios of two rounds on half of the users in secret: the own user is in a cohort, or is not."""
    made = ClippedMean.calibrate(
        EPSILON,
        DELTA,
        users=USERS,
        cohort=3,
        rounds=2,
        dimension=1,
        clip_norm=1.0,
        sampling=sampling,
        adjacency=adjacency,
    )
    source, scale = SeededNoise(17), made.noise.scale
    drawn = np.array([transcript(made, ends[0], OneRun(source, run)) for run in range(draws)])

    def density(own: float) -> np.ndarray:
        there = np.exp(-0.5 * (drawn - own / 3 / scale) ** 2)
        return 0.5 * np.exp(-0.5 * drawn**2) + 0.5 * there

    return np.asarray(np.log(density(ends[0]) / density(ends[1])).sum(axis=1))


def outlier() -> OutlierMean:
    """One round of sixty users within one half of each other, or not."""
    return OutlierMean.calibrate(EPSILON, DELTA, users=60, dimension=1, spread=0.5)


def with_outliers(*, ends: tuple[float, float], others: float, draws: int = 1_500) -> np.ndarray:
    """Log-likelihood ratios of a test and what it releases: half of the others at zero, half at `others`."""
    made, source, found = outlier(), SeededNoise(19), np.zeros(draws)
    rows, worlds = np.zeros((60, 1)), []
    rows[30:] = others
    for own in ends:
        rows[0] = own
        at = {"radius": made.radius, "reference": np.zeros(1)}
        seen = made.account.mean.observe(rows, np.ones(60, np.bool_), **at)
        worlds.append((made.account.test.chance(seen.score), made.account.mean.aggregate(rows, seen.weights, **at)))
    (chance, near), (other, far) = worlds
    rows[0] = ends[0]
    for run in range(draws):
        value, _ = made(rows, made.init(), OneRun(source, run))
        if value is None:
            found[run] = np.log((1 - chance) / max(1 - other, 1e-300))
        else:
            found[run] = (
                np.log(chance / max(other, 1e-300)) + gaussian_ratio(value[None], near, far, made.noise.scale)[0]
            )
    return found


def truncated(own: float, number: int) -> Any:
    """Means of six users, of whom one is as far as the bound."""
    made = TruncatedMean.calibrate(EPSILON, DELTA, users=USERS, dimension=1, bound=4.0, spread=1.0)
    rows, source = np.zeros((USERS, 1)), SeededNoise(23 + number)
    rows[1] = own
    return lambda draws: np.array([made(rows, made.init(), OneRun(source, run))[0][0] for run in range(draws)])


def everyone(self: Any, points: Any, weights: np.ndarray, *, radius: float, reference: Any) -> np.ndarray:
    """The mean of all answers, outliers too."""
    return np.asarray(points).mean(axis=0)


def tenth(plan: Any, radius: float, dimension: int) -> float:
    """The noise of a radius a tenth of what neighbours may be apart."""
    return _release_scale(plan, radius / 10, dimension)


_release_scale = mechanisms.smooth_test.release_scale


def left_after(made: int) -> float:
    """μ that a limit leaves after so many rounds of four that were charged."""
    ledger, mean = Ledger(EPSILON, DELTA, gaussian_share=1.0), stopped()
    ledger.charge(mean)
    ledger.give_back(mean, State(made))
    return ledger.limit.account(ledger.charges).largest_mu(0.0)


def stopped() -> ClippedMean:
    """Four rounds of everybody, for most of the limit."""
    return ClippedMean.calibrate(0.9 * EPSILON, 0.9 * DELTA, users=USERS, dimension=1, rounds=4, clip_norm=1.0)


def early(*, ends: tuple[float, float], draws: int = 4_000) -> np.ndarray:
    """Stop at the first value that is high, and spend on one more release whatever the limit has left then."""
    mean, random, found = stopped(), np.random.default_rng(5), np.zeros(draws)
    means = [own / USERS / mean.noise.scale for own in ends]
    left = {made: left_after(made) for made in range(1, 5)}
    for run in range(draws):
        noise, state = OneRun(SeededNoise(13), run), mean.init()
        while state.round < 4:
            rows = np.zeros((USERS, 1))
            rows[1] = ends[0]
            value, state = mean(rows, state, noise)
            found[run] += gaussian_ratio(value[None, :] / mean.noise.scale, *means, 1.0)[0]
            if value[0] > 1.5 * mean.noise.scale:
                break
        last = random.normal(left[state.round], 1.0)
        found[run] += left[state.round] * last - left[state.round] ** 2 / 2
    return found


def all_of_it(self: Ledger, mechanism: Any, state: State) -> None:
    """A ledger that gives back rounds that were run."""
    self.charges.pop()


def thrice(self: Schedule, epsilon: float, delta: float) -> float:
    """A round's μ three times too large."""
    return 3 * _round_mu(self, epsilon, delta)


_round_mu = Schedule.round_mu
OPPOSITE = (1.0, -1.0)
FREE = (mechanisms.Mechanism, "verify", lambda self: None)  # or the second account would refuse a twin
ONCE = (Schedule, "participations", property(lambda self: 1))
HALF = (mechanisms, "mean_sensitivity", lambda norm, size, *_: norm / size)
_for_mu = mechanisms.GaussianNoise.for_mu


class Careless(mechanisms.GaussianNoise):
    """Noise for a report that moves by its norm alone."""

    @classmethod
    def for_mu(cls, *, sensitivity: float, mu: float, dimension: int) -> Any:
        """Half the noise."""
        return _for_mu(sensitivity=sensitivity / 2, mu=mu, dimension=dimension)


def report(own: tuple[float, float], **given: Any) -> np.ndarray:
    """Of a user alone."""
    return measured(local, ends=own, **given)


AUDITS = [
    Audit(
        "a clipped mean in a loop",
        DELTA,
        ratios(lambda **given: measured(clipped, **given), epsilon=EPSILON),
        {
            "opposite, beyond the clip norm": case(ends=(5.0, -5.0), uses=0.98),
            "opposite": case(ends=OPPOSITE, uses=0.98),
        },
        {
            "the sensitivity of a user who is left out": case(FREE, HALF, ends=OPPOSITE),
            "the noise of one round": case(FREE, ONCE, ends=OPPOSITE),
        },
    ),
    Audit(
        "correlated noise in a loop",
        DELTA,
        ratios(lambda **given: measured(correlated, sums=True, **given), epsilon=EPSILON),
        {"opposite in both passes": case(ends=OPPOSITE, uses=0.98)},
        {
            "the sensitivity of a user who is left out": case(FREE, HALF, ends=OPPOSITE),
            "the noise of one pass": case(FREE, ONCE, ends=OPPOSITE),
        },
    ),
    Audit(
        "a clipped mean of secret cohorts in a loop",
        DELTA,
        ratios(sampled, epsilon=EPSILON),
        {
            "a subset, replaced": case(sampling="without-replacement", adjacency="replace-one", ends=OPPOSITE),
            "coins, replaced": case(sampling="poisson", adjacency="replace-one", ends=OPPOSITE, uses=0.95),
            "coins, left out": case(sampling="poisson", adjacency="zero-out", ends=(1.0, 0.0), uses=0.95),
        },
        {
            "a fifth of the chance": case(
                FREE,
                (Schedule, "rate", property(lambda self: 0.1)),
                sampling="without-replacement",
                adjacency="replace-one",
                ends=OPPOSITE,
            ),
        },
    ),
    Audit(
        "an outlier mean in a loop",
        DELTA,
        ratios(with_outliers, epsilon=EPSILON),
        {
            "all agree": case(ends=(1.0, -1.0), others=0.0),
            "an outlier": case(ends=(0.0, 1e6), others=0.0),
            "two camps": case(ends=(0.0, 2.5), others=1.5),
        },
        {
            "the mean of all": case(
                (type(outlier().account.mean), "aggregate", everyone), ends=(0.0, 50.0), others=0.0
            ),
            "the noise of a tenth of the radius": case(
                FREE, (mechanisms.smooth_test, "release_scale", tenth), ends=(1.0, -1.0), others=0.0, draws=8_000
            ),
        },
    ),
    Audit(
        "a truncated mean in a loop",
        EPSILON,
        events(truncated, ends=(4.0, -4.0), delta=DELTA, draws=4_000),
        {"opposite, at the bound": case()},
        {"a third of the noise": case(FREE, (Schedule, "round_mu", thrice), draws=2_000)},
    ),
    Audit(
        "a run that stops by what it released",
        DELTA,
        ratios(early, epsilon=EPSILON),
        {"opposite": case(ends=OPPOSITE, uses=0.9, draws=3_000)},
        {"rounds that were run are given back": case((Ledger, "give_back", all_of_it), ends=OPPOSITE)},
    ),
    Audit(
        "local reports in a loop",
        DELTA,
        ratios(report, epsilon=EPSILON),
        {"opposite": case(own=OPPOSITE, uses=0.98)},
        {"a report that moves by its norm alone": case(FREE, (mechanisms, "GaussianNoise", Careless), own=OPPOSITE)},
    ),
]
