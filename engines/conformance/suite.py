"""All scenarios against a gateway, mock servers behind it, and failures as files that are played again."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import msgspec
import numpy as np

from fairsched.engines.analysis.report import Part, Samples, played
from fairsched.engines.conformance import script as steps
from fairsched.engines.conformance.callers import CallerPace, Gateways, Player
from fairsched.engines.conformance.loadtest import NotListeningError
from fairsched.engines.conformance.mock_server import MockEngine, MockServer, serving
from fairsched.engines.conformance.scenarios import CLIENTS, SCENARIOS, Scenario, ScenarioLimits, Setting
from fairsched.engines.conformance.script import VERSION
from fairsched.engines.files import write_whole

SAMPLES_MAX = 300
"""Entries of a journal that a page shows."""
STEP_SECONDS = 0.005
READY_SECONDS, READY_SECONDS_MAX = 0.5, 60.0


@attrs.frozen
class MockServers:
    """Mock servers that stand behind the gateway: their addresses, and their speed."""

    urls: tuple[str, ...]
    engines: tuple[MockEngine, ...]
    journal: list[tuple[str, int]]

    @classmethod
    @asynccontextmanager
    async def serve(
        cls, count: int, at_once: int, *, host: str = "127.0.0.1", port: int = 0, step_seconds: float = STEP_SECONDS
    ) -> "AsyncIterator[MockServers]":
        """Serve so many from this port on (0: free ones) in the running loop; `at_once` calls at a time together.

        Raises `ValueError` where that cannot be divided, `OSError` for a port that is taken.
        """
        if at_once % count:
            raise ValueError(f"{at_once} calls at a time cannot be divided between {count} servers")
        journal: list[tuple[str, int]] = []
        engines = tuple(
            MockEngine(at_once // count, step_seconds, 0.0, lambda what, call: journal.append((what, call)))
            for _ in range(count)
        )
        async with AsyncExitStack() as stack:
            urls = [
                await stack.enter_async_context(serving(MockServer(engine), host, port and port + i))
                for i, engine in enumerate(engines)
            ]
            yield cls(tuple(urls), engines, journal)


@attrs.frozen
class CheckedScenario:
    """A scenario and its verdict; with the script and the record, unless it does not apply."""

    scenario: Scenario
    verdict: steps.ScenarioVerdict
    script: steps.CallScript | None = None
    record: steps.Record | None = None

    def to_json(self) -> dict[str, object]:
        verdict = {key: value for key, value in msgspec.to_builtins(self.verdict).items() if value}
        return {"name": self.scenario.name, "claim": self.scenario.claim} | verdict

    def played(self, limits: ScenarioLimits) -> Part:
        """Return the part of a page that plays what happened, entry by entry of the journal; there must be a record."""
        assert self.record is not None
        record, journal = self.record, self.record.journal
        owners = {number: call.client for number, call in record.script.calls.items()}
        names = tuple(dict.fromkeys(owners.values()))
        waiting, tokens = np.zeros((2, len(journal) + 1, len(names)), dtype=np.int64)
        queued: set[int] = set()
        for k, (what, number) in enumerate(journal, 1):
            place = names.index(owners[number])
            if what == "sent":
                queued.add(number)
                waiting[k, place] = 1
            elif what in ("begun", "ended") and number in queued:
                queued.remove(number)
                waiting[k, place] = -1
            tokens[k, place] = what == "token"
        said = ["", *(f"{owners[number]}, call {number}: {what}" for what, number in journal)]
        at = np.unique(np.linspace(0, len(journal), SAMPLES_MAX).round().astype(np.int64))
        measures = {"waiting calls": waiting.cumsum(axis=0)[at], "tokens received": tokens.cumsum(axis=0)[at]}
        gaps, bound = None, None
        if self.verdict.limit == limits.gap:
            bound = limits.gap_tokens
            first, second = names
            gaps = np.array([round(gap or 0) for gap, _ in record.service_gaps(first, second, CLIENTS)])[at]
        return played(
            f"{self.scenario.name}: {self.verdict.result}",
            f"Claim: {self.scenario.claim}. Measured: {self.verdict.measured}; limit: {self.verdict.limit}.",
            names,
            [Samples(self.scenario.name, at.astype(np.float64), measures, gaps, bound, [said[k] for k in at])],
            unit="events",
            gap="largest gap so far while both wait, tokens by weight",
        )


class Suite:
    """A gateway, or instances of one, to be held to the scenarios; `servers` are the mock ones behind it."""

    def __init__(
        self,
        gateways: Gateways,
        servers: MockServers | None,
        limits: ScenarioLimits,
        *,
        seed: int = 0,
        pace: CallerPace | None = None,
    ) -> None:
        self.gateways = gateways
        self.limits = limits
        self.seed = seed
        self.setting = Setting(limits, len(gateways.urls), servers is not None, gateways.shows.way)
        self._player = Player(
            gateways, () if servers is None else servers.engines, [] if servers is None else servers.journal
        )
        if pace is not None:
            self._player.pace = pace

    async def ready(self, seconds: float | None = None) -> None:
        """Wait until every client gets an answer at every gateway.  Raises `ValueError` if one does not in time (None:
        within a minute, and at once where nothing listens)."""
        end = time.monotonic() + (READY_SECONDS_MAX if seconds is None else seconds)
        async with self._player as player:
            for gateway, url in enumerate(self.gateways.urls):
                for client in CLIENTS:
                    while True:
                        try:
                            await player.model()
                            heard = await player.ask(steps.ScriptedCall(0, client, 2, gateway, stream=False))
                            said = heard.lost or f"HTTP {heard.status} {heard.said}"
                        except ValueError as error:
                            if seconds is None and isinstance(error, NotListeningError):
                                raise
                            said, heard = str(error), None
                        if heard is not None and heard.answered:
                            break
                        if time.monotonic() >= end:
                            raise ValueError(f"{url} does not answer {client}: {said}")
                        await asyncio.sleep(READY_SECONDS)

    async def run(
        self, names: Collection[str] = tuple(SCENARIOS), progress: Callable[[str, int, int], None] | None = None
    ) -> list[CheckedScenario]:
        """Try the scenarios with these names, in their order."""
        found: dict[str, CheckedScenario] = {}
        chosen = [scenario for name, scenario in SCENARIOS.items() if name in names]
        for done, scenario in enumerate(chosen):
            if progress is not None:
                progress(scenario.name, done, len(chosen))
            before = found.get(scenario.after or "")
            shows = before is None or before.verdict.result == "passes" or scenario.lacks(self.setting)
            if not shows:
                why = f"{scenario.after} does not pass, so that this would show nothing"
                found[scenario.name] = CheckedScenario(scenario, steps.ScenarioVerdict("not applicable", reason=why))
            else:
                found[scenario.name] = await self.play(scenario.script(self.seed, self.limits))
        return list(found.values())

    async def play(self, script: steps.CallScript) -> CheckedScenario:
        scenario = SCENARIOS[script.scenario]
        if why := scenario.lacks(self.setting):
            return CheckedScenario(scenario, steps.ScenarioVerdict("not applicable", reason=why))
        async with self._player as player:
            await player.model()
            record = await player.play(script)
        return CheckedScenario(scenario, scenario.judge(record, self.limits), script, record)


async def conform(
    gateways: Gateways,
    limits: ScenarioLimits,
    *,
    servers: int = 0,
    host: str = "127.0.0.1",
    port: int = 0,
    names: Collection[str] = tuple(SCENARIOS),
    script: steps.CallScript | None = None,
    seed: int = 0,
    wait_seconds: float | None = None,
    said: Callable[[Sequence[str]], None] = lambda _: None,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[CheckedScenario]:
    """Hold gateways to the scenarios with these names, or to one script; with so many mock servers behind them.

    `said` is told the addresses of the mock servers, before anything is asked.  Raises `ValueError` where a gateway
    does not answer (`Suite.ready`), `OSError` for a port that is taken.
    """
    async with AsyncExitStack() as stack:
        mocked = None
        if servers:
            mocked = await stack.enter_async_context(MockServers.serve(servers, limits.at_once, host=host, port=port))
            said(mocked.urls)
        suite = Suite(gateways, mocked, limits, seed=seed)
        await suite.ready(wait_seconds)
        return await suite.run(names, progress) if script is None else [await suite.play(script)]


def write_failure(path: Path, checked: CheckedScenario, limits: ScenarioLimits, release: str) -> None:
    """Write what failed as a file to play again.  Raises `Unwritable`."""
    assert checked.script is not None
    assert checked.record is not None
    failure = steps.Failure(release, checked.script, attrs.asdict(limits), checked.verdict, checked.record.journal)
    write_whole(path, msgspec.json.format(msgspec.json.encode(failure), indent=1))


def read_failure(path: Path) -> tuple[steps.CallScript, ScenarioLimits]:
    """Return the calls in such a file, and what they were held to.

    Raises `ValueError`, and `OSError` for a file that cannot be read.
    """
    try:
        failure = msgspec.json.decode(path.read_bytes(), type=steps.Failure)
        limits = ScenarioLimits(**failure.limits)
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None
    script = failure.script
    if script.version != VERSION:
        raise ValueError(f"{path}: version {script.version}, and this release reads {VERSION}")
    if script.scenario not in SCENARIOS:
        raise ValueError(f"{path}: no scenario is called {script.scenario!r}")
    for call in script.calls.values():
        if call.client not in CLIENTS or call.flaw not in steps.FLAWS:
            raise ValueError(f"{path}: call {call.number}: no client {call.client!r} shows what is {call.flaw!r}")
    return script, limits
