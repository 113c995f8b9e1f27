"""The house rules that keep the five packages apart."""

import ast
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = {
    "quoron_protos": "protos",
    "quoron_privacy": "privacy",
    "quoron_client": "client",
    "quoron_server": "server",
    "quoron": "simulations",
}
MAY_IMPORT = {
    "quoron_protos": {"quoron_protos"},
    "quoron_privacy": {"quoron_privacy"},
    "quoron_client": {"quoron_client", "quoron_privacy", "quoron_protos"},
    "quoron_server": {
        "quoron_server",
        "quoron_privacy",
        "quoron_protos",
        "quoron_client.protocol",
        "quoron_client.losses",
        "quoron_client.data.encoding",
        "quoron_client.durable",
    },
    "quoron": set(FOLDERS),
}


def modules(package: str) -> list[Path]:
    return sorted((ROOT / FOLDERS[package] / package).rglob("*.py"))


@cache
def imported(module: Path) -> set[str]:
    """Dotted names of everything a module imports; `from a import b` counts as a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def within(name: str, allowed: set[str]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in allowed)


@pytest.mark.parametrize("package", FOLDERS)
def test_a_package_imports_only_the_rooms_it_may(package: str) -> None:
    for module in modules(package):
        ours = {name for name in imported(module) if name.split(".")[0] in FOLDERS}
        forbidden = {name for name in ours if not within(name, MAY_IMPORT[package])}
        assert not forbidden, f"{module.relative_to(ROOT)} imports {sorted(forbidden)}"


def test_nothing_imports_the_command_line_but_its_entry_point() -> None:
    for package in FOLDERS:
        for module in modules(package):
            if module.name not in ("__main__.py", "app.py"):
                assert not any(within(name, {"quoron.cli.app"}) for name in imported(module)), module


def test_modules_stay_short_enough_to_read() -> None:
    for package in FOLDERS:
        for module in modules(package):
            if not module.name.endswith(("_pb2.py", "_pb2_grpc.py")):
                assert len(module.read_text(encoding="utf-8").splitlines()) <= 450, module


def test_every_package_says_that_it_is_typed() -> None:
    for package, folder in FOLDERS.items():
        assert (ROOT / folder / package / "py.typed").is_file()


def test_versions_agree() -> None:
    import tomllib

    import quoron

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert quoron.__version__ == declared
    assert f"version: {declared}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"## {declared}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


# Programs of one thread. Where gRPC is at work, as it may be in any process of the tests or of a coordinator, the child
# of a fork aborts; `subprocess` forks, too, to run something before the program or to change its user (use setpriv).
MAY_FORK = {
    "simulations/quoron/sharding/worker.py",
    "tests/federation/container.py",
    "tests/federation/store_scenario.py",
}
FORKING = {"fork", "forkpty", "ProcessPoolExecutor", "Pool"}
FORKING_OPTIONS = {"preexec_fn", "user", "group", "extra_groups"}


def forks(module: Path) -> set[str]:
    """What forks in a module: names called, and options of subprocess."""
    text = module.read_text(encoding="utf-8")
    if not any(word in text for word in FORKING | {"subprocess"}):
        return set()  # most files: nothing to parse
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    named = [(call, getattr(call.func, "attr", getattr(call.func, "id", ""))) for call in calls]
    started = [call for call, name in named if name in {"Popen", "run", "call", "check_call", "check_output"}]
    whose = {id(call) for call in started if ast.unparse(call.func).startswith("subprocess.")}
    options = {keyword.arg for call in started if id(call) in whose for keyword in call.keywords if keyword.arg}
    return {name for _, name in named if name in FORKING} | (options & FORKING_OPTIONS)


def test_no_process_forks_that_may_have_threads() -> None:
    folders = [*FOLDERS.values(), "tests", "examples", "benchmarks", "scripts"]
    found = {path for folder in folders for path in (ROOT / folder).rglob("*.py") if forks(path)}
    assert {str(path.relative_to(ROOT)) for path in found} == MAY_FORK


def test_what_forks_is_seen(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    for line in ("os.fork()", "subprocess.run(words, user=65534)", "x(pty.forkpty())"):
        module.write_text(line)
        assert forks(module), line
    module.write_text("subprocess.run(words, check=True); plan(user='patient')")
    assert not forks(module)


OPTIONAL = ("torch", "jax")  # frameworks that a folder of the same name needs, and nothing else


@pytest.mark.parametrize("name", OPTIONAL)
def test_nothing_imports_a_framework_but_its_own_folder(name: str) -> None:
    ours = ROOT / "simulations" / "quoron" / name
    for package in FOLDERS:
        for module in modules(package):
            if not module.is_relative_to(ours):
                assert not any(within(each, {name, f"quoron.{name}"}) for each in imported(module)), module


@pytest.mark.parametrize("name", OPTIONAL)
def test_without_its_framework_a_folder_says_what_to_install(name: str) -> None:
    """The default suite has none; where somebody has installed it, there is nothing to say."""
    if find_spec(name) is None:
        with pytest.raises(ModuleNotFoundError, match=rf"pip install 'quoron\[{name}\]'"):
            import_module(f"quoron.{name}")
