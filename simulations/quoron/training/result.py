"""What a data holder's run released, and the files that keep it. Nothing here depends on private data but the releases.

Intervals of coefficients hold both noise and sampling of users. A method whose releases tell no such thing is refused
by name. What is proved, and for which methods nothing is: docs/privacy/one-round-least-squares.md#ui1.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron import __version__
from quoron.evaluation.evaluation import Evaluation
from quoron.model import Intervals, Model
from quoron.planning import forecasts
from quoron.planning.choosing import LIKELY, risk_sentence
from quoron.planning.forecasts import Forecast, forecast_of, no_better_than_start
from quoron.planning.plans import Prepared
from quoron.results import Printed, Run, restored
from quoron.run_folder import MODEL, RunFolder, public_row
from quoron.training import data_quality as checks
from quoron.training import lifetime
from quoron.training.data_quality import DataQualityReport
from quoron.training.table import TableSetup
from quoron_client.data.encoding import in_words, outcomes, seen
from quoron_privacy.histograms.data_quality import Shares
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_server.algorithms.one_round import MAX_COLUMNS, OneRoundParameters, Solved
from quoron_server.algorithms.whitened.method import COMMON, TAILED
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem
from quoron_server.wording import sentence

pages = OnFirstUse("quoron.reports.pages")
MAX_SHOWN = 3  # facts that were estimated, in a summary; the page has all
UNEVEN = 4.0  # eigenvalues of a last pass apart, from which tracking-srgd's forecasts were seen to fail
OUTGROWN = 3.0  # times a plan's bound, TAILED apart: if a run shows more, the plan's bound is not reported
CLEARLY = 3.0  # deviations of a vote's noise: of a model that helps nobody nothing is said in one run of 700
RARE = 0.25  # share of labels below which a class is seldom likelier than all others together: data-quality.md#h4
_SHARE = "`quoron predict --threshold share`, in Python model.predict(rows, threshold='share')"


class DoubtfulModel(UserWarning):
    """By its plan, before anything is charged, or by what its run released, a model is no better than none."""


@dataclass(frozen=True, slots=True)
class EstimatedBound:
    """One fact that was estimated, in words."""

    column: str
    value: str
    error: float  # standard error, in users

    def text(self) -> str:
        """For people."""
        return f"{self.value} (± {self.error:,.0f} users)"


@dataclass(frozen=True, slots=True, repr=False)
class TrainingSummary(Printed):
    """One run in public figures."""

    run: str
    algorithm: str
    statement: str
    private: bool  # always: the noise is secret, and nothing here depends on private data but the releases
    epsilon: float
    delta: float
    adjacency: str
    users: int
    items_per_user: int
    rounds: int
    halted: bool
    predicted_excess_risk: float | None
    group: str
    group_epsilon: float  # of everything charged to the population so far
    group_delta: float
    group_limit: str  # in words
    warnings: tuple[str, ...]  # of what is public: declarations, and the model itself
    unseen: str  # what no warning can be about
    choice: str | None
    guessed_excess_risk: float | None = None  # by the planner's model; without a prediction it is shown as a guess
    estimates: tuple[EstimatedBound, ...] = ()  # what of the table was estimated, with its standard error
    data_quality: DataQualityReport | None = (
        None  # how well the table fits its declarations, by a look with noise; None: nobody looked
    )
    forecast: Forecast | None = None  # what the predicted risk means for the label (planning.forecasts)
    afterwards: Forecast | None = None  # the same of a bound that a method made of what it released
    mu: float | None = None  # all that it releases is μ-GDP up to `variation`; None where nothing of the kind is proved
    variation: float = 0.0
    group_mu: float | None = None  # of everything charged to the population, where all of it is Gaussian
    group_variation: float = 0.0
    group_left: str = ""  # what still fits the group's limit, in words; "" without a limit
    version: str = ""  # of quoron
    evaluation: Evaluation | None = None  # how good the model is for users that were held out; None: nobody was
    overtaken: bool = False  # what the run released says that the plan's forecast may not hold
    doubts: tuple[str, ...] = ()  # of the warnings, which they begin: what casts doubt on the result; never cut

    def excess_risk(self) -> str | None:
        """How far the model is off, by the plan and by what its run released, in a line; None where nobody knows."""
        planned = None if self.overtaken else self.forecast
        risks = ((f"by the plan, {LIKELY}", planned), ("by what the run released", self.afterwards))
        pairs = [(f"{risk.excess_risk:.2g} {word}", risk.words()) for word, risk in risks if risk is not None]
        texts = [f"{text} ({words})" if words else text for text, words in pairs]
        return f"excess risk at most {', '.join(texts)}" if texts else None

    def _beside(self) -> str:
        """Return what the plan's bound is to be read beside."""
        if self.overtaken:
            return " by the plan, which the run does not confirm, see below"
        unfit = (
            " if the table fitted its declarations, see below"
            if self.data_quality and self.data_quality.warnings
            else ""
        )
        after = self.afterwards
        known = f"; {after.excess_risk:.2g} by what the run released" if after is not None and after.sure else ""
        return f"{unfit}{known}"

    def method(self) -> list[tuple[str, str]]:
        """Return what was carried out, what it promises, and how far off the model is."""
        halted = " (a phase was halted: it released nothing new)" if self.halted else ""
        items = "1 item" if self.items_per_user == 1 else f"{self.items_per_user:,} items"
        rows = [
            ("algorithm", self.algorithm),
            ("privacy of one user", f"ε = {self.epsilon:g}, δ = {self.delta:g}, {self.adjacency}"),
            ("users", f"{self.users:,}, planned with {items} each"),
            ("rounds (batch gradient steps)", f"{self.rounds:,}{halted}"),
        ]
        if risk := risk_sentence(self.predicted_excess_risk, self.guessed_excess_risk):
            rows.append(("excess risk, predicted", f"{risk}{self._beside()}"))
        if self.forecast is not None and not self.overtaken and (words := self.forecast.words()):
            rows.append(("that is", words))
        if (after := self.afterwards) is not None:
            said = after.words() or f"excess risk at most {after.excess_risk:.2g}"
            said = said if after.sure else f"nothing is sure: excess risk at most {after.start:.2g}"
            rows.append(("by what the run released", said))
        return rows

    def rows(self) -> list[tuple[str, str]]:
        """Return the label and text of each line: the method, what was learnt of the table, and the price."""
        rows = self.method()
        rows += [(f"estimated: {bound.column}", bound.text()) for bound in self.estimates[:MAX_SHOWN]]
        if len(self.estimates) > MAX_SHOWN:
            rows.append(("and more", f"{len(self.estimates) - MAX_SHOWN:,} facts of the table: declared.toml"))
        if self.data_quality is not None:
            rows += self.data_quality.table()[:1]
        if self.evaluation is not None:
            rows += self.evaluation.rows()
        so_far = f"ε = {self.group_epsilon:.4g} at δ = {self.group_delta:.3g}, limit {self.group_limit}"
        rows.append((f"privacy budget of {self.group!r}", so_far))
        return rows


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TrainedTable(Run[Model]):
    """What was trained on a table, and its public figures."""

    summary: TrainingSummary

    def rows(self) -> list[tuple[str, str]]:
        """Return the first of the summary, how good the model is, and the first warning."""
        measured = [] if self.evaluation is None else self.evaluation.rows()[:2]
        warned = [("warnings", f"{len(self.summary.warnings)}: {warning}") for warning in self.summary.warnings[:1]]
        return [*self.summary.rows()[:5], *measured, *warned]

    @property
    def data_quality(self) -> DataQualityReport | None:
        """Return how well the table fits its public bounds, by a private check; None without that check."""
        return self.summary.data_quality

    @property
    def evaluation(self) -> Evaluation | None:
        """How good the model is for users that were held out, with intervals; None: nobody was held out."""
        return self.summary.evaluation

    @property
    def estimated(self) -> tuple[EstimatedBound, ...]:
        """Return the bounds that were estimated within ε; `declared.toml` in the folder has them as configuration."""
        return self.summary.estimates

    @property
    def plan(self) -> dict[str, Any]:
        """What was fixed before any value was looked at, as plan.json has it."""
        return RunFolder(self.directory).read_json("plan.json")


