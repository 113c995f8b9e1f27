"""What starts at once stays light: heavy libraries are imported by what needs them."""

import subprocess
import sys

import pytest

HEAVY = {
    "cryptography",
    "dp_accounting",
    "flwr",
    "grpc",
    "matplotlib",
    "numba",
    "numpy",
    "pyarrow",
    "pydantic",
    "scipy",
    "sqlalchemy",
}


def loaded(code: str) -> set[str]:
    """The heavy libraries that a fresh Python has imported after `code`."""
    asked = f"import sys\n{code}\nprint(*sorted({HEAVY!r} & set(sys.modules)), file=sys.__stdout__)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()) if done.stdout.strip() else set()


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
    assert loaded(run("health", "127.0.0.1:1", "--insecure")) == {"grpc"}


def test_making_certificates_and_tokens_brings_cryptography_alone() -> None:
    code = "from quoron_server.service import certificates, revocation, tokens"
    assert loaded(code) == {"cryptography"}


@pytest.mark.programs
def test_a_plan_brings_no_database_no_table_no_pictures_and_no_network() -> None:
    held = loaded(run("plan", "quickstart", "--json"))
    assert held & {"sqlalchemy", "matplotlib", "grpc", "flwr", "pyarrow", "dp_accounting"} == set()


def test_every_public_name_is_found_where_the_stub_says() -> None:
    import quoron
    import quoron.populations
    import quoron_client
    import quoron_client.federation
    import quoron_privacy
    import quoron_server

    for package in (quoron, quoron.populations, quoron_client, quoron_client.federation, quoron_privacy, quoron_server):
        for name in package.__all__:
            assert getattr(package, name) is not None
        assert set(package.__all__) <= set(dir(package))


def test_a_module_never_hides_the_public_function_of_its_name() -> None:
    """A submodule called as a public name would take its place once anything imports it."""
    import pkgutil

    import quoron
    import quoron.populations
    import quoron_client
    import quoron_privacy
    import quoron_server

    for package in (quoron, quoron.populations, quoron_client, quoron_privacy, quoron_server):
        assert not {each.name for each in pkgutil.iter_modules(package.__path__)} & set(package.__all__)
