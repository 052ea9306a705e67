"""Pages of reports: no name breaks one, none is wider than its window, and times are those of the clock they name."""

import json
import shutil
import subprocess
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from fairsched.engines.analysis import report, safe_text
from fairsched.engines.analysis.audit import audit_log
from fairsched.engines.analysis.audit.page import page_of
from fairsched.engines.analysis.report.page import Facts
from tests.support.access_logs import Line, write
from tests.support.engines.pages import parsed, shown_texts

HOSTILE = (
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "</text></svg><script>document.title='owned'</script>",
    "]]><!--&amp;{{7*7}}{% raw %}",
    "gold\x1b[31m\x00\x07\r\n\u202egold",
    "מוסד הטכנולוגיה \u2067ABC",
    "tenant-" + "x" * 300 + "-eu-west",
    "$\\frac{1}{0}$ _^&%#",
)
ODD = "<>&\"'{}%#$\\\x00\x08\x0b\x0c\x1b\x85\n\r\t\u0301\u200b\u202e\u2066\u2067\u2069\ufeff\ufffe\ud800אب日a "
COUNTS = (2, 8, 40)
NAMES = st.text(st.sampled_from(ODD) | st.characters(), min_size=1, max_size=12)


def named(name: str) -> report.Page:
    """A page that says a name wherever it can."""
    blocks: list[report.Block] = [
        name,
        report.Sentences([name]),
        report.Code(name),
        Facts([(name, name)]),
        report.Folded(name, [report.Table(["client", name], [[report.Cell(name, name), name]], name)], id="a"),
    ]
    return report.Page(name, [name, name], [report.Part(name, blocks)], name, "", name, [name])


@settings(max_examples=60, deadline=None)
@given(NAMES)
@example(HOSTILE[0])
@example(HOSTILE[4])
def test_no_name_breaks_a_page(name: str) -> None:
    """Wherever a name stands on a page, the page stays well-formed and harmless, and the name can be read there."""
    texts = shown_texts(parsed(named(name).html()))
    for line in filter(str.strip, name.split("\n")):
        if not {"\u2068", "\u2069"} & {*line}:
            assert texts.count(safe_text(line, None)) >= 12


@settings(max_examples=12, deadline=None)
@given(NAMES)
@example(HOSTILE[2])
@example(HOSTILE[7])
def test_no_name_breaks_a_picture(name: str) -> None:
    """A name in a picture is text of the picture, as on the page."""

    def picture(figure: Figure) -> None:
        figure.text(0, 0, name)

    root = parsed(report.drawn("a", name, "", 1, picture).svg)
    texts = "".join(shown_texts(root).split())
    expected = "".join(safe_text(name.replace("\n", ""), None).split())
    # Of blanks alone nothing is drawn.
    assert expected in texts or "\n" in name or "\u2069" in name or not name.strip()


