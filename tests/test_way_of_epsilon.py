"""How far ε travels: from a typed command to the noise of the recommended method, through how many functions of ours.

A stop is a function that holds it on its way, that is, one on the stack when sections become a configuration, when ε
becomes noise, and when the first round draws that; decorators are left out. A return is a stop in a module that was
left before.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import quoron
from measures import FOLDERS, ROOT
from quoron.cli.app import invoke
from quoron_privacy.accounts import gdp

assert Path(quoron.__file__).is_relative_to(ROOT)
OURS = tuple(str(ROOT / folder / package) for package, folder in FOLDERS.items())
MOST_STOPS, MOST_RETURNS = 25, 5
MOMENTS = ("sections", "overlay", "assignment", "merge", "from_tree", "privacy_of", "mu_for", "stream")
EPSILON = 7.8125


class _Enough(BaseException):
    """The first round has drawn."""


class Way:
    """The stacks at the first of each moment, and of the last: in a round."""

    def __init__(self) -> None:
        self.stacks: dict[str, list[tuple[str, str]]] = {}

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_name
        if event != "call" or name not in MOMENTS or not frame.f_code.co_filename.startswith(OURS):
            return
        stack = list(_stack(frame))
        if name == "mu_for" and not any(called == "Registered.plan" for _, called in stack):
            return
        if name == "stream":
            if any(called.endswith(".update") for _, called in stack):
                self.stacks[name] = stack
                raise _Enough
            return
        self.stacks.setdefault(name, stack)

    @contextmanager
    def watched(self) -> Iterator[None]:
        sys.setprofile(self.see)
        try:
            yield
        except _Enough:
            pass
        finally:
            sys.setprofile(None)

    @property
    def stops(self) -> list[tuple[str, str]]:
        """(module, function), each once."""
        return list(dict.fromkeys(stop for moment in MOMENTS for stop in self.stacks.get(moment, ())))


def _stack(frame: FrameType | None) -> Iterator[tuple[str, str]]:
    if frame is not None:
        yield from _stack(frame.f_back)
        code = frame.f_code
        if code.co_filename.startswith(OURS) and "<" not in code.co_qualname:
            yield code.co_filename, code.co_qualname


@pytest.mark.parametrize("command", ["simulate", "train"])
def test_epsilon_takes_a_short_way_to_the_first_rounds_noise(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "ledger.sqlite"))
    rows = "\n".join(f"{row // 2},{row % 50},{row % 2}" for row in range(4000))
    (tmp_path / "visits.csv").write_text(f"who,age,ill\n{rows}\n", encoding="utf-8")
    (tmp_path / "visits.toml").write_text(
        '[population]\nkind = "table"\npath = "visits.csv"\nuser = "who"\nlabel = "ill"\nnumeric = { age = [0, 50] }\n'
        '[privacy]\ndelta = 1e-4\n[train]\nhealth = 0\n[domain]\nradius = 3.0\n[algorithm]\nname = "tracking-srgd"\n',
        encoding="utf-8",
    )
    typed = {
        "simulate": ["simulate", "visits.toml", "--set", f"privacy.epsilon={EPSILON}", "-q"],
        "train": ["train", "visits.toml", "--epsilon", str(EPSILON), "-q"],
    }
    gdp.mu_for.cache_clear()
    way = Way()
    with way.watched():
        invoke(typed[command])
    assert {"from_tree", "privacy_of", "mu_for", "stream"} <= set(way.stacks)
    modules = [module for module, _ in way.stops]
    left = [at for at, module in enumerate(modules) if module in modules[:at] and modules[at - 1] != module]
    assert len(way.stops) <= MOST_STOPS, way.stops
    assert len(left) <= MOST_RETURNS, [way.stops[at] for at in left]
