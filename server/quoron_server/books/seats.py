"""A user's seat goes to another key, or to another user: the roster and the chain in one transaction, or neither.

seats = Seats(roster, population)
seats.rotate(statement, of=3)  # signed by the old key: the same user, with the same budget
seats.replace(3, 7)  # another user, with a budget of its own
seats.forget("3", sure=True)  # it has left: nothing says who it was
"""

from collections.abc import Set
from dataclasses import asdict, dataclass
from typing import Any

from quoron_client.protocol import identity
from quoron_privacy.errors import ConfigError
from quoron_server.books.lifetime_ledger import PopulationLedger
from quoron_server.books.roster import Roster


@dataclass(frozen=True, slots=True)
class Rotated:
    """A key that is nobody's any more, and who may be here by it or by the new one: the user first."""

    old: str
    users: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Seats:
    """Whose seat is whose. Every method may be repeated, and then changes nothing."""

    roster: Roster
    population: PopulationLedger

    def rotate(self, statement: str, of: int, revoked: Set[str] = frozenset()) -> Rotated:
        """Give user `of` the key that its old one has signed. Raises what `rotation.check` and `Roster.rotate` raise;
        ConfigError for another user's, and if one of both keys is among the `revoked`."""
        old, new = identity.check(statement)
        for which, fingerprint in (("old", old), ("new", new)):
            if fingerprint in revoked:
                raise ConfigError(
                    f"Expected keys that were never revoked, got {fingerprint[:16]}…, the {which} one: whoever has a "
                    "lost key could sign for any other. Replace the user without a rotation; then it is another user."
                )
        with self.population.seat({"what": "rotated", "user": of, "old": old, "new": new}):
            user, joined = self.roster.rotate(old, new, statement)
            if user != of:
                raise ConfigError(f"Expected a rotation of user {of}, got one that the key of user {user} has signed.")
        return Rotated(old, (user,) if joined is None else (user, joined))

    def forget(self, word: str, *, sure: bool) -> dict[str, Any]:
        """As `Roster.forget`, of a user by number, name or fingerprint, with a row in the chain by which restored books
        are seen to be older; what was erased. Unless `sure` nothing is done: of whom it would be."""
        user = self.roster.find(word)
        if not sure:
            before = [each["fingerprint"] for each in self.roster.rotations() if each["user"] == user.user]
            return user.as_json() | {"keys_before": before}
        with self.population.seat({"what": "forgotten", "user": user.user}):
            done = self.roster.forget(user.user)
        self.roster.fold()
        return {"group": user.group} | asdict(done)

    def replace(self, old: int, new: int) -> None:
        """As `Roster.replace`."""
        with self.population.seat({"what": "replaced", "user": old, "by": new}):
            self.roster.replace(old, new)
