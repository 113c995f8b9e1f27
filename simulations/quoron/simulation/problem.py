"""From a configuration to the things a run needs: population, public problem, engine, and how to measure a model."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from quoron import config as configs
from quoron.config import Config, Dates, DomainSection, LossSection, Simulated
from quoron.data import Outliers, Population, Synthetic
from quoron.data.users import Answering, Declared, Vector
from quoron.engine.inline import InlineEngine
from quoron.paths import dataset
from quoron.run_folder import FRAME
from quoron.simulation import wildcards
from quoron_client.data.encoding import Encoding, Range, Signs, Weight
from quoron_client.data.features import Categorical, DateNumber, DatePart, Hashed, Numeric, day_number
from quoron_client.losses import (
    Classification,
    LeastSquares,
    Linear,
    Logistic,
    Loss,
    Regression,
    Softmax,
    loss_family,
    make_loss,
)
from quoron_client.protocol.domains import Box, Domain, L2Ball, free_ball
from quoron_privacy.accounts.gdp import mu_for
from quoron_privacy.errors import ConfigError
from quoron_server.algorithms.slots import partition
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem, Wide
from quoron_server.rounds import Engine, Evaluate

if TYPE_CHECKING:  # only a table needs these
    import pyarrow as pa

    from quoron.data.table import TablePopulation


LABEL = "label"  # of made-up users, as a column
REMEMBERED = 1 << 26  # numbers of made-up items that are kept: 256 MB
NARROW = 3.0  # radius of the domain times the feature norm where none is declared, for methods whose noise needs one


@dataclass(frozen=True, slots=True, eq=False)
class Setup:
    """One configuration, ready to plan and run."""

    population: Population
    problem: Problem
    engine: Engine
    measured: bool = True  # whether models are

    def settled(self, plan: RunPlan) -> "Setup":
        """The same with the problem of a plan, whose models may have a domain of their own; users are read as asked."""
        population, engine, problem = self.population, self.engine, plan.problem
        if problem.domain != population.domain:
            population = replace(cast(Any, population), domain=problem.domain)
        if plan.asks_everybody and (read_in := getattr(population, "read_in", None)) is not None:
            population = read_in(np.arange(population.users))
        if population is not self.population:
            engine = engine.over(population) if isinstance(engine, InlineEngine) else engine
        return Setup(population, problem, engine, self.measured)

    def remembering(self, plan: RunPlan) -> "Setup":
        """The same with made-up users kept in memory, where they are asked again and again and are not too many."""
        population, engine = self.population, self.engine
        if not isinstance(population, Synthetic) or not isinstance(engine, InlineEngine):
            return self
        items = population.users * population.items_per_user
        if plan.cost.gradient_evaluations < 3 * items or items * population.dimension > REMEMBERED:
            return self
        population = replace(population, in_memory=True)
        return replace(self, population=population, engine=engine.over(population))

    @property
    def evaluate(self) -> Evaluate | None:
        """What measures the models of a run's rounds; None with `run.evaluate = false`."""
        return self.risk if self.measured else None

    @property
    def truth(self) -> "Synthetic | TablePopulation":
        """The users with what a model is compared with; of files it is read when it is first asked for."""
        people: Any = self.population
        return cast("Synthetic | TablePopulation", getattr(people, "truth", people))

    def risk(self, model: Vector) -> Mapping[str, float]:
        """Excess risk of a model over the infimum, in its domain or not; of a large table by a sample."""
        if isinstance(truth := self.truth, Synthetic):
            return {"excess_risk": truth.excess_risk(model)}
        return truth.risk_by_sample(model)


def setup(config: Config, folder: Path, table: "pa.Table | None" = None, population: Population | None = None) -> Setup:
    """What a run of `config` needs; a table's relative path is taken relative to `folder`, unless `table` is given.

    A `population` that was made before, of the same configuration, is not made again.
    """
    population = _population(with_columns(config, folder, table), folder, table) if population is None else population
    dropout = config.run.dropout
    engine = InlineEngine(population, seed=config.run.seed, dropout=dropout)
    return Setup(population, problem(config, population), engine, config.run.evaluate)


