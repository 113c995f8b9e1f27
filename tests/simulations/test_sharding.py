"""Shards: the same bits for any number of workers, whoever of them dies, and whoever asks them."""

import os
import pickle
import select
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import quoron
from contracts.scenes import SMALL
from cover import EVERY_QUESTION, by_default
from quoron import kernels, run_folder
from quoron.cli.app import invoke
from quoron.data import Outliers, Synthetic
from quoron.data.population import from_dataset
from quoron.data.table import from_table
from quoron.engine import choice as engines
from quoron.engine.choice import Flower, Inline, Ray, Service, ShardedEngine, from_spec, of_processes
from quoron.engine.inline import InlineEngine
from quoron.engine.processes import Died
from quoron.run_folder import RunFolder
from quoron.simulation import run as runs
from quoron.simulation import sources
from quoron_client.losses import Logistic
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers, AverageGradient, LocalSGD, PlacedGradient, Question, SecondMoment
from quoron_privacy.errors import ConfigError, DataError, RunError
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.noise.streams import SecureNoise, StartedNoise
from quoron_privacy.release import Sums
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.slots import partition
from quoron_server.rounds import Engine
from quoron_server.storage.ledger import Ledger
from row_files import RULES, described, in_buckets, rows

D = 3


class Here:
    """A worker in this process, given no more than one elsewhere would be; it dies at its calls number `dies`."""

    calls = 0

    def __init__(self, service: bytes, dies: tuple[int, ...] = ()) -> None:
        self._service, self._dies = pickle.loads(service), dies

    def ask(self, question):
        Here.calls += 1
        if Here.calls in self._dies:
            raise Died("A worker has ended.")
        answers = self._service(question)
        most = max(engines.PIECE, answers.values[:1].nbytes + 1) if isinstance(answers, Answers) else 0
        assert isinstance(answers, Sums) or answers.values.nbytes + len(answers.status) <= most
        return answers

    def close(self) -> None:
        """Nothing is left of it."""


def here(population, workers: int, *, dies: tuple[int, ...] = (), **settings) -> ShardedEngine:
    Here.calls = 0
    return ShardedEngine(InlineEngine(population, **settings), workers, lambda service: Here(service, dies))


def made_up(**changes) -> Synthetic:
    given = {"users": 500, "items_per_user": 4, "dimension": D, "domain": L2Ball(2.0), "seed": 3, **changes}
    return Synthetic(family="logistic", outliers=Outliers(0.2, "shifted"), **given)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("shards")
    table = in_buckets(rows(500), place / "d")
    pq.write_table(table, place / "one.parquet")
    return place


@pytest.fixture(autouse=True)
def ledger(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "lifetime.sqlite"))


def crowd(kind: str, folder: Path):
    given = {"user": "who", "loss": Logistic(), "outliers": Outliers(0.2, "missing"), "test_fraction": 0.2}
    if kind == "made up":
        return made_up()
    if kind == "table":
        return from_table(folder / "one.parquet", RULES, **given)
    population = from_dataset(folder / "d", RULES, **given)
    return population.read_in(partition(seed=1, users=population.users))


def questions(users: int, d: int) -> list[Question]:
    draw = np.random.Generator(np.random.Philox(4))
    some, point = draw.permutation(users)[:210], draw.standard_normal((1, d))
    gradient = AverageGradient(point, (1.0,))
    return [
        Question(0, some, gradient),
        Question(1, some, gradient, reduction=ClippedSum(0.3, 200)),
        Question(2, some, LocalSGD(draw.standard_normal((210, d)) / 9, 0.1, L2Ball(2.0))),
        Question(3, some, PlacedGradient(point, draw.integers(-1, 4, (210, 2)), 2.0)),
        Question(4, some, SecondMoment(d)),
        Question(5, some[:1], gradient),
        Question(6, some[:0], gradient),
        Question(7, some[:0], gradient, reduction=ClippedSum(0.3, 200)),
        Question(8, some, replace(gradient, user_smoothness=0.01), reduction=ClippedSum(0.3, 200)),
    ]


def assert_same(found, expected) -> None:
    assert type(found) is type(expected)
    names = ("total", "cells", "clipped", "answered") if isinstance(expected, Sums) else ("values", "status")
    for name in names:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


@pytest.mark.parametrize("kind", ["made up", "table", "dataset"])
@pytest.mark.parametrize("workers", [1, 2, 7])
def test_any_number_of_workers_answers_with_the_same_bits(kind, workers, folder, monkeypatch):
    monkeypatch.setattr(engines, "PIECE", 700)  # several pieces a worker
    population = crowd(kind, folder)
    alone: Engine = InlineEngine(population, seed=5, dropout=0.1)
    with here(population, workers, seed=5, dropout=0.1) as shared:
        for question in questions(population.users, population.dimension):
            assert_same(shared.ask(question), alone.ask(question))


