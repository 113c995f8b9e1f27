"""`quoron.algorithms`: what can be named, and what is refused."""

from typing import Any

from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.references import REFUSED


def algorithms() -> list[dict[str, Any]]:
    """Return a mapping for each algorithm: its name, what it does, its paper, what it protects and its theorem.

    Published algorithms that are refused are listed too, without trust models, and with the theorem that says why.

        >>> [row["name"] for row in algorithms() if "local" in row["trust_models"]]
        ['local-model']
    """
    same = ("name", "summary", "paper", "trust_model")
    rows: list[dict[str, Any]] = []
    for info in ALGORITHMS.values():
        offered: dict[str, Any] = {"trust_models": info.trust_models, "one_server": info.promises.one_server}
        offered |= {"adjacency": info.promises.adjacency, "constants": info.constants, "theorem": info.promises.theorem}
        offered |= {"relation": info.origin.relation, "from": str(info.origin), "changed": info.origin.note}
        rows.append({key: getattr(info, key) for key in same} | offered)
    for refused in REFUSED.values():
        nothing = {"trust_models": (), "one_server": None, "adjacency": (), "constants": (), "theorem": refused.theorem}
        nothing |= {"relation": None, "from": refused.paper, "changed": ""}
        rows.append({key: getattr(refused, key) for key in same} | nothing)
    return rows