def problem_for_real(config: Config, population: Population) -> Problem:
    """The same for plans: of a table with everybody whom `quoron train` asks, and not only those a simulation does.

    A simulation holds `test_fraction` of them out. Under zero-out as many are asked as are declared.
    """
    if not isinstance(config.population, configs.TableSection):
        return problem(config, population)
    slots = config.population.users if config.privacy.adjacency == "zero-out" else None
    table = cast(Any, population)
    return problem(config, Declared(**table.public() | {"users": slots or table.total_users}))


def problem(config: Config, population: Declared | Answering) -> Problem:
    """Return the public constants of the optimisation problem."""
    loss, known, section = population.loss, population.knowledge.beliefs, config.problem
    wide = _free(config, population)
    return Problem(
        users=population.users,
        items_per_user=config.population.items_per_user or population.items_per_user,
        dimension=population.dimension,
        domain=population.domain,
        lipschitz=loss.lipschitz(population.domain, population.dimension),
        smoothness=loss.smoothness,
        user_smoothness=_user_smoothness(config, population),
        start_gradient=loss.start_gradient,
        feature_norm=loss.feature_norm,
        link_curvature=loss.curvature,
        ridge=loss.ridge,
        coordinate_lipschitz=loss.coordinate_lipschitz(population.domain, population.dimension),
        coordinate_smoothness=loss.coordinate_smoothness(population.dimension),
        wide=wide,
        outputs=loss.outputs,
        beliefs=replace(
            known,
            distance=None if wide is None else population.domain.norm_bound(population.dimension),
            gradient_deviation=section.gradient_deviation or known.gradient_deviation,
            hostile_share=section.adversarial_share if section.adversarial_share is not None else known.hostile_share,
            sigmoid=isinstance(loss, Logistic | Softmax),
            label_bound=loss.label_bound if isinstance(loss, Regression) else None,
            start_loss=loss.start_loss,
            label_rate=section.label_rate if isinstance(loss, Classification) else None,
            label_unit=_label_unit(config, loss),
        ),
    )


def _label_unit(config: Config, loss: Loss) -> float | None:
    """Return what one unit of a prediction is in the label's own, for squares: of a table by its label's range."""
    if not isinstance(loss, LeastSquares):
        return None
    label = getattr(config.population, "label", None)
    if label is None or label.range is None:
        return 1.0
    low, high = label.range
    return Range("", low, high, loss.label_bound).unit


def _free(config: Config, population: Declared | Answering) -> Wide | None:
    """Models of a table are free where no radius is declared, of methods whose noise does not depend on one."""
    section, loss = config.domain, population.loss
    if (
        section.radius is not None
        or section.kind != "l2-ball"
        or not isinstance(config.population, configs.TableSection)
        or (loss.name == Linear.name and not loss.ridge)  # which is least at the domain's end
    ):
        return None
    domain = free_ball(loss.feature_norm)
    wide = Wide(domain, loss.lipschitz(domain, population.dimension))
    # Of a loss that is not smooth, predictions and steps rest on the bound itself.
    steady = wide.lipschitz == loss.lipschitz(population.domain, population.dimension)
    return wide if steady or loss.smoothness is not None else None


def _user_smoothness(config: Config, population: Declared | Answering) -> float | None:
    """β_u, by the rule or the number of the configuration."""
    rule = config.problem.user_smoothness
    if not isinstance(rule, str):
        return rule
    if rule == "item":
        return None
    bound = population.knowledge.user_smoothness
    if bound is None:
        raise ConfigError(
            "Expected problem.user_smoothness to be 'item' or a number for this population, got 'isotropic': "
            "nothing is publicly known about how its features are spread."
        )
    return bound


def _population(config: Config, folder: Path, table: "pa.Table | None") -> Population:
    section, domain, loss = config.population, make_domain(config.domain, config.loss.feature_norm), config.loss
    outliers = Outliers(section.outliers.share, section.outliers.send)
    if isinstance(section, configs.TableSection):
        return _users_of(config, section, folder, table, domain=domain, outliers=outliers)
    _refuse_other_loss(loss, section.family)
    shared = {"kind", "curvature", *Simulated.model_fields} - {"seed", "items_per_user"}
    steep, flat = section.curvature
    return Synthetic(
        **section.model_dump(exclude=shared),
        steep=steep,
        flat=flat,
        domain=domain,
        feature_norm=loss.feature_norm,
        ridge=loss.ridge,
        outliers=outliers,
    )


