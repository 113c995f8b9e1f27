"""Change one operator or number of a package at random, run the tests, and list the changes that no test notices.

    scripts/mutants server/quoron_server/algorithms/tracking --number 40
    scripts/mutants privacy/quoron_privacy --number 20 tests/golden tests/contracts

A mutant is tried on a copy of the packages, which comes before the installed ones in PYTHONPATH. Tests are asked in the
order given, the quickest first, and a mutant is killed by the first that fails, or that takes longer than `--seconds`.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("client", "privacy", "server", "simulations", "protos")
TESTS = ("tests/golden", "tests/contracts", "tests/audits")
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
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _nodes(child)
    if isinstance(node, ast.expr):
        yield node


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


def killed_by(mutant: Mutant, copy: Path, tests: list[str], seconds: float) -> str | None:
    """The tests that notice the change; None where none does."""
    place = copy / mutant.path
    original = place.read_bytes()
    place.write_bytes(mutant.applied(original))
    try:
        return first_failing(copy, tests, seconds)
    finally:
        place.write_bytes(original)


def first_failing(copy: Path, tests: list[str], seconds: float) -> str | None:
    """The first of these tests that fails on this copy of the packages; None where all pass."""
    paths = os.pathsep.join(str(copy / package) for package in PACKAGES)
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    for test in tests:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n", "2", test]
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            return f"{test}, by time"
        if done.returncode:
            return test
    return None


def main(arguments: list[str]) -> int:
    """Try the mutants that were drawn, print a line for each, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="a folder or a file, relative to the repository")
    parser.add_argument("tests", nargs="*", default=list(TESTS), help="folders or files of tests, the quickest first")
    parser.add_argument("--number", type=int, default=40, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=0, help="of the draw: the same mutants again")
    parser.add_argument("--seconds", type=float, default=600, help="after which tests count as failed")
    given = parser.parse_intermixed_args(arguments)
    place = ROOT / given.package
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    everything = [mutant for file in files for mutant in mutants_of(file.relative_to(ROOT))]
    if not everything:
        parser.error(f"Expected a package with something to change, got {given.package}.")
    drawn = random.Random(given.seed).sample(everything, min(given.number, len(everything)))
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for package in PACKAGES:
            shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__", "*.nb[ci]"))
        if (failing := first_failing(copy, given.tests, given.seconds)) is not None:
            parser.error(f"Expected tests that pass without a change, got {failing}.")
        for mutant in drawn:
            killer = killed_by(mutant, copy, given.tests, given.seconds)
            survived += killer is None
            old = (ROOT / mutant.path).read_bytes()[mutant.start : mutant.end].decode()
            change = " ".join(f"{old} -> {mutant.text}".split())
            print(
                f"{'SURVIVED' if killer is None else killer:24} {mutant.path}:{mutant.line}  {change[:100]}", flush=True
            )
    print(f"{len(drawn) - survived} of {len(drawn)} were noticed ({len(everything):,} possible, seed {given.seed}).")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
