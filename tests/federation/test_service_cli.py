"""The commands of a federation: what they make, and which requests they refuse before anything is sent."""

import stat
from pathlib import Path

import pytest

from quoron.cli.app import invoke
from quoron_server.service import certificates


def test_certs_makes_a_private_authority_once_and_keeps_what_is_there(tmp_path: Path) -> None:
    assert invoke(["admin", "certs", str(tmp_path), "--clients", "2", "--client", "ada", "--host", "hub"]) == 0
    before = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*.*")}
    names, files = ("coordinator", "client-1", "client-2", "ada"), ("certificate.pem", "key.pem", "authority.pem")
    assert set(before) == {f"{name}/{file}" for name in names for file in files} | {
        *("authority.pem", "authority.key", "revoked.json", "coordinator/revoked.json")
    }
    assert {before[f"{name}/authority.pem"] for name in names} == {before["authority.pem"]}
    assert invoke(["admin", "certs", str(tmp_path), "--clients", "3"]) == 0
    assert all((tmp_path / name).read_bytes() == content for name, content in before.items())
    assert (tmp_path / "client-3/certificate.pem").is_file()
    for key in ("authority.key", *(f"{name}/key.pem" for name in names)):
        assert stat.S_IMODE((tmp_path / key).stat().st_mode) == 0o600
    own = certificates.load(tmp_path / "ada/certificate.pem")
    assert invoke(["admin", "certs", str(tmp_path), "--client", "ada", "--renew"]) == 0
    renewed = certificates.load(tmp_path / "ada/certificate.pem")
    assert renewed.serial_number != own.serial_number
    assert certificates.fingerprint(renewed) == certificates.fingerprint(own)


def test_tokens_are_added_listed_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "tokens.json")
    out = tmp_path / "token"
    assert invoke(["admin", "tokens", "ada", "--role", "operator", "--file", file, "--out", str(out)]) == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert invoke(["admin", "tokens", "eve", "--role", "auditor", "--file", file]) == 0
    assert capsys.readouterr().out.startswith("quoron_")
    assert invoke(["admin", "tokens", "--file", file]) == 0
    assert capsys.readouterr().out == "ada\toperator\tno end\neve\tauditor\tno end\n"
    assert invoke(["admin", "tokens", "ada", "--remove", "--file", file]) == 0
    assert invoke(["admin", "tokens", "ada", "--remove", "--file", file]) == 2


@pytest.mark.parametrize(
    "words", [["ada"], ["--remove"], ["--role", "auditor"], ["ada", "--role", "auditor", "--remove"]]
)
def test_a_token_is_made_or_removed_and_never_half_of_that(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["admin", "tokens", *words, "--file", str(tmp_path / "tokens.json")]) == 2
    assert "Expected a NAME with --role or with --remove, got " in capsys.readouterr().err
    assert not (tmp_path / "tokens.json").exists()