def write(
    prepared: Prepared[TableSetup],
    folder: RunFolder,
    weights: NDArray[np.float64],
    events: Sequence[Mapping[str, Any]],
    seen: Shares | None = None,
    measured: Evaluation | None = None,
) -> TrainedTable:
    """Keep what a complete run released, what was `seen` of the table and `measured` among it; the result.

    The model comes last: where it is, all of the folder is.
    """
    plan, rows, began = prepared.planned.plan, prepared.setup.rows, prepared.setup.identity.began
    shares = checks.label_shares(rows.encoding, plan.guarantee.data_quality, seen)
    model = Model.released(weights, rows.encoding, rows.declared.loss, plan, made=began, shares=shares)
    summary = _summary(prepared, model, events, seen, measured)
    intervals = intervals_of(model, plan, events)
    known = {"no_interval": f"no interval: {intervals}"} if isinstance(intervals, str) else {"uncertainty": intervals}
    model = replace(model, forecast=summary.excess_risk(), evaluation=measured, **known)
    folder.write_rounds([public_row(event) for event in events])
    folder.write_json("summary.json", summary.as_json())
    pages.write_training(folder, summary, model)
    folder.write_text(MODEL, model.as_text())
    return TrainedTable(model, model.weights, summary.statement, folder.path, summary)


