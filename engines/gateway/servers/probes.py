"""The servers' own health paths, asked now and then, and the calls that wait at a server that does not answer."""

import asyncio
import errno
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import aiohttp

from fairsched.engines.gateway.servers.discovery import Target
from fairsched.engines.gateway.servers.overload import Overload

_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})


def is_our_lack(error: BaseException) -> bool:
    """Return whether a connection failed for want of descriptors, ports or memory here, not because of the server."""
    return isinstance(error, OSError) and error.errno in _OURS


async def probe(http: aiohttp.ClientSession, target: Target, seconds: float) -> str | None:
    """Ask a server's health path; returns why it is not well, None if it is.

    Raises `TimeoutError` where it does not answer in time, and `OSError` for what lacks here.  Any answer under 500 is
    a good one: a server without such a path says so, and is there.
    """
    headers = {} if target.host is None else {"host": target.host}
    try:
        async with asyncio.timeout(seconds):
            async with http.get(
                target.url + target.config.health,
                headers=headers,
                server_hostname=target.server_hostname,
                allow_redirects=False,
            ) as answer:
                return f"{target.config.health}: HTTP {answer.status}" if answer.status >= 500 else None
    except TimeoutError:
        raise
    except (aiohttp.ClientError, OSError) as error:
        if is_our_lack(error):
            raise
        return f"{target.config.health}: {type(error).__name__}: {error}"


class Probes:
    """Rounds in which each server with a health path is asked.

    `targets` are the servers by their places; `probed` hears how each answered.
    """

    def __init__(
        self,
        targets: Callable[[], Mapping[int, Target]],
        overload: Overload,
        probed: Callable[[int, str | None], object],
    ) -> None:
        self._targets = targets
        self._overload = overload
        self._probed = probed

    async def run(self, seconds: Callable[[], float]) -> None:
        """Ask in rounds of so many seconds, until cancelled."""
        # Connections of their own: one that is open already says nothing of a server that takes no new ones.
        connector = aiohttp.TCPConnector(force_close=True, limit=0, use_dns_cache=False)
        async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as http:
            while True:
                period = seconds()
                await asyncio.sleep(period)
                await asyncio.gather(*(self._ask(http, *each, period) for each in tuple(self._targets().items())))

    async def _ask(self, http: aiohttp.ClientSession, place: int, target: Target, seconds: float) -> None:
        if not target.config.health:
            return
        began = time.monotonic()
        try:
            failure = await probe(http, target, seconds)
        except TimeoutError:
            if self._overload.is_ours(place, began, time.monotonic()):
                return
            failure = f"{target.config.health}: no answer in {seconds:g} seconds"
        except OSError:
            return
        if self._targets().get(place) == target:
            self._probed(place, failure)
