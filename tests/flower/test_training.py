"""Private training inside somebody else's Flower project: what holds, whatever the project's own code does."""

import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import LoadClientAppError
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.proto.node_pb2 import NodeInfo
from hypothesis import given, settings
from hypothesis import strategies as st

import quoron
from cover import by_default
from flower.grids import SECRET, FakeGrid, FakeTime, error_reply, with_values
from flower.plugged import CLIP, DIMENSION, SMALL, USERS, Killed, people, plugged, questions, trained, words
from postgres_server import quick_folder
from quoron.flower.training import ASSUMED, DATABASE_FILE, Training
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.flower_records import record
from quoron_client.protocol.wire import MAX_WHOLE
from quoron_privacy.errors import BelowMinCohort, BudgetExceeded, ConfigError, LedgerError, RunError
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.flower.exchange import NoNodeUnderstands
from quoron_server.flower.serving import ConnectedNodes
from quoron_server.parameters import Kind
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Problem
from quoron_server.storage.database import Database
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.lifetime_ledger import PopulationLedger
from quoron_server.storage.registry import Registry
from quoron_server.wording import SEEDED, TEXTS, assumption_text, sentence

FEW = ("one-pass-dp-sgd", "srgd", "dp-sgd-wor")  # each user once, differences of two points, a secret sample
pytestmark = pytest.mark.usefixtures("time")  # nobody sleeps


@pytest.fixture(autouse=True)
def _trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ServerApp's environment allows made-up users and seeds."""
    monkeypatch.setenv("QUORON_ALLOW_SIMULATION", "1")
    monkeypatch.delenv("QUORON_SUPERNODE_AUTH", raising=False)


def test_a_seed_is_no_secret_where_users_are_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUORON_ALLOW_SIMULATION")
    monkeypatch.setenv("QUORON_SUPERNODE_AUTH", "1")
    grid = plugged(people())
    with pytest.raises(ConfigError, match=r"Expected no seed .* QUORON_ALLOW_SIMULATION=1"):
        trained(grid, tmp_path)
    assert not grid.asked
    trained(grid, tmp_path, seed=None)
    trained(plugged(people()), tmp_path / "simulated", identities="partitions")


def test_a_key_is_no_user_unless_the_operator_says_that_it_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QUORON_ALLOW_SIMULATION")
    grid = plugged(people())
    with pytest.raises(ConfigError, match="Expected QUORON_SUPERNODE_AUTH=1"):
        trained(grid, tmp_path, seed=None)
    assert not grid.asked


