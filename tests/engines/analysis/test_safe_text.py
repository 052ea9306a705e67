"""Names from outside are safe to show: none moves the cursor or reorders the line, and all stay short."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairsched.engines.analysis import safe_text
from fairsched.engines.analysis.figures import NAME_MAX

ODD = "\x00\x07\x1b\x7f\x9b\n\r\t\u0301\u0489\u200b\u200c\u200d\u202e\u2066\u2068\u2069\ufe0f\u3164\ud800\xa0 אب日é=a…"
TEXTS = st.text(st.one_of(st.sampled_from(ODD), st.characters())) | st.text(st.sampled_from(ODD))
MARKS = ("Mn", "Me")


@given(TEXTS)
@example("gold\x1b]0;title\x07\x1b[2J")
@example("e" + "\u0301" * 500)
@example("\u2068\u202eabc\u2069")
def test_a_shown_name_is_one_short_line_of_characters_that_show(text: str) -> None:
    """What is shown of a name has no control, bidirectional or invisible character but the pair that isolates one that
    runs from right to left, no pile of marks, and at most `NAME_MAX` characters; it can be encoded, and made safe again
    it is the same."""
    shown = safe_text(text)
    runs_left = any(unicodedata.bidirectional(letter) in ("R", "AL", "AN") for letter in shown)
    inside = shown[1:-1] if runs_left else shown
    assert not runs_left or (shown[0], shown[-1]) == ("\u2068", "\u2069")
    assert 0 < len(inside) <= NAME_MAX
    assert inside.strip()
    for before, letter in zip(" " + inside, inside, strict=False):
        assert letter.isprintable() or (letter in "\u200c\u200d" and not before.isspace())
    piles = "".join("m" if unicodedata.category(letter) in MARKS else " " for letter in inside).split()
    assert all(len(pile) <= 4 for pile in piles)
    assert unicodedata.category(inside[0]) not in MARKS
    shown.encode()
    assert safe_text(shown) == shown


@pytest.mark.parametrize(
    "name",
    [
        "gold",
        "team/prod-7",
        "Zoë",
        "日本語",
        "Nguyễn",
        "naïve e\u0301",
        "❤\ufe0f",
        "क्षि",
        "ภาษาไทย",
        "a<b>&\"'",
        "C:\\x",
    ],
)
def test_an_honest_name_is_shown_as_it_is(name: str) -> None:
    """Names in the scripts of the world, marks included, are not touched; nor are characters that HTML escapes."""
    assert safe_text(name) == name


def test_a_name_from_right_to_left_is_isolated_and_keeps_its_joiners() -> None:
    """A Persian name keeps the joiner that its spelling needs, and does not reorder the figures beside it."""
    name = "می\u200cخواهم"
    assert safe_text(name) == f"\u2068{name}\u2069"


def test_a_long_name_keeps_its_ends() -> None:
    """Names that differ at either end are told apart after they are shortened, and no mark loses its letter."""
    long = "org-" + "e\u0301" * 500 + "-key7"
    shown = safe_text(long, 20)
    assert len(shown) <= 20
    assert shown.startswith("org-")
    assert shown.endswith("-key7")
    head, tail = shown.split("…")
    assert unicodedata.category(tail[0]) not in MARKS
    assert head.count("e") == head.count("\u0301")
    assert safe_text(long, None) == long
