"""Pages of reports as a strict parser reads them."""

from xml.etree import ElementTree

TAGS = {
    *("html", "head", "meta", "title", "style", "body", "header", "main", "footer", "section", "nav", "div", "h1"),
    *("h2", "p", "ul", "li", "a", "span", "small", "pre", "dl", "dt", "dd", "details", "summary", "figure"),
    *("figcaption", "table", "thead", "tbody", "tr", "th", "td"),
    *("svg", "g", "path", "defs", "clipPath", "rect", "use", "text", "tspan", "circle"),
}


def parsed(text: str) -> ElementTree.Element:
    """The page as a strict parser of XML reads it, with nothing in it that runs, and links within it alone."""
    root = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>"))
    ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    for element in root.iter():
        assert element.tag in TAGS
        for name, value in element.attrib.items():
            assert not name.lower().startswith("on")
            assert name not in ("href", "src") or value[1:] in ids
    return root


def shown_texts(root: ElementTree.Element) -> str:
    """All text of a page but its style."""
    return "\n".join(element.text or "" for element in root.iter() if element.tag != "style")
