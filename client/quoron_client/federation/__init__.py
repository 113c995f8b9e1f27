"""A client of a federation: one user's data, what their owner allows, and a conversation with the coordinator."""

from quoron_client.federation.config import ClientConfig
from quoron_client.federation.record import Agreement, Record
from quoron_client.federation.session import run_client
from quoron_client.federation.terms import Terms, read_terms

__all__ = ["Agreement", "ClientConfig", "Record", "Terms", "read_terms", "run_client"]