def _users_of(
    config: Config, section: configs.TableSection, folder: Path, table: "pa.Table | None", **made_of: Any
) -> Population:
    """The users of a table, at a relative path of `folder` or given. DataError for columns of types that do not fit."""
    from quoron.data.declared_types import check_types  # these bring pyarrow
    from quoron.data.population import from_dataset
    from quoron.data.table import from_table
    from quoron_client.data.tables import types_of

    loss = loss_of(config)
    encoding = encoding_of(section, loss)
    rules: dict[str, Any] = made_of | {"user": section.user, "loss": loss, "seed": section.seed}
    rules |= {"test_fraction": section.test_fraction, "items_per_user": section.items_per_user}
    source = dataset(section.path, folder) if table is None else None
    if source is not None:
        crowd = from_dataset(source, encoding, **rules)
        check_types(crowd.encoding, types_of(crowd.store.rows.index.files.schema))
        return crowd.read_in(partition(seed=config.run.seed, users=crowd.users))
    given = wildcards.source_of(section, folder, table)
    if table is None and Path(section.path).name != FRAME:  # of a frame its own types were looked at
        check_types(encoding, given.schema)
    return from_table(given, encoding, **rules)


def with_columns(config: Config, base: Path, frame: Any = None, *, users: int | None = None) -> Config:
    """Return the same with columns in place of patterns, and with degrees in place of `population.model`.

    The number of `users`, where nobody says it, is that of the table; under zero-out the declared one. Degrees wait for
    columns that are estimated. Paths and errors are those of `wildcards.with_columns`.
    """
    config = wildcards.with_columns(config, base, frame)
    table = config.population
    if not isinstance(table, configs.TableSection) or table.model is None or configs.estimates_bounds(config):
        return config
    if users is None and config.privacy.adjacency == "replace-one":
        from quoron.data.user_rows import group
        from quoron_client.data import tables

        rows = tables.read(wildcards.source_of(table, base, frame), [table.user])
        users = group(rows, table.user, without_rows=True)[0]
    return bent(config, users or table.users or 1)


BENT = ((8, 4), (8, 2), (4, 2), (4, 1), (4, 0), (2, 0), (1, 0))  # curves and pairs, what tells most first
# What may be, n μ for each number, the largest μ that counts, the most numbers: see `bent`.
RULES = {
    "linear": (BENT[-1:], 1, np.inf, np.inf),
    "curves": (BENT[:-1], 5, np.inf, np.inf),
    "auto": (BENT, 10, 10 / 13, 200),  # with fewer than 13 users for each number curves lost .01 of AUC on lines
}
RARE = 0.1  # share of the rarer class that `auto` takes for granted, as forecasts do, unless it is estimated


def bent(config: Config, users: int) -> Config:
    """Return the configuration with curves and pairs in place of `population.model`, by public numbers alone.

    Of those in `RULES` they are the first whose model has at most n μ / 5 numbers, else the last; with "auto" n μ / 10,
    n / 13 and 200. Of classes of rate r, n is n s with s = 4 r (1 - r), and of products μ is μ √s: noise hides a rare
    label first.
    """
    table, rate = config.population, config.problem.label_rate
    if not isinstance(table, configs.TableSection) or (asked := table.model) is None:
        return config
    if (table.columns.curves, table.columns.pairs) != (1, 0):
        raise ConfigError(f"Expected population.model={asked!r} or columns.curves and pairs, got both. Leave one out.")
    loss, (degrees, room, counted, widest) = loss_of(config), RULES[asked]
    usual = RARE if asked == "auto" and isinstance(loss, Classification) else 0.5
    rates = rate if isinstance(rate, tuple) else (usual if rate is None else rate,)
    spread = min(4 * share * (1 - share) for share in rates)
    mu = mu_for(config.privacy.epsilon, config.privacy.delta)
    for curves, pairs in degrees:
        most = min(users * spread * min(mu * spread**0.5 if pairs else mu, counted) / room, widest)
        columns = table.columns.model_copy(update={"curves": curves, "pairs": pairs})
        bent_config = config.but(population={"columns": columns, "model": None})
        with suppress(ConfigError):  # more than any model may have
            if encoding_of(cast(configs.TableSection, bent_config.population), loss).dimension * loss.outputs <= most:
                break
    return bent_config


def estimates_rate(config: Config) -> bool:
    """Return whether `bent` needs the rate of a label of two classes, which is undeclared."""
    table = config.population
    automatic = isinstance(table, configs.TableSection) and table.model == "auto" and table.label is not None
    return automatic and config.problem.label_rate is None and isinstance(loss_of(config), Classification)


