"""Few users: whiten the features, then track the gradient with everybody, every round.

    first    users send a factor of their second moment and the gradient at 0, in one message
    columns  three times: where each lies and how wide it is; L makes those wider that surely are narrow
    whiten   four times: B from the mean logarithm of ‖LᵀA_uL‖; W from the mean of LᵀA_uL / B; L ← L U λ^-½, the second
             and third time where W says that it is needed; else the next W is of the same features, and both count
    round t  ĉ_u = clip_1((Lᵀ∇F_u(Lθ_t) - c_t) / C_t);   y_t = c_t + C_t (mean of ĉ_u + noise) / p
             ĝ = regression over y_0 .. y_t;   θ_{t+1} = shrunk(θ_t - ĝ / h), less what nobody tells of
             c_{t+1} = ĝ(θ_{t+1}); C_{t+1} from how far users were, which the same release tells
    vote     the mean of clip_V(F_u(Lθ_T) - F_u(0)) + noise, V = √S ‖θ_T‖ at most: above its noise, the model is 0

p is the noisy share of users who answer, which every release tells for nothing. Steps, metric, radius and weights are
functions of released values, so the transcript is μ-GDP by adaptive composition, T + 1 answers of every user included.

With K classes L is of the features alone and θ has a part for each of the K - 1 contrasts between classes, all of which
are one vector where they are clipped (docs/privacy/whitened-tracking.md#w2).

Ours. Statement and proof: docs/privacy/whitened-tracking.md.
"""

import math
from dataclasses import replace

import numpy as np

from quoron_client.protocol.questions import Answers, AverageGradient, AverageLoss, MomentAndGradient, Question
from quoron_client.protocol.smoothing import Moreau
from quoron_privacy.means.clipping import ChangeSum, ClippedSum
from quoron_privacy.means.contrasts import Contrasts
from quoron_privacy.means.free_presence import Leading
from quoron_privacy.means.norm_counts import MeanAndCounts, Presence
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Release, packed
from quoron_server.algorithm import Update, Vector
from quoron_server.algorithms.whitened import looks
from quoron_server.algorithms.whitened.columns import Windows
from quoron_server.algorithms.whitened.estimates import (
    DOUBT,
    LEARNT,
    WALK,
    GradientModel,
    WhitenedState,
    fitting,
    shrunk,
    tail_power,
    within,
)
from quoron_server.algorithms.whitened.forecast import Seen, hidden
from quoron_server.algorithms.whitened.forecast import after as bound_after
from quoron_server.algorithms.whitened.parameters import WhitenedParameters
from quoron_server.algorithms.whitening import along
from quoron_server.plan import RunPlan

FACTORS_FROM = 0.7
MOST_BEYOND = 0.6, 1 / 3  # share of users meant beyond the radius, and what it is less than that, times √D
BEYOND, SLOWER_FROM = 40.0, 2000.0  # π* over 1 / ν, and ν above which it falls by ν^-⅔
COARSE = 150.0  # ν below which logistic predictions keep to USUAL, and rare labels count in π* as at first order
NEAR = 0.4, 0.6  # √S over G₀ below which π* of several classes falls in proportion, and to what share of it
STEEP, LEAST_TARGET = 3.0, 0.05  # α of a tail r^-α below which π* falls, by its square, and by how much at most
FARTHER = 2.0  # times what is linear of a gradient may be larger where the tail was ever flatter than that
LATELY, NEAR_TARGET = 3, 4.0  # rounds before this one that tell α, where the share beyond was at most so many π*
HEARD = 3.0  # deviations of its noise above which features are taken to vary at all
CLIPPED = 0.02  # of the radius times the share of users beyond ⅔ of it: how far clipping is reckoned to move their mean
SPREAD_GAIN = 0.5  # of what the last round says of the users' spread
LEAST_RADIUS = 1e-6  # times s₀, so that arithmetic stays finite; and most, over s₀
# Where hostile users are declared: least share of users beyond the radius, its largest factor over their spread, over
# their length at the start and over its bound; the largest root mean square of logistic predictions, of others over y.
ROBUST_BEYOND, ROBUST_FACTOR, ROBUST_LENGTHS, ROBUST_BOUND = 0.15, 2.0, 3.0, 2.0
ROBUST_LABELS = 1.2
USUAL = 4.0  # root mean square of logistic predictions, at most, up to a ν of COARSE; above it in proportion
# Of several classes, one row a user: √S over G₀ and ν below which all who are told wrong count alike; the radius then,
# over G₀; the longest step, over the usual length of a point; the share of the last step that is gone again.
SURE, ALIKE_BELOW, ALIKE, STRIDE, MOMENTUM = 0.25, 100.0, 0.15, 1.6, 0.3
EVEN = 0.9  # 1 - Σ p̄² of the mean chances, over that of even ones, above which they do: rare classes were lost


