"""Change one operator or number of some packages at random, and list the changes that no test notices.

    scripts/mutants server/quoron_server/algorithms/tracking --number 40
    scripts/mutants privacy server/quoron_server/rounds.py --number 20 --tests tests/golden tests/contracts

A mutant is tried on a copy of the packages, which comes before the installed ones in PYTHONPATH. All tests run once
first, to see which of them reach which line and how long they take. A mutant is then shown to the tests that reach its
line, the quickest first, until a quarter of --seconds is full; one that imports alone execute, to all of its file; one
of a compiled loop, whose lines no tracer sees, to those that reach a line that calls a loop of its file.

Left out is what changes no behaviour, or none that a test could be sure of: compiled kernels (they are shipped as they
were compiled); `strict=` of zip and what only describes a class or a column (`repr=`, `slots=`, `nullable=` ...);
numbers below 1e-6, which are slacks of rounding.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from queue import Queue

import pytest
from coverage import Coverage, CoverageData

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("client", "privacy", "server", "simulations", "protos")
TESTS = ("tests/golden", "tests/contracts", "tests/audits", "tests/federation")
LEFT_OUT = ("kernels", "quoron_protos", "presets")
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
DESCRIBING = ("strict", "repr", "slots", "frozen", "kw_only", "compare", "nullable", "autoincrement", "index")
SLACK = 1e-6
NAMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "ceil": "floor", "floor": "ceil"}


@dataclass(frozen=True)
class Mutant:
    """One expression of a file, and what stands in its place."""

    path: Path  # relative to the root
    line: int
    start: int  # in bytes of the file
    end: int
    text: str

    def applied(self, source: bytes) -> bytes:
        """The file with the change."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants_of(path: Path) -> Iterator[Mutant]:
    """All changes of one file, but of texts, annotations, errors and decorators."""
    source = (ROOT / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _nodes(ast.parse(source)):
        for changed in _changes(node):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
            yield Mutant(path, node.lineno, start, end, f"({ast.unparse(changed)})")


def _nodes(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if (isinstance(node, ast.keyword) and node.arg in DESCRIBING) or _is_slack(node):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _nodes(child)
    if isinstance(node, ast.expr):
        yield node


def _is_slack(node: ast.AST) -> bool:
    """1e-12, and 1 + 1e-12."""
    match node:
        case ast.Constant(float() as value):
            return 0 < abs(value) < SLACK
        case ast.BinOp(ast.Constant(), ast.Add() | ast.Sub(), right):
            return _is_slack(right)
    return False


def _changes(node: ast.expr) -> Iterator[ast.expr]:
    """What an expression may become."""
    match node:
        case ast.BinOp(left, operator, right) if type(operator) in SWAPS:
            yield ast.BinOp(left, SWAPS[type(operator)](), right)
        case ast.Compare(left, [operator], comparators) if type(operator) in SWAPS:
            yield ast.Compare(left, [SWAPS[type(operator)]()], comparators)
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(SWAPS[type(operator)](), values)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(float() as value):
            yield ast.Constant(2 * value if value else 1.0)
        case ast.Call(ast.Name(name), arguments, keywords) if name in NAMES:
            yield ast.Call(ast.Name(NAMES[name]), arguments, keywords)
        case ast.Call(ast.Attribute(value, name), arguments, keywords) if name in NAMES:
            yield ast.Call(ast.Attribute(value, NAMES[name]), arguments, keywords)


@dataclass(frozen=True)
class Reached:
    """Which tests reach which lines, and how long they take."""

    data: CoverageData
    copy: Path
    seconds: dict[str, float]  # by pytest's name, `tests/a.py::test_b[c]`

    def tests(self, mutant: Mutant, budget: float) -> list[str]:
        """Those that reach the mutant's line, the quickest first, within a budget of seconds, but at least one."""
        lines = self.data.contexts_by_lineno(str(self.copy / mutant.path))
        if mutant.path.stem.endswith("_loops"):
            here = self._calling(mutant.path)
        else:
            everywhere = {name for names in lines.values() for name in names}
            here = set(lines.get(mutant.line, ())) - {""} or everywhere  # "": while modules are imported
        quickest = sorted((name for name in here if name in self.seconds), key=self.seconds.__getitem__)
        ends = accumulate(self.seconds[name] for name in quickest)
        return [
            name for place, (name, end) in enumerate(zip(quickest, ends, strict=True)) if end <= budget or not place
        ]

    def _calling(self, loops: Path) -> set[str]:
        """Tests that reach a line that calls a loop of this module, or of a module of loops that imports it."""
        texts = {
            path: path.read_text(encoding="utf-8") for part in PACKAGES for path in (self.copy / part).rglob("*.py")
        }
        compiled = {path: text for path, text in texts.items() if path.stem.endswith("_loops")}
        module = self.copy / loops
        within = [text for path, text in compiled.items() if path == module or f".{loops.stem} import" in text]
        names = [name for text in within for name in re.findall(r"^def (\w+)", text, re.MULTILINE)]
        calls = re.compile(rf"\b({'|'.join(names)})\(")
        found = set[str]()
        for path, text in texts.items():
            if "_loops" in text and path not in compiled:
                lines = self.data.contexts_by_lineno(str(path))
                called = [number for number, line in enumerate(text.splitlines(), 1) if calls.search(line)]
                found.update(*(lines.get(number, ()) for number in called))
        return found


class Durations:
    """Pytest's plugin that says to coverage which test runs, and notes how long it takes."""

    def __init__(self, measured: Coverage) -> None:
        self.measured, self.seconds = measured, defaultdict[str, float](float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase of a test to what it takes."""
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            raise SystemExit(f"Expected tests that pass without a change, got {report.nodeid}: {report.longreprtext}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Every cell of an audit that does not take minutes, also those that the default tests leave out."""
        for item in items:
            cell = (
                item.callspec.params.get("cell")
                if isinstance(item, pytest.Function) and hasattr(item, "callspec")
                else None
            )
            if cell is not None and not cell.slow:
                item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "slow"]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Lines that are executed now are this test's."""
        self.measured.switch_context(item.nodeid)
        return (yield)


def reach(copy: Path, tests: list[str]) -> None:
    """Run the tests in this process and write what they reach beside the copy."""
    measured = Coverage(data_file=str(copy / "reached"), source=[str(copy)])
    measured.start()
    durations = Durations(measured)
    code = pytest.main(["-q", "-n0", "-p", "no:cacheprovider", "-p", "no:randomly", *tests], plugins=[durations])
    measured.stop()
    measured.save()
    if code:
        raise SystemExit(int(code))
    (copy / "seconds.json").write_text(json.dumps(durations.seconds), encoding="utf-8")


def environment(copy: Path) -> dict[str, str]:
    """Of processes that import this copy of the packages."""
    paths = os.pathsep.join(str(copy / package) for package in PACKAGES)
    return os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}


def killed_by(mutant: Mutant, copy: Path, tests: list[str], seconds: float) -> str | None:
    """The test that notices the change; None where none does in this time."""
    place = copy / mutant.path
    original = place.read_bytes()
    place.write_bytes(mutant.applied(original))
    chosen = copy / "chosen"
    chosen.write_text("\n".join(tests), encoding="utf-8")
    options = ["-m", "pytest", "-xqrfE", "-n0", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", ""]
    command = [sys.executable, *options, f"@{chosen}"]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment(copy), capture_output=True, timeout=seconds, text=True)
    except subprocess.TimeoutExpired:
        return "time"
    finally:
        place.write_bytes(original)
    if not done.returncode:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    return failed[1] if failed else f"exit status {done.returncode}"


def copied(folder: Path) -> Path:
    """A copy of the packages."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "*.nb[ci]"))
    return folder


def main(arguments: list[str]) -> int:
    """Try the mutants that were drawn, print a line for each, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", type=Path, nargs="*", help="folders or files, relative to the repository")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="folders or files of tests")
    parser.add_argument("--number", type=int, default=40, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=0, help="of the draw: the same mutants again")
    parser.add_argument(
        "--seconds", type=float, default=600, help="after which a test hangs; a quarter of it is what tests may take"
    )
    parser.add_argument("--processes", type=int, default=2, help="mutants at a time")
    parser.add_argument("--reach", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.reach:
        reach(given.reach, given.tests)
        return 0
    files = sorted(
        file
        for package in given.packages
        for file in ([ROOT / package] if package.suffix else (ROOT / package).rglob("*.py"))
        if not set(LEFT_OUT) & set(file.parts)
    )
    everything = [mutant for file in files for mutant in mutants_of(file.relative_to(ROOT))]
    if not everything:
        parser.error(f"Expected packages with something to change, got {', '.join(map(str, given.packages))}.")
    drawn = random.Random(given.seed).sample(everything, min(given.number, len(everything)))
    with tempfile.TemporaryDirectory() as folder:
        first = copied(Path(folder) / "0")
        command = [sys.executable, __file__, "--reach", str(first), "--tests", *given.tests]
        subprocess.run(command, cwd=ROOT, env=environment(first), check=True, stdout=subprocess.DEVNULL)
        data = CoverageData(str(first / "reached"))
        data.read()
        reached = Reached(data, first, json.loads((first / "seconds.json").read_text(encoding="utf-8")))
        copies = Queue[Path]()
        for number in range(given.processes):
            copies.put(first if number == 0 else copied(Path(folder) / str(number)))

        def tried(mutant: Mutant) -> str | None:
            """Who notices it, on a copy that nobody else uses."""
            tests = reached.tests(mutant, given.seconds / 4)
            copy = copies.get()
            try:
                return killed_by(mutant, copy, tests, given.seconds) if tests else None
            finally:
                copies.put(copy)

        survived = 0
        with ThreadPoolExecutor(given.processes) as pool:
            for mutant, killer in zip(drawn, pool.map(tried, drawn), strict=True):
                survived += killer is None
                old = (ROOT / mutant.path).read_bytes()[mutant.start : mutant.end].decode()
                change = " ".join(f"{old} -> {mutant.text}".split())[:100]
                print(f"{killer or 'SURVIVED'}\t{mutant.path}:{mutant.line}\t{change}", flush=True)
    print(f"{len(drawn) - survived} of {len(drawn)} were noticed ({len(everything):,} possible, seed {given.seed}).")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
