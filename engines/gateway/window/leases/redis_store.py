"""Values in Redis or Valkey (extra `redis`).

A value begins with a stamp that no two writes share, and a script of the server writes the next one only where the
stamp is still the one that was read: a compare and swap, atomic there.  After a fail-over that lost writes the stamp is
an older one, and the change begins from what is there.

Of many that write at a time one succeeds, and the others would keep the server busy with writes that lose: each waits,
longer each time and for a random time, before it reads again.
"""

import asyncio
import random
import secrets
from typing import Any, TypeVar, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from fairsched.engines.gateway.window.leases.store import Change, StoreError

T = TypeVar("T")

_STAMP_BYTES = 16
_SWAP = """
local now, value = redis.call('TIME'), redis.call('GET', KEYS[1])
local stamp = value and string.sub(value, 1, 16) or ''
if ARGV[2] and stamp == ARGV[1] then
    redis.call('SET', KEYS[1], ARGV[2])
    return {1, now[1], now[2], ''}
end
return {0, now[1], now[2], not ARGV[2] and value or ''}
"""
"""Reads the value and the time; with a new value, writes that if the stamp is the one named."""
TRIES = 100
"""Others have written so often between a read and a write: then something is wrong."""
PAUSE_SECONDS = 0.004
"""The most that a change waits after its first try; twice that after the second, and so on, up to 64 times."""


class RedisStore:
    """Values of one server, or of what its address leads to after a fail-over.  Belongs to one event loop."""

    def __init__(self, url: str, *, password: str | None = None, timeout_seconds: float = 0.5) -> None:
        """Connect, and raise `ValueError` for an address that is none."""
        given: dict[str, Any] = {} if password is None else {"password": password}
        given |= {"socket_timeout": timeout_seconds, "socket_connect_timeout": timeout_seconds}
        # Leases are renewed again by the gateway, which knows that the first time may have happened.
        self._redis: Any = Redis.from_url(url, **given, retry=None, decode_responses=False)
        self._swap = self._redis.register_script(_SWAP)

    async def change(self, key: str, change: Change[T]) -> T:
        """Change a value."""
        try:
            for tries in range(TRIES):
                _, value, now_ns = await self._ask(key)
                stamp, body = (value[:_STAMP_BYTES], value[_STAMP_BYTES:]) if value else (b"", None)
                after, answer = change(body, now_ns)
                if after is body or (await self._ask(key, stamp, secrets.token_bytes(_STAMP_BYTES) + after))[0]:
                    return answer
                await asyncio.sleep(random.uniform(0, PAUSE_SECONDS * 2 ** min(tries, 6)))
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreError(str(error) or type(error).__name__) from None
        raise StoreError(f"{TRIES} times another wrote first")

    async def _ask(self, key: str, *args: bytes) -> tuple[bool, bytes, int]:
        """Return whether it was written, the value that was read, and the server's time."""
        written, seconds, micros, value = await self._swap(keys=[key], args=args)
        return bool(written), cast(bytes, value), int(seconds) * 1_000_000_000 + int(micros) * 1_000

    async def close(self) -> None:
        await self._redis.aclose()
