"""The exceptions of every quoron package, one small tree, and the checks of arguments that raise them.

    QuoronError
    ├── UsageError            the request is wrong; exit code 2
    │   ├── ConfigError       a key, a value or a preset
    │   ├── DataError         a table, a column, a user's items
    │   ├── IdentityError     a certificate, a key or a token
    │   └── Infeasible        no parameters satisfy the theorem; says what would
    └── RunError              the request was fine, carrying it out failed; exit code 1
        ├── BudgetExceeded    refused before the round that would overspend
        ├── LedgerError       the ledger cannot be read, written or continued
        │   ├── LedgerUnavailable  for now: connection lost, locked, disk full; worth another try
        │   └── OtherVersion       begun by another version or configuration, which alone may go on with it
        ├── BelowMinCohort     too few answered: the run has ended without a model; exit code 3
        ├── NothingReleased   a private test found too few who agree: there is no value; exit code 3
        ├── VerificationError a plan that its theorem does not accept
        └── WireError         a message that is not of this protocol

Messages name the thing, its value and the fix. They never hold a user's data, and nothing that moves a terminal's
cursor: names that a file or another machine gives pass through `printable`.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

# Characters that move a terminal's cursor, or turn the order of what stands beside them; not tabs and line ends.
CONTROL = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Words of somebody else, fit for a terminal and a log: what is no letter, such as ESC, by its escape.

    >>> printable("age\x1b[2J")
    'age\\x1b[2J'
    """
    return "".join(letter if letter.isprintable() or letter in "\n\t" else ascii(letter)[1:-1] for letter in text)


class QuoronError(Exception):
    """Root of everything quoron raises on purpose."""

    exit_code = 1

    def __str__(self) -> str:
        return printable(super().__str__())


class UsageError(QuoronError):
    """The request cannot be carried out as asked."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration key, value or preset is wrong."""


class DataError(UsageError):
    """A table, a column or a user's items cannot be used."""


class IdentityError(UsageError):
    """A certificate, a key or a token is missing, unreadable, expired, or not of whom it should be."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What would make a problem feasible: words, and the numbers in them, as `n >= 1,000`, `epsilon >= 2` or rounds."""

    words: str
    users: int | None = None
    epsilon: float | None = None
    rounds: int | None = None
    unit: float | None = None  # where the words give ε as a multiple: of what

    def naming(self, users: int | None, epsilon: float | None, *, most: tuple[int, float]) -> "Needs":
        """Return the same with other numbers in the words; None says that nothing up to `most` does."""
        words = self.words
        if self.users is not None:
            none = f"other settings (no n up to {most[0]:,} was found to do)"
            words = words.replace(f"n >= {self.users:,}", none if users is None else f"n >= {users:,}")
        if self.epsilon is not None and epsilon is not None:
            words = words.replace(self.multiple(self.epsilon), self.multiple(epsilon))
        elif self.epsilon is not None:
            none = f"other settings (no epsilon up to {most[1]:g} was found to do)"
            words = words.replace(f", or {self.multiple(self.epsilon)}", "").replace(self.multiple(self.epsilon), none)
        return Needs(words, users, epsilon, self.rounds, self.unit)

    def multiple(self, epsilon: float) -> str:
        """Return an ε in words."""
        return f"epsilon >= {epsilon:g}" if self.unit is None else f"{epsilon / self.unit:.2g} times this epsilon"