def stored(folder: RunFolder) -> TrainedTable:
    """Return a complete run as its folder keeps it. RunError before it is complete."""
    summary, model = restored(TrainingSummary, folder.summary()), Model.load(folder.path / MODEL)
    return TrainedTable(model, model.weights, summary.statement, folder.path, summary)


def _summary(
    prepared: Prepared[TableSetup],
    model: Model,
    events: Sequence[Mapping[str, Any]],
    seen: Shares | None,
    measured: Evaluation | None,
) -> TrainingSummary:
    plan, setup, section = prepared.planned.plan, prepared.setup, prepared.config.train
    check, group = plan.guarantee.data_quality, section.population
    known = frozenset[str]() if setup.estimates is None else setup.estimates.columns
    quality = None if check is None or seen is None else checks.read(check, seen, setup.rows.encoding, known)
    problem, last = _with_rate(plan.problem, model), _last(events)
    left, overtaken = last.get("left"), tuple(_beyond_forecast(plan, last, problem))
    reasons = *_no_better(last), *overtaken
    doubts = (
        *(reasons or (() if measured else no_better_than_start(plan, left))),  # held-out users say more than a bound
        *(measured.remarks if measured else ()),
        *(quality.warnings if quality else ()),
        *(setup.estimates.left_out if setup.estimates else ()),
        *one_answer(model),
    )
    with lifetime.opened(section.ledger) as ledger:
        spent, account, charge = ledger.spent(group), ledger.account(group), ledger.charged(prepared.name)
        gaussian = all(charge.mu is not None for charge in ledger.charges(group))
    limit = "none"
    if account is not None:  # what the limit counts decides, not what is proved of all runs together
        limit = f"{account.limit.words()} (counted {account.words()}; still fits {account.left_words()})"
    return TrainingSummary(
        run=prepared.name,
        algorithm=plan.algorithm,
        statement=sentence(plan.guarantee),
        private=True,
        epsilon=plan.guarantee.epsilon,
        delta=plan.guarantee.delta,
        adjacency=plan.guarantee.adjacency,
        users=plan.problem.users,
        items_per_user=plan.problem.items_per_user,
        rounds=len(events),
        halted=any(event["public"].get("halted", False) for event in events),
        predicted_excess_risk=plan.predicted_excess_risk,
        guessed_excess_risk=plan.guessed_excess_risk,
        group=group,
        group_epsilon=spent.epsilon,
        group_delta=spent.delta,
        group_limit=limit,
        warnings=(
            *doubts,
            *setup.rows.warnings,
            *(forecasts.at_boundary(model.weights, plan) or forecasts.undeclared(prepared.config, plan)),
            *forecasts.capped(events),
            *_of_columns(events),
        ),
        unseen=checks.unseen(quality, setup.unchecked),
        choice=prepared.planned.choice,
        data_quality=quality,
        estimates=() if setup.estimates is None else setup.estimates.lines(),
        forecast=forecast_of(problem, plan.predicted_excess_risk),
        afterwards=forecast_of(problem, left),
        evaluation=measured,
        overtaken=bool(overtaken) or _outgrown(plan, last),
        doubts=doubts,
        mu=None if charge is None else charge.mu,
        variation=0.0 if charge is None else charge.variation,
        group_mu=spent.mu if gaussian else None,
        group_variation=spent.variation if gaussian else 0.0,
        group_left="" if account is None else account.left_words(),
        version=__version__,
    )


