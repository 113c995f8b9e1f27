"""What starts at once stays light: heavy libraries are imported by what needs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quoron_server.algorithms import _PLACES

FAMILIES = {f"quoron_server.algorithms.{place}" for place in (*_PLACES.values(), "two_servers")}
HEAVY = {
    "cryptography",
    "dp_accounting",
    "flwr",
    "grpc",
    "numba",
    "numba.np.linalg",  # of all that numba's compiler knows
    "numpy",
    "pandas",
    "pyarrow",
    "pydantic",
    "scipy",
}


def modules(code: str) -> set[str]:
    """What a fresh Python has imported after `code`."""
    asked = f"import sys\n{code}\nprint(*sys.modules, file=sys.__stdout__)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def loaded(code: str) -> set[str]:
    """The heavy libraries among them."""
    return HEAVY & modules(code)


# What libraries take where it happens to be there, and what a plain install of theirs brings for that.
AT_HAND = {"PyYAML", "cffi", "coverage", "charset-normalizer", "cloudpickle", "colorama", "pycparser"}
NUMBERS = {"llvmlite", "numba", "numpy", "scipy"}
STORE = {"cryptography", "platformdirs"}
SETTINGS = {"annotated-types", "pydantic", "pydantic-core", "typing-extensions", "typing-inspection"}
FRAMES = {"pandas", "pyarrow", "python-dateutil", "six"}  # of who has one
MADE_UP = """
import os, sys, tempfile
os.chdir(tempfile.mkdtemp())
os.environ["QUORON_LEDGER"] = "lifetime.sqlite"
import numpy as np
import quoron
"""
MEAN = "quoron.mean(np.ones((2000, 2)), epsilon=1.0, bound=1.0)"
ROWS = """
given = {"epsilon": 8.0, "delta": 1e-4, "options": {"rounds": 2}, "radius": 1.0, "clip_norm": 1.0}
quoron.train_rows(lambda users, at: np.zeros((len(users), 2)), users=500, dimension=2, **given)
"""
TRAIN = """
import pandas
visits = pandas.DataFrame({"who": np.arange(400) // 2, "age": np.arange(400) % 50, "ill": np.arange(400) % 2})
quoron.train(
    visits, user="who", label="ill", columns={"numeric": {"age": (0, 50)}}, epsilon=8.0, delta=1e-4,
    algorithm="one-pass-dp-sgd", progress=False,
)
"""
DOORS = {  # the distributions that each brings, by name: no database, no gRPC, no Flower, no web framework
    "import": ("import quoron", set()),
    "mean": (MADE_UP + MEAN, NUMBERS | STORE),
    "train_rows": (MADE_UP + ROWS, NUMBERS | STORE | SETTINGS | {"protobuf", "pyarrow"}),
    "train": (MADE_UP + TRAIN, NUMBERS | STORE | SETTINGS | FRAMES | {"protobuf", "rich"}),
}


def brought(code: str, folder: Path) -> set[str]:
    """The distributions of others, by name, of which a fresh Python has imported anything after `code`."""
    asked = f"""import sys
before = set(sys.modules)
{code}
from importlib.metadata import packages_distributions
new = {{name.partition(".")[0] for name, held in sys.modules.items() if held is not None and name not in before}}
print(*{{each for name, some in packages_distributions().items() if name in new for each in some}}, file=sys.__stdout__)
"""
    environment = os.environ | {"TMPDIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, env=environment)
    return {name.replace("_", "-") for name in done.stdout.splitlines()[-1].split()} - {"quoron"}


@pytest.mark.programs
@pytest.mark.parametrize("door", DOORS)
def test_a_door_brings_these_distributions_and_no_others(door: str, tmp_path: Path) -> None:
    code, expected = DOORS[door]
    assert brought(code, tmp_path) - AT_HAND == expected


WITHOUT = ("grpc", "grpc_health", "prometheus_client", "flwr")
ALONE = f"""
import sys
sys.modules.update(dict.fromkeys({WITHOUT!r}))
from quoron.cli.app import EXTRAS, invoke
{MADE_UP}{MEAN}{TRAIN}
assert invoke(["--quiet", "simulate", "quickstart", "--set", "population.users=3000", "--out", "run"]) == 0
assert invoke(["ledger", "show", "--json"]) == 0
assert invoke(["serve"]) == 2
assert EXTRAS["grpc"] == "federation"
"""


@pytest.mark.programs
def test_without_the_extra_all_on_one_machine_works_and_what_needs_it_says_so(tmp_path: Path) -> None:
    """One's own ledger and the files of runs need the standard library alone."""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert '"runs": 2' in done.stdout
    assert "pip install 'quoron[federation]'" in done.stderr


def run(*arguments: str) -> str:
    """Code that carries out a command."""
    return f"from quoron.cli.app import invoke\ninvoke({list(arguments)!r})"


@pytest.mark.parametrize(
    "code",
    [
        "import quoron",
        "import quoron_client",
        "import quoron_privacy",
        "import quoron_server",
        run("--help"),
        run("simulate", "--help"),
        run("--version"),
    ],
)
def test_importing_and_help_bring_none_of_them(code: str) -> None:
    assert loaded(code) == set()


def test_a_health_probe_brings_grpc_alone() -> None:
    assert loaded(run("admin", "health", "127.0.0.1:1", "--insecure")) == {"grpc"}


def test_making_certificates_and_tokens_brings_cryptography_alone() -> None:
    code = "from quoron_server.service import certificates, tokens"
    assert loaded(code) == {"cryptography"}


@pytest.mark.programs
def test_a_plan_brings_no_database_no_table_no_network_and_no_compiler() -> None:
    _, held = (loaded(run("plan", "quickstart", "--json")) for _ in range(2))  # the first may compile
    assert held & {"grpc", "flwr", "pandas", "pyarrow", "dp_accounting", "numba.np.linalg"} == set()


def test_an_algorithm_brings_its_own_family_alone_and_no_compiler() -> None:
    code = "from quoron_server import ALGORITHMS; names = set(ALGORITHMS); ALGORITHMS['one-pass-dp-sgd']"
    assert loaded(code) == {"numpy", "scipy"}
    assert FAMILIES & modules(code) == {"quoron_server.algorithms.noisy"}


@pytest.mark.programs
def test_a_simulation_of_a_named_algorithm_brings_no_other_family(tmp_path: Path) -> None:
    asked = ("--algorithm", "one-pass-dp-sgd", "--set", "population.users=3000", "--out", str(tmp_path / "run"))
    assert FAMILIES & modules(run("--quiet", "simulate", "quickstart", *asked)) == {"quoron_server.algorithms.noisy"}


def test_every_algorithm_is_registered_by_its_own_name() -> None:
    from quoron_server import ALGORITHMS

    assert [info.name for info in ALGORITHMS.values()] == list(ALGORITHMS)
    assert "tracking" not in ALGORITHMS
    with pytest.raises(KeyError, match="tracking"):
        ALGORITHMS["tracking"]


@pytest.mark.programs
def test_a_simulation_of_made_up_users_brings_no_data_frames(tmp_path: Path) -> None:
    small = ("--set", "population.users=3000", "--out", str(tmp_path / "run"))
    held = loaded(run("--quiet", "simulate", "quickstart", *small))
    assert held & {"grpc", "flwr", "pandas", "dp_accounting"} == set()


def test_every_public_name_is_found_where_the_stub_says() -> None:
    import quoron
    import quoron.data
    import quoron_client
    import quoron_client.federation
    import quoron_privacy
    import quoron_server

    for package in (quoron, quoron.data, quoron_client, quoron_client.federation, quoron_privacy, quoron_server):
        for name in package.__all__:
            assert getattr(package, name) is not None
        assert set(package.__all__) <= set(dir(package))


def test_a_module_never_hides_the_public_function_of_its_name() -> None:
    """A submodule called as a public name would take its place once anything imports it."""
    import pkgutil

    import quoron
    import quoron.data
    import quoron_client
    import quoron_privacy
    import quoron_server

    for package in (quoron, quoron.data, quoron_client, quoron_privacy, quoron_server):
        assert not {each.name for each in pkgutil.iter_modules(package.__path__)} & set(package.__all__)
