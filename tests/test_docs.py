"""The pages hold together: every link leads somewhere, every cited theorem is a page with that heading."""

import importlib
import re
from pathlib import Path

import pytest

from contracts.scenes import SMALL, make_plan
from quoron_server.algorithms import ALGORITHMS

ROOT = Path(__file__).parent.parent
FILES = {"quoron.unreleased"}  # what looks like a room and is none
ROOT_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in ROOT_PAGES), *sorted((ROOT / "docs").rglob("*.md"))]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the common renderers make them, and those of theorems."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    named = set(re.findall(r'<a id="([\w-]+)"></a>', text))
    return named | {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(linked), f"{page.name} links to {target}"


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or something in one; what needs torch or JAX is read, not imported."""
    if name.startswith(("quoron.torch", "quoron.jax")):
        _, framework, *rest = name.split(".")
        text = (ROOT / "simulations" / "quoron" / framework / "__init__.py").read_text(encoding="utf-8")
        return not rest or f'"{rest[0]}"' in text.partition("__all__")[2]
    module, _, rest = name.partition(".")
    found = importlib.import_module(module)
    for part in rest.split("."):
        module = f"{module}.{part}"
        if not hasattr(found, part):
            try:
                importlib.import_module(module)
            except ModuleNotFoundError:
                return False
        found = getattr(found, part)
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_room_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for package, one, several in re.findall(r"`(quoron(?:_[a-z]+)?)((?:\.\w+)+)?(?:\.\{([\w,]+)\})?`", text):
        for each in several.split(",") if several else [""]:
            name = f"{package}{one}.{each}".rstrip(".")
            assert "." not in name or name in FILES or exists(name), f"{page.name} names {name}"
    for path in re.findall(r"`((?:tests|benchmarks|scripts|examples|docs)/[\w./-]+\.\w+)`", text):
        assert (ROOT / path).exists(), f"{page.name} names {path}"


@pytest.mark.parametrize("name", sorted({*ALGORITHMS, *SMALL}))
def test_every_promise_cites_a_theorem_that_ships(name: str) -> None:
    """What a plan's sentence names, which may be another part of the page than what the registry does."""
    promise = make_plan(name).guarantee
    page, _, anchor = promise.theorem.partition("#")
    assert promise.trust_model == "none" or (ROOT / page).is_file(), promise.theorem
    assert not anchor or anchor in anchors(ROOT / page), promise.theorem


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_cites_a_theorem_that_ships(name: str) -> None:
    page, _, anchor = ALGORITHMS[name].guarantees.theorem.partition("#")
    assert (ROOT / page).is_file(), page
    assert not anchor or anchor in anchors(ROOT / page), ALGORITHMS[name].guarantees.theorem


def test_the_changelog_is_one() -> None:
    """Sections of Keep a Changelog, each once and in its order, and entries that are short."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 200
    for version in text.split("\n## ")[1:]:
        sections = re.findall(r"^### (.*)$", version, flags=re.MULTILINE)
        order = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
        assert sections == [each for each in order if each in sections]
        assert all(len(entry) <= 400 for entry in re.split(r"^- ", version, flags=re.MULTILINE))
