"""The rule of Ghazi et al., Algorithm 2, repaired: noisy thresholds on the score, mean of the kept, hidden cutoff."""

from dataclasses import dataclass

from quoron_client.protocol.questions import Answers
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.robust.filter import decisions
from quoron_privacy.robust.filter.cutoff import HiddenCutoff
from quoron_privacy.robust.filter.outlier_filter import FilterParameters
from quoron_privacy.robust.filter.thresholds import LaplaceThreshold
from quoron_server.algorithms.localised.filtering import FilteringParameters
from quoron_server.algorithms.localised.method import Aggregate, score_summary


@dataclass(frozen=True, slots=True)
class FilteredParameters(FilteringParameters):
    """Public numbers of one run."""

    filter: FilterParameters


class OutlierFilter:
    """The rule of Algorithm 2: noisy threshold on the concentration score, mean of the kept, hidden cutoff."""

    def __init__(self, parameters: FilteredParameters) -> None:
        self.parameters = parameters
        self.cutoff = HiddenCutoff(parameters.filter.cutoff_centre, parameters.filter.cutoff_decay)
        self.test = LaplaceThreshold(parameters.filter.laplace_scale, parameters.filter.threshold)

    def aggregate(self, answers: Answers, noise: NoiseSource, round_: int) -> Aggregate:
        """Mean of the kept users; whoever did not answer is isolated and counts as filtered."""
        limits = self.test.limits(len(answers.status), noise.stream("filter", round_))
        decided = decisions.decide(
            answers.values,
            answers.answered,
            self.parameters.temperature,
            limits,
            step=self.test.grid,
            norm=self.parameters.norm,
        )
        filtered = len(decided.kept) - int(decided.kept.sum())
        diagnostics = {"filtered": filtered, "undecided": decided.undecided, "threshold": self.test.threshold}
        diagnostics |= score_summary(decided.score_bounds)
        return Aggregate(decisions.filtered_mean(answers.values, decided.kept), float(filtered), diagnostics)

    def combine(self, tally: float, more: float) -> float:
        """Their sum."""
        return tally + more

    def passes(self, tally: float, noise: NoiseSource, phase: int) -> bool:
        """Whether fewer users were filtered than the phase's hidden cutoff."""
        return tally < self.cutoff.draw(noise.stream("cutoff", phase))
