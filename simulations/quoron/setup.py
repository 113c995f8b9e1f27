"""From a configuration to the things a run needs: population, public problem, engine, and how to measure a model."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import assert_never

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quoron import config as configs
from quoron.config import Config, DomainSection, LossSection
from quoron.engine import InlineEngine
from quoron.populations import (
    Categorical,
    Feature,
    Numeric,
    Outliers,
    Population,
    Synthetic,
    flights,
    from_table,
)
from quoron_client.domains import Box, Domain, L2Ball
from quoron_client.losses import LOSSES, Loss, make_loss
from quoron_protos.errors import ConfigError
from quoron_server.problem import Problem
from quoron_server.rounds import Engine

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Setup:
    """One configuration, ready to plan and run."""

    population: Population
    problem: Problem
    engine: Engine

    def evaluate(self, model: Vector) -> Mapping[str, float]:
        """Excess risk of a model over the non-private optimum."""
        return {"excess_risk": self.population.excess_risk(model)}


def setup(config: Config, folder: Path, table: pa.Table | None = None) -> Setup:
    """What a run of `config` needs; a table's relative path is taken relative to `folder`, unless `table` is given."""
    population = _population(config, folder, table)
    dropout = 0.0 if config.run.link is None else config.run.link.dropout
    engine = InlineEngine(population, seed=config.run.seed, dropout=dropout)
    return Setup(population, problem(config, population), engine)


def problem(config: Config, population: Population) -> Problem:
    """The public constants of the optimisation problem."""
    loss, known, section = population.loss, population.knowledge, config.problem
    curvature = known.typical_curvature
    return Problem(
        users=population.users,
        items_per_user=section.items_per_user or population.items_per_user,
        dimension=population.dimension,
        domain=population.domain,
        lipschitz=loss.lipschitz(population.domain, population.dimension),
        smoothness=loss.smoothness,
        convex=loss.convex,
        user_smoothness=_user_smoothness(config, population),
        gradient_deviation=section.gradient_deviation or known.gradient_deviation,
        heterogeneity=known.user_deviation or 0.0,
        start_gradient=loss.start_gradient,
        curvature="unknown" if curvature is None else "isotropic",
        typical_curvature=curvature,
        least_curvature=known.least_curvature,
        feature_norm=loss.feature_norm,
        link_curvature=loss.curvature,
        ridge=loss.ridge,
        hostile_share=section.hostile_share if section.hostile_share is not None else known.hostile_share,
    )


def _user_smoothness(config: Config, population: Population) -> float | None:
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


def _population(config: Config, folder: Path, table: pa.Table | None) -> Population:
    section, domain, loss = config.population, make_domain(config.domain), config.loss
    outliers = Outliers(section.outlier_fraction, section.outlier_kind)
    match section:
        case configs.Synthetic():
            _refuse_other_loss(loss, section.family, section.kind)
            shared = {"kind", "outlier_fraction", "outlier_kind"}
            return Synthetic(
                **section.model_dump(exclude=shared),
                domain=domain,
                feature_norm=loss.feature_norm,
                ridge=loss.ridge,
                outliers=outliers,
            )
        case configs.Table():
            return from_table(
                folder / section.path if table is None else table,
                user=section.user,
                label=section.label,
                features=_features(section),
                loss=loss_of(loss),
                domain=domain,
                intercept=section.intercept,
                unit_rows=section.unit_rows,
                test_fraction=section.test_fraction,
                items_per_user=config.problem.items_per_user,
                outliers=outliers,
                seed=section.seed,
            )
        case configs.Flights():
            _refuse_other_loss(loss, "logistic", section.kind)
            return flights(seed=section.seed, domain=domain, outliers=outliers)
        case _:
            assert_never(section)


def _features(table: configs.Table) -> tuple[Feature, ...]:
    numeric = [Numeric(column, low, high) for column, (low, high) in table.numeric.items()]
    categorical = [Categorical(column, values or "from-data") for column, values in table.categorical.items()]
    return (*numeric, *categorical)


def _refuse_other_loss(loss: LossSection, only: str, population: str) -> None:
    if loss.name not in ("auto", only):
        raise ConfigError(
            f"Expected loss.name to be 'auto' or {only!r} for this {population} population, "
            f"got loss.name={loss.name!r}. Choose another family, or a table."
        )


def loss_of(section: LossSection) -> Loss:
    """The loss that a configuration names, with the bounds that it knows."""
    name = "logistic" if section.name == "auto" else section.name
    given = {**section.model_dump(exclude={"name"}), "threshold": section.width}
    known = {field.name for field in fields(LOSSES[name])}
    return make_loss(name, **{bound: value for bound, value in given.items() if bound in known})


def make_domain(section: DomainSection) -> Domain:
    """The set that models live in."""
    return L2Ball(section.radius) if section.kind == "l2-ball" else Box(section.radius)
