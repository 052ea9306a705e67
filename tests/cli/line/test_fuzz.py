"""The whole command line on arguments and files that are drawn: every command, with every option of its parser."""

import io
import json
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fairsched.cli import application, main
from fairsched.cli.run import COMMANDS
from fairsched.engines.workloads import WORKLOADS
from fairsched.policies.registry import CLUSTER_POLICIES, LOCAL_POLICIES

CPU_SECONDS_MAX = 60.0
"""No command line that is drawn here may take so much processor time: it would be an absurd value that is computed."""
MEMORY_MAX = 3 << 30
EXAMPLES, EXAMPLES_MAX = 5, 1_000
"""Of each command, by day and with the full budget."""
STATUSES = {0, 1, 2, 3, 130}
SAMPLES = Path(__file__).parents[2] / "engines" / "logs" / "access" / "samples"

AUTHOR = """
import attrs
from fairsched.policies.gates import DeficitGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import Order

@attrs.frozen
class Constant(Order):
    name = "constant"
    value: object = attrs.field(default=0, metadata={"text": False})
    def rank(self, request, cached_tokens):
        return self.value

def made(value):
    return ComposedPolicy("mine", Constant(value), DeficitGate(quantum=4096))

floats, nothing, large, whole = made(0.5), made(None), made(2**70), made(7)

class Raising(ComposedPolicy):
    def __init__(self):
        raise RuntimeError("no")
"""
"""A module of an author, with right and wrong policies."""
MODULES = {
    "author.py": AUTHOR,
    "broken.py": "def f(:\n",
    "raising.py": "1 / 0\n",
    "leaving.py": "import sys\nsys.exit(7)\n",
    "stopped.py": "raise KeyboardInterrupt\n",
}
OWN: tuple[str, ...] = (
    "author:floats",
    "author:nothing",
    "author:large",
    "author:whole",
    "author:Raising",
    "author:none",
    "broken:x",
)
OWN += ("raising:x", "leaving:x", "stopped:x", "nowhere:x", ":", "author:")
GATEWAY = """[[server]]
url = "http://127.0.0.1:9"
window_tokens = 8000

[client.a]
weight = 2
"""
PICKER = """listen = "127.0.0.1:0"
[pool]
window_tokens = 8000
[[pool.endpoints]]
address = "127.0.0.1:9"
"""
BATCH = "".join(
    json.dumps({"id": i, "arrival_ns": i, "client": "a", "prompt_tokens": 8, "output_tokens": 2}) + "\n"
    for i in range(3)
)

