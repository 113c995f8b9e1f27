"""What T Gaussian rounds are worth whose cohorts are everybody, or drawn in secret: for parameters of such runs."""

from quoron_privacy.accounts.pair import Pair
from quoron_privacy.noise.streams import total_variation
from quoron_server.parameters import Assumption, Kind

SECRET = (Assumption(Kind.SECRET_COHORTS),)  # of users asked by coins of their own
SECRET_AND_FORGOTTEN = (*SECRET, Assumption(Kind.FORGETFUL_CLIENTS))  # of uniform cohorts of a fixed size


def fixed_size(users: int, cohort: int, rounds: int, mu: float, drawn: int) -> tuple[Pair]:
    """T rounds of secret uniform cohorts, each μ-GDP given its cohort and drawing so many samples; replace-one.

    Given that a curious client is not in a cohort, another user is with chance B/(n - 1).
    """
    rate = cohort / (users - 1) if cohort < users else 1.0
    return (Pair.sampled(min(1.0, rate), mu, rounds, "replace-one").lacking(total_variation(gaussians=rounds * drawn)),)
