"""The clients' own items in a real federation: one file each, of a table split by its user column, or of made-up users.

Clients of a simulation have their users' items as the simulation does (`quoron.federation.programs`).
"""

from pathlib import Path

import numpy as np
import pyarrow as pa

from quoron.config import (
    ColumnsSection,
    Config,
    LabelSection,
    SyntheticSection,
    TableSection,
    from_tree,
    located,
    read,
)
from quoron.data import Population
from quoron.data.user_rows import group
from quoron.data.users import Users
from quoron.federation.folder import ITEMS, ORDER, RUN, SOURCE, Folder
from quoron.paths import dataset
from quoron.run_folder import FRAME, as_parquet
from quoron.simulation.problem import LABEL, encoding_of, loss_of, setup, with_columns
from quoron.simulation.sources import resolve
from quoron.simulation.wildcards import source_of
from quoron_client.data import tables
from quoron_client.durable import PRIVATE, replace_whole
from quoron_privacy.errors import ConfigError
from quoron_server.plan import EVERYONE
from quoron_server.silos import Silos

PERSON = "person"


def cut(config: Config, base: Path, frame: pa.Table | None, clients: int | None) -> tuple[Config, pa.Table | None]:
    """The configuration of the first `clients` of its users, with their table if they are one's; None is all of them.

    Of a table users are taken in the order of their names, and as many besides as its test fraction holds out.
    ConfigError where there are fewer.
    """
    people = config.population
    if clients is None:
        return config, frame
    if isinstance(people, SyntheticSection):
        return config.but(population={"users": clients}), frame
    require_one_file(config, base, frame)
    table = _table(config, base, frame)
    users, owners = group(table, people.user)
    most = clients
    while most - round(people.test_fraction * most) < clients:
        most += 1
    if most > users:
        raise ConfigError(f"Expected {most:,} users in the table for {clients:,} clients, got {users:,}. Say fewer.")
    return config.but(population={"path": FRAME}), table.filter(pa.array(owners < most))


def _table(config: Config, base: Path, frame: pa.Table | None) -> pa.Table:
    people = with_columns(config, base, frame).population
    assert isinstance(people, TableSection)
    encoding = encoding_of(people, loss_of(config))
    return tables.read(source_of(people, base, frame), (*encoding.columns, people.user))


def require_one_file(config: Config, base: Path, frame: pa.Table | None = None) -> None:
    """Raise ConfigError for a table of many files, whose index numbers the users of a simulation."""
    people = config.population
    if isinstance(people, TableSection) and frame is None and dataset(people.path, base) is not None:
        raise ConfigError(
            f"Expected a table in one file for clients on this machine, got the folder or URL {people.path!r}."
        )


def silos_in(folder: Folder, config: Config | None, base: Path) -> tuple[str, Silos] | None:
    """The column that says whose each row is, and the silos, of a federation whose source has some; None without.

    ConfigError as `give_tables`, and for sizes that do not add up to its users.
    """
    config = _source(folder, config, base)
    if (said := config.population.silos) is None:
        return None
    settled = (folder.path / SOURCE).exists() and (folder.path / ORDER).exists()
    before = folder.read(ORDER) if settled else {}
    if before.get("people"):  # who has enrolled answers for as many, for ever
        return before["user"], Silos(tuple(before["people"]))
    people = config.population
    if isinstance(people, TableSection):
        user, users = people.user, group(_table(config, base, None), people.user)[0]
    else:
        user, users = PERSON, people.users
    return user, Silos.declared(said.sizes, users, sums=said.sums)


def give_tables(folder: Folder, config: Config | None, base: Path, clients: int, silos: Silos | None = None) -> None:
    """Give every client of a real federation a table of its own, and the operator a `run.toml` to submit.

    Of a table these are the rows of its first users, by name; of made-up users what they hold, as columns x0, x1 and
    so on. With `silos`, one a client, each has the rows of its persons, the first silo those of the first names, with
    the column that names them. Who has a table keeps it, and so is `run.toml` kept: without a configuration they are of
    the folder's own, or of the preset small-federation. ConfigError for another configuration than the folder's, and
    where there are fewer users.
    """
    config = _source(folder, config, base)
    lacking = [number for number in range(1, clients + 1) if not (folder.client(number) / ITEMS).exists()]
    if not lacking and (folder.path / RUN).exists():
        return
    people = config.population
    if isinstance(people, TableSection):
        run_config, table, user = with_columns(config, base), _table(config, base, None), people.user
    else:
        population = setup(config, base).population
        some = np.arange(population.users if silos is not None else min(clients, population.users))
        run_config, table, user = _declared(config, population), _generated(population, some), PERSON
    users, owners = group(table, user)
    if silos is not None:
        users, owners = clients, silos.of(owners)
    if clients > users:
        raise ConfigError(f"Expected {clients:,} users for as many clients, got {users:,}. Say fewer clients.")
    rows = np.split(np.argsort(owners, kind="stable"), np.cumsum(np.bincount(owners, minlength=users))[:-1])
    own = table if silos is not None else table.drop_columns([user])
    replace_whole(folder.path / SOURCE, config.as_toml().encode(), mode=PRIVATE)
    for number in lacking:
        items = as_parquet(own.take(pa.array(rows[number - 1])))
        replace_whole(folder.client(number) / ITEMS, items, mode=PRIVATE)
    if not (folder.path / RUN).exists():
        place = str((folder.client(1) / ITEMS).resolve())
        # All clients' certificates are of that population.
        run_config = run_config.but(population={"path": place}, train={"population": EVERYONE})
        replace_whole(folder.path / RUN, run_config.as_toml().encode(), mode=PRIVATE)


def _source(folder: Folder, config: Config | None, base: Path) -> Config:
    """Return whose items a folder holds, or is to hold."""
    path = folder.path / SOURCE
    if not path.exists():
        return resolve("small-federation")[0] if config is None else located(config, base)
    own = from_tree(read(path))
    if config is not None and located(config, base).as_toml() != own.as_toml():
        raise ConfigError(
            f"Expected the configuration that {folder.path} was started with, got another: its clients keep their "
            "items. Leave the source away, or choose another --folder."
        )
    return own


def _generated(population: Population, users: Users) -> pa.Table:
    """Return the items of synthetic users, as rows with the number of whose they are."""
    items = population.items(users)
    columns = {f"x{place}": column for place, column in enumerate(items.features.astype(np.float64).T)}
    names = np.array([f"person-{user:07d}" for user in users])
    return pa.table({**columns, LABEL: items.labels, PERSON: np.repeat(names, items.counts)})


def _declared(config: Config, population: Population) -> Config:
    """Return the configuration of made-up users as one of tables that they hold."""
    loss, norm = population.loss, population.loss.feature_norm
    bound = getattr(loss, "label_bound", None)
    people = TableSection(
        path=ITEMS,
        user=PERSON,
        silos=config.population.silos,
        items_per_user=population.items_per_user,
        label=None if loss.name == "linear" else LabelSection(column=LABEL, range=bound and (-bound, bound)),
        columns=ColumnsSection(
            numeric={f"x[0:{population.dimension // loss.outputs}]": (-norm, norm)}, intercept=False
        ),
    )
    bounds = {} if bound is None else {"label_bound": bound}
    problem: dict[str, object] = {}
    if config.problem.user_smoothness == "isotropic":  # which a table's declarations do not say
        problem["user_smoothness"] = population.knowledge.user_smoothness or "item"
    return config.but(population=people, loss={"name": loss.name, **bounds}, problem=problem)
