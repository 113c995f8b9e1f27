"""A client over the wire: it answers what it agreed to, once, and keeps all else to itself."""

import logging

import pytest

from federation.conversation import CONVOLVED, GRADIENT, RANGE, VECTOR, D, asked, converse, terms, values
from quoron_client.compute.local_report import local_report
from quoron_client.data.encoding import Encoding, Numeric, Signs
from quoron_client.federation import Record, work
from quoron_client.protocol.questions import Status
from quoron_protos.v1 import federation_pb2 as federation


class TestAnswers:
    def test_are_the_same_bytes_after_the_connection_was_lost(self, data):
        async def script(fake):
            await fake.announce("r", terms(exposure="local"))
            first = await fake.ask(asked(VECTOR))
            await fake.to_say.put(None)
            await fake.hears("hello")
            again = await fake.ask(asked(VECTOR))
            assert len(fake.callers) == 2
            return first, again

        first, again = converse(data, script)
        assert first.status == federation.STATUS_ANSWERED
        assert first == again

    def test_are_the_same_bytes_after_the_client_was_started_again(self, data):
        async def script(fake):
            await fake.announce("r", terms(exposure="local"))
            return await fake.ask(asked(VECTOR))

        assert converse(data, script) == converse(data, script)


class TestRefusals:
    """All look alike: a status, and nothing else."""

    def test_of_answers_that_are_not_private_in_a_local_run(self, data):
        async def script(fake):
            await fake.announce("r", terms(exposure="local"))
            return [(await fake.ask(asked(task, number))).status for number, task in enumerate((GRADIENT, RANGE))]

        assert converse(data, script) == [Status.MISSING, Status.ANSWERED]

    @pytest.mark.parametrize(("exposure", "answered"), [("local", 1), ("broadcast", 3)])
    def test_of_local_reports_beyond_what_a_zero_out_run_is_charged(self, data, exposure, answered):
        agreed = terms(exposure=exposure, adjacency="zero-out", epsilon=0.9, participations=9)

        async def script(fake):
            await fake.announce("r", agreed)
            return [(await fake.ask(asked(RANGE, number))).status for number in range(5)]  # ε = 0.5 each

        wanted = [Status.ANSWERED] * answered + [Status.MISSING] * (5 - answered)
        assert converse(data, script) == wanted  # 0.9 for local reports, otherwise twice that
        with Record.open(data.parent / "record.sqlite", epsilon=2.0, delta=1e-5) as record:
            assert record.spent[0] == (0.9 if exposure == "local" else 1.8)

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


HEIGHT = Encoding((Numeric("height", 0, 3),), Signs("sick")).as_json()


class TestConsent:
    @pytest.mark.parametrize(
        ("changes", "options", "said"),
        [
            ({"exposure": "model"}, {}, "Expected a run of exposure broadcast, local, got model"),
            ({"simulation": True}, {}, "got a simulation"),
            ({"epsilon": 2.5}, {}, "exceed the lifetime limit 2"),
            ({"epsilon": float("inf"), "exposure": "none"}, {"accept_exposures": ("none",)}, "exceed the lifetime"),
            ({"delta": 1e-4}, {}, "exceed the lifetime limit 1e-05"),
            ({"dimension": D + 1}, {}, "columns that become 4 features, as announced, got 3"),
            ({"columns": HEIGHT}, {}, r"mine.csv': Expected column 'height'"),
            (
                {"adjacency": "zero-out", "epsilon": 1.5},
                {},
                "its ε = 3 and the 0 spent before exceed the lifetime limit",
            ),
            ({"adjacency": "zero-out", "delta": 5e-6}, {}, "its δ = 1.85914e-05 and"),
            ({"adjacency": "none"}, {}, "got adjacency none"),
            ({"epsilon": 0.0}, {}, "Expected a run of ε > 0"),
            ({"rounds": 0}, {}, "Expected a usable description of the run, got rounds"),
            ({"run": "another"}, {}, "got that of another"),
        ],
    )
    def test_is_refused_and_the_owner_told_why(self, data, caplog, changes, options, said):
        async def script(fake):
            with_changes = await fake.announce("r", terms(**changes))
            return with_changes, (await fake.ask(asked())).status, await fake.announce("r", "{}")

        with caplog.at_level(logging.WARNING):
            assert converse(data, script, **options) == (False, Status.MISSING, False)
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
            await fake.announce("r", terms(exposure="local"))
            return await fake.ask(asked(VECTOR))

        found, status = values(converse(data, script), VECTOR)
        assert status == Status.ANSWERED  # a status that items decide would tell about them
        assert found.any()
