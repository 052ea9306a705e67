"""`fairsched gateway`: its configuration, what bad ones get, reading it again, and draining."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import pytest

from fairsched.cli import main
from fairsched.engines.gateway import build, gateway_policy, read_config
from fairsched.engines.gateway.account import Account
from fairsched.engines.gateway.config import hashed_key, reloaded
from fairsched.engines.gateway.gateway import Gateway
from fairsched.engines.gateway.server.process import reload
from fairsched.engines.settings import ConfigError
from tests.cli.conftest import Refused

GOLD, FREE = hashed_key("sk-gold"), hashed_key("sk-free")
PLAIN = f"""
listen = "127.0.0.1:0"
[[server]]
url = "http://127.0.0.1:8000"
window_tokens = 1000
[client.gold]
keys = ["{GOLD}"]
weight = 4
[client.free]
keys = ["{FREE}"]
"""


def written(folder: Path, text: str = PLAIN) -> Path:
    """The text as a file."""
    path = folder / "gateway.toml"
    path.write_text(text)
    return path


def built_from(path: Path) -> Gateway:
    """The gateway of a configuration."""
    config = read_config(path)
    return build(config, gateway_policy(config, path))


def account_of(gateway: Gateway) -> Account:
    """The gateway's account, which is in this process."""
    assert isinstance(gateway.account, Account)
    return gateway.account