def test_the_store_is_kept_only_where_nobody_else_can_write(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    for mode in (0o777, 0o770, 0o702):
        folder.mkdir(exist_ok=True)
        folder.chmod(mode)
        with pytest.raises(ConfigError, match=f"no other may write to, got .*open of user .* mode {mode:o}"):
            trained(plugged(people()), folder)
        assert not list(folder.iterdir())
    folder.chmod(0o755)
    trained(plugged(people()), folder)


def test_the_store_is_not_kept_in_a_folder_of_another_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(ConfigError, match="a folder of this account"):
        trained(plugged(people()), tmp_path)


def planned(name: str, *, dimension: int = DIMENSION, options: dict[str, Any] | None = None) -> RunPlan:
    problem = Problem(
        users=USERS, items_per_user=1, dimension=dimension, domain=L2Ball(2.0), lipschitz=CLIP, smoothness=1.0
    )
    promise = {"privacy": Privacy(8.0, 1e-3), "clip_norm": CLIP, "options": options or SMALL[name]}
    return Training(run="spring", algorithm=name, problem=problem, **promise).plan()


@pytest.mark.parametrize(("name", "points"), [("one-pass-dp-sgd", 1), ("dp-sgd-poisson", 1), ("srgd", 2)])
def test_a_question_that_no_client_takes_is_never_planned_for(name: str, points: int) -> None:
    most = (MAX_WHOLE // 8 - 1024) // points
    with pytest.raises(ConfigError, match=f"Expected dimension to be at most {most:,}"):
        planned(name, dimension=most + 1)
    planned(name, dimension=most)


@pytest.mark.parametrize(
    ("name", "options", "assumed"),
    [
        ("dp-sgd-wor", {"rounds": 1, "rate": 0.5}, True),
        ("recentred-sgd", {"rounds": 1, "rate": 0.5}, False),
        ("dp-sgd-poisson", {"rounds": 1, "rate": 0.5}, False),
    ],
)
def test_the_promise_for_cohorts_of_a_fixed_size_assumes_that_functions_forget(
    name: str, options: dict[str, Any], assumed: bool
) -> None:
    promise = planned(name, options=options).guarantee
    assert promise.rests_on(Kind.FORGETFUL_CLIENTS) == assumed == (TEXTS[Kind.FORGETFUL_CLIENTS] in sentence(promise))


numbers = st.floats(allow_nan=True, allow_infinity=True, width=64)


sent = st.one_of(
    st.lists(numbers, min_size=DIMENSION, max_size=DIMENSION),
    st.lists(st.floats(-1e12, 1e12), min_size=DIMENSION, max_size=DIMENSION),
    st.lists(numbers, max_size=5),
    st.binary(max_size=40),
)


def one_step(grid: FakeGrid) -> np.ndarray:
    """The step is one and a simulation's noise always the same, so the model moves as the released mean does."""
    with TemporaryDirectory(dir=quick_folder()) as folder:
        return trained(grid, Path(folder), options={"rounds": 1, "step_size": 1.0}, radius=1e6).model


@settings(max_examples=10, derandomize=True, deadline=None)
@given(sent)
def test_one_user_moves_a_released_mean_by_at_most_two_clips_over_the_cohort_whatever_it_sends(row: Any) -> None:
    def raw(message: Message, reply: Message) -> Iterable[Message]:
        hers = reply.metadata.src_node_id == 14 and "answer" in reply.content["quoron"]
        return [with_values(reply, answer=row) if hers else reply]

    other = plugged(people())
    if isinstance(row, bytes):
        other.fault = raw
    else:
        other = plugged(people() | {4: lambda model: np.array(row)})
    assert np.linalg.norm(honest_step() - one_step(other)) <= 2 * CLIP / USERS * (1 + 1e-9)


@cache
def honest_step() -> np.ndarray:
    return one_step(plugged(people()))


def test_the_noise_is_that_of_the_plan_and_of_the_ledger(tmp_path: Path) -> None:
    """Of 4,000 secret samples the root mean square is within 8 % of σ but with probability below 1e-11."""
    silent = {user: lambda model: np.zeros(4000) for user in range(USERS)}
    found = trained(
        plugged(silent),
        tmp_path,
        dimension=4000,
        options={"rounds": 1, "step_size": 1.0},
        radius=1e6,
        seed=None,
    )
    sigma = found.plan.parameters.noise_scale
    assert abs(np.sqrt(np.mean(found.model**2)) / sigma - 1) < 0.08
    with Database(f"sqlite:///{tmp_path}/{DATABASE_FILE}") as database:
        releases = Ledger.within(database, "private").releases()
        (charge,) = (row["payload"] for row in PopulationLedger(database).rows() if row["kind"] == "charge")
        assert not Ledger.unreleased(database)
    assert [(number, each.parameters["scale"]) for number, each in releases] == [(0, sigma)]
    assert (charge["epsilon"], charge["delta"], charge["adjacency"]) == (8.0, 1e-3, "replace-one")
    promise = ALGORITHMS[found.plan.algorithm].gaussian(found.plan)
    assert (charge["mu"], charge["variation"]) == (pytest.approx(promise.mu, rel=1e-7), promise.variation)
    assert charge["statement"] == sentence(found.guarantee)
    assert assumption_text(ASSUMED["keys"]) in charge["statement"]
    assert SEEDED not in charge["statement"]


def test_no_text_of_an_exception_leaves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fails(model: np.ndarray) -> np.ndarray:
        raise ValueError("the patient is Ann")

    grid = plugged(people() | {1: fails, 3: lambda model: np.array([np.nan, 1.0, 1.0]), 4: lambda model: np.ones(2)})
    trained(grid, tmp_path)
    assert "the patient is Ann" in caplog.text  # in the owner's own log
    assert not any("Ann" in each for each in words(grid))
    refusals = [each for each in words(grid) if "refused" in each]
    assert len(refusals) == 3
    assert len(set(refusals)) == 1  # nothing tells one failure from another


def test_runs_in_one_folder_add_up_to_its_limit(tmp_path: Path) -> None:
    with Database(f"sqlite:///{tmp_path}/{DATABASE_FILE}") as database:
        PopulationLedger(database).limit("everyone", epsilon=12.0, delta=1e-2)
    trained(plugged(people()), tmp_path)
    grid = plugged(people())
    with pytest.raises(BudgetExceeded):
        trained(grid, tmp_path, run="second")
    assert not questions(grid)
    trained(grid, tmp_path, run="second", epsilon=2.0)


MANY = 60
MIN_COHORT: dict[str, Any] = {"users": MANY, "options": {"rounds": 2}, "min_cohort": 0.5, "min_cohort_epsilon": 2.0}


def silent(model: np.ndarray) -> np.ndarray:
    raise RuntimeError("away")


def test_a_run_that_nobody_answers_ends_without_a_min_cohort_for_good(tmp_path: Path) -> None:
    nobody = dict.fromkeys(range(MANY), silent)
    with pytest.raises(BelowMinCohort, match="Round 1 of at most 2"):
        trained(plugged(nobody), tmp_path, **MIN_COHORT)
    with Database(f"sqlite:///{tmp_path / DATABASE_FILE}") as database:
        assert Registry(database).run("private").state == "below-min-cohort"
        assert Ledger.unreleased(database) == set()
        assert Ledger.within(database, "private").spent()["rounds"] == 1
    grid = plugged(people(MANY))
    with pytest.raises(RunError, match="it is below-min-cohort"):
        trained(grid, tmp_path, **MIN_COHORT)


EPOCHS = {"rounds": 5, "epochs": 2, "inverse_step": 5.0, "optimiser": "adam"}


@pytest.mark.parametrize(
    ("name", "options"),
    [pytest.param(*each, marks=() if each[0] in FEW else pytest.mark.slow) for each in SMALL.items()]
    + [("dp-ftrl", EPOCHS)],
)
def test_rows_and_the_plug_in_train_the_same_bits_by_one_plan(
    name: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plug-in asks in the order of slots; rows have a secret order, so the plug-in's users stand in that order."""
    monkeypatch.setenv("QUORON_ALLOW_SIMULATION", "1")
    own = np.random.default_rng(0).normal(0.3, 0.1, (USERS, DIMENSION))
    here = quoron.train_rows(
        lambda users, point: point - own[users],
        users=USERS,
        dimension=DIMENSION,
        epsilon=8.0,
        delta=1e-3,
        seed=5,
        algorithm=name,
        options=options,
        radius=2.0,
        smoothness=1.0,
        clip_norm=CLIP,
        out=tmp_path / "rows",
    )
    order = SeededNoise(5).stream("order of users").permutation(USERS)
    people = {slot: (lambda model, user=user: model - own[user]) for slot, user in enumerate(order)}
    there = trained(plugged(people), tmp_path / "plug-in", name, options=options, seed=5, identities="partitions")
    np.testing.assert_array_equal(here.weights, there.weights)
    assert here.plan.parameters == there.plan.parameters


class Leaves(FakeGrid):
    """Node 10 is gone once there are questions, and node 99, if there is one, never answers."""

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [node for node in super().get_nodes() if not (node.node_id == 10 and questions(self))]


@pytest.mark.parametrize("identities", by_default(["keys", "partitions"], ["keys"]))
def test_a_stranger_that_never_says_hello_holds_up_no_round(identities: str, tmp_path: Path, time: FakeTime) -> None:
    def took(*, stranger: bool) -> float:
        grid = plugged(people())
        grid.__class__ = Leaves
        if stranger:
            grid.configs, grid.keys = {**grid.configs, 99: grid.configs[10]}, {**grid.keys, 99: b"stranger"}
        grid.fault = lambda message, reply: [] if message.metadata.dst_node_id == 99 else [reply]
        began, rounds = time.now, {"rounds": 10, "rate": 1.0}
        trained(grid, tmp_path / f"{stranger}", "dp-sgd-wor", options=rounds, identities=identities, waiting=5.0)
        return time.now - began

    greeting, briefly = 120.0, 2.0  # before the first round; in the first of them
    assert took(stranger=True) - took(stranger=False) <= greeting + briefly + 1.0


def test_no_words_of_a_node_make_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    grid = plugged(people(1))
    said = "x\nquoron: the model is in \x1b[31m/srv/evil" + "y" * 100

    def refuses(message: Message, reply: Message) -> Iterable[Message]:
        reply.content = record(refused=said)
        return [reply]

    grid.fault = refuses
    ConnectedNodes(grid, "private").greet(5.0)
    (lines,) = [each.getMessage() for each in caplog.records if "takes no part" in each.getMessage()]
    assert lines.isprintable()
    assert "y" * 60 not in lines


LONG = 600.0  # seconds for users to come
SOON = 30.0


def replaces(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
    reply = call_next(message, context)
    return Message(RecordDict({"arrays": ArrayRecord([np.zeros(3)])}), reply_to=reply and message)


def changes(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
    reply = call_next(message, context)
    noised = {key: value[::-1] if isinstance(value, bytes) else value for key, value in reply.content["quoron"].items()}
    reply.content["quoron"] = ConfigRecord(noised)
    return reply


def unloadable(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
    raise LoadClientAppError(SECRET)


def refuses(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
    return error_reply(message, f"{SECRET} LocalDpMod", code=6)


ENDED = "its ClientApp has ended without an answer"
BREAKING: dict[str, tuple[Any, str]] = {
    "LocalDpMod": (LocalDpMod(1.0, 1.0, 1.0, 1e-5), ENDED),
    "fixedclipping_mod": (fixedclipping_mod, ENDED),
    "one that refuses in words of its own": (refuses, ENDED),
    "one that replaces the record": (replaces, "a mod of its ClientApp has replaced it"),
    "one that changes what is in it": (changes, "a mod of its ClientApp changes it"),
    "an app that is not there": (unloadable, ENDED),
}


@pytest.mark.parametrize(
    "name",
    by_default(
        BREAKING,
        [name for name in BREAKING if name not in ("fixedclipping_mod", "one that refuses in words of its own")],
    ),
)
def test_a_mod_that_breaks_our_messages_is_named_at_once_and_ends_the_wait(
    name: str, tmp_path: Path, time: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    mod, named = BREAKING[name]
    grid, began = plugged(people(), mods=[mod]), time.now
    with pytest.raises(
        NoNodeUnderstands, match=r"got none from 6 nodes\. Node 10 and 5 more: .*start the same run"
    ) as no:
        trained(grid, tmp_path, waiting=LONG)
    assert time.now - began < SOON
    assert named in str(no.value)
    assert re.search(f"node 10 takes no part: .*{named}", caplog.text)
    assert "node 11 takes no part: as node 10" in caplog.text
    assert SECRET not in caplog.text + str(no.value), "what an app writes into a reason is never told"
    assert not questions(grid)
    mended = trained(plugged(people()), tmp_path, waiting=LONG)
    np.testing.assert_array_equal(mended.weights, trained(plugged(people()), tmp_path / "whole").weights)


def test_an_app_without_the_action_is_named(tmp_path: Path, time: FakeTime) -> None:
    grid, began = plugged(people()), time.now
    grid.app = ClientApp()
    with pytest.raises(NoNodeUnderstands, match="give it the action that the server asks for"):
        trained(grid, tmp_path, waiting=LONG)
    assert time.now - began < SOON


def broken(message: Message, reply: Message) -> Iterable[Message]:
    return [error_reply(message, "LocalDpMod expects", code=6)]


def test_too_few_users_are_told_why_others_take_no_part(tmp_path: Path) -> None:
    grid = plugged(people())
    grid.fault = lambda message, reply: broken(message, reply) if message.metadata.dst_node_id == 12 else [reply]
    with pytest.raises(RunError, match=r"Expected 6 users .* got 5\..* Node 12: its ClientApp has ended"):
        trained(grid, tmp_path, waiting=LONG)


def test_what_becomes_of_questions_is_told_to_nobody_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether there is an answer may be a function of the data: a run among errors alone is one like any other."""

    def after_hellos(message: Message, reply: Message) -> Iterable[Message]:
        return broken(message, reply) if "question" in message.content["quoron"] else [reply]

    grid, zeros = plugged(people()), plugged({user: lambda model: np.zeros_like(model) for user in people()})
    grid.fault = after_hellos
    model = trained(grid, tmp_path / "errors", seed=5).model
    assert "LocalDpMod" not in caplog.text
    np.testing.assert_array_equal(model, trained(zeros, tmp_path / "zeros", seed=5).weights)


def test_a_seed_takes_the_guarantee_away(tmp_path: Path) -> None:
    for seed in (7, None):
        given: dict[str, Any] = {"seed": seed, "identities": "partitions"}
        said = sentence(trained(plugged(people()), tmp_path / str(seed), **given).guarantee)
        assert said.startswith(SEEDED) == (seed is not None)


def test_a_killed_server_goes_on_from_its_own_start_and_another_is_refused_by_name(tmp_path: Path) -> None:
    begun = np.linspace(-0.5, 0.5, DIMENSION)
    whole = trained(plugged(people()), tmp_path / "whole", start=begun)
    with pytest.raises(Killed):
        trained(plugged(people(), dies_at=4), tmp_path / "killed", start=begun)
    with pytest.raises(LedgerError, match=r"the start that run private in .* began with, got another.*Leave start out"):
        trained(plugged(people()), tmp_path / "killed", start=begun + 1e-9)
    again = trained(plugged(people()), tmp_path / "killed")
    np.testing.assert_array_equal(again.weights, whole.weights)
