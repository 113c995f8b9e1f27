"""The default algorithm: a rule over feasible plans, and one sentence that says why.

The rule, in order, over the plans that are feasible and predicted to be better than not training:

1. an untrusted coordinator leaves only plans of trust models `two-servers` and `local` (the caller passes no others);
2. declared outlier users: where users are publicly known to be alike in every direction, the least predicted risk of
   those that remove outliers, up to ten times the recommended's. Elsewhere removal left most in all that was measured
   (docs/results.md, "Adversarial users"): up to one in twenty change nothing but the sentence; of more, the recommended
   method, which asks and clips each once, and removal where that is infeasible;
3. a method whose own rule of n, d, ε and what may be asked takes the problem (`Policy.rule`): everybody may be
   asked in every round, or a budget of one round; with budget.max_rounds that of the least bound. Such rules were fixed
   on some tables and tested on others (docs/choosing.md). Where each user has a machine of its own, and users are
   publicly known to be alike in every direction, the recommended method comes first if its bound is no larger;
4. the recommended method, unless many passes predict less than half its risk;
5. many passes, where that or infeasibility rules the recommended method out;
6. the least predicted risk of all.

Predicted risks are compared as the planners' models give them, all of one kind. The sentence states a bound that holds
in nine of ten tables like those measured, or, where there is none, the guess by that name. The rule reads plans and
what the registry says about an algorithm, never data. Plans that exceed the budget are none.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quoron_privacy.errors import Infeasible, QuoronError
from quoron_server.algorithms import RegisteredAlgorithm
from quoron_server.plan import Decision, PolicyInputs, RunPlan, TrustModel
from quoron_server.problem import Problem

RECOMMENDED = "tracking-srgd"
LIKELY = "in nine of ten tables like those measured"  # in fewer of odd ones (docs/comparing.md)
REMOVAL_WORTH = 10.0  # times the recommended method's predicted risk is a fair price for removing outliers
BEARABLE = 0.05  # declared share of outlier users up to which what is best without them leaves least with them
WORTH = 2.0  # times the least predicted risk of many passes is a fair price for asking everybody once

ALIKE = "users are publicly known to be alike in every direction, so that asking each once will do"

SHOWS: Mapping[TrustModel, str] = {
    "central-release": "shows un-noised models to the coordinator and the clients asked",
    "central-broadcast": "keeps every broadcast private",
    "two-servers": "shows no answer to either of two servers",
    "local": "keeps every answer private",
    "none": "keeps nothing private",
}
UNSEEN: tuple[TrustModel, ...] = ("two-servers", "local")  # under which no coordinator sees an answer
TRUSTED = None, "central-release", "central-broadcast"  # values of privacy.trust_model under which it does
STRICTER: Mapping[str | None, tuple[TrustModel, ...]] = {  # by privacy.trust_model: those of plans that keep to it
    **dict.fromkeys((None, "central-release"), ("central-release", "central-broadcast", "local")),
    "central-broadcast": ("central-broadcast", "local"),
    "two-servers": UNSEEN,
    "local": ("local",),
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one algorithm would do for this problem: a plan, or why there is none."""

    algorithm: str
    plan: RunPlan | None
    refusal: QuoronError | str = ""  # why it is infeasible

    @property
    def reason(self) -> str:
        """The refusal in words; read it only to show it, as an n in it is then searched for."""
        return str(self.refusal)

    @property
    def users(self) -> int | None:
        """How many users would make it feasible, where that is known; searched for as well."""
        return self.refusal.users if isinstance(self.refusal, Infeasible) else None

    @property
    def predicted(self) -> float | None:
        """Predicted excess risk: a bound for nine of ten tables like those measured; None where there is none."""
        return self.plan.predicted_excess_risk if self.plan else None

    @property
    def guess(self) -> float | None:
        """What its planner's model says, before it was made a bound: the rule compares these."""
        return self.plan.guessed_excess_risk if self.plan else None

    @property
    def risk(self) -> float | None:
        """The bound, or the guess where there is none."""
        return self.guess if self.predicted is None else self.predicted

    def record(self) -> dict[str, Any]:
        """Return one row of a table of candidates; figures are None where it is infeasible."""
        cost, users = (None, 1) if self.plan is None else (self.plan.cost, self.plan.problem.users)
        return {
            "algorithm": self.algorithm,
            "feasible": self.plan is not None,
            "rounds": cost and cost.rounds,
            "predicted_excess_risk": self.predicted,
            "guessed_excess_risk": self.guess,
            "bytes_per_user": cost and (cost.bytes_up + cost.bytes_down) / users,  # float64 payload
            "infeasible": self.reason or None,
        }


def risk_words(bound: float | None, guess: float | None) -> str:
    """Return a forecast in a table: a bound as a number, a guess by that name where there is no bound, or nothing.

    >>> risk_words(3e-5, 1e-5), risk_words(None, 1e-5), risk_words(None, None)
    ('3e-05', 'guess: 1e-05', '')
    """
    if bound is not None:
        return f"{bound:.2g}"
    return "" if guess is None else f"guess: {guess:.2g}"


