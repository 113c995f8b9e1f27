"""The users as operators see and change them, and who of them is here: what the roster learns of connections.

Only connections and what an operator says move the roster, never an answer: docs/privacy/silos.md#ro1.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from quoron_privacy.errors import ConfigError, QuoronError
from quoron_server.federation import RunStore
from quoron_server.service import journal
from quoron_server.service.certificates import Revocations
from quoron_server.service.records import UnknownRun, retried_once
from quoron_server.service.sessions import Sessions
from quoron_server.storage.roster import Rotated, Seats, User

LOOK = 3.0  # seconds between two looks at who is revoked and who is here
MOST_TOLD = 1000  # users at a time
ROTATED = "Another key has taken this one's place, by its own signature. Connect with that."
GONE = "This user has left this federation, and was forgotten. Nothing is asked of it any more."


class Users:
    """The roster of one coordinator. Its methods belong to the event loop; the database is used in threads."""

    def __init__(self, store: RunStore, sessions: Sessions, revoked: Revocations | None = None) -> None:
        self._registry, self._roster, self._sessions = store.registry, store.registry.roster, sessions
        self._seats = Seats(self._roster, store.population)
        self._revoked, self._retired = revoked, frozenset[str]()
        self._seen: tuple[int, set[int]] = (0, set())  # who is known to have been seen in this step
        # At most `_counted + _came` users are active in a group: who was when it was last counted, and who came since.
        self._counted: dict[str, int] = {}
        self._came: Counter[str] = Counter()
        self.rotated = {str(each["fingerprint"]) for each in self._roster.rotations()}  # keys that are nobody's now

    def came(self, group: str, people: int = 1) -> None:
        """So many more of a group may be active."""
        self._came[group] += people

    def may_be(self, needed: int, group: str) -> bool:
        """Whether so many may be active: it spares every enrolment a count of its whole group."""
        return self._counted.get(group, needed) + self._came[group] >= needed

    def are(self, needed: int, group: str) -> bool:
        """Whether so many are active, to be drawn from; blocks. Not while nobody can tell who is revoked."""
        before = self._came[group]
        try:
            self.look()
        except ConfigError:
            return False
        active = self._roster.standing(group).active
        self._counted[group] = active - before
        return active >= needed

    async def standing(self, group: str) -> dict[str, int]:
        """How many users of a group are active, away and retired."""
        return asdict(await retried_once(lambda: self._roster.standing(group)))

    async def watch(self) -> None:
        """Every few seconds, for ever: mark the connected users as seen, and retire the revoked ones."""
        while True:
            await asyncio.sleep(LOOK)
            with suppress(QuoronError):  # an unreadable list, a database that is away: at the next look
                await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Once, before members are drawn; blocks. ConfigError while nobody can tell who is revoked."""
        step, here = self._roster.step, set(self._sessions.here())
        known = self._seen[1] if self._seen[0] == step else set()
        if not here <= known:
            self._roster.seen(sorted(here - known))
        self._seen = step, here | known
        revoked = self._now_revoked()
        if revoked != self._retired:
            for user in self._roster.retire_keys(revoked - self._retired):
                journal.user("retire", "the list of revoked clients", f"User {user} is retired.")
            self._retired = revoked

    async def page(self, *, group: str, state: str, after: int) -> dict[str, Any]:
        """Users from number `after` on, at most a thousand, with how many of the group are in each state."""
        with suppress(ConfigError):
            await retried_once(self.look)
        found = await retried_once(
            lambda: self._roster.page(group=group, state=state, after=min(after, 2**31 - 1), most=MOST_TOLD),
        )
        told: dict[str, Any] = {"users": [user.as_json() for user in found], "more": len(found) == MOST_TOLD}
        return told | ({"standing": await self.standing(group)} if group else {})

    async def drawn(self, run: str) -> dict[str, Any]:
        """Return how the members of a run were drawn, for an auditor to draw them again. UnknownRun before."""
        row, found = await retried_once(lambda: (self._registry.run(run), self._registry.drawn(run)))
        if row is None or found is None:
            raise UnknownRun(f"Expected a run whose members were drawn, got {run!r}. `quoron runs` lists them.")
        told = {"run": run, "specification": row.specification} | found.as_json()
        return told | {"users": found.active.tolist(), "drawn": found.members.tolist()}

    async def change(self, action: str, word: str, by: str = "") -> dict[str, Any]:
        """What an operator says of a user, and what came of it in words. ConfigError for what cannot be."""
        actions: dict[str, Callable[[User], str]] = {"retire": self._retire, "away": self._away, "back": self._back}
        actions["replace"] = lambda user: self._replace(user, by)
        if action not in actions:
            raise ConfigError(f"Expected {', '.join(actions)}, got {action!r}.")
        said = await retried_once(lambda: actions[action](self._roster.find(word)))
        self._counted.clear()
        return {"said": said}

    async def forget(self, word: str, *, sure: bool) -> dict[str, Any]:
        """Erase who a user was, if `sure`; what was erased, or of whom it would be. Again is the same."""
        done = await retried_once(lambda: self._seats.forget(word, sure=sure))
        if sure:
            self._sessions.hang_up([done["user"]], GONE)
        return done

    async def rotate(self, word: str, statement: str) -> dict[str, Any]:
        """Give a user the key that its old one has signed. ConfigError for a statement that is another user's."""

        def work() -> Rotated:
            user, revoked = self._roster.find(word), self._now_revoked()
            return self._seats.rotate(statement, user.user, revoked)

        done = await retried_once(work)
        self.rotated.add(done.old)
        self._sessions.hang_up(done.users, ROTATED)  # a client connected by either key comes back by the valid one
        said = (
            f"User {done.users[0]} has a new key, which its old one has signed: the same user, in the same runs, with "
            "the same lifetime budget. The old key is refused from now on."
        )
        return {"said": said}

    def _retire(self, user: User) -> str:
        self._roster.retire([user.user])
        return f"{_name(user)} is retired: a member of no run that begins from now on."

    def _away(self, user: User) -> str:
        self._roster.away(user.user)
        return f"{_name(user)} is away until it is said to be back: a member of no run that begins meanwhile."

    def _back(self, user: User) -> str:
        if user.fingerprint in self._now_revoked():
            raise ConfigError(f"Expected a user whose certificate is good, got {_name(user)}: it is revoked.")
        self._roster.back(user.user)
        now = self._roster.find(str(user.user))
        return f"{_name(user)} is {now.state}" + (f", {now.why}: until it connects." if now.why else ".")

    def _replace(self, old: User, word: str) -> str:
        new = self._roster.find(word)
        if new.fingerprint in self._now_revoked():
            raise ConfigError(f"Expected a user whose certificate is good, got {_name(new)}: it is revoked.")
        self._seats.replace(old.user, new.user)
        both = self._registry.shared(old.user, new.user)
        said = (
            f"{_name(new)} has the seat of {_name(old)} in runs that begin from now on, as another user: with a "
            f"lifetime budget of its own, in which nothing counts that was guaranteed to user {old.user}. If both are "
            "one person, that person is two users, and each guarantee is made to one: "
        )
        said += (
            f"{both} run{'s' if both > 1 else ''} had both, and guaranteed that person twice the ε. "
            if both
            else f"no run has both, so what the account of group {old.group!r} counts holds for that person too. "
        )
        return said + "Only a new key that the old one has signed stays the same user: quoron admin users rotation."

    def _now_revoked(self) -> frozenset[str]:
        return frozenset() if self._revoked is None else self._revoked.now()


def _name(user: User) -> str:
    people = f"users {user.user} to {user.user + user.people - 1}"
    return (f"user {user.user}" if user.people == 1 else people) + (f" ({user.name})" if user.name else "")
