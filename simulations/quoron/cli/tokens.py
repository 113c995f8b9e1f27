"""`quoron admin tokens`: who may call a coordinator's control plane, as what, and for how long."""

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quoron_privacy.errors import ConfigError, RunError, printable
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:
    from quoron_client import durable
    from quoron_server.service import tokens as stored
else:  # when a command is called
    durable = OnFirstUse("quoron_client.durable")
    stored = OnFirstUse("quoron_server.service.tokens")

LONGEST = 36_500 * 86_400  # seconds; no calendar goes on for ever
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output, one object a line.")]


def tokens(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Whose it is.")] = None,
    role: Annotated[str | None, typer.Option(help="Make a token: operator or auditor.")] = None,
    valid: Annotated[str, typer.Option(metavar="TIME", help="How long it is good, such as 12h, 7d or 4w.")] = "never",
    out: Annotated[Path | None, typer.Option(help="Write the token there instead of showing it.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the token back, at once.")] = False,
    file: Annotated[
        Path, typer.Option("--file", envvar="QUORON_TOKENS", help="Where tokens are kept, as hashes.")
    ] = Path("tokens.json"),
    as_json: Json = False,
) -> None:
    """List the tokens of the control plane, those that are over too; or make one, which is shown this once."""
    if name is None and role is None and not remove:
        for each in stored.read(file).values():
            print(json.dumps(each.as_json()) if as_json else printable(f"{each.name}\t{each.role}\t{each.words()}"))
        return
    if name is None or remove is (role is not None):
        got = " and ".join([*filter(None, (name, role and f"--role {role}")), *(["--remove"] if remove else [])])
        raise ConfigError(f"Expected a NAME with --role or with --remove, got {got}.")
    if role is None:
        stored.remove(file, name=name)
        return
    token = stored.add(file, name=name, role=role, valid=seconds_of("--valid", valid))
    if out is None:
        print(token)
        return
    try:
        durable.replace_whole(out, f"{token}\n".encode(), mode=durable.PRIVATE)
    except OSError as error:
        stored.remove(file, name=name)  # nobody has seen it
        raise RunError(f"Cannot write the token to {out}: {error.strerror}. Choose another place.") from None


def seconds_of(option: str, text: str) -> float:
    """A time, such as 4w, 7d, 12h, 30m or 45s."""
    found = re.fullmatch(r"(\d{1,9})\s*([smhdw])", text.strip())
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
    seconds = math.inf if found is None else int(found[1]) * units[found[2]]
    if seconds > LONGEST and text != "never":
        times = "a time such as 7d, 12h, 30m or 45s, a hundred years at most"
        raise ConfigError(f"Expected {option} as {times}, or never, got {text!r}.")
    return seconds


def bytes_of(option: str, text: str) -> int:
    """A number of bytes, such as 64MiB."""
    found = re.fullmatch(r"(\d{1,12})\s*([KMG]iB)?", text.strip())
    if found is None:
        raise ConfigError(f"Expected {option} as a number of bytes, KiB, MiB or GiB, got {text!r}.")
    return int(found[1]) << {None: 0, "KiB": 10, "MiB": 20, "GiB": 30}[found[2]]
