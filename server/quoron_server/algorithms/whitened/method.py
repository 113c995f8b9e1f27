"""Few users: whiten the features, then track the gradient with everybody, every round.

    first    users send a factor of their second moment and the gradient at 0, in one message
    columns  three times: where each lies and how wide it is; L makes those wider that surely are narrow
    whiten   four times: B from the mean logarithm of ‖LᵀA_uL‖; W from the mean of LᵀA_uL / B; L ← L U λ^-½, the second
             and third time where W says that it is needed; else the next W is of the same features, and both count
    round t  ĉ_u = clip_1((Lᵀ∇F_u(Lθ_t) - c_t) / C_t);   y_t = c_t + C_t (mean of ĉ_u + noise) / p - ½ β(θ_t)
             ĝ = regression over y_0 .. y_t;   θ_{t+1} = shrunk(θ_t - ĝ / h), less what nobody tells of
             c_{t+1} = ĝ(θ_{t+1}); C_{t+1} from how far users were, which the same release tells
    vote     the mean of clip_V(F_u(Lθ_T) - F_u(0)) + noise, V = √S ‖θ_T‖ at most: above its noise, the model is 0

β is what clipping takes off the mean gradient of users as the model has them, p the noisy share of users who answer,
which every release tells for nothing. Steps, metric, radius and weights are functions of released values, so the
transcript is μ-GDP by adaptive composition, T + 1 answers of every user included.

With K classes L is of the features alone and θ has a part for each of the K - 1 contrasts between classes, all of which
are one vector where they are clipped (docs/privacy/whitened-tracking.md#w2).

Ours. Statement and proof: docs/privacy/whitened-tracking.md.

What `whitened-tracking` leaves at most: by public numbers, in nine of ten tables like those measured; by releases.

Powers of public, or of released, numbers, fixed on made tables and real ones (docs/privacy/whitened-tracking.md,
"Forecast"; benchmarks/whitened_bound.py fits them again): no theorem. A bound on the excess risk itself and not on a
share of the start's, which nobody knows before: noise leaves what it leaves, however much there is to learn. They rank
plans and inform people; no noise and nothing that a run does depends on them.

Before a run nobody knows whether columns fill their ranges and whether labels stay in doubt, and the bound takes that
for granted: of odd tables about one in four leaves more. Releases tell: directions that the metric could not see, and
predictions that still want to grow.

With `parts` the first message is thirteen questions, each for one release, and answers are only summed.

    columns, three times        as the first message's factor
    length, moment, four times       the same, of the features as whitened so far
    length, round 0                   of the gradient at 0, then its mean
    rounds 1 to T - 1, vote           as above

Each question is clipped by what the one before released, as the releases of one message are; so the transcript, and
what it costs, is that of docs/privacy/whitened-tracking.md#w1, in T + 13 rounds. Two servers need it, and silos that
send sums: nobody sees a row.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from quoron_client.protocol.questions import (
    Answers,
    AverageGradient,
    AverageLoss,
    MomentAndGradient,
    Question,
    SecondMoment,
    Task,
    summed,
)
from quoron_client.protocol.smoothing import Moreau
from quoron_privacy.means.clipping import ChangeSum, ClippedSum
from quoron_privacy.means.free_counts import (
    ColumnSum,
    Contrasts,
    ContrastSum,
    Leading,
    LengthSum,
    MeanAndCounts,
    Moment,
    NormCountSum,
    Presence,
    ShapedMomentSum,
    VectorLengthSum,
)
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import NoisySums, Release, Sums
from quoron_server.algorithm import OfPlan, Update, Vector
from quoron_server.algorithms.spec import constant_risk, loss_scale, start_risk
from quoron_server.algorithms.whitened.estimates import (
    DOUBT,
    LEARNT,
    WALK,
    GradientModel,
    WhitenedState,
    Windows,
    fitting,
    in_groups,
    narrowed,
    scaled,
    shrunk,
    tail_power,
    told,
    within,
)
from quoron_server.algorithms.whitened.parameters import COLUMNS, PARTS, STAGES, CurvatureModel, WhitenedParameters
from quoron_server.algorithms.whitening import FLOOR, aligned, along, typical_length, whitening, widened, without
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem

MIN_RESOLUTION = 10.0  # ν = nμ_g / √d below which nothing is learnt
FORECAST_FROM = 9  # rounds: with fewer the way may be too long, as the model at most about doubles in each
LEARNT_AT_MOST = 1.2  # times the root of what was learnt and of the most: what noise leaves is less
LOST = 0.5  # of the most: where noise may leave so much it may be why little was learnt, and nothing is sure
RISING = 4.0  # times what longer predictions would gain, where all is learnt; by the square of the share that is
HIDDEN, SMALL = 0.25, 0.36  # share of directions that may be copies of others; of the mean eigenvalue: a hidden one
NOISE, FAINT = 1.5, 0.4  # or one of which noise is so many times as large, and it at most that of the largest
COMMON = 0.1  # share of the rarer of two labels, from which a forecast without a declared rate holds
TAILED = 4.0  # times a bound for squares, where users' lengths have a flat tail
MIN_RARITY = 1e-6  # to be divided by
NOISY = 2.0  # times what always saying the label rate leaves: a model of noise leaves less
QUANTILES = 512  # of predictions, by which means over them are taken


class PowerLaw(NamedTuple):
    """The logarithm of a bound: a constant, exponents of D = d(K - 1), of ν = nμ_g / √D and of m, and of what is known.

    For squares in units of twice the start's loss, the squared label bound.
    """

    constant: float
    dimension: float
    resolution: float
    items: float
    noise: float = 0.0  # released: of what the noise in the gradient is worth
    radius: float = 0.0  # C that the last release left
    rarity: float = 0.0  # of 4p(1 - p), p a declared label rate; released: of `Observations.rarity`
    alone: float = 0.0  # added where users have one row each: few of them hold a rare column

    def of(self, problem: Problem, resolution: float, seen: "Observations | None" = None) -> float:
        """Return the bound, whatever there is to learn."""
        rate = (problem.beliefs.label_rates or (0.5,))[0]
        parts = Contrasts(problem.features, problem.outputs).dimension
        public = (parts, resolution, problem.items_per_user)
        unit = loss_scale(problem)
        released = (1.0, 1.0) if seen is None else (seen.noise / unit, seen.radius / unit**0.5)
        rarity = 4 * rate * (1 - rate) if seen is None else seen.rarity
        facts = (*public, *released, rarity, math.e if problem.items_per_user == 1 else 1.0)
        powers = zip(self[1:], facts, strict=True)
        logarithm = self.constant + sum(power * math.log(fact) for power, fact in powers if power)
        return unit * math.exp(min(logarithm, 100.0))


class Observations(NamedTuple):
    """What a run released about how far its model is off."""

    noise: float  # ½ Σ P/h: the excess risk of the noise, one step from the model
    radius: float  # C
    progress: float = 0.0  # less doubt of labels than at the start, where predictions are right about it
    rising: float = 0.0  # what longer predictions gain by the last gradient, less half a deviation of its noise
    hidden: float = 0.0  # share of directions in which columns vary too little to be seen
    rarity: float = 1.0  # 4p(1 - p) over that of a rate of COMMON, p the mean chance of the model; at most 1
    tail: float = math.inf  # α of a tail r^-α of users' lengths

    def sure(self, law: CurvatureModel, point: Vector, gradient: Vector, error: float) -> "Observations":
        """With what a logistic model at that point is sure of, and whether the gradient there wants it surer."""
        noise = 0.5 * math.sqrt(error) * float(np.linalg.norm(point))
        rarity, rising = law.rarity(point) / (4 * COMMON * (1 - COMMON)), max(0.0, -float(point @ gradient) - noise)
        return self._replace(progress=progress(law, point), rising=rising, rarity=min(max(rarity, MIN_RARITY), 1.0))

    def growth(self, problem: Problem) -> float:
        """Return what growing predictions may gain: about all of `rising` where labels can be predicted exactly."""
        return RISING * (self.progress / start_risk(problem)) ** 2 * self.rising if problem.beliefs.sigmoid else 0.0

    @property
    def unseen(self) -> bool:
        """Whether more directions are hidden than those of columns that others make up."""
        return self.hidden > HIDDEN

    @property
    def tailed(self) -> bool:
        """Whether users' lengths have a tail that is flat."""
        return self.tail < STEEP


