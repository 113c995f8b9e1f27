"""The commands of a federation: what they make, and which requests they refuse before anything is sent."""

import stat
from pathlib import Path

import pytest
from cryptography import x509

from federation.crowd import DIMENSION
from quoron.cli.app import invoke
from quoron.config import parse
from quoron.operate.submission import specify
from quoron_privacy.errors import ConfigError
from quoron_server import service
from quoron_server.service import ServeConfig, certificates, revocation

Captured = pytest.CaptureFixture[str]
TABLE = f"""
[population]
kind = "table"
path = "nobody-reads-this.parquet"
user = "who"
label = "sick"
numeric = {{ {", ".join(f"x{j} = [-1.0, 1.0]" for j in range(DIMENSION))} }}
categorical = {{ ward = ["A", "B"] }}

[problem]
items_per_user = 50

[privacy]
epsilon = 4.0
delta = 1e-5

[algorithm]
name = "one-pass-dp-sgd"
"""


def test_certs_adds_the_hosts_that_a_coordinators_certificate_lacks_and_keeps_its_key(tmp_path: Path) -> None:
    def stands() -> tuple[str, set[str], int]:
        loaded = certificates.load_certificate(tmp_path / "coordinator.pem")
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return certificates.fingerprint(loaded), {str(each.value) for each in names}, loaded.serial_number

    assert invoke(["certs", str(tmp_path), "--host", "hub", "--host", "10.0.0.7"]) == 0
    key, _, number = stands()
    assert invoke(["certs", str(tmp_path), "--host", "10.0.0.7"]) == 0
    assert stands() == (key, {"hub", "10.0.0.7"}, number)  # it has that one
    assert invoke(["certs", str(tmp_path), "--host", "hub.example.org", "--host", "hub"]) == 0
    assert stands()[:2] == (key, {"hub", "10.0.0.7", "hub.example.org"})
    assert invoke(["certs", str(tmp_path), "--host", "hub.example.org", "--renew"]) == 0
    assert stands()[:2] == (key, {"hub.example.org"})


@pytest.mark.parametrize("host", ["hub:7443", "https://hub", "a b", ""])
def test_certs_refuses_what_cannot_be_a_host(tmp_path: Path, capsys: Captured, host: str) -> None:
    assert invoke(["certs", str(tmp_path), "--host", host]) == 2
    assert f"got {host!r}" in capsys.readouterr().err


def test_certs_revokes_clients_and_makes_nothing_else(tmp_path: Path, capsys: Captured) -> None:
    assert invoke(["certs", str(tmp_path), "--clients", "2"]) == 0
    before = {path.name for path in tmp_path.iterdir()}
    for _ in range(2):
        assert invoke(["certs", str(tmp_path), "--revoke", "client-1", "--revoke", "client-2"]) == 0
    assert capsys.readouterr().out.endswith(f"{tmp_path / 'revoked.json'}\n")
    assert {path.name for path in tmp_path.iterdir()} == before
    listed = revocation.read(tmp_path / "revoked.json")
    assert listed == {
        certificates.fingerprint(certificates.load_certificate(tmp_path / f"{name}.pem")): name
        for name in ("client-1", "client-2")
    }
    assert invoke(["certs", str(tmp_path), "--client", "client-1", "--renew"]) == 2
    assert "not revoked" in capsys.readouterr().err
    for nobody in ("client-3", "coordinator", "../client-1"):
        assert invoke(["certs", str(tmp_path), "--revoke", nobody]) == 2
    assert invoke(["serve", "--revoked", str(tmp_path / "nothing.json")]) == 2
    assert "nothing.json" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["authority", "", "../up", "a b", "coordinator"])
def test_a_name_that_is_none_gets_no_certificate(name: str, tmp_path: Path) -> None:
    assert invoke(["certs", str(tmp_path), "--client", name]) == 2


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


def test_a_time_that_no_calendar_has_is_refused(tmp_path: Path, capsys: Captured) -> None:
    words = ["tokens", "add", "ada", "--role", "operator", "--file", str(tmp_path / "t.json"), "--valid"]
    assert invoke([*words, "999999999w"]) == 2
    assert "hundred years" in capsys.readouterr().err
    assert invoke([*words, "5200w"]) == 0
    assert invoke(["certs", str(tmp_path), "--days", "99999999"]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve"], "quoron certs"),
        (["serve", "--insecure", "--listen", "0.0.0.0:0"], "plaintext is for loopback"),
        (["watch", "x"], "--token-file or QUORON_TOKEN"),
        (["watch", "x", "--token-file", "nowhere"], "nowhere"),
        (["client", "--data", "x.csv"], "certificate"),
    ],
)
def test_what_is_missing_is_named(
    arguments: list[str], words: str, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("command", ["serve", "client"])
def test_files_of_the_environment_beside_plaintext_are_named_as_such(
    command: str, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUORON_AUTHORITY", "authority.pem")
    monkeypatch.setenv("QUORON_KEY", "own.key")
    own = [] if command == "serve" else ["--data", "x.csv", "--name", "me"]
    assert invoke([command, "--insecure", *own]) == 2
    assert "Expected no QUORON_KEY or QUORON_AUTHORITY in the environment" in capsys.readouterr().err
    assert invoke([command, "--insecure-anywhere", "--authority", "a", "--key", "b", *own]) == 2
    assert "environment" not in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "wanted"), [("64MiB", 64 << 20), ("4096", 4096), ("8 KiB", 8192), ("1GiB", 1 << 30), ("1Mb", None)]
)
def test_the_largest_message_is_a_number_of_bytes(
    text: str, wanted: int | None, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    async def serve(config: ServeConfig, **_: object) -> None:
        seen.append(config.largest_message)

    monkeypatch.setattr(service, "serve", serve)
    monkeypatch.setenv("QUORON_LARGEST_MESSAGE", text)
    assert invoke(["serve", "--insecure"]) == (2 if wanted is None else 0)
    assert seen == ([] if wanted is None else [wanted])
    assert ("--largest-message" in capsys.readouterr().err) == (wanted is None)


def test_an_unreachable_coordinator_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORON_TOKEN", "quoron_x")
    assert invoke(["runs", "--insecure", "--coordinator", "127.0.0.1:1"]) == 1
    assert "Cannot reach a coordinator at 127.0.0.1:1" in capsys.readouterr().err
    assert invoke(["runs", "--coordinator", "127.0.0.1:1"]) == 2
    assert "--authority" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["population.kind=synthetic"], "population.kind='table'"),
        (["population.categorical.ward=[]"], "population.categorical.ward"),
        (["population.outlier_fraction=0.1"], "outlier_fraction"),
        (["population.user=x0"], "user column 'x0'"),
        (["population.user=sick"], "got it as the label too"),
        (["population.categorical.x0=[1, 2]"], "every feature once, got 'x0' twice"),
        (["privacy.delta=1e-3"], "delta <= 1/n = 0.0002 for n=5,000 users"),
    ],
)
def test_a_submission_that_leaves_something_unsaid_is_refused(changes: list[str], words: str) -> None:
    config = parse("" if "synthetic" in changes[0] else TABLE, settings=changes)
    with pytest.raises(ConfigError, match=words):
        specify(config, run="summer", users=5000, seconds=60.0)
    with pytest.raises(ConfigError, match="items_per_user"):
        specify(parse(TABLE.replace("items_per_user = 50", "")), run="summer", users=5000, seconds=60.0)
