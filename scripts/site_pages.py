"""What the site has beside docs/: a page of reference for each public module, and what else pages link to."""

import ast
import json
import re
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import Any
from xml.etree.ElementTree import Element

from griffe import Attribute, Class, Docstring, Extension
from markdown import Extension as MarkdownExtension
from markdown import Markdown
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor
from markdown.util import AtomicString
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))  # mkdocs loads this file by its path
from check_formulas import DISPLAYED, INLINE, mathml
from make_notebooks import BLOCK

ROOT = Path(__file__).parent.parent
SOURCES = ("privacy", "client", "server", "simulations")
# A package is its public names (`__init__.pyi`) or its docstring; "package.*" is a package with all its modules.
PUBLIC = (
    "quoron",
    "quoron.engine",
    "quoron.sklearn",
    "quoron.torch",
    "quoron.jax",
    "quoron_privacy.*",
    "quoron_server",
    "quoron_server.algorithm",
    "quoron_server.plan",
    "quoron_server.problem",
    "quoron_server.rounds",
    "quoron_server.storage.*",
    "quoron_server.service.*",
    "quoron_client",
    "quoron_client.losses",
    "quoron_client.data.*",
    "quoron_client.protocol.*",
    "quoron_client.compute.*",
    "quoron_client.federation",
    "quoron_client.flower.answering",
)
FONT = Path(find_spec("ziamath").origin).parent / "fonts" / "STIXTwoMath-Regular.ttf"  # type: ignore[union-attr,arg-type]
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
MENTION = re.compile(
    r"<(?P<tag>a|h\d)\b.*?</(?P=tag)>|<code>(?P<name>[\w.]+)</code>|<[^>]+>|\bdocs/(?P<path>[\w/-]+\.md)\b(?P<anchor>#\w+)?"
    r"|\b(?P<page>[a-z][a-z-]+)#(?P<label>[a-z]{1,2}\d{1,2})\b",
    re.DOTALL,
)
LANGUAGES = {".py": "python", ".sh": "sh", ".toml": "toml", ".yml": "yaml", ".cff": "yaml", ".conf": "nginx"}


# Modules


def source(name: str) -> Path:
    """The file of a module or package by its dotted name."""
    for root in SOURCES:
        path = ROOT / root / name.replace(".", "/")
        if (path / "__init__.py").exists():
            return path / "__init__.py"
        if path.with_suffix(".py").exists():
            return path.with_suffix(".py")
    raise FileNotFoundError(f"Expected a module named {name}, found none.")


def public_modules() -> list[str]:
    """Names of all public modules, packages before what is in them."""
    found: list[str] = []
    for name in PUBLIC:
        package = name.removesuffix(".*")
        found.append(package)
        if package != name:
            folder = source(package).parent
            inner = (path.relative_to(folder).with_suffix("") for path in sorted(folder.rglob("*.py")))
            parts = (path.parts[:-1] if path.name == "__init__" else path.parts for path in inner)
            found += [".".join((package, *each)) for each in parts if each and not any(p.startswith("_") for p in each)]
    return found


def public_names(module: str) -> list[str]:
    """The names that a stub declares public, in its order; none for a module without a stub."""
    stub = source(module).with_suffix(".pyi")
    if not stub.exists():
        return []
    imports = (node for node in ast.parse(stub.read_text("utf-8")).body if isinstance(node, ast.ImportFrom))
    return [each.asname for node in imports for each in node.names if each.asname]