def hidden(doubt: Vector, *, constant: bool) -> float:
    """Share of directions with far smaller eigenvalues than others once whitened; `doubt` is the noise over each.

    Where all that columns vary by was resolved, all are alike. Directions far below, or lost in noise where others are
    not, are copies of others, or of columns that fill next to nothing of their ranges.
    """
    doubt = np.maximum(doubt[: len(doubt) - constant], 1e-9)
    if not len(doubt):
        return 0.0
    values = 1 / doubt
    lost = (doubt > NOISE) & (values < FAINT * values.max())
    return float(np.mean((values < SMALL * values.mean()) | lost))


def progress(law: CurvatureModel, point: Vector) -> float:
    """By how much labels are less in doubt than at the start, in nats, if the law is right and predictions are."""
    if law.outputs == 1:
        level = float(point[-1]) if law.intercept else 0.0
        deviation = math.sqrt(max(float(point @ point) - level**2, 0.0))
        scores = np.abs(level + deviation * ndtri((np.arange(QUANTILES) + 0.5) / QUANTILES))
        chances = np.stack([1 / (1 + np.exp(-scores)), np.exp(-scores) / (1 + np.exp(-scores))], axis=1)
    else:
        parts = point.reshape(law.parts, -1)
        others = parts[:, :-1] if law.intercept else parts
        chances = law.chances(parts[:, -1] if law.intercept else np.zeros(law.parts), others @ others.T)
    doubt = -np.sum(chances * np.log(np.maximum(chances, 1e-300)), axis=1).mean()
    return max(0.0, math.log(max(2, law.outputs)) - float(doubt))


