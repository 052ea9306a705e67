"""What servers say of their models at `/v1/models`, asked now and then: which are where, and how long a context is.

A server that does not say may have any.  A list that cannot be had stays as it was.
"""

import asyncio
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from typing import Any

import aiohttp
import attrs
import msgspec

from fairsched.engines.gateway.openai import MODELS, ForwardedCall
from fairsched.engines.gateway.servers.target import Upstream
from fairsched.engines.gateway.servers.upstream import told

ASK_SECONDS, NEW_SECONDS = 30, 5
"""How often servers are asked, and those of which nothing is known; at first each second."""
CONTEXT_KEYS = ("max_model_len", "context_length", "context_window", "max_context_length")
"""Where a model's entry says how many tokens of prompt and output it takes."""
CONTINUOUS = ("vllm", "sglang")
"""Owners of models whose servers say usage with each event of a stream where they are asked to."""

Entry = dict[str, Any]


class _List(msgspec.Struct):
    data: list[Entry]


class Models:
    """The models of the servers that take calls, by their addresses."""

    def __init__(self, upstreams: Callable[[], Iterable[Upstream]]) -> None:
        self._upstreams = upstreams
        self._of: dict[str, dict[str, Entry]] = {}
        self._http: aiohttp.ClientSession | None = None
        self._asking: dict[str | None, asyncio.Task[list[dict[str, Entry] | None]]] = {}

    async def run(self, http: aiohttp.ClientSession) -> None:
        """Ask again and again, until cancelled."""
        self._http, rounds = http, 0
        while True:
            new = rounds < NEW_SECONDS or rounds % NEW_SECONDS == 0
            asked = [
                each for each in self._upstreams() if rounds % ASK_SECONDS == 0 or (new and each.url not in self._of)
            ]
            for upstream, found in zip(asked, await asyncio.gather(*map(self._ask, asked)), strict=True):
                if found is not None:
                    self._of[upstream.url] = found
            rounds += 1
            await asyncio.sleep(1.0)

    async def _ask(self, upstream: Upstream, key: str | None = None) -> dict[str, Entry] | None:
        """Return what a server lists, to its own key or this one."""
        assert self._http is not None
        said = await told(self._http, upstream, MODELS, key)
        with suppress(msgspec.DecodeError, LookupError, ValueError, RecursionError):
            return {str(entry["id"]): entry for entry in msgspec.json.decode(said or b"", type=_List).data}
        return None

    async def listed(self, key: str | None) -> list[Entry]:
        """Return the models of all servers, each once; of servers that want to see a caller's key, to that one."""
        upstreams = tuple(self._upstreams())
        found = [self._of.get(each.url) for each in upstreams]
        if not any(found):
            found = await self._all(upstreams, key)
        merged: dict[str, Entry] = {}
        for each in found:
            merged |= {**(each or {}), **merged}
        return list(merged.values())

    async def _all(self, upstreams: Iterable[Upstream], key: str | None) -> list[dict[str, Entry] | None]:
        """Ask servers with a key, once at a time: callers that come meanwhile have the same answer."""

        async def ask() -> list[dict[str, Entry] | None]:
            return await asyncio.gather(*(self._ask(each, key) for each in upstreams))

        if (asking := self._asking.get(key)) is None:
            asking = self._asking[key] = asyncio.ensure_future(ask())
            asking.add_done_callback(lambda _: self._asking.pop(key))
        return await asyncio.shield(asking)

    def avoided(self, model: str, upstreams: Iterable[Upstream], tried: Set[int]) -> frozenset[int]:
        """Return the servers where a call does not go, if it can go elsewhere: where it was tried, and those that list
        other models only while one lists its own."""
        has = {each.server: self._has(each.url, model) for each in upstreams}
        if True not in has.values():
            return frozenset(tried)
        wrong = {server for server, there in has.items() if there is False}
        return frozenset(wrong if wrong | tried >= has.keys() else wrong | tried)

    def _has(self, url: str, model: str) -> bool | None:
        models = self._of.get(url)
        return None if models is None or not model else model in models

    def says_usage(self, url: str) -> bool:
        """Return whether a server says usage with each event where it is asked to."""
        return any(entry.get("owned_by") in CONTINUOUS for entry in self._of.get(url, {}).values())

    def context(self, model: str) -> int | None:
        """Return how many tokens a call of a model may have at every server that says so; None where none does.  A call
        that names none is of the one model that there is."""
        entries = [entry for models in self._of.values() for name, entry in models.items() if model in ("", name)]
        if not model and len({entry["id"] for entry in entries}) != 1:
            return None
        said = [entry.get(key) for entry in entries for key in CONTEXT_KEYS]
        return min((most for most in said if type(most) is int and most > 0), default=None)

    def fitted(self, call: ForwardedCall) -> ForwardedCall:
        """Return a call with no more outputs than the context of its model has, whatever it declares."""
        context = self.context(call.model)
        if context is None or call.max_output_tokens <= context * call.answers:
            return call
        return attrs.evolve(call, max_output_tokens=context * call.answers)

    def limit(self, call: ForwardedCall) -> int:
        """Return how many outputs a server may be told for a call that names no limit: what is reserved, as far as it
        fits into the context with a prompt that may be twice as long as it is taken for, or half of what is left."""
        context = self.context(call.model)
        if context is None:
            return call.max_output_tokens
        room = context - call.prompt_tokens
        return min(call.max_output_tokens, max(room - call.prompt_tokens - 64, room // 2, 1) * call.answers)