def first_sentence(module: str) -> str:
    """What a module says it is."""
    text = ast.get_docstring(ast.parse(source(module).read_text("utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def reference_pages() -> dict[str, str]:
    """Text of each page of the reference by its path in the site."""
    modules = public_modules()
    packages = sorted({name.split(".")[0] for name in modules}, key=[n.split(".")[0] for n in PUBLIC].index)
    pages = {}
    for package in packages:
        own = [name for name in modules if name.startswith(package + ".")]
        text = f"# {package}\n\n::: {package}\n    options:\n      members: false\n      show_root_heading: false\n\n"
        text += _table(own, f"api/{package}") if own else ""
        pages[f"api/{package}/index.md"] = text + _names(package)
    for name in modules:
        if "." in name:
            names = _names(name)
            bare = "    options:\n      members: false\n" if names else ""
            pages[_page(name)] = f"::: {name}\n{bare}\n{names}"
    return pages


def _page(module: str) -> str:
    package, _, rest = module.partition(".")
    return f"api/{package}/{rest or 'index'}.md"


def _table(modules: list[str], folder: str) -> str:
    rows = [f"| [{name}]({relpath(_page(name), folder)}) | {first_sentence(name)} |" for name in modules]
    return "\n".join(["| module | what it is |", "| --- | --- |", *rows]) + "\n\n"


def _names(module: str) -> str:
    options = "    options:\n      heading_level: 2\n"
    return "\n".join(f"::: {module}.{name}\n{options}" for name in public_names(module))


@cache
def public_symbols() -> dict[str, str]:
    """The full name of each public class, function and member by what texts call it, where that is one thing only."""
    found: dict[str, set[str]] = {}
    for module in public_modules():
        for name in (module, *(f"{module}.{each}" for each in public_names(module))):
            found.setdefault(name, set()).add(name)
        for node in ast.parse(source(module).read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                inner = [_defined(each) for each in node.body] if isinstance(node, ast.ClassDef) else []
                for name in (node.name, *(f"{node.name}.{each}" for each in inner if each)):
                    for called in (f"{module}.{name}", f"{module.rpartition('.')[2]}.{name}", name):
                        found.setdefault(called, set()).add(f"{module}.{name}")
    # A word alone, such as `model`, is more often something else.
    one = {called: names.pop() for called, names in found.items() if len(names) == 1}
    return {called: name for called, name in one.items() if called == name or re.search(r"[A-Z._]", called)}


def _defined(node: ast.stmt) -> str | None:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return node.name if isinstance(node, ast.FunctionDef) else None


# Files outside docs/


def shown_files(changelog: str = "CHANGELOG.md") -> dict[str, str]:
    """A page, by its path in the site, for the changelog and whatever else outside docs/ pages link to."""
    pages: dict[str, str] = {}
    docs = sorted((ROOT / "docs").rglob("*.md"))
    to_do = {changelog}.union(*(_outside(page.read_text("utf-8"), page.parent) for page in docs))
    while to_do:
        path = to_do.pop()
        if _site(path) not in pages:
            files = _files(ROOT / path)
            pages[_site(path)] = _shown(path, files)
            to_do.update(*(_outside(file.read_text("utf-8"), file.parent) for file in files if file.suffix == ".md"))
    return pages


def relinked(text: str, folder: str, page: str) -> str:
    """Markdown of a repository's `folder` with its links as they are from `page` of the site."""

    def link(match: re.Match[str]) -> str:
        target = relpath(_site(normpath(f"{folder}/{match[1]}")), dirname(page))
        return f"]({target}{match[2] or ''})"

    return LINK.sub(link, text)


def _outside(text: str, folder: Path) -> set[str]:
    linked = {normpath(f"{folder.relative_to(ROOT)}/{target}") for target, _ in LINK.findall(text)}
    return {path for path in linked if not path.startswith("docs/") and (ROOT / path).exists()}


def _site(path: str) -> str:
    """Where in the site a file or folder of the repository is."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/") + ("/README.md" if (ROOT / path).is_dir() else "")
    return f"files/{path.removesuffix('.md')}.md"


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    return sorted(path for path in place.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _shown(path: str, files: list[Path]) -> str:
    parts = [] if path.endswith(".md") else [f"# {path}\n"]
    for file in files:
        text, inner = file.read_text("utf-8"), str(file.relative_to(ROOT / path))
        if file.suffix == ".md":
            parts.append(relinked(text, str(file.parent.relative_to(ROOT)), _site(path)))
        else:
            title = f"## {inner}\n\n" if inner != "." else ""
            parts.append(f"{title}````{LANGUAGES.get(file.suffix, 'text')}\n{text}\n````\n")
    return "\n".join(parts)


# What mkdocs calls


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the reference into the navigation, and examples among the code blocks."""
    sections: dict[str, list[Any]] = {}
    for path in reference_pages():
        _, *package, name = path.removesuffix(".md").split("/")
        if package:
            sections.setdefault(package[0], []).append(path if name == "index" else {name: path})
    api = next(entry["API"] for entry in config.nav or [] if "API" in entry)
    api += ({name: pages} for name, pages in sections.items())
    config.markdown_extensions += [AsElsewhere(), Formulas()]  # type: ignore[list-item]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages, and the font of formulas."""
    files.append(File.generated(config, "fonts/STIXTwoMath-Regular.ttf", abs_src_path=str(FONT)))
    for path, text in {**reference_pages(), **shown_files()}.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads links out of docs/ to the pages of those files, and shows what the code of tutorials prints and draws."""
    path = page.file.src_uri
    if path.startswith(("api/", "files/")):
        return markdown
    if path.startswith("tutorials/"):
        markdown = with_outputs(markdown, ROOT / "docs" / path.replace(".md", ".ipynb"))
    return relinked(markdown, dirname(f"docs/{path}"), path)


def with_outputs(text: str, notebook: Path) -> str:
    """Return a tutorial with the outputs of its notebook behind each block of code."""
    cells = [cell for cell in json.loads(notebook.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    return BLOCK.sub(lambda block: block[0] + "".join(map(_output, cells.pop(0)["outputs"])), text)


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f'\n<img alt="Picture" src="data:image/png;base64,{data["image/png"].strip()}">\n'
    if "text/html" in data:
        table = re.sub(r"<style.*?</style>|\s*\n\s*", " ", "".join(data["text/html"]), flags=re.DOTALL)
        table = table.replace('<table border="1" class="dataframe">', "<table>")
        return f'\n<div class="output">{table}</div>\n'
    text = "".join(output.get("text") or data.get("text/plain", ""))
    return "" if text.startswith("<Axes") else f"\n```text\n{text}\n```\n"


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes links of the pages (`docs/....md`), theorems (`noise#n4`) and public names that texts and code mention."""
    html = re.sub(r"<td>.*?</td>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.DOTALL)

    def link(match: re.Match[str]) -> str:
        path, name = match["path"], match["name"]
        if path and (named := files.get_file_from_path(path)):
            return f'<a href="{named.url_relative_to(page.file)}{match["anchor"] or ""}">{match[0]}</a>'
        if match["page"] and (proof := files.get_file_from_path(f"privacy/{match['page']}.md")):
            return f'<a href="{proof.url_relative_to(page.file)}#{match["label"]}">{match[0]}</a>'
        if name and (identifier := public_symbols().get(name)):
            return f'<autoref optional identifier="{identifier}">{match[0]}</autoref>'
        return match[0]

    return MENTION.sub(link, html)


class AsElsewhere(MarkdownExtension):
    """Code blocks that begin with `>>>` are Python; an underscore after a hat (x̂_t) begins no emphasis; \\$ is a $."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: D102
        md.ESCAPED_CHARS.append("$")
        md.preprocessors.register(_Fences(md), "examples", 30)
        md.inlinePatterns.register(_Hat(r"[\u0300-\u036f]_", md), "hat", 70)


class _Hat(InlineProcessor):
    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # type: ignore[override]
        return m[0], m.start(), m.end()


class Formulas(MarkdownExtension):
    """Formulas in LaTeX are set as MathML, indices and exponents in texts as such; code stays as it is."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: D102
        md.preprocessors.register(_Displayed(md), "displayed", 20)  # after blocks of code
        md.inlinePatterns.register(_Inline(INLINE.pattern, md), "formula", 185)  # after code, before escapes
        index = rf"(?<![A-Za-z_][A-Za-z])(?<=[^\W\d_]|[\u0300-\u036f‖)\]])_({_SMALL})"
        md.inlinePatterns.register(_Small(index, md, "sub"), "index", 75)
        md.inlinePatterns.register(_Small(rf"(?<=[\w)])\^({_SMALL}|\([^()]+\))", md, "sup"), "exponent", 74)


class _Displayed(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        def block(found: re.Match[str]) -> str:
            html = f'<div class="formula">{mathml(found["latex"], displayed=True)}</div>'
            return f"\n{self.md.htmlStash.store(html)}\n"

        return DISPLAYED.sub(block, "\n".join(lines)).split("\n")


class _Inline(InlineProcessor):
    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # type: ignore[override]
        return self.md.htmlStash.store(mathml(m["latex"], displayed=False)), m.start(), m.end()


_SMALL = r"\{[^{}]+\}|−?\d+|[a-zα-ω]+[\d₀-₉]*|[A-ZΑ-Ω]+|∞"


class _Small(InlineProcessor):
    def __init__(self, pattern: str, md: Markdown, tag: str) -> None:
        super().__init__(pattern, md)
        self.tag = tag

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[Element, int, int]:  # type: ignore[override]
        small = Element(self.tag)
        small.text = AtomicString(m[1][1:-1] if m[1][0] in "{(" else m[1])
        return small, m.start(), m.end()


class _Fences(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        """Puts a fence around each example, from `>>>` to the next empty line."""
        found: list[str] = []
        indent: str | None = None
        for before, line in zip(["", *lines], [*lines, ""], strict=True):
            start = re.match(r"((?: {4})?)>>> ", line)
            if indent is None and start and not before.strip():
                indent = start[1]
                found.append("```pycon")
            elif indent is not None and not (line.strip() and line.startswith(indent)):
                indent = None
                found += ["```", ""]
            found.append(line.removeprefix(indent or ""))
        return found


class FieldComments(Extension):
    """Lists the fields of a class with the comments behind them."""

    def on_class_members(self, *, cls: Class, agent: Any, **_: Any) -> None:
        """Adds the list to the docstring."""
        lines = cls.lines_collection[cls.filepath]
        fields = [each for each in cls.members.values() if isinstance(each, Attribute) and not each.docstring]
        found = {each.name: lines[each.endlineno - 1].partition("  # ")[2] for each in fields if each.endlineno}
        told = [f"    {name}: {comment}" for name, comment in found.items() if comment and not name.startswith("_")]
        if told:
            text = cls.docstring.value if cls.docstring else ""
            text = "\n".join([text, "", "Attributes:", *told])
            cls.docstring = Docstring(
                text,
                parent=cls,
                lineno=cls.lineno,
                parser=agent.docstring_parser,
                parser_options=agent.docstring_options,
            )