class Infeasible(UsageError):
    """No parameters satisfy the theorem for this problem.

    `condition` is the inequality that fails; `needs` what would satisfy it (for example `n >= 199,560`); `users` how
    many users would, where that is known: what code reads, which never reads the words. Called when somebody reads them
    are a function that gives the words, and the one of `settle_by`, which makes a planner's estimates true.
    """

    def __init__(
        self,
        algorithm: str,
        condition: str,
        needs: str | Needs | Callable[[], str],
        feasible: tuple[str, ...] = (),
        *,
        users: int | None = None,
    ) -> None:
        self.algorithm, self.condition, self.feasible = algorithm, condition, feasible
        self._words = needs if callable(needs) else None
        self.estimate = needs if isinstance(needs, Needs) else Needs(needs if isinstance(needs, str) else "", users)
        self._settle: Callable[[Needs], Needs] | None = None
        self._settled: Needs | None = None
        super().__init__(algorithm, condition, self.estimate.words, feasible)

    def settle_by(self, settle: Callable[[Needs], Needs]) -> None:
        """Call `settle` with the estimates when somebody reads them; of several functions the last one counts."""
        self._settle, self._settled = settle, None

    def _read(self) -> "Needs":
        if self._settled is None:
            found = self.estimate if self._settle is None else self._settle(self.estimate)
            self._settled = found if self._words is None else replace(found, words=self._words())
        return self._settled

    @property
    def needs(self) -> str:
        """What would satisfy the condition."""
        return self._read().words

    @property
    def users(self) -> int | None:
        """How many users would; None where that is not known."""
        return self._read().users

    def __reduce__(self) -> tuple[type["Infeasible"], tuple[str, str, Needs, tuple[str, ...]]]:
        return Infeasible, (self.algorithm, self.condition, self._read(), self.feasible)  # a planner is not copied

    def __str__(self) -> str:
        message = f"Infeasible: {self.algorithm}: {self.condition}; needs {self.needs}."
        return printable(message + (f" Feasible here: {', '.join(self.feasible)}." if self.feasible else ""))

    @classmethod
    def too_few(cls, algorithm: str, condition: str, users: int, *, also: str = "") -> "Infeasible":
        """Return the error that names `users` as needed, `also` behind it; one more than there are is no estimate."""
        return cls(algorithm, condition, f"n >= {users:,}{also}", users=users)

    @classmethod
    def small_cohort(cls, mechanism: str, size: int, why: str, least: int, better: int) -> "Infeasible":
        """Return the error of a cohort that is too small for a mechanism, which names the least that will do."""
        needs = f"cohort_size >= {least:,} (better {better:,})"
        return cls(mechanism, f"cohort_size={size:,} is too small {why}", needs)


class RunError(QuoronError):
    """A correct request could not be completed."""


class Unreachable(RunError):
    """Nobody answers there now; the same request may succeed later."""


class BudgetExceeded(RunError):
    """The next round would exceed the budget; it was not asked."""


class LedgerError(RunError):
    """The ledger cannot be read, written or continued.

    The words may name a database's address, role and tables; `outside` is what is said over a network in their place.
    """

    def __init__(self, words: str, *, outside: str | None = None) -> None:
        super().__init__(words)
        self.outside = words if outside is None else outside


class LedgerUnavailable(LedgerError):
    """The database cannot be used now; the same request may succeed later. What was written stays whole."""


class OtherVersion(LedgerError):
    """Another version or configuration began this run: nothing of it was changed, so that it can still go on there."""


class BelowMinCohort(RunError):
    """Too few of those asked answered, as far as a count with noise tells: the run has ended without a model."""

    exit_code = 3


class NothingReleased(RunError):
    """Too few users agree, as far as a private test tells: there is no value. What was spent on the test is spent."""

    exit_code = 3


class VerificationError(RunError):
    """A plan does not satisfy the theorem that it cites."""


class WireError(RunError):
    """A message is not of this protocol; it was not acted on."""


def positive(**values: float) -> None:
    """Each value is a finite number above zero."""
    for name, value in values.items():
        if not (_finite(value) and value > 0):
            raise ConfigError(f"Expected {name} > 0 and finite, got {name}={value}.")


def non_negative(**values: float) -> None:
    """Each value is a finite number, zero or above."""
    for name, value in values.items():
        if not (_finite(value) and value >= 0):
            raise ConfigError(f"Expected {name} >= 0 and finite, got {name}={value}.")


def probability(**values: float) -> None:
    """Each value lies strictly between 0 and 1."""
    for name, value in values.items():
        if not (_finite(value) and 0 < value < 1):
            raise ConfigError(f"Expected {name} in (0, 1), got {name}={value}.")


def count(**values: int) -> None:
    """Each value is an integer of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"Expected {name} to be an integer >= 1, got {name}={value!r}.")


def require(where: str, *conditions: tuple[str, bool, object]) -> None:
    """Raise VerificationError for the first (what is expected, whether it holds, what there is) that does not hold."""
    for what, holds, got in conditions:
        if not holds:
            raise VerificationError(f"Expected {what} in {where}, got {got}.")


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """Ask whether the nearest known name is meant; `otherwise` where none is near."""
    from difflib import get_close_matches

    begun = [one for one in known if name and one.startswith(name)]
    close = begun or get_close_matches(name, known, n=1, cutoff=0.65)
    return f"Did you mean {close[0]!r}?" if close else otherwise


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except (OverflowError, TypeError):  # an integer beyond every float; what is no number
        return False