def encoding_of(table: configs.TableSection, loss: Loss) -> Encoding:
    """Return how the rows of a configured table become items: numeric columns first, each kind in the order given.

    ConfigError where something is yet to be estimated, as `Encoding.check_meant`, and as `Encoding.check_loss`.
    """
    columns = table.columns
    if table.model is not None:
        raise ConfigError(
            f"Expected the values of every category with population.model={table.model!r}, got none of one: "
            "how many there are is private. List them."
        )
    unknown = [*columns.estimate, *(column for column, values in columns.categorical.items() if not values)]
    if unknown:
        raise ConfigError(
            f"Expected the range or the values of every column that is a feature, got none of {', '.join(unknown)}: "
            "what is in the table is private. Declare them; `quoron train` estimates them within ε."
        )
    numeric = [Numeric(column, low, high) for column, (low, high) in columns.numeric.items()]
    categorical = [Categorical(column, values) for column, values in columns.categorical.items()]
    hashed = [Hashed(column, buckets) for column, buckets in columns.hashed.items()]
    dates = [part for column, said in columns.dates.items() for part in _dates(column, said)]
    label = None if table.label is None else table.label.read(getattr(loss, "label_bound", 1.0))
    rules = Encoding(
        (*numeric, *categorical, *hashed, *dates),
        label=label,
        intercept=columns.intercept,
        normalize=columns.normalize,
        curves=columns.curves,
        pairs=columns.pairs,
        feature_norm=loss.feature_norm,
        weight=None if columns.weight is None else Weight(columns.weight.column, columns.weight.most),
        missing=columns.missing,
    )
    rules.check_loss(loss)
    rules.check_meant(table.user)
    return rules


def columns_of(config: Config, population: Population) -> Encoding:
    """Return how the rows of its users' tables become items; of made-up users, names for what they hold."""
    if isinstance(config.population, configs.TableSection):
        return encoding_of(config.population, population.loss)
    loss, bound = population.loss, getattr(population.loss, "label_bound", None)
    features = loss.feature_norm
    numeric = tuple(Numeric(f"x{place}", -features, features) for place in range(population.dimension // loss.outputs))
    label = Signs(LABEL) if bound is None else Range(LABEL, -bound, bound, bound)
    return Encoding(numeric, None if loss.name == "linear" else label, intercept=False, feature_norm=features)


def _dates(column: str, declared: Dates) -> Iterator[DatePart | DateNumber]:
    for part in declared.parts:
        yield DatePart(column, part, declared.format)
    if declared.year is not None:
        low, high = declared.year
        yield DateNumber(column, "year", low, high, format=declared.format)
    if declared.days is not None:
        first, last = declared.days
        length = day_number(column, last) - day_number(column, first)
        yield DateNumber(column, "days", 0, length, first, declared.format)


def _refuse_other_loss(loss: LossSection, only: str) -> None:
    if loss.name not in ("auto", only):
        raise ConfigError(
            f"Expected loss.name to be 'auto' or {only!r} for this synthetic population, "
            f"got loss.name={loss.name!r}. Choose another family, or a table."
        )
    for key in ("feature_bound", "active_features"):
        if getattr(loss, key) is not None:
            raise ConfigError(
                f"Expected no loss.{key} for this synthetic population, got loss.{key}={getattr(loss, key):g}: its "
                "features are spread over all directions. Choose a table."
            )


def loss_of(config: Config) -> Loss:
    """Return the loss that a configuration names, with the bounds that it knows and the label's number of classes."""
    section, label = config.loss, getattr(config.population, "label", None)
    classes = 0 if label is None else len(label.classes)
    name = "logistic" if section.name == "auto" else section.name
    given = {**section.model_dump(exclude={"name"}, exclude_none=True), "threshold": section.width, "classes": classes}
    known = {field.name for field in fields(loss_family(name))}
    if "classes" in known and classes < 2:
        raise ConfigError(f"Expected population.label.classes for the {name} loss, got none. List the label's classes.")
    return make_loss(name, **{bound: value for bound, value in given.items() if bound in known})


def make_domain(section: DomainSection, feature_norm: float) -> Domain:
    """Return the set that models live in."""
    radius = NARROW / feature_norm if section.radius is None else section.radius
    return L2Ball(radius) if section.kind == "l2-ball" else Box(radius)
