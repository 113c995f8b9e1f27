"""The pages hold together: every link leads somewhere, every cited theorem is a page with that heading."""

import re
from pathlib import Path

import pytest

from contracts.scenes import SMALL, make_plan
from quoron_server.algorithms import ALGORITHMS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the common renderers make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(linked), f"{page.name} links to {target}"


@pytest.mark.parametrize("name", sorted({*ALGORITHMS, *SMALL}))
def test_every_promise_cites_a_theorem_that_ships(name: str) -> None:
    """What a plan's sentence names, which may be another part of the page than what the registry does."""
    promise = make_plan(name).guarantee
    page, _, anchor = promise.theorem.partition("#")
    assert promise.exposure == "none" or (ROOT / page).is_file(), promise.theorem
    assert not anchor or anchor in anchors(ROOT / page), promise.theorem


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_cites_a_theorem_that_ships(name: str) -> None:
    page, _, anchor = ALGORITHMS[name].theorem.partition("#")
    assert (ROOT / page).is_file(), page
    assert not anchor or anchor in anchors(ROOT / page), ALGORITHMS[name].theorem
