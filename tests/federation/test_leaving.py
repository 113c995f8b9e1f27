"""A person leaves: what is erased on both sides, what stays, and that nobody asks or lets in again."""

import contextlib
import json
import logging
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

import dying
from dying import Moment
from federation.crowd import coordinator, write_items
from federation.tls import client_config, greeted, transport
from operators import reaching
from quoron.cli.app import invoke
from quoron.federation import forgetting
from quoron_client.federation import account, run_client
from quoron_client.federation.client_state import Agreement, ClientState
from quoron_privacy.errors import ConfigError, IdentityError, LedgerError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.federation import RunStore
from quoron_server.service import certificates, records
from quoron_server.storage import backup
from quoron_server.storage.backup import back_up
from quoron_server.storage.database import Database
from quoron_server.storage.lifetime_ledger import verify_rows
from quoron_server.storage.registry import ForgottenKey

SECRET = b"a function of somebody's data" * 40


def open_(path: Path, **more: object) -> ClientState:
    return ClientState(path, epsilon=8.0, delta=1e-4, **more)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """One user's files: a record in which it has answered twice in one run, a certificate and its key."""
    place = tmp_path / "home"
    certificates.make_authority(place, days=30)
    certificates.issue(place, "mine", days=30)
    with open_(place / "record.sqlite") as record:
        assert record.agree(Agreement("summer", b"as announced", 1.5, 1e-6, 3)) is None
        assert record.agree(Agreement("autumn", b"as announced", 0.25, 1e-7, 1)) is None
        for number in range(2):
            assert record.keep("summer", number, b"question", SECRET) == SECRET
    return place


