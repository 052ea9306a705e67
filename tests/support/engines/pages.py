"""Pages of reports as a strict parser reads them."""

import json
from xml.etree import ElementTree

from fairsched.engines.analysis.report.page import PLAYER

TAGS = {
    *("html", "head", "meta", "title", "style", "body", "header", "main", "footer", "section", "nav", "div", "h1"),
    *("h2", "p", "ul", "li", "a", "span", "small", "pre", "dl", "dt", "dd", "details", "summary", "figure"),
    *("figcaption", "table", "thead", "tbody", "tr", "th", "td"),
    *("svg", "g", "path", "defs", "clipPath", "rect", "use", "text", "tspan", "circle"),
}


def parsed(text: str) -> ElementTree.Element:
    """The page as a strict parser of XML reads it, with nothing in it that runs but the player, and links within it
    alone."""
    root = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>"))
    ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    for element in root.iter():
        if element.tag == "script":
            script = (element.text or "").strip()
            assert json.loads(script) if element.attrib else script == f"/**/\n{PLAYER.read_text()}\n/**/"
        else:
            assert element.tag in TAGS
        for name, value in element.attrib.items():
            assert not name.lower().startswith("on")
            assert name not in ("href", "src") or value[1:] in ids
    return root


def shown_texts(root: ElementTree.Element) -> str:
    """All text of a page but its style and what plays."""
    return "\n".join(element.text or "" for element in root.iter() if element.tag not in ("style", "script"))
