"""The site: it builds without a warning, holds every page and public module, and asks nothing of the network."""

import importlib
import os
import pkgutil
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from browser import PROGRAM, browser

pytest.importorskip("mkdocs", reason="no mkdocs: pip install -e '.[docs]'")
pytest.importorskip("mkdocstrings", reason="no mkdocstrings: pip install -e '.[docs]'")

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
MARKDOWN = ("tables", "sane_lists", "pymdownx.betterem", "pymdownx.highlight", "pymdownx.superfences")
TEXT = {"em", "strong", "code", "pre", "ul", "ol", "li", "th", "td", "img", "h1", "h2", "h3"}
PUBLIC = ("algorithm", "plan", "problem", "rounds")  # of quoron_server, beside whole packages


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as scripts/docs builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert "Documentation built" in built.stderr  # with --quiet, strict would count no warning
    assert "WARNING" not in built.stderr
    return folder


def html(page: Path) -> str:
    return page.read_text(encoding="utf-8")


class Loaded(HTMLParser):
    """What a browser loads by itself to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag != "a" and values.get("rel") not in ("canonical", "next", "prev"):
            self.addresses += [
                value for name in ("src", "srcset", "href", "data", "poster") if (value := values.get(name))
            ]


@pytest.mark.slow  # scripts/check builds it every time
class TestSite:
    def test_nothing_is_loaded_from_the_network(self, site: Path) -> None:
        for page in site.rglob("*.html"):
            loaded = Loaded()
            loaded.feed(html(page))
            assert loaded.addresses
            outside = [each for each in loaded.addresses if re.match(r"(\w+:)?//", each)]
            assert not outside, f"{page.relative_to(site)} loads {outside}"
        for spec in site.rglob("*.css"):
            assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", html(spec)), spec.name

    @pytest.mark.skipif(PROGRAM is None, reason="no Chromium: apt-get install chromium")
    def test_pages_are_whole_on_a_desk_and_a_phone_in_light_and_dark(self, site: Path, tmp_path: Path) -> None:
        """A real browser complains of nothing, asks no other machine, and nothing reaches beyond the window."""
        reference = {site / "404.html", *(site / "api").rglob("*.html")}
        pages = sorted(set(site.rglob("*.html")) - reference)
        with browser(tmp_path) as window:
            for number, page in enumerate(pages):
                for width in (390, 1200):
                    window.show(page, width=width, dark=number % 2 == 1)
                    assert window.complaints() == [], page
                    asked = {address.partition(":")[0] for address in window.requests()}
                    assert asked <= {"file", "data", "blob"}, page
                    assert window.value("document.documentElement.scrollWidth") <= width, (page, width)

    def test_no_diagram_waits_for_a_script_from_the_network(self, site: Path) -> None:
        """The theme would load one for a block of mermaid."""
        assert not [page for page in site.rglob("*.html") if 'class="mermaid"' in html(page)]

    @pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT / "docs")))
    def test_every_page_is_in_the_navigation(self, page: Path, site: Path) -> None:
        name = str(page.relative_to(ROOT / "docs")).replace("README.md", "index.md").removesuffix(".md") + ".html"
        assert (site / name).exists()
        listed = [line.strip(" -") for line in html(ROOT / "mkdocs.yml").splitlines()]
        assert str(page.relative_to(ROOT / "docs")) in listed

    def test_every_public_module_has_a_page(self, site: Path) -> None:
        wanted = ["quoron", "quoron_client", "quoron_client.losses", "quoron_client.federation"]
        wanted += ["quoron_client.flower.answering"]
        wanted += [f"quoron_server.{name}" for name in PUBLIC]
        for name in (
            "quoron_privacy",
            "quoron_server.storage",
            "quoron_server.service",
            "quoron_client.protocol",
            "quoron_client.compute",
        ):
            inner = pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}.")
            wanted += [name, *(each.name for each in inner if "._" not in each.name)]
        for name in wanted:
            package, _, rest = name.partition(".")
            assert (site / "api" / package / f"{rest or 'index'}.html").exists(), name

    @pytest.mark.parametrize("package", ["quoron", "quoron_privacy", "quoron_server", "quoron_client"])
    def test_every_public_name_has_an_entry(self, package: str, site: Path) -> None:
        page = html(site / "api" / package / "index.html")
        for name in set(importlib.import_module(package).__all__) - {"__version__"}:
            assert f'id="{package}.{name}"' in page, name

    def test_search_knows_guides_proofs_and_names(self, site: Path) -> None:
        index = html(site / "search" / "search_index.js")
        for found in (
            "getting-started.html",
            "privacy/srgd.html#bounds",
            "#quoron_privacy.gaussian.GaussianNoise",
        ):
            assert f'"{found}' in index or f'{found}"' in index, found


class Read(HTMLParser):
    """The words of a page and how they are set."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.words += [f"<{tag}>"] if tag in TEXT else []

    def handle_endtag(self, tag: str) -> None:
        self.words += [f"</{tag}>"] if tag in TEXT else []

    def handle_data(self, data: str) -> None:
        self.words += data.replace("\\|", "|").split()


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_reads_the_same_as_elsewhere(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site's Markdown is an older one than GitHub's: they part at formulas with * and _, and at lists."""
    import markdown
    from markdown_it import MarkdownIt

    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    extension = importlib.import_module("site_pages").AsElsewhere()
    plain = {"pymdownx.highlight": {"use_pygments": False}}
    text = importlib.import_module("check_formulas").replaced(html(page), lambda latex, displayed: "x")
    here, elsewhere = Read(), Read()
    here.feed(markdown.markdown(text, extensions=[*MARKDOWN, extension], extension_configs=plain))
    elsewhere.feed(MarkdownIt("commonmark").enable("table").render(text))
    assert here.words == elsewhere.words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_formulas_are_valid(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    assert not importlib.import_module("check_formulas").errors(page)


def test_formulas_have_indices_and_code_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    import markdown

    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    pages = importlib.import_module("site_pages")

    def shown(text: str) -> str:
        extensions = ["pymdownx.betterem", "pymdownx.superfences", "tables", pages.AsElsewhere(), pages.Formulas()]
        return markdown.markdown(text, extensions=extensions)

    assert shown("x_{t+1}, ‖x̂_i‖_2 ≤ λ_1R² and F* = F(x*)") == (
        "<p>x<sub>t+1</sub>, ‖x̂<sub>i</sub>‖<sub>2</sub> ≤ λ<sub>1</sub>R² and F* = F(x*)</p>"
    )
    assert shown("e^ε, e^{−r/2}, (2/d)^(k−1)") == "<p>e<sup>ε</sup>, e<sup>−r/2</sup>, (2/d)<sup>k−1</sup></p>"
    assert (
        shown("`x_t` in cohort_size, [x](a_b.md)") == '<p><code>x_t</code> in cohort_size, <a href="a_b.md">x</a></p>'
    )
    assert shown("so $x_1 < \\{y_2\\}$, at `$x$`") == (
        "<p>so <math><msub><mi>x</mi><mn>1</mn></msub><mo>&lt;</mo>"
        '<mo stretchy="false">{</mo><msub><mi>y</mi><mn>2</mn></msub><mo stretchy="false">}</mo></math>, '
        "at <code>$x$</code></p>"
    )
    displayed = shown("then\n\n$$\n\\frac{1}{2}\n$$\n\nand\n\n```\n$$\nx\n$$\n```\n\n    $y$")
    assert displayed.count("<math") == 1
    assert '<div class="formula"><math display="block"><mfrac>' in displayed
