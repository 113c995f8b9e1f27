"""Size and imports of the product, for the bounds of `test_layout` and the layers in `docs/architecture.md`.

Everything is read from the sources, nothing is imported. A subpackage is a package's first entry, a module or a folder;
a family of algorithms is one, too.
"""

import ast
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
FOLDERS = {
    "quoron_protos": "protos",
    "quoron_privacy": "privacy",
    "quoron_client": "client",
    "quoron_server": "server",
    "quoron": "simulations",
}
# Compiled loops, samplers and factorisations: imported on first use by the statement whose words they are made of.
BEHIND = ("_loops", ".noise.samplers", ".prefix.strategies")


@dataclass(frozen=True)
class Arrow:
    """`source` imports `target`, both dotted names of modules."""

    source: str
    target: str
    inside: bool
    """Within a function: reading the head of the module does not tell."""

    typing: bool
    """Under `if TYPE_CHECKING`: never carried out."""

    late: bool = False
    """`OnFirstUse`: carried out when one of its names is first used."""


@dataclass(frozen=True)
class Source:
    """Every module of ours by its dotted name, as text."""

    texts: Mapping[str, str]
    packages: frozenset[str]
    """Names that are folders."""

    @classmethod
    def read(cls, root: Path = ROOT) -> "Source":
        """The sources of a working tree, without generated code."""
        texts, packages = {}, set()
        for package, folder in FOLDERS.items():
            for path in sorted((root / folder / package).rglob("*.py")):
                if path.stem.endswith(("_pb2", "_pb2_grpc")):
                    continue
                parts = path.relative_to(root / folder).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                if parts[-1] == "__init__":
                    packages.add(name)
                texts[name] = path.read_text(encoding="utf-8")
        return cls(texts, frozenset(packages))

    @cached_property
    def arrows(self) -> tuple[Arrow, ...]:
        """Every import of one module of ours by another."""
        return tuple(arrow for name, text in self.texts.items() for arrow in _arrows(name, text, self.texts))

    def lines(self, names: Iterable[str] | None = None) -> int:
        """Lines of these modules, or of all."""
        return sum(len(self.texts[name].splitlines()) for name in (self.texts if names is None else names))

    def closure(self, start: str) -> frozenset[str]:
        """The modules imported with a module: imports inside functions, on first use and for types alone left out."""
        return self._following(start, (arrow for arrow in self.arrows if not (arrow.inside or arrow.late)))

    def reachable(self, start: str) -> frozenset[str]:
        """The modules that a module can import, at once, inside functions or on first use."""
        return self._following(start, self.arrows)

    def _following(self, start: str, arrows: Iterable[Arrow]) -> frozenset[str]:
        """Modules along these imports; a folder's `__init__` counts where it holds code."""
        ahead: dict[str, set[str]] = {start: set()}
        for arrow in arrows:
            if not arrow.typing:
                ahead.setdefault(arrow.source, set()).add(arrow.target)
        seen = {start} | _reached(start, ahead)
        return frozenset(name for name in seen if name not in self.packages or self.lines([name]) > 1)

    def subpackage(self, name: str) -> str:
        """`quoron_server.algorithms.whitened.plan` stands in `quoron_server.algorithms.whitened`."""
        parts = name.split(".")
        depth = 3 if parts[:2] == ["quoron_server", "algorithms"] else 2
        return ".".join(parts[:depth])

    def between_subpackages(self) -> frozenset[tuple[str, str]]:
        """Pairs of subpackages of which the first imports the second, anywhere in a module."""
        pairs = {
            (self.subpackage(arrow.source), self.subpackage(arrow.target)) for arrow in self.arrows if not arrow.typing
        }
        whole = {each for each in self.packages if each.count(".") == 0}  # a package's list of names
        return frozenset((a, b) for a, b in pairs if a != b and not {a, b} & whole)

    def module_rings(self) -> frozenset[frozenset[str]]:
        """Modules that import each other in a ring, inside functions and on first use too; what does as a statement
        says may know the statement (`BEHIND`)."""
        told = (arrow for arrow in self.arrows if not (arrow.typing or (arrow.late and arrow.target.endswith(BEHIND))))
        return _rings({(arrow.source, arrow.target) for arrow in told})

    def subpackage_rings(self) -> frozenset[frozenset[str]]:
        """Subpackages that import each other in a ring; without one they form layers."""
        return _rings(self.between_subpackages())

    def layers(self, package: str) -> list[list[str]]:
        """Subpackages of a package, the lowest first, each as low as what it imports lets it stand."""
        pairs = {pair for pair in self.between_subpackages() if all(each.startswith(f"{package}.") for each in pair)}
        left, found = {name for pair in pairs for name in pair}, list[list[str]]()
        while left:
            lowest = {name for name in left if not any(a == name and b in left for a, b in pairs)}
            assert lowest, f"a ring of subpackages among {sorted(left)}"
            found.append(sorted(lowest))
            left -= lowest
        return found


def _arrows(name: str, text: str, known: Mapping[str, str]) -> Iterator[Arrow]:
    yield from _on_first_use(name, text, known)
    for node, inside, typing in imports(text):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in known:
                    yield Arrow(name, alias.name, inside, typing)
            continue
        assert node.level == 0, f"{name}: relative import"
        full = {f"{node.module}.{alias.name}" for alias in node.names}
        for target in {imported if imported in known else str(node.module) for imported in full}:
            if target in known and target != name:
                yield Arrow(name, target, inside, typing)


def _on_first_use(name: str, text: str, known: Mapping[str, str]) -> Iterator[Arrow]:
    for node in ast.walk(ast.parse(text)) if "OnFirstUse(" in text else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "OnFirstUse":
            target = str(ast.literal_eval(node.args[0]))
            if target in known:
                yield Arrow(name, target, False, False, late=True)


@cache
def imports(text: str) -> tuple[tuple[ast.Import | ast.ImportFrom, bool, bool], ...]:
    """The import statements of a module, each with whether it is inside a function and whether for types alone."""
    return tuple(_imports(ast.parse(text), False, False))


def _imports(node: ast.AST, inside: bool, typing: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, inside, typing
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _imports(child, inside, True)
        elif not isinstance(child, ast.expr):  # in which nothing is imported
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _imports(child, inside or function, typing)


def _rings(pairs: Iterable[tuple[str, str]]) -> frozenset[frozenset[str]]:
    ahead: dict[str, set[str]] = {}
    for a, b in pairs:
        ahead.setdefault(a, set()).add(b)
    reach = {name: _reached(name, ahead) for name in ahead}
    looped = [name for name in ahead if name in reach[name]]
    return frozenset(
        frozenset({name, *(other for other in looped if other in reach[name] and name in reach[other])})
        for name in looped
    )


def _reached(start: str, ahead: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = [*ahead[start]]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(ahead.get(name, ()))
    return seen


def distributions() -> frozenset[str]:
    """What a plain install brings: quoron, what it requires without extras, what that requires, and so on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    seen = {(str(project["name"]), "")}
    waiting = [
        (canonicalize_name(each.name), extra)
        for each in map(Requirement, project["dependencies"])
        for extra in ("", *each.extras)
    ]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for each in map(Requirement, metadata.requires(name) or ()):
            if each.marker is None or each.marker.evaluate({"extra": extra}):
                waiting += [(canonicalize_name(each.name), wanted) for wanted in ("", *each.extras)]
    return frozenset(name for name, _ in seen)


@cache
def source() -> Source:
    """The sources of this working tree, read once."""
    return Source.read()
