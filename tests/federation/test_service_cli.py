"""The commands of a federation: what they make, and which requests they refuse before anything is sent."""

from pathlib import Path

import pytest
from cryptography import x509

from federation.crowd import DIMENSION
from quoron.cli.app import invoke
from quoron.config import parse
from quoron.operate.submission import specify
from quoron_privacy.errors import ConfigError
from quoron_server.service import certificates, revocation

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
