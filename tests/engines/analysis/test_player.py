"""The player of a page in a real browser: what it shows at a moment is what samples say, by mouse, touch and keys."""

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import numpy as np
import pytest

from fairsched.cli import main
from fairsched.engines.analysis import Comparison
from fairsched.engines.analysis.audit import audit_log, write_audit
from fairsched.engines.analysis.report import Page
from fairsched.engines.conformance import SCENARIOS, CheckedScenario, ScenarioLimits
from fairsched.engines.conformance.script import HeardAnswer, Record
from fairsched.engines.simulation import compare
from fairsched.engines.workloads import generate
from tests.engines.analysis.test_pages import chromium
from tests.support.access_logs import Line, write

WIDTHS = (400, 1280)
KB = 1_000
COUNTEREXAMPLE = Path(__file__).parents[2] / "replays/refutations/ce1.json"
SHOWN = """(() => {
  const figure = document.querySelector("figure.player"), box = (each) => each.getBoundingClientRect();
  const { x, y, width, height } = box(figure.querySelector(".sides svg"));
  return {
    k: +figure.querySelector("input").value,
    last: +figure.querySelector("input").max,
    values: [...figure.querySelectorAll(".sides li b")].map((each) => +each.textContent.replaceAll(",", "")),
    times: [...figure.querySelectorAll("output")].map((each) => each.textContent),
    needed: document.documentElement.scrollWidth, x, y, width, height,
  };
})()"""