def risk_sentence(bound: float | None, guess: float | None) -> str:
    """Return the same in a sentence.

    >>> risk_sentence(3e-5, 1e-5), risk_sentence(None, 1e-5)
    ('at most 3e-05 in nine of ten tables like those measured', '1e-05 by a guess that nobody has measured')
    """
    if bound is not None:
        return f"at most {bound:.2g} {LIKELY}"
    return "" if guess is None else f"{guess:.2g} by a guess that nobody has measured"


def refusals(candidates: Iterable[Candidate]) -> list[tuple[str, tuple[str, ...]]]:
    """Every reason against a plan once, in words that fit behind a list of names, with the algorithms it rules out."""
    reasons: dict[str, list[str]] = {}
    for candidate in candidates:
        if candidate.plan is None:
            reasons.setdefault(_nameless(candidate), []).append(candidate.algorithm)
    return [(reason, tuple(names)) for reason, names in reasons.items()]


def _nameless(refused: Candidate) -> str:
    """Return a candidate's reason without its name, so that equal reasons are equal texts."""
    name = refused.algorithm
    text = refused.reason.removeprefix("Infeasible: ").removeprefix(f"{name}: ").removeprefix(f"{name} ")
    return re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "it", text)


def automatic(
    candidates: Sequence[Candidate],
    algorithms: Mapping[str, RegisteredAlgorithm],
    problem: Problem,
    *,
    trusted: bool = True,
    allowed: PolicyInputs,
) -> tuple[RunPlan, str]:
    """Return the plan that the rule takes, and why in one sentence.

    `candidates` have a plan only where it is feasible, within the budget and worth running. Raises Infeasible when no
    candidate that the rule allows has one.
    """
    able = [one for one in candidates if trusted or not {*UNSEEN}.isdisjoint(algorithms[one.algorithm].trust_models)]
    if not able and not trusted:
        raise Infeasible(
            "auto",
            "privacy.trust_model asks for two-servers or local, and no algorithm here has either",
            "a coordinator that may see answers (another privacy.trust_model)",
        )
    if not any(candidate.plan for candidate in able):
        which = "every algorithm" if trusted else "every algorithm of trust model two-servers or local"
        reasons = ". ".join(f"{', '.join(names)}: {reason.rstrip('.')}" for reason, names in refusals(able))
        raise Infeasible(which, reasons, "more users or a larger epsilon")
    chosen, because, notes = _rule(able, algorithms, problem, allowed)
    untrusted = "the coordinator is not trusted with answers, which leaves trust models two-servers and local"
    trust = () if trusted else (untrusted,)
    reasons = "; ".join((*trust, *because, _facts(chosen), *notes))
    assert chosen.plan is not None
    return chosen.plan, f"{chosen.algorithm}: {reasons}."


def ruled(candidate: Candidate, algorithms: Mapping[str, RegisteredAlgorithm], allowed: PolicyInputs) -> bool:
    """Return whether a candidate is taken by its own rule, whatever others there are."""
    return _verdict(algorithms[candidate.algorithm], candidate, allowed).taken


def _rule(
    candidates: Sequence[Candidate],
    algorithms: Mapping[str, RegisteredAlgorithm],
    problem: Problem,
    allowed: PolicyInputs,
) -> tuple[Candidate, tuple[str, ...], tuple[str, ...]]:
    """Return the chosen candidate, and what has to be said before its own facts and behind them."""
    feasible = [candidate for candidate in candidates if candidate.plan]
    recommended = next((candidate for candidate in candidates if candidate.algorithm == RECOMMENDED), None)
    because: tuple[str, ...] = ()
    if problem.beliefs.hostile_share > 0:
        robust, why = _with_outliers(candidates, algorithms, problem)
        because = (why,)
        if robust is not None:
            return robust, because, ()
    notes: tuple[str, ...] = ()
    limited = allowed.budget.max_rounds is not None  # of all that their rules take the least, so that more never harms
    for candidate in sorted(feasible, key=_bound) if limited else feasible:
        verdict = _verdict(algorithms[candidate.algorithm], candidate, allowed)
        if verdict.taken and recommended is not None and _once_will_do(recommended, candidate, problem, allowed):
            return recommended, because, (ALIKE,)
        if verdict.taken:
            return candidate, (*because, verdict.because), ()
        notes += (verdict.because,) if verdict.because else ()
    for candidate in candidates:
        choosing = algorithms[candidate.algorithm].policy
        if choosing.rule is not None and choosing.many_passes and isinstance(candidate.refusal, Infeasible):
            notes += (f"{candidate.algorithm} is not feasible here ({_nameless(candidate).rstrip('.')})",)
    feasible = [one for one in feasible if algorithms[one.algorithm].policy.rule is None] or feasible
    many = [candidate for candidate in feasible if algorithms[candidate.algorithm].policy.many_passes]
    best_many = _least(many) if many else None
    if recommended is not None and _worth(recommended, best_many):
        return recommended, because, notes
    passed_over = () if recommended is None else (_passed_over(recommended, best_many, problem),)
    return best_many or _least(feasible), (*because, *passed_over), notes


