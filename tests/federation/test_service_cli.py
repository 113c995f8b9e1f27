"""The commands of a federation: what they make, and which requests they refuse before anything is sent."""

import stat
from pathlib import Path

import pytest

from quoron.cli.app import invoke
from quoron_server.service import certificates


def test_certs_makes_a_private_authority_once_and_keeps_what_is_there(tmp_path: Path) -> None:
    assert invoke(["certs", str(tmp_path), "--clients", "2", "--client", "ada", "--host", "hub"]) == 0
    before = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*.*")}
    names, files = ("coordinator", "client-1", "client-2", "ada"), ("certificate.pem", "key.pem", "authority.pem")
    assert set(before) == {f"{name}/{file}" for name in names for file in files} | {
        *("authority.pem", "authority.key", "revoked.json", "coordinator/revoked.json")
    }
    assert {before[f"{name}/authority.pem"] for name in names} == {before["authority.pem"]}
    assert invoke(["certs", str(tmp_path), "--clients", "3"]) == 0
    assert all((tmp_path / name).read_bytes() == content for name, content in before.items())
    assert (tmp_path / "client-3/certificate.pem").is_file()
    for key in ("authority.key", *(f"{name}/key.pem" for name in names)):
        assert stat.S_IMODE((tmp_path / key).stat().st_mode) == 0o600
    own = certificates.load_certificate(tmp_path / "ada/certificate.pem")
    assert invoke(["certs", str(tmp_path), "--client", "ada", "--renew"]) == 0
    renewed = certificates.load_certificate(tmp_path / "ada/certificate.pem")
    assert renewed.serial_number != own.serial_number
    assert certificates.fingerprint(renewed) == certificates.fingerprint(own)


def test_tokens_are_added_listed_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "tokens.json")
    out = tmp_path / "token"
    assert invoke(["tokens", "add", "ada", "--role", "operator", "--file", file, "--out", str(out)]) == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert invoke(["tokens", "add", "eve", "--role", "auditor", "--file", file]) == 0
    assert capsys.readouterr().out.startswith("quoron_")
    assert invoke(["tokens", "list", "--file", file]) == 0
    assert capsys.readouterr().out == "ada\toperator\tno end\neve\tauditor\tno end\n"
    assert invoke(["tokens", "remove", "ada", "--file", file]) == 0
    assert invoke(["tokens", "remove", "ada", "--file", file]) == 2