@pytest.fixture(scope="module")
def audits(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Pages of audits of logs with 2, 8 and 40 clients, the first of which have hostile names."""
    found = {}
    for count in COUNTS:
        names = [*HOSTILE, *(f"client-{i}" for i in range(len(HOSTILE), count))]
        lines = []
        for i in range(3 * count + 30):
            lines.append(Line(names[i % count], 1_000 * i, 400 if i % count else 20_000, 900, 50 + i, 20))
        log = write(tmp_path_factory.mktemp("logs") / "access.jsonl", lines)
        found[count] = page_of(audit_log(log, starved_after_ns=5 * 10**9), "fairsched audit <log> 'a&b'").html()
    return found


@pytest.mark.parametrize("count", COUNTS)
def test_a_log_s_hostile_clients_do_no_harm(audits: dict[int, str], count: int) -> None:
    """The whole report of such a log, pictures included, is well-formed and harmless, and names its clients."""
    root = parsed(audits[count])
    texts = shown_texts(root)
    for name in HOSTILE[: 2 if count == 2 else 8]:
        assert safe_text(name) in texts
    assert root.find(".//a[@href='#client-1']") is not None


# --- a real browser ---------------------------------------------------------------------------------------------------

WIDTHS = (400, 1280, 1920)
LETTER_PX = 11
MEASURE = """<!DOCTYPE html><body><script>
const pages = PAGES, found = [];
for (const [name, text] of Object.entries(pages)) for (const width of WIDTHS) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:800px;border:0`;
  frame.srcdoc = text;
  frame.onload = () => {
    const page = frame.contentDocument, letters = [];
    for (const text of page.querySelectorAll("figure svg text")) {
      const box = text.getScreenCTM();
      if (text.getClientRects().length && text.textContent.trim())
        letters.push(parseFloat(getComputedStyle(text).fontSize) * Math.hypot(box.a, box.b));
    }
    found.push({name, width, needed: page.documentElement.scrollWidth, letters: Math.min(...letters),
      pictures: [...page.querySelectorAll("figure svg")].filter(svg => svg.getClientRects().length > 0
        && !svg.classList.contains("key")).length, title: page.title, links: page.links.length});
    if (found.length == WIDTHS.length * Object.keys(pages).length)
      document.body.textContent = "FOUND" + JSON.stringify(found) + "END";
  };
  document.body.append(frame);
}
</script></body>"""


def chromium() -> str:
    """The browser's program; the test is skipped where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("there is no browser: Debian's chromium is one")
    return found


def test_no_page_is_wider_than_its_window(audits: dict[int, str], tmp_path: Path) -> None:
    """In a real browser, at the widths of a phone, a laptop and a desktop, no page scrolls sideways, every picture is
    there once with letters of eleven pixels, and no name has run."""
    browser = chromium()
    pages = json.dumps({str(count): text for count, text in audits.items()}).replace("</", "<\\/")
    harness = tmp_path / "measure.html"
    harness.write_text(MEASURE.replace("PAGES", pages).replace("WIDTHS", json.dumps(WIDTHS)))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", harness.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False).stdout
    if "FOUND" not in dom:
        pytest.skip("the browser does not run here")
    rows = json.loads(dom.split("FOUND")[-1].split("END")[0])
    assert len(rows) == len(COUNTS) * len(WIDTHS)
    for row in rows:
        assert row["needed"] <= row["width"], row
        assert row["letters"] >= LETTER_PX, row
        assert row["title"] == "Audit of a log"
        assert row["pictures"] == 6


# --- time -------------------------------------------------------------------------------------------------------------

ZONES = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-8))])


@given(
    st.floats(5, 40 * 86_400),
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)),
    ZONES,
    st.integers(3, 10),
)
def test_ticks_are_round_times_of_the_log_s_own_clock(span: float, start: datetime, zone: timezone, most: int) -> None:
    """There are some ticks and not too many, inside the axis, and what stands at each is the time of day in the log's
    zone, which is whole to the last figure that is shown."""
    axis = report.TimeAxis(span, start.replace(tzinfo=zone))
    ticks = axis.ticks(0, span, most)
    assert len(ticks) <= most
    assert len(ticks) >= 1 or span < 60
    for seconds in ticks:
        assert -1e-6 <= seconds <= span + 1e-6
        moment = start + timedelta(seconds=seconds)
        moment = (moment + timedelta(milliseconds=500)).replace(microsecond=0)
        written = axis.text(seconds)
        assert f"{moment:%H:%M}" in written or written == f"{moment:%d %b}"
        if ":" in written and written.count(":") == 1:
            assert moment.second == 0
    assert f"{start:%Y-%m-%d}" in axis.label()
    assert str(start.replace(tzinfo=zone).tzname()) in axis.label()


def test_a_clock_that_is_put_back_is_told_as_it_was() -> None:
    """In the night in which Berlin's clocks go back, the axis goes on in real time."""
    axis = report.TimeAxis(4 * 3_600, datetime(2026, 10, 25, 1, 0, tzinfo=ZoneInfo("Europe/Berlin")))
    assert [axis.text(3_600 * hour) for hour in range(4)] == ["01:00", "02:00", "02:00", "03:00"]


@pytest.mark.parametrize(
    ("span", "label", "written"),
    [(100, "seconds", "40"), (3_000, "minutes", "10"), (40_000, "hours", "2")],
)
def test_a_run_is_told_since_its_start(span: float, label: str, written: str) -> None:
    """A simulated run has no clock: its axis counts from the first arrival, in a unit that fits."""
    axis = report.TimeAxis(span)
    assert axis.label() == f"{label} since the first arrival"
    ticks = axis.ticks(0, span, 8)
    assert ticks[0] == 0
    assert written in map(axis.text, ticks)
    assert all("." not in axis.text(tick) for tick in ticks)