@attrs.define
class Tab:
    """A page in a browser, and what went wrong in it."""

    socket: aiohttp.ClientWebSocketResponse
    session: str = ""
    errors: list[str] = attrs.field(factory=list)
    numbers: "itertools.count[int]" = attrs.field(factory=itertools.count)

    async def call(self, method: str, **params: object) -> dict[str, Any]:
        """Ask the browser for something, and take in what it tells meanwhile."""
        number = next(self.numbers)
        await self.socket.send_json({"id": number, "method": method, "params": params, "sessionId": self.session})
        while True:
            told = await self.socket.receive_json(timeout=120)
            if told.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
                self.errors.append(json.dumps(told["params"]))
            if told.get("id") == number:
                assert "error" not in told, told
                result: dict[str, Any] = told["result"]
                return result

    async def shown(self, script: str = SHOWN) -> Any:
        """Return what a script gives in the page."""
        return (await self.call("Runtime.evaluate", expression=script, returnByValue=True))["result"].get("value")

    async def drag(self, start: float, stop: float, *, by_touch: bool) -> None:
        """Drag in the first picture between two places, as parts of its width."""
        at = await self.shown()
        for kind, part in (("Press", start), ("Move", (start + stop) / 2), ("Move", stop), ("Release", stop)):
            place = {"x": at["x"] + part * at["width"], "y": at["y"] + at["height"] / 2}
            if by_touch:
                name = {"Press": "touchStart", "Move": "touchMove", "Release": "touchEnd"}[kind]
                points = [] if kind == "Release" else [place]
                await self.call("Input.dispatchTouchEvent", type=name, touchPoints=points)
            else:
                name = {"Press": "mousePressed", "Move": "mouseMoved", "Release": "mouseReleased"}[kind]
                await self.call("Input.dispatchMouseEvent", type=name, button="left", buttons=1, clickCount=1, **place)

    async def key(self, key: str) -> None:
        """Press a key, and let it go."""
        code = {"ArrowRight": 39, "Home": 36, "End": 35}[key]
        for kind in ("rawKeyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)


@asynccontextmanager
async def opened(page: Path, width: int, folder: Path) -> AsyncIterator[Tab]:
    """A page in a window of that width, in a browser of its own; skips where it does not run."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", f"--user-data-dir={folder}"]
    browser = await asyncio.create_subprocess_exec(chromium(), *options, stderr=asyncio.subprocess.PIPE)
    try:
        assert browser.stderr is not None
        url = None
        while url is None:
            line = (await asyncio.wait_for(browser.stderr.readline(), 120)).decode(errors="replace")
            if not line:
                pytest.skip("the browser does not run here")
            url = re.search(r"DevTools listening on (ws://\S+)", line)
        async with aiohttp.ClientSession() as session, session.ws_connect(url[1], max_msg_size=0) as socket:
            tab = Tab(socket)
            target = (await Tab(socket).call("Target.createTarget", url="about:blank"))["targetId"]
            tab.session = (await tab.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
            for each in ("Runtime", "Log", "Page"):
                await tab.call(f"{each}.enable")
            size = {"width": width, "height": 2_000, "deviceScaleFactor": 1, "mobile": width < 500}
            await tab.call("Emulation.setDeviceMetricsOverride", **size)
            await tab.call("Emulation.setTouchEmulationEnabled", enabled=width < 500)
            await tab.call("Page.navigate", url=page.resolve().as_uri())
            while not await tab.shown("document.readyState === 'complete'"):
                pass
            yield tab
    finally:
        browser.terminate()
        await browser.wait()


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    """Three policies under load."""
    return compare(generate("demo", limit=400), ["fcfs", "lpm", "dlpm"])


@pytest.fixture(scope="module")
def pages(comparison: Comparison, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An audit, a comparison, a counterexample, and a gateway that serves first come first."""
    folder = tmp_path_factory.mktemp("pages")
    assert main(["verify", "--replay", str(COUNTEREXAMPLE), "--report", str(folder / "counterexample")]) == 0
    limits, scenario = ScenarioLimits.of(4), SCENARIOS["weights"]
    script = scenario.script(0, limits)
    journal = [("sent", number) for number in script.calls]
    for number, call in script.calls.items():
        journal += [("begun", number), *[("token", number)] * call.tokens, ("ended", number)]
    record = Record(script, journal, {number: HeardAnswer(200, done=1) for number in script.calls}, True)
    checked = CheckedScenario(scenario, scenario.judge(record, limits), script, record)
    assert checked.verdict.result == "fails"
    lines = [Line(f"client-{i % 3}", 1_000 * i, 20_000, 900, 50 + i, 20) for i in range(60)]
    log = write(folder / "access.jsonl", lines)
    return {
        "audit": write_audit(folder / "audit", audit_log(log), "fairsched audit"),
        "comparison": comparison.report(folder / "comparison"),
        "counterexample": folder / "counterexample" / "index.html",
        "conform": Page("A gateway", ["It fails."], [checked.played(limits)]).write(folder / "conform"),
    }


def expected(comparison: Comparison, seconds: float) -> list[int]:
    """Return what the player shows at a moment, of LPM beside DLPM."""
    runs = {run.policy: run for run in comparison.runs}
    sides = [runs["lpm"].series, runs["dlpm"].series]
    at = [int(np.searchsorted(side.service_s.round(3), seconds, side="right")) - 1 for side in sides]
    found = [int(value) for side, k in zip(sides, at, strict=True) for value in side.queue[k]]
    found += [int(value) for side, k in zip(sides, at, strict=True) for value in side.service[k]]
    for side, k in zip(sides, at, strict=True):
        grown = [int(gap) for time, gap in zip(side.gap_s, side.gap, strict=True) if time <= side.service_s[k]]
        found.append(grown[-1] if grown else 0)
    return found


@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_shown_is_the_run_s_own(
    width: int, pages: dict[str, Path], comparison: Comparison, tmp_path: Path
) -> None:
    """Wherever one drags, by mouse or by touch, and at either end by keys, queues, services and gaps of LPM beside DLPM
    are those of the runs; another run can be chosen; and it plays and stops."""

    async def tried() -> None:
        async with opened(pages["comparison"], width, tmp_path) as tab:
            clock = max((run.series.service_s for run in comparison.runs if run.policy != "fcfs"), key=max).round(3)
            seen = set()
            for start, stop in ((0.1, 0.3), (0.9, 0.6), (0.6, 0.97)):
                await tab.drag(start, stop, by_touch=width < 500)
                shown = await tab.shown()
                assert shown["k"] == pytest.approx(stop * shown["last"], abs=1.5)
                assert shown["values"] == expected(comparison, clock[shown["k"]])
                seen.add(tuple(shown["values"]))
            assert len(seen) == 3
            await tab.shown("document.querySelector('.player input').focus()")
            for key, k in (("Home", 0), ("ArrowRight", 1), ("End", len(clock) - 1)):
                await tab.key(key)
                shown = await tab.shown()
                assert (shown["k"], shown["values"]) == (k, expected(comparison, clock[k]))
            await tab.shown("document.querySelector('.player button').click()")
            while not 0 < (await tab.shown())["k"] < len(clock) - 1:
                await asyncio.sleep(0.01)
            await tab.shown("document.querySelector('.player button').click()")
            stopped = await tab.shown()
            await asyncio.sleep(0.3)
            assert await tab.shown() == stopped
            choose = "s.value = 0; s.dispatchEvent(new Event('change'))"
            await tab.shown(f"{{ const s = document.querySelector('.player select'); {choose} }}")
            assert (await tab.shown())["values"] != stopped["values"]
            assert tab.errors == []

    asyncio.run(tried())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["audit", "comparison", "counterexample", "conform"])
def test_each_page_plays_in_its_window(name: str, width: int, pages: dict[str, Path], tmp_path: Path) -> None:
    """Without an error, without a page wider than its window, with other values at the end than at the start, and in
    less than 400 kB that fetch nothing."""

    async def tried() -> None:
        async with opened(pages[name], width, tmp_path) as tab:
            await tab.drag(0.5, 0.01, by_touch=width < 500)
            start = await tab.shown()
            await tab.drag(0.5, 0.99, by_touch=width < 500)
            end = await tab.shown()
            assert start["values"] != end["values"]
            assert start["times"] != end["times"]
            assert end["needed"] <= width
            assert tab.errors == []
            assert await tab.shown("performance.getEntriesByType('resource').length") == 0
            # A fault of a page is told.
            await tab.shown("console.error('a fault')")
            assert len(tab.errors) == 1

    asyncio.run(tried())
    assert pages[name].stat().st_size < 400 * KB
