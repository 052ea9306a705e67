"""The queue inside LiteLLM's proxy without LiteLLM: an application that asks for places, answers, fails and hangs, in
any order; and what names a client, what a call comes to, and what a file may say."""

import asyncio
import gzip
import json
import re
import tomllib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from msgspec.structs import replace

from fairsched.engines.adapters.litellm import LiteLlmSettings, ProxyQueue, QueuedRequests, from_environment
from fairsched.engines.gateway import CallError, StoreConfig
from fairsched.engines.settings import ConfigError, made
from tests.support.adapters.loops import in_loop, until

FILE = """
quantum = 64
[pool]
window_tokens = 120
window_requests = 3
[limits]
waiting = 5
waiting_per_client = 3
wait_seconds = 1e6
[client."team:gold"]
weight = 4
[model.own]
window_tokens = 60
window_requests = 1
"""
HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"Content-Type", b"application/json")]}
STREAM = {**HEAD, "headers": [(b"content-type", b"text/event-stream; charset=utf-8")]}
TOKEN = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": null}]}\n\n'
ANTHROPIC = {"input_tokens": 8, "output_tokens": 6}
DONE = b"data: [DONE]\n\n"


SETTINGS = made(LiteLlmSettings, tomllib.loads(FILE), "fair.toml")


def configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> LiteLlmSettings:
    """The settings in a file of that text, which the environment names."""
    (tmp_path / "fair.toml").write_text(text)
    monkeypatch.setenv("FAIRSCHED_LITELLM_CONFIG", str(tmp_path / "fair.toml"))
    return from_environment()


def key(**known: str) -> SimpleNamespace:
    """What LiteLLM knows of a caller."""
    nothing = dict.fromkeys(("team_alias", "team_id", "user_id", "key_alias", "token"))
    return SimpleNamespace(**nothing | known)


def answer(prompt: int, output: int) -> bytes:
    """A whole answer that says its usage."""
    return json.dumps({"usage": {"prompt_tokens": prompt, "completion_tokens": output}}).encode()


def body(data: bytes = b"", more: bool = False) -> dict[str, Any]:
    """A message with bytes of an answer, the last one or not."""
    return {"type": "http.response.body", "body": data, "more_body": more}


class Request:
    """A request in the proxy: what its application does next is said from outside, and comes at once."""

    def __init__(self, queue: ProxyQueue, caller: SimpleNamespace, call_type: str = "acompletion", **data: Any) -> None:
        self.queue = queue
        self.call = caller, call_type, {"messages": [{"role": "user", "content": "x" * 20}], "max_tokens": 20} | data
        self.placed = self.whole = False
        self.refused: CallError | None = None
        self.sent: list[Any] = []
        self._gone = asyncio.Event()
        self._todo: asyncio.Queue[Any] = asyncio.Queue()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await QueuedRequests(self._application)({"type": "http"}, self._receive, self._send)

    async def _application(self, _: Any, __: Any, send: Any) -> None:
        try:
            await self.queue.place(*self.call)
        except CallError as error:
            self.refused = error
            return
        self.placed = True
        while (what := await self._todo.get()) is not None:
            match what:
                case "again":
                    await self.queue.place(*self.call)
                case Exception():
                    raise what
                case _:
                    await send(what)

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    def does(self, *what: Any) -> None:
        """Let the application do this next: send messages, ask again, fail, or return (None)."""
        for each in what:
            self._todo.put_nowait(each)

    def leave(self) -> None:
        """Let the caller leave."""
        self._gone.set()

    @property
    def over(self) -> bool:
        return self.task.done()


async def never(*_: Any) -> Any:
    """Receive or send nothing."""
    await asyncio.Event().wait()


async def settled() -> None:
    """Let everything happen that can."""
    for _ in range(20):
        await asyncio.sleep(0)


def in_flight(queue: ProxyQueue) -> int:
    """Calls that have a place."""
    return sum(picker.window.in_flight for picker in queue.pickers)


def waiting(queue: ProxyQueue) -> int:
    """Calls that wait."""
    return sum(picker.window.waiting for picker in queue.pickers)


def outcomes(queue: ProxyQueue) -> Counter[str]:
    """How calls ended."""
    return sum((each.outcomes for each in queue.pickers), Counter())