BEFORE = {
    "logistic": PowerLaw(1.05, 0.7, -1.37, -0.2, rarity=-1.2, alone=1.3),
    "squares": PowerLaw(1.1, 0.2, -1.63, -0.268),
}
AFTER = {
    "logistic": PowerLaw(2.7, 0.15, 0.0, -0.5, noise=0.95, radius=-1.0, rarity=-0.5, alone=0.69),
    "squares": PowerLaw(3.4, -0.3, 0.0, -0.15, noise=1.0),
}


def before(problem: Problem, rounds: int, resolution: float) -> float | None:
    """Of a plan, by ν = nμ_g / √d; with few rounds a share 2⁻ᵀ of the start's risk more. None of an unmeasured loss."""
    if not _measured(problem):
        return None
    most, constant = start_risk(problem), constant_risk(problem)
    unreached = 0.0 if rounds >= FORECAST_FROM else 0.5 ** (rounds - 1) * most  # measured from four rounds on
    told = min(BEFORE[_kind(problem)].of(problem, resolution), most if constant is None else NOISY * constant)
    return min(max(told + unreached, _way(problem, rounds)), most)


def _way(problem: Problem, rounds: int) -> float:
    """What rounds that each halve what is left, as they do where features are far from Gaussian, leave of the most."""
    return 0.5**rounds * start_risk(problem) if problem.beliefs.sigmoid else 0.0


def after(problem: Problem, rounds: int, seen: Observations) -> float | None:
    """Of a run that kept its model, by what it released; None with few rounds, too."""
    if rounds < FORECAST_FROM or not _measured(problem):
        return None
    most, found = start_risk(problem), AFTER[_kind(problem)].of(problem, 1.0, seen)
    if problem.beliefs.sigmoid:
        top = LEARNT_AT_MOST * math.sqrt(seen.progress * most)  # noise leaves no more than there is: most is learnt
        found = most if found > LOST * most else found * top / (found + top) if top > 0 else 0.0
    elif seen.tailed:  # those far away are clipped, most at one side where amounts have a long tail
        found *= TAILED
    found += seen.growth(problem) + max(0.0, seen.hidden - HIDDEN) * most
    return min(max(found, _way(problem, rounds)), most)


def _measured(problem: Problem) -> bool:
    """Logistic losses, of several classes too, squares and Huber's; no other loss."""
    return problem.beliefs.sigmoid or problem.beliefs.label_bound is not None


def _kind(problem: Problem) -> str:
    return "logistic" if problem.beliefs.sigmoid else "squares"


VECTOR = PARTS - 1  # the part that asks for the length of a gradient

FIRST_FACTOR = 1.5  # of the radius over a typical length at the start
MOMENTS_FROM = 70.0  # ν / d above which whitened moments are clipped at more than a typical length, in proportion
OPENED = 2.0  # times that, where directions were narrow: few users may have all that varies along them

FACTORS_FROM = 0.7
MAX_BEYOND = 0.6, 1 / 3  # share of users meant beyond the radius, and what it is less than that, times √D
BEYOND, SLOWER_FROM = 40.0, 2000.0  # π* over 1 / ν, and ν above which it falls by ν^-⅔
RESTORED, BEYOND_RESTORED = 0.5, 50.0  # share of what clipping takes by the model that is given back; BEYOND if any is
COARSE = 150.0  # ν below which logistic predictions keep to USUAL, and rare labels count in π* as at first order
FAINT_LEVEL = 70.0  # ν below which a constant feature's coefficient, of numbers, is shrunk as well: by itself
LEVEL_ALONE = 5  # gradients, from which on the first step moves the labels' mean alone
NEAR = 0.4, 0.6  # √S over G₀ below which π* of several classes falls in proportion, and to what share of it
STEEP = 3.0  # α of a tail r^-α below which π* falls, by its square
MIN_TARGET = 0.4, 0.05  # to what part of it at most: of squares; of classes, rare ones of which have long gradients
OVERSHOT = 2.0  # deviations of noise by which a gradient rises more along a step than it fell, for the next to be short
LATELY, NEAR_TARGET = 3, 4.0  # rounds before this one that tell α, where the share beyond was at most so many π*
HEARD = 3.0  # deviations of its noise above which features are taken to vary at all
SPREAD_GAIN = 0.5  # of what the last round says of the users' spread
MIN_RADIUS = 1e-6  # times s₀, so that arithmetic stays finite; and most, over s₀
# Where adversarial users are declared: least share of users beyond the radius, its largest factor over their spread,
# over their length at the start and over its bound; the largest root mean square of logistic predictions, of others
# over y.
ROBUST_BEYOND, ROBUST_FACTOR, ROBUST_LENGTHS, ROBUST_BOUND = 0.15, 2.0, 3.0, 2.0
ROBUST_LABELS = 1.2
USUAL = 4.0  # root mean square of logistic predictions, at most, up to a ν of COARSE; above it in proportion
# Of several classes, one row a user: √S over G₀ and ν below which all misclassified users count alike; the radius then,
# over G₀; the longest step, over the usual length of a point; the share of the last step that is gone again.
SURE, ALIKE_BELOW, ALIKE, STRIDE, MOMENTUM = 0.25, 100.0, 0.15, 1.6, 0.3
EVEN = 0.9  # 1 - Σ p̄² of the mean chances, over that of even ones, above which they do: rare classes were lost


