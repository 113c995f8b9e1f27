"""One way to run anything: what differs is named, a charge is entered once, and an end may be told again."""

import ast
import re
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from contracts.scenes import Quadratic, make_plan
from quoron_privacy.errors import BudgetExceeded, OtherVersion
from quoron_privacy.noise.streams import SeededNoise
from quoron_server import runs, serial
from quoron_server.algorithm import names_of
from quoron_server.runs import Run, charge_of
from quoron_server.storage.database import Database
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.lifetime_ledger import PopulationLedger

ROOT = Path(__file__).parent.parent.parent
PLAN = make_plan("one-pass-dp-sgd")


def places(tmp_path: Path) -> list[Path | Database]:
    return [tmp_path / "ledger.sqlite", Database(f"sqlite:///{tmp_path / 'store.sqlite'}")]


def run(**fields: object) -> Run:
    return replace(Run(name="spring", plan=PLAN, digest="d", simulation_seed=7), **fields)  # type: ignore[arg-type]


def test_the_loop_is_called_in_one_place_of_the_product() -> None:
    found = []
    for folder in ("server", "simulations", "client", "privacy"):
        for module in (ROOT / folder).rglob("*.py"):
            text = module.read_text(encoding="utf-8")
            if "rounds.run" not in text and "quoron_server.rounds" not in text:
                continue
            tree = ast.parse(text)
            calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
            found += [module.name for call in calls if ast.unparse(call) == "rounds.run"]
            imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
            names = [alias.name for node in imports if node.module == "quoron_server.rounds" for alias in node.names]
            assert "run" not in names, module
    assert found == ["runs.py"]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    ("other", "thing"), [({"digest": "e"}, "configuration and data"), ({"plan": replace(PLAN, seed=1)}, "plan")]
)
def test_another_run_is_refused_by_what_differs_and_leaves_the_first_as_it_was(tmp_path, which, other, thing) -> None:
    place = places(tmp_path)[which]
    with closing(run().begin(place)) as ledger:
        key = ledger.noise_key
    with pytest.raises(OtherVersion, match=f"same {thing}, but it began with another"):
        run(**other).begin(place)
    with closing(run().begin(place)) as ledger:
        assert ledger.noise_key == key


@pytest.mark.parametrize("which", [0, 1])
def test_a_run_goes_on_to_the_same_model_and_a_complete_one_asks_nobody(tmp_path, which) -> None:
    place, scene = places(tmp_path)[which], Quadratic()
    with closing(run().begin(place)) as ledger:
        model = run().carry_out(ledger, scene)
    with closing(run().begin(place)) as ledger:
        assert np.array_equal(run().carry_out(ledger, None), model)  # type: ignore[arg-type]


@pytest.mark.parametrize("which", [0, 1])
def test_a_state_of_another_version_is_named_with_its_run_and_what_to_do(tmp_path, which, monkeypatch) -> None:
    place, scene = places(tmp_path)[which], Quadratic()

    with closing(run().begin(place)) as ledger, monkeypatch.context() as patch:
        patch.setattr(Quadratic, "ask", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run().carry_out(ledger, scene)
    with closing(run().begin(place)) as ledger, monkeypatch.context() as patch:
        patch.setattr(serial, "names_of", lambda kind: (names := names_of(kind)) and names[:-1])
        named = re.escape(str(ledger.path))
        with pytest.raises(OtherVersion, match=f"{named} to hold .* the version of quoron that began it") as error:
            run().carry_out(ledger, scene)
        assert "with fields" in str(error.value.__cause__)
    with closing(run().begin(place)) as ledger:
        run().carry_out(ledger, scene)


def test_a_charge_is_worked_out_before_anybody_has_the_account(tmp_path: Path, monkeypatch) -> None:
    population, held, original = PopulationLedger(Database(f"sqlite:///{tmp_path / 'l.sqlite'}")), [False], charge_of

    @contextmanager
    def account():
        held[0] = True
        yield population
        held[0] = False

    def worked_out(plan):
        assert not held[0]
        return original(plan)

    monkeypatch.setattr(runs, "charge_of", worked_out)
    charged = run(account=account)
    charged.check()
    charged.charge()
    assert population.charged("spring") is not None


def test_noise_of_another_kind_is_refused(tmp_path: Path) -> None:
    seeded = run()
    with closing(seeded.begin(tmp_path / "l.sqlite")) as ledger:
        assert seeded.noise(ledger).export_key() == SeededNoise(7).export_key()
        with pytest.raises(OtherVersion, match="kind of noise"):
            run(simulation_seed=None).noise(ledger)


def test_a_charge_is_entered_once_and_ended_once_however_often_it_is_called(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'l.sqlite'}")
    population = PopulationLedger(database)
    charged = run(account=partial(nullcontext, population), group="clinic")
    for _ in range(2):
        charged.check()
        charged.charge()
        runs.end(population, "spring", model=np.zeros(2))
    assert [row["kind"] for row in population.rows()] == ["charge", "release", "end"]
    assert population.spent("clinic").epsilon == PLAN.guarantee.epsilon


def test_a_run_beyond_the_limit_is_refused_with_nothing_written(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'l.sqlite'}")
    population = PopulationLedger(database)
    half = PLAN.guarantee.epsilon / 2
    population.limit("everyone", epsilon=half, delta=1e-3)
    charged = run(account=partial(nullcontext, population))
    for step in (charged.check, charged.charge):
        with pytest.raises(BudgetExceeded):
            step()
    assert population.charged("spring") is None
    assert not Ledger.begun(database, "spring")
