"""The commands of a federation: what they make, and which requests they refuse before anything is sent."""

import stat
from pathlib import Path

import pytest

from quoron.cli.app import invoke
from quoron_server.service import certificates


def test_certs_makes_a_private_authority_once_and_keeps_what_is_there(tmp_path: Path) -> None:
    assert invoke(["admin", "certs", str(tmp_path), "--clients", "2", "--client", "ada", "--host", "hub"]) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    names = ("authority", "coordinator", "client-1", "client-2", "ada")
    assert set(before) == {f"{name}.{end}" for name in names for end in ("pem", "key")} | {"revoked.json"}
    assert invoke(["admin", "certs", str(tmp_path), "--clients", "3"]) == 0
    assert all((tmp_path / name).read_bytes() == content for name, content in before.items())
    assert (tmp_path / "client-3.pem").is_file()
    for name in names:
        assert stat.S_IMODE((tmp_path / f"{name}.key").stat().st_mode) == 0o600
    own = certificates.load_certificate(tmp_path / "ada.pem")
    assert invoke(["admin", "certs", str(tmp_path), "--client", "ada", "--renew"]) == 0
    renewed = certificates.load_certificate(tmp_path / "ada.pem")
    assert renewed.serial_number != own.serial_number
    assert certificates.fingerprint(renewed) == certificates.fingerprint(own)


def test_tokens_are_added_listed_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "tokens.json")
    out = tmp_path / "token"
    assert invoke(["admin", "tokens", "add", "ada", "--role", "operator", "--file", file, "--out", str(out)]) == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert invoke(["admin", "tokens", "add", "eve", "--role", "auditor", "--file", file]) == 0
    assert capsys.readouterr().out.startswith("quoron_")
    assert invoke(["admin", "tokens", "list", "--file", file]) == 0
    assert capsys.readouterr().out == "ada\toperator\tno end\neve\tauditor\tno end\n"
    assert invoke(["admin", "tokens", "remove", "ada", "--file", file]) == 0
    assert invoke(["admin", "tokens", "remove", "ada", "--file", file]) == 2
