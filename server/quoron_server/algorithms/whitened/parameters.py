"""The public numbers of a run of `whitened-tracking`, and the mechanisms that they make."""

from dataclasses import dataclass

from quoron_privacy.accounts import gdp
from quoron_privacy.gaussian import SPARE, GaussianNoise, mean_sensitivity
from quoron_privacy.means.contrasts import Contrasts
from quoron_privacy.means.free_presence import LogLength, MomentMean
from quoron_privacy.means.free_presence_columns import KINDS, ColumnMean
from quoron_privacy.means.norm_counts import NormCountMean
from quoron_privacy.release import Adjacency, Release, packed
from quoron_server.algorithms.whitened.law import Law
from quoron_server.parameters import Attendance, MaskedRounds, Parameters, PlannedRelease
from quoron_server.problem import Problem

MOST_CONTRASTED = 512  # numbers of a model of several classes, of which a client is told a whole matrix
COLUMNS = 3  # looks at columns
STAGES = 4  # second moments
PARTS = COLUMNS + 2 * STAGES + 1  # those, a length and a second moment as often as that, and the length of a gradient


@dataclass(frozen=True, slots=True)
class WhitenedParameters(Parameters):
    """Public numbers of one run."""

    cohort_size: int  # n: everybody, every round, and every divisor
    rounds: int  # T + 1: T gradients, the first beside the second moment, and a vote
    adjacency: Adjacency
    length_scale: float  # noise of each of the STAGES + 1 logarithms
    column_scale: float  # of each of the COLUMNS means of columns, of rows of length 1
    moment_scales: tuple[float, ...]  # of the STAGES second moments, for a radius of 1
    gradient_scales: tuple[float, ...]  # of the T means, for a radius of 1
    vote_scale: float  # of the mean change of the loss, for a bound of 1
    vote_bound: float  # V at most
    feature_norm: float  # R
    link_curvature: float  # φ₂
    mean_curvature: float  # that steps begin with, at most φ₂
    smoothing: float  # λ of the Moreau envelope that gradients are of; 0 for a loss whose slope does not jump
    start_slope: float  # s₀: |φ'| at the start is at most this
    ridge: float  # λ
    sigmoid: bool  # whether φ' is the logistic function, whose curvature falls as predictions grow
    outputs: int  # K: predictions of an item
    intercept: bool  # whether the last feature is the same for every item
    resolution: float  # ν = nμ_g / √d, with every user
    robust: bool  # whether to clip more, and to bound predictions, in fear of hostile users
    mu: float  # GDP parameter of the whole transcript
    parts: bool = False  # whether the first message is asked in PARTS + 1 questions, each for one release

    @property
    def first(self) -> int:
        """Questions before that of the first gradient."""
        return PARTS if self.parts else 0

    @property
    def gradients(self) -> int:
        """T."""
        return self.rounds - 1

    @property
    def width(self) -> float:
        """By which predictions of K classes are longer together than that of one: (K - 1) / 2, at least 1."""
        return max(1.0, 0.5 * (self.outputs - 1))

    @property
    def law(self) -> Law:
        """What is known of the loss before anybody answers."""
        return Law(self.mean_curvature, self.sigmoid, self.outputs, self.intercept, self.resolution)

    def length(self) -> LogLength:
        """Of the logarithm of a length."""
        return LogLength(self.cohort_size, self.length_scale)

    def constant(self, features: int) -> bool:
        """Whether there is a constant feature beside others."""
        return self.intercept and features > 1

    def columns(self, features: int) -> ColumnMean:
        """Of where columns lie."""
        return ColumnMean(features - self.constant(features), self.cohort_size, self.column_scale)

    def moment(self, dimension: int, stage: int) -> MomentMean:
        """Of features' second moments, as whitened so far, at a stage; for models of `dimension`."""
        return MomentMean(dimension // self.outputs, self.cohort_size, self.adjacency, self.moment_scales[stage])

    def gradient(self, dimension: int, round_: int) -> NormCountMean:
        """Of the gradients of a round: all contrasts are one vector."""
        numbers = Contrasts(dimension // self.outputs, self.outputs).dimension
        return NormCountMean(numbers, self.cohort_size, self.adjacency, self.gradient_scales[round_])

    @property
    def vote(self) -> GaussianNoise:
        """Of clipped changes of the loss, over V."""
        return GaussianNoise(mean_sensitivity(1.0, self.cohort_size, self.adjacency), self.vote_scale)

    def spent(self, dimension: int) -> tuple[float, ...]:
        """μ of every round: all that is released of one answer."""
        features = dimension // self.outputs
        first = [COLUMNS * self.columns(features).effective_mu ** 2, (STAGES + 1) * (self.length().effective_mu ** 2)]
        first += [self.moment(dimension, stage).effective_mu ** 2 for stage in range(STAGES)]
        means = [self.gradient(dimension, round_).effective_mu for round_ in range(self.gradients)]
        return (gdp.compose(*(square**0.5 for square in first), means[0]), *means[1:], self.vote.effective_mu(1))

    def releases(self, dimension: int) -> tuple[PlannedRelease, ...]:
        """Columns, lengths and second moments of the first answers; a mean in each of T rounds; the vote."""
        mus, length, last = self.spent(dimension), self.length(), self.first + self.gradients
        moments = [self.moment(dimension, stage) for stage in range(STAGES)]
        means = [self.gradient(dimension, round_) for round_ in range(self.gradients)]
        columns = self.columns(dimension // self.outputs)
        if self.parts:
            return self._in_parts(columns, length, moments, means)
        return (
            PlannedRelease(columns, columns.entry(), COLUMNS, range(1), mus[0]),
            PlannedRelease(length, length.entry(), STAGES + 1, range(1), mus[0]),
            *(PlannedRelease(each, each.entry(), 1, range(1), mus[0]) for each in moments),
            *(PlannedRelease(each, each.entry(), 1, range(t, t + 1), mus[t]) for t, each in enumerate(means)),
            PlannedRelease(self.vote, self.vote.entry(), 1, range(last, last + 1), mus[last]),
        )

    def _in_parts(
        self, columns: ColumnMean, length: LogLength, moments: list[MomentMean], means: list[NormCountMean]
    ) -> tuple[PlannedRelease, ...]:
        """A round for each, in their order."""
        looked = (columns, columns.entry(), columns.effective_mu)
        made: list[tuple[object, Release, float]] = [looked] * COLUMNS
        asked = (length, length.entry(), length.effective_mu)
        for moment in moments:
            made += [asked, (moment, moment.entry(), moment.effective_mu)]
        made += [asked]
        made += [(mean, mean.entry(), mean.effective_mu) for mean in means]
        made += [(self.vote, self.vote.entry(), self.vote.effective_mu(1))]
        lengths = PlannedRelease(length, asked[1], STAGES + 1, range(COLUMNS, PARTS, 2), asked[2])
        looks = PlannedRelease(columns, looked[1], COLUMNS, range(COLUMNS), looked[2])
        others = (each for each in enumerate(made) if each[1] is not asked and each[1] is not looked)
        return (looks, lengths, *(PlannedRelease(of, entry, 1, range(t, t + 1), mu) for t, (of, entry, mu) in others))

    def masked(self, problem: Problem) -> MaskedRounds | None:
        """A length, a moment, a weighted gradient or a vote; of several classes only with matrices of moderate size."""
        if not self.parts or (self.outputs > 1 and problem.dimension > MOST_CONTRASTED):
            return None
        d, length = problem.dimension, self.length().masked
        pairs = ((length, self.moment(d, stage).masked) for stage in range(STAGES))
        columns = (self.columns(problem.features).masked,) * COLUMNS
        first = (*columns, *(each for pair in pairs for each in pair), length)
        means = (self.gradient(d, round_).masked for round_ in range(self.gradients))
        vote = (("vote", "clipped", 1, 1 / self.cohort_size / self.vote_scale),)
        return MaskedRounds(self.adjacency, tuple((1, rows) for rows in (*first, *means, vote)))

    def cohorts(self) -> tuple[int, ...]:
        """Everybody, every round."""
        return (self.cohort_size,) * (self.first + self.rounds)

    def participations(self) -> int:
        """In every round."""
        return self.first + self.rounds

    def answer_length(self, problem: Problem) -> int:
        """A second moment and a gradient; in parts, one of them."""
        numbers = packed(problem.features), problem.dimension
        return max(numbers) if self.parts else sum(numbers)

    def reads_sums(self) -> bool:
        """In parts."""
        return self.parts

    def long_once(self) -> bool:
        """Of second moments."""
        return True

    def attendance(self, problem: Problem) -> tuple[Attendance, ...]:
        """Told by the shares of every gradient; beside the vote, where one user may be replaced by another.

        In parts by those of second moments, too. A length's is of users who have one above zero (free-presence#p1),
        and that of columns of users who have an item: no round is ended by those.
        """
        told: list[MomentMean | NormCountMean | None] = []
        if self.parts:
            told += [None] * (COLUMNS + 1)
            for stage in range(STAGES):
                told += [self.moment(problem.dimension, stage), None]
        told += [self.gradient(problem.dimension, round_) for round_ in range(self.gradients)]
        halved, vote = self.adjacency == "replace-one", self.vote
        last = Attendance(SPARE * vote.sensitivity / vote.scale if halved else 0.0)
        return (*map(self._told, told), last)

    def _told(self, by: MomentMean | NormCountMean | None) -> Attendance:
        return Attendance(0.0) if by is None else Attendance(1 / (self.cohort_size * by.presence_deviation), told=True)


def drawn(problem: Problem, rounds: int) -> int:
    """Gaussian samples of a run, at most: of every feature as a column, lengths, second moments, T means, a vote."""
    numbers = Contrasts(problem.features, problem.outputs).dimension
    looks = COLUMNS * (KINDS * problem.features + 1) + 2 * (STAGES + 1) + STAGES * (packed(problem.features) + 1)
    return looks + (rounds - 1) * (numbers + 3) + 1
