"""A coordinator that is not trusted with answers gets none, whoever chooses the algorithm."""

import pytest

import quoron
from quoron import config as configs
from quoron.operate.submission import specify
from quoron_privacy.errors import ConfigError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.silos import Silos, in_silos
from quoron_server.specification import make_plan
from small_run import TOML

pytestmark = pytest.mark.usefixtures("planned_once")

UNTRUSTED = ("privacy.trust_server=false",)
LOCAL = {name for name, info in ALGORITHMS.items() if {"local", "two-servers"} & {*info.exposures}}


def test_naming_an_algorithm_that_shows_answers_to_an_untrusted_coordinator_is_refused() -> None:
    wrong = r"two-servers or local with privacy\.trust_server=false, got .*'filtered-sgd'.*looks at single answers"
    with pytest.raises(ConfigError, match=wrong):
        quoron.plan(configs.parse(TOML, settings=["algorithm.name=filtered-sgd", "algorithm.options={}", *UNTRUSTED]))


def test_naming_one_that_two_servers_can_carry_out_plans_it_for_them_and_exposure_local_refuses_it() -> None:
    assert quoron.plan(configs.parse(TOML, settings=UNTRUSTED)).plan.guarantee.exposure == "two-servers"
    with pytest.raises(ConfigError, match=r"exposure local with privacy\.exposure='local', got .*'one-pass-dp-sgd'"):
        quoron.plan(configs.parse(TOML, settings=["privacy.exposure=local"]))
    with pytest.raises(ConfigError, match=r"privacy\.exposure='two-servers' with privacy\.groups=3"):
        quoron.plan(configs.parse(TOML, settings=["privacy.groups=3"]))
    with pytest.raises(ConfigError, match=r"privacy\.groups in 1, 3, 5, 7, 9, got 4"):
        quoron.plan(configs.parse(TOML, settings=["privacy.groups=4"]))
    with pytest.raises(ConfigError, match=r"privacy\.exposure='two-servers' with privacy\.server_epsilon"):
        quoron.plan(configs.parse(TOML, settings=["privacy.server_epsilon=2.0"]))


FEDERATED = """
population = { kind = "table", path = "nobody-reads-this.parquet", user = "who", label = "sick", numeric = { x = [-1.0, 1.0] } }
problem = { items_per_user = 50 }
privacy = { epsilon = 1.0, server_epsilon = 4.0, exposure = "two-servers", delta = 1e-6, quorum = 0.5 }
algorithm = { name = "recentred-sgd" }
"""  # noqa: E501


def test_a_coordinator_makes_the_plan_of_two_servers_that_was_submitted_and_flower_is_refused() -> None:
    config = configs.parse(FEDERATED)
    specified = specify(config, run="summer", users=20_000, seconds=60.0)[0]
    assert specified.exposure == "two-servers"
    plan = make_plan(specified)
    assert plan.guarantee.exposure == "two-servers"
    assert 1.0 < plan.guarantee.epsilon < 4.0
    assert plan.guarantee.quorum is not None
    assert plan.guarantee.quorum.epsilon == 0
    with pytest.raises(ConfigError, match="no exposure two-servers through Flower"):
        specify(config, run="summer", users=20_000, seconds=60.0, whole=True)


def test_silos_of_several_persons_are_refused_with_two_servers() -> None:
    plan = make_plan(specify(configs.parse(FEDERATED), run="summer", users=20_000, seconds=60.0)[0])
    with pytest.raises(ConfigError, match="masks the row of one user"):
        in_silos(plan, Silos.declared(100, 20_000))
