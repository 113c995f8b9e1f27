"""What the owner of a node decides, by the SuperNode's `--node-config` or the environment of its ClientApps.

| node config        | environment              | meaning                                           |
| ------------------ | ------------------------ | ------------------------------------------------- |
| `data`             | QUORON_DATA             | this user's items, a file                         |
| `state`            | QUORON_STATE            | durable record of what was answered; keep it      |
| `limit`            | QUORON_LIMIT            | most ε and δ over all runs, ever; default "1,1e-5" |
| `accept`           | QUORON_ACCEPT           | trust models to take part in; "central-broadcast,local" |
| `simulation-seed`  | QUORON_SIMULATION_SEED  | take part in simulations: made-up data only       |
| `new-state`        | QUORON_NEW_STATE        | "true", once: an older state is all that is left  |
| `one-user`         | QUORON_ONE_USER         | "true": all rows are one user's, whosever they are |
| `items-per-user`   | QUORON_ITEMS_PER_USER   | what one person holds, if the owner knows          |
| `user`             | QUORON_USER             | of a silo: the column that says whose each row is  |
| `users`            | QUORON_USERS            | of a silo: for how many it answers, for ever       |
| `separator`        | QUORON_SEPARATOR        | what separates cells, if the header does not say   |
| `decimal`          | QUORON_DECIMAL          | "," for numbers such as 3,14                       |
| `encoding`         | QUORON_ENCODING         | of text, if not UTF-8                              |
| `quoting`          | QUORON_QUOTING          | "none" where quotes are letters                    |

No message and no run config changes any of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quoron_client.data.dialect import Dialect
from quoron_client.federation.config import PUBLIC_PARTICIPATION, Limits, Owner
from quoron_client.federation.record import Record
from quoron_privacy.errors import ConfigError

KEPT = ("state", "limit", "accept", "new-state")  # what only a record can hold to
_WORDS = {"true": True, "1": True, "false": False, "0": False}


def read_owner(node_config: Mapping[str, Any], environment: Mapping[str, str]) -> Owner:
    """The owner's decisions. ConfigError names the key that is missing or wrong."""
    given = _Given(node_config, environment)
    items = given.whole("items-per-user", "a whole number")
    data, alone, column = Path(given.text("data")), given.switch("one-user"), given.found("user")
    people = people_of(node_config, environment)
    silo: dict[str, Any] = {} if column is None else {"user_column": str(column), "people": people}
    return Owner(data=data, dialect=_dialect(given), one_user=alone, items_per_user=items, **silo, **_limits(given))


def people_of(node_config: Mapping[str, Any], environment: Mapping[str, str]) -> int:
    """For how many persons a node answers, as its owner says: 1 of one user. ConfigError if a silo's does not say."""
    given = _Given(node_config, environment)
    column, people = given.found("user"), given.whole("users", "a whole number")
    if (column is None) != (people is None) or people == 0:
        raise ConfigError(
            "Expected user and users together in the --node-config of a silo, the column that says whose each row is "
            "and for how many it answers, got one. It is not counted in the data: the server hears of it first."
        )
    return 1 if people is None else people


def read_limits(node_config: Mapping[str, Any], environment: Mapping[str, str]) -> Limits | None:
    """As `read_owner`, of a node whose data are its own code's business; None if none of `KEPT` is said."""
    given = _Given(node_config, environment)
    return Limits(**_limits(given)) if any(given.found(key) is not None for key in KEPT) else None


def opened(owner: Limits, *, settled: bool) -> Record:
    """The owner's record, in which runs are agreed to when they are announced, unless that is `settled`. LedgerError as
    `Record.open`."""
    epsilon, delta = owner.lifetime_epsilon, owner.lifetime_delta
    return Record.open(owner.record, epsilon=epsilon, delta=delta, anew=owner.new_record, settled=settled)


@dataclass(frozen=True, slots=True)
class _Given:
    node_config: Mapping[str, Any]
    environment: Mapping[str, str]

    def found(self, key: str) -> Any:
        return self.node_config.get(key, self.environment.get(f"QUORON_{key.upper().replace('-', '_')}"))

    def text(self, key: str, default: str | None = None) -> str:
        value = self.found(key)
        value = default if value is None else value
        if value is None or value == "":
            raise ConfigError(f"Expected {key} in the SuperNode's --node-config, got none.")
        return str(value)

    def limit(self) -> tuple[float, float]:
        try:
            epsilon, delta = map(float, self.text("limit", "1,1e-5").split(","))
        except ValueError:
            raise ConfigError(f"Expected limit as EPSILON,DELTA, got {self.text('limit')!r}.") from None
        return epsilon, delta

    def switch(self, key: str) -> bool:
        word = self.text(key, "false").lower()
        if word not in _WORDS:
            raise ConfigError(f"Expected {key} to be true or false, got {word!r}.")
        return _WORDS[word]

    def whole(self, key: str, what: str) -> int | None:
        word = self.text(key, "none")
        if word != "none" and not word.isdigit():
            raise ConfigError(f"Expected {what} as {key}, got {word!r}.")
        return None if word == "none" else int(word)


def _dialect(given: _Given) -> Dialect:
    said = {name: given.found(name) for name in ("separator", "decimal", "encoding", "quoting")}
    return Dialect(**{name: str(value) for name, value in said.items() if value is not None})  # type: ignore[arg-type]


def _limits(given: _Given) -> dict[str, Any]:
    accepted = tuple(given.text("accept", "central-broadcast,local").split(","))
    if PUBLIC_PARTICIPATION in accepted:
        raise ConfigError(
            f"Expected accept without {PUBLIC_PARTICIPATION} on Flower, got it: a node answers when it has computed, "
            "and its data move when that is. Leave it out; clients of `quoron serve` can accept it."
        )
    epsilon, delta = given.limit()
    return {
        "record": Path(given.text("state")),
        "lifetime_epsilon": epsilon,
        "lifetime_delta": delta,
        "accept_trust_models": accepted,
        "simulation_seed": given.whole("simulation-seed", "a seed"),
        "new_record": given.switch("new-state"),
    }
