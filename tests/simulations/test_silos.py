"""Users in silos: the same bits by rows, by sums and without; what a lost or a hostile silo costs, and who says so."""

import json
import runpy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quoron
from contracts.scenes import PROBLEM, SMALL, Quadratic, execute, make_plan
from quoron import config as configs
from quoron.engine.inline import merged, part_of
from quoron.federation.submission import specify
from quoron.planning.plans import warnings
from quoron_client.protocol.questions import Answers, Question, summed
from quoron_privacy.errors import ConfigError
from quoron_privacy.means.silo_sums import objection
from quoron_privacy.release import Sums
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.whitened.parameters import PARTS
from quoron_server.plan import Privacy
from quoron_server.silos import Silos, in_silos
from quoron_server.specification import RunSpecification
from quoron_server.specification import make_plan as plan_of

write_hospitals = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "federation" / "hospitals.py"))[
    "write_hospitals"
]
SCENES = [*ALGORITHMS, *(pytest.param(name, marks=pytest.mark.slow) for name in SMALL if name not in ALGORITHMS)]
UNEVEN = Silos((1, 700, 2, 1297, 400))


@dataclass
class Listening:
    """An engine that notes which questions have a reduction."""

    inner: Any = field(default_factory=Quadratic)
    reduced: list[bool] = field(default_factory=list)

    def ask(self, question: Question) -> Answers | Sums:
        self.reduced.append(question.reduction is not None)
        return self.inner.ask(question)


@dataclass
class BySilo:
    """An engine whose silos answer one by one, by rows or by one sum each."""

    silos: Silos
    inner: Any = field(default_factory=Quadratic)

    def ask(self, question: Question) -> Answers | Sums:
        members, parts = self.silos.of(question.cohort), []
        for silo in np.unique(members):
            own = part_of(question, np.flatnonzero(members == silo))
            told = self.inner.ask(own if self.silos.sums else replace(own, reduction=None))
            if self.silos.sums:
                sums = summed(told, question.reduction)
                assert objection(sums, question.reduction, persons=len(own.cohort), length=len(sums.total)) is None
            parts.append((np.flatnonzero(members == silo), told))
        return merged(question, iter(parts), PROBLEM.dimension) if parts else self.inner.ask(question)


@pytest.mark.parametrize("name", SCENES)
def test_bits_are_those_of_the_same_persons_in_clients_of_their_own(name: str, tmp_path: Path) -> None:
    listening = Listening()
    (tmp_path / "own").mkdir()
    alone = execute(name, tmp_path / "own", listening)
    reads_sums = make_plan(name).schedule.reads_sums
    assert reads_sums == all(listening.reduced)
    for sums in (False, True) if reads_sums else (False,):
        (tmp_path / f"{sums}").mkdir()
        silos = Silos(UNEVEN.sizes, sums)
        assert np.array_equal(alone, execute(name, tmp_path / f"{sums}", BySilo(silos)))


def test_auto_takes_whitened_tracking_for_sums_and_plans_its_questions() -> None:
    """As it does for rows, and forecasts the same."""
    plans = []
    for silos in ("silos = 3", "silos = { sizes = 3, sums = true }"):
        config = configs.parse(TABLE.replace("SILOS", silos).partition("[algorithm]")[0])
        wanted, plan = specify(config, run="trial", users=900, seconds=5.0)
        assert plan.algorithm == "whitened-tracking"
        assert plan_of(RunSpecification.parse(wanted.as_text())) == plan
        plans.append(plan)
    assert [plan.cost.rounds for plan in plans] == [13, 13 + PARTS]
    assert plans[0].predicted_excess_risk == plans[1].predicted_excess_risk


def small(tmp_path: Path, **population: Any) -> Any:
    settings = [{"population": {"users": 2000, "items_per_user": 5, "dimension": 3, **population}}]
    settings += [{"algorithm": {"name": "one-pass-dp-sgd", "options": {"rounds": 4}}}]
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    return quoron.simulate("quickstart", settings=settings, out=folder)


