"""Layers of the five packages, and upper bounds on their size."""

import ast
import re
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from measures import FOLDERS, ROOT, distributions, imports, source
from quoron import config

# Upper bounds: a change may lower them, none may raise them. Printed into docs/architecture.md.
BOUNDS = {
    "lines of the product": 78_858,
    "import rings": 0,
    "distributions of a plain install": 29,
    "modules that `quoron.train` can reach": 134,
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
    for node, _, _ in imports(module.read_text(encoding="utf-8")):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def within(name: str, allowed: set[str]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in allowed)


def test_a_package_imports_only_the_packages_it_may() -> None:
    for package, module in ((name, module) for name in FOLDERS for module in modules(name)):
        ours = {name for name in imported(module) if name.split(".")[0] in FOLDERS}
        forbidden = {name for name in ours if not within(name, MAY_IMPORT[package])}
        assert not forbidden, f"{module.relative_to(ROOT)} imports {sorted(forbidden)}"


def test_nothing_imports_the_command_line_but_its_entry_point() -> None:
    for package in FOLDERS:
        for module in modules(package):
            if module.name not in ("__main__.py", "app.py"):
                assert not any(within(name, {"quoron.cli.app"}) for name in imported(module)), module


def measured() -> dict[str, int]:
    """The bounded figures of this working tree."""
    code = source()
    return {
        "lines of the product": code.lines(),
        "import rings": len(code.module_rings()) + len(code.subpackage_rings()),
        "distributions of a plain install": len(distributions()),
        "modules that `quoron.train` can reach": len(code.reachable("quoron.api.training")),
    }


def test_size_and_imports_stay_within_their_bounds() -> None:
    assert {name: (now, BOUNDS[name]) for name, now in measured().items() if now > BOUNDS[name]} == {}


# Loops of the accelerated solver are the solver, and one forecast's are its model: both are read as such.
WITH_LOOPS = {"algorithms/acsa.py", "algorithms/one_epoch.py"}


def test_a_configuration_has_no_more_keys_than_these() -> None:
    """A key of several kinds of population counts once, as does one that is a table, and algorithms' options."""
    kinds = (config.SyntheticSection, config.TableSection)
    keys = {f"population.{key}" for kind in kinds for key in kind.model_fields}
    for name, section in config.Config.model_fields.items():
        if name != "population":
            assert isinstance(section.annotation, type)
            keys |= {f"{name}.{key}" for key in section.annotation.model_fields}
    assert len(keys) <= 60, sorted(keys)


def test_no_statement_needs_a_compiler() -> None:
    """Loops of a mechanism or a forecast stand in NAME_loops.py, which is imported when one of them is first called."""
    compiled = {
        module
        for package in ("quoron_privacy", "quoron_server")
        for module in modules(package)
        if any(within(name, {"numba", "llvmlite", "quoron_privacy.kernels.prebuilt"}) for name in imported(module))
    }
    beside = {module for module in compiled if module.name.endswith("_loops.py")}
    named = {"samplers.py", "gaussian_proposals.py"}  # behind the streams
    kernels = {module for module in compiled if module.parent.name == "kernels"}
    left = {"/".join(module.parts[-2:]) for module in compiled - beside - kernels if module.name not in named}
    assert left == WITH_LOOPS
    assert all(module.with_name(module.name.replace("_loops", "")).is_file() for module in beside)


def test_every_loop_is_looked_for_among_those_that_an_installation_brings() -> None:
    taken = re.compile(r"^from numba import .*\b(njit|cfunc)\b|\bnumba\.(njit|cfunc)\b", re.MULTILINE)
    own = {path for package in FOLDERS for path in modules(package) if taken.search(path.read_text(encoding="utf-8"))}
    assert {path.name for path in own} == {"prebuilt.py"}


def test_loops_and_plans_use_no_privacy_accountant() -> None:
    """The accountants that find or check noise are needed beside `verify` only: no class that runs names one."""
    accountants = {"gdp", "pair", "sensitivity_recount", "subsampling"}
    loops = 0
    for name, text in source().texts.items():
        if not name.startswith("quoron_server.algorithms."):
            continue
        tree = ast.parse(text)
        given = [each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom) and each.module]
        known = {
            alias.asname or alias.name
            for each in given
            for alias in each.names
            if (each.module == "quoron_privacy.accounts" and alias.name in accountants)
            or each.module in {f"quoron_privacy.accounts.{own}" for own in accountants}
        }
        for found in (each for each in tree.body if isinstance(each, ast.ClassDef)):
            if {own.name for own in found.body if isinstance(own, ast.FunctionDef)} & {"update", "estimate"}:
                loops += 1
                assert {each.id for each in ast.walk(found) if isinstance(each, ast.Name)} & known == set(), found.name
    assert loops > 20
    whole = {f"quoron_privacy.accounts.{own}" for own in accountants - {"gdp"}}
    assert {name for name in ("quoron_server.plan", "quoron_server.rounds") if source().closure(name) & whole} == set()


def test_imports_inside_functions_and_on_first_use_are_reachable_and_for_types_alone_are_not() -> None:
    texts = {
        "quoron": '"""Nothing."""',
        "quoron.top": "from quoron.low import a\nimport quoron.side",
        "quoron.low": "def f():\n    from quoron.far import b",
        "quoron.side": "if TYPE_CHECKING:\n    from quoron.late import b",
        "quoron.far": "from quoron import low",
        "quoron.own": "late = OnFirstUse('quoron.late')",
        "quoron.late": "",
    }
    small = type(source())(texts, frozenset({"quoron"}))
    assert small.closure("quoron.top") == {"quoron.top", "quoron.low", "quoron.side"}
    assert small.reachable("quoron.top") == {"quoron.top", "quoron.low", "quoron.side", "quoron.far"}
    assert small.reachable("quoron.own") == {"quoron.own", "quoron.late"}
    assert small.module_rings() == {frozenset({"quoron.low", "quoron.far"})}
    assert small.subpackage_rings() == {frozenset({"quoron.low", "quoron.far"})}


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
    "simulations/quoron/federation/programs.py",
    "tests/federation/container.py",
    "tests/federation/store_scenario.py",
}
FORKING = {"fork", "forkpty", "ForkProcess", "ProcessPoolExecutor", "Pool"}
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


def test_nothing_imports_a_framework_but_its_own_folder() -> None:
    for module in (module for package in FOLDERS for module in modules(package)):
        own = set(module.relative_to(ROOT).parts)
        others = {whole for name in OPTIONAL if name not in own for whole in (name, f"quoron.{name}")}
        assert not any(within(each, others) for each in imported(module)), module


@pytest.mark.parametrize("name", OPTIONAL)
def test_without_its_framework_a_folder_says_what_to_install(name: str) -> None:
    """The default suite has none; where somebody has installed it, there is nothing to say."""
    if find_spec(name) is None:
        with pytest.raises(ModuleNotFoundError, match=rf"pip install 'quoron\[{name}\]'"):
            import_module(f"quoron.{name}")