class AnyOrder(RuleBasedStateMachine):
    """Requests come, wait, answer, fail and are left in any order."""

    requests = Bundle("requests")

    @initialize()
    def begins(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.all: list[Request] = []

        async def make() -> ProxyQueue:
            return ProxyQueue(SETTINGS)

        self.queue = self.loop.run_until_complete(make())

    def _step(self) -> None:
        self.loop.run_until_complete(settled())

    @rule(
        target=requests,
        team=st.sampled_from(["gold", "a", "b"]),
        most=st.integers(1, 150),
        call_type=st.sampled_from(["acompletion", "anthropic_messages"]),
        model=st.sampled_from(["own", "any"]),
    )
    def comes(self, team: str, most: int, call_type: str, model: str) -> Request:
        """A request comes; some are larger than their window."""

        async def make() -> Request:
            return Request(self.queue, key(team_alias=team), call_type, max_tokens=most, model=model)

        self.all.append(self.loop.run_until_complete(make()))
        self._step()
        return self.all[-1]

    @rule(
        request=requests,
        what=st.lists(
            st.sampled_from(
                [HEAD, STREAM, {**HEAD, "status": 429}, {**HEAD, "status": 504}, "again"]
                + [body(each, more=True) for each in (b"", TOKEN, 3 * TOKEN, b"\xff{", answer(9, 3))]
            ),
            max_size=4,
        ),
        ends=st.sampled_from(["", "whole", "returns", "fails"]),
    )
    def does(self, request: Request, what: list[Any], ends: str) -> None:
        """The application sends something, also what makes no answer, or ends."""
        end = {"": (), "whole": (body(answer(9, 3)),), "returns": (None,), "fails": (RuntimeError("broken"),)}[ends]
        request.does(*what, *end)
        self._step()

    @rule(request=requests)
    def leaves(self, request: Request) -> None:
        """The caller leaves: a call that waits is out at once, and the server's work is the application's."""
        waited = not request.placed and not request.over
        request.leave()
        self._step()
        if waited:
            assert request.over
            assert request.refused is not None
            assert request.refused.status == 499

    @rule(request=consumes(requests))
    def is_cancelled(self, request: Request) -> None:
        """The server or the application cancels the request, wherever it is."""
        request.task.cancel()
        self._step()

    @invariant()
    def each_has_one_place_while_it_is_not_answered(self) -> None:
        """What the windows hold is what was let in and has no whole answer yet."""
        held = [each for each in self.all if each.placed and not each.over and each not in self._answered()]
        assert in_flight(self.queue) == len(held)
        assert waiting(self.queue) == sum(not each.placed and not each.over for each in self.all)

    def _answered(self) -> set[Request]:
        return {each for each in self.all if any(is_last(message) for message in each.sent)}

    @invariant()
    def each_ends_once(self) -> None:
        """Calls that had a place and are over were counted once, however they ended."""
        counted = outcomes(self.queue)
        ends = counted["finished"] + counted["left"] + counted["refused by endpoint"]
        over = [each for each in self.all if each.placed and (each.over or each in self._answered())]
        assert ends == len(over)

    def teardown(self) -> None:
        async def stop() -> None:
            for each in self.all:
                each.task.cancel()
            await asyncio.gather(*(each.task for each in self.all), return_exceptions=True)
            await settled()

        self.loop.run_until_complete(stop())
        for picker in self.queue.pickers:
            assert (picker.window.in_flight, picker.window.waiting, picker.window.in_flight_tokens) == (0, 0, 0)
        self.loop.run_until_complete(self.queue.stop())
        self.loop.close()


def is_last(message: dict[str, Any]) -> bool:
    """Whether an answer is whole with this message."""
    return bool(message["type"] == "http.response.body" and not message["more_body"])


TestAnyOrder = AnyOrder.TestCase


@in_loop
async def test_a_call_comes_to_what_its_answer_says() -> None:
    """An answer's usage is charged, of one that is whole and of a stream, packed or not; a stream that does not say it
    comes to its events, and what was refused to nothing."""

    async def charged(*messages: Any, call_type: str = "acompletion") -> tuple[int, int]:
        queue = ProxyQueue(SETTINGS)
        request = Request(queue, key(user_id="a"), call_type)
        await settled()
        request.does(*messages, None)
        await settled()
        assert request.over
        said = queue.other_models.status()["clients"]["user:a"]
        return said["prompt_tokens"], said["output_tokens"]

    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}\n\n'
    packed = {**HEAD, "headers": [(b"content-type", b"application/json"), (b"content-encoding", b"gzip")]}
    assert await charged(HEAD, body(answer(11, 3))) == (11, 3)
    assert await charged(HEAD, body(answer(11, 3)[:9], more=True), body(answer(11, 3)[9:])) == (11, 3)
    assert await charged(packed, body(gzip.compress(answer(11, 3)))) == (11, 3)
    assert await charged(STREAM, body(TOKEN + TOKEN, more=True), body(usage + DONE)) == (7, 5)
    assert (await charged(STREAM, body(TOKEN + TOKEN, more=True), body(DONE)))[1] == 2
    assert await charged({**HEAD, "status": 400}, body(b"{}")) == (0, 0)
    deltas = [{"type": "content_block_delta", "delta": {"text": "x"}}, {"type": "message_delta", "usage": ANTHROPIC}]
    lines = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in deltas)
    assert await charged(STREAM, body(lines), call_type="anthropic_messages") == (8, 6)


