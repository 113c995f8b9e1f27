"""From a configuration to what a coordinator is given: the same problem, loss and columns as in a simulation.

The table is never read: what a run needs to know of it is public and stands in the configuration. Where columns are
declared by patterns its header says which they are, and the coordinator and its clients get these names.
"""

from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from quoron import toml_text
from quoron.config import Config, TableSection, require_epsilon
from quoron.data.users import Declared
from quoron.planning.choosing import risk_sentence
from quoron.planning.forecasts import forecast_of
from quoron.planning.plans import FEW, FIX, Plan, choose, privacy_of, silos_of, with_sections
from quoron.run_folder import RunFolder
from quoron.simulation.problem import encoding_of, loss_of, make_domain, problem, with_columns
from quoron_client.data.encoding import Encoding
from quoron_client.losses import Loss
from quoron_client.protocol import wire
from quoron_privacy.errors import ConfigError, DataError, Infeasible
from quoron_server.algorithms import ALGORITHMS
from quoron_server.parameters import Assumption, Kind
from quoron_server.plan import RunPlan, check_delta
from quoron_server.problem import Problem
from quoron_server.rounds import require_storable
from quoron_server.silos import Silos
from quoron_server.specification import (
    WAITING,
    RunSpecification,
    require_fitting,
    require_private_participation,
    require_telling,
)
from quoron_server.wording import NO_MIN_COHORT, digest, sentence


def specify(
    config: Config,
    *,
    run: str,
    users: int,
    seconds: float = 60.0,
    early_ends: bool = False,
    waiting: float | None = None,
    whole: bool = False,
) -> tuple[RunSpecification, RunPlan]:
    """Return the specification of a run over `users` active users, and the plan that goes with it.

    A round takes answers for `seconds`; the charge is to the population `train.population`. With `early_ends` rounds
    end once everybody has answered, and the promise says what that assumes. Enough clients have `waiting` seconds to
    agree before anybody is asked. Messages travel `whole` through Flower, and may then be no longer than that takes.
    Raises ConfigError for a configuration that leaves something public unsaid, and what planning raises.
    """
    loss = loss_of(config)
    columns = _encoding(config, loss, users)
    waiting = WAITING if waiting is None else waiting
    others = config.algorithm.name != "auto"  # a user who named an infeasible one learns which are feasible
    plan = _chosen(config, users, alternatives=others).plan
    said: dict[str, Any] = {"run": run, "seconds": seconds, "early_ends": early_ends, "waiting": waiting}
    said["group"] = config.train.population
    specification = specification_of(config, plan, loss, columns, **said)
    if whole:
        require_private_participation(specification)
    _require_fitting(plan, whole=whole)
    require_telling(specification, plan)
    return specification, plan.assuming([Assumption(Kind.EARLY_ENDS)]) if early_ends else plan


def specification_of(
    config: Config,
    plan: RunPlan,
    loss: Loss,
    columns: Encoding,
    *,
    simulation_seed: int | None = None,
    **said: Any,
) -> RunSpecification:
    """Return what a coordinator needs to make this very plan of a configuration; what is `said` goes with it."""
    options, rounds, info = dict(config.algorithm.options), config.budget.rounds, ALGORITHMS[plan.algorithm]
    silos, servers = silos_of(config, plan.problem.users), plan.guarantee.servers
    if config.budget.max_rounds is not None or (config.algorithm.name == "auto" and info.policy.fewer_rounds):
        rounds = plan.cost.rounds
    if rounds is not None and info.takes("rounds"):
        options.setdefault("rounds", rounds)
    return RunSpecification.of(
        **asdict(privacy_of(config, None if servers is None else "two-servers")),
        algorithm=plan.algorithm,
        problem=plan.problem,
        loss={"name": loss.name, **loss.bounds},
        columns=columns,
        options=with_sections(info, config, options),
        constants=config.algorithm.constants,
        trust_clients=config.privacy.trusts_clients,
        seed=config.run.seed,
        simulation=simulation_seed is not None,
        simulation_seed=simulation_seed,
        allow_large_delta=config.privacy.allow_large_delta,
        silos=None if silos is None else silos.sizes,
        silo_sums=silos is not None and silos.sums,
        plan_digest=digest(plan),
        **said,
    )


