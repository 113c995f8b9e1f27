"""What a file or another machine calls itself cannot move the cursor, hide a line or end in a traceback."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quoron.cli.app import invoke
from quoron.operate.watching import words
from quoron_client.federation.session import _printable
from quoron_privacy.errors import printable

HOSTILE = "age\x1b[2J\x1b]0;title\x07\r\x9b31m\u202e\udc80"


def harmless(text: str) -> bool:
    return all(each.isprintable() or each in "\n\t" for each in text)


@given(st.text())
def test_what_is_printable_is_left_as_it_is_and_the_rest_is_told(text: str) -> None:
    shown = printable(text)
    assert harmless(shown)
    assert shown == text if harmless(text) else shown != text


def test_a_header_with_control_characters_reaches_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "visits.csv").write_text(f"patient,{HOSTILE[:-1]},ill\na,1,yes\n", encoding="utf-8")
    (tmp_path / "table.toml").write_text(
        """
        [population]
        kind = "table"
        path = "visits.csv"
        separator = ","
        user = "nobody"
        label = "ill"
        numeric = { age = [0, 100] }

        [privacy]
        epsilon = 1.0
        """,
        encoding="utf-8",
    )
    assert invoke(["train", str(tmp_path / "table.toml"), "--out", str(tmp_path / "run")]) != 0
    printed = capsys.readouterr()
    assert "age" in printed.err
    assert harmless(printed.out + printed.err)


def test_a_coordinator_cannot_write_on_an_operators_terminal() -> None:
    for event in (
        {"kind": "ended", "how": HOSTILE, "error": f"{HOSTILE}\nround 1 of 1: done"},
        {"kind": "paused", "error": HOSTILE},
        {"round": 0, "rounds": 1, "messages": 3, "kind": "round", "public": {HOSTILE: HOSTILE}},
    ):
        line = words(event)
        assert harmless(line)
        assert "\n" not in line
    assert "\n" not in _printable(f"{HOSTILE}\n{HOSTILE}")
