"""A user is forgotten by its operator: in the database, in the list of revoked keys, among the certificates; a receipt.

    receipt = forget(erase, "ada", certificates=Path("trial"))
    print(words(receipt))

Each step may be repeated: after an interruption call it again, with the user's number once its name is gone:

| step                                                        | from then on                                        |
| ----------------------------------------------------------- | --------------------------------------------------- |
| its keys are on the list of revoked ones, under no name     | the coordinator refuses it, whatever its store says |
| the database erases who it was, in one transaction          | nothing leads from the number to the person         |
| its certificates and keys are erased where they were issued | nobody can pose as it                               |
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from quoron_server.service import certificates as issued

STAYS = {
    "its number, in the runs that it was a member of": "how they were drawn stays checkable; nobody else gets it",
    "what its group was guaranteed, in the lifetime ledger": "it bounds what was released of each of its users",
    "rows of that ledger about its seat": "numbers, and fingerprints of keys that it rotated: a chain cannot forget",
    "every model and statistic that was released": "it is out; its guarantee bounds what it can say of one user",
    "what an open run has computed of its answers": "until that run ends; then it is erased as everybody's",
    "digests of its keys, and the revoked key": "so that none of them is ever a user again",
}
OUTSIDE = (
    "Backups, exports and logs of before have what they had: they are yours to delete or to let expire. Anyone who "
    "restores a backup of before forgets this user again, by this number."
)
Erase = Callable[[str, bool], dict[str, Any]]  # of whom it would be, or what was erased


def forget(erase: Erase, user: str, *, certificates: Path | None = None) -> dict[str, Any]:
    """Forget a user, by number, name or fingerprint, and return a receipt: what was erased, and what stays.

    Raises what `erase` raises for one whom it does not know, IdentityError or ConfigError for a folder of no use.
    """
    known = erase(user, False)
    for key in (known["fingerprint"], *known["keys_before"]):
        if certificates is not None and len(key) == 64:  # else it is forgotten, or known by a name alone
            issued.revoke_key(certificates, key)
    done = erase(str(known["user"]), True)
    files = () if certificates is None else tuple(issued.erase_forgotten(certificates))
    erased = {"name, software, times": True, "keys": done["keys"], "agreements": done["agreements"], "files": files}
    told = {"user": done["user"], "group": done["group"], "forgotten": done["time"]}
    return told | {"erased": erased, "stays": STAYS, "outside": OUTSIDE}


def words(receipt: Mapping[str, Any]) -> str:
    """For people."""
    user, group, time, erased = (receipt[name] for name in ("user", "group", "forgotten", "erased"))
    lines = [
        f"User {user} of population {group} was forgotten, at {time}.",
        "\nErased:",
        "  its name, what its client ran, when it came and was last seen",
        f"  {erased['keys']} key{'s' if erased['keys'] != 1 else ''}, by fingerprint",
        f"  {erased['agreements']} agreements to runs",
        *(f"  {file}" for file in erased["files"]),
        "\nStays:",
        *(f"  {what}: {why}" for what, why in STAYS.items()),
    ]
    return "\n".join([*lines, "", OUTSIDE])
