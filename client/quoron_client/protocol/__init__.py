"""The words that coordinator and clients share: questions, answers, domains, and their bytes."""

import ipaddress

MOST_PEOPLE = 1 << 20  # of one silo, each of whom is charged


def is_loopback(address: str) -> bool:
    """Return whether host:port is reachable from this machine only."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