NUMBERS = ("0", "1", "2", "3", "-1", "0.5", "2.5", "nan", "inf", "1e300", "1e-300", "-0", "9" * 30, "9" * 5000, "１")
SIZES = ("8k", "32Ki", "3Mi", "999T", "1_0", "k", "10001", "0x1")
TIMES = ("5s", "5", "500ms", "1us", "2min", "1h", "0s", "99999999999h", "5 s", "s", "-5s", "1e9s")
ODD = (
    "",
    " ",
    "-",
    "--",
    "--json",
    "a=b",
    "a=",
    "=b",
    "a,b",
    "a,,",
    "a:b",
    ":",
    "x@1",
    "\x00",
    "\x1b[2J",
    "\u202e",
    "\ud800",
    "ü",
)
PATHS = (".", "..", "/", "/dev/null", "no/such/file", "out.json", "out", "x" * 300, "mutated")
NINES = "9" * 30
LIKELY = {
    name: tuple(texts.split())
    for name, texts in {
        "json": "/dev/full out.json no/such/file -",
        "out": "/dev/full out.jsonl",
        "policies": f"fcfs dlpm,lpm dlpm+open larry+deficit + fcfs+ dlmp {' '.join(OWN)}",
        "policy": f"fcfs dlpm dlpm+open d2lpm larry+x {' '.join(OWN)}",
        "routers": "round-robin sal,e2 distserve aladdin all splitwise",
        "router": "round-robin sal d2lpm aladdin rund-robin",
        "set": f"dlpm.quantum=8k dlpm.quantum={NINES} quantum=1 fcfs.max_running=1 sal.poll_us=-1 "
        "dlpm.quantum=1,2,none mine.x=1 author:whole.quantum=64 dlpm.batching=eager-prefill a.b= "
        "a.b=c max_running=0 max_running=3 dlpm.input_rate=999999999999 aladdin.x=1 "
        "round-robin.x=1",
        "predictor": "oracle bucketed:accuracy=0.5 history none bucketed:accuracy=2 bucketed:width_tokens=0",
        "WORKLOAD": "azure-chat:requests=20 toolbench:requests=10,documents=2,clients=2 mixed:demo+ce1 "
        "demo:x=1 azure-chat:rate=1e300 azure-chat:requests=0 mixed: mixed:parts=mixed demo: demo "
        f"{' '.join(WORKLOADS)}",
        "clients": "4 zipf:8:1 weights:a=4,b=1 weights:a=0 zipf:9:1e300 zipf:0:1 weights: 1e9",
        "max-output-tokens": "oracle trace-max",
        "latency-model": "llama-3.1-8b-a100 llama preset.json llama-3.1-8b-a100:2 llama-3.1-8b-a100,opt-13b-a100",
        "workers": "2 llama-3.1-8b-a100,opt-13b-a100 llama-3.1-8b-a100 llama-3.1-8b-a100:60000 "
        f"llama-3.1-8b-a100:0 x:1 llama-3.1-8b-a100:{NINES}",
        "split": "1:1 2:1 0:1 9999999:1",
        "change": "fail:0@1 fail:0@1+1 fail:0@1e9 fail:9@1 fail:0@-1 fail:0@99999999999h restart:0@0+0 "
        f"link-down:0@1+1ms drain:0@1 drain:0@1+1 join:1 join:1:40000 join:1:0 join:1:{NINES}",
        "link": "25 25,50us contended 0 1e300 5s,5s ,",
        "reports": "every=1ms delay=20ms,loss=0.2 loss=2 every=0s x=1",
        "rate-scale": "1 0.5,2 1,1 1e-300 1e-9 1e9",
        "slo": "ttft=2s,tpot=50ms ttft=2,tpot=1 ttft=1us,tpot=1us ttft=0s,tpot=0s ttft=2s",
        "attainment": "0.99 1 0",
        "target": "nine-slos delay P90:ttft=1s,tpot=50ms P99:ttft=3x p0:ttft=1s P101:ttft=1s P50:latency=1 P50:nope=1s",
        "reference": "llama-3.1-8b-a100 x",
        "fleet": "1xopt-13b-a100 3xopt-13b-a100:prefill+1xopt-13b-a100:decode 0xopt-13b-a100 "
        "9999999999xopt-13b-a100 1xopt-13b-a100/2 1xopt-13b-a100/0 x +",
        "quanta": f"64-128 1-{NINES} 9-1 -",
        "batching": "eager-prefill chunked chunkd 512,chunked",
        "batch-max": "2 2:32 1 2:",
        "device": "cpu cpu:2 cuda cuda:1",
        "replan": "5min 1s,10 0s",
        "map": "map.toml",
        "LOG": "events.jsonl nginx-text.log jobs.jsonl",
        "log": "out out.jsonl",
        "explain": "0 1 99",
        "replay": "events.jsonl",
        "listen": "127.0.0.1:0 nowhere.invalid:80 127.0.0.1:65536 : 127.0.0.1",
        "CONFIG.toml": "gateway.toml picker.toml deployment.toml",
        "config": "deployment.toml gateway.toml",
        "model": "small nosuch NAME",
        "URL": "http://127.0.0.1:9 http://[ ftp://x http:// https://127.0.0.1:99999999",
        "only": "from=10m from=2024-01-01T00:00:00Z from=99999999999h until=9999-12-31T23:59:59+14:00 "
        "model=small status=200,5xx status=x model= x=1",
        "ROW|PAPER": "D1 DLPM 1",
        "client": "a=1 a=0 a",
    }.items()
}
"""What an option is given at times, so that a command gets far; by its name."""
CHEAP: dict[str, list[str]] = {
    "search": ["--jobs", "1"],
    "gateway": ["--check"],
    "reproduce": ["--list", "rows"],
    "verify": ["--jobs", "1"],
}
"""What comes last, since a right command line of these would run for long."""
FILES: tuple[str, ...] = (
    "events.jsonl",
    "preset.json",
    "gateway.toml",
    "picker.toml",
    "jobs.jsonl",
    "map.toml",
    "author.py",
    "binary",
)
FILES += ("trace.jsonl", "empty", *(path.name for path in sorted(SAMPLES.rglob("*.*"))))

CONTENTS: dict[str, bytes] = {}
"""The files, as they are before each command."""


