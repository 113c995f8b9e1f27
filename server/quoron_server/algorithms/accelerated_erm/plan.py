"""Plans of `accelerated-erm`: the best candidates calibrated exactly, and the independent re-check.

Every phase may spend all of (ε, δ), because phases share no user (docs/privacy/accelerated-erm.md#e1).
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from quoron_privacy.accounts import moved
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.release import Adjacency
from quoron_privacy.robust import above_threshold, subsampled_lottery
from quoron_privacy.robust.above_threshold import Series
from quoron_privacy.robust.combinations import Aggregate, Sampling, Test, theorem_for
from quoron_privacy.robust.outlier_mean import RADII, Kappa, Kind, OutlierMean, best_mean, recounted_slack
from quoron_privacy.robust.subsampled_lottery import SubsampledLottery
from quoron_server.algorithms import checks
from quoron_server.algorithms.accelerated_erm.noise import removing
from quoron_server.algorithms.accelerated_erm.parameters import (
    SECRET,
    AcceleratedERMOptions,
    AcceleratedERMParameters,
    Clipped,
    Phase,
    participations,
)
from quoron_server.algorithms.accelerated_erm.search import (
    DRAWN,
    Draft,
    Family,
    Scene,
    estimated,
    families,
    predicted,
    smoothings,
)
from quoron_server.algorithms.accelerated_erm.tested import Numbers
from quoron_server.algorithms.forecast import trivial_risk
from quoron_server.algorithms.info import Chosen
from quoron_server.algorithms.noisy import worth
from quoron_server.algorithms.noisy.draws import DRAWS
from quoron_server.algorithms.noisy.sampled import Sampling as Cohorts
from quoron_server.algorithms.search import Candidate, exactly, ranked, too_few
from quoron_server.parameters import Moves
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Problem

NAME = "accelerated-erm"
THEOREM = "docs/privacy/accelerated-erm.md#e1"
CLIPPED, COINS = "docs/privacy/accelerated-erm.md#e3", "docs/privacy/accelerated-erm.md#e4"
TRIED = 8  # candidates that are calibrated, at most


def plan(problem: Problem, privacy: Privacy, options: AcceleratedERMOptions) -> Chosen:
    """The plan of least predicted risk; among those about as good, one with few gradients.

    Raises UnsoundCombination for a test, aggregate and schedule without a proof, Infeasible naming users that suffice.
    """
    _require(problem, options)
    options = replace(options, kappa=removing(options.kappa, options.aggregate, problem.beliefs.hostile_share))
    scenes = [Scene(problem, privacy, options, smoothing) for smoothing in smoothings(problem, privacy, options)]
    tried: dict[object, Candidate[tuple[Scene, Family, int]]] = {}
    for each in ranked(_candidates(scenes)):
        tried.setdefault(_noise_of(each), each)  # of those with the same noise one is enough
    found = exactly(tried.values(), lambda each: _calibrated(*each.of), most=TRIED)
    if found is None:
        raise _infeasible(scenes[0])
    return found


def verify(plan: RunPlan) -> None:
    """Disjoint phases, each (ε, δ) by its theorem's second route, noise as accounted for, cost as planned."""
    p = plan.parameters_of(AcceleratedERMParameters)
    last = 0
    for phase in p.phases:
        kappa = 2 if isinstance(phase.accounting, Clipped) else phase.accounting.mean.kappa
        theorem_for(p.test, p.aggregate, p.sampling, kappa=kappa)
        if not (last <= phase.first and phase.first + phase.users <= plan.problem.users):
            raise VerificationError(f"Expected phases on disjoint users of {plan.problem.users:,}, got {phase}.")
        last = phase.first + phase.users
        _verify_numbers(plan.problem, p, phase)
        verify_privacy(plan, p.sampling, phase)
    checks.require_usual_cost(plan)


