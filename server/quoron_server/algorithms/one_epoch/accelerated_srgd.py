"""Accelerated SRGD: Nesterov's steps along private sums of recursive gradients; each user is asked once.

With weights η_t = t + 1 (η_{-1} = 0), momentum τ_t = 2/(t + 2), x_0 = z_0 = 0 and fixed disjoint cohorts of B users:

    Δ_t      = (1/B) Σ_{u in cohort t} clip_C(η_t ∇F_u(x_t) - η_{t-1} ∇F_u(x_{t-1}))
    Ŝ_t      = Δ_0 + ... + Δ_t + N_0 + ... + N_t, with noise N that is correlated over rounds
    z_{t+1}  = Proj(z_t - Ŝ_t/(2β))
    y_{t+1}  = Proj(x_t - Ŝ_t/(β η_t))
    x_{t+1}  = (1 - τ_{t+1}) y_{t+1} + τ_{t+1} z_{t+1};                              model: y_T

Ŝ_t is the paper's η_t ∇_t with the noise of b_t: the cohorts' differences add up to about η_t ∇F(x_t), so that its
noise grows like log t where the gradient it stands for grows like t.

Source: Choquette-Choo, Ganesh & Thakurta, Algorithm 1, with three repairs: answers are clipped, since no bound on their
length holds for every dataset; the z-step is halved, as the potential of the proof needs; noise comes from a Toeplitz
factorisation (`blt`), quieter than the binary tree. As printed: printed.choquette_choo. Every difference, and why:
docs/papers/choquette_choo.md. Privacy: docs/privacy/srgd.md#s1. Utility: docs/privacy/srgd-utility.md#u2.

Three relatives of accelerated SRGD: without acceleration, on fresh gradients, and online to batch.

With η_t = t + 1, τ_t = 2/(t + 2), x_0 = z_0 = 0 and the recursive sums Ŝ_t of `accelerated_srgd`:

    srgd             x_{t+1} = Proj(x_t - Ŝ_t/(β η_t));                     model: mean of the last iterates
    online-to-batch  z_{t+1} = Proj(z_t - Ŝ_t/(2β)),  x_{t+1} = (1 - τ_{t+1}) x_t + τ_{t+1} z_{t+1};    model: x_T
    accelerated-sgd  the steps of accelerated SRGD along Ŝ_t = η_t ((1/B) Σ_u clip_C(∇F_u(x_t)) + Gaussian noise)

Source: Choquette-Choo, Ganesh & Thakurta, section 4.3 (srgd) and 5.5 (accelerated-sgd); Zhang, Tran & Cutkosky (2022)
for online to batch. Proof: docs/privacy/srgd.md#s1.
"""

from quoron_client.protocol.questions import Answers, Question
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Sums
from quoron_server.algorithm import Update, Vector
from quoron_server.algorithms.one_epoch.base import Iterates, OneEpoch, recursive


class AcceleratedSRGD(OneEpoch):
    """Algorithm object for a plan with OneEpochParameters."""

    def request(self, state: Iterates, noise: NoiseSource) -> Question | None:
        """Each user's η_t ∇F_u(x_t) - η_{t-1} ∇F_u(x_{t-1})."""
        del noise
        return self.ask(state, recursive(state.round))

    def update(self, state: Iterates, answers: Answers | Sums, noise: NoiseSource) -> Update[Iterates]:
        """Release Ŝ_t, and step twice along it."""
        gradient_sum, sums, diagnostics = self.prefix_sum(state, answers, noise)
        x, y, z = nesterov(self, state, gradient_sum)
        return self.moved(state, x, y, z, sums, diagnostics)

    def model(self, state: Iterates) -> Vector:
        """y_T; before the end y_t."""
        return state.y


def nesterov(algorithm: OneEpoch, state: Iterates, gradient_sum: Vector) -> tuple[Vector, Vector, Vector]:
    """x_{t+1}, y_{t+1} and z_{t+1}: a short step from x_t, a long one from z_t, and the average of both."""
    eta, tau, beta = state.round + 1.0, 2 / (state.round + 3), algorithm.parameters.beta
    z = algorithm.project(state.z - gradient_sum / (2 * beta))
    y = algorithm.project(state.x - gradient_sum / (beta * eta))
    return (1 - tau) * y + tau * z, y, z


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
