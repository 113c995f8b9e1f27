"""How far a reader must walk: what `test_layout` holds to its marks and `docs/architecture.md` prints.

Everything is read from the sources, nothing is imported: an arrow is an `import` of a module of ours. A room is a
folder's first entry, a module or a folder; a family of algorithms is one, too.
"""

import ast
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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
BEHIND = ("_loops", ".noise.samplers", ".prefix.ways", ".prefix.returning")


@dataclass(frozen=True)
class Arrow:
    """`source` imports `target`, both dotted names of modules."""

    source: str
    target: str
    inside: bool
    """Within a function: reading the head of the module does not tell."""

    typing: bool
    """Under `if TYPE_CHECKING`: never carried out."""

    names: tuple[str, ...]

    late: bool = False
    """`OnFirstUse`: carried out when one of its names is first used."""


@dataclass(frozen=True)
class House:
    """Every module of ours by its dotted name, as text."""

    texts: Mapping[str, str]
    packages: frozenset[str]
    """Names that are folders."""

    stubs: Mapping[str, str] = field(default_factory=dict)
    """Of folders whose names are imported when they are first used: where these stand."""

    @classmethod
    def read(cls, root: Path = ROOT) -> "House":
        """The house as it stands in a working tree; code that a compiler wrote is left out."""
        texts, packages, stubs = {}, set(), {}
        for package, folder in FOLDERS.items():
            for path in sorted((root / folder / package).rglob("*.py")):
                if path.stem.endswith(("_pb2", "_pb2_grpc")):
                    continue
                parts = path.relative_to(root / folder).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                if parts[-1] == "__init__":
                    packages.add(name)
                    if path.with_suffix(".pyi").is_file():
                        stubs[name] = path.with_suffix(".pyi").read_text(encoding="utf-8")
                texts[name] = path.read_text(encoding="utf-8")
        return cls(texts, frozenset(packages), stubs)

    @cached_property
    def arrows(self) -> tuple[Arrow, ...]:
        """Every import of one module of ours by another."""
        return tuple(arrow for name, text in self.texts.items() for arrow in _arrows(name, ast.parse(text), self.texts))

    def lines(self, names: Iterable[str] | None = None) -> int:
        """Lines of these modules, or of all."""
        return sum(len(self.texts[name].splitlines()) for name in (self.texts if names is None else names))

    def closure(self, *starts: str) -> frozenset[str]:
        """The modules whose heads must have been read to read these: what they import, and so on.

        Imports inside functions, on first use and for types alone are left out; `inside` and `late` count the first
        two. A folder's `__init__` counts where it holds something of its own, and leads to what it gathers.
        """
        ahead: dict[str, set[str]] = {}
        for arrow in self.arrows:
            if not (arrow.inside or arrow.typing or arrow.late):
                ahead.setdefault(arrow.source, set()).add(arrow.target)
        seen: set[str] = set()
        waiting = list(starts)
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting.extend(ahead.get(name, ()))
        return frozenset(name for name in seen if name not in self.packages or self.lines([name]) > 1)

    def way(self, *starts: str) -> tuple[int, int]:
        """Lines and modules of a closure."""
        closure = self.closure(*starts)
        return self.lines(closure), len(closure)

    def room(self, name: str) -> str:
        """`quoron_server.algorithms.tracking.plan` stands in `quoron_server.algorithms.tracking`."""
        parts = name.split(".")
        depth = 3 if parts[:2] == ["quoron_server", "algorithms"] else 2
        return ".".join(parts[:depth])

    def between_rooms(self) -> frozenset[tuple[str, str]]:
        """Pairs of rooms of which the first imports the second, anywhere in a module."""
        pairs = {(self.room(arrow.source), self.room(arrow.target)) for arrow in self.arrows if not arrow.typing}
        whole = {each for each in self.packages if each.count(".") == 0}  # a package's list of names
        return frozenset((a, b) for a, b in pairs if a != b and not {a, b} & whole)

    def two_way_pairs(self) -> frozenset[tuple[str, str]]:
        """Rooms that import each other."""
        pairs = self.between_rooms()
        return frozenset((a, b) for a, b in pairs if a < b and (b, a) in pairs)

    def circles(self) -> frozenset[frozenset[str]]:
        """Modules that import each other in a ring, inside functions and on first use too; what does as a statement
        says may know the statement (`BEHIND`)."""
        told = (arrow for arrow in self.arrows if not (arrow.typing or (arrow.late and arrow.target.endswith(BEHIND))))
        return _rings({(arrow.source, arrow.target) for arrow in told})

    def inside(self) -> tuple[Arrow, ...]:
        """Imports of our own inside functions."""
        return tuple(arrow for arrow in self.arrows if arrow.inside and not arrow.typing)

    def late(self) -> tuple[Arrow, ...]:
        """Modules that are imported when one of their names is first used."""
        return tuple(arrow for arrow in self.arrows if arrow.late)

    def private(self) -> tuple[Arrow, ...]:
        """Imports of what begins with an underscore from another folder."""
        return tuple(arrow for arrow in self.arrows if _takes_what_is_private(arrow, self.packages))

    def rings_of_rooms(self) -> frozenset[frozenset[str]]:
        """Rooms that import each other in a ring: without one they stand in storeys, and every arrow runs down."""
        return _rings(self.between_rooms())

    def storeys(self, package: str) -> list[list[str]]:
        """Rooms of a package, the lowest first, each as low as what it imports lets it stand."""
        pairs = {pair for pair in self.between_rooms() if all(each.startswith(f"{package}.") for each in pair)}
        left, found = {room for pair in pairs for room in pair}, list[list[str]]()
        while left:
            lowest = {room for room in left if not any(a == room and b in left for a, b in pairs)}
            assert lowest, f"a ring of rooms among {sorted(left)}"
            found.append(sorted(lowest))
            left -= lowest
        return found


