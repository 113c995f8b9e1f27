"""A client of a federation: one user's data, what their owner allows, and a conversation with the coordinator."""

from quorate_client.federation.config import ClientConfig
from quorate_client.federation.record import Agreement, Record
from quorate_client.federation.session import run_client
from quorate_client.federation.terms import Terms, read_terms

__all__ = ["Agreement", "ClientConfig", "Record", "Terms", "read_terms", "run_client"]