def test_the_bound_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is D-weighted's with the window as memory: 2 Q 4 + (U - 1)(4 + 1).  Of a window of 1,000 tokens, held for
    a sixth of the time that costs as much as an output token, U = 2 * 1000 - 1 + 2 * 167.  Where the rate of the
    servers is stated T-window makes seconds of what is charged while the lighter client waits."""
    assert main(["gateway", str(written(tmp_path)), "--check"]) == 0
    said = capsys.readouterr().out
    assert f"{2 * 4096 * 4 + (1_999 + 334 - 1) * 5:,} cost units" in said
    assert "let in" not in said
    assert main(["gateway", str(written(tmp_path, "tokens_per_second = 100\n" + PLAIN)), "--check"]) == 0
    wait_s = (2 * 4 * 4096 + 4 * 2_332 + 2 * 2_332 + 3 * 1_000) / (2 * 100)
    assert f"one of 2 clients that waits has a call let in after at most {wait_s:.0f} s (T-window)" in (
        capsys.readouterr().out.replace("\n", " ")
    )


def test_the_check_needs_no_other_extra(tmp_path: Path) -> None:
    """Where only the packages of its own extra are there; what a setting needs beyond them is one line."""
    ours = ("jinja2", "matplotlib", "scipy", "cvc5", "z3", "grpc", "prometheus_client")
    metrics = f'metrics = true\nadmin_keys = ["{hashed_key("sk-admin-of-the-tests")}"]\n'
    for text, said in ((PLAIN, "deficit"), (metrics + PLAIN, "pip install '.[metrics]'")):
        code = (
            f"import sys\nfor name in {ours}: sys.modules[name] = None\n"
            f"from fairsched.cli import main\nsys.exit(main(['gateway', {str(written(tmp_path, text))!r}, '--check']))"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert said in run.stdout + run.stderr, run
        assert "Traceback" not in run.stderr
        assert run.returncode == (text != PLAIN) * 2


@pytest.mark.parametrize("missing", ["rich", "rich.console"])
@pytest.mark.parametrize(("option", "extra"), [("", "gateway"), ("--picker", "endpoint-picker")])
def test_what_the_check_lacks_is_in_the_extra_of_its_command(
    missing: str, option: str, extra: str, tmp_path: Path
) -> None:
    """A package that is gone is named with the extra that was installed, and not with one for everything else."""
    path = written(tmp_path) if not option else tmp_path / "picker.toml"
    if option:
        path.write_text('[pool]\nendpoints = ["10.0.0.1:8000"]\nwindow_tokens = 1000\n')
    words = ["gateway", str(path), "--check", *filter(None, [option])]
    code = f"import sys\nsys.modules[{missing!r}] = None\nfrom fairsched.cli import main\nsys.exit(main({words!r}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"pip install '.[{extra}]'" in run.stderr, run
    assert run.returncode == 2
    if missing == "rich":
        others = ("aiohttp", "uvloop", "yarl", "multidict", "redis", "jwt", "jinja2", "matplotlib")
        code = code.replace(
            "sys.modules['rich'] = None", f"sys.modules |= dict.fromkeys({others if option else others[4:]})"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run


def test_the_check_says_who_gets_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And warns of what lets any caller in, on the same page as the bound, and of a server that does not say what it
    runs where nobody says it."""
    assert main(["gateway", str(written(tmp_path)), "--check"]) == 0
    said = capsys.readouterr().out
    assert said.count("WARNING") == 1
    assert "WARNING: http://127.0.0.1:8000 gets up to 256 calls at once, and how many it runs is not known" in said
    path = written(tmp_path, PLAIN.replace("window_tokens", "window_requests = 4\nwindow_tokens"))
    assert main(["gateway", str(path), "--check"]) == 0
    assert "WARNING" not in capsys.readouterr().out
    path = written(tmp_path, 'identify = "header"\nunknown_clients = "own"\n' + PLAIN)
    assert main(["gateway", str(path), "--check"]) == 0
    said = capsys.readouterr().out
    assert "WARNING: the header x-client is believed of every peer: any caller is any client" in said
    assert "WARNING: any caller gets in: unknown_clients" in said


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("weight = 4", "wieght = 4", "unknown key client.gold.wieght; did you mean weight"),
        ("weight = 4", 'organisation = "acme"', "there is no [organisation.acme]"),
        ("weight = 4", 'user = "ann"', "client.gold.user is a user of an organisation"),
        ("[client.gold]", "[organisation.acme]\n[client.gold]", 'policy = "fcfs+hierarchical"'),
        ("weight = 4", "weight = 0", "client.gold.weight: expected int >= 1, not 0"),
        (FREE, GOLD, "client.free.keys: one of its keys is also gold's"),
        (
            "[[server]]",
            f'admin_keys = ["{GOLD}"]\n[[server]]',
            "client.gold.keys: one of its keys is also in admin_keys",
        ),
        ("[[server]]", "status = true\n[[server]]", "admin_keys is missing: status and metrics name clients"),
        ("[[server]]", 'header = "x y"\n[[server]]', "header: expected the name of a header"),
        (
            "window_tokens = 1000",
            'window_tokens = 1\nhealth = "up"',
            "server[0].health: expected a path like /health, or none, not 'up'",
        ),
        ("[client.gold]", '[[server]]\nurl = "http://127.0.0.1:8000"\nwindow_tokens = 1\n[client.gold]', "too: http"),
        ("[client.gold]", '[tls]\ncertificate = "a.pem"\n[client.gold]', "tls.key is missing"),
        ("window_tokens = 1000", "", "server[0].window_tokens is missing"),
        ("8000", "8000/v1", "url is http://HOST:PORT without /v1"),
        ("http://127.0.0.1:8000", "http://", "url is http://HOST:PORT"),
        (
            "[client.gold]",
            "[limits]\nwait_seconds = nan\n[client.gold]",
            "limits.wait_seconds: expected float > 0.0, not nan",
        ),
        ("127.0.0.1:0", "here", "listen is HOST:PORT"),
        ("[[server]]", "[server]", "server: expected a list, not a dict"),
        ("[[server]]", 'policy = "fastserve"\n[[server]]', "preempts"),
        ("[[server]]", 'router = "shortest"\n[[server]]', "unknown router 'shortest'"),
        ("[[server]]", "= 1", "invalid statement"),
        (
            "[[server]]",
            'identify = "token"\n[[server]]',
            "identify: expected one of certificate, header, jwt, key, not 'token'",
        ),
        ("window_tokens = 1000", 'window_tokens = 1\ncertificate = "a.pem"', "server[0]: certificate and key are"),
        ("window_tokens = 1000", 'window_tokens = 1\nca = "ca.pem"', "ca, certificate and key are for https://"),
        (
            'url = "http://127.0.0.1:8000"',
            'url = "https://127.0.0.1:8000"\nca = "/nowhere/ca.pem"',
            "server[0]: /nowhere/ca.pem: [Errno 2] No such file",
        ),
        ("[client.gold]", "[quota.client.gould]\n[client.gold]", "quota.client.gould: there is no [client.gould]"),
        ("[client.gold]", "[quota.user.acme]\n[client.gold]", "a user's name here is ORGANISATION/USER"),
        ("[client.gold]", '[quota.user."acme/ann"]\n[client.gold]', "there is no [organisation.acme]"),
        (
            "[client.gold]",
            "[quota.client.gold]\ntokens_per_day = 65\n[client.gold]",
            "client.gold.tokens_per_day is 65, and the smallest call reserves 66 tokens (template_tokens is 64)",
        ),
        ("[client.gold]", '[tls]\ncertificate = "/a.pem"\nkey = "/k.pem"\n[client.gold]', "tls: /a.pem, /k.pem: [Err"),
    ],
)
def test_bad_configurations_get_one_line(tmp_path: Path, refused: Refused, old: str, new: str, message: str) -> None:
    """File and key are named, the status is 2, and there is no traceback."""
    path = written(tmp_path, PLAIN.replace(old, new))
    said = refused("gateway", str(path), "--check")
    assert message in said
    assert str(path) in said


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (f'["{GOLD}"]', '"sk-gold"', "client.gold.keys: expected a list, not a str"),
        (f'["{GOLD}"]', '["sk-gold", 3]', 'client.gold.keys[0]: expected "sha256:..." of 64'),
        (
            GOLD,
            "sk-gold",
            'client.gold.keys[0]: expected "sha256:..." of 64 hexadecimal digits, which `fairsched gateway --hash',
        ),
        ("[[server]]", 'admin_keys = ["sk-gold"]\n[[server]]', 'admin_keys[0]: expected "sha256:...'),
        (
            f'[client.gold]\nkeys = ["{GOLD}"]\nweight = 4',
            '[client]\ngold = "sk-gold"',
            "client.gold: expected a table, not a str",
        ),
        (
            "window_tokens = 1000",
            'window_tokens = 1000\napi_key = ["sk-gold"]',
            "server[0].api_key: expected a text, not a list",
        ),
        ("http://127", "http://me:sk-gold@127", "name a key in api_key"),
    ],
)
def test_no_message_shows_a_key(tmp_path: Path, refused: Refused, old: str, new: str, message: str) -> None:
    """A key that is written in the wrong place is not repeated in what is said of it, which goes to logs."""
    text = PLAIN.replace(old, new)
    assert text != PLAIN
    said = refused("gateway", str(written(tmp_path, text)), "--check")
    assert message in said
    assert "sk-gold" not in said