def arguments(command: str) -> list[Any]:
    """Every option and argument of a command, as cyclopts has them."""
    return [each for each in APPLICATION[command].assemble_argument_collection() if each.show]


APPLICATION = application()
ARGUMENTS = {command: arguments(command) for command in COMMANDS}


def name_of(argument: Any) -> str:
    """An option's name without dashes, or what help calls an argument."""
    return str(argument.parameter.metavar or argument.name) if positional(argument) else argument.name.lstrip("-")


def positional(argument: Any) -> bool:
    """Whether it is no option."""
    return not argument.name.startswith("--")


def values(argument: Any) -> st.SearchStrategy[str]:
    """What an option or an argument is given: right, nearly right, absurd, or anything."""
    likely = (*LIKELY.get(name_of(argument), ()), *(argument.get_choices() or ()))
    pools = [likely] * 4 * bool(likely) + [NUMBERS, SIZES, TIMES, ODD]
    if not likely or argument.parameter.metavar in ("FILE", "DIR"):
        pools += [FILES, FILES, PATHS]
    one = st.sampled_from(pools).flatmap(st.sampled_from)
    # No slash: what is drawn names no file outside of the working directory.
    free = st.text(st.characters(exclude_characters="/"), max_size=12)
    return st.one_of(one, one, one, free)


@st.composite
def lines(draw: st.DrawFn, command: str) -> tuple[list[str], dict[str, Any] | None]:
    """A command line, and what `fairsched.toml` says of the command."""
    table: dict[str, Any] = {}
    given_words: list[str] = []
    options = [each for each in ARGUMENTS[command] if not positional(each)]
    chosen = draw(st.lists(st.sampled_from(options), max_size=4))
    for option in [*(each for each in options if each.required and draw(st.integers(0, 9))), *chosen]:
        name = option.name
        if draw(st.integers(0, 19)) == 0:
            name = draw(st.sampled_from([name[:-1], name + "x", name.upper(), "-" + name]))
        texts = [] if option.hint is bool else [draw(values(option))]
        if draw(st.integers(0, 9)) == 0:
            table[name.lstrip("-")] = draw(st.sampled_from([texts, *texts, True, 1, 0.5, [1, "a"], {}, []]))
        elif draw(st.booleans()) and texts:
            given_words.append(f"{name}={texts[0]}")
        else:
            given_words += [name, *texts]
    for argument in ARGUMENTS[command]:
        if positional(argument):
            count = draw(st.integers(0, 2)) if argument.is_var_positional() else draw(st.integers(0, 5)) > 0
            given_words += [draw(values(argument)) for _ in range(count)]
    if any(each.name == "--limit" for each in options):
        given_words += ["--limit", "3"]
    return [command, *given_words, *CHEAP.get(command, [])], table or None


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """One of the files with a few bytes changed, or cut short."""
    content = bytearray(CONTENTS[draw(st.sampled_from(FILES))][:20_000])
    for _ in range(draw(st.integers(0, 3))):
        if content:
            place = draw(st.integers(0, len(content) - 1))
            change = draw(st.sampled_from(["flip", "cut", "drop", "number"]))
            if change == "flip":
                content[place] = draw(st.integers(0, 255))
            elif change == "cut":
                del content[place:]
            elif change == "drop":
                del content[place : place + draw(st.integers(1, 40))]
            else:
                content[place:place] = draw(
                    st.sampled_from([b"9" * 30, b"-", b"null", b"1e999", b'"', b"\n", b"[" * 3000])
                )
    return bytes(content)


class TooLongError(BaseException):
    """A command line has used up its processor time; no command handles this."""


