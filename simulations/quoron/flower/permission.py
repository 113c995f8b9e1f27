"""What the operator of a ServerApp allows, by the environment of its process: no submitter's run config says it."""

from collections.abc import Mapping

from quoron_privacy.errors import ConfigError


def allows_simulation(environment: Mapping[str, str]) -> bool:
    """Whether seeded noise is accepted, from nodes without authentication: for made-up data."""
    return environment.get("QUORON_ALLOW_SIMULATION") == "1"


def require_users(environment: Mapping[str, str]) -> None:
    """ConfigError unless a SuperNode's key stands for a user: nobody takes part as two."""
    if not allows_simulation(environment) and environment.get("QUORON_SUPERNODE_AUTH") != "1":
        raise ConfigError(
            "Expected QUORON_SUPERNODE_AUTH=1 in the ServerApp's environment, got none: start the SuperLink with "
            "--enable-supernode-auth, so that nobody takes part as two users, and say so."
        )


def require_secret_noise(environment: Mapping[str, str], simulation_seed: int | None) -> None:
    """ConfigError for noise that whoever knows the seed can subtract, where users are real."""
    if simulation_seed is not None and not allows_simulation(environment):
        raise ConfigError(
            f'Expected no seed with identities="keys", got {simulation_seed}: whoever knows it can subtract '
            "the noise. Leave it out, or set QUORON_ALLOW_SIMULATION=1 in the ServerApp's environment for made-up "
            "data."
        )
