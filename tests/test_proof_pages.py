"""The proofs say what there is: names in code type stand for something in the sources, and numbers are the code's."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from quoron_privacy.accounts import lifetime
from quoron_privacy.histograms import min_cohort
from quoron_privacy.noise import streams as noise
from quoron_server.algorithms import ALGORITHMS

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "privacy").glob("*.md"))
PACKAGES = ("privacy", "server", "client", "simulations")
OTHERS = ("protos", "tests", "scripts", "benchmarks")
WORD = re.compile(r"[A-Za-z_]\w*")
FORMULAS = {  # in code type, and no names of code
    "mean c_k a_k a_kᵀ h",
    "B(Y_j, ς)",
}


def files(folders: tuple[str, ...]) -> Iterator[Path]:
    for folder in folders:
        yield from (ROOT / folder).rglob("*.py")


@cache
def names() -> set[str]:
    """Every word of the sources, and the names of modules and folders."""
    found: set[str] = set()
    for path in files(PACKAGES + OTHERS):
        found.update(WORD.findall(path.read_text()), (path.stem, *path.relative_to(ROOT).parts))
    return found


@cache
def members() -> dict[str, set[str]]:
    """What a class or a module of some name has, by that name: fields, functions, and what is set of `self`."""
    found: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for path in files(PACKAGES):
        text = path.read_text()
        tree, lines = ast.parse(text), text.splitlines()
        found.setdefault(path.parent.name if path.stem == "__init__" else path.stem, set()).update(_bound(tree.body))
        for node in (each for each in tree.body if isinstance(each, ast.ClassDef)):
            own = found.setdefault(node.name, set())
            own.update(_bound(node.body))
            own.update(re.findall(r"\bself\.(\w+)", "\n".join(lines[node.lineno - 1 : node.end_lineno])))
            bases.setdefault(node.name, set()).update(
                WORD.findall(ast.unparse(each))[-1] for each in node.bases if WORD.findall(ast.unparse(each))
            )
    for _ in range(4):
        for name, above in bases.items():
            for each in above & found.keys():
                found[name] |= found[each]
    return found


def _bound(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield from (each.asname or each.name.split(".")[0] for each in node.names)


def cited(page: Path) -> list[str]:
    """What stands in code type, outside of blocks."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [token for token in re.findall(r"`([^`\n]+)`", text) if token not in FORMULAS]


def test_every_name_that_a_proof_cites_exists() -> None:
    for page, token in ((proof, token) for proof in PAGES for token in cited(proof)):
        if "/" in token and re.fullmatch(r"[\w./:-]+", token):
            assert (ROOT / token.split("::")[0]).exists(), (page, token)
            continue
        assert set(WORD.findall(token)) <= names(), (page, token)
        for owner, member in re.findall(r"([A-Z]\w*)\.([A-Za-z_]\w*)", token):
            assert owner not in members() or member in members()[owner], (page, token)


def test_a_proof_names_its_module_and_its_tests() -> None:
    for page in (page for page in PAGES if page.stem != "README"):
        text = page.read_text()
        assert "Code: " in text, page
        assert re.search(r"Tests?:\s(.{0,200}\s)?`tests/[\w/]+(\.py|/)`", text, re.DOTALL), page


LABEL = r"[A-Z]{1,2}\d+"
MIN_COHORTS = ("min-cohort",)
PROMISES = (
    "private-bounds",
    "srgd",
    "outlier-filter",
    *MIN_COHORTS,
)


def labels(page: Path) -> list[str]:
    """What is stated on a page: theorems in bold, sections that have a label, and bold ones inside a text."""
    text = page.read_text()
    stated = re.findall(rf"\*\*(?:(?:Theorem|Lemma|Proposition|Corollary) )?({LABEL})\b", text)
    return [*stated, *re.findall(rf"^#+ (?:Theorem |Lemma )?({LABEL})(?:\.|:| \(|$)", text, re.MULTILINE)]


@cache
def where() -> dict[str, str]:
    """The page of each label that has an anchor."""
    found: dict[str, str] = {}
    for page in PAGES:
        for label in re.findall(r'<a id="(\w+)"></a>', page.read_text()):
            assert label not in found, f"{label} is on {page.stem} and on {found[label]}"
            found[label] = page.stem
    return found


def test_a_label_means_one_thing_on_all_pages_and_has_an_anchor() -> None:
    for page in PAGES:
        for label in labels(page):
            assert where().get(label.lower()) == page.stem, (page.stem, label)
        bold = re.findall(rf"\*\*(?:Theorem|Lemma|Proposition|Corollary)(?: ({LABEL})\b)?", page.read_text())
        assert all(bold), f"a theorem of {page.stem} has no label"
        assert len(bold) == len(set(bold)), page.stem
    assert len(where()) > 80


def test_a_theorem_that_a_page_links_is_there() -> None:
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for words, target in re.findall(r"\[([^\[\]\n]{1,99})\]\((?:privacy/)?([\w-]+)\.md", page.read_text()):
            for label in re.findall(rf"\b({LABEL})\b", words) if ROOT / f"docs/privacy/{target}.md" in PAGES else ():
                assert where().get(label.lower()) == target, (page.stem, words)


def test_code_cites_theorems_as_page_and_label() -> None:
    """As `noise#n4`, behind which more labels of that page may stand as `#n5`; papers are named with their numbers.

    A module that prints one paper's algorithms names that paper once, and so does its test.
    """
    pages = {page.stem for page in PAGES}
    for path in files((*PACKAGES, *OTHERS)):
        text, last = path.read_text(), ""
        for match in re.finditer(r"(?<!&)#([a-z]{1,2}\d{1,2})\b", text):
            label, before = match[1], text[max(0, match.start() - 60) : match.start()]
            page = "".join(re.findall(r"\b([a-z][\w-]*)(?:\.md)?$", before)[:1])
            last = page if page in pages else last
            if page in pages or not page:
                assert where().get(label) == last, (path, f"{page}#{label}")
        for match in re.finditer(rf"(?i:theorem|lemma|proposition)s? ({LABEL}|\d+\b(?!\.\d))", text):
            before = " ".join(text[max(0, match.start() - 90) : match.start()].split())
            papers = re.search(r"\d{4}\)?, [^.]*$|[Pp]aper'?s? [^.]*$|[A-Z]\w+ & [A-Z][^.]*$", before + " ")
            one_paper = path.parent.name in ("printed", "papers") or path.stem == "paper_claims"
            assert path == Path(__file__) or one_paper or papers, (path, match[0])


def test_no_module_names_a_theorem_of_ours_without_its_page() -> None:
    for path in files(PACKAGES):
        for line in path.read_text().splitlines():
            bare = re.findall(rf"(?<![#\w.])({LABEL})\b", line) if "noqa" not in line else ()
            assert not {label.lower() for label in bare} & where().keys(), (path, line)


@pytest.mark.parametrize("page", PROMISES)
def test_statement_and_proof_of_a_promise_fit_two_printed_pages(page: str) -> None:
    text = (ROOT / "docs" / "privacy" / f"{page}.md").read_text()
    assert len(text[text.index("## Statement") : text.index("## Checks")].split()) <= 1000


def numbers(text: str) -> list[float]:
    """Every power that a text prints, as 2⁻¹⁶⁰, 10⁻⁶ or 2^{-160}."""
    digits = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
    powers = re.findall(r"(2|10)(?:\^\{(-?\d+)\}|([⁻⁰¹²³⁴-⁹]+))", text)
    return [float(base) ** int(latex or power.translate(digits)) for base, latex, power in powers]


@pytest.mark.parametrize(
    ("page", "name", "value"),
    [
        ("noise", "GAUSSIAN_SLACK", noise.GAUSSIAN_SLACK),
        ("noise", "LAPLACE_SLACK", noise.LAPLACE_SLACK),
        ("noise", "total_variation", noise.total_variation(laplaces=1)),
        ("lifetime", "SAMPLERS", lifetime.SAMPLERS),
        ("lifetime", "LOST", lifetime.LOST),
        ("min-cohort", "BETA", min_cohort.BETA),
    ],
)
def test_a_constant_is_what_its_page_prints(page: str, name: str, value: float) -> None:
    """On each line that names it in code type."""
    text = (ROOT / "docs" / "privacy" / f"{page}.md").read_text()
    lines = [line for line in text.splitlines() if f"`{name}`" in line and numbers(line)]
    assert lines
    assert all(any(found == pytest.approx(value, rel=1e-12) for found in numbers(line)) for line in lines)


def test_the_table_of_gaussian_runs_names_every_algorithm_once_and_those_with_a_promise_as_such() -> None:
    text = (ROOT / "docs" / "privacy" / "lifetime.md").read_text()
    rows = [row.split("|")[1:3] for row in text.partition("| algorithm | μ |")[2].partition("\n\n")[0].splitlines()[2:]]
    promised = {
        name for names, mu in rows if not mu.strip().startswith("none") for name in re.findall(r"`([a-z-]+)`", names)
    }
    without = {
        name for names, mu in rows if mu.strip().startswith("none") for name in re.findall(r"`([a-z-]+)`", names)
    }
    private = {name: each for name, each in ALGORITHMS.items() if each.trust_model != "none"}
    counted = {name for name, each in private.items() if each.may_be_gaussian}
    assert promised - {"gd"} == counted
    assert without == set(private) - counted


def test_the_pitfalls_say_which_algorithm_promises_what() -> None:
    said = (ROOT / "docs" / "pitfalls.md").read_text().partition("## Adjacency")[2].partition("`privacy.adjacency`")[0]
    either, _ = said.rpartition("(1 + e^ε) δ).")[2].split(";")
    named = set(re.findall(r"`([a-z-]+)`", either))
    assert named == {name for name, each in ALGORITHMS.items() if "zero-out" in each.guarantees.adjacency}


def test_every_page_of_a_proof_is_in_the_list_of_proofs() -> None:
    listed = (ROOT / "docs" / "privacy" / "README.md").read_text()
    assert all(page.name in listed for page in PAGES if page.stem != "README")


PAPERS = sorted(page for page in (ROOT / "docs" / "papers").glob("*.md") if page.stem not in ("README", "claims"))


@cache
def modules() -> dict[tuple[str, ...], set[str]]:
    """What is bound in each module, by the parts of its path."""
    return {
        path.relative_to(ROOT).with_suffix("").parts: set(_bound(ast.parse(path.read_text()).body))
        for path in files(PACKAGES)
    }


def is_there(symbol: str) -> bool:
    """Whether a class, or the one module whose path ends so, has a member of that name; or any has a bare one."""
    *owner, member = symbol.split(".")
    if tuple(symbol.split(".")) in (parts[1:] for parts in modules()):
        return True
    if not owner:
        return member in ALGORITHMS or any(member in names for names in (*modules().values(), *members().values()))
    if owner[-1][0].isupper():
        return member in members().get(owner[-1], ()) and (not owner[1:] or is_there(".".join(owner)))
    [*found] = (names for parts, names in modules().items() if parts[-len(owner) :] == tuple(owner))
    return len(found) == 1 and member in found[0]


@pytest.mark.parametrize("page", PAPERS, ids=lambda page: page.stem)
def test_the_code_of_every_line_of_a_paper_is_there(page: Path) -> None:
    """Tables whose first column is `line`, where a letter is a module and `.update` of the class before; full names."""
    text = page.read_text()
    symbols = re.findall(r"`(quoron_\w+\.[\w.]+)`", text)
    for table in re.finditer(r"^\| line \|.*?(?=^$)", text, re.DOTALL | re.MULTILINE):
        short, before = dict(re.findall(r"`([A-Z])` is\s+`([\w.]+)`", text[: table.start()])), ""
        for token in re.findall(r"`([^`\n]+)`", table[0]):
            symbol = before.rpartition(".")[0] + token if token.startswith(".") else token
            first, _, rest = symbol.partition(".")
            before = f"{short[first]}.{rest}" if first in short else symbol
            symbols.append(before)
    assert len(symbols) > 10
    assert [symbol for symbol in symbols if not is_there(symbol)] == []


@pytest.mark.parametrize("page", PAPERS, ids=lambda page: page.stem)
def test_an_algorithm_as_printed_is_read_in_at_most_ten_files_and_1500_lines(page: Path) -> None:
    section = page.read_text().partition("## Files, from pseudo-code to noise\n")[2].partition("\n#")[0]
    lists = re.findall(r"^\*\*.*\*\*\n\n((?:\d+\. .*\n)+)", section, re.MULTILINE)
    assert lists
    for read in lists:
        entries = [re.fullmatch(r"\d+\. `([\w/]+\.py)`: (.+)\.", line) for line in read.splitlines()]
        files = [(ROOT / entry[1], re.findall(r"`(\w+)[.`]", entry[2])) for entry in entries if entry]
        assert len(files) == len(entries) <= 10
        assert all(names for _, names in files)
        assert sum(lines_to_read(file, names) for file, names in files) <= 1500, read


def lines_to_read(file: Path, names: list[str]) -> int:
    """The lines, with docstrings and blanks, of top-level definitions and of all that they use of the same file."""
    top: dict[str, ast.stmt] = {}
    for node in ast.parse(file.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
        top |= {getattr(target, "name", getattr(target, "id", "")): node for target in targets}
    waiting, read = list(names), set[str]()
    while waiting:
        name = waiting.pop()
        read.add(name)
        used = {node.id for node in ast.walk(top[name]) if isinstance(node, ast.Name)}
        waiting += (used & top.keys()) - read
    decorators = {name: getattr(top[name], "decorator_list", []) for name in read}
    starts = {name: min([top[name].lineno, *(found.lineno for found in decorators[name])]) for name in read}
    return sum((top[name].end_lineno or 0) - start + 1 for name, start in starts.items())