class WhitenedTracking(OfPlan[WhitenedParameters]):
    """Algorithm object for a plan with WhitenedParameters."""

    kind = WhitenedParameters

    def __init__(self, plan: RunPlan) -> None:
        super().__init__(plan)
        self._contrasts = Contrasts(plan.problem.features, plan.problem.outputs)
        numbers = plan.problem.beliefs.label_bound is not None
        features = self._contrasts.features
        groups, own = plan.problem.beliefs.groups or (0,) * features, features - self.parameters.intercept
        self._groups = np.array([*sorted(groups[:own]), *groups[own:]])  # of coordinates, as `aligned` orders them
        self._law = replace(self.parameters.law, level=numbers and self.parameters.constant(self._contrasts.features))

    def init(self) -> WhitenedState:
        """Start at zero."""
        p, d, numbers = self.parameters, self._contrasts.features, self._contrasts.dimension
        zero, none, history = np.zeros(numbers), np.zeros(p.gradients), np.zeros((p.gradients, numbers))
        return WhitenedState(
            round=0,
            part=0,
            typical=0.0,
            presence=Presence(),
            transform=np.eye(d) * self._unit,
            doubt=np.zeros(d),
            heard=0.0,
            windows=Windows.declared(d - p.constant(d)),
            moment=np.zeros((d, d)),
            known=0.0,
            unwidened=None,
            widened=np.zeros(d, np.bool_),
            point=zero,
            centre=zero,
            radius=self._bound,
            start_length=self._bound,
            factor=FIRST_FACTOR,
            spread=self._bound**2,
            target=self._target(0.25),
            pace=1.0,
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
        """Of everybody: moment and gradient at 0, in one question or in parts; gradients; at the end two losses."""
        p, features = self.parameters, self._contrasts.features
        if state.round == p.rounds:
            return None
        everybody, at = np.arange(p.cohort_size, dtype=np.int64), self.iterate(state)
        # Clients differentiate with the ridge, which is public: their centre holds it too, so it cancels exactly.
        centre = p.ridge * at if p.ridge and state.round else None
        smoothing = Moreau(p.smoothing) if p.smoothing and state.round else None  # no hinge's gradient at 0 changes
        task: Task = AverageGradient(at[None, :], (1.0,), centre=centre, smoothing=smoothing)
        if state.round == 0 and not p.parts:
            task = MomentAndGradient(features, at)
        elif state.part < VECTOR and p.parts:
            task = SecondMoment(features)
        elif state.round == p.gradients:
            task = AverageLoss(np.stack([at, np.zeros_like(at)]))
        asked = state.round + min(state.part, p.first)  # questions so far
        return Question(asked, everybody, task, reduction=self._reduction(state) if p.parts else None)

    def update(self, state: WhitenedState, answers: Answers | Sums, noise: NoiseSource) -> Update[WhitenedState]:
        """Release, and step; of a question that is a part of the first message, whiten."""
        if state.part == PARTS or self.parameters.parts:
            sums = summed(answers, self._reduction(state))
            if state.part == PARTS:
                return self.read(state, sums, noise)
            after, entry, present = self.look(state, sums, noise)
            return Update(after, (entry,), {}, {"answered": sums.answered}, present)
        assert isinstance(answers, Answers)
        numbers, answered = answers.values.shape[1] - self.plan.problem.dimension, answers.answered
        factors, rows = Leading(answers.values, numbers), answers.values[:, numbers:].copy()  # no row stays for its end
        entries: tuple[Release, ...] = ()
        while state.part < PARTS:
            sums = self.looking(state).of(rows if state.part == VECTOR else factors, answered)
            state, entry, _ = self.look(state, sums, noise)
            entries += (entry,)
        update = self.read(state, self.reading(state).of(rows, answered), noise)
        return replace(update, releases=(*entries, *update.releases))

    def _reduction(self, state: WhitenedState) -> Any:
        """Return all that is read of the answers to a question."""
        return self.reading(state) if state.part == PARTS else self.looking(state)

    def looking(self, state: WhitenedState) -> Any:
        """Return all that a look at factors, or at the end at gradients, reads."""
        users, features = self.parameters.cohort_size, self._contrasts.features
        stage, whole = divmod(state.part - COLUMNS, 2)
        if state.part < COLUMNS:
            constant = self.parameters.constant(features)
            return ColumnSum(users, state.windows.both, self._unit, constant)
        if state.part == VECTOR:
            return self._of_gradients(VectorLengthSum(users, state.transform, self._bound))
        if whole:
            return ShapedMomentSum(users, state.transform, self._moment_radius(state, stage))
        return LengthSum(users, state.transform, float(features))

    def look(self, state: WhitenedState, sums: Sums, noise: NoiseSource) -> tuple[WhitenedState, Release, float | None]:
        """Release what a look reads: the state after it, the ledger's entry, and who is there."""
        p, features, part = self.parameters, self._contrasts.features, state.part
        (stage, whole), after = divmod(part - COLUMNS, 2), replace(state, part=part + 1)
        if part < COLUMNS:
            columns, constant = p.columns(features), p.constant(features)
            seen = columns.release(sums, noise.stream("columns", part))
            presence = state.presence.seen(seen.presence, columns.presence_deviation)
            windows = narrowed(state.windows, seen, presence.share, columns, constant=constant)
            after = replace(after, presence=presence, windows=windows)
            if part == COLUMNS - 1:
                after = replace(after, transform=state.transform @ scaled(windows, constant=constant))
            return after, columns.entry(), None
        if whole:
            mechanism = p.moment(self.plan.problem.dimension, stage)
            moment = mechanism.release(sums, self._moment_radius(state, stage), noise.stream("moment", stage))
            return self._whitened(after, moment, stage), mechanism.entry(), moment.presence * p.cohort_size
        most = self._bound if part == VECTOR else float(features)
        length = typical_length(p.length().release(sums, noise.stream("length", stage)), p.length(), most)
        if part == VECTOR:
            after = replace(after, start_length=length, radius=min(most, FIRST_FACTOR * length))
        else:
            after = replace(after, typical=min(most, length))
        return after, p.length().entry(), None

    def _moment_radius(self, state: WhitenedState, stage: int) -> float:
        """At which second moments of a typical length are clipped."""
        p = self.parameters
        if p.robust or stage == 0:
            return state.typical
        room = max(1.0, p.resolution / (MOMENTS_FROM * self._contrasts.features))
        return room * state.typical * (1.0 if state.unwidened is None else OPENED)

    def _whitened(self, state: WhitenedState, moment: Moment, stage: int) -> WhitenedState:
        """By a second moment of features that were clipped at a typical length.

        Between the first and the last only where it tells of directions that are narrow; else it waits for the next.
        """
        p, problem = self.parameters, self.plan.problem
        mechanism, constant, groups = p.moment(problem.dimension, stage), p.intercept, problem.beliefs.groups
        between, last = 0 < stage < STAGES - 1, stage == STAGES - 1
        presence = state.presence.seen(moment.presence, mechanism.presence_deviation)
        weight = (mechanism.scale * self._moment_radius(state, stage)) ** -2
        known = state.known + weight
        moment = moment._replace(mean=state.moment + weight / known * (moment.mean - state.moment))
        found = whitening(moment, presence.share, known**-0.5, state.typical, constant=constant, again=between)
        if between and not found.narrow:
            return replace(state, presence=presence, moment=moment.mean, known=known)
        transform, doubt, unwidened = state.transform @ found.transform, found.doubt, state.unwidened
        if between and unwidened is None:
            cautious = whitening(moment, presence.share, known**-0.5, state.typical, constant=constant)
            unwidened = state.transform @ cautious.transform
        if last and (groups or p.outputs > 1):
            transform, doubt = aligned(transform, doubt, groups, constant=constant)
        after = replace(state, presence=presence, transform=transform, doubt=doubt, heard=found.heard)
        if last and unwidened is not None:
            after = replace(after, widened=widened(transform, doubt, unwidened, constant=constant))
        return replace(after, moment=np.zeros_like(moment.mean), known=0.0, unwidened=unwidened)

    def reading(self, state: WhitenedState) -> Any:
        """Return all that a round reads of gradients, or of losses at the end."""
        if state.round == self.parameters.gradients:
            return ChangeSum(self.voting(state))
        users = self.parameters.cohort_size
        return self._of_gradients(NormCountSum(state.radius, users, state.transform, state.centre))

    def _of_gradients(self, own: NormCountSum | VectorLengthSum) -> NormCountSum | VectorLengthSum | ContrastSum:
        return own if self.plan.problem.outputs == 1 else ContrastSum(self._contrasts, own)

    def read(self, state: WhitenedState, sums: Sums, noise: NoiseSource) -> Update[WhitenedState]:
        """Release the mean of these sums, and step; at the end not training, unless users are better off."""
        p, t = self.parameters, state.round
        if t < p.gradients:
            released = p.gradient(self.plan.problem.dimension, t).release(sums, noise.stream("release", t))
            return self.stepped(state, released, sums.answered)
        mean = sums if isinstance(sums, NoisySums) else self.voting(state).unit_mean(sums)
        return self.voted(state, float(p.vote.release(mean, noise.stream("vote", t))[0]), sums.answered)

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
        radii, beyond = extended(state.radii, radius), extended(state.beyond, 1 - released.within / share)
        found = c + radius * released.mean / share
        if self._restores:
            found -= RESTORED * self._law.clipped(theta, float(beyond[t]), self.plan.problem.items_per_user)
        gradients = extended(state.gradients, found)
        variances = extended(state.variances, (radius * mechanism.scale / share) ** 2)
        lately = slice(max(1, t - LATELY), t + 1)
        tail = tail_power(radii[lately], beyond[lately], mechanism.presence_deviation, NEAR_TARGET * state.target)
        so_far = (series[: t + 1] for series in (points, gradients, variances, walks))
        model = GradientModel.of(*so_far, law=self._law)
        if state.alike:
            following, walk, centre = self._strode(state, points, gradients), state.walk, c
            following = self._without_unknown(state, model, following)
            after = replace(state, error=1 / float(np.sum(1 / variances[: t + 1])))
        else:
            state = state if p.sigmoid or t == 0 else replace(state, pace=self._pace(state, found, float(variances[t])))
            gradient, error = model.at(theta, state.walk)
            following, moved = self._moved(state, gradient, error, model)
            following = self._without_unknown(state, model, following)
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
            tail=min(state.tail, tail),
        )
        public = {"radius": radius, "present": share} | self._capped(following)
        diagnostics = {"answered": answered, "clipped_fraction": released.clipped / max(1, answered)}
        present = released.presence * p.cohort_size
        return Update(after, (mechanism.entry(),), public, diagnostics, present)

    def _without_unknown(self, state: WhitenedState, model: GradientModel, point: Vector) -> Vector:
        """A point, (D,), less what is along widened directions of which neither looks nor gradients tell anything."""
        if state.unwidened is None or not state.widened.any():
            return point
        gradient, error = model.at(np.zeros_like(point), state.walk)
        if told(gradient, error, state.widened, constant=self.parameters.intercept):
            return point
        rows = point.reshape(-1, len(state.widened))
        return without(rows, state.widened, state.transform, state.unwidened).ravel()

    def _strode(self, state: WhitenedState, points: Vector, gradients: Vector) -> Vector:
        """By steps of a length, with momentum, of the mean of gradients clipped to a small part of their length.

        With a ridge along the features' own directions that at the usual length of a point is as long as all noise.
        """
        p, parts, t = self.parameters, self._contrasts.parts, state.round
        usual, signal = USUAL * math.sqrt(p.width), along(state.transform, constant=p.intercept)
        noise = math.sqrt(self._contrasts.dimension / sum(scale**-2 for scale in p.gradient_scales))
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
            variances = variance * trusted**2 * variances.ravel()
            wanted = in_groups(known - fall.ravel(), variances, self._groups)
            following = law.solved(wanted, math.sqrt(error), 2 * max(1.0, float(np.linalg.norm(theta))))
        elif p.outputs > 1:
            following = self._approached(state, gradient, error, model)
        else:
            following = self._stepped(state, gradient, variance, model)
        following = within(theta + state.pace * (following - theta), self._largest)
        following = following * fitting(self.plan.problem.domain, self._contrasts.model(state.transform, following))
        return following, float(np.sum((law.gradient(following) - known) ** 2))

    def _pace(self, state: WhitenedState, found: Vector, variance: float) -> float:
        """Share of a step that is taken: less by where the last one was at its lowest, if the end was above its start.

        Of squares a gradient is linear along a step. Few users far out may bend more than looks, which clip them, tell.
        """
        before = state.round - 1
        pull = self.parameters.ridge * state.transform.T @ state.transform  # of a ridge, which releases are without
        step, start = state.point - state.points[before], state.gradients[before] + pull @ state.points[before]
        fell, rises = -float(start @ step), float((found + pull @ state.point) @ step)
        noise = math.sqrt((variance + float(state.variances[before])) * float(step @ step))
        return state.pace * fell / (fell + rises) if 0 < fell < rises - OVERSHOT * noise else state.pace

    def _approached(self, state: WhitenedState, gradient: Vector, error: float, model: GradientModel) -> Vector:
        """Of several classes: where γ is what it should be, by what rounds have learnt of its slope."""
        p, theta, parts = self.parameters, state.point, self._contrasts.parts
        trusted = np.tile(1 / (1 + DOUBT * state.doubt), parts)
        even = np.ones((parts, len(state.doubt)))
        fall, taken = model.step((trusted * gradient).reshape(even.shape), even, np.eye(parts))
        variance = (error + state.spread / (len(theta) * p.cohort_size)) * trusted**2 * taken.ravel()
        signal = np.tile(along(state.transform, constant=p.intercept), parts)
        wanted = in_groups(self._law.gradient(theta) - fall.ravel(), variance, self._groups, signal)
        limit = 2 * max(math.sqrt(p.width), float(np.linalg.norm(theta)))
        return self._law.approached(
            wanted, math.sqrt(error), limit, theta, p.ridge * state.transform.T @ state.transform
        )

    def _stepped(self, state: WhitenedState, gradient: Vector, variance: float, model: GradientModel) -> Vector:
        """By the curvature at θ_t."""
        p, theta, parts = self.parameters, state.point, self._contrasts.parts
        levels, basis = self._law.at(theta)
        h = np.outer(levels, 1 + DOUBT * state.doubt)  # (q, d), of the parts along the basis
        if self._law.level:  # its curvature is known
            h[:, -1] = levels / (1 + FLOOR)
        along, falls = (basis.T @ vector.reshape(parts, -1) for vector in (theta, gradient))
        if p.ridge:  # public and quadratic: its part of gradient and curvature is exact
            pull = p.ridge * state.transform.T @ state.transform
            inverse = np.linalg.inv(np.stack([np.diag(row) for row in h]) + pull)
            parts_of = zip(along, falls, inverse, strict=True)
            wanted = np.stack([own - against @ (fall + pull @ own) for own, fall, against in parts_of])
            variances = variance * np.sum(inverse**2, axis=2)
        else:  # what rounds have learnt of curvatures counts
            step, variances = model.step(falls, h, basis)
            wanted, variances = along - step, variance * variances
        estimate, known = wanted.ravel(), variances.ravel()
        if self._law.level:  # the labels' mean, however far from 0, says nothing of how large slopes are
            level = shrunk(estimate[-1:], known[-1:]) if p.resolution < FAINT_LEVEL else estimate[-1:]
            if state.round == 0 and p.gradients >= LEVEL_ALONE:  # far from it users differ by features, not by slopes
                return np.append(np.zeros(len(estimate) - 1), level)
            slopes = in_groups(estimate[:-1], known[:-1], self._groups[:-1])
            return np.append(slopes, level)
        slopes = in_groups(estimate, known, self._groups)
        following = (basis @ slopes.reshape(parts, -1)).ravel()
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
            target = self._target(self._law.variety(following))
        factor, least = state.factor, MIN_RADIUS * p.start_slope
        fewer = max((max(tail, 0.0) / STEEP) ** 2, MIN_TARGET[p.sigmoid])  # who is far beyond costs most
        near = math.sqrt(spread) / (NEAR[0] * state.start_length)  # where most are right, the few others matter
        several = target if p.robust else target * min(max(near, NEAR[1]), 1.0)
        aimed = several if p.outputs > 1 else target if p.robust else min(target, self._common * fewer)
        if not first:
            surprise = (beyond - aimed) / max(aimed, deviation)
            factor = max(factor * math.exp(0.5 * min(max(surprise, -1.0), 1.0)), FACTORS_FROM)
            if surprise > 1:  # users far away are many: the others, who are near, do not draw the radius in
                least = max(least, state.radius * math.exp(0.5 * min(surprise - 1, 1.0)))
        factor = min(factor, ROBUST_FACTOR) if p.robust else factor
        error = error + LEARNT**2 * moved / d
        radius = min(max(factor * math.sqrt(spread + d * error), least), p.start_slope / MIN_RADIUS)
        if p.robust:
            radius = min(radius, ROBUST_BOUND * self._bound, ROBUST_LENGTHS * state.start_length)
        return replace(state, radius=radius, factor=factor, spread=spread, target=target, error=error)

    def voting(self, state: WhitenedState) -> ClippedSum:
        """To V: losses of users change by √S ‖θ‖, whose gradients are that far from their mean."""
        p, change = self.parameters, math.sqrt(state.spread) * float(np.linalg.norm(state.point))
        return ClippedSum(min(max(MIN_RADIUS**2 * p.vote_bound, change), p.vote_bound), p.cohort_size)

    def voted(self, state: WhitenedState, released: float, answered: int) -> Update[WhitenedState]:
        """By the mean change of the loss of so many users, over V."""
        p, bound = self.parameters, self.voting(state).norm
        accepted = not released > p.vote_scale
        after = replace(state, round=state.round + 1, point=state.point if accepted else 0 * state.point)
        vote = {"vote": bound * released, "error": bound * p.vote_scale, "accepted": accepted}
        public = vote | self._told(state, accepted=accepted)
        return Update(after, (p.vote.entry(),), public, {"answered": answered})

    def _told(self, state: WhitenedState, *, accepted: bool) -> dict[str, float | bool | None]:
        """Return a bound on the excess risk, by what was released before the vote, and what makes it large by name.

        None with rounds that nobody measured. Nor where columns could not be told from noise: the model then says
        little but how many labels there are.
        """
        seen, heard = self.seen(state), state.heard >= HEARD
        left = after(self.plan.problem, self.parameters.rounds, seen) if heard and accepted else None
        grows = left is not None and 2 * seen.growth(self.plan.problem) > left
        named = {"unseen": seen.unseen, "grows": grows, "tailed": seen.tailed}
        return {"left": left, "heard": heard} | named

    def seen(self, state: WhitenedState) -> Observations:
        """Return what a run has released, before its vote, about how far its model is off."""
        p, bends = self.parameters, np.outer(self._law.at(state.point)[0], 1 + DOUBT * state.doubt)
        lost, noise = hidden(state.doubt, constant=p.intercept), 0.5 * state.error * float(np.sum(1 / bends))
        seen = Observations(noise, state.radius, hidden=lost, tail=state.tail)
        pull = p.ridge * state.point.reshape(self._contrasts.parts, -1) @ state.transform.T @ state.transform
        gradient, error = state.centre, state.error
        if state.alike:  # users who were clipped had lengths between C and G₀
            gradient, error = state.gradients[-1] / math.sqrt(ALIKE), float(state.variances[-1]) / ALIKE
        return seen.sure(self._law, state.point, gradient + pull.ravel(), error) if p.sigmoid else seen

    def model(self, state: WhitenedState) -> Vector:
        """L θ, of each part, as predictions."""
        return self._contrasts.model(state.transform, state.point)

    def _sure(self, state: WhitenedState, following: Vector) -> bool:
        """Whether most are predicted right, noise hides by how much: for several even classes and users of one row."""
        p = self.parameters
        near = SURE * min(1.0, ALIKE_BELOW / p.resolution)
        usual = p.outputs > 2 and self.plan.problem.items_per_user == 1 and not p.robust
        if not usual or math.sqrt(state.spread) >= near * state.start_length:
            return False
        return 4 * self._law.variety(following) > EVEN

    @property
    def _unit(self) -> float:
        """What features are multiplied by, so that columns may be as long as 1."""
        return math.sqrt(self._contrasts.features) / self.parameters.feature_norm

    @property
    def _bound(self) -> float:
        """C₀: of a whitened gradient at 0, for a metric that has learnt nothing."""
        return self.parameters.start_slope * math.sqrt(self._contrasts.features)

    @property
    def _restores(self) -> bool:
        """Whether what clipping moves the mean gradient by is foreseen: for one logistic prediction of honest users."""
        return self.parameters.sigmoid and self.parameters.outputs == 1 and not self.parameters.robust

    @property
    def _common(self) -> float:
        """π* of a common label, were it no share: a share that stands out from its noise."""
        nu, beyond = self.parameters.resolution, BEYOND_RESTORED if self._restores else BEYOND
        return beyond / nu * math.pow(max(1.0, nu / SLOWER_FROM), 1 / 3)

    def _target(self, variance: float) -> float:
        """π*: the smaller the rarer a label is."""
        nu, least = self.parameters.resolution, ROBUST_BEYOND if self.parameters.robust else 0.0
        rarity = math.pow(4 * variance, min(max(COARSE / nu, 0.5), 1.0))
        most = MAX_BEYOND[0] - MAX_BEYOND[1] / math.sqrt(self._contrasts.dimension)  # noise grows with D, not bias
        return min(most, max(least, self._common * rarity))

    def _capped(self, point: Vector) -> dict[str, float | bool]:
        """Return whether the bound on predictions held the point, where there is one."""
        if math.isinf(self._largest):
            return {}
        held = float(np.linalg.norm(point)) >= (1 - 1e-9) * self._largest
        return {"cap": self._largest, "capped": held, "feared": self.parameters.robust}

    @property
    def _largest(self) -> float:
        """Root mean square of predictions at most: as far as noise allows, less in fear of adversarial users."""
        p, label = self.parameters, self.plan.problem.beliefs.label_bound
        usual = USUAL * math.sqrt(p.width) if p.sigmoid else math.inf
        if not p.robust:
            return usual * max(1.0, p.resolution / COARSE)
        return ROBUST_LABELS * label if label else max(USUAL * math.sqrt(p.width), 2 * p.start_slope)