def _verify_numbers(problem: Problem, p: AcceleratedERMParameters, phase: Phase) -> None:
    account = phase.accounting
    clipped = isinstance(account, Clipped)
    mean = account if isinstance(account, Clipped) else account.mean
    checks.require_of(
        NAME,
        phase,
        ("stages of positive length", bool(phase.stages) and min(phase.stages) >= 1),
        ("as many rounds as its stages have", phase.rounds == sum(phase.stages)),
        ("2 <= cohort_size <= users", 2 <= phase.cohort_size <= phase.users),
        ("0 < strength <= smoothness", 0 < phase.strength <= phase.smoothness < math.inf),
        ("regularisation >= 0", 0 <= phase.regularisation < math.inf),
        (f"radius in {RADII}", RADII[0] < phase.radius < RADII[1]),
        (
            "smoothing exactly where the loss is not smooth",
            (p.smoothing is None) == (problem.smoothness is not None),
        ),
        ("everybody asked", p.sampling != "everybody" or phase.cohort_size == phase.users),
        ("an account of this cohort", mean.cohort_size == phase.cohort_size),
        ("the aggregate named", clipped == (p.aggregate == "clipped-mean")),
        ("its weights", clipped or (getattr(mean, "kind", "") == "weighted") == (p.aggregate == "weighted-mean")),
        ("the test named", isinstance(account, SubsampledLottery) == (p.test == "lottery")),
        ("no test named where there is none", clipped == (p.test == "none")),
    )


def verify_privacy(plan: RunPlan, sampling: Sampling, phase: Numbers) -> None:
    """The account is about this schedule, its theorem accepts it, and noise with rounding stays within it."""
    accounting, dimension = phase.accounting, plan.problem.dimension
    epsilon = plan.guarantee.epsilon
    delta = checks.left(plan, gaussians=phase.rounds * dimension, laplaces=phase.rounds + 1)
    often = _recounted_participations(phase, sampling)
    if not delta > 0:
        raise VerificationError(f"Expected a delta above the samplers' error, got {plan.guarantee.delta:g}.")
    if isinstance(accounting, Clipped):
        if accounting.coins != (sampling == "poisson"):
            raise VerificationError(f"Expected an account of cohorts drawn {sampling}, got {accounting}.")
        truth = recounted_mu(accounting, phase.radius, phase.noise_scale, dimension)
        if not accounting.round_mu >= truth * (1 - 1e-12):
            raise VerificationError(f"Expected round_mu >= {truth}, got {accounting.round_mu}: too little noise.")
        return  # all rounds: the registry
    if isinstance(accounting, SubsampledLottery):
        secret = sampling == "without-replacement"
        population = phase.users if secret else phase.cohort_size
        known = accounting.colluders >= 1 or not secret
        if accounting.releases < often or accounting.users != population or not known:
            raise VerificationError(f"Expected an account of {often} releases from {population} users: {accounting}.")
        subsampled_lottery.verify_subsampled(accounting, epsilon, delta)
    else:
        if accounting.participations < often or accounting.releases < phase.rounds:
            raise VerificationError(f"Expected an account of {often} participations, got {accounting.participations}.")
        above_threshold.verify_above_threshold(accounting, epsilon, delta)
    mean = accounting.mean
    widened = 1 + recounted_slack(mean, dimension)
    for shift in (2 * mean.kappa / mean.cohort_size, *mean.shifts):
        truth = moved.mu(phase.radius * shift * widened, phase.noise_scale, dimension)
        if not truth <= shift / accounting.noise_multiplier:
            raise VerificationError(
                f"Expected more noise than noise_scale={phase.noise_scale}: a release is {truth}-GDP."
            )


def _recounted_participations(phase: Numbers, sampling: Sampling) -> int:
    """How often the user is asked who is asked most: of batches on a public schedule by going through the rounds."""
    if sampling != "public-schedule":
        return phase.rounds
    batches = phase.users // phase.cohort_size
    return max(Counter(round_ % batches for round_ in range(phase.rounds)).values(), default=0)


