"""A user is forgotten by its operator: in the database, in the list of revoked keys, among the certificates; a receipt.

    receipt = forget(erase, "ada", certificates=Path("trial"))
    print(receipt.words())

Each step may be repeated: after an interruption call it again, with the user's number once its name is gone:

| step                                                        | from then on                                        |
| ----------------------------------------------------------- | --------------------------------------------------- |
| its key is on the list of revoked ones, under no name       | the coordinator refuses it, whatever its store says |
| the database erases who it was, in one transaction          | nothing leads from the number to the person         |
| its certificates and keys are erased where they were issued | nobody can pose as it                               |
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from quoron_client.federation.account import Receipt
from quoron_server.service import certificates as issued

STAYS = {
    "its number, in the runs that it was a member of": "how they were drawn stays checkable; nobody else gets it",
    "what its group was guaranteed, in the lifetime ledger": "it bounds what was released of each of its users",
    "every model and statistic that was released": "it is out; its guarantee bounds what it can say of one user",
    "what an open run has computed of its answers": "until that run ends; then it is erased as everybody's",
    "a digest of its key, and the revoked key": "so that it is never a user again",
}
OUTSIDE = (
    "Backups, exports and logs of before have what they had: they are yours to delete or to let expire. Anyone who "
    "restores a backup of before forgets this user again, by this number."
)
Erase = Callable[[str, bool], dict[str, Any]]  # of whom it would be, or what was erased


def forget(erase: Erase, user: str, *, certificates: Path | None = None) -> Receipt:
    """Forget a user, by number, name or fingerprint. Raises what `erase` raises for one whom it does not know, and
    IdentityError or ConfigError for a folder that cannot be used."""
    known = erase(user, False)
    if certificates is not None and len(known["fingerprint"]) == 64:  # else it is forgotten, or known by a name alone
        issued.revoke_key(certificates, known["fingerprint"])
    done = erase(str(known["user"]), True)
    files = () if certificates is None else tuple(issued.erase_forgotten(certificates))
    agreements = done["agreements"]
    erased = {"name, key, software, times": True, "agreements": agreements, "files": files}
    return Receipt(
        f"User {done['user']} of population {done['group']} was forgotten, at {done['time']}.",
        (
            "its name, what its client ran, when it came and was last seen",
            "its key, by fingerprint",
            f"{agreements} agreements to runs",
            *files,
        ),
        STAYS,
        {"user": done["user"], "group": done["group"], "forgotten": done["time"], "erased": erased, "outside": OUTSIDE},
        OUTSIDE,
    )
