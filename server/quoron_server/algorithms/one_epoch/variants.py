"""Three relatives of accelerated SRGD: without acceleration, on fresh gradients, and online to batch.

With η_t = t + 1, τ_t = 2/(t + 2), x_0 = z_0 = 0 and the recursive sums Ŝ_t of `accelerated_srgd`:

    srgd             x_{t+1} = Proj(x_t - Ŝ_t/(β η_t));                     model: mean of the last iterates
    online-to-batch  z_{t+1} = Proj(z_t - Ŝ_t/(2β)),  x_{t+1} = (1 - τ_{t+1}) x_t + τ_{t+1} z_{t+1};    model: x_T
    accelerated-sgd  the steps of accelerated SRGD along Ŝ_t = η_t ((1/B) Σ_u clip_C(∇F_u(x_t)) + Gaussian noise)

Source: Choquette-Choo, Ganesh & Thakurta, section 4.3 (srgd) and 5.5 (accelerated-sgd); Zhang, Tran & Cutkosky (2022)
for online to batch. Proof: docs/privacy/srgd.md#s1.
"""

from quoron_client.protocol.questions import Answers
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Sums
from quoron_server.algorithm import Update, Vector
from quoron_server.algorithms.one_epoch.accelerated_srgd import nesterov
from quoron_server.algorithms.one_epoch.base import Iterates, OneEpoch


class SRGD(OneEpoch):
    """Algorithm object for a plan of method `plain`."""

    def update(self, state: Iterates, answers: Answers | Sums, noise: NoiseSource) -> Update[Iterates]:
        """Release Ŝ_t, and step along it."""
        gradient_sum, sums, diagnostics = self.prefix_sum(state, answers, noise)
        x = self.project(state.x - gradient_sum / (self.parameters.beta * (state.round + 1.0)))
        return self.moved(state, x, x, x, sums, diagnostics)


class OnlineToBatch(OneEpoch):
    """Algorithm object for a plan of method `anytime`."""

    def update(self, state: Iterates, answers: Answers | Sums, noise: NoiseSource) -> Update[Iterates]:
        """Release Ŝ_t, and average the online learner's next point into x."""
        gradient_sum, sums, diagnostics = self.prefix_sum(state, answers, noise)
        tau, z = 2 / (state.round + 3), self.project(state.z - gradient_sum / (2 * self.parameters.beta))
        x = (1 - tau) * state.x + tau * z
        return self.moved(state, x, x, z, sums, diagnostics)


class AcceleratedSGD(OneEpoch):
    """Algorithm object for a plan of method `accelerated` on `independent` gradients."""

    def update(self, state: Iterates, answers: Answers | Sums, noise: NoiseSource) -> Update[Iterates]:
        """Release the mean, and step twice along it."""
        t = state.round
        mean, _, diagnostics = self.mean(state, answers)
        assert isinstance(self.noise, GaussianNoise)
        gradient = self.noise.release(mean, noise.stream("release", t))
        x, y, z = nesterov(self, state, (t + 1.0) * gradient)
        return self.moved(state, x, y, z, None, diagnostics)

    def model(self, state: Iterates) -> Vector:
        """y_T; before the end y_t."""
        return state.y