def pairs(p: AcceleratedERMParameters, problem: Problem, adjacency: Adjacency) -> tuple[Pair, ...]:
    """Of the phases, which share no user, where none has a test."""
    found: list[Pair] = []
    for phase in p.phases:
        if not isinstance(phase.accounting, Clipped):
            return ()
        mu = recounted_mu(phase.accounting, phase.radius, phase.noise_scale, problem.dimension)
        numbers = phase.users, phase.cohort_size, phase.rounds, mu, problem.dimension
        drawn: Cohorts = "poisson-replaced" if phase.accounting.coins else "without-replacement"
        found += worth.pairs(drawn, adjacency, *numbers)
    return tuple(dict.fromkeys(found))


def moves(p: AcceleratedERMParameters, problem: Problem) -> list[Moves | None]:
    """min-cohort-free#q4: of the means of phases without a test."""
    del problem

    def once(phase: Numbers) -> Moves | None:
        if not isinstance(phase.accounting, Clipped):
            return None
        return Moves.of(lambda how: moved.rows(phase.radius, phase.cohort_size, how) / phase.noise_scale)

    return [each for phase in p.phases for each in [once(phase)] * phase.rounds]


def recounted_mu(account: Clipped, radius: float, scale: float, dimension: int) -> float:
    """What `round_mu` is at least, by a round's scales alone."""
    far = moved.rows(radius, account.cohort_size, "zero-out" if account.coins else "replace-one")
    return moved.mu(far, scale, dimension)


def _candidates(scenes: list[Scene]) -> Iterator[Candidate[tuple[Scene, Family, int]]]:
    """The best of each family by estimated noise, priced by its gradients."""
    for scene in scenes:
        tried = list(families(scene))
        for family, risks in zip(tried, estimated(scene, tried), strict=True):
            gradients = sum(draft.rounds * draft.cohort for draft in family.drafts)
            yield Candidate(float(risks.min()), (gradients,), (scene, family, int(risks.argmin())))


def _noise_of(each: Candidate[tuple[Scene, Family, int]]) -> object:
    """All that a candidate's noise depends on."""
    _, family, _ = each.of
    return tuple((draft.users, draft.cohort, draft.rounds) for draft in family.drafts)


def _calibrated(scene: Scene, family: Family, place: int) -> Chosen | None:
    """With exact accounts and noise; None where it is no better than not training.

    Infeasible where a test leaves nothing or declared outliers fail it.
    """
    o, radius = scene.options, scene.radius(sum(draft.rounds for draft in family.drafts))
    phases: list[Phase] = []
    for draft, stages, shape in family.at(place):
        phase = Phase(
            first=sum(each.users for each in phases),
            users=draft.users,
            cohort_size=draft.cohort,
            stages=stages,
            regularisation=draft.pull,
            strength=shape.strength,
            smoothness=shape.smoothness,
            radius=radius,
            accounting=_account(scene, draft),
            noise_scale=0.0,
        )
        phases.append(replace(phase, noise_scale=tested_noise_scale(NAME, scene.problem, phase)))
    risk = float(predicted(scene, family, [phase.noise_scale for phase in phases])[place])
    if scene.curvature is not None and not risk < trivial_risk(scene.problem):
        return None
    sampling = scene.sampling(family.drafts[0])
    numbers = AcceleratedERMParameters(_test(o), _aggregate(o), sampling, tuple(phases), scene.smoothing)
    theorem = COINS if sampling == "poisson" else CLIPPED if o.test == "clip" else None
    return Chosen(numbers, risk, theorem=theorem)


def tested_noise_scale(name: str, problem: Problem, phase: Numbers) -> float:
    """`noise_scale`; Infeasible where the outliers that are declared fail the tests."""
    share = problem.beliefs.hostile_share
    if release_chance(phase, share) < 0.5:
        raise Infeasible(name, f"hostile_share={share:g} fails the tests", "more rounds")
    return noise_scale(problem.dimension, phase)


