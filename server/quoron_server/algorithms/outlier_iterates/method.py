"""Phased local SGD with outlier-iterate removal: Lowy, Liu & Asi (2024), Algorithm 1, with a test and noise of our own.

    x_0 = 0
    for phase i:   C chains side by side, each of N_i users one after another, all on fresh users
        a user takes one local pass of SGD from the iterate that it gets, and hands its last one on
        y_j = mean of the iterates along chain j
        S = #{(j, j') : ‖y_j - y_j'‖ <= τ_i}
        x_i = Proj(weighted mean of the y_j that lie close to most + N(0, σ_i² I))   if the test of S releases
        x_i = x_{i-1}                                                                otherwise

Privacy asks nothing of the losses: it holds for arbitrary vectors y_j, so clients may clip, and losses may be rough or
not convex. A chain in which anybody is silent, late or sends nonsense is an isolated point for the phase. Clients see
iterates without noise (trust model `central-release`), unless every chain is one user long (`central-broadcast`).

Changed from print, with proofs in docs/privacy/outlier-iterates.md: lottery and weighted mean in place of Laplace test
and random inclusion, our ramp, exact calibration, projected releases, free sizes.
"""

from dataclasses import dataclass

import numpy as np

from quoron_privacy.noise.streams import NoiseSource
from quoron_server.algorithm import Vector
from quoron_server.algorithms.chains import ChainPhase, ChainRounds, ChainSGD, ChainState


@dataclass(frozen=True, slots=True)
class OutlierIterateParameters(ChainRounds):
    """Public numbers of one run."""

    cohort_size: int  # C: chains side by side, so users asked in a round
    phases: tuple[ChainPhase, ...]


class OutlierIterates(ChainSGD[OutlierIterateParameters]):
    """Algorithm object for a plan with OutlierIterateParameters."""

    kind = OutlierIterateParameters

    def released(
        self, state: ChainState, phase: ChainPhase, noise: NoiseSource, index: int
    ) -> tuple[bool, Vector, dict[str, float]]:
        """Return the projected noisy mean of chains that lie close to most; x_{i-1} where the test says no."""
        mean = phase.release.mean
        seen = mean.observe(state.averages, state.whole, radius=phase.radius, reference=state.released)
        passed, x = phase.release.test.decide(seen.score, noise.stream("test", index)), state.released
        if passed:
            shift = mean.aggregate(state.averages, seen.weights, radius=phase.radius, reference=state.released)
            noisy = phase.noise.release(shift, noise.stream("release", index))
            x = self.plan.problem.domain.project(state.released + noisy)
        private = {
            "removed_chains": int(np.sum(seen.weights == 0)),
            "weight": float(seen.weights.mean()) / (mean.ramp_high - mean.ramp_low),
            "score": seen.score / mean.cohort_size**2,
        }
        return passed, x, private