class TestSimulation:
    def test_silos_change_no_bit(self, tmp_path: Path) -> None:
        alone = small(tmp_path)
        rows = small(tmp_path, silos=[1500, 300, 200])
        sums = small(tmp_path, silos={"sizes": [1500, 300, 200], "sums": True})
        assert np.array_equal(alone.weights, rows.weights)
        assert np.array_equal(alone.weights, sums.weights)
        assert "one person of one silo" in sums.summary.statement
        assert "to clip their rows" in sums.summary.statement
        assert "to clip their rows" not in rows.summary.statement


class TestPlans:
    def test_sizes_are_shared_out_where_some_are_held_out(self) -> None:
        assert Silos.declared([300, 300, 300], 720, of=900).sizes == (240, 240, 240)
        assert sum(Silos.declared(7, 100).sizes) == 100
        for wrong in ([300, 300], 101, 0, [0, 100], []):
            with pytest.raises(ConfigError, match=r"silos|silo"):
                Silos.declared(wrong, 100)

    @pytest.mark.parametrize(
        ("name", "sums", "why"),
        [
            ("dp-sgd-wor", False, "fixed size"),
            ("mean-sgd", False, "fixed size"),
            ("median-sgd", True, "single rows"),
            ("local-model", True, "randomised by itself"),
        ],
    )
    def test_what_silos_cannot_do_is_refused_by_name(self, name: str, sums: bool, why: str) -> None:
        plan = make_plan(name)
        with pytest.raises(ConfigError, match=rf"(?s){plan.algorithm}.*{why}"):
            in_silos(plan, Silos((1200, 1200), sums))

    def test_public_participation_needs_rows(self) -> None:
        privacy = Privacy(2.0, 1e-3, 0.5, 0.1, participation="public")
        plan = ALGORITHMS["one-pass-dp-sgd"].plan(PROBLEM, privacy)
        in_silos(plan, Silos((1200, 1200)))
        with pytest.raises(ConfigError, match="person by person"):
            in_silos(plan, Silos((1200, 1200), sums=True))

    @pytest.mark.parametrize(("sizes", "holds"), [((300,) * 8, True), ((1500, 900), False)])
    def test_what_the_min_cohort_spares_decides_about_the_largest_silo(
        self, sizes: tuple[int, ...], holds: bool
    ) -> None:
        plan = ALGORITHMS["one-pass-dp-sgd"].plan(PROBLEM, Privacy(8.0, 1e-3, 0.5, 0.4))
        said = warnings(plan, sizes)
        assert bool(said) is not holds
        assert holds or "silo 1, the largest of 2, holds 1,500 of 2,400 persons, and the" in said[0]
        assert holds or "spares 1,200" in said[0]


TABLE = """
[population]
kind = "table"
items_per_user = 3
path = "hospital.csv"
user = "patient"
label = "again"
columns.numeric = { age = [0, 100] }
SILOS
[privacy]
epsilon = 2.0
min_cohort = 0.5
allow_large_delta = true
[algorithm]
name = "one-pass-dp-sgd"
options = { rounds = 2 }
"""


class TestSubmissions:
    def submitted(self, silos: str, users: int = 900) -> tuple[RunSpecification, Any]:
        return specify(configs.parse(TABLE.replace("SILOS", silos)), run="trial", users=users, seconds=5.0)

    def test_silos_that_do_not_add_up_are_refused(self) -> None:
        for sizes in ([300, 300], [600, 600], [575, 550]):  # of the last a simulation would hold a fifth out
            with pytest.raises(ConfigError, match="add up to 900"):
                self.submitted(f"silos = {sizes}")
        text = json.loads(self.submitted("silos = 3")[0].as_text())
        with pytest.raises(ConfigError, match="another number"):
            RunSpecification.parse(json.dumps(text | {"silos": [1, 2]}))


def test_the_example_is_a_run_that_learns_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_hospitals(Path("trial"))
    text = (tmp_path / "trial" / "run.toml").read_text()
    assert "MADE UP" in text
    assert configs.parse(text).privacy.min_cohort.share is None, "`quoron train` takes none"
    result = quoron.simulate("trial/run.toml", out=tmp_path / "run", settings=["algorithm.name=whitened-tracking"])
    assert "one person of one silo" in result.summary.statement
    assert result.summary.excess_risk is not None
    assert result.summary.excess_risk < 0.1 * float(result.summary.excess_risk_initial or 0.0)