class WhitenedTracking:
    """Algorithm object for a plan with WhitenedParameters."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.parameters = plan.parameters_of(WhitenedParameters)
        self._contrasts = Contrasts(plan.problem.features, plan.problem.outputs)
        self._law = self.parameters.law

    def init(self) -> WhitenedState:
        """Start at zero."""
        p, d, numbers = self.parameters, self._contrasts.features, self._contrasts.dimension
        zero, none, history = np.zeros(numbers), np.zeros(p.gradients), np.zeros((p.gradients, numbers))
        return WhitenedState(
            round=0,
            presence=Presence(),
            transform=np.eye(d) * looks.unit(self.plan),
            doubt=np.zeros(d),
            heard=0.0,
            windows=Windows.declared(d - p.constant(d)),
            moment=np.zeros((d, d)),
            known=0.0,
            unwidened=None,
            widened=np.zeros(d, np.bool_),
            point=zero,
            centre=zero,
            radius=self.bound,
            start_length=self.bound,
            factor=looks.FIRST_FACTOR,
            spread=self.bound**2,
            target=self._target(0.25),
            error=0.0,
            walk=0.0,
            points=history,
            gradients=history,
            variances=none,
            walks=none,
            radii=none,
            beyond=none,
            tail=math.inf,
        )

    def request(self, state: WhitenedState, noise: NoiseSource) -> Question | None:
        """Of everybody: moment and gradient at 0; gradients; at the end two losses."""
        del noise
        p, features = self.parameters, self._contrasts.features
        if state.round == p.rounds:
            return None
        everybody, at = np.arange(p.cohort_size, dtype=np.int64), self.iterate(state)
        if state.round == 0:
            return Question(0, everybody, MomentAndGradient(features, at))
        if state.round == p.gradients:
            return Question(state.round, everybody, AverageLoss(np.stack([at, np.zeros_like(at)])))
        # Clients differentiate with the ridge, which is public: their centre holds it too, so it cancels exactly.
        centre = p.ridge * at if p.ridge else None
        smoothing = Moreau(p.smoothing) if p.smoothing else None  # which changes no hinge's gradient at 0
        return Question(
            state.round, everybody, AverageGradient(at[None, :], (1.0,), centre=centre, smoothing=smoothing)
        )

    def update(self, state: WhitenedState, answers: Answers, noise: NoiseSource) -> Update[WhitenedState]:
        """Release, and step."""
        if state.round == self.parameters.gradients:
            return self._vote(state, answers, noise)
        entries: tuple[Release, ...] = ()
        if state.round == 0:
            numbers = packed(self._contrasts.features)
            factors = Leading(answers.values, numbers)
            rows = answers.values[:, numbers:].copy()  # no row stays for its end
            answers = Answers(self._contrasts.of(rows), answers.status)
            state, entries = looks.at_features(self.plan, state, factors, answers, noise)
        else:
            answers = Answers(self._contrasts.of(answers.values), answers.status)
        update = self._step(state, answers, noise)
        return replace(update, releases=(*entries, *update.releases))

    def _step(self, state: WhitenedState, answers: Answers, noise: NoiseSource) -> Update[WhitenedState]:
        mechanism = self.parameters.gradient(self.plan.problem.dimension, state.round)
        stream, around = noise.stream("release", state.round), (state.transform, state.centre, state.radius)
        released = mechanism.release(answers.values, answers.answered, *around, stream)
        return self.stepped(state, released, int(np.sum(answers.answered)))

    def stepped(self, state: WhitenedState, released: MeanAndCounts, answered: int) -> Update[WhitenedState]:
        """By the mean gradient of so many users."""
        p, d, t = self.parameters, self._contrasts.dimension, state.round
        theta, c, radius = state.point, state.centre, state.radius
        mechanism = p.gradient(self.plan.problem.dimension, t)
        presence = state.presence.seen(released.presence, mechanism.presence_deviation)
        share = presence.share

        def extended(rows: Vector, row: Vector | float) -> Vector:
            rows = rows.copy()
            rows[t] = row
            return rows

        points, walks = extended(state.points, theta), extended(state.walks, state.walk)
        gradients = extended(state.gradients, c + radius * released.mean / share)
        off = CLIPPED * radius * max(0.0, 1 - released.within / share)  # clipping moves it, too
        variances = extended(state.variances, (radius * mechanism.scale / share) ** 2 + off**2 / d)
        radii, beyond = extended(state.radii, radius), extended(state.beyond, 1 - released.within / share)
        lately = slice(max(1, t - LATELY), t + 1)
        tail = tail_power(radii[lately], beyond[lately], mechanism.presence_deviation, NEAR_TARGET * state.target)
        flattest = min(state.tail, tail)
        so_far = (each[: t + 1] for each in (points, gradients, variances, walks))
        model = GradientModel.of(*so_far, law=self._law, learnt=LEARNT * self._farther(flattest))
        if state.alike:
            following, walk, centre = self._strode(state, points, gradients), state.walk, c
            following = looks.known(self.plan, state, model, following)
            after = replace(state, error=1 / float(np.sum(1 / variances[: t + 1])))
        else:
            gradient, error = model.at(theta, state.walk)
            following, moved = self._moved(state, gradient, error, model)
            following = looks.known(self.plan, state, model, following)
            walk = state.walk + WALK**2 * moved / d
            after = self._aimed(state, released, share, tail, gradient, error, following, moved)
            centre = model.at(following, walk)[0]
            if self._sure(after, following):
                after, centre = replace(after, radius=ALIKE * state.start_length, alike=True), 0 * centre
        after = replace(
            after,
            round=t + 1,
            presence=presence,
            point=following,
            centre=centre,
            walk=walk,
            points=points,
            gradients=gradients,
            variances=variances,
            walks=walks,
            radii=radii,
            beyond=beyond,
            tail=flattest,
        )
        public = {"radius": radius, "present": share} | self._capped(following)
        diagnostics = {"answered": answered, "clipped_fraction": released.clipped / max(1, answered)}
        present = released.presence * p.cohort_size
        return Update(after, (mechanism.entry(),), public, diagnostics, present)

    def _strode(self, state: WhitenedState, points: Vector, gradients: Vector) -> Vector:
        """By steps of a length, with momentum, of the mean of gradients clipped to a small part of their length.

        With a ridge along the features' own directions that at the usual length of a point is as long as all noise.
        """
        p, parts, t = self.parameters, self._contrasts.parts, state.round
        usual, signal = USUAL * math.sqrt(p.width), along(state.transform, constant=p.intercept)
        noise = math.sqrt(self._contrasts.dimension / sum(each**-2 for each in p.gradient_scales))
        pull = np.diag(state.radius * noise / usual * signal.mean() / signal)
        pull += p.ridge * state.transform.T @ state.transform
        before = t > 0 and state.radii[t - 1] == state.radius  # whether the last step was such a one
        inverse = np.linalg.inv(state.radius / (STRIDE * usual) * np.eye(len(signal)) + pull)

        def after(k: int) -> Vector:
            at = points[k].reshape(parts, -1)
            moved: Vector = (at - (gradients[k].reshape(parts, -1) + at @ pull) @ inverse).ravel()
            return moved

        following = after(t)
        if t + 1 < p.gradients:
            following = following + MOMENTUM * (following - (after(t - 1) if before else state.point))
        following = within(following, self._largest)
        return following * fitting(self.plan.problem.domain, self._contrasts.model(state.transform, following))

    def _moved(
        self, state: WhitenedState, gradient: Vector, error: float, model: GradientModel
    ) -> tuple[Vector, float]:
        """(θ_{t+1}, squared length of the step, in units of the gradient)."""
        p, theta, law = self.parameters, state.point, self._law
        known, variance = law.gradient(theta), error + state.spread / (len(theta) * p.cohort_size)
        if p.sigmoid and p.outputs == 1 and not p.ridge:
            trusted = 1 / (1 + DOUBT * state.doubt)
            fall, variances = model.step((trusted * gradient)[None, :], np.ones((1, len(theta))), np.ones((1, 1)))
            wanted = shrunk(known - fall.ravel(), variance * trusted**2 * variances.ravel())
            following = law.solved(wanted, math.sqrt(error), 2 * max(1.0, float(np.linalg.norm(theta))))
        elif p.outputs > 1:
            following = self._approached(state, gradient, error, model)
        else:
            following = self._stepped(state, gradient, variance, model)
        following = within(following, self._largest)
        following = following * fitting(self.plan.problem.domain, self._contrasts.model(state.transform, following))
        return following, float(np.sum((law.gradient(following) - known) ** 2))

    def _approached(self, state: WhitenedState, gradient: Vector, error: float, model: GradientModel) -> Vector:
        """Of several classes: where γ is what it should be, by what rounds have learnt of its slope."""
        p, theta, parts = self.parameters, state.point, self._contrasts.parts
        trusted = np.tile(1 / (1 + DOUBT * state.doubt), parts)
        even = np.ones((parts, len(state.doubt)))
        fall, taken = model.step((trusted * gradient).reshape(even.shape), even, np.eye(parts))
        variance = (error + state.spread / (len(theta) * p.cohort_size)) * trusted**2 * taken.ravel()
        signal = np.tile(along(state.transform, constant=p.intercept), parts)
        wanted = shrunk(self._law.gradient(theta) - fall.ravel(), variance, signal)
        limit = 2 * max(math.sqrt(p.width), float(np.linalg.norm(theta)))
        return self._law.approached(
            wanted, math.sqrt(error), limit, theta, p.ridge * state.transform.T @ state.transform
        )

    def _stepped(self, state: WhitenedState, gradient: Vector, variance: float, model: GradientModel) -> Vector:
        """By the curvature at θ_t."""
        p, theta, parts = self.parameters, state.point, self._contrasts.parts
        levels, basis = self._law.at(theta)
        h = np.outer(levels, 1 + DOUBT * state.doubt)  # (q, d), of the parts along the basis
        along, falls = (basis.T @ each.reshape(parts, -1) for each in (theta, gradient))
        if p.ridge:  # public and quadratic: its part of gradient and curvature is exact
            pull = p.ridge * state.transform.T @ state.transform
            inverse = np.linalg.inv(np.stack([np.diag(each) for each in h]) + pull)
            each = zip(along, falls, inverse, strict=True)
            wanted = np.stack([own - against @ (fall + pull @ own) for own, fall, against in each])
            variances = variance * np.sum(inverse**2, axis=2)
        else:  # what rounds have learnt of curvatures counts
            step, variances = model.step(falls, h, basis)
            wanted, variances = along - step, variance * variances
        following = (basis @ shrunk(wanted.ravel(), variances.ravel()).reshape(parts, -1)).ravel()
        if p.sigmoid:
            following = within(following, math.sqrt(max(4.0 * p.width, 4 * float(theta @ theta))))
        return following

    def _aimed(
        self,
        state: WhitenedState,
        released: MeanAndCounts,
        share: float,
        tail: float,
        gradient: Vector,
        error: float,
        following: Vector,
        moved: float,
    ) -> WhitenedState:
        """With the radius of the next round: k √(users' spread + error of the centre)."""
        p, d, first = self.parameters, self._contrasts.dimension, state.round == 0
        reached, beyond = 1 - released.beyond / share, 1 - released.within / share
        deviation = p.gradient(self.plan.problem.dimension, state.round).presence_deviation
        distance = state.radius * max(reached, deviation) if reached < 0.93 else 1.5 * state.radius
        lag = max(float(gradient @ gradient) - d * error, 0.0) if first else min(d * state.error, 0.5 * distance**2)
        own = max(distance**2 - lag, 0.2 * distance**2)
        spread = own if first else state.spread ** (1 - SPREAD_GAIN) * own**SPREAD_GAIN
        target = state.target
        if p.sigmoid and p.intercept:  # few users have the rare label, and theirs are the long gradients: clip fewer
            levels = following.reshape(self._contrasts.parts, -1)[:, -1]
            target = self._target(self._law.variety(levels, float(following @ following - levels @ levels)))
        factor, least = state.factor, LEAST_RADIUS * p.start_slope
        aimed = self._common * max((max(tail, 0.0) / STEEP) ** 2, LEAST_TARGET)  # who is far beyond costs most
        near = math.sqrt(spread) / (NEAR[0] * state.start_length)  # where most are told right, few who are not matter
        several = target if p.robust else target * min(max(near, NEAR[1]), 1.0)
        aimed = several if p.outputs > 1 else target if p.robust else min(target, aimed)
        if not first:
            surprise = (beyond - aimed) / max(aimed, deviation)
            factor = max(factor * math.exp(0.5 * min(max(surprise, -1.0), 1.0)), FACTORS_FROM)
            if surprise > 1:  # users far away are many: the others, who are near, do not draw the radius in
                least = max(least, state.radius * math.exp(0.5 * min(surprise - 1, 1.0)))
        factor = min(factor, ROBUST_FACTOR) if p.robust else factor
        error = error + LEARNT**2 * moved / d
        radius = min(max(factor * math.sqrt(spread + d * error), least), p.start_slope / LEAST_RADIUS)
        if p.robust:
            radius = min(radius, ROBUST_BOUND * self.bound, ROBUST_LENGTHS * state.start_length)
        return replace(state, radius=radius, factor=factor, spread=spread, target=target, error=error)

    def _vote(self, state: WhitenedState, answers: Answers, noise: NoiseSource) -> Update[WhitenedState]:
        """Not training, unless users are noticeably better off."""
        own = self.voting(state)
        sums = ChangeSum(own).of(answers.values, answers.answered)
        released = self.parameters.vote.release(own.unit_mean(sums), noise.stream("vote", state.round))
        return self.voted(state, float(released[0]), sums.answered)

    def voting(self, state: WhitenedState) -> ClippedSum:
        """To V: losses of users change by √S ‖θ‖, whose gradients are that far from their mean."""
        p, change = self.parameters, math.sqrt(state.spread) * float(np.linalg.norm(state.point))
        return ClippedSum(min(max(LEAST_RADIUS**2 * p.vote_bound, change), p.vote_bound), p.cohort_size)

    def voted(self, state: WhitenedState, released: float, answered: int) -> Update[WhitenedState]:
        """By the mean change of the loss of so many users, over V."""
        p, bound = self.parameters, self.voting(state).norm
        accepted = not released > p.vote_scale
        after = replace(state, round=state.round + 1, point=state.point if accepted else 0 * state.point)
        vote = {"vote": bound * released, "error": bound * p.vote_scale, "accepted": accepted}
        public = vote | self._told(state, accepted=accepted)
        return Update(after, (p.vote.entry(),), public, {"answered": answered})

    def _told(self, state: WhitenedState, *, accepted: bool) -> dict[str, float | bool | None]:
        """A bound on the excess risk, by what was released before the vote, and what makes it large by name.

        None with rounds that nobody measured. Nor where columns could not be told from noise: the model then says
        little but how many labels there are.
        """
        seen, heard = self.seen(state), state.heard >= HEARD
        left = bound_after(self.plan.problem, self.parameters.rounds, seen) if heard and accepted else None
        grows = left is not None and 2 * seen.growth(self.plan.problem) > left
        return {"left": left, "heard": heard, "unseen": seen.unseen, "grows": grows}

    def seen(self, state: WhitenedState) -> Seen:
        """What a run has released, before its vote, about how far its model is off."""
        p, bends = self.parameters, np.outer(self._law.at(state.point)[0], 1 + DOUBT * state.doubt)
        seen = Seen.of(state.error, bends, state.radius)._replace(hidden=hidden(state.doubt, constant=p.intercept))
        pull = p.ridge * state.point.reshape(self._contrasts.parts, -1) @ state.transform.T @ state.transform
        gradient, error = state.centre, state.error
        if state.alike:  # users who were clipped had lengths between C and G₀
            gradient, error = state.gradients[-1] / math.sqrt(ALIKE), float(state.variances[-1]) / ALIKE
        return seen.sure(self._law, state.point, gradient + pull.ravel(), error) if p.sigmoid else seen

    def model(self, state: WhitenedState) -> Vector:
        """L θ, of each part, as predictions."""
        return self._contrasts.model(state.transform, state.point)

    def iterate(self, state: WhitenedState) -> Vector:
        """As `model`: every iterate is already private."""
        return self.model(state)

    def _farther(self, flattest: float) -> float:
        """Times what γ may be off by: more where lengths have a flat tail, so that features are far from Gaussian."""
        p = self.parameters  # of the tail of fewer, or of hostile, users it is mostly noise, or theirs
        return FARTHER if p.outputs == 1 and not p.robust and p.resolution > SLOWER_FROM and flattest < STEEP else 1.0

    def _sure(self, state: WhitenedState, following: Vector) -> bool:
        """Whether most are told right, and noise hides by how much: of several even classes and users of one row."""
        p = self.parameters
        near = SURE * min(1.0, ALIKE_BELOW / p.resolution)
        usual = p.outputs > 2 and self.plan.problem.items_per_user == 1 and not p.robust
        if not usual or math.sqrt(state.spread) >= near * state.start_length:
            return False
        levels = following.reshape(p.law.parts, -1)[:, -1] * p.intercept
        return 4 * self._law.variety(levels, float(following @ following - levels @ levels)) > EVEN

    @property
    def bound(self) -> float:
        """C₀: of a whitened gradient at 0, for a metric that has learnt nothing."""
        return looks.bound(self.plan)

    @property
    def _common(self) -> float:
        """π* of a common label, were it no share: a share that its noise can be told from."""
        nu = self.parameters.resolution
        return BEYOND / nu * math.pow(max(1.0, nu / SLOWER_FROM), 1 / 3)

    def _target(self, variance: float) -> float:
        """π*: the smaller the rarer a label is."""
        nu, least = self.parameters.resolution, ROBUST_BEYOND if self.parameters.robust else 0.0
        rarity = math.pow(4 * variance, min(max(COARSE / nu, 0.5), 1.0))
        most = MOST_BEYOND[0] - MOST_BEYOND[1] / math.sqrt(self._contrasts.dimension)  # noise grows with D, not bias
        return min(most, max(least, self._common * rarity))

    def _capped(self, point: Vector) -> dict[str, float | bool]:
        """Whether the bound on predictions held the point, where there is one."""
        if math.isinf(self._largest):
            return {}
        held = float(np.linalg.norm(point)) >= (1 - 1e-9) * self._largest
        return {"cap": self._largest, "capped": held, "feared": self.parameters.robust}

    @property
    def _largest(self) -> float:
        """Root mean square of predictions at most: as far as noise allows, less in fear of hostile users."""
        p, label = self.parameters, self.plan.problem.beliefs.label_bound
        usual = USUAL * math.sqrt(p.width) if p.sigmoid else math.inf
        if not p.robust:
            return usual * max(1.0, p.resolution / COARSE)
        return ROBUST_LABELS * label if label else max(USUAL * math.sqrt(p.width), 2 * p.start_slope)