@contextmanager
def limited() -> Iterator[None]:
    """Raise where a command takes much processor time, which does not count what others take, or much memory."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise TooLongError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS_MAX)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY_MAX, most[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, most)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def ended(words: Sequence[str]) -> tuple[object, str]:
    """The exit status of a command in this process, and what it says on standard error."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(3)]
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = streams
    status: object
    try:
        with limited():
            status = main(words)
    except SystemExit as left:
        status = left.code
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
    streams[2].flush()
    return status, streams[2].buffer.getvalue().decode()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files of every kind, and one below it to work in."""
    folder = tmp_path_factory.mktemp("fuzz")
    work = folder / "work"
    work.mkdir()
    logs = folder / "logs"
    assert main(["compare", "--limit", "3", "--policies", "fcfs", "--log", str(logs)]) == 0
    (folder / "events.jsonl").write_bytes(min(logs.iterdir()).read_bytes())
    assert main(["trace", "--out", str(folder / "trace.jsonl"), "--limit", "3"]) == 0
    for name, text in {
        **MODULES,
        "gateway.toml": GATEWAY,
        "picker.toml": PICKER,
        "deployment.toml": "kv_capacity_tokens = 60000\n",
        "jobs.jsonl": BATCH,
        "map.toml": '[columns]\nclient = "user"\n',
        "preset.json": "{}",
        "empty": "",
    }.items():
        (folder / name).write_text(text)
    (folder / "binary").write_bytes(bytes(range(256)))
    for path in SAMPLES.rglob("*.*"):
        (folder / path.name).write_bytes(path.read_bytes())
    CONTENTS.update((path.name, path.read_bytes()) for path in folder.iterdir() if path.is_file())
    return work


@pytest.fixture
def stubs(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory; and in place of what takes long or listens, the end of the command."""
    from fairsched.cli.commands import calibrate, search
    from fairsched.engines import conformance, gateway, server
    from fairsched.engines.adapters import endpoint_picker
    from fairsched.verify import report

    def end(*args: object, **keywords: object) -> NoReturn:
        raise ValueError("all arguments are right")

    monkeypatch.chdir(files)
    monkeypatch.setenv("FAIRSCHED_TRACEBACK", "1")
    monkeypatch.setattr(calibrate.EngineOptions, "load", end)
    for module, name in (
        *((search, "search_fleets"), (search, "replanned"), (report, "outcome_of")),
        *((gateway, "listening"), (gateway, "LoadReplay"), (server, "listening"), (endpoint_picker, "serve")),
        (conformance, "conform"),
    ):
        # Into its dictionary, since asking for a name that is loaded late would load it.
        monkeypatch.setitem(vars(module), name, end)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_line_ends_in_a_traceback(command: str, stubs: None, full_budget: bool) -> None:
    """Whatever a command is given, in words, in `fairsched.toml` and in files, it ends with one of the documented
    statuses, in bounded time and memory; bad input is one line."""
    folder = set(Path.cwd().iterdir())
    budget = settings(
        max_examples=EXAMPLES_MAX if full_budget else EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck)
    )

    @budget
    @given(line=lines(command), content=st.none() | mutated(), bare=st.booleans())
    def check(line: tuple[list[str], dict[str, Any] | None], content: bytes | None, bare: bool) -> None:
        argv, table = line
        # As they were before a command wrote over one of them.
        for name, whole in CONTENTS.items():
            Path(name).write_bytes(whole)
        Path("mutated").write_bytes(content or b"")
        Path("fairsched.toml").unlink(missing_ok=True)
        if table is not None:
            Path("fairsched.toml").write_bytes(toml(command, table))
        elif bare and content is not None:
            Path("fairsched.toml").write_bytes(content)
        status, said = ended(argv)
        assert status in STATUSES, (status, said)
        if status == 2:
            assert said.count("\n") == 1, said
            assert said.rstrip("\n").isprintable(), said
        assert "Traceback" not in said
        for path in set(Path.cwd().iterdir()) - folder:
            if path.is_file() and path.name not in CONTENTS:
                path.unlink()

    check()


def toml(command: str, table: dict[str, Any]) -> bytes:
    """A file that sets the command's options; JSON's strings, numbers and lists are TOML's."""
    rows = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in table.items()]
    text = "\n".join([f"[{command}]", *rows])
    return text.encode("utf-8", "surrogatepass")


@given(word=st.text(max_size=12), rest=st.lists(st.sampled_from([*NUMBERS, *ODD, "--help", "--version", "--config"])))
def test_what_is_no_command_is_said(word: str, rest: list[str]) -> None:
    """Any words that name no command end with a status and a line."""
    assume(word not in COMMANDS)
    status, said = ended([*rest[:1], word, *rest[1:]])
    assert status in STATUSES
    assert "Traceback" not in said


def test_the_names_in_the_pools_are_there() -> None:
    """Options for which likely values are kept are options or arguments of some command; policies and routers are."""
    names = {name_of(each) for command in COMMANDS for each in ARGUMENTS[command]}
    assert set(LIKELY) <= names
    assert {"fcfs", "dlpm"} <= set(LOCAL_POLICIES)
    assert {"round-robin", "sal", "e2"} <= set(CLUSTER_POLICIES)