def test_a_key_is_hashed_as_the_configuration_has_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    """What is printed for a line of the input is that key's, without blanks around it; a short key is warned of on the
    other channel, no key is refused, as a configuration that is missing is."""
    key = "sk-0123456789abcdefghij"
    monkeypatch.setattr(sys, "stdin", io.StringIO(f" {key} \nmore\n"))
    assert main(["gateway", "--hash-key"]) == 0
    out = capsys.readouterr()
    assert (out.out, out.err) == (hashed_key(key) + "\n", "")
    monkeypatch.setattr(sys, "stdin", io.StringIO("sk-gold"))
    assert main(["gateway", "--hash-key"]) == 0
    out = capsys.readouterr()
    assert out.out == GOLD + "\n"
    assert "can be guessed" in out.err
    assert "sk-gold" not in out.err
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    assert "there is no key" in refused("gateway", "--hash-key")
    assert "CONFIG.toml is missing" in refused("gateway", "--check")


ORGANISED = f"""
policy = "fcfs+hierarchical"
{PLAIN}
organisation = "acme"
[organisation.acme]
weight = 2
"""


def test_organisations_have_a_bound_and_stay_where_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is printed; weights of an organisation change while it serves, and where a client belongs does not."""
    path = written(tmp_path, ORGANISED)
    assert main(["gateway", str(path), "--check"]) == 0
    assert "differ by at most" in capsys.readouterr().out
    gateway = built_from(path)
    assert account_of(gateway).clients.all[1].place == (("acme", 2),)
    written(tmp_path, ORGANISED.replace("weight = 2", "weight = 5"))
    assert reload(gateway, path)
    assert account_of(gateway).clients.all[1].place == (("acme", 5),)
    written(tmp_path, ORGANISED.replace('organisation = "acme"', ""))
    assert not reload(gateway, path)
    assert account_of(gateway).window.guard.set_aside is None


def test_a_client_of_an_organisation_may_go_and_stays_where_it_was(tmp_path: Path) -> None:
    """A client that is taken out of the file has no key any more, and its debts stay its organisation's while
    the gateway serves.  It can come back there, and nowhere else."""
    head = 'policy = "fcfs+hierarchical"\n' + PLAIN + 'organisation = "acme"\n'
    both = head + "[organisation.acme]\nweight = 2\n[organisation.other]\n"
    gone = both.replace(f'[client.free]\nkeys = ["{FREE}"]\norganisation = "acme"\n', "").replace("= 2", "= 3")
    path = written(tmp_path, both)
    built = built_from(path)
    written(tmp_path, gone)
    assert reload(built, path)
    assert account_of(built).clients.all[1].place == (("acme", 3),)
    written(tmp_path, both.replace('organisation = "acme"', 'organisation = "other"'))
    assert not reload(built, path)
    assert built.config.clients.keys() == {"gold"}
    assert account_of(built).window.guard.set_aside is None


def test_what_is_read_again_and_what_needs_a_restart(tmp_path: Path) -> None:
    """Weights, keys, limits and servers change; another quantum needs a restart; a bad file changes nothing."""
    path = written(tmp_path)
    config, gateway = read_config(path), built_from(path)
    written(tmp_path, PLAIN.replace("weight = 4", "weight = 2").replace(FREE, hashed_key("sk-new")))
    assert reload(gateway, path)
    account = gateway.account
    assert isinstance(account, Account)
    assert [(client.name, client.weight) for client in account.clients.all] == [("gold", 2), ("free", 1)]
    assert gateway.names.of({"authorization": "Bearer sk-new"}) == "free"
    for text in ("quantum = 9\n" + PLAIN, "nothing"):
        written(tmp_path, text)
        with pytest.raises(ConfigError):
            reloaded(config, path)
        assert not reload(gateway, path)
    assert account.clients.all[0].weight == 2


def test_quotas_are_read_again_and_their_store_needs_a_restart(tmp_path: Path) -> None:
    """A quota may change while it serves; where it is kept, or that there is one, may not."""
    text = PLAIN + '[quota.store]\nurl = "file:///tmp/a"\n[quota.client."*"]\ntokens_per_minute = 1000\n'
    path = written(tmp_path, text)
    config = read_config(path)
    written(tmp_path, text.replace("1000", "2_000"))
    fresh = reloaded(config, path).quota
    assert fresh is not None
    assert fresh.client["*"].tokens_per_minute == 2_000
    for other in (text.replace("/tmp/a", "/tmp/b"), PLAIN):
        written(tmp_path, other)
        with pytest.raises(ConfigError, match="where quotas are kept, or whether there are any, needs a restart"):
            reloaded(config, path)


def test_the_check_says_where_quotas_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In memory they are forgotten at a restart."""
    text = PLAIN + '[quota.client."*"]\ntokens_per_minute = 1000\n'
    assert main(["gateway", str(written(tmp_path, text)), "--check"]) == 0
    assert "1 of clients, kept in this gateway's memory, which a restart empties" in capsys.readouterr().out
    text += '[quota.store]\nurl = "file:///var/lib/fairsched"\n'
    assert main(["gateway", str(written(tmp_path, text)), "--check"]) == 0
    assert "kept at file:///var/lib/fairsched" in capsys.readouterr().out


