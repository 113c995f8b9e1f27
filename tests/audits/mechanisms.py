"""Audits of mechanisms for a loop of one's own: whole transcripts of all rounds, of one user against its opposite."""

from typing import Any

import numpy as np

from audits.harness import Audit, Labelled, Still, case, gaussian_ratio, ratios
from quoron_privacy import ClippedMean, Ledger, LocalReport, PrefixNoise, SeededNoise, mechanisms
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


def measured(make: Any, *, ends: tuple[float, float], draws: int = 4_000, sums: bool = False) -> np.ndarray:
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


def unverified(mechanism: Any) -> Any:
    """As it is: a broken twin would be refused by the second account."""
    return mechanism


def left_after(made: int) -> float:
    """μ that a limit leaves after so many rounds of four that were charged."""
    ledger, mean = Ledger(EPSILON, DELTA, gaussian_share=1.0), stopped()
    ledger.charge(mean)
    ledger.give_back(mean, State(made))
    return ledger.limit.account(ledger.charges).largest_mu(0.0)


def stopped() -> ClippedMean:
    """Four rounds of everybody, for most of the limit."""
    return ClippedMean.calibrate(0.9 * EPSILON, 0.9 * DELTA, users=USERS, dimension=1, rounds=4, clip_norm=1.0)


def early(*, ends: tuple[float, float], draws: int = 6_000) -> np.ndarray:
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


OPPOSITE = (1.0, -1.0)
FREE = (mechanisms.Mechanism, "_verified", unverified)
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
        "a run that stops by what it released",
        DELTA,
        ratios(early, epsilon=EPSILON),
        {"opposite": case(ends=OPPOSITE, uses=0.9)},
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
