"""The house rules that keep the five packages apart."""

import ast
import re
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from measures import FOLDERS, ROOT, Reading, distributions, house

# The ratchet. Whoever raises a number does it here, where it is seen, and says why in the commit; whoever shortens what
# is measured by a twentieth lowers the mark with it. `scripts/gen_house.py` prints these into docs/architecture.md.
WAYS = {  # what must be read before a module can be: lines, modules
    "quoron_server.plan": (1185, 7),
    "quoron_server.rounds": (2386, 15),
    "quoron_server.algorithms.accelerated_erm.entry": (7187, 47),
    "quoron_server.algorithms.accelerated_erm.method": (4891, 31),
    "quoron_server.algorithms.local_model.entry": (4626, 35),
    "quoron_server.algorithms.local_model.method": (3114, 24),
    "quoron_server.algorithms.localised.filtered": (5096, 35),
    "quoron_server.algorithms.localised.grouped": (4120, 28),
    "quoron_server.algorithms.localised.median": (4482, 29),
    "quoron_server.algorithms.localised.method": (2018, 14),
    "quoron_server.algorithms.localised.phased": (4933, 35),
    "quoron_server.algorithms.localised.soft_filtered": (4507, 30),
    "quoron_server.algorithms.mean.entry": (5116, 38),
    "quoron_server.algorithms.mean.method": (2980, 23),
    "quoron_server.algorithms.noisy.dp_sgd": (4773, 36),
    "quoron_server.algorithms.noisy.group_dp_sgd": (4875, 35),
    "quoron_server.algorithms.noisy.method": (2620, 19),
    "quoron_server.algorithms.noisy.one_pass": (4292, 33),
    "quoron_server.algorithms.noisy.sgd": (3658, 27),
    "quoron_server.algorithms.one_epoch.family": (5837, 42),
    "quoron_server.algorithms.one_epoch.method": (3185, 22),
    "quoron_server.algorithms.one_round.entry": (3340, 27),
    "quoron_server.algorithms.one_round.method": (2019, 14),
    "quoron_server.algorithms.outlier_gd.entry": (7414, 48),
    "quoron_server.algorithms.outlier_gd.method": (4885, 31),
    "quoron_server.algorithms.outlier_iterates.entry": (4678, 32),
    "quoron_server.algorithms.outlier_iterates.method": (3428, 23),
    "quoron_server.algorithms.phased_erm.entry": (5310, 38),
    "quoron_server.algorithms.phased_erm.method": (2412, 17),
    "quoron_server.algorithms.tracking.entry": (5466, 36),
    "quoron_server.algorithms.tracking.method": (3817, 24),
    "quoron_server.algorithms.two_servers.method": (5443, 37),
    "quoron_server.algorithms.whitened.entry": (6273, 42),
    "quoron_server.algorithms.whitened.method": (4907, 31),
    "quoron_server.algorithms.winsorised.entry": (4464, 33),
    "quoron_server.algorithms.winsorised.method": (2936, 22),
    "quoron_server.service.coordinator": (17653, 110),
    "quoron_client.federation.session": (6509, 49),
    "quoron_client.federation.client": (11844, 82),
    "quoron.mean": (4749, 31),
    "quoron.training.run": (25974, 161),
    "quoron.doors.training": (27171, 168),
    "quoron.doors.simulating": (18648, 123),
    "quoron.sklearn": (26967, 166),
    "quoron.cli.app": (3781, 24),
}
COUNTS = {
    "pairs of rooms that import each other": 0,
    "rings of rooms": 0,
    "rings of modules": 0,
    "imports of our own inside functions": 62,
    "modules that are imported when first used": 88,
    "imports of another folder's private names": 0,
    "fields of AlgorithmInfo": 14,
    "public names": 139,
    "distributions of a plain install": 67,
    "lines of the product": 97895,
}
READ = {  # what must really be read, definition by definition (`measures.Reading`): lines, definitions
    "quoron.doors.training.train": (22706, 1321),
    "quoron_server.algorithms.localised.method": (1352, 62),
    "quoron_server.algorithms.tracking.method": (2698, 114),
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


def measured() -> dict[str, int]:
    """What the counts are in this working tree; imports only what it must."""
    from quoron_server.algorithms import AlgorithmInfo

    here = house()
    return {
        "pairs of rooms that import each other": len(here.two_way_pairs()),
        "rings of rooms": len(here.rings_of_rooms()),
        "rings of modules": len(here.circles()),
        "imports of our own inside functions": len(here.inside()),
        "modules that are imported when first used": len(here.late()),
        "imports of another folder's private names": len(here.private()),
        "fields of AlgorithmInfo": len(fields(AlgorithmInfo)),
        "public names": sum(len(import_module(package).__all__) for package in FOLDERS if package != "quoron_protos"),
        "distributions of a plain install": len(distributions()),
        "lines of the product": here.lines(),
    }


def within_its_mark(now: int, mark: int) -> bool:
    """Not above it, and not so far below that the mark says nothing."""
    return 0.95 * mark <= now <= mark


@pytest.mark.parametrize("module", WAYS)
def test_ways_grow_no_longer(module: str) -> None:
    """Of modules there may be one fewer than the mark says, of lines a twentieth."""
    (lines, modules), (most_lines, most_modules) = house().way(module), WAYS[module]
    text = f"{module}: {lines:,} lines in {modules} modules, marks {most_lines:,} and {most_modules}"
    assert within_its_mark(lines, most_lines), text
    assert most_modules - 1 <= modules <= most_modules, text


@pytest.mark.parametrize("start", READ)
def test_what_must_really_be_read_grows_no_longer(start: str) -> None:
    """Of definitions, too, a twentieth."""
    (lines, definitions), (most_lines, most_definitions) = Reading(house()).way(start), READ[start]
    told = f"{start}: {lines:,} lines in {definitions} definitions, marks {most_lines:,} and {most_definitions}"
    assert within_its_mark(lines, most_lines), told
    assert within_its_mark(definitions, most_definitions), told


def test_names_lead_from_one_definition_to_the_next() -> None:
    """Imports inside functions and `module.name` do; values of a module and texts do not, nor what nobody names."""
    texts = {
        "quoron": "",
        "quoron.top": "from quoron import low\nfrom quoron.room import Kept\ndef go(x: Kept):\n    return low.used(x)",
        "quoron.low": "def used(x):\n    from quoron.far import deep\n    return deep(x)\n\ndef unused(): ...",
        "quoron.far": "deep = 1\n\nclass Deep: ...",
        "quoron.room": "",
        "quoron.room.inner": "class Kept:\n    def method(self):\n        return 1\n\nVALUE = Kept()",
    }
    stubs = {"quoron.room": "from .inner import Kept as Kept"}
    small = Reading(type(house())(texts, frozenset({"quoron", "quoron.room"}), stubs))
    assert small.reached("quoron.top.go") == {
        ("quoron.top", "go"),
        ("quoron.low", "used"),
        ("quoron.room.inner", "Kept"),
    }
    assert small.way("quoron.top.go") == (8, 3)


def test_counts_of_the_house_stay_at_their_marks() -> None:
    assert {
        name: (now, COUNTS[name]) for name, now in measured().items() if not within_its_mark(now, COUNTS[name])
    } == {}


# Loops of the accelerated solver are the solver, and one forecast's are its model: both are read as such.
WITH_LOOPS = {"accelerated_erm/acsa.py", "one_epoch/forecast.py"}


def test_no_statement_needs_a_compiler() -> None:
    """Loops of a mechanism or a forecast stand in NAME_loops.py, which is imported when one of them is first called."""
    compiled = {
        module
        for package in ("quoron_privacy", "quoron_server")
        for module in modules(package)
        if any(within(name, {"numba", "llvmlite", "quoron_privacy.kernels.shipped"}) for name in imported(module))
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
    assert {path.name for path in own} == {"shipped.py"}


def test_who_reads_a_run_reads_no_account_of_it() -> None:
    """What it costs is said beside `verify`: neither loops nor plans need the accounts that find or check noise."""
    accounts = {f"quoron_privacy.accounts.{name}" for name in ("pair", "moved", "subsampling", "item_sampling")}
    runs = {name for name in WAYS if name.endswith((".method", "_server.plan", "_server.rounds"))}
    assert {name for name in runs if house().closure(name) & accounts} == set()


def test_every_loop_and_every_algorithm_has_a_mark() -> None:
    families = "quoron_server.algorithms."
    loops = {name for name in house().texts if name.startswith(families) and name.endswith(".method")}
    whole = {name for name in house().texts if name.startswith(families) and name.endswith(".entry")}
    assert loops | whole <= set(WAYS)


def test_a_way_is_what_must_be_read() -> None:
    """Heads of modules count, imports inside functions and for types do not, nor does a folder that says nothing."""
    texts = {
        "quoron": '"""Nothing."""',
        "quoron.top": "from quoron.low import a\nimport quoron.side",
        "quoron.low": "def f():\n    from quoron.far import b",
        "quoron.side": "if TYPE_CHECKING:\n    from quoron.far import b",
        "quoron.far": "from quoron import low",
        "quoron._own": "from quoron.low import _hidden\nfar = OnFirstUse('quoron.far')",
        "quoron.room.inner": "from quoron._own import c",
    }
    small = type(house())(texts, frozenset({"quoron"}))
    assert small.closure("quoron.top") == {"quoron.top", "quoron.low", "quoron.side"}
    assert small.circles() == {frozenset({"quoron.low", "quoron.far"})}
    assert small.two_way_pairs() == {("quoron.far", "quoron.low")}
    assert [(each.source, each.target) for each in small.inside()] == [("quoron.low", "quoron.far")]
    assert [each.source for each in small.private()] == ["quoron.room.inner"]
    assert [(each.source, each.target) for each in small.late()] == [("quoron._own", "quoron.far")]
    assert small.closure("quoron._own") == {"quoron._own", "quoron.low"}


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
    "simulations/quoron/local/keeper.py",
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
