"""The servers' own health paths, asked now and then."""

import asyncio
import errno
from collections.abc import Callable, Mapping

import aiohttp

from fairsched.engines.gateway.servers.target import ServerTarget, Upstream
from fairsched.engines.settings import ConfigError

SLICES = 20
"""A probe is given its time in so many slices: while the event loop stands still, so does that time."""
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})


def is_our_lack(error: BaseException) -> bool:
    """Return whether a connection failed for want of descriptors, ports or memory here, not because of the server."""
    return isinstance(error, OSError) and error.errno in _OURS


async def probe(http: aiohttp.ClientSession, upstream: Upstream, path: str) -> str | None:
    """Ask a server's health path; returns why it is not well, None if it is.  Raises `OSError` for what lacks here.

    Any answer under 500 is a good one: a server without such a path says so, and is there.
    """
    headers = {} if upstream.host is None else {"host": upstream.host}
    url, name = upstream.url + path, upstream.server_hostname
    try:
        async with http.get(
            url, headers=headers, ssl=upstream.tls, server_hostname=name, allow_redirects=False
        ) as answer:
            return f"{path}: HTTP {answer.status}" if answer.status >= 500 else None
    except (aiohttp.ClientError, OSError, ConfigError) as error:
        if isinstance(error, OSError) and is_our_lack(error):
            raise
        return f"{path}: {type(error).__name__}: {error}"


class Probes:
    """Rounds in which each server with a health path is asked.

    `targets` are the servers by their places.  `probed` hears of each: its place, why it is not well if it is not, and
    the seconds in which it did not answer if it did not.
    """

    def __init__(
        self,
        targets: Callable[[], Mapping[int, ServerTarget]],
        probed: Callable[[int, str | None, float | None], object],
    ) -> None:
        self._targets = targets
        self._probed = probed

    async def run(self, seconds: Callable[[], float]) -> None:
        """Ask in rounds of so many seconds, until cancelled."""
        # Connections of their own: one that is open already says nothing of a server that takes no new ones.
        connector = aiohttp.TCPConnector(force_close=True, limit=0, use_dns_cache=False)
        async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as http:
            while True:
                await asyncio.sleep(seconds())
                asked = (self._ask(http, *each, seconds()) for each in tuple(self._targets().items()))
                await asyncio.gather(*asked)

    async def _ask(self, http: aiohttp.ClientSession, place: int, target: ServerTarget, seconds: float) -> None:
        path = target.config.health
        if not path:
            return
        asked = asyncio.ensure_future(probe(http, target.upstream(place), path))
        try:
            for _ in range(SLICES):
                await asyncio.wait((asked,), timeout=seconds / SLICES)
                if asked.done():
                    break
            late = not asked.done()
            failure = f"{path}: no answer in {seconds:g} seconds" if late else asked.result()
        except OSError:
            return
        finally:
            asked.cancel()
        if self._targets().get(place) == target:
            self._probed(place, failure, seconds if late else None)