def declared(config: Config, users: int) -> Problem:
    """Return the problem of a federation of so many users, from the configuration alone. ConfigError as `specify`."""
    loss = loss_of(config)
    columns, items = _encoding(config, loss, users), config.population.items_per_user
    if (silos := config.population.silos) is not None and not isinstance(silos.sizes, int):
        Silos.declared(silos.sizes, users)  # nobody is held out here
    if items is None:
        raise ConfigError(
            "Expected population.items_per_user for a federation, got none: nobody may look at the data to find it. "
            "Set it to a low typical number of items of a user."
        )
    domain = make_domain(config.domain, loss.feature_norm)
    return problem(config, Declared.of_rows(columns, loss, domain, users=users, items_per_user=items))


def dry_run(config: Config, users: int, *, whole: bool = False) -> Plan:
    """What a run of so many users would promise, predict and cost, beside every other algorithm; nobody is asked.

    ConfigError as `specify`.
    """
    planned = _chosen(config, users, compare=True)
    _require_fitting(planned.plan, whole=whole)
    return planned


def _chosen(config: Config, users: int, **how: Any) -> Plan:
    """Return the plan of so many users. Where few are too few, and silos not refused, Infeasible says what is meant."""
    require_epsilon(config.privacy.model_fields_set, "a federation", how="")
    check_delta(config.privacy.delta, users, allowed=config.privacy.allow_large_delta)
    try:
        return choose(config, declared(config, users), federated=True, **how)
    except Infeasible as error:
        if users < FEW and config.privacy.trust_model != "two-servers":
            error.add_note(FIX)
        raise


def _require_fitting(plan: RunPlan, *, whole: bool) -> None:
    most = wire.MAX_WHOLE if whole else wire.MAX_MESSAGE
    require_fitting(plan, most, most=most)
    require_storable(ALGORITHMS[plan.algorithm].make(plan))


def promised(plan: RunPlan) -> str:
    """Return the text for the submitter: the run, its predicted risk, its guarantee, and that nobody counts answers."""
    risk = risk_sentence(plan.predicted_excess_risk, plan.guessed_excess_risk)
    text = f"{plan.algorithm}, {plan.cost.rounds} rounds, {plan.problem.users} users"
    text += f", predicted excess risk {risk}" if risk else ""
    read = forecast_of(plan.problem, plan.predicted_excess_risk)
    text += f": {read.words()}" if read is not None and read.words() else ""
    text += f"\n{sentence(plan.guarantee)}"
    return text if plan.guarantee.min_cohort is not None else f"{text}\n{NO_MIN_COHORT}"


COMPONENTS = {"serverapp": "quoron.federation.flower_app:server_app", "clientapp": "quoron_client.flower.app:app"}


def write_app(folder: Path, specification: RunSpecification, *, waiting: float) -> None:
    """Write a run as an app of Flower, which `flwr run FOLDER` starts; the same app again goes on from its ledger.

    The components are those of the installed package; the folder carries the run config only. Users have `waiting`
    seconds to come. Raises RunError if it cannot be written.
    """
    project = {
        "name": "quoron",
        "version": version("quoron"),
        "description": "User-level private federated optimisation",
        "license": "Apache-2.0",
        "dependencies": [f"quoron=={version('quoron')}"],
    }
    config = {"specification": specification.as_text(), "waiting": float(waiting)}
    app = {"publisher": "quoron", "components": COMPONENTS, "config": config}
    text = toml_text.dumps({"project": project, "tool": {"flwr": {"app": app}}})
    RunFolder.created(folder).write_text("pyproject.toml", text)


def _encoding(config: Config, loss: Loss, users: int) -> Encoding:
    try:
        table = with_columns(config, Path.cwd(), users=users).population
    except DataError as error:
        raise ConfigError(
            "Expected columns by name or as a span such as 'x[0:100000]' for a federation, got a pattern without a "
            f"header at population.path. {error} Write the columns, or have a table with that header there."
        ) from None
    if not isinstance(table, TableSection):
        raise ConfigError(
            f"Expected population.kind='table' for a federation, got {table.kind!r}: clients must know their columns."
        )
    if table.outliers.share:
        raise ConfigError("Expected no population.outliers in a federation, got some: its users are real.")
    return encoding_of(table, loss)