def release_chance(phase: Numbers, outliers: float) -> float:
    """Chance that one release passes its test when that share of the cohort is far from everybody else."""
    size = phase.cohort_size
    near = round((1 - outliers) * size)
    score, accounting = near * near + size - near, phase.accounting
    if isinstance(accounting, Clipped):
        return 1.0
    if isinstance(accounting, SubsampledLottery):
        return accounting.lottery.chance(score)
    margin = (score / size - accounting.threshold) / (accounting.threshold_scale + accounting.score_scale)
    return 1 - 0.5 * math.exp(-margin) if margin > 0 else 0.5 * math.exp(margin)


def _account(scene: Scene, draft: Draft) -> SubsampledLottery | Series | Clipped:
    o, sampling = scene.options, scene.sampling(draft)
    theorem_for(_test(o), _aggregate(o), sampling, kappa=o.kappa or 2)
    return account(
        NAME,
        scene.problem,
        scene.privacy,
        test=_test(o),
        aggregate=o.aggregate,
        kappa=o.kappa,
        users=draft.users if sampling in SECRET else draft.cohort,
        cohort=draft.cohort,
        rounds=draft.rounds,
        often=participations(draft.rounds, draft.users, draft.cohort, sampling),
        forgiven=scene.forgiven(draft.cohort),
        coins=sampling == "poisson",
    )


def account(
    name: str,
    problem: Problem,
    privacy: Privacy,
    *,
    test: Test,
    aggregate: Kind,
    kappa: Kappa | None,
    users: int,
    cohort: int,
    rounds: int,
    often: int,
    forgiven: int,
    coins: bool = False,
) -> SubsampledLottery | Series | Clipped:
    """The mechanism of `rounds` gradients of `cohort` of `users`, any one of them in `often`, with its exact account.

    Its test forgives that the average count misses the cohort by `forgiven`. Raises Infeasible.
    """
    epsilon, delta = privacy.epsilon, _delta_left(problem, privacy.epsilon, privacy.delta, rounds)
    if delta <= 0:
        raise Infeasible(name, f"delta={privacy.delta:g} is below the samplers' error", "a larger delta")
    if test == "none":
        draws = DRAWS["poisson-replaced" if coins else "without-replacement"]
        return Clipped(cohort, draws.round_mu(draws.rate(cohort, users), rounds, epsilon, delta), coins)
    if test == "above-threshold":
        series = above_threshold.calibrate(epsilon, delta, cohort, releases=rounds, participations=often, kappa=kappa)
        return forgiving_series(series, forgiven)
    return subsampled_lottery.calibrate(
        epsilon, delta, users=users, cohort_size=cohort, releases=often, kappa=kappa, kind=aggregate, forgiven=forgiven
    )


def forgiving_series(plan: Series, forgiven: int) -> Series:
    """The same threshold noise, on a core lower by `forgiven`."""
    mean = _lowered(plan.mean, forgiven)
    grown = plan.noise_multiplier * mean.sensitivity / plan.mean.sensitivity * (1 + 1e-12)
    return replace(plan, mean=mean, noise_multiplier=grown)


def _lowered(mean: OutlierMean, forgiven: int) -> OutlierMean:
    lower = mean.core - forgiven
    found = best_mean(mean.cohort_size, lower, mean.kappa, mean.kind) if lower > 0 else None
    if found is None:
        raise Infeasible(NAME, f"{forgiven} of {mean.cohort_size} answers may be far away", "fewer outliers")
    return found


