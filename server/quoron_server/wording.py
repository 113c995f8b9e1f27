"""What plans and promises say to people, made last: nothing that is decided asks for these words.

>>> assumption_text(Assumption(Kind.SECRET_COHORTS))
'cohort membership stays secret, but for what one curious client knows of its own'
>>> assumption_text(Assumption(Kind.DECLARED_PARTICIPATION, (0.9,)))
'divisors count on a participation of 0.9, declared in advance; noise is scaled for it'
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType

from quoron_client.protocol.domains import L2Ball, is_free
from quoron_privacy.release import Adjacency, guaranteed
from quoron_server.parameters import Assumption, Kind
from quoron_server.plan import Guarantee, RunPlan
from quoron_server.problem import Problem

# Not an assumption that anybody could make true: the seed stands beside the result, and runs of one seed share noise.
SEEDED = "SIMULATED, with noise from a seed, which protects nobody: who knows it, or sees two runs of it, takes it off."
CURATOR = (
    "anyone who sees the model and all else that this run shows or keeps (the machine that holds the table and "
    "computed the model is trusted)"
)
AGAINST = {
    "central-release": "anyone who sees the released models and each phase's status (clients and coordinator are "
    "trusted)",
    "central-broadcast": "every other client and anyone who sees the released models (the coordinator is trusted)",
    "two-servers": "each of two servers by itself, every other client and anyone who sees the released models, all of "
    "them by efficient means; not against both servers together, nor against their seeing that a user takes part; a "
    "hostile client can move a sum at will, which harms the model and nobody's privacy",
    "local": "the coordinator too",
}
NO_MIN_COHORT = "No minimum cohort is declared: nobody checks whether anyone answers."
MIN_COHORT_THEOREM = "docs/privacy/min-cohort.md#q1"
PUBLIC_PARTICIPATION_THEOREM = "docs/privacy/public-participation.md#pa1"
GAUSSIAN_MIN_COHORT = (
    "docs/privacy/min-cohort.md#q4",
    "docs/privacy/min-cohort.md#q5",
)  # for nothing, and paid for
TWO_SERVERS_THEOREM = "docs/privacy/two-servers.md#ts3"
OUTSIDERS_THEOREM = "docs/privacy/two-servers.md#ts5"
QUALITY_THEOREM = "docs/privacy/data-quality.md#h1"
HELD_OUT_THEOREM = "docs/privacy/evaluation.md#ev1"
ESTIMATES_THEOREM = "docs/privacy/private-bounds.md#b1"

TEXTS: Mapping[Kind, str] = MappingProxyType(
    {
        # That a function raises, prints or keeps something is how it could tell of items besides; nobody can check it.
        Kind.OWN_ROWS: "a row depends on the items of its own user and on what was released before, on no other user's "
        "items, and nothing else that the function does, such as raising or printing, shows anything of them",
        Kind.FORGETFUL_FUNCTION: "the function keeps nothing between rounds that changes later rows",
        Kind.SECRET_DURATION: "nobody learns how many trials there were: how long the search took tells it, to anyone "
        "who sees the clock, the times of files or those of the lifetime ledger",
        Kind.SECRET_ORDER: "nobody learns in which order settings were tried: where some take longer than others, the "
        "time of each trial tells it, to anyone who sees the times of the private file or what the processor does",
        Kind.ROWS_ARE_USERS: "every row is a user of its own, as unit='row' declares",
        Kind.FEATURE_RANGES_PUBLIC: "the ranges of the features, which are those of the data, were public before",
        Kind.CLASSES_PUBLIC: "the classes, which are those of the data, were public before",
        Kind.LABEL_RANGE_PUBLIC: "the range of the label, which is that of the data, was public before",
        Kind.LARGEST_WEIGHT_PUBLIC: "the largest weight of a row, which is that of the data, was public before",
        Kind.CONTRACTING_LOSSES: "every conceivable user's loss is convex, smooth and Lipschitz with the plan's "
        "constants (clients clip features and scale losses)",
        Kind.TRUE_GRADIENTS: "clients compute true, unclipped gradients in float64",
        Kind.ABSENT_IS_OUTLIER: "a user who does not answer counts as an outlier in its own slot",
        Kind.ABSENT_IS_ZERO_ROW: "a user who does not answer counts as the zero row, and divisors stay as planned",
        Kind.ABSENT_IS_ZERO: "a user who does not answer counts as the zero vector, and the divisor stays {}",
        Kind.DECLARED_PARTICIPATION: "divisors count on a participation of {:g}, declared in advance; noise is "
        "scaled for it",
        Kind.ONE_REPORT: "a client answers one question of the run, once, with words of its own",
        Kind.TWO_REPORTS: "a client answers one range and one vector question of the run, once, with words of its own",
        Kind.CARELESS_PARTICIPATION: "whether a client answers does not depend on its data",
        Kind.ONE_KEY_ONE_USER: "a user holds one SuperNode key that the SuperLink has verified, and that node's "
        "answers depend on no other user's items",
        Kind.ONE_PARTITION_ONE_USER: "a user is one partition, whose answers depend on no other user's items",
        Kind.EARLY_ENDS: "only the coordinator sees when a round ends: early ends were accepted, and they tell who was "
        "absent",
        Kind.PERSONS_OF_SILOS: "a user is one person of one silo, and what a silo sends for it, or that it "
        "sends nothing, depends on no other person's items; a person known to two silos is two users, of whom both "
        "together are guaranteed ({:g}, {:.2g})",
        Kind.SILOS_CLIP: "each silo is trusted by its own persons, and by nobody else, to clip their rows and to "
        "add them up",
        Kind.SECRET_COHORTS: "cohort membership stays secret, but for what one curious client knows of its own",
        # A theorem takes a round as a function of its cohort's data and of past releases. Where cohorts have a fixed
        # size, a member who remembers its rounds tells something of who else was asked.
        Kind.FORGETFUL_CLIENTS: "clients keep nothing between rounds that changes their answers",
        Kind.UNMOVED_PARTICIPATION: "whether a client answers does not depend on the iterates that it is asked at",
        Kind.PUBLIC_PARTICIPATION: "who answers is public, by name: whether and when a client's message comes depends "
        "on nobody's items, for a client that is there sends one at its time, whatever it holds",
        Kind.DOMINANT_HESSIANS: "the Hessian of every conceivable user's loss is diagonally dominant (clients bring "
        "features within bounds)",
    }
)


def domain_words(problem: Problem) -> str:
    """Return where the models of a plan live."""
    if is_free(problem.domain, problem.feature_norm or 1.0):
        return "unbounded"
    if isinstance(problem.domain, L2Ball):
        return f"of norm at most {problem.domain.radius:g}"
    return f"of coefficients within ±{problem.domain.half_width:g}"


def reach_words(problem: Problem) -> str:
    """Return what a bounded domain keeps predictions from."""
    reach = problem.radius * (problem.feature_norm or 1.0)
    if problem.beliefs.sigmoid and problem.outputs == 1:
        least = 1 / (1 + math.exp(min(reach, 700.0)))
        return f"no chance is predicted below {100 * least:.2g} % or above {100 - 100 * least:.4g} %"
    labels = problem.beliefs.label_bound
    beside = "" if labels is None else f", where labels are within ±{labels:g}"
    return f"no prediction is beyond ±{reach:g}{beside}"


def assumption_text(assumption: Assumption) -> str:
    """Return what is assumed."""
    return TEXTS[assumption.kind].format(*assumption.of)


def sentence(guarantee: Guarantee) -> str:
    """Return the guarantee in one sentence."""
    if guarantee.trust_model == "none":
        return "No privacy: this is the non-private reference."
    against = CURATOR if guarantee.curated else AGAINST[guarantee.trust_model]
    whom = "person of one silo" if guarantee.rests_on(Kind.PERSONS_OF_SILOS) else "user"
    seen_by = guarantee.adjacency + ("" if guarantee.curated else f", trust model {guarantee.trust_model}")
    assumed, theorem = map(assumption_text, guarantee.assumptions), guarantee.theorem
    words = guaranteed(guarantee.epsilon, guarantee.delta, seen_by, against, theorem, whom=whom, assuming=assumed)
    if guarantee.servers is not None:
        words += f" and {TWO_SERVERS_THEOREM}; ({guarantee.servers.together_epsilon:.4g}, {guarantee.delta:g}) against "
        words += f"anyone who sees nothing but what is released, where both servers keep to it, by {OUTSIDERS_THEOREM}"
        if guarantee.servers.groups > 1:
            words += f", released as the median of {guarantee.servers.groups} public groups of users"
    if guarantee.min_cohort is not None:
        paid = f"{guarantee.min_cohort.epsilon:g} of this ε" if guarantee.min_cohort.epsilon else "nothing"
        theorem = GAUSSIAN_MIN_COHORT[guarantee.min_cohort.each > 0]
        if guarantee.min_cohort.count_scale or guarantee.trust_model == "local":
            theorem = MIN_COHORT_THEOREM
        if guarantee.min_cohort.public:
            theorem = PUBLIC_PARTICIPATION_THEOREM if guarantee.servers is None else TWO_SERVERS_THEOREM
        words += f", and {theorem} for a minimum cohort of {guarantee.min_cohort.share:g}, which costs {paid}"
    if guarantee.data_quality is not None:
        words += f", and {QUALITY_THEOREM} for a check of how well the table fits its public bounds, which costs "
        left = 1.0 if guarantee.estimates is None else 1 - guarantee.estimates.share  # the look has its share of that
        words += f"{guarantee.data_quality.share * left:.2g} of μ²"
    if guarantee.estimates is not None:
        words += f", and {ESTIMATES_THEOREM} for bounds that are estimated privately, which cost "
        words += f"{guarantee.estimates.share:.2g} of μ²"
    if guarantee.held_out is not None:
        words += (
            f", and {HELD_OUT_THEOREM} for figures of {guarantee.held_out.users:,} users or slots, drawn in secret, "
        )
        words += "that are in nothing else; everybody is in one part, so nothing adds up"
    words += "."
    if not guarantee.proved:
        found = "no guarantee." if math.isinf(guarantee.epsilon) else words
        words = f"AS PRINTED in the paper, for comparison in simulations; our accountant finds: {found}"
    return simulated(words) if guarantee.seeded else words


@dataclass(frozen=True, slots=True)
class ReleaseGuarantee:
    """The guarantee of one release for all items of any one user; `statement` is of secret noise."""

    epsilon: float
    delta: float
    statement: str
    adjacency: Adjacency = "replace-one"

    @classmethod
    def central(
        cls, epsilon: float, delta: float, shown: str, theorem: str, adjacency: Adjacency = "replace-one"
    ) -> "ReleaseGuarantee":
        """Return the guarantee for what is `shown` by a trusted machine that holds all items."""
        against = f"anyone who sees these {shown} (the machine that holds the table is trusted)"
        return cls(epsilon, delta, f"{guaranteed(epsilon, delta, adjacency, against, theorem)}.", adjacency)


def simulated(words: str) -> str:
    """Return the sentence of a guarantee where the noise comes from a seed."""
    return f"{SEEDED} With secret noise: {words}"


def plan_json(plan: RunPlan) -> dict[str, object]:
    """Plain nested numbers, strings and lists; what is believed stands among the problem's constants."""
    problem = asdict(plan.problem)
    beliefs = {name: value for name, value in problem.pop("beliefs").items() if value != ()}
    return asdict(plan) | {"statement": sentence(plan.guarantee), "problem": problem | beliefs}


def digest(plan: RunPlan) -> str:
    """Fingerprint of a plan: every number in it, and not how the statement is worded, which follows from them."""
    facts = {name: value for name, value in plan_json(plan).items() if name != "statement"}
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
