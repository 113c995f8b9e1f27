"""Hellos: who understands us, and why others do not, before anybody's data are asked about.

    hellos = Hellos(grid, "private")
    for node, values in hellos.say([5, 9], seconds=120).items(): ...

Each node is sent 16 random bytes, and sends them back with its version and its place. A mod of a ClientApp sees every
message, hellos too: one that expects other records, or changes those of a reply, breaks a hello as it would an answer.
Our clients look at no data for it, so what comes of hellos is told by name, and may end a run before its first
question. What comes of questions is neither: that an answer is missing may be a function of the data.
"""

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from flwr.app import Error, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from quoron_client.protocol.flower_records import HELLO, Values, refusal, values_of
from quoron_privacy.errors import RunError, WireError
from quoron_server.flower.exchange import Clock, Letter, Told, heard, untold
from quoron_server.flower.pulls import Pulls

QUIET = 15.0  # seconds without a reply, after which those that cannot be used are all that there is
# Flower's own mods that refuse what is not of its strategies, by the first word of their reason. Nothing else of a
# reason is read, let alone told: a ClientApp's own code can write what it likes into it.
MODS = MappingProxyType(
    {
        "LocalDpMod": "to clip and noise the arrays of a Strategy",
        "fixedclipping_mod": "to clip for DifferentialPrivacyClientSideFixedClipping",
        "adaptiveclipping_mod": "to clip for DifferentialPrivacyClientSideAdaptiveClipping",
    }
)
_FIX = (
    "Take it out of ClientApp(mods=[...]), or name mods with the functions that need them, as in "
    "@app.train(mods=[...]): quoron clips and noises by itself"
)
_CODES = MappingProxyType(
    {
        ErrorCode.LOAD_CLIENT_APP_EXCEPTION: "its ClientApp cannot be loaded. Install quoron, and all that the app "
        "imports, where it runs; its own log has the error",
        ErrorCode.CLIENT_APP_RAISED_EXCEPTION: "its ClientApp raised an exception. Give it the action that the server "
        "asks for, with `answer_with` in it, and no mod that needs other messages; its own log has the error",
        ErrorCode.INVALID_FAB: "it does not trust this app: Flower could not verify it",
    }
)
_log = logging.getLogger("quoron")


class NobodyUnderstands(RunError):
    """No node's ClientApp takes our messages. Once it does, the same run can begin, or go on."""


@dataclass(slots=True, eq=False)
class Hellos:
    """What nodes have said to hellos."""

    grid: Grid
    action: str = HELLO
    told: Told = untold
    reasons: dict[int, str] = field(default_factory=dict)  # why a node takes no part, the latest
    _pulls: Pulls = field(default_factory=Pulls)
    _understood: bool = False
    _silence: Clock | None = None  # since the last reply, while none could be used

    def say(self, nodes: Sequence[int], seconds: float) -> dict[int, Values]:
        """Values of each node that takes part. Raises NobodyUnderstands, SuperLinkAway.

        It waits at most `seconds`, or QUIET after the last of replies of which none can be used.
        """
        nonces = [secrets.token_bytes(16) for _ in nodes]
        letters = [Letter(node, self.action, {"nonce": nonce}) for node, nonce in zip(nodes, nonces, strict=True)]
        clock, whole, found = Clock(), 0.0, dict[int, Values]()
        for index, reply in heard(self.grid, letters, group="hello", seconds=seconds, pulls=self._pulls, clock=clock):
            node, read, whole = nodes[index], _read(reply, nonces[index]), max(whole, clock.ends)
            if isinstance(read, str):
                self._tell(node, read)
                if not self._understood:
                    self._silence = Clock()
                    self._silence.start(QUIET)
                    clock.ends = min(clock.ends, self._silence.ends)
            else:
                self._understood, clock.ends = True, whole
                if (why := refusal(read)) is None:
                    found[node] = read
                    self.reasons.pop(node, None)
                else:
                    self._tell(node, why)
            self.told(len(found), len(nodes))
        self.require_somebody()
        return found

    def require_somebody(self, *, late: bool = False) -> None:
        """NobodyUnderstands if no reply could ever be used, and the last is QUIET seconds old, or it is `late`."""
        if not self._understood and self._silence is not None and (late or self._silence.over):
            raise NobodyUnderstands(
                f"Expected a ClientApp that takes part, got none from {len(self.reasons)} nodes.{self.said()} Nothing "
                "was asked, and nothing is lost: mend the app, and start the same run again."
            )

    def said(self) -> str:
        """Why nodes take no part, in a sentence; empty if none has said so."""
        if not self.reasons:
            return ""
        node, why = next(iter(self.reasons.items()))
        same = sum(each == why for each in self.reasons.values())
        return f" Node {node}{f' and {same - 1} more' if same > 1 else ''}: {why}."

    def _tell(self, node: int, why: str) -> None:
        first = next((each for each, known in self.reasons.items() if known == why), node)
        self.reasons[node] = why
        _log.warning("node %d takes no part: %s", node, why if first == node else f"as node {first}")


def _read(reply: RecordDict | Error, nonce: bytes) -> Values | str:
    """What a node says, or why that cannot be used."""
    if isinstance(reply, Error):
        return _fault(reply)
    try:
        values = values_of(reply)
    except WireError:
        return f"its reply is not one of quoron: a mod of its ClientApp has replaced the record. {_FIX}"
    if refusal(values) is None and values.get("nonce") != nonce:
        return f"its reply is not what quoron made there: a mod of its ClientApp changes records. {_FIX}"
    return values


def _fault(error: Error) -> str:
    """Fixed words for an error of Flower's."""
    if error.code == ErrorCode.MOD_FAILED_PRECONDITION:
        name = str(error.reason).partition(" ")[0]
        if name in MODS:
            return f"{name}, a mod of its ClientApp, is there {MODS[name]}, and refuses all other messages. {_FIX}"
        return f"a mod of its ClientApp refuses messages that are not those of a Strategy. {_FIX}"
    return _CODES.get(
        error.code, f"its ClientApp has ended without an answer (Flower's code {error.code}). See its log"
    )