def _with_outliers(
    candidates: Sequence[Candidate], algorithms: Mapping[str, RegisteredAlgorithm], problem: Problem
) -> tuple[Candidate | None, str]:
    """Return what is taken because some users are declared outliers, or None, and what is to be said of it."""
    share = f"{100 * problem.beliefs.hostile_share:.3g} % of users are declared outliers"
    recommended = next((one for one in candidates if one.algorithm == RECOMMENDED and one.plan), None)
    filters = [candidate for candidate in candidates if algorithms[candidate.algorithm].policy.removes_outliers]
    able = [candidate for candidate in filters if candidate.plan]
    alike = problem.beliefs.isotropic is not None
    limit = float("inf") if recommended is None else REMOVAL_WORTH * _risk(recommended)
    removing = [candidate for candidate in able if _risk(candidate) <= limit]
    if removing and (alike or (recommended is None and problem.beliefs.hostile_share > BEARABLE)):
        return _least(removing), f"{share}, and it removes outliers"
    if problem.beliefs.hostile_share > BEARABLE and recommended is not None:
        return recommended, f"{share}, who may bias it: everybody is asked and clipped once, which bears most"
    if able:
        return None, f"{share}, who may bias it: what removes them would leave more"
    needed = [(candidate.users, candidate.algorithm) for candidate in filters if candidate.users is not None]
    fewest = f" ({min(needed)[1]} needs n >= {min(needed)[0]:,})" if needed else ""
    return None, f"{share}, who may bias it: no algorithm that removes outliers is feasible{fewest}"


def too_many_outliers(problem: Problem, info: RegisteredAlgorithm) -> tuple[str, ...]:
    """That so many declared outliers are more than any method bears that removes none (docs/results.md)."""
    if problem.beliefs.hostile_share <= BEARABLE or info.policy.removes_outliers:
        return ()
    return (
        f"Of {100 * problem.beliefs.hostile_share:.3g} % hostile users the forecast knows nothing, and nothing "
        "here is good against so many: at 10 % the worst of three attacks left a quarter of the start's excess risk at "
        "least, and up to 13 times it.",
    )


def _verdict(info: RegisteredAlgorithm, candidate: Candidate, allowed: PolicyInputs) -> Decision:
    """Return whether the method's own rule takes its plan."""
    rule = info.policy.rule
    return Decision(False) if rule is None or candidate.plan is None else rule(candidate.plan, allowed)


def _once_will_do(recommended: Candidate, ruled: Candidate, problem: Problem, allowed: PolicyInputs) -> bool:
    """Return whether users who are alike in every direction, each on another machine, are asked once instead.

    No metric is to be learnt of them, and the least bound is taken, so that more users never leave more.
    """
    if allowed.everybody or problem.beliefs.isotropic is None or recommended.predicted is None:
        return False
    return ruled.predicted is not None and recommended.predicted <= ruled.predicted


def _worth(recommended: Candidate, best_many: Candidate | None) -> bool:
    """Return whether the recommended method is feasible and predicts at most WORTH times the risk of many passes."""
    if recommended.guess is None:
        return False
    return best_many is None or recommended.guess <= WORTH * _risk(best_many)


def _passed_over(recommended: Candidate, best_many: Candidate | None, problem: Problem) -> str:
    """Return why the recommended method was not taken."""
    name = recommended.algorithm
    if recommended.plan is None:
        if recommended.users is not None and recommended.users > problem.users:
            return f"n={problem.users:,} is small: one pass of {name} needs n >= {recommended.users:,}"
        return f"{name} is not feasible here ({_nameless(recommended).split('. ')[0].rstrip('.')})"
    if recommended.guess is None or best_many is None:
        return f"nothing is predicted for {name}"
    return (
        f"one pass cannot do as well here: by its model {name} leaves an excess risk of {recommended.guess:.2g}, more "
        f"than {WORTH:g} times this one's"
    )


def _facts(chosen: Candidate) -> str:
    """Return what the plan asks of users, shows to others and predicts."""
    plan = chosen.plan
    assert plan is not None
    times = plan.cost.messages / plan.problem.users
    often = "at most once" if plan.schedule.participations == 1 else f"about {times:.3g} times"
    risk = risk_sentence(chosen.predicted, chosen.guess)
    predicts = f"predicts an excess risk of {risk}" if risk else "predicts nothing"
    return f"asks every user {often}, {SHOWS[plan.guarantee.trust_model]}, and {predicts}"


def _least(candidates: Iterable[Candidate]) -> Candidate:
    return min(candidates, key=_risk)


def _bound(candidate: Candidate) -> float:
    return float("inf") if candidate.predicted is None else candidate.predicted


def _risk(candidate: Candidate) -> float:
    return float("inf") if candidate.guess is None else candidate.guess
