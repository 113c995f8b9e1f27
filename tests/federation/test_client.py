"""A client over the wire: it answers what it agreed to, once, and keeps all else to itself."""

import asyncio
import json
import logging
import threading
from contextlib import asynccontextmanager

import grpc
import numpy as np
import pandas as pd
import pytest

from fake_coordinator import SECONDS, Authority, coordinator
from federation.conversation import (
    CONVOLVED,
    RANGE,
    VECTOR,
    D,
    asked,
    converse,
    made,
    running,
    terms,
    values,
)
from federation.crowd import until
from quoron.data import from_table
from quoron_client.compute.work import local_report
from quoron_client.data.encoding import Encoding, Signs, read_label
from quoron_client.data.features import Categorical, Numeric
from quoron_client.data.formats import Dialect
from quoron_client.federation import ClientState, run_client, session, work
from quoron_client.federation.own_table import check_one_user, own_items
from quoron_client.federation.terms import Terms
from quoron_client.losses import Huber, Logistic, SmoothedHinge
from quoron_client.protocol.questions import AverageGradient, Status, VectorReport
from quoron_client.randomisers import SystemRandomness
from quoron_privacy.errors import DataError, IdentityError, RunError, WireError
from quoron_protos.v1 import federation_pb2 as federation
from quoron_protos.v1.federation_pb2_grpc import ClientPlaneStub


class TestAnswers:
    def test_are_the_same_bytes_after_the_client_was_started_again(self, data):
        async def script(fake):
            await fake.announce("r", terms(trust_model="local"))
            return await fake.ask(asked(VECTOR))

        assert converse(data, script) == converse(data, script)


class TestRefusals:
    """All look alike: a status, and nothing else."""

    @pytest.mark.parametrize(("trust_model", "answered"), [("local", 1), ("central-broadcast", 3)])
    def test_of_local_reports_beyond_what_a_zero_out_run_is_charged(self, data, trust_model, answered):
        agreed = terms(trust_model=trust_model, adjacency="zero-out", epsilon=0.9, participations=9)

        async def script(fake):
            await fake.announce("r", agreed)
            return [(await fake.ask(asked(RANGE, number))).status for number in range(5)]  # ε = 0.5 each

        wanted = [Status.ANSWERED] * answered + [Status.MISSING] * (5 - answered)
        assert converse(data, script) == wanted  # 0.9 for local reports, otherwise twice that
        with ClientState(data.parent / "record.sqlite", epsilon=2.0, delta=1e-5) as record:
            assert record.spent[0] == (0.9 if trust_model == "local" else 1.8)

    def test_tell_the_owner_why_and_the_coordinator_nothing(self, data, caplog, monkeypatch):
        def broken(*_, **__):
            raise ValueError("the patient's name is Ada")

        monkeypatch.setattr("quoron_client.federation.work.answer", broken)

        async def script(fake):
            await fake.announce("r", terms())
            return await fake.ask(asked())

        with caplog.at_level(logging.INFO):
            sent = converse(data, script)
        assert sent.status == federation.STATUS_MISSING
        assert b"Ada" not in sent.SerializeToString()
        assert len(sent.values.data) == 8 * D
        assert "Ada" in caplog.text

    def test_leave_questions_without_a_name_and_unknown_messages_unanswered(self, data):
        async def script(fake):
            await fake.announce("r", terms())
            nameless = federation.Question(run="r", digest=b"short")
            await fake.to_say.put(federation.ServerMessage(question=nameless))
            await fake.to_say.put(federation.ServerMessage())
            await fake.to_say.put(federation.ServerMessage(receipt=federation.Receipt(run="r", verdict=9)))
            return await fake.ask(asked())

        assert converse(data, script).status == federation.STATUS_ANSWERED


class TestConsent:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            (
                {"trust_model": "central-release"},
                "Expected a run of trust model central-broadcast, local, got central-release",
            ),
            ({"dimension": D + 1}, "columns that become 3 features, not 4 as announced"),
            (
                {"adjacency": "zero-out", "epsilon": 1.5},
                "its ε = 3 and the 0 spent before exceed the lifetime limit",
            ),
            ({"adjacency": "zero-out", "delta": 5e-6}, "its δ = 1.85914e-05 and"),
        ],
    )
    def test_is_refused_and_the_owner_told_why(self, data, caplog, changes, said):
        async def script(fake):
            with_changes = await fake.announce("r", terms(**changes))
            return with_changes, (await fake.ask(asked())).status, await fake.announce("r", "{}")

        with caplog.at_level(logging.WARNING):
            assert converse(data, script) == (False, Status.MISSING, False)
        assert said in caplog.text


