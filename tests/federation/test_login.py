"""`quoron login`, and where commands of operators go: a profile, the environment, or a coordinator on this machine."""

import asyncio
import json
import stat
import tomllib
from pathlib import Path

import pytest

from federation.crowd import coordinator
from federation.tls import transport
from operators import reaching
from quoron.cli.app import invoke
from quoron.federation import profiles
from quoron.federation.profiles import Profile
from quoron_privacy.errors import ConfigError, IdentityError
from quoron_server.service import tokens
from quoron_server.storage.database import Database
from quoron_server.storage.lifetime_ledger import PopulationLedger

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of profiles of one test, and an environment that names nothing."""
    for variable in (*profiles.VARIABLES.values(), "QUORON_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("QUORON_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "own.sqlite"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "settings" / "profiles.toml"


def token(folder: Path, role: str = "operator") -> Path:
    (folder / "ada.token").write_text(tokens.add(folder / "tokens.json", name=role, role=role))
    return folder / "ada.token"


def store(path: Path) -> str:
    url = f"sqlite:///{path}"
    with Database(url) as database:
        PopulationLedger(database).charge("spring", "everyone", epsilon=0.5, delta=1e-6)
    return url


class TestLogin:
    async def test_keeps_absolute_paths_and_no_token_in_a_file_of_its_owner_alone(
        self, issued: Path, tmp_path: Path, kept: Path, capsys: Captured
    ) -> None:
        held = token(tmp_path)
        (tmp_path / "ca.pem").write_bytes((issued / "authority.pem").read_bytes())
        async with coordinator(tmp_path, transport=transport(issued)) as running:
            words = ["login", running.control, "--token-file", held.name, "--authority", "ca.pem"]
            assert await asyncio.to_thread(invoke, words) == 0
            assert await asyncio.to_thread(invoke, ["runs"]) == 0, "the profile `default` is used"
        assert tomllib.loads(kept.read_text()) == {
            "default": {
                "coordinator": running.control,
                "token_file": str(held),
                "authority": str(tmp_path / "ca.pem"),
            }
        }
        assert held.read_text() not in kept.read_text()
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
        assert [each.name for each in kept.parent.iterdir()] == [kept.name]

    async def test_keeps_nothing_unless_the_coordinator_accepts_the_token(
        self, issued: Path, tmp_path: Path, kept: Path, capsys: Captured
    ) -> None:
        (tmp_path / "wrong").write_text("quoron_guess")
        held = token(tmp_path)
        async with coordinator(tmp_path, transport=transport(issued)) as running:
            ours = ["--authority", str(issued / "authority.pem")]
            for words in (
                [running.control, "--token-file", "wrong", *ours],
                [running.control, "--token-file", "nowhere", *ours],
                [running.control, *ours],
                [running.control, "--token-file", str(held), "--authority", "nowhere.pem"],
                [running.control, "--token-file", str(held), "--insecure"],
                [running.control, "--token-file", str(held)],
                ["127.0.0.1:1", "--token-file", str(held), *ours],
            ):
                assert await asyncio.to_thread(invoke, ["login", *words]) != 0
                assert not kept.exists()
        said = " ".join(capsys.readouterr().err.split())
        for words in ("/nowhere, got: No such file", "QUORON_TOKEN", "/nowhere.pem, got: No such file", "got neither"):
            assert words in said

    async def test_uses_a_token_of_the_environment_and_says_that_it_is_not_stored(
        self, tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
    ) -> None:
        secret = token(tmp_path).read_text()
        monkeypatch.setenv("QUORON_TOKEN", secret)
        async with coordinator(tmp_path) as running:
            assert await asyncio.to_thread(invoke, ["login", running.control, "--insecure"]) == 0
            assert "QUORON_TOKEN was used and is not stored" in capsys.readouterr().out
            assert secret not in kept.read_text()
            with monkeypatch.context() as also:
                also.setenv("QUORON_AUTHORITY", "ca.pem")
                assert await asyncio.to_thread(invoke, ["login", running.control, "--insecure"]) == 0
                assert "Commands without --profile use the environment (" in capsys.readouterr().out
            assert await asyncio.to_thread(invoke, ["runs"]) == 0
            monkeypatch.delenv("QUORON_TOKEN")
            assert await asyncio.to_thread(invoke, ["runs"]) == 2
            assert "no QUORON_TOKEN" in " ".join(capsys.readouterr().err.split())

    def test_keeps_a_database_that_opens_by_its_absolute_path(self, tmp_path: Path, capsys: Captured) -> None:
        store(tmp_path / "c.sqlite")
        assert invoke(["login", "sqlite:///c.sqlite", "--profile", "books"]) == 0
        assert profiles.named("books").database == f"sqlite:///{tmp_path}/c.sqlite"
        for words, said in (
            (["sqlite:///none.sqlite"], "found none"),
            (["postgresql://ada:secret@host/name"], "without its password"),
            (["postgresql://ada@host/name?password=secret"], "without its password"),
            (["sqlite:///c.sqlite", "--insecure"], "without --insecure"),
            (["http://hub"], "Expected a database"),
            (["hub"], "Expected HOST:PORT"),
            (["sqlite:///c.sqlite", "--profile", "a b"], "Expected --profile as letters"),
        ):
            assert invoke(["login", *words]) != 0
            told = " ".join(capsys.readouterr().err.split())
            assert said in told
            assert "secret" not in told
        assert {*profiles.read()} == {"books"}


class TestWhereACommandGoes:
    def test_is_the_profile_then_the_environment_then_default_then_this_machine(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert profiles.reached(None) == Profile("127.0.0.1:7444")
        profiles.save("default", Profile("a:1"))
        profiles.save("trial", Profile("b:2"))
        assert profiles.reached(None).coordinator == "a:1"
        assert profiles.reached("trial").coordinator == "b:2"
        monkeypatch.setenv("QUORON_TOKEN", "x")  # which a profile without a file needs
        assert profiles.reached(None).coordinator == "a:1"
        monkeypatch.setenv("QUORON_TOKEN_FILE", "t")
        assert profiles.reached(None).coordinator == "127.0.0.1:7444"
        for variable, value in (("CONTROL_ADDRESS", "c:3"), ("INSECURE", "1")):
            monkeypatch.setenv(f"QUORON_{variable}", value)
        found = profiles.reached(None)
        assert (found.coordinator, found.token_file, found.insecure) == ("c:3", Path("t"), True)

    def test_is_refused_where_two_places_or_two_tokens_are_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "t").write_text("x")
        profiles.save("trial", Profile("b:2", token_file=tmp_path / "t"))
        monkeypatch.setenv("QUORON_CONTROL_ADDRESS", "c:3")
        with pytest.raises(ConfigError, match=r"--profile trial .* QUORON_CONTROL_ADDRESS"):
            profiles.reached("trial")
        monkeypatch.setenv("QUORON_DATABASE", "sqlite:///x")
        assert profiles.reached(None).coordinator == "c:3", "a command that needs a coordinator looks for no database"
        with pytest.raises(ConfigError, match=r"QUORON_CONTROL_ADDRESS=c:3 and QUORON_DATABASE"):
            profiles.reached(None, store=True)
        monkeypatch.delenv("QUORON_CONTROL_ADDRESS")
        with pytest.raises(ConfigError, match=r"--profile trial .* QUORON_DATABASE"):
            profiles.reached("trial", store=True)
        monkeypatch.setenv("QUORON_TOKEN", "y")
        with pytest.raises(ConfigError, match=r"QUORON_TOKEN and .* of the profile 'trial'"):
            profiles.reached("trial").token()
        monkeypatch.setenv("QUORON_INSECURE", "perhaps")
        with pytest.raises(ConfigError, match="QUORON_INSECURE as 1 or 0, got 'perhaps'"):
            profiles.reached(None)

    def test_is_refused_by_name_where_the_profile_or_its_files_are_not_there(self, tmp_path: Path) -> None:
        profiles.save("trial", Profile("127.0.0.1:1", token_file=tmp_path / "t", authority=tmp_path / "ca.pem"))
        with pytest.raises(ConfigError, match=r"trial, got 'trail'\. Did you mean 'trial'\?"):
            profiles.reached("trail")
        with pytest.raises(IdentityError, match=r"/t, got: No such file"):
            profiles.reached("trial").control()
        (tmp_path / "t").write_text("x")
        with pytest.raises(IdentityError, match=r"Expected a readable .*ca\.pem"):
            profiles.reached("trial").control()

    @pytest.mark.parametrize(
        "text", ["[a", "a = 1", "[a]\ncoordinator = 1", "[a]", '[a]\ncoordinator = "x:1"\ntoken = "y"', "\0", "\xff"]
    )
    def test_is_refused_where_the_file_of_profiles_is_broken(self, text: str, kept: Path) -> None:
        kept.parent.mkdir()
        kept.write_bytes(text.encode("latin-1"))
        with pytest.raises(ConfigError, match=r"profiles\.toml.*Correct the file, or remove it"):
            profiles.reached(None)
        with pytest.raises(ConfigError, match="Correct the file"):
            profiles.save("b", Profile("x:1"))
        assert kept.read_bytes() == text.encode("latin-1")

    def test_is_a_database_for_a_command_that_takes_one_alone(self, tmp_path: Path, capsys: Captured) -> None:
        own = reaching(database=store(tmp_path / "c.sqlite"))
        assert invoke([*own, "runs"]) == 2
        assert "Expected a coordinator, got the database of the profile" in " ".join(capsys.readouterr().err.split())
        assert invoke([*own, "cancel", "none"]) == 2
        assert "got 'none'" in capsys.readouterr().err
        assert invoke([*own, "admin", "backup", str(tmp_path / "copy")]) == 0
        assert (tmp_path / "copy").is_file()


class TestWhichLedgerIsShown:
    def test_is_said_first_and_is_ones_own_unless_another_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
    ) -> None:
        store(tmp_path / "own.sqlite")
        url = store(tmp_path / "c.sqlite")
        profiles.save("default", Profile(database=url))
        assert invoke(["ledger", "show"]) == 0
        own, header, _, row, *_ = capsys.readouterr().out.splitlines()
        assert own == f"Ledger: your own, {tmp_path}/own.sqlite"
        assert header.split() == ["population", "limit", "spent", "left", "charges"]
        assert row.split() == ["everyone", "none", "ε", "=", "0.5,", "δ", "=", "1e-06", "no", "limit", "1"]
        assert invoke(["--profile", "default", "ledger", "show"]) == 0
        named = capsys.readouterr().out.splitlines()[0]
        monkeypatch.setenv("QUORON_DATABASE", url)
        assert invoke(["ledger", "show"]) == 0
        assert capsys.readouterr().out.splitlines()[0] == named == f"Ledger: the database {url}"

    async def test_is_a_coordinator_s_where_a_profile_names_one(self, tmp_path: Path, capsys: Captured) -> None:
        held = token(tmp_path, "auditor")
        async with coordinator(tmp_path) as running:
            own = reaching(coordinator=running.control, token_file=held, insecure=True)
            assert await asyncio.to_thread(invoke, [*own, "ledger", "show"]) == 0
        assert capsys.readouterr().out.startswith(f"Ledger: the coordinator {running.control}\n")

    def test_a_charge_needs_a_name_and_one_that_is_only_tried_needs_none_and_changes_nothing(
        self, tmp_path: Path, capsys: Captured
    ) -> None:
        own = reaching(database=store(tmp_path / "c.sqlite"))
        assert invoke([*own, "ledger", "charge", "--epsilon", "1"]) == 2
        assert "Expected a NAME" in capsys.readouterr().err
        assert invoke([*own, "ledger", "charge", "--dry-run", "--epsilon", "1", "--spent"]) == 2
        assert invoke([*own, "ledger", "charge", "--dry-run", "--epsilon", "1"]) == 0
        assert invoke([*own, "ledger", "show", "--json"]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["everyone"]["runs"] == 1
