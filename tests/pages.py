"""A report as a test reads it: what stands where, whether tags nest, and that nothing is loaded or carried out."""

from html.parser import HTMLParser

VOID = {"meta", "br"}
LOADED = {"link", "img", "iframe", "object", "embed", "image", "video", "audio", "base", "form", "use", "foreignobject"}


class Page(HTMLParser):
    """Every element with its attributes and the texts within it; an assertion fails where tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = (tag, dict(attrs), [])
        assert len(element[1]) == len(attrs), attrs
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element[2].append(data)

    def texts(self, tag: str) -> list[str]:
        """The text of each element of this name."""
        return [" ".join("".join(parts).split()) for name, _, parts in self.elements if name == tag]

    def facts(self) -> dict[str, str]:
        """The cells of each row of the tables, by the row's name: the second cell, or all of them in one text."""
        found, name = {}, ""
        for tag, attributes, parts in self.elements:
            words = " ".join("".join(parts).split())
            if tag == "th" and attributes.get("scope") == "row":
                name, found[words] = words, ""
            elif tag == "td":
                found[name] = f"{found[name]} {words}".strip()
        return found


def check_loads_nothing(text: str) -> None:
    """No script, nothing from elsewhere, no event handlers; tables read."""
    page = Page(text)
    tags = [tag for tag, _, _ in page.elements]
    assert not (LOADED | {"script"}) & set(tags)
    policies = [a["content"] for tag, a, _ in page.elements if tag == "meta" and "http-equiv" in a]
    assert len(policies) == 1
    assert str(policies[0]).startswith("default-src 'none'")
    assert "script" not in str(policies[0])
    for tag, attributes, _ in page.elements:
        assert not {"src", "style", "srcset", "xlink:href"} & attributes.keys()
        assert not [name for name in attributes if name.startswith("on")]
        assert tag == "a" or "href" not in attributes
        assert tag != "th" or attributes["scope"] in ("row", "col")
    assert "url(" not in text
    assert "@import" not in text
    assert 'name="viewport" content="width=device-width' in text
    assert "prefers-color-scheme: dark" in text
    assert page.texts("h1")
    assert all(page.texts("h2"))
    assert '<html lang="en">' in text