class TestRandomness:
    @pytest.mark.parametrize("task", [VECTOR, CONVOLVED], ids=["vector", "convolution"])
    def test_of_a_deployment_is_fresh_each_time(self, data, task):
        async def script(fake):
            await fake.announce("r", terms())
            return [values(await fake.ask(asked(task, number)))[0].tobytes() for number in (4, 5)]

        first = converse(data, script, simulation_seed=11)
        for each in data.parent.glob("record.sqlite*"):
            each.unlink()
        again = converse(data, script, simulation_seed=11)
        assert len({*first, *again}) == 4

    def test_a_local_report_that_cannot_be_computed_looks_like_any_other(self, data, monkeypatch):
        def choking(loss, batch, *others, **named):
            if len(batch.labels):
                raise ArithmeticError("a secret")
            return local_report(loss, batch, *others, **named)

        monkeypatch.setattr(work, "local_report", choking)

        async def script(fake):
            await fake.announce("r", terms(trust_model="local"))
            return await fake.ask(asked(VECTOR))

        found, status = values(converse(data, script), VECTOR)
        assert status == Status.ANSWERED  # a status that items decide would tell about them
        assert found.any()


@pytest.fixture
def calls(monkeypatch):
    """The conversations of every client in this process, as the client sees them."""
    made = []

    class Watched(ClientPlaneStub):
        def __init__(self, channel):
            super().__init__(channel)
            begin = self.Work
            self.Work = lambda **options: made.append(begin(**options)) or made[-1]

    monkeypatch.setattr(session, "ClientPlaneStub", Watched)
    return made


class Engaged:
    """Holds a client's answers back until it is told to let them go."""

    def __init__(self, monkeypatch):
        self.begun, self.go, real = threading.Event(), threading.Event(), work.answer

        def held(*arguments, **named):
            self.begun.set()
            self.go.wait()
            return real(*arguments, **named)

        monkeypatch.setattr(work, "answer", held)


@asynccontextmanager
async def living(config):
    """A client that is stopped in the end; its end before that is the test's."""
    async with asyncio.TaskGroup() as group:
        stop = asyncio.Event()
        yield group.create_task(run_client(config, stop=stop))
        stop.set()


async def welcomed(fake):
    assert (await fake.hears("hello")).protocol == 2
    assert await fake.announce("r", terms())


ENDINGS = {
    "closed": None,
    "leaving": (grpc.StatusCode.UNAVAILABLE, "The coordinator is leaving."),
    "cancelled": (grpc.StatusCode.CANCELLED, "cancelled there"),
    "failed": (grpc.StatusCode.UNKNOWN, "something"),
    "restored": (grpc.StatusCode.FAILED_PRECONDITION, "Expected an enrolled client. Enrol first."),
    "replaced": (grpc.StatusCode.UNIMPLEMENTED, "no such method"),
}


class TestAClientThatComputes:
    @pytest.mark.parametrize("ending", [*ENDINGS, "gone"])
    async def test_outlives_the_end_of_its_conversation_and_answers_the_question_that_is_asked_again(
        self, data, calls, monkeypatch, ending
    ):
        engaged = Engaged(monkeypatch)
        async with coordinator() as fake, living(made(data, fake.port)):
            try:
                await welcomed(fake)
                await fake.to_say.put(federation.ServerMessage(question=asked()))
                await until(engaged.begun.is_set)
                if ending == "gone":
                    await fake.server.stop(None)
                else:
                    await fake.to_say.put(ENDINGS[ending])
                await until(calls[0].done)
            finally:
                engaged.go.set()
            if ending == "gone":
                await fake.start(port=fake.port)
            await fake.hears("hello")
            assert (await fake.ask(asked())).status == federation.STATUS_ANSWERED


class TestAClientThatListens:
    async def test_outlives_an_error_that_nobody_foresaw(self, data, monkeypatch, our_logs):
        def broken(*_, **__):
            raise KeyError("unforeseen")

        async with coordinator() as fake, living(made(data, fake.port)):
            await welcomed(fake)
            monkeypatch.setattr(work.Worker, "forget", broken)
            await fake.to_say.put(federation.ServerMessage(ended=federation.Ended(run="r", how="complete")))
            await until(lambda: "unforeseen" in our_logs.text)
            await fake.to_say.put(None)  # to a conversation that its client has left
            await fake.hears("hello")

    async def test_outlives_a_certificate_of_its_own_that_is_gone_for_a_while(self, data, tmp_path, our_logs):
        authority = Authority(tmp_path)
        identity = authority.identity()
        async with (
            coordinator(authority.server_credentials()) as fake,
            living(made(data, fake.port, **identity)),
        ):
            await fake.hears("hello")
            kept = identity["certificate"].read_bytes()
            identity["certificate"].unlink()
            await fake.to_say.put(None)
            await until(lambda: "a readable file" in our_logs.text)
            identity["certificate"].write_bytes(kept)
            await fake.hears("hello")