@in_loop
async def test_clients_are_what_litellm_knows_of_their_keys() -> None:
    """A caller is its key's team, else user, else the key, by aliases before ids, whatever its body says; with an order
    of one's own that one holds. A key of which nothing is known is `others`."""

    async def name(caller: SimpleNamespace, *identify: str) -> str:
        queue = ProxyQueue(replace(SETTINGS, identify=identify or SETTINGS.identify))
        request = Request(queue, caller, user="gold", metadata={"team": "gold"})
        await settled()
        request.does(HEAD, body(answer(11, 3)), None)
        await settled()
        (found,) = (name for name, said in queue.other_models.status()["clients"].items() if said["output_tokens"])
        return str(found)

    everything = key(team_alias="t", team_id="1", user_id="u", key_alias="k", token="h")
    assert await name(everything) == "team:t"
    assert await name(key(team_id="1", user_id="u")) == "team:1"
    assert await name(key(user_id="u", key_alias="k")) == "user:u"
    assert await name(key(key_alias="k", token="h")) == "key:k"
    assert await name(key(token="h")) == "key:h"
    assert await name(key()) == "others"
    assert await name(everything, "key", "team") == "key:k"


def promised(settings: LiteLlmSettings) -> list[str]:
    """What the start says."""
    return list(ProxyQueue(settings).promises())


def test_what_is_promised_is_said_of_each_window() -> None:
    """The larger window promises less; a policy without a bound promises nothing."""
    found = [re.match(r"(.*): policy .* endpoint: it promises (\d+) cost units", said) for said in promised(SETTINGS)]
    (others, bound), (own, smaller) = (each.groups() for each in found if each)
    assert (others, own) == ("all other models", "own")
    assert 2 * SETTINGS.quantum < int(smaller) < int(bound)
    assert promised(replace(SETTINGS, policy="fcfs", model={})) == [
        "all models: policy fcfs, 120 tokens in 1 endpoint: it promises nothing"
    ]


@in_loop
async def test_a_model_with_a_window_of_its_own_holds_no_other_back() -> None:
    """A window that is full lets calls of other models in; what waits leaves when a place is free."""
    queue = ProxyQueue(SETTINGS)
    first, second = (Request(queue, key(user_id=name), model="own", max_tokens=30) for name in "ab")
    await settled()
    other = Request(queue, key(user_id="a"), model="any")
    await settled()
    assert (first.placed, second.placed, other.placed) == (True, False, True)
    first.does(HEAD, body(answer(5, 2)))
    await settled()
    assert second.placed


@in_loop
async def test_proxies_of_one_store_share_an_account_for_each_window(tmp_path: Path) -> None:
    """Calls of two proxies go on credit of one account, and those of a model with a window of its own on another's."""
    store = StoreConfig(f"file://{tmp_path}", gateways=2)
    queues = [ProxyQueue(replace(SETTINGS, store=store)) for _ in range(2)]
    requests = [Request(queue, key(user_id="a"), model=model) for queue in queues for model in ("any", "own")]
    await until(lambda: all(each.placed for each in requests))
    for each in requests:
        each.does(HEAD, body(answer(11, 3)), None)
    await asyncio.gather(*(each.task for each in requests))
    for queue in queues:
        await queue.stop()
        assert in_flight(queue) == 0
    assert len({picker.leasing.config.name for queue in queues for picker in queue.pickers if picker.leasing}) == 2
    assert len([path for path in tmp_path.iterdir() if "account" in path.name and path.suffix != ".lock"]) == 2


@in_loop
async def test_a_call_over_a_limit_is_refused_and_holds_nothing() -> None:
    """413 for what fits nowhere, 400 for nonsense, 429 where too many wait; what declares no outputs is given what
    fits."""
    queue = ProxyQueue(SETTINGS)
    open_ended = Request(queue, key(user_id="a"), max_tokens=None)
    await settled()
    assert (open_ended.placed, queue.other_models.window.in_flight_tokens) == (True, 120)
    open_ended.does(HEAD, body(answer(5, 2)), None)
    await settled()
    too_large, nonsense = Request(queue, key(user_id="a"), max_tokens=150), Request(queue, key(), max_tokens="many")
    await settled()
    assert too_large.refused is not None
    assert nonsense.refused is not None
    assert (too_large.refused.status, nonsense.refused.status, in_flight(queue)) == (413, 400, 0)
    calls = [Request(queue, key(user_id="a"), model="own", max_tokens=40) for _ in range(5)]
    await settled()
    (late,) = (each.refused for each in calls if each.refused)
    assert (late.status, late.retry_after_seconds) == (429, 1)
    assert (in_flight(queue), waiting(queue)) == (1, 3)


