"""What is told of calls: a request id from caller to server, and its trace."""

import subprocess
import sys
from typing import Any

from aiohttp import web

from fairsched.engines.gateway.config import ClientConfig
from tests.support.adapters.gateway_processes import ROOT
from tests.support.adapters.gateway_scenarios import Fake, World, world
from tests.support.adapters.http import served
from tests.support.adapters.loops import in_loop

CLIENTS = {"a": ClientConfig()}
BODY = {"prompt": "hello", "max_tokens": 3}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Told(Fake):
    """A server that remembers the headers of calls."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.headers: list[dict[str, str]] = []
        self.app.middlewares.append(self._remember)

    @web.middleware
    async def _remember(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.method == "POST":
            self.headers.append({name.lower(): value for name, value in request.headers.items()})
        response: web.StreamResponse = await handler(request)
        return response


async def sent(here: World, **headers: str) -> Any:
    """A call of client a."""
    return await here.http.post("/v1/completions", json=BODY, headers={"x-client": "a", **headers})


@in_loop
async def test_a_call_has_one_id_from_its_caller_to_its_server() -> None:
    """The caller's own is kept and returned, and its server is told it with what makes it no other's; a call without
    one, or with one that is no plain word, gets a new one, also where it is refused, and on a connection that had
    another before."""
    fake = Told()
    async with served(fake.app) as url, world(url) as here:
        answer = await sent(here, **{"x-request-id": "mine-1"})
        assert answer.headers.getall("x-request-id") == ["mine-1"]
        await sent(here, **{"x-request-id": "mine-1"})
        told = {headers["x-request-id"] for headers in fake.headers}
        assert len(told) == 2
        assert all(each.startswith("mine-1-") for each in told)
        ids = {"mine-1"}
        for odd in ("", "two words", "x" * 129, "é"):
            answer = await sent(here, **{"x-request-id": odd})
            (request_id,) = answer.headers.getall("x-request-id")
            assert fake.headers[-1]["x-request-id"].startswith(f"{request_id}-")
            assert request_id not in ids
            ids.add(request_id)
        refused = await here.http.post("/v1/completions", content=b"{", headers={"x-client": "a"})
        assert refused.status == 400
        assert refused.headers["x-request-id"] not in ids
        assert "x-request-id" not in (await here.http.get("/healthz")).headers


@in_loop
async def test_a_callers_trace_goes_on_at_its_server() -> None:
    """The context passes as it came, and nothing of OpenTelemetry is loaded."""
    fake = Told()
    async with served(fake.app) as url, world(url) as here:
        given_parent = f"00-{TRACE}-{PARENT}-01"
        await sent(here, traceparent=given_parent)
    assert fake.headers[-1]["traceparent"] == given_parent
    program = "import sys, fairsched.engines.gateway.app; print(any('opentelemetry' in name for name in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.strip() == "False"