def _with_rate(problem: Problem, model: Model) -> Problem:
    """With the label rate that was released, where the estimates have one of two classes and nobody declared it."""
    released, known = model.label_shares, problem.beliefs
    if released is None or problem.outputs > 1 or not known.sigmoid or known.label_rate is not None:
        return problem
    shares = seen(released.shares, released.error)
    return replace(problem, beliefs=replace(known, label_rate=float(shares[-1] / shares.sum())))


def _last(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return what the last release says; nothing before any."""
    public: Mapping[str, Any] = events[-1].get("public", {}) if events else {}
    return public


def _no_better(last: Mapping[str, Any]) -> Iterator[str]:
    """The vote that ends `whitened-tracking` is released: by how much users' losses fell, each held within a bound."""
    if "vote" not in last or (change := float(last["vote"])) < -CLEARLY * (error := float(last["error"])):
        return
    what = "" if last["accepted"] else ", so it is zero"
    yield (
        f"users are no better off with the model than with none, as far as the noise lets see{what}: their mean loss "
        f"changed by {change:.2g} (± {error:.2g}). Check that ranges are not far wider than the values, that the label "
        "is the one meant, and that rows can be used; else it takes more users or a larger epsilon."
    )


def _beyond_forecast(plan: RunPlan, last: Mapping[str, Any], known: Problem) -> Iterator[str]:
    """Why the forecast does not hold: the label is rare, columns are lost in noise, or the clip radius stayed large."""
    rate = None if plan.problem.beliefs.label_rates or not known.beliefs.label_rates else known.beliefs.label_rates[0]
    if plan.algorithm == "whitened-tracking" and rate is not None and min(rate, 1 - rate) < COMMON:
        yield (
            f"about {100 * min(rate, 1 - rate):.2g} % of the labels are of the rarer class: without problem.label_rate "
            f"the plan's forecast is for {100 * COMMON:g} % or more, and does not hold. Go by what the run released."
        )
    if not last.get("heard", True):
        yield (
            "how columns vary could not be told from noise: beyond a constant the model is mostly noise itself, the "
            "forecast does not hold, and a model that is better than none need not use any column. Declare ranges "
            "nearer to where the values are, or none, which buys them; ask more users, or raise epsilon."
        )
    if last and plan.parameters.forecast_broken(last):
        yield (
            "the clip radius was still at the most that it may be when the run ended: users' answers were longer than "
            "the plan takes them to be, and the forecast does not hold. Columns that are zero for nearly everybody do "
            "that, such as rare categories: leave them out, or merge them; else ask more users, or name "
            "whitened-tracking."
        )


def _of_columns(events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what the run released of how columns vary and of how sure predictions could be."""
    ratios = [event["public"]["unevenness"] for event in events if "unevenness" in event.get("public", {})]
    last = _last(events)
    if ratios and ratios[-1] > UNEVEN:
        yield (
            f"the pilot could not make the columns even: directions still differed by a factor of {ratios[-1]:.1f} in "
            "its last pass, and the forecast does not count on that. Declare ranges nearer to where the values are, "
            "leave out columns that others nearly make up, raise algorithm.options.pilot_share, or ask more users."
        )
    if last.get("unseen", False):
        yield (
            "columns fill very different shares of their ranges, or repeat one another: more than a quarter of the "
            "directions that they span vary too little to be learnt from, and the bound of what the run released takes "
            "it that they matter. Leave out columns that hardly vary, or that others nearly make up; ranges that you "
            "declared may be nearer to where the values are."
        )
    if last.get("grows", False):
        yield (
            "labels can be told almost exactly, and predictions are not yet as sure as they could be: most of the "
            "bound of what the run released is that. Who is ranked above whom is mostly right long before chances are."
        )


def _outgrown(plan: RunPlan, last: Mapping[str, Any]) -> bool:
    """Return whether a run ended without the model, or tells a bound of more than OUTGROWN times the plan's."""
    left, planned = last.get("left"), plan.predicted_excess_risk
    most = OUTGROWN * (TAILED if last.get("tailed") and not plan.problem.beliefs.sigmoid else 1.0)
    larger = left is not None and planned is not None and left > most * planned
    return larger or not last.get("accepted", True)


def one_answer(model: Model) -> tuple[str, ...]:
    """Warnings where 0.5 makes a model answer alike: certain of all rows, or to be expected of a rare class."""
    classes = outcomes(model.encoding.label)
    if not classes:
        return ()
    share = model.label_shares is not None and model.threshold != "share"
    fix = f"Decide by the released share: {_SHARE}." if share else "Give `quoron predict` a --threshold."
    fix = fix if model.loss.name in ("logistic", "softmax") else "More users or a larger epsilon tell classes apart."
    only = model.always()
    if only is not None:
        return (f"the model predicts {in_words(only)!r} for every row, whatever it holds within its ranges. {fix}",)
    shares = model.label_shares
    if shares is None or len(classes) > 2:
        return ()
    rare = [
        (in_words(value), max(share, 0.0))
        for value, share in zip(classes, shares.shares, strict=True)
        if share + 2 * shares.error < RARE and model.loss.name == "logistic" and model.threshold == 0.5
    ]
    return tuple(
        f"about {100 * share:.2g} % (± {100 * shares.error:.2g} %) of the labels are {value!r}: a model whose chances "
        f"are right predicts it for {200 * (share + 2 * shares.error):.2g} % of rows at most, often for none. {fix}"
        for value, share in rare
    )


INSTEAD = "one-round-least-squares releases what tells it, of a label that is a number"


def intervals_of(model: Model, plan: RunPlan, events: Sequence[Mapping[str, Any]]) -> Intervals | str:
    """Return 95 % intervals in the order and units of the model's coefficients; or in words why there are none."""
    p, name = plan.parameters, plan.algorithm
    if model.encoding.bends:
        return "a model of curves has no coefficient for each column"
    if model.encoding.normalize:
        return "rows were divided by their own length, so there are no coefficients in the columns' units"
    if name == "whitened-tracking":
        return (
            f"{name} clips users' gradients at a radius that it learns, and how far that moves the model is not "
            f"released; {INSTEAD}"
        )
    if not isinstance(p, OneRoundParameters):
        return f"{name} releases no second moment of features and label; {INSTEAD}"
    if model.loss.name != "least_squares":
        return f"one step from zero, which {name} takes, is not the best model of a {model.loss.name} loss"
    packed = events[-1].get("public", {}).get("moment") if events else None
    if packed is None:
        return f"the moment of more than {MAX_COLUMNS} columns is not kept"
    d = len(model.weights)
    upper = np.zeros((d + 1, d + 1))
    upper[np.triu_indices(d + 1)] = packed
    free = _free(model)
    solved = Solved.of(upper + np.triu(upper, 1).T, p, free)
    if solved is None:
        return "some direction of the columns cannot be told from noise; it takes more users, or fewer columns"
    return _in_units(model, solved, free)


def _in_units(model: Model, solved: Solved, free: Any) -> Intervals:
    """Every coefficient is a linear function of the weights, and a constant; None of one that no row determines."""
    zero = _coefficients(replace(model, weights=np.zeros_like(model.weights)))
    units = np.stack([_coefficients(replace(model, weights=row)) - zero for row in np.eye(len(model.weights))], axis=1)
    intervals: list[tuple[float, float] | None] = []
    for direction, constant in zip(units, zero.tolist(), strict=True):
        if np.abs(free @ direction).max(initial=0.0) > 1e-9 * np.abs(direction).max():
            intervals.append(None)
            continue
        along = solved.along(direction)
        farthest = float(max(-model.lowest_score(sign * along[None]).item() for sign in (1.0, -1.0)))
        middle, half = float(constant + direction @ solved.point), solved.reach(along, farthest)
        intervals.append((middle - half, middle + half))
    return tuple(intervals)


def _free(model: Model) -> Any:
    """Directions in which no row tells anything, (k, d): every row has one value of each column of categories.

    So a number added to all values of one and taken off the constant, or off another such column, changes nothing.
    """
    width, place, blocks = len(model.weights), 0, []
    for feature in model.encoding.features:
        if not feature.is_number:
            blocks.append(np.isin(np.arange(width), np.arange(place, place + feature.width)).astype(float))
        place += feature.width
    if model.encoding.intercept:
        blocks.append(np.eye(width)[place])
    return np.array([block - blocks[-1] for block in blocks[:-1]]).reshape(-1, width)


def _coefficients(model: Model) -> Any:
    return np.append(model.coef_, model.intercept_)
