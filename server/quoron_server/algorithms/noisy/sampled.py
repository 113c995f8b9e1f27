"""What T Gaussian rounds are worth whose cohorts are everybody, or drawn in secret: for parameters of such runs."""

import math
from typing import TYPE_CHECKING

from quoron_privacy.noise.streams import total_variation
from quoron_server.parameters import Assumption, GaussianPromise, Kind, SecretSamples

if TYPE_CHECKING:
    from dp_accounting import DpEvent

SECRET = (Assumption(Kind.SECRET_COHORTS),)  # of users asked by coins of their own
SECRET_AND_FORGOTTEN = (*SECRET, Assumption(Kind.FORGETFUL_CLIENTS))  # of uniform cohorts of a fixed size


def everybody_every_round(rounds: int, mu: float, drawn: int) -> GaussianPromise:
    """√T μ of a run that asks all users in each of its T rounds, each drawing so many samples of noise.

    A sampled run is √T μ-GDP too, but that forgets the sampling: it is worth far less than the run's (ε, δ).
    """
    return GaussianPromise(math.sqrt(rounds) * mu * (1 + 2.0**-50), total_variation(gaussians=rounds * drawn))


def fixed_size(users: int, cohort: int, rounds: int, mu: float, drawn: int) -> tuple[SecretSamples]:
    """T rounds, each μ-GDP given a uniform cohort, and each drawing so many samples of noise.

    Given that a curious client is not in a cohort, another is with chance B/(n - 1).
    """
    return (SecretSamples(cohort / (users - 1), rounds, mu, total_variation(gaussians=rounds * drawn)),)


def fixed_size_event(users: int, cohort: int, rounds: int, mu: float) -> "DpEvent":
    """T rounds, each μ-GDP given a uniform cohort of B of the n - 1 users that a curious client knows less of."""
    from dp_accounting import dp_event  # heavy

    once = dp_event.SampledWithoutReplacementDpEvent(max(cohort, users - 1), cohort, dp_event.GaussianDpEvent(1 / mu))
    return dp_event.SelfComposedDpEvent(once, rounds)


def poisson_event(users: int, cohort: int, rounds: int, mu: float) -> "DpEvent":
    """T rounds, each μ-GDP when a user that joins with chance B/n is there against when it is not."""
    from dp_accounting import dp_event  # heavy

    once = dp_event.PoissonSampledDpEvent(cohort / users, dp_event.GaussianDpEvent(1 / mu))
    return dp_event.SelfComposedDpEvent(once, rounds)