@in_loop
async def test_a_request_that_was_refused_and_asks_again_waits_again() -> None:
    """LiteLLM may ask again within a request: what has a place goes along with it, what was refused has none."""
    queue = ProxyQueue(SETTINGS)
    calls = [Request(queue, key(user_id="a"), model="own", max_tokens=40) for _ in range(4)]

    async def twice(*_: Any) -> None:
        for __ in range(2):
            with pytest.raises(CallError):
                await queue.place(*calls[0].call)

    await settled()
    await QueuedRequests(twice)({"type": "http"}, never, never)
    assert (in_flight(queue), waiting(queue), outcomes(queue)["limited"]) == (1, 3, 2)


@in_loop
async def test_a_place_that_comes_after_the_end_of_its_request_is_given_back() -> None:
    """A task of the application that outlives its request holds no place."""
    queue = ProxyQueue(SETTINGS)
    tasks = []

    async def application(*_: Any) -> None:
        data = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 20}
        tasks.append(asyncio.create_task(queue.place(key(user_id="a"), "acompletion", data)))

    await QueuedRequests(application)({"type": "http"}, never, never)
    await asyncio.gather(*tasks)
    assert (in_flight(queue), outcomes(queue)) == (0, {"left": 1})


@in_loop
@pytest.mark.parametrize(("status", "outcome"), [(429, "refused by endpoint"), (504, "left"), (499, "left")])
async def test_a_call_that_was_given_up_late_is_no_refusal(status: int, outcome: str) -> None:
    """A server that refuses a call has computed nothing of it; one that was too slow may have."""
    queue = ProxyQueue(SETTINGS)
    request = Request(queue, key(user_id="a"))
    await settled()
    request.does({**HEAD, "status": status}, body(b"{}"))
    await settled()
    assert outcomes(queue) == {outcome: 1}


@in_loop
async def test_what_is_no_call_of_a_request_passes() -> None:
    """Kinds of calls that have no tokens do not wait, nor what is asked outside of a request."""
    queue = ProxyQueue(SETTINGS)
    image = Request(queue, key(user_id="a"), "aimage_generation", prompt="x")
    await settled()
    assert image.placed
    await queue.place(key(user_id="a"), "acompletion", {"messages": [{"role": "user", "content": "x"}]})
    assert in_flight(queue) == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("quantum = 64\n[pool]\nwindow_tokens = 1", "pool.window_tokens: expected"),
        (f"[pool]\nwindow_tokens = {1 << 40}", "pool.window_tokens: expected"),
        (f"identify = []\n{FILE}", "identify names none of team, user and key"),
        ("quantum = 64", "pool is missing"),
        (FILE.replace("quantum", "quantums"), "unknown key quantums; did you mean quantum?"),
        (
            FILE.replace("team:gold", "gold"),
            'client."gold" is no client of these: "team:NAME", "user:NAME", "key:NAME"',
        ),
        (
            FILE.replace("[pool]", 'identify = ["user"]\n[pool]'),
            'client."team:gold" is no client of these: "user:NAME"',
        ),
    ],
)
def test_settings_that_cannot_be_used_are_told_in_a_line(
    change: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The line says the file, the place and what may stand there."""
    with pytest.raises(ConfigError) as caught:
        configured(monkeypatch, tmp_path, change)
    assert said in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_environment_names_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the variable, or with one that names no file, there is no queue; with it, it is the file's."""
    assert configured(monkeypatch, tmp_path, FILE) == SETTINGS
    monkeypatch.setenv("FAIRSCHED_LITELLM_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match=r"FAIRSCHED_LITELLM_CONFIG: .* cannot be read"):
        from_environment()
    monkeypatch.delenv("FAIRSCHED_LITELLM_CONFIG")
    with pytest.raises(ConfigError, match="FAIRSCHED_LITELLM_CONFIG names no file"):
        from_environment()


@pytest.mark.parametrize("policy", ["unknown", "fastserve"])
def test_a_policy_that_cannot_be_used_is_refused(policy: str) -> None:
    """A policy must exist and must not preempt."""
    with pytest.raises(ValueError, match=policy):
        ProxyQueue(replace(SETTINGS, policy=policy))
