"""The words that coordinator and clients share: questions, answers, domains, and their bytes."""

import ipaddress

from quoron_privacy.errors import ConfigError

MAX_PEOPLE = 1 << 20  # of one silo, each of whom is charged


def is_loopback(address: str) -> bool:
    """Return whether host:port is reachable from this machine only."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_plaintext(address: str, *, insecure: bool) -> None:
    """Raise ConfigError for plain text to a host:port that is not on this machine."""
    if insecure and not is_loopback(address):
        raise ConfigError(
            f"Expected TLS at {address}, got --insecure: plaintext is for loopback. Give certificates (`quoron admin "
            "certs`)."
        )