class TestAnotherInTheCoordinatorsPlace:
    """The portal of a network, or a coordinator whose certificate is over: it passes by."""

    @pytest.mark.parametrize("impostor", ["of another authority", "of another name", "expired"])
    async def test_is_told_to_the_owner_and_waited_out(self, data, tmp_path, our_logs, impostor):
        authority = Authority(tmp_path)
        identity = authority.identity()
        credentials = {
            "of another authority": lambda: Authority(tmp_path, "elsewhere").server_credentials(),
            "of another name": lambda: authority.server_credentials("other", address="192.0.2.1"),
            "expired": lambda: authority.server_credentials("late", days=(-9, -2)),
        }[impostor]()
        async with coordinator(credentials) as fake, living(made(data, fake.port, **identity)) as client:
            await until(lambda: our_logs.text.count("certificate of its name from the authority") >= 2)
            assert {each.levelno for each in our_logs.records} == {logging.WARNING}
            assert not fake.callers
            await fake.server.stop(None)
            await fake.start(authority.server_credentials("right"), port=fake.port)
            await fake.hears("hello")
            assert not client.done()


def hospital(folder):
    """Visits of 30 patients."""
    (folder / "all.csv").write_text("patient,steps,sick\n" + "".join(f"p{row // 2},{row},1\n" for row in range(60)))
    return {"data": folder / "all.csv"}


class TestTransport:
    @pytest.fixture
    def authority(self, tmp_path):
        return Authority(tmp_path)

    @pytest.mark.parametrize(
        ("spoil", "said"),
        [
            (lambda given, other: {"certificate": other.issue("old", days=(-9, -2))[0]}, r"old.pem', it expired on 20"),
            (lambda given, other: {"certificate": other.issue("new", days=(2, 9))[0]}, r"new.pem', it begins on 20"),
            (lambda given, other: {"key": other.issue("other")[1]}, r"other-key.pem' to hold the key of .*client.pem'"),
            (
                lambda given, other: dict(zip(("certificate", "key"), other.issue("strange"), strict=True)),
                r"strange.pem' to come from the authority in .*authority.pem', got one from 'CN=elsewhere'",
            ),
            (lambda given, other: {"key": other.issue("shut", password=b"1")[1]}, r"without a password in PEM .*shut"),
            (lambda given, other: {"key": given["certificate"]}, r"a private key .* in .*client.pem', got something"),
            (lambda given, other: {"authority": given["key"]}, r"certificates in PEM form in .*client-key.pem'"),
            (
                lambda given, other: {"key": given["key"].parent / "no.pem"},
                r"a readable file .*no.pem', got: No such file",
            ),
        ],
        ids=["expired", "too early", "key of another", "authority", "password", "no key", "no authority", "no file"],
    )
    def test_with_a_bad_certificate_is_an_error_that_names_it(self, data, tmp_path, authority, spoil, said):
        given = authority.identity()
        given |= spoil(given, Authority(tmp_path, "elsewhere"))
        with pytest.raises(IdentityError, match=said):
            asyncio.run(run_client(made(data, 1, **given)))

    @pytest.mark.parametrize(
        ("code", "error", "said"),
        [
            (grpc.StatusCode.UNAUTHENTICATED, IdentityError, "to accept 'me', it answers: not one of us"),
            (grpc.StatusCode.PERMISSION_DENIED, IdentityError, "to accept 'me', it answers: not one of us"),
            (grpc.StatusCode.ABORTED, IdentityError, "Expected one client with 'me' at coordinator .*: not one of us"),
            (grpc.StatusCode.FAILED_PRECONDITION, RunError, "to take 'me' in, it answers: not one of us"),
        ],
    )
    def test_that_is_refused_ends_the_client_with_the_reason(self, data, code, error, said):
        async def scenario():
            async with coordinator(refusal=(code, "not one of us")) as fake:
                await run_client(made(data, fake.port))

        with pytest.raises(error, match=said):
            asyncio.run(scenario())