def client_of(gateway: Gateway, key: str | None) -> str:
    """The name of the client of a call with this key."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return account_of(gateway).client(gateway.names.of(headers)).name


def test_unknown_clients(tmp_path: Path) -> None:
    """Each has a name that does not show its key, up to so many; then they share one."""
    path = written(tmp_path, f'unknown_clients = "own"\n{PLAIN}[limits]\nclients = 4\n')
    gateway = built_from(path)
    found = [client_of(gateway, f"sk-{i}") for i in (0, 1, 2, 0)]
    assert found[0] == found[3] != found[1]
    assert found[2] == client_of(gateway, None) == "others"
    assert all("sk-" not in name for name in found)
    assert account_of(gateway).clients["gold"].weight == 4


def test_a_second_gateway_at_the_same_address_touches_no_log(tmp_path: Path, refused: Refused) -> None:
    """It is refused in one line, before it opens what the one that serves may be writing."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        log = tmp_path / "calls.jsonl"
        assert f"listen: {address}" in refused(
            "gateway", str(written(tmp_path, PLAIN.replace("127.0.0.1:0", address))), "--log", str(log)
        )
        assert not log.exists()


def test_a_process_serves_reads_again_and_drains(tmp_path: Path) -> None:
    """SIGHUP keeps it serving, with another weight and one more server, SIGTERM ends it, and the report is written.
    Its status is for a caller with an admin key."""
    head = f'status = true\nadmin_keys = ["{hashed_key("sk-admin")}"]\n'
    path, report = written(tmp_path, head + PLAIN), tmp_path / "report.json"
    command = [sys.executable, "-m", "fairsched", "gateway", str(path), "--report", str(report)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split(" at ")[1].split()[0]
            with pytest.raises(HTTPError, match="401"):
                urlopen(f"{url}/gateway/status")
            second = '[[server]]\nurl = "http://127.0.0.1:8001"\nwindow_tokens = 500\n'
            written(tmp_path, head + PLAIN.replace("weight = 4", "weight = 2") + second)
            os.kill(process.pid, signal.SIGHUP)
            asked = HttpRequest(f"{url}/gateway/status", headers={"authorization": "bearer sk-admin"})
            for _ in range(3000):
                with urlopen(asked) as answer:
                    said = json.load(answer)
                if said["window_tokens"] == 1500:
                    break
                time.sleep(0.02)
            assert list(said["servers"]) == ["http://127.0.0.1:8000", "http://127.0.0.1:8001"]
            process.terminate()
            process.wait(60)
        finally:
            process.kill()
    assert json.loads(report.read_bytes())["clients"]["gold"]["weight"] == 2