@pytest.mark.parametrize("words", [["trial"], ["--close"], ["trial", "--restored"], ["trial", "--close", "--restored"]])
def test_the_second_server_is_asked_one_thing_about_runs(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "second-server", "runs", *words)
    assert f"Expected RUN --close, --restored, or neither, got {' '.join(words)}" in said


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of parties, and a working directory without any other file."""
    folder = tmp_path / "trial"
    assert invoke(["admin", "certs", str(folder), "--clients", "1"]) == 0
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.csv").write_text("x,sick\n0.5,1\n")
    return folder


CLIENT = ["client", "--data", "own.csv", "--coordinator", "localhost:1"]
SECOND = ["second-server", "serve", "--coordinator", "trial/client-1/certificate.pem"]
HEALTH = ["admin", "health", "localhost:1"]
WITH_CERTS = {"serve": ["serve"], "client": CLIENT, "second-server": SECOND, "health": HEALTH}


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a request is refused with, before anything is sent."""
    capsys.readouterr()
    assert invoke(words) == 2
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("file", ["certificate.pem", "key.pem", "authority.pem"])
@pytest.mark.parametrize("command", ["serve", "client", "second-server"])
def test_a_folder_of_certificates_that_lacks_a_file_is_refused_by_its_name(
    command: str, file: str, trial: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (trial / "client-1" / file).unlink()
    said = refusal(capsys, *WITH_CERTS[command], "--certs", "trial/client-1")
    assert f"Expected {file} in trial/client-1, got none." in said


@pytest.mark.parametrize("command", ["serve", "client", "health"])
def test_plaintext_is_refused_with_certificates(command: str, trial: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*WITH_CERTS[command], "--insecure"]
    assert "got --certs trial/client-1." in refusal(capsys, *words, "--certs", "trial/client-1")


def test_plaintext_elsewhere_is_refused(trial: Path, capsys: pytest.CaptureFixture[str]) -> None:
    away = ["admin", "health", "192.0.2.1:1"]
    assert "plaintext is for loopback" in refusal(capsys, *away, "--insecure")
    assert "Expected --certs FOLDER" in refusal(capsys, *away)


@pytest.mark.parametrize("log", ["loud", "info,xml", "info,", ",json", ""])
def test_a_log_that_is_no_level_is_refused(log: str, trial: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["serve"], CLIENT, SECOND):
        said = refusal(capsys, *command, "--log", log)
        assert f"Expected --log as debug, info, warning, error, alone or with ,json, got {log!r}." in said


def test_a_setting_that_is_unknown_or_given_two_values_is_refused_with_what_was_meant(
    trial: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve = ["serve", "--insecure"]
    said = refusal(capsys, *serve, "--set", "max_mesage=1MiB")
    assert "max_message, max_clients, max_users_per_client, waiting, away_after, second_server, " in said
    assert "Did you mean 'max_message'?" in said
    assert "got 'waiting'. Did you mean 'waiting'?" in refusal(capsys, *serve, "--set", "waiting")
    said = refusal(capsys, *serve, "--set", "waiting=1", "--set", "waiting=2")
    assert "Expected one --set waiting, got waiting=1 and waiting=2." in said
    for text in ("waiting=soon", "max_clients=0", "max_clients=1.5", "max_message=much", "away_after=7"):
        key, _, value = text.partition("=")
        said = refusal(capsys, *serve, "--set", text)
        assert f"Expected --set {key} as" in said
        assert f"got {value!r}" in said


def test_a_setting_of_the_environment_counts_where_no_option_is_given(
    trial: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORON_MAX_MESSAGE", "1")
    assert "bytes, got 1." in refusal(capsys, "serve", "--insecure")
    assert "bytes, got 2." in refusal(capsys, "serve", "--insecure", "--set", "max_message=2")
    monkeypatch.setenv("QUORON_SECOND_SERVER_THREADS", "none")
    said = refusal(capsys, *SECOND, "--certs", "trial/coordinator")
    assert "Expected QUORON_SECOND_SERVER_THREADS as a whole number from 1 on, got 'none'." in said


@pytest.mark.parametrize("limit", ["8", "8,", "8;1e-4", "much,little", "8,1e-4,1"])
def test_a_limit_that_is_not_two_numbers_is_refused(
    limit: str, trial: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, *CLIENT, "--certs", "trial/client-1", "--limit", limit)
    assert f"Expected limit EPSILON,DELTA, such as 1,1e-5, got {limit!r}." in said


def test_how_a_text_is_written_is_said_by_keys_and_refused_where_none_can_be_meant(
    trial: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("own.csv").write_text("who;x\nada;0,5\nben;1,5\n")
    asked = ["client", "--data", "own.csv", "--user", "who", "--check"]
    assert invoke([*asked, "--csv", "separator=;", "--csv", "decimal=,"]) == 0
    assert capsys.readouterr().out == "own.csv: 2 users, by column who.\n"
    assert "Did you mean 'decimal'?" in refusal(capsys, *asked, "--csv", "decimals=,")
    assert "one --csv decimal, got decimal=. and decimal=," in refusal(
        capsys, *asked, "--csv", "decimal=.", "--csv", "decimal=,"
    )
    assert "Expected quoting to be 'double' or 'none', got 'odd'." in refusal(capsys, *asked, "--csv", "quoting=odd")


def test_the_second_server_is_named_with_its_certificates_and_key_or_not_at_all(
    trial: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, "serve", "--certs", "trial/coordinator", "--set", "second_server=second.example:7445")
    assert "Expected second_server, second_server_certs, second_server_key together, got second_server alone" in said


@pytest.mark.parametrize("name", ["..", ".hidden", "a/b", "authority", "authority.pem", "revoked.json"])
def test_a_name_whose_folder_would_be_another_file_is_refused(name: str, trial: Path) -> None:
    before = sorted(trial.parent.rglob("*"))
    assert invoke(["admin", "certs", str(trial), "--client", name]) == 2
    assert sorted(trial.parent.rglob("*")) == before
