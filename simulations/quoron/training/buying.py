"""Buying what nobody declared of a table, out of the run's own promise: planned before the charge, released once.

    prepared = planned(config, base, identity, frame, assumptions)   # a forecast, which is charged as a whole
    found = release(prepared, own)                                   # committed before anybody sees it, once a run
    config = declared(prepared.config, found)                        # what the run goes on with

Which columns, which method and which numbers come afterwards depend on what was released; what each part may cost does
not. Statement and proof: docs/privacy/bought-run.md. What is bought, and how: quoron_privacy.counts.private_bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quoron import config as configs
from quoron.config import Config, TableSection
from quoron.datasets import index
from quoron.evaluating.split import trained_users
from quoron.paths import dataset
from quoron.planning.plans import Plan, Prepared, privacy_of
from quoron.populations.users import Declared, PublicKnowledge
from quoron.simulation.patterns import unread
from quoron.simulation.scene import encoding_of, loss_of, make_domain
from quoron.simulation.scene import problem as problem_of
from quoron.training import evaluated, look, votes
from quoron.training.found import MOST_CLASSES, Declarations, Found, Wanted, source_of, wanted
from quoron.training.room import ELSEWHERE, ONCE, UNCHARGED, memory_for
from quoron.training.start import Identity
from quoron.training.table import check_section, slots
from quoron.training.votes import Released
from quoron_client.data import columns, tables
from quoron_client.data.encoding import Encoding
from quoron_client.data.tables import Opened
from quoron_client.data.users import Numbering
from quoron_privacy.counts.private_bounds import Bought
from quoron_privacy.errors import ConfigError, Infeasible
from quoron_privacy.noise.streams import NoiseSource, SecureNoise
from quoron_privacy.release import Release
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.registered import with_purchases
from quoron_server.parameters import Assumption
from quoron_server.plan import RunPlan, check_delta
from quoron_server.problem import Problem

WIDEST = 32  # categories of one column, at most
Owners = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Undeclared:
    """The users of a table of which something is bought before the run is planned; no other value is looked at yet."""

    source: Opened
    owners: Owners  # (N,) whose each row is
    users: int  # slots, those that are held out among them
    people: bytes  # a digest of who they are: numbers are theirs in all that follows
    wanted: Wanted
    base: Path
    frame: Any
    identity: Identity
    assumptions: tuple[Assumption, ...]
    widest: int  # categories of a column, at most, that still leave a plan
    paid: Bought  # what the forecast of the run estimates
    warnings: tuple[str, ...] = ()  # none before it is planned


def prepared(
    config: Config, base: Path, identity: Identity, frame: Any, assumptions: Sequence[Assumption]
) -> tuple[Undeclared, Plan]:
    """The table, and the forecast that its run is charged by. Raises what `hold` raises, and what `choose` does."""
    section = check_section(config)
    frame = frame.read_all() if isinstance(frame, pa.RecordBatchReader) else frame  # which can be read only once
    source = source_of(section, base, frame)
    asked = wanted(config, base, source, frame)
    with memory_for("the user column of this table", f"{UNCHARGED} {ELSEWHERE}"):
        found, owners, people = _whose(section, base, source, frame)
    users = slots(config, found)
    check_delta(config.privacy.delta, users, allowed=config.privacy.allow_large_delta)
    planned, widest, paid = forecast(config, asked, users, identity.seed, assumptions)
    planned = replace(planned, remarks=(*planned.remarks, *unread(section, source.names)))
    known = source, owners, users, people, asked, base, frame, identity, tuple(assumptions), widest, paid
    return Undeclared(*known), planned


def undeclared(config: Config, base: Path, frame: Any) -> tuple[Wanted, int]:
    """Return what of a table is to be estimated, and how many users there are. Raises what `hold` raises."""
    section = check_section(config)
    source = source_of(section, base, frame)
    return wanted(config, base, source, frame), slots(config, _whose(section, base, source, frame)[0])


def _whose(section: TableSection, base: Path, source: Opened, frame: Any) -> tuple[int, Owners, bytes]:
    """How many users there are, whose each row is, and a digest of who they are, as whoever trains on them has it."""
    people = Numbering(section.user)
    people.add(tables.read(source, [section.user]))
    numbers = people.numbers()
    found, ranks = people.ranks(without_rows=True)
    files = dataset(section.path, base) if frame is None else None
    if files is None:
        return found, ranks[numbers].astype(np.int64), people.digest
    # The index is refused here where it is of other files than now.
    return found, ranks[numbers].astype(np.int64), index.opened(files, section.user).digest.encode()


def forecast(
    config: Config, asked: Wanted, users: int, seed: int, assumptions: Sequence[Assumption]
) -> tuple[Plan, int, Bought]:
    """The whole plan if every column becomes one number, the most categories a column that leave one, what is paid.

    `users` are all, those that are held out among them. Raises what `choose` raises, before anything is charged.
    """
    trained = trained_users(users, config.train.holdout)
    paid = purchases_of(config, asked, trained)

    def at(width: int) -> Plan:
        planned, encoding = _of_width(_seeded(config, seed), asked, trained, paid, width)
        planned = evaluated.with_held_out(planned, config, encoding, users)
        return replace(planned, plan=planned.plan.as_curated(assumptions))

    plan, widest = at(1), WIDEST if any_text(asked) else 1
    privacy, items = plan.plan.guarantee, plan.plan.problem.items_per_user
    if asked.label is not None:  # whatever of it is found, its held-out users are enough
        evaluated.measured_by(privacy, config, users, classes=MOST_CLASSES, cap=max(items, 2), bought=True)
    while widest > 1:
        try:
            wide = at(widest)
        except Infeasible:
            widest //= 2
        else:
            return _told(plan, asked, paid, wide), widest, paid
    return _told(plan, asked, paid, plan), widest, paid


def purchases_of(config: Config, asked: Wanted, users: int) -> Bought:
    """What private bounds cost; Infeasible where that tells nothing, or leaves nothing."""
    return votes.planned(asked.all, users, privacy_of(config), config.privacy.adjacency)


def any_text(asked: Wanted) -> bool:
    """Whether a feature to be estimated may have categories, so that the number of coefficients is not known yet."""
    return any(feature.what != "number" for feature in asked.features)


def plan_of_width(config: Config, asked: Wanted, users: int, width: int) -> RunPlan:
    """Return the plan for so many users if every column of text has `width` categories. Raises what `choose` raises."""
    return _of_width(config, asked, users, purchases_of(config, asked, users), width)[0].plan


def problem_of_width(config: Config, asked: Wanted, users: int, width: int) -> Problem:
    """Return what that plan is for."""
    return _public(_guessed(config, asked, width), users)[0]


def _of_width(config: Config, asked: Wanted, trained: int, paid: Bought, width: int) -> tuple[Plan, Encoding]:
    likely = _guessed(config, asked, width)
    problem, encoding = _public(likely, trained)
    return within(likely, problem, encoding, paid)[0], encoding


def _guessed(config: Config, asked: Wanted, width: int) -> Config:
    texts = [feature.column for feature in asked.features if feature.what != "number"]
    return configured(config, asked, Found.guessed(asked, dict.fromkeys(texts, width)))


def within(config: Config, problem: Problem, encoding: Any, paid: Bought) -> tuple[Plan, str | None]:
    """The plan of a run on a declared table, with a look at it, of what purchases leave; why nobody looks.

    Raises what `choose` raises: Infeasible too where no method is Gaussian as a whole.
    """
    whole = config.privacy
    left = config.model_copy(update={"privacy": whole.model_copy(update={"epsilon": paid.rest_epsilon})})
    registry, named = {name: info for name, info in ALGORITHMS.items() if info.may_be_gaussian}, config.algorithm.name
    while named == "auto" or named in registry or named not in ALGORITHMS:
        planned, why = look.plan(left, problem, encoding, registry)
        if ALGORITHMS[planned.plan.algorithm].gaussian(planned.plan) is not None:
            break
        del registry[planned.plan.algorithm]
    else:
        raise ConfigError(
            f"Expected a method that is Gaussian as a whole where bounds are estimated privately, got algorithm.name="
            f"{named!r}. Declare the columns, or leave the method to the rule."
        )
    plan = with_purchases(planned.plan, paid, whole.epsilon, whole.delta)
    ALGORITHMS[plan.algorithm].verify(plan)
    return replace(planned, plan=plan), why


def release(
    scene: Undeclared, noise: NoiseSource | None = None, among: Owners | None = None
) -> tuple[Released, tuple[Release, ...]]:
    """What is bought `among` users (k,), or of all, with the noise of this start alone, and its entries.

    Call it once the run is charged.
    """
    source = SecureNoise.fresh() if noise is None else noise
    with memory_for("the rows that are looked at", ONCE):
        return votes.release(scene.paid, scene.wanted.all, scene.source, scene.owners, scene.users, source, among)


def read(prepared: Prepared[Undeclared], released: Released) -> Declarations:
    """What was released, as declarations, each with its cost. NothingReleased where no model can be made of it."""
    scene, section = prepared.scene, prepared.config.population
    assert isinstance(section, TableSection)
    given = section.columns
    said = bool(given.numeric or given.hashed or given.dates or any(map(bool, given.categorical.values())))
    type_ = scene.source.schema.get(scene.wanted.label.column) if scene.wanted.label is not None else None
    text = type_ is not None and columns.is_text(type_)
    found = Found.of(scene.wanted, released, paid=scene.paid, widest=scene.widest, known=said, text=text)
    return Declarations(scene.paid, found, scene.wanted)


def configured(config: Config, asked: Wanted, found: Found) -> Config:
    """The configuration with what was found in place of what nobody declared."""
    section = config.population
    assert isinstance(section, TableSection)
    tree = config.model_dump(mode="json", exclude_none=True)
    given = tree["population"]["columns"]
    words = {name: values for name, values in given["categorical"].items() if values}
    given |= {
        "estimate": {},
        "numeric": {
            **given["numeric"],
            **asked.known,
            **{name: list(ends) for name, ends in found.ranges.items()},
        },
        "categorical": {**words, **{name: list(values) for name, values in found.categories.items()}},
        "dates": {**given["dates"], **found.dates},
    }
    if found.label:
        tree["population"]["label"] |= found.label
    if "missing" not in section.columns.model_fields_set:
        given["missing"] = "midpoint"
    if found.items is not None:
        tree["population"]["items_per_user"] = found.items
    if found.rate is not None:
        tree["problem"].setdefault("label_rate", found.rate)
    return configs.from_tree(tree)


def _public(config: Config, users: int) -> tuple[Problem, Encoding]:
    """The problem and the encoding of a declared table of so many users, with no value looked at."""
    assert isinstance(config.population, TableSection)
    loss = loss_of(config)
    encoding = encoding_of(config.population, loss)
    encoding.check_meant(config.population.user)
    known = PublicKnowledge(intercept=encoding.intercept)
    domain = make_domain(config.domain, config.loss.feature_norm)
    items = config.population.items_per_user or 1
    return problem_of(config, Declared(users, items, encoding.dimension * loss.outputs, loss, domain, known)), encoding


def _seeded(config: Config, seed: int) -> Config:
    return config.model_copy(update={"run": config.run.model_copy(update={"seed": seed})})


def _told(planned: Plan, asked: Wanted, paid: Bought, wide: Plan) -> Plan:
    """The forecast with what is bought, in words."""
    remarks = [
        f"{len(asked.all)} facts of the table are not declared: estimating them takes {100 * paid.share:.3g} % of what "
        f"ε pays for, which leaves epsilon={paid.rest_epsilon:.3g} of {planned.plan.guarantee.epsilon:g} for training, "
        "whatever is found."
    ]
    low, high = planned.plan.problem.dimension, wide.plan.problem.dimension
    taken = ["a label of two classes"] * (asked.label is not None)
    taken += [f"{low:,} numbers, the fewest"] * (high > low)
    if taken:
        most = _at_most(wide) if high > low else ""
        remarks.append(f"Before that the forecast is for {' and '.join(taken)}{most}.")
    return replace(planned, remarks=(*planned.remarks, *remarks, *asked.left_out))


def _at_most(wide: Plan) -> str:
    """What is forecast of the most numbers."""
    most = f"{wide.plan.problem.dimension:,}"
    return (
        f"; {most} at most" if wide.forecast is None else f"; the most, {most}, leave {wide.forecast.excess_risk:.2g}"
    )
