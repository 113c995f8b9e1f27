"""From a configuration to what a coordinator is given: the same problem, loss and columns as in a simulation.

The table is never read: what a run needs to know of it is public and stands in the configuration.
"""

from dataclasses import asdict, dataclass, fields
from typing import cast

from quoron.config import Config, Table
from quoron.planning import choose
from quoron.populations import Population, PublicKnowledge
from quoron.setup import loss_of, make_domain, problem
from quoron_client.domains import Domain
from quoron_client.losses import Loss
from quoron_protos.errors import ConfigError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Plan
from quoron_server.specification import Columns, RunSpecification, digest


@dataclass(frozen=True, slots=True)
class Declared:
    """Users whom nobody has looked at: what the operator says about them."""

    users: int
    dimension: int
    items_per_user: int
    domain: Domain
    loss: Loss
    knowledge: PublicKnowledge


def specify(
    config: Config,
    *,
    run: str,
    users: int,
    seconds: float,
    group: str = "everyone",
    simulation_seed: int | None = None,
) -> tuple[RunSpecification, Plan]:
    """The specification of a run over the first `users` enrolled users of `group`, and the plan that goes with it.

    With `simulation_seed` it is a simulation: seeded noise, for tests of a federation. Raises ConfigError for a
    configuration that leaves something public unsaid, and what planning raises.
    """
    columns, items = _columns(config), config.problem.items_per_user
    if items is None:
        raise ConfigError(
            "Expected problem.items_per_user for a federation, got none: nobody may look at the data to find it. Set "
            "it to a low typical number of items of a user."
        )
    loss = loss_of(config.loss)
    declared = Declared(users, columns.dimension, items, make_domain(config.domain), loss, PublicKnowledge())
    public = problem(config, cast(Population, declared))  # of a population it asks no more than what is declared
    plan = choose(config, public).plan
    options, rounds = dict(config.algorithm.options), config.budget.rounds
    if rounds is not None and "rounds" in {item.name for item in fields(ALGORITHMS[plan.algorithm].options)}:
        options.setdefault("rounds", rounds)
    specification = RunSpecification(
        run=run,
        algorithm=plan.algorithm,
        epsilon=config.privacy.epsilon,
        delta=config.privacy.delta,
        problem=public,
        loss={"name": loss.name, **asdict(loss)},
        columns=columns,
        seconds=seconds,
        options=options,
        constants=config.algorithm.constants,
        trust_clients=config.algorithm.trust_clients,
        seed=config.run.seed,
        group=group,
        simulation=simulation_seed is not None,
        noise_seed=simulation_seed,
        plan_digest=digest(plan),
    )
    return specification, plan.simulated() if specification.simulation else plan


def _columns(config: Config) -> Columns:
    table = config.population
    if not isinstance(table, Table):
        raise ConfigError(
            f"Expected population.kind='table' for a federation, got {table.kind!r}: clients must know their columns."
        )
    if table.outlier_fraction:
        raise ConfigError("Expected no population.outlier_fraction in a federation, got one: its users are real.")
    for column, values in table.categorical.items():
        if not values:
            raise ConfigError(
                f"Expected the public values of population.categorical.{column} for a federation, got none: values "
                "taken from the data would become public."
            )
    return Columns(
        label=table.label,
        numeric=table.numeric,
        categorical=table.categorical,
        intercept=table.intercept,
        unit_rows=table.unit_rows,
    )
