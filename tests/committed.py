"""What a run's store has committed, which every later start has to keep to the bit; and what was charged for it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from quoron.training import lifetime
from quoron_privacy.accounts.lifetime import Charge
from quoron_privacy.release import Release
from quoron_server.storage.ledger import Ledger


@dataclass(frozen=True)
class Committed:
    """All of one run's rows that anybody may have been shown, and the state that it goes on from."""

    rounds: tuple[tuple[int, dict[str, Any], tuple[Release, ...]], ...] = ()  # each with its event and releases
    state: tuple[int, bytes] | None = None  # None before the first commit, and at the end
    model: bytes | None = None

    @classmethod
    def of(cls, ledger: Ledger) -> Self:
        releases = ledger.releases()
        rounds = tuple(
            (event["round"], event, tuple(each for number, each in releases if number == event["round"]))
            for event in ledger.events()
        )
        return cls(rounds, ledger.resume_point(), ledger.model.tobytes() if ledger.finished else None)

    def goes_on_from(self, before: "Committed") -> bool:
        """Whether nothing that was there is another now: each round released once, and nothing of it drawn again."""
        same_point = (before.state or (None,))[0] == (self.state or (None,))[0]
        return (
            self.rounds[: len(before.rounds)] == before.rounds
            and before.model in (None, self.model)
            and (before.state == self.state or not same_point)
        )


def committed(folder: Path) -> Committed:
    """Of a run folder; nothing, if its ledger is not there yet."""
    if not (folder / "ledger.sqlite").is_file():
        return Committed()
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        return Committed.of(ledger)


def charges(ledger: Path, population: str = "everyone") -> list[Charge]:
    """What a lifetime account was charged for a population."""
    with lifetime.opened(ledger) as kept:
        return kept.charges(population)


def limit(ledger: Path, population: str = "everyone", **numbers: float) -> None:
    """Have a lifetime account refuse what would exceed these numbers."""
    with lifetime.opened(ledger) as kept:
        kept.limit(population, **numbers)
