"""DP-FTRL: follow the regularised leader on noised prefix sums; one epoch, or several in the same order.

    Δ_t(u) = ∇F_u(x_t),  clipped to C;   Ŝ_t = noised sum of the cohorts' means
    x_{t+1} = Proj(-Ŝ_t/β); with another optimiser or an adaptive clip steps along Ŝ_t - Ŝ_{t-1}
    model: mean of the last iterates

Source: Kairouz et al. (2021); Choquette-Choo et al. (2023), Algorithm 1, for several epochs. Proof:
docs/privacy/srgd.md#s1, docs/privacy/several-epochs.md; of an adaptive clip: docs/privacy/free-presence.md.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any

from quoron_client.protocol.questions import Answers
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.means.norm_counts import Presence
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.prefix.noise import PrefixNoise
from quoron_privacy.release import Sums
from quoron_server.algorithm import Update
from quoron_server.algorithms.one_epoch.base import Iterates, OneEpoch
from quoron_server.algorithms.optimisers import Moments
from quoron_server.plan import RunPlan


@dataclass(frozen=True, slots=True, eq=False)
class FTRLState(Iterates):
    """Everything between two rounds; y and z are x."""

    radius: float  # C_t
    moments: Moments  # of the optimiser
    presence: Presence = field(default_factory=Presence)  # of those who are asked, as an adaptive clip is told


class DPFTRL(OneEpoch):
    """Algorithm object for a plan of method `ftrl`."""

    def __init__(self, plan: RunPlan) -> None:
        super().__init__(plan)
        self._shares = self.parameters.shares(plan.problem.dimension)

    def init(self) -> FTRLState:
        """Start at zero, with the first clip norm."""
        p, start = self.parameters, super().init()
        own = {item.name: getattr(start, item.name) for item in fields(start)}
        return FTRLState(**own, radius=p.clip_norm, moments=p.optimiser.start(len(start.x)))

    def reduction(self, state: Any) -> ClippedSum:
        """At C_t, which an adaptive clip moves."""
        return ClippedSum(state.radius, self.parameters.divisor)

    def update(self, state: FTRLState, answers: Answers | Sums, noise: NoiseSource) -> Update[FTRLState]:
        """Release the noised sum, and step along it, or along what this round added to it."""
        p, t = self.parameters, state.round
        mean, counted, diagnostics = self.mean(state, answers)
        assert isinstance(self.noise, PrefixNoise)
        assert state.sums is not None
        entry, public, radius, presence, moments = p.entry(), {}, state.radius, state.presence, state.moments
        if p.adaptive is not None and self._shares is not None:
            told, sums = self._shares.release(state.sums, counted, noise)
            gradient, entry, public = radius * told.mean, self._shares.entry().scaled(radius), {"radius": radius}
            loud = self._shares.shares(t).scale
            radius, presence = p.adaptive.following(radius, told, loud, presence, p.clip_norm)
        else:
            total, sums = self.noise.release(state.sums, mean, noise)
            gradient = self.noise.added(state.sums, sums, mean)
        if p.adaptive is None and p.optimiser.plain:
            x = self.project(-total / p.beta)
        else:
            wanted, moments = p.optimiser.step(state.x, gradient, moments, step_size=1 / p.beta, t=t)
            x = self.project(wanted)
        own = replace(state, radius=radius, moments=moments, presence=presence)
        return replace(self.moved(own, x, x, x, sums, diagnostics), releases=(entry,), public=public)
