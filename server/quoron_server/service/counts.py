"""What a coordinator counts for those who watch over it, since it started: nothing that follows from anybody's data."""

from collections import Counter
from dataclasses import dataclass, field

from grpc import StatusCode

from quoron_client.protocol import wire
from quoron_privacy.errors import BudgetExceeded, LedgerUnavailable, QuoronError
from quoron_server.service import revocation, security, users
from quoron_server.specification import OtherPlan

WHY = ("limit", "plan", "other")  # a submitted run is refused
OTHER_PROTOCOL = f"Expected protocol {wire.PROTOCOL}. Use a matching version."
_NAMED, _OTHERS = 100, "others"  # clients
CALLS = ("identity", "revoked", "expired", "foreign", "other")  # a call is refused


@dataclass(slots=True)
class Counts:
    """Each begins at zero with the process."""

    refused: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(WHY, 0)))
    calls: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(CALLS, 0)))
    misfits: Counter[str] = field(default_factory=Counter)  # messages of software that does not fit, by client
    newer_books: int = 0  # enrolments of clients that have seen more of the lifetime ledger than there is

    def refuse(self, error: QuoronError) -> None:
        """A run was not taken on; that the database was away is no word on the run."""
        if not isinstance(error, LedgerUnavailable):
            kinds = {"limit": BudgetExceeded, "plan": OtherPlan}
            self.refused[next((why for why, kind in kinds.items() if isinstance(error, kind)), "other")] += 1

    def misfit(self, client: str) -> bool:
        """A client's software does not fit; whether that is new. Of many clients the later ones are counted as one."""
        name = client if client in self.misfits or len(self.misfits) < _NAMED else _OTHERS
        self.misfits[name] += 1
        return self.misfits[name] == 1

    def refuse_call(self, code: StatusCode, words: str) -> None:
        """A call of a client or an operator ends before it is heard."""
        known = {revocation.WORDS: "revoked", users.GONE: "revoked", security.EXPIRED: "expired"}
        known |= {OTHER_PROTOCOL: "foreign"}
        kinds = {StatusCode.UNAUTHENTICATED: "identity", StatusCode.INVALID_ARGUMENT: "foreign"}
        self.calls[known.get(words) or kinds.get(code, "other")] += 1