@pytest.mark.parametrize("name", by_default(ALGORITHMS, (*EVERY_QUESTION, "dp-sgd-poisson")))
def test_every_algorithm_releases_the_same_model_from_seven_shards(name, tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "PIECE", 20_000)
    zero_out = ("privacy.adjacency=zero-out",) if ALGORITHMS[name].guarantees.adjacency == ("zero-out",) else ()
    few = [f"algorithm.options.{option}={value!r}" for option, value in SMALL.get(name, {}).items()]  # rounds
    extra = (*kernels.SMALL, *kernels.NEEDS.get(name, ()), *zero_out, *few, f"algorithm.name={name}")
    config, _ = sources.resolve("quickstart", extra)
    prepared = runs.prepare(config, tmp_path)
    models = []
    for engine in (
        prepared.setup.engine,
        here(prepared.setup.population, 7, dies=(3, 5), seed=config.run.seed),
    ):
        out = RunFolder(tmp_path / str(len(models)))
        out.path.mkdir()
        shared = replace(prepared, setup=replace(prepared.setup, engine=engine))
        models.append(runs.carry_out(shared, out, report=False).weights)
    np.testing.assert_array_equal(*models)


def test_a_worker_that_dies_over_and_over_is_an_error_that_loses_nothing(folder):
    population = made_up()
    question = questions(population.users, D)[0]
    with here(population, 2, dies=(1, 3)) as shared:
        assert_same(shared.ask(question), InlineEngine(population).ask(question))
        assert shared.replaced == 2
    doomed = here(population, 2, dies=tuple(range(1, 99)))
    with doomed, pytest.raises(RunError, match=r"3 in a row have died.*Nothing is lost"):
        doomed.ask(question)


@pytest.fixture(scope="module")
def shared():
    with of_processes(InlineEngine(made_up(), seed=5), 2) as engine:
        yield engine


class TestProcesses:
    def test_answer_with_the_same_bits(self, shared):
        alone = InlineEngine(shared.population, seed=5)
        for question in questions(500, D):
            assert_same(shared.ask(question), alone.ask(question))

    def test_one_killed_in_a_round_is_replaced_and_the_round_has_the_same_bits(self, shared):
        question = questions(500, D)[0]
        shared.ask(question)
        before, worker = shared.replaced, shared._workers[1]
        ask = worker.ask

        def killed(*given):
            os.kill(worker.number, signal.SIGKILL)
            return ask(*given)

        worker.ask = killed
        assert_same(shared.ask(question), InlineEngine(shared.population, seed=5).ask(question))
        assert shared.replaced == before + 1

    def test_end_with_their_engine(self, shared):
        shared.ask(questions(500, D)[0])
        numbers = [worker.number for worker in shared._workers.values()]
        shared.close()
        assert all(map(gone, numbers))

    @pytest.mark.programs
    def test_a_file_that_disappears_is_told_by_its_worker(self, tmp_path):
        in_buckets(rows(100), tmp_path / "d")
        population = from_dataset(tmp_path / "d", RULES, user="who", loss=Logistic(), test_fraction=0.0)
        with of_processes(InlineEngine(population), 1) as shared:
            (tmp_path / "d" / "bucket-001.parquet").unlink()
            with pytest.raises(DataError, match=r"'bucket-001.parquet' in .*, but it has disappeared"):
                shared.ask(Question(0, np.arange(9), AverageGradient(np.zeros((1, population.dimension)), (1.0,))))

    @pytest.mark.programs
    def test_local_reports_draw_on_the_same_words(self, folder, tmp_path):
        settings = [*kernels.SMALL]
        given = {"algorithm": "local-model", "settings": settings}
        models = [
            quoron.simulate("quickstart", out=tmp_path / str(k), engine=Inline(workers=k), **given).weights
            for k in (None, 2)
        ]
        np.testing.assert_array_equal(*models)