class TestTheEnd:
    async def test_comes_when_it_is_told_to_stop_whatever_it_waits_for(self, data):
        async with asyncio.timeout(SECONDS):
            stop = asyncio.Event()
            stop.set()
            await run_client(made(data, 1), stop=stop)
            async with running(made(data, 1, retry_seconds=3600.0)):  # nobody there
                await asyncio.sleep(0)

    async def test_does_not_come_from_its_data_once_it_has_enrolled(self, data, tmp_path, our_logs):
        """Members are drawn from those who connect: whether it does may be no function of what its owner holds."""
        async with coordinator() as fake:
            for changes in ({}, hospital(tmp_path), {"data": tmp_path / "none.csv"}):
                with our_logs.at_level(logging.WARNING):
                    async with running(made(data, fake.port, **changes)):
                        await fake.hears("hello")
        assert "This client is enrolled already, so it connects nevertheless." in our_logs.text


TERMS = {
    "run": "r",
    "algorithm": "dp-sgd-poisson",
    "statement": "(1, 1e-06)-differential privacy",
    "epsilon": 1.0,
    "delta": 1e-6,
    "adjacency": "replace-one",
    "trust_model": "central-broadcast",
    "rounds": 5,
    "participations": 5,
    "dimension": 4,
    "loss": {"name": "logistic", "feature_norm": 1.0},
    "domain": {"l2-ball": 3.0},
    "columns": Encoding((Numeric("age", 0, 100), Categorical("ward", ("A", "1"))), Signs("sick")).as_json(),
    "later": {"keys": "are left alone"},
}


def described(**changes):
    return Terms.read("r", json.dumps(TERMS | changes))


def columns(features=None, label="sick", bound=None, **changes):
    """Other rules: `features` as two mappings, of ranges and of vocabularies."""
    made = TERMS["columns"] | changes
    if features is not None:
        numeric, categorical = features
        made["features"] = [{"column": name, "low": low, "high": high} for name, (low, high) in numeric.items()]
        made["features"] += [{"column": name, "categories": list(values)} for name, values in categorical.items()]
    if label != "sick":
        read = None if label is None else read_label(label, range=bound and (-bound, bound), bound=bound or 1.0)
        made["label"] = Encoding((), read).as_json()["label"]
    return {"columns": made}


def visits(users=6, rows=60, seed=3):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "who": np.concatenate([np.arange(users), rng.integers(0, users, rows - users)]),
            "age": rng.uniform(-10, 120, rows),
            "ward": rng.choice(["A", "1", "Z"], rows),
            "sick": rng.integers(0, 2, rows),
            "cost": rng.standard_normal(rows),
        }
    )


def write(frame, folder, suffix=".parquet"):
    path = folder / f"mine{suffix}"
    frame.to_parquet(path) if suffix == ".parquet" else frame.to_csv(path, index=False)
    return path


class TestTheItems:
    @pytest.mark.parametrize("suffix", [".parquet", ".csv"])
    @pytest.mark.parametrize(
        ("loss", "label", "normalize", "intercept"),
        [
            (Logistic(), "sick", False, True),
            (Logistic(feature_norm=2.0), "cost > 0", True, True),
            (SmoothedHinge(width=0.5), "sick", True, False),
            (Huber(threshold=0.5, label_bound=0.7), "cost", False, True),
        ],
    )
    def test_are_those_of_the_population(self, tmp_path, suffix, loss, label, normalize, intercept):
        frame = visits()
        bound = getattr(loss, "label_bound", None)
        label_of = read_label(label, range=bound and (-bound, bound), bound=bound or 1.0)
        features, of = (Numeric("age", 0, 100), Categorical("ward", ("A", "1"))), {"feature_norm": loss.feature_norm}
        rules = Encoding(features, label=label_of, normalize=normalize, intercept=intercept, **of)
        everyone = from_table(frame, rules, user="who", loss=loss, test_fraction=0.0)
        bounds = loss.bounds
        agreed = described(
            **columns(
                label=label, bound=bound, normalize=normalize, intercept=intercept, feature_norm=loss.feature_norm
            ),
            loss={"name": loss.name, **bounds},
            dimension=3 + intercept,
        )
        for user in range(6):
            own = own_items(write(frame[frame["who"] == user], tmp_path, suffix), agreed)
            wanted = everyone.items(np.array([user]))
            assert own.problem is None
            assert own.batch.features.tobytes() == wanted.features.tobytes()
            np.testing.assert_array_equal(own.batch.labels, loss.bound_labels(wanted.labels))

    def test_are_the_same_from_files_of_any_kind_and_dialect(self, tmp_path):
        frame, comma = visits().drop(columns="who").round(3), Dialect(decimal=",")
        frame["id"] = 5
        wanted = own_items(write(frame, tmp_path, ".csv"), described()).batch.features.tobytes()
        frame.to_csv(tmp_path / "mine.csv.gz", sep=";", decimal=",", index=False)
        frame.to_parquet(tmp_path / "mine.parquet")
        for name, dialect in (("mine.csv.gz", comma), ("mine.parquet", None)):
            assert own_items(tmp_path / name, described(), dialect).batch.features.tobytes() == wanted
            check_one_user(tmp_path / name, one_user=False, dialect=dialect)
        (tmp_path / "two.csv").write_text("patient,age\n1,\n2,3\n")
        with pytest.raises(DataError, match="several values in column 1, whose name"):
            check_one_user(tmp_path / "two.csv", one_user=False)