class TestAClientThatLeaves:
    """Answers nothing more, and keeps that it has left and what was spent."""

    def test_has_erased_all_but_that_and_opens_no_more(self, home: Path) -> None:
        record = home / "record.sqlite"
        assert SECRET in record.read_bytes()
        receipt = account.leave(record, certificate=home / "mine/certificate.pem", key=home / "mine/key.pem")
        stays = record.read_bytes()
        for erased in (SECRET, b"summer", b"autumn", b"as announced"):
            assert erased not in stays
        assert not [path for path in home.iterdir() if path.name.startswith(("mine.", "record.sqlite-journal"))]
        assert (receipt.fields["epsilon"], receipt.fields["delta"]) == (1.75, 1.1e-6)
        assert (receipt.fields["erased"]["runs"], receipt.fields["erased"]["answers"]) == (2, 2)
        said = r"has left on 20\d\d-\d\d-\d\d: it answers nothing.*ε = 1.75 was spent before"
        with pytest.raises(LedgerError, match=said):
            open_(record)
        for words in ({"new_record": True}, {"other_database": True}):
            with pytest.raises(LedgerError, match="has left"):
                open_(record, **words)
        again = account.leave(record, certificate=home / "mine/certificate.pem", key=home / "mine/key.pem")
        assert again == receipt
        assert json.loads(json.dumps(receipt.as_json()))["erased"]["answers"] == 2
        assert "2 runs, 2 answers" in receipt.words()

    def test_is_ended_where_a_process_still_answers(self, home: Path) -> None:
        with open_(home / "record.sqlite") as running:
            account.leave(home / "record.sqlite")
            assert running.recall("summer", 0, b"question") is None
            assert running.may_answer("summer", 2)[1] == "the run was not agreed to"
            writes: list[Callable[[], object]] = [
                lambda: running.keep("summer", 2, b"later", b"answer"),
                lambda: running.agree(Agreement("winter", b"t", 0.1, 0.0, 1)),
                lambda: running.compare_agreed([]),
                lambda: running.end("summer") or running.compare_agreed([]),
            ]
            for write in writes:
                with pytest.raises(LedgerError, match="has left"):
                    write()

    @pytest.mark.parametrize("step", range(3))
    def test_and_is_interrupted_anywhere_ends_the_same(
        self, home: Path, step: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = {"certificate": home / "mine/certificate.pem", "key": home / "mine/key.pem"}
        real, calls = account.erase, iter(range(9))

        def erase(path: Path, *, secret: bool) -> None:
            number = 2 * next(calls)
            if number == step:
                raise KeyboardInterrupt
            if number + 1 == step and secret:
                path.write_bytes(bytes(path.stat().st_size))  # overwritten, and not removed yet
                raise KeyboardInterrupt
            real(path, secret=secret)

        with monkeypatch.context() as dying:
            dying.setattr(account, "erase", erase)
            with pytest.raises(KeyboardInterrupt):
                account.leave(home / "record.sqlite", **files)
        with contextlib.closing(sqlite3.connect(home / "record.sqlite")) as record:
            (erasure,) = record.execute("SELECT erasure FROM state").fetchone()
        receipt = account.leave(home / "record.sqlite", **files)
        assert not (home / "mine/key.pem").exists()
        assert not (home / "mine/certificate.pem").exists()
        assert receipt.fields["erased"]["files"] == (str(home / "mine/key.pem"), str(home / "mine/certificate.pem"))
        assert json.loads(erasure)["time"] == receipt.fields["left"]

    @pytest.mark.parametrize("wrong", ["no record", "another's key", "a key alone", "another's certificate afterwards"])
    def test_by_the_wrong_files_changes_nothing(self, home: Path, wrong: str) -> None:
        record, mine = home / "record.sqlite", {name: home / f"mine/{name}.pem" for name in ("certificate", "key")}
        certificates.issue(home, "other", days=30)
        others = {"certificate": home / "other/certificate.pem", "key": home / "other/key.pem"}
        if wrong == "another's certificate afterwards":
            account.leave(record, **mine)
        before = {path: path.read_bytes() for path in home.rglob("*.*")}
        files = {
            "no record": mine,
            "another's key": mine | {"key": others["key"]},
            "a key alone": {"key": mine["key"]},
            "another's certificate afterwards": others,
        }[wrong]
        with pytest.raises((ConfigError, IdentityError)):
            account.leave(home / "none.sqlite" if wrong == "no record" else record, **files)
        assert before == {path: path.read_bytes() for path in home.rglob("*.*")}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with Database(f"sqlite:///{tmp_path}/store.sqlite") as database:
        yield RunStore(database)


class TestAUserWhoIsForgotten:
    """Is a number with its seats; its keys are nobody's ever after."""

    def test_has_no_name_no_key_and_no_agreements_in_the_store_and_its_seat_stays(
        self, store: RunStore, tmp_path: Path
    ) -> None:
        registry, ada, ben = store.registry, "a" * 64, "b" * 64
        registry.enrol(ada, name="Ada Lovelace", software="quoron 0.3.14159")
        registry.enrol(ben, name="Ben")
        registry.add_run("summer", "{}")
        registry.fix_members("summer", 2)
        registry.note_agreed("summer", [0, 1], epsilon=0.5, delta=1e-7)
        assert store.forget_user("Ada Lovelace", sure=False)["user"] == 0
        assert registry.user(ada) == 0
        done = store.forget_user("Ada Lovelace", sure=True)
        assert (done["user"], done["agreements"]) == (0, 1)
        stays = b"".join(path.read_bytes() for path in tmp_path.glob("store.sqlite*"))
        for erased in (ada.encode(), b"Ada Lovelace", b"3.14159"):
            assert erased not in stays
        assert ben.encode() in stays
        assert registry.members("summer").tolist() == [0, 1]
        assert registry.agreed(0, 9) == []
        assert len(registry.agreed(1, 9)) == 1
        registry.note_agreed("summer", [0, 1], epsilon=0.5, delta=1e-7)  # by a round that knew of both
        assert registry.agreed(0, 9) == []
        assert registry.active("everyone").tolist() == [1]
        assert registry.user(ada) is None
        with pytest.raises(ForgottenKey):
            registry.enrol(ada, name="Ada again")
        with pytest.raises(ConfigError, match="who has a key"):
            registry.back(0)
        assert store.forget_user("0", sure=True) == done
        assert registry.enrol("c" * 64) == 2, "its number is nobody else's"
        rows = [row for row in json.loads(store.population.export())["rows"] if row["kind"] == "seat"]
        assert [row["payload"] for row in rows] == [{"what": "forgotten", "user": 0}]

    def test_comes_back_with_a_backup_of_before_which_the_ledgers_head_tells(
        self, store: RunStore, tmp_path: Path
    ) -> None:
        store.registry.enrol("a" * 64, name="Ada")
        back_up(store.database, tmp_path / "before.backup")
        store.forget_user("Ada", sure=True)
        back_up(store.database, tmp_path / "after.backup")
        head = verify_rows(store.population.rows())
        with pytest.raises(LedgerError):
            backup.restore(tmp_path / "before.backup", f"sqlite:///{tmp_path}/refused.sqlite", head=head)
        for when, name in (("after", ""), ("before", "Ada")):
            url = f"sqlite:///{tmp_path}/{when}.sqlite"
            backup.restore(tmp_path / f"{when}.backup", url, head=head if when == "after" else None)
            with Database(url) as database:
                restored = RunStore(database)
                assert restored.registry.find("0").name == name
                if when == "after":
                    with pytest.raises(ForgottenKey):
                        restored.registry.enrol("a" * 64)
                assert restored.forget_user("0", sure=True)["user"] == 0

    async def test_is_hung_up_on_never_let_in_again_while_the_run_goes_on_and_not_named_in_the_log(
        self, issued: Path, tmp_path: Path, our_logs: pytest.LogCaptureFixture
    ) -> None:
        key = certificates.fingerprint(certificates.load(issued / "client-0/certificate.pem"))
        with our_logs.at_level(logging.INFO):
            async with (
                coordinator(tmp_path, transport=transport(issued)) as running,
                greeted(running.listen, issued, "client-0") as gone,
                greeted(running.listen, issued, "client-1") as kept,
            ):
                for user in (0, 1):
                    assert f"user {user} enrolled in group everyone, as client-{user}\n" in our_logs.text
                assert key[:8] not in our_logs.text
                told = await running.scheduler.users.forget("0", sure=True)
                assert told["user"] == 0
                our_logs.clear()
                said = await gone.call.details()
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await gone.enrol()
                assert +running.scheduler.counts.calls == {"revoked": 1}  # by which alarm it is told
                await kept.send(answer=pb.Answer(run="none"))
                await kept.next("receipt")
                config = client_config(
                    running.listen, issued, "client-0", write_items(tmp_path, 1)[0], tmp_path / "record.sqlite"
                )
                with pytest.raises(IdentityError, match="was forgotten"):  # which ends a real client
                    await run_client(config)
                found = said, caught.value.code(), caught.value.details()
            assert found == (records.GONE, grpc.StatusCode.UNAUTHENTICATED, records.GONE)
        assert f"refused {key[:16]}: UNAUTHENTICATED, {records.GONE}" in our_logs.text
        assert "client-0" not in " ".join(each.getMessage() for each in our_logs.records if each.name == "quoron")

    @pytest.mark.parametrize("step", ["books", "erased"])
    def test_by_an_operator_who_is_interrupted_ends_the_same(
        self, store: RunStore, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "trial"
        certificates.make_authority(folder, days=30)
        for name in ("ada", "ben"):
            loaded = certificates.load(certificates.issue(folder, name, days=30))
            store.registry.enrol(certificates.fingerprint(loaded), name=name)

        def ask(word: str, sure: bool) -> dict[str, object]:
            return store.forget_user(word, sure=sure)

        def dies(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as dying:
            if step == "books":
                dying.setattr(store.registry.__class__, "forget", dies)
            else:
                dying.setattr(certificates, "erase_forgotten", dies)
            with pytest.raises(KeyboardInterrupt):
                forgetting.forget(ask, "ada", certificates=folder)
        receipt = forgetting.forget(ask, "ada" if step == "books" else "0", certificates=folder)
        assert receipt.fields["erased"]["files"] == ("ada/key.pem", "ada/certificate.pem")
        assert sorted(path.name for path in folder.iterdir()) == [
            "authority.key",
            "authority.pem",
            "ben",
            "revoked.json",
        ]
        assert list(certificates.read_revoked(folder / "revoked.json").values()) == ["forgotten"]
        again = forgetting.forget(ask, "0", certificates=folder)
        first, second = receipt.fields, again.fields
        assert second == first | {"erased": first["erased"] | {"files": ()}}
        assert "ada" not in json.dumps(again.as_json())
        assert "User 0 of population everyone was forgotten" in receipt.words()

    def test_is_forgotten_in_one_transaction_or_not_at_all(
        self, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Database(database_url) as database:
            store = RunStore(database)
            store.registry.enrol("a" * 64, name="Ada")
            with monkeypatch.context() as dying:
                dying.setattr(store.population, "seat", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
                with pytest.raises(KeyboardInterrupt):
                    store.forget_user("Ada", sure=True)
            assert store.registry.find("Ada").state == "active"
            for word in ("Ada", "0"):
                assert store.forget_user(word, sure=True)["user"] == 0
            with pytest.raises(ForgottenKey):
                store.registry.enrol("a" * 64)


LEAVING = [("leave", "before", 1), ("farewell", "after", 1), ("leave", "after", 1)]
ERASING = [("erase", when, number) for number in (1, 2) for when in ("before", "after")]
FORGETTING = [("revoke_key", "before", 1), ("revoke_key", "after", 1), ("forget", "before", 1), ("forget", "after", 1)]


def killed(moment: Moment, words: list[str]) -> None:
    done = subprocess.run(dying.words(moment, "quoron", *words), capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.programs
@pytest.mark.parametrize(("at", "when", "number"), LEAVING + ERASING)
def test_leaving_that_is_killed_and_said_again_ends_the_same(
    home: Path, tmp_path: Path, at: str, when: str, number: int
) -> None:
    files = ["--state", str(home / "record.sqlite"), "--certs", str(home / "mine")]
    words = ["leave", *files, "--receipt", str(tmp_path / "receipt.json"), "--yes"]
    killed(Moment(at, when, left=number), words)
    assert invoke(words) == 0
    told = json.loads((tmp_path / "receipt.json").read_text())
    assert told["epsilon"] == 1.75
    assert {key: told["erased"][key] for key in ("runs", "answers", "stores")} == {"runs": 2, "answers": 2, "stores": 0}
    assert sorted(path.name for path in home.iterdir()) == [
        *("authority.key", "authority.pem", "mine", "record.sqlite", "record.sqlite-acknowledged", "revoked.json")
    ]
    assert [path.name for path in (home / "mine").iterdir()] == ["authority.pem"]
    assert SECRET not in (home / "record.sqlite").read_bytes()
    with pytest.raises(LedgerError, match="has left"):
        open_(home / "record.sqlite")


@pytest.mark.programs
@pytest.mark.parametrize(("at", "when", "number"), [*FORGETTING, ("fold", "before", 1), *ERASING])
def test_forgetting_that_is_killed_and_said_again_ends_the_same(
    home: Path, tmp_path: Path, at: str, when: str, number: int
) -> None:
    url = f"sqlite:///{tmp_path}/store.sqlite"
    with Database(url) as database:
        key = certificates.fingerprint(certificates.load(home / "mine/certificate.pem"))
        RunStore(database).registry.enrol(key, name="mine")
    forget, words = [*reaching(database=url), "admin", "users", "forget"], ["--certs", str(home), "--yes"]
    words += ["--receipt", str(tmp_path / "receipt.json")]
    killed(Moment(at, when, left=number), [*forget, "mine", *words])
    with Database(url) as database:
        known = RunStore(database).registry.user(key) is not None
    assert invoke([*forget, "mine" if known else "0", *words]) == 0
    told = json.loads((tmp_path / "receipt.json").read_text())
    assert (told["user"], told["erased"]["agreements"]) == (0, 0)
    assert not list(home.glob("mine*"))
    assert certificates.read_revoked(home / "revoked.json") == {key: "forgotten"}
    with Database(url) as database:
        with pytest.raises(ForgottenKey):
            RunStore(database).registry.enrol(key)
        rows = json.loads(RunStore(database).population.export())["rows"]
    assert [row["payload"] for row in rows] == [{"what": "forgotten", "user": 0}]
    assert key.encode() not in b"".join(path.read_bytes() for path in tmp_path.glob("store.sqlite*"))
