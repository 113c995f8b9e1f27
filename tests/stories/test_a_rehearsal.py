"""A plan, a simulation and a comparison before there is data, or of a federation."""

import json
from pathlib import Path

import numpy as np
import pytest

import quoron as package
from quoron_server.rounds import Observer, RoundEvent
from stories.conftest import Command, shown_again

SMALL = (
    "population.users=2000", "population.items_per_user=5", "population.dimension=4", "privacy.epsilon=4",
    "algorithm.name=one-pass-dp-sgd", "algorithm.options.rounds=6",
)  # fmt: skip


def settings(*more: str) -> list[str]:
    return [word for text in (*SMALL, *more) for word in ("--set", text)]


def summary(text: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(text)
    return found


def test_a_plan_says_rounds_and_guarantee_before_any_data(quoron: Command, place: Path) -> None:
    said = quoron("plan", "quickstart", *settings())
    assert said.code == 0
    assert "(4, 1e-06)-differential privacy for all items of any one user" in said.out
    assert "one-pass-dp-sgd" in said.out
    assert not (place / "runs").exists()


def test_more_users_are_planned_to_leave_less_risk() -> None:
    risks = [
        package.plan(
            "quickstart", settings=["algorithm.name=accelerated-srgd", *SMALL[1:3], f"population.users={users}"]
        ).plan.guessed_excess_risk
        or 9.0
        for users in (3_000, 100_000)
    ]
    assert risks[0] > risks[1]


def test_what_is_infeasible_names_a_number_of_users_that_is_feasible(quoron: Command) -> None:
    asked = ("--set", "algorithm.name=mean-sgd", "--set", "privacy.epsilon=1")
    said = quoron("plan", "quickstart", *asked, "--set", "population.users=1000")
    assert said.code != 0
    needed = said.err.split("n >= ")[1].split()[0].strip(".,;").replace(",", "")
    assert quoron("plan", "quickstart", *asked, "--set", f"population.users={needed}").code == 0


def test_a_simulation_learns_and_keeps_what_it_did(quoron: Command, place: Path) -> None:
    said = quoron("simulate", "quickstart", *settings(), "--json", "--out", "run")
    found = summary(said.out)
    assert (found["rounds"], found["users_asked"]) == (6, 1998)  # six cohorts of 333
    assert float(str(found["excess_risk"])) < float(str(found["excess_risk_initial"]))
    assert {"plan.json", "summary.json", "model.npz", "report.html", "rounds.parquet"} <= {
        path.name for path in (place / "run").iterdir()
    }
    assert quoron("show", "run").code == 0


def test_seeds_alone_decide_a_simulation() -> None:
    one, two, other = (
        package.simulate("quickstart", settings=[*SMALL, f"run.seed={seed}"]).weights for seed in (1, 1, 2)
    )
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)


def test_a_budget_of_rounds_is_kept_to_and_one_that_is_exceeded_refuses(quoron: Command) -> None:
    asked = [*settings()[:-4], "--set", "algorithm.name=accelerated-srgd"]
    assert summary(quoron("simulate", "quickstart", *asked, "--set", "budget.rounds=4", "--json").out)["rounds"] == 4
    refused = quoron("simulate", "quickstart", *asked, "--set", "budget.gradient_evaluations=10")
    assert refused.code != 0
    assert "gradient" in refused.err


def test_two_values_for_one_thing_are_refused_with_both(quoron: Command) -> None:
    said = quoron("simulate", "quickstart", "--epsilon", "1", "--set", "privacy.epsilon=2")
    assert said.code == 2
    assert "Expected one value of privacy.epsilon, got 2 (settings, --set) and 1.0" in said.err


@pytest.mark.parametrize(
    "more",
    [
        ("privacy.trust_model=two-servers",),
        ("population.silos=10",),
        ("privacy.min_cohort=0.5",),
        ("privacy.adjacency=zero-out",),
        ("population.outliers.share=0.02",),
    ],
    ids=["two servers", "silos", "a minimum cohort", "zero-out", "outliers"],
)
def test_every_setting_of_a_federation_can_be_rehearsed(more: tuple[str, ...]) -> None:
    run = package.simulate(
        "quickstart", settings=[*SMALL[:3], "privacy.epsilon=8", "algorithm.name=tracking-srgd", *more]
    )
    assert run.summary.rounds > 0
    assert run.summary.epsilon == 8


@pytest.mark.slow
def test_methods_are_compared_by_risk_and_rounds_and_shown_again(quoron: Command) -> None:
    methods = ("--algorithms", "one-pass-dp-sgd,accelerated-srgd", "--seeds", "2", "--engine", "inline:workers=1")
    said = quoron("compare", "quickstart", *settings()[:-4], *methods, "--out", "several")
    assert said.code == 0
    assert all(word in said.out for word in ("one-pass-dp-sgd", "accelerated-srgd", "rounds"))
    assert "95 % interval" in shown_again(quoron, "several")


def test_a_paper_is_run_as_printed(quoron: Command) -> None:
    asked = ("--set", "algorithm.name=accelerated-srgd", "--set", "algorithm.constants=paper", *settings()[:-4])
    said = quoron("plan", "quickstart", *asked)
    assert said.code == 0
    assert "AS PRINTED in the paper" in said.out


def test_an_interrupted_simulation_goes_on_to_the_same_bits(place: Path) -> None:
    """Interrupted where somebody presses control-C in round 3."""

    class Impatient(Observer):
        def round_finished(self, event: RoundEvent) -> None:
            if event.round == 2:
                raise KeyboardInterrupt

    whole = package.simulate("quickstart", settings=SMALL)
    with pytest.raises(KeyboardInterrupt):
        package.simulate("quickstart", settings=SMALL, out="cut", observers=[Impatient()])
    assert np.array_equal(package.resume("cut").weights, whole.weights)


@pytest.mark.programs
def test_clients_over_a_network_leave_the_bits_of_a_simulation(quoron: Command) -> None:
    """Sixteen processes and a coordinator over mutual TLS; on Flower's nodes: `tests/flower`."""
    few = ("population.users=16", "population.items_per_user=5", "population.dimension=4", "privacy.epsilon=8")
    asked = (*few, "privacy.delta=1e-3", "algorithm.name=one-pass-dp-sgd", "algorithm.options.rounds=2")
    words = [word for text in asked for word in ("--set", text)]
    assert quoron("simulate", "quickstart", *words, "--out", "here").code == 0
    assert quoron("simulate", "quickstart", *words, "--out", "there", "--engine", "service:clients=16").code == 0
    here, there = (np.load(Path(name) / "model.npz")["model"] for name in ("here", "there"))
    assert np.array_equal(here, there)