class TestOwnersTerms:
    """Making the items raises an error, and so refuses a run, by the header of a CSV file alone."""

    CELLS = (
        "50,A,1\n",
        "old,A,yes\n",
        ",,\n",
        "2020-01-01,1.5,true\n",
        "99999999999999999999,7,3\n",
        "1\n1,2,3,4,5\n",
        '"open',
        "",
        "\udcff,\udcfe,\udcfd\n",
    )

    @pytest.mark.parametrize("cells", CELLS)
    @pytest.mark.parametrize(
        ("changes", "fits"),
        [
            ({}, True),
            ({"features": ({"age": (0, 100)}, {"ward": (1, 2)})}, True),
            ({"features": ({"age": (0, 100), "ward": (0, 1)}, {})}, True),
            ({"label": "sick > 3"}, True),
            ({"label": "nowhere > 3"}, False),
            ({"features": ({}, {"age": ("A", "B", "C")})}, True),
            ({"features": ({"age": (0, 100)}, {"bed": ("A", "B")})}, False),
        ],
    )
    def test_is_the_same_for_any_cells(self, tmp_path, cells, changes, fits):
        path = tmp_path / "mine.csv"
        path.write_bytes(("\ufeffage,ward,sick\n" + cells).encode("utf-8", "surrogateescape"))
        agreed = described(**columns(**changes), dimension=3 if changes.get("features", (0, 1))[1] == {} else 4)
        if fits:
            own = own_items(path, agreed)
            assert (own.problem is None) != np.isnan(own.batch.features).all()
        else:
            with pytest.raises(DataError):
                own_items(path, agreed)


class TestWhatIsWrongWithTheValues:
    FAULTS = ({"age": np.nan}, {"age": np.inf}, {"sick": 7}, {"sick": np.nan}, {"age": "old"})

    @pytest.mark.parametrize("suffix", [".parquet", ".csv"])
    @pytest.mark.parametrize("fault", FAULTS)
    def test_leaves_its_row_out_and_is_told_to_the_owner(self, tmp_path, fault, suffix):
        frame, name = visits(), next(iter(fault))
        whole = own_items(write(frame.drop(index=3), tmp_path, suffix), described())
        frame[name] = frame[name].astype(object)
        frame.loc[3, name] = fault[name]
        if suffix == ".parquet":
            frame[name] = frame[name].map(str)
        own = own_items(write(frame, tmp_path, suffix), described())
        assert own.problem is None
        assert f"got 1 of 60 that cannot, by column: '{name}' (1)" in own.notice
        np.testing.assert_array_equal(own.batch.features, whole.batch.features)
        np.testing.assert_array_equal(own.batch.labels, whole.batch.labels)

    @pytest.mark.parametrize("fault", FAULTS)
    def test_in_every_row_cannot_be_seen_at_all_in_the_local_model(self, tmp_path, fault):
        frame = visits().assign(**fault)
        own = own_items(write(frame, tmp_path), described())
        task = VectorReport(AverageGradient(np.zeros((1, 4)), (1.0,)), 1.0, 1e-6, 1.0, np.zeros(4))
        found = local_report(Logistic(), own.batch, task, SystemRandomness(), round=0, users=np.array([0]))
        assert found.status.tolist() == [Status.ANSWERED]
        assert np.isfinite(found.values).all()

    def test_never_quotes_a_value(self, tmp_path, our_logs):
        frame = visits().assign(sick=987654321)
        with our_logs.at_level(logging.DEBUG):
            assert "987654321" not in own_items(write(frame, tmp_path), described()).problem
        assert not our_logs.records


class TestTerms:
    def test_that_are_enormous_are_refused_before_they_are_read(self):
        with pytest.raises(WireError, match="at most 1,048,576 characters"):
            Terms.read("r", " " * (1 << 21))
