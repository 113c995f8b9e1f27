"""Noisy SGD whose gradient estimate is a private mean, clipped around a centre: one loop for two algorithms.

    c_t       mean-sgd: a private range of this round's rotated gradients
              recentred-sgd: the last release g_{t-1}
    g_t       c_t + (1/B) Σ_{u in cohort t} clip_{C_t}(∇F_u(x_t) - c_t) + N(0, (C_t σ)² I)
    x_{t+1}   Proj(x_t - η g_t);                         model: mean of the last `suffix` iterates

Cohorts are drawn by the secret noise, afresh in every round: B users without replacement, or each user by a coin. Every
round, given its cohort and all earlier releases, is μ-GDP: the range by its choices, the rest by its Gaussian. Losses
whose slope jumps are replaced by their Moreau envelope on request, or where centres need a smooth loss.

Source: `mean-sgd` is Bassily & Sun (2023), Algorithm 4 with the mean of Algorithm 1, noise once around the centre that
was released; the centre of `recentred-sgd` is ours. As printed: `printed.bassily_sun`. Statement and proof:
docs/privacy/mean-sgd.md.
"""

from dataclasses import dataclass, replace

import numpy as np

from quoron_client.protocol.questions import Answers, AverageGradient, Question, summed
from quoron_client.protocol.smoothing import moreau
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.means.private_range import PrivateRange
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Adjacency, NoisySums, Release, Sums
from quoron_server.algorithm import OfPlan, Update, Vector
from quoron_server.algorithms.centring import margin, next_radius, public_signs
from quoron_server.algorithms.noisy.method import DrawnCohorts, Sampling, drawn_cohort
from quoron_server.problem import Problem
from quoron_server.schedule import MaskedRows, RoundRelease, Rounds, clipped_row, count_beside, gradients


@dataclass(frozen=True, slots=True)
class MeanSGDParameters(DrawnCohorts):
    """Public numbers of one run."""

    sampling: Sampling  # how cohorts are drawn
    cohort_size: int  # B
    rounds: int  # T
    step_size: float  # η
    suffix: int  # iterates averaged
    first_radius: float  # C_0, and with ranges C_t of all rounds
    noise_scale: float  # σ: noise per coordinate of g_t for a radius of 1
    spread: float  # s, of users' averages around their mean
    sampling_variance: float  # of a cohort's mean
    smoothness: float  # M: how fast gradients are taken to change
    smoothing: float  # λ; 0 without
    crude: PrivateRange | None  # of a round; None without ranges
    # Each round, given its cohort and the past, is this GDP, one user replaced, or there against absent with coins.
    round_mu: float

    @property
    def noise(self) -> GaussianNoise:
        """For means of unit rows."""
        moved: Adjacency = "zero-out" if self.poisson_sampling else "replace-one"
        return GaussianNoise(mean_sensitivity(1.0, self.cohort_size, moved), self.noise_scale)

    def stretches(self, problem: Problem) -> tuple[Rounds, ...]:
        """Return a mean in every round, in proportion to the round's radius, behind a range where there is one.

        A range chooses by whole histograms.
        """
        noise, crude, d = self.noise, self.crude, problem.dimension
        mean = RoundRelease(noise, noise.entry(), self.answer_mu, scaled=True)
        blocks = clipped_row(d, 1 / self.cohort_size / self.noise_scale)
        return (
            Rounds(
                self.rounds,
                self.cohort_size,
                gradients(problem, smoothing=moreau(self.smoothing)),
                (mean,) if crude is None else (RoundRelease(crude, crude.entry(d), self.round_mu), mean),
                often=self.rounds,
                leaks=count_beside(None if self.poisson_sampling else noise),
                summed=crude is None,
                rows=MaskedRows(self.adjacency, blocks) if crude is None else None,
            ),
        )


@dataclass(frozen=True, slots=True, eq=False)
class MeanSGDState:
    """Everything between two rounds; all of it is released."""

    round: int
    iterate: Vector  # x_t
    centre: Vector  # c_t, unless a range finds it in the round
    radius: float  # C_t
    running: Vector  # sum of the averaged iterates, divided by their planned number


class MeanSGD(OfPlan[MeanSGDParameters]):
    """Algorithm object for a plan with MeanSGDParameters, of `mean-sgd` or `recentred-sgd`."""

    kind = MeanSGDParameters

    def init(self) -> MeanSGDState:
        """Start at zero, and expect gradients around zero."""
        zero = np.zeros(self.plan.problem.dimension)
        return MeanSGDState(0, zero, zero, self.parameters.first_radius, zero)

    def request(self, state: MeanSGDState, noise: NoiseSource) -> Question | None:
        """Average gradients of this round's cohort at the current iterate."""
        p = self.parameters
        if state.round == p.rounds:
            return None
        task = AverageGradient(
            state.iterate[None, :], (1.0,), self.plan.problem.user_smoothness, smoothing=moreau(p.smoothing)
        )
        drawn = p.cohort_size < self.plan.problem.users
        # All that a round reads of its answers; a crude mean reads every row.
        reduction = ClippedSum(state.radius, p.cohort_size, state.centre) if p.crude is None else None
        cohort = drawn_cohort(p, self.plan.problem.users, state.round, noise)
        return Question(state.round, cohort, task, p.cohort_size, reduction, drawn)

    def update(self, state: MeanSGDState, answers: Answers | Sums, noise: NoiseSource) -> Update[MeanSGDState]:
        """Release the mean around its centre, and step."""
        p, project, t = self.parameters, self.plan.problem.domain.project, state.round
        centre, radius, gaussian = state.centre, state.radius, p.noise
        entries: tuple[Release, ...] = ()
        if (crude := p.crude) is not None:
            assert isinstance(answers, Answers)
            signs = public_signs(self.plan.seed, t, len(centre))
            centre = crude.release(answers.values, answers.answered, signs, noise.stream("range", t))
            entries = (crude.entry(len(centre)),)
        reduction = ClippedSum(radius, p.cohort_size, centre)
        sums = summed(answers, reduction)
        mean = sums if isinstance(sums, NoisySums) else reduction.unit_mean(sums)
        gradient = centre + radius * gaussian.release(mean, noise.stream("release", t))
        entries += (gaussian.entry().scaled(radius),)
        iterate = project(state.iterate - p.step_size * gradient)
        running = state.running + iterate / p.suffix if p.rounds - t <= p.suffix else state.running
        after = MeanSGDState(t + 1, iterate, state.centre, radius, running)
        if crude is None:
            after = replace(after, centre=gradient, radius=self._recentred(state, iterate))
        diagnostics = {"answered": sums.answered, "clipped_fraction": sums.clipped / max(1, sums.answered)}
        return Update(after, entries, {"radius": radius}, diagnostics)

    def _recentred(self, state: MeanSGDState, iterate: Vector) -> float:
        """Return the radius around this round's release within which the next gradients are expected."""
        p, d = self.parameters, len(iterate)
        variance = p.sampling_variance + d * (state.radius * p.noise_scale) ** 2
        drift = p.smoothness * float(np.linalg.norm(iterate - state.iterate))
        return next_radius(p.spread, variance, drift, margin(d), p.first_radius)