def _arrows(name: str, tree: ast.Module, known: Mapping[str, str]) -> Iterator[Arrow]:
    yield from _on_first_use(name, tree, known)
    for node, inside, typing in _imports(tree, False, False):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in known:
                    yield Arrow(name, alias.name, inside, typing, (alias.name.rpartition(".")[2],))
            continue
        assert node.level == 0, f"{name}: relative import"
        modules: dict[str, list[str]] = {}
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            modules.setdefault(full if full in known else str(node.module), []).append(alias.name)
        for target, names in modules.items():
            if target in known and target != name:
                yield Arrow(name, target, inside, typing, tuple(names))


def _on_first_use(name: str, tree: ast.Module, known: Mapping[str, str]) -> Iterator[Arrow]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "OnFirstUse":
            target = str(ast.literal_eval(node.args[0]))
            if target in known:
                yield Arrow(name, target, False, False, (target.rpartition(".")[2],), late=True)


def _imports(node: ast.AST, inside: bool, typing: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, inside, typing
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _imports(child, inside, True)
        else:
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


def _takes_what_is_private(arrow: Arrow, packages: frozenset[str]) -> bool:
    source = arrow.source if arrow.source in packages else arrow.source.rpartition(".")[0]
    hidden = any(part.startswith("_") for part in arrow.target.split("."))
    named = any(name.startswith("_") and not name.endswith("__") for name in arrow.names)
    return source not in (arrow.target.rpartition(".")[0], arrow.target) and (hidden or named)


Place = tuple[str, str]  # a module, and a function or a class in it; "": the module itself


@dataclass(frozen=True)
class Reading:
    """What must really be read to know what a function does: definition by definition, not module by module.

    A definition is a function or a class of a module, all of it. Names lead from one to the next: those that its module
    defines or imports, inside functions and on first use too, and `module.name`. That counts too much where of a class
    one method is needed, and where a way is never taken (files, where a table is in memory); it counts too little where
    a name is a text (the algorithms that the registry imports), and where a value of a module stands in between.
    """

    house: House

    def reached(self, start: str) -> frozenset[Place]:
        """The definitions to be read from one, or from all of a module, by its dotted name."""
        whole = start in self.house.texts
        waiting = [(start, name) for name in self._module(start)[0]] if whole else [_parted(start)]
        seen = set[Place]()
        while waiting:
            place = waiting.pop()
            if place not in seen:
                seen.add(place)
                waiting += self._named(place)
        return frozenset(seen)

    def way(self, start: str) -> tuple[int, int]:
        """Lines and number of these definitions."""
        found = [self._module(module)[0][name] for module, name in self.reached(start)]
        return sum((node.end_lineno or 0) - node.lineno + 1 for node in found), len(found)

    def _named(self, place: Place) -> list[Place]:
        found = list[Place]()
        for node in ast.walk(self._module(place[0])[0][place[1]]):
            if isinstance(node, ast.Name):
                found += self._meant(place[0], node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                modules = self._meant(place[0], node.value.id)
                found += [each for module, name in modules if not name for each in self._meant(module, node.attr)]
        return [each for each in found if each[1]]

    def _meant(self, module: str, name: str) -> list[Place]:
        """What a name stands for in a module, if it is a definition or a module of ours."""
        if module not in self.house.texts:
            return []
        defined, imported = self._module(module)
        if name in defined:
            return [(module, name)]
        target, there = imported.get(name, ("", ""))
        if there:
            return self._meant(target, there)
        return [(target, "")] if target in self.house.texts else []

    def _module(self, name: str) -> tuple[Mapping[str, ast.stmt], Mapping[str, Place]]:
        """What a module defines, and where what it imports under a name is."""
        if name not in self._read:
            tree = ast.parse(f"{self.house.texts[name]}\n{self.house.stubs.get(name, '')}")
            kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
            defined = {node.name: node for node in tree.body if isinstance(node, kinds)}
            package = name if name in self.house.packages else _parted(name)[0]
            self._read[name] = defined, dict(self._imported(tree, package))
        return self._read[name]

    def _imported(self, tree: ast.Module, package: str) -> Iterator[tuple[str, Place]]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from ((each.asname or each.name, (each.name, "")) for each in node.names)
            elif isinstance(node, ast.ImportFrom):
                module = f"{package}.{node.module}" if node.level else str(node.module)
                for each in node.names:
                    whole = f"{module}.{each.name}"
                    yield each.asname or each.name, (whole, "") if whole in self.house.texts else (module, each.name)

    @cached_property
    def _read(self) -> dict[str, tuple[Mapping[str, ast.stmt], Mapping[str, Place]]]:
        return {}


def _parted(dotted: str) -> Place:
    module, _, name = dotted.rpartition(".")
    return module, name


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
def house() -> House:
    """The house of this working tree, read once."""
    return House.read()
