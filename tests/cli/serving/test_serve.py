"""`fairsched serve`: what it says, how it ends, and what bad arguments get."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from fairsched.cli import main
from fairsched.engines import gateway, server
from fairsched.engines.gateway.server import process
from fairsched.engines.torch import SIZES, Llama
from fairsched.engines.torch.checkpoint import save_checkpoint
from fairsched.model.monitor import MonitorReport
from tests.cli.conftest import Refused

ROOT = Path(__file__).parents[3]
SECONDS = 300
COMMAND = [sys.executable, "-c", "import sys; from fairsched.cli import main; sys.exit(main())", "serve"]


@contextmanager
def serving(*options: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """`fairsched serve` at a free port, its address, and the lines that it began with; killed in the end."""
    with subprocess.Popen(
        [*COMMAND, "--listen", "127.0.0.1:0", "--report-seconds", "0.2", *options],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    ) as started:
        try:
            assert started.stdout is not None
            lines = []
            for line in started.stdout:
                lines.append(line)
                if line.startswith("try:"):
                    break
            found = re.search(r"serving \S+ at (http://\S+)/v1", "".join(lines))
            assert found is not None, lines
            yield started, found[1], lines
        finally:
            started.kill()


def post(url: str, document: object, **headers: str) -> Any:
    """The answer to a completion, open."""
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(document).encode(), headers)
    return urllib.request.urlopen(request, timeout=SECONDS)


def test_it_serves_without_a_model_and_drains(tmp_path: Path) -> None:
    """It says that its weights are made up and what it promises; a stream that is open at SIGTERM is finished, nothing
    is taken on any more, and the log replays."""
    log = tmp_path / "serve.jsonl"
    with serving("--client", "gold=4", "--log", str(log)) as (started, url, lines):
        told = " ".join(" ".join(lines).split())
        assert "weights made up by seed 0: what it says means nothing" in told
        promised = "policy dlpm-in-batch, 1 worker of 8,192 KV tokens: two clients that wait differ by at most"
        assert promised in told
        with post(url, {"prompt": "Hello", "max_tokens": 5}, **{"x-fairsched-client": "gold"}) as answer:
            assert json.load(answer)["usage"]["total_tokens"] <= 10
        call = {"prompt": "Hello", "max_tokens": 600, "ignore_eos": True, "stream": True}
        stream = post(url, call)
        first = stream.readline()
        started.send_signal(signal.SIGTERM)
        events = [first, *stream]
        assert sum(b'"text"' in event for event in events) == 600
        assert events[-2] == b"data: [DONE]\n"
        assert started.wait(SECONDS) == 0
        with pytest.raises(urllib.error.URLError):
            post(url, call)
        assert started.stdout is not None
        rest = started.stdout.read()
    assert "finishing 1 open outputs, within 30 s" in rest
    assert re.search(r"\d+ s  1 run, 0 wait  [\d,]+ tokens/s  gap [\d,]+ of [\d,]+", rest)
    assert main(["audit", str(log), "--replay"]) == 0


def test_what_takes_too_long_is_cancelled_at_the_end() -> None:
    """After `--drain-seconds` an open stream breaks off without the mark of a whole one, and the process ends."""
    with serving("--drain-seconds", "0.1", "--batch-max", "2") as (started, url, _):
        stream = post(url, {"prompt": "Hello", "max_tokens": 4000, "ignore_eos": True, "stream": True})
        stream.readline()
        started.send_signal(signal.SIGINT)
        assert started.wait(SECONDS) == 0
        try:
            rest = stream.read()
        except (OSError, HTTPException):
            rest = b""
    assert b"[DONE]" not in rest


def test_what_it_says_fits_the_terminal(tmp_path: Path) -> None:
    """Sentences are broken between words; addresses and commands stay whole."""
    save_checkpoint(Llama.random(SIZES["tiny"]), tmp_path / "model")
    with serving("--model", str(tmp_path / "model"), "--policy", "vtc", COLUMNS="60") as (_, url, lines):
        *sentences, address, tried = lines
        assert all(len(line.rstrip("\n")) <= 60 for line in sentences)
        assert address == f"serving model at {url}/v1, with {url}/status\n"
        assert tried.startswith("try: curl ")
        told = " ".join(" ".join(lines).split())
        assert "tokens are bytes, which is not how this model was trained" in told
        assert "made up" not in told
        # The command that it names works as it stands.
        if shutil.which("curl"):
            command = tried.removeprefix("try: ")
            done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True, timeout=SECONDS)
            assert json.loads(done.stdout)["model"] == "model"


def test_a_port_that_is_taken_is_said(refused: Refused) -> None:
    """Before anything is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen at 127.0.0.1:{port}" in refused("serve", "--listen", f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--model", "no/such/folder"], "model 'no/such/folder' is neither a folder nor one of"),
        (["--set", "quantum=1", "--set", "quantum=2"], "a parameter is set twice"),
        (["--set", "max_running=64"], "the engine has room for --batch-max 16"),
        (["--listen", "a:65536"], "with a port from 0 to 65535, found 'a:65536'"),
        (["--listen", "no.such.host.invalid:8000"], "cannot listen at no.such.host.invalid:8000"),
        (["--client", "gold"], "PARAM=VALUE"),
        (["--client", "gold=1", "--client", "gold=2"], "a client is named twice"),
        (
            ["--listen", "127.0.0.1:0", "--kv-capacity-tokens", "1"],
            "needs room for a prompt and an output token, not for 1",
        ),
        (["--report-seconds", "-1"], "for --report-seconds: expected a length of time"),
        (["--log", "no/such/folder/x.jsonl"], "--log: there is no folder no/such/folder"),
    ],
)
def test_bad_arguments_get_one_line(arguments: list[str], expected: str, refused: Refused) -> None:
    """Each names what is wrong, with exit status 2."""
    assert expected in refused("serve", *arguments)


def test_a_server_that_shows_it_exits_with_status_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`serve` looks at every worker's monitor in the end, and `gateway` at its window's."""
    config = tmp_path / "gateway.toml"
    config.write_text('listen = "127.0.0.1:0"\n[[server]]\nurl = "http://127.0.0.1:8000"\nwindow_tokens = 1000\n')
    monkeypatch.setattr(server, "run", lambda *_, **__: None)
    monkeypatch.setattr(gateway, "serve", lambda made, *_, **__: asyncio.run(process.write_report(made.account, None)))
    for found, status in ((False, 0), (True, 4)):
        monkeypatch.setattr(MonitorReport, "unexplained", found or None)
        assert main(["gateway", str(config)]) == status
        assert main(["serve", "--listen", "127.0.0.1:0"]) == status
        assert capsys.readouterr().err.count("an error in fairsched") == 2 * found