@pytest.mark.programs
@pytest.mark.parametrize("path", ["d", "one.parquet"])
def test_training_with_workers_releases_the_model_of_one_process(path, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(SecureNoise, "fresh", classmethod(lambda cls: cls(bytes(range(32)))))
    monkeypatch.setattr(StartedNoise, "fresh", StartedNoise.simulated)
    monkeypatch.setattr(run_folder.secrets, "randbits", lambda bits: 12345)
    source = described(folder, path)
    first = quoron.train(source, out=tmp_path / "a", population="a", engine="inline")
    second = quoron.train(source, out=tmp_path / "b", population="b", engine=Inline(workers=2))
    np.testing.assert_array_equal(first.model.weights, second.model.weights)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("inline", Inline()),
        ("inline:workers=4", Inline(workers=4)),
        ("ray:address=auto,workers=8", Ray(address="auto", workers=8)),
        ("ray:address=10.0.0.7:6379", Ray(address="10.0.0.7:6379")),
        ("service:clients=20,slow=300", Service(clients=20, slow=300)),
        ("flower:nodes=20,cpus=2", Flower(nodes=20, cpus=2)),
        (Inline(workers=4), Inline(workers=4)),
    ],
)
def test_an_engine_typed_as_a_text_is_the_one_of_its_class(typed, meant):
    assert from_spec(typed) == meant


def test_python_and_the_command_line_read_one_text_of_an_engine(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source, seen = str(described(folder, "d")), []
    monkeypatch.setattr("quoron.api.simulating.carry_out", lambda where, *_: seen.append(where) or sys.exit(7))
    for text in ("inline:workers=2", "service:clients=200,timeout=10"):
        with pytest.raises(SystemExit):
            quoron.simulate("quickstart", settings=["population.users=200"], engine=text)
        with pytest.raises(SystemExit):
            invoke(["--quiet", "simulate", "quickstart", "--set", "population.users=200", "--engine", text])
        assert seen[-1] == seen[-2] == from_spec(text)
    for text in ("inline:worker=2", "inline:workers=two", "inlin"):
        with pytest.raises(ConfigError) as refused:
            quoron.train(source, epsilon=8.0, engine=text)
        assert invoke(["train", source, "--engine", text, "--dry-run"]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert " ".join([str(refused.value), *getattr(refused.value, "__notes__", ())]) in said
        assert "inline" in said


def test_choices_that_make_no_sense_are_refused():
    for given, words in (
        ("inline:address=x:1", "engine inline KEY=VALUE of workers, got 'address=x:1'.*ray workers, address"),
        ("flower:workers=2", "got 'workers=2'.*inline workers"),
        ("inline:workers=0", "workers to be an integer >= 1"),
        ("inline:nodes=5", "engine inline KEY=VALUE of workers, got 'nodes=5'.*flower nodes"),
        ("ray:clients=3", "service clients"),
        ("flower:slow=2", "service clients"),
        ("spark", "inline, ray, flower or service, got 'spark'"),
    ):
        with pytest.raises(ConfigError, match=words):
            from_spec(given)
    for engine, got in (("flower", "Flower"), (Service(clients=3), "Service")):
        with pytest.raises(ConfigError, match=f"engine inline or ray for training, got {got}"):
            quoron.train("storms", engine=engine)


KILLER = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from quoron.engine.processes import Worker
    from quoron_server.storage.ledger import Ledger
    from quoron.__main__ import main

    born, begin = [], Worker.__init__

    def telling(self, *given, **named):
        begin(self, *given, **named)
        born.append(self.number)

    Worker.__init__ = telling
    commit, left = Ledger.commit, 4

    def dying(*given, **named):
        global left
        left -= 1
        commit(*given, **named)
        if left == 0:
            Path(sys.argv[-1], "born").write_text(" ".join(map(str, born)))
            os.kill(os.getpid(), signal.SIGKILL)

    Ledger.commit = dying
    main()
    """
)


def gone(number: int) -> bool:
    """Whether a process, of whomever, has ended; waits for minutes of a busy machine."""
    try:
        handle = os.pidfd_open(number)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 300)[0])
    finally:
        os.close(handle)


@pytest.mark.programs
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux tells when a process of others ends")
def test_a_killed_driver_leaves_no_worker_and_its_run_goes_on_with_another_number_of_them(folder, tmp_path):
    source = described(folder, "d")
    whole = quoron.simulate(source, out=tmp_path / "whole")
    words = ["--quiet", "simulate", str(source), "--engine", "inline:workers=2", "--out", str(tmp_path / "run")]
    ended = subprocess.run([sys.executable, "-c", KILLER, *words], env=dict(os.environ), check=False, timeout=600)
    assert ended.returncode == -signal.SIGKILL
    born = [int(number) for number in (tmp_path / "run" / "born").read_text().split()]
    assert len(born) == 2
    assert all(map(gone, born))
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert not ledger.finished
    resumed = quoron.resume(tmp_path / "run", engine=Inline(workers=1))
    np.testing.assert_array_equal(resumed.weights, whole.weights)