def noise_scale(dimension: int, phase: Numbers) -> float:
    """σ for which every shift, rounding included, keeps to its accounted ratio."""
    if isinstance(phase.accounting, Clipped):
        sensitivity, mu = phase.accounting.sensitivity(phase.radius), phase.accounting.round_mu
        return GaussianNoise.for_mu(sensitivity=sensitivity, mu=mu * (1 - 1e-9), dimension=dimension).scale
    mean, multiplier = phase.accounting.mean, phase.accounting.noise_multiplier
    widened = (1 + phase.accounting.mean.rounding_slack(dimension)) * (1 + 1e-8)
    grid = GaussianNoise(1e-9, 1.0).effective_mu(dimension)  # what rounding to the grid adds to a release's μ
    left = 1 - grid * multiplier / mean.least_shift
    if left < 0.5:
        raise Infeasible(NAME, f"{phase.rounds} rounds are below the resolution of the noise", "fewer rounds")
    return phase.radius * multiplier * widened / left


def _delta_left(problem: Problem, epsilon: float, delta: float, rounds: int) -> float:
    """δ less what the samplers' total variation in one phase adds."""
    lacking = checks.slack(epsilon, gaussians=rounds * problem.dimension, laplaces=rounds + 1)
    return math.nextafter(delta - lacking, -1.0)  # less, however little it is


def _test(options: AcceleratedERMOptions) -> Test:
    return "none" if options.test == "clip" else options.test


def _aggregate(options: AcceleratedERMOptions) -> Aggregate:
    if options.test == "clip":
        return "clipped-mean"
    return "weighted-mean" if options.aggregate == "weighted" else "random-inclusion"


def _require(problem: Problem, options: AcceleratedERMOptions) -> None:
    """ConfigError for options that contradict each other or the problem; UnsoundCombination for unproved ones."""
    if not problem.convex:
        raise Infeasible(NAME, "the loss is not convex", "a convex loss")
    checks.require_options(options, "rounds", "phases", "stages", least=1, above=False)
    checks.require_options(options, "cohort", least=4, above=False)
    checks.require_options(options, "regularisation", "strong_convexity", "smoothing", "radius")
    if options.test == "clip":
        for name, usual in (("aggregate", "weighted"), ("kappa", None)):
            if getattr(options, name) != usual:
                raise ConfigError(f"Expected no algorithm.options.{name} with test='clip', got one: nothing is tested.")
        if options.radius == "guaranteed":
            raise ConfigError("Expected a number for algorithm.options.radius with test='clip', got 'guaranteed'.")
    if options.strong_convexity is not None and not options.strongly_convex:
        raise ConfigError("Expected strongly_convex=true with strong_convexity, got strongly_convex=false.")
    if options.strongly_convex and not (options.strong_convexity or problem.ridge):
        raise ConfigError("Expected strong_convexity or a ridge with strongly_convex=true, got neither.")
    checks.require_rough(problem, options.smoothing)
    parts = (options.phases or 1) if not options.strongly_convex else 1
    small = options.cohort is not None and options.cohort < problem.users // 2 ** max(parts - 1, 0)
    sampling: Sampling = "everybody"
    if small or options.schedule == "coins":
        sampling = DRAWN[options.schedule]
    theorem_for(_test(options), _aggregate(options), sampling, kappa=options.kappa or 2)


def _infeasible(scene: Scene) -> Infeasible:
    """Names about the least number of users for which a plan exists that is worth running."""
    o, n = scene.options, scene.problem.users

    def enough(users: int) -> bool:
        larger = replace(scene, problem=replace(scene.problem, users=users))
        worth = trivial_risk(larger.problem) if larger.curvature is not None else math.inf
        risks = estimated(larger, list(families(larger, few=True)))
        return any(float(risk.min()) < 0.8 * worth for risk in risks)

    rounds = f"{o.rounds} rounds" if o.rounds else "any number of rounds"
    condition = f"{n:,} users are too few for {rounds} at epsilon={scene.privacy.epsilon:g}"
    condition += f", delta={scene.privacy.delta:g}"
    if scene.problem.beliefs.hostile_share:
        condition += f" with hostile_share={scene.problem.beliefs.hostile_share:g}"
    return too_few(NAME, condition, enough, n, otherwise="fewer features, more items a user or a larger epsilon")
