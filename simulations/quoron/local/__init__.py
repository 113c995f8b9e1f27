"""Federations on this machine: a coordinator and its clients as processes, over mutual TLS, that end with whoever
started them. They need what Linux and macOS have: ConfigError elsewhere."""

from quoron_privacy.errors import ConfigError

try:
    import fcntl  # noqa: F401
except ImportError:
    raise ConfigError(
        "Expected Linux or macOS for a federation on this machine, got a system without locks on files. On Windows, "
        "start it in WSL."
    ) from None
