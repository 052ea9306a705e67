"""The documentation is true as far as a machine can tell: code runs, commands parse, links lead somewhere."""

import csv
import json
import linecache
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import dropwhile
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import pytest
from cyclopts import CycloptsError

from benchmarks import binding, worst_wait
from fairsched.cli import application, main
from fairsched.engines.simulation import RunSpec, latency_model
from fairsched.engines.workloads import WORKLOADS, generate
from fairsched.policies.registry import CLUSTER_POLICIES, router_with
from fairsched.reproduce import PAPERS
from fairsched.verify.proofs import SUITE, claims_of

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))

_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXAMPLE = re.compile(r"^```\{literalinclude\} (\S*examples/\S+\.py)\n:language: python\n```$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PATH = re.compile(r"`((?:model|policies|verify|engines|src|tests|benchmarks|docs)/[\w/.-]+)`")
_NAME = re.compile(r"`(?:fairsched\.)?((?:model|policies|verify|engines)\.[a-z_][\w.]*)`")
_OPTION = re.compile(r"`(--[a-z][^`]*|fairsched [^`]*)`")
OPTIONS_OF_OTHERS = {
    *("--completion", "--theorems"),  # of `fairsched` itself, and of pytest
    *("--additional-config", "--enable-priority-scheduling", "--max-running-requests", "--middleware"),
    *("--schedule-policy", "--scheduling-policy", "--tenant-api-key", "--time"),
}
NOTEBOOK = "notebook.md"
"""The page whose outputs are those of its cells."""
NOT_OURS = ("model.safetensors", "model.config.stop_tokens")
_INSTALL = re.compile(r"pip install .*(?:fairsched|\.\[)")
_ASSIGNMENT = re.compile(r"[A-Z_]+=")


def blocks(text: str, *languages: str) -> Iterator[tuple[int, str]]:
    """The fenced blocks in these languages: the number of each one's first line, and its text."""
    for found in _FENCE.finditer(text):
        if found[1] in languages:
            yield text.count("\n", 0, found.start(2)) + 1, found[2]


def commands(text: str) -> list[list[str]]:
    """The words of every command of a page, from the program on; a backslash continues a line in the next."""
    lines: list[str] = []
    for _, block in blocks(text, "console", "sh"):
        lines += block.replace("\\\n", " ").splitlines()
    split = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]
    return [list(dropwhile(_ASSIGNMENT.match, words)) for words in split]


def dead_links(page: Path) -> list[str]:
    """The relative links of a page that name no file; Sphinx checks those of the site, with their anchors."""
    targets = _LINK.findall(_CODE.sub("", page.read_text()))
    paths = [target.partition("#")[0] for target in targets if not re.match(r"[a-z]+:", target)]
    return [path for path in paths if not (page.parent / path).exists()]


def unknown_names(text: str) -> list[str]:
    """The paths and modules of ours in backticks that are not there."""
    unknown = [path for path in _PATH.findall(text) if not (ROOT / path).exists()]
    return unknown + [name for name in _NAME.findall(text) if name not in NOT_OURS and not is_there(name)]


def is_there(name: str) -> bool:
    """Whether a dotted name of ours leads to a module, which may need an extra that is not installed, or into one."""
    path = ROOT / name.replace(".", "/")
    if path.is_dir() or path.with_suffix(".py").exists():
        return True
    try:
        resolve_name(f"fairsched.{name}")
    except (ImportError, AttributeError):
        return False
    return True


def with_examples(page: Path) -> str:
    """Return the text of a page with the Python examples that it includes as blocks of its own."""
    return _EXAMPLE.sub(lambda found: f"```python\n{(page.parent / found[1]).read_text()}```", page.read_text())


def run_page(page: Path) -> ModuleType:
    """Run a page's blocks one after the other in one module; errors and `inspect` find the lines of each."""
    module = ModuleType(f"page_{page.stem}")
    for first, block in blocks(with_examples(page), "python"):
        name = f"<{page.name}, line {first}>"
        linecache.cache[name] = (len(block), None, block.splitlines(keepends=True), name)
        exec(compile(block, name, "exec"), vars(module))
    return module


@EACH_PAGE
def test_code_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every Python block runs after those before it on its page; the notebook has six, which print
    what it shows."""
    monkeypatch.chdir(tmp_path)
    if page.name == NOTEBOOK:
        pytest.importorskip("pyarrow")
    run_page(page)
    if page.name == NOTEBOOK:
        assert len([*blocks(page.read_text(), "python")]) == 6
        shown = "".join(text for _, text in blocks(page.read_text(), "text"))
        assert capsys.readouterr().out == shown


@EACH_PAGE
def test_commands_parse(page: Path) -> None:
    """Every `fairsched` command is one that the command line takes, and names what there is."""
    for words in commands(page.read_text()):
        if words and words[0] == "fairsched":
            names_what_there_is(parsed(words[1:]))


def parsed(words: list[str]) -> Mapping[str, Any]:
    """The arguments of a command, by parameter; raises `SystemExit` for help, and an error of cyclopts."""
    command, bound, _ = application().parse_args(words)
    return {"command": command.__name__, **bound.arguments}


def names_what_there_is(arguments: Mapping[str, Any]) -> None:
    """Raise for a policy, router, latency model or workload that is not there; imported policies are skipped."""
    for policy in arguments.get("policies", ()):
        if ":" not in policy:
            RunSpec.of(policy)
    for setting in arguments.get("set", ()) if arguments["command"] == "compare" else ():
        target, _, values = setting.partition("=")
        policy, _, param = target.rpartition(".")
        for value in values.split(",") if ":" not in policy else ():
            if policy in CLUSTER_POLICIES:
                router_with(CLUSTER_POLICIES[policy], {param: value})
            else:
                RunSpec.of(policy, params={param: value})
    for group in ("of_model", "of_cluster"):
        model = arguments[group].latency_model if group in arguments else ".json"
        if not model.endswith(".json"):
            latency_model(model)
    assert set(arguments.get("routers", ())) - {"all"} <= set(CLUSTER_POLICIES)
    workload = arguments.get("workload", "demo")
    for each in [workload] if isinstance(workload, str) else workload:
        assert each.partition(":")[0] in WORKLOADS or "." in each


@EACH_PAGE
def test_options_in_sentences_are_there(page: Path) -> None:
    """An option in backticks, alone or after `fairsched`, is one that a command has, or another program's."""
    assert unknown_options(page.read_text()) == []


def unknown_options(text: str) -> list[str]:
    """Return the options in backticks that no command of ours has."""
    named = [name for span in _OPTION.findall(_FENCE.sub("", text)) for name in re.findall(r"--[a-z][a-z-]+", span)]
    return [name for name in named if name not in OPTIONS_OF_OTHERS and name not in options()]


@cache
def options() -> frozenset[str]:
    """Return the options of all commands."""
    commands = [application()[name] for name in application() if not name.startswith("-")]
    return frozenset(name for each in commands for one in each.assemble_argument_collection() for name in one.names)


@EACH_PAGE
def test_make_targets_are_there(page: Path) -> None:
    """Every `make` command names targets of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands(page.read_text()):
        if words and words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= targets


def test_one_page_says_how_fairsched_is_installed() -> None:
    """No page asks a package index for it, since none has it, and all but the first leave the command to the first."""
    told = [str(page.relative_to(ROOT)) for page in PAGES if _INSTALL.search(page.read_text())]
    assert told == ["docs/index.md"]
    assert not [page for page in PAGES if re.search(r"pip install ['\"]?fairsched", page.read_text())]


@pytest.mark.parametrize("name", ["ce1", "sharegpt", "llm-judge"])
def test_the_table_of_bounds_as_shipped(name: str) -> None:
    """What it says of a workload is what its limits and charges make of it now."""
    with (ROOT / "docs" / "explanation" / "promises" / "binding.csv").open() as file:
        head, *rows = csv.reader(file)
    assert head == [*binding.HEAD, *map(str, binding.MEMORIES)]
    said = {policy: shares for workload, policy, _, _, *shares in rows if workload == name}
    assert said == {policy: binding.shares(generate(name), policy) for policy in binding.POLICIES}


def test_the_table_of_seconds_says_what_is_promised() -> None:
    """Of five machines at least, as the theorems have it now; nothing that was found is above it, and inside the batch
    a third of it was found on each."""
    with (ROOT / "docs" / "explanation" / "promises" / "seconds.csv").open() as file:
        head, *rows = csv.reader(file)
    assert head == [*worst_wait.HEAD]
    promised = [
        [name, title, theorem, f"{ns / 1e9:,.1f} s"]
        for name in worst_wait.MACHINES
        for title, theorem, ns in worst_wait.promises(latency_model(name))
    ]
    assert promised == [[name, title, theorem, said] for name, _, title, theorem, said, *_ in rows]
    assert len({row[0] for row in rows}) >= 5
    for *_, theorem, _, worst, load in rows:
        assert max(found := [float(each.split("(")[1].rstrip(")")) for each in (worst, load)]) <= 1
        assert theorem != "T-wait-paused" or found[0] >= 0.33


def test_the_tests_of_public_reports_are_there() -> None:
    """Each row names a file of tests, from `tests` or from those of the gateway, and words of a test in it."""
    named = re.findall(r"`([\w/]+):(\w+)`", (ROOT / "docs" / "explanation" / "public-reports.md").read_text())
    assert len(named) > 60
    for file, words in named:
        paths = [ROOT / "tests" / folder / f"{file}.py" for folder in ("", "engines/gateway")]
        (path,) = filter(Path.is_file, paths)
        assert re.search(rf"def test\w*{words}", path.read_text()), (file, words)


def test_the_links_of_the_readme_lead_somewhere() -> None:
    """Every relative link of the README names a file that is there."""
    assert dead_links(ROOT / "README.md") == []


def test_results_in_the_readme_are_claims_that_hold() -> None:
    """Each of eleven lines names a mean of a row with a held claim to the digits shown, in 15 words at most."""
    rows = {entry["id"]: entry for entry in json.loads((ROOT / "docs" / "results.json").read_bytes())["rows"]}
    papers = []
    for line in re.findall(r"^- (.*results\.md#result-.*)$", (ROOT / "README.md").read_text(), re.MULTILINE):
        ((shown, row),) = re.findall(r"\[([\d.]+)\]\(\S*results\.md#result-(\w+)\)", line)
        held = [claim["mean"] for claim in rows[row]["claims"] if claim["verdict"] == "held"]
        assert shown in {f"{mean:.{len(shown.partition('.')[2])}f}" for mean in held}, line
        assert len(line.split()) <= 15, line
        papers.append(rows[row]["paper"])
    assert papers == [key for key in PAPERS if key not in ("queueing", "fairsched")]


def test_sentences_about_papers_are_short_and_have_recorded_figures() -> None:
    """What came out of a paper is told in 40 words; each decimal figure is recorded, or printed."""
    entries = json.loads((ROOT / "docs" / "results.json").read_bytes())["rows"]
    for key, paper in PAPERS.items():
        claims = [claim for entry in entries if entry["paper"] == key for claim in entry["claims"]]
        means = [one["mean"] for claim in claims for one in (claim, claim["control"]) if one]
        printed = " ".join(claim["printed"] for claim in claims)
        assert len(paper.came_out.split()) <= 40, key
        for figure, decimals in re.findall(r"\b(\d+\.(\d+))", paper.came_out):
            known = {f"{mean:.{len(decimals)}f}" for mean in means} | set(re.findall(r"\d+\.\d+", printed))
            assert figure in known, f"{key}: {figure}"


@EACH_PAGE
def test_files_and_modules_on_pages_are_there(page: Path) -> None:
    """A path or a dotted name of ours in backticks names what there is."""
    assert unknown_names(page.read_text()) == []


def test_files_and_modules_in_comments_are_there() -> None:
    """The same holds in docstrings and comments of the code."""
    files = [file for folder in ("model", "policies", "verify", "engines") for file in (ROOT / folder).rglob("*.py")]
    assert {file: names for file in files if (names := unknown_names(file.read_text()))} == {}


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """As `make docs` does it: every link, theorem, policy and command has its place, and the README counts right."""
    options = ["--quiet", "--fail-on-warning", "--keep-going"]
    command = [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    theorems = (tmp_path / "reference" / "theorems.html").read_text()
    assert "D-4.1" in theorems
    assert stated_counts((ROOT / "README.md").read_text()) == shown_counts(theorems)


def shown_counts(page: str) -> tuple[int, ...]:
    """Return of the page of theorems: about shipped code, for any number of clients, models, arithmetic, and tested."""
    table = re.findall(r"<td><p>(\d+)</p></td>", page.partition("drawn worlds only")[2])[:12]
    code, follows, model, arithmetic = (tuple(map(int, table[row : row + 3])) for row in (0, 3, 6, 9))
    tested = code[2] + follows[2] + model[2] + arithmetic[2]
    return sum((*code[:2], *follows[:2])), code[0] + follows[0], sum(model[:2]), sum(arithmetic[:2]), tested


def stated_counts(readme: str) -> tuple[int, ...]:
    """Return the same of the README."""
    sentences = " ".join(readme.split())
    found = re.search(
        r"decides (\d+) .* (\d+) of them .* (\d+) more are about a model .* (\d+) arithmetic.* (\d+) are only tested",
        sentences,
    )
    assert found is not None
    return tuple(map(int, found.groups()))


def test_the_readme_counts_the_evidence() -> None:
    """Theorems and goals whose proofs a checker read, and theorems in Coq; what was recorded is of theorems there."""
    figures = json.loads((ROOT / "docs" / "measured.json").read_text())
    ((_, theorems, goals, accepted, *_),) = (row for row in figures["proof-survey"] if row[0] == "all")
    coq = figures["coq-goals"][1:]
    assert {name for name, *_ in (*figures["evidence"][1:], *coq)} <= set(claims_of(SUITE))
    readme = " ".join((ROOT / "README.md").read_text().split())
    found = re.search(r"of ([\d,]+) theorems all ([\d,]+) goals have proofs .* accepts goals of (\d+)", readme)
    assert found is not None
    assert (goals, found.groups()) == (accepted, (theorems, goals, str(len(coq))))


def test_the_first_tutorial_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its commands run, one after the other, on its log and its map, and print what the page shows."""
    text = (ROOT / "docs" / "tutorials" / "compare.md").read_text()
    monkeypatch.chdir(tmp_path)
    for name, language in (("access.jsonl", "json"), ("map.toml", "toml")):
        ((_, block),) = blocks(text, language)
        Path(name).write_text(block)
    assert len(Path("map.toml").read_text().splitlines()) <= 10
    for words in commands(text):
        if words and words[0] == "fairsched":
            assert main(words[1:]) == 0
    ((_, shown),) = blocks(text, "text")
    printed = capsys.readouterr().out
    assert all(line in printed for line in shown.splitlines())
    assert all((Path("out") / page / "index.html").is_file() for page in ("advise", "audit", "compare", "tune"))


def test_the_gateway_of_the_tutorial_has_that_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its configuration is accepted, and the check prints what the page shows."""
    text = (ROOT / "docs" / "tutorials" / "gateway.md").read_text()
    ((_, config),), ((_, shown),) = blocks(text, "toml"), blocks(text, "text")
    (tmp_path / "gateway.toml").write_text(config)
    assert main(["gateway", str(tmp_path / "gateway.toml"), "--check"]) == 0
    assert shown in capsys.readouterr().out


def test_the_gateway_of_the_laptop_page_has_that_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its configuration is accepted, and the bound is the one that the page says."""
    text = (ROOT / "docs" / "tutorials" / "serve.md").read_text()
    ((_, config),) = blocks(text, "toml")
    (tmp_path / "gateway.toml").write_text(config)
    assert main(["gateway", str(tmp_path / "gateway.toml"), "--check"]) == 0
    found = re.search(r"at most ([\d,]+) cost units", capsys.readouterr().out)
    assert found is not None
    assert f"the bound of `--check`, {found[1]}." in text


def test_the_checks_can_fail(tmp_path: Path) -> None:
    """Broken code, an unknown option, an unknown policy, and a dead link are all found."""
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```python\nassert 1 > 2\n```\n\n[a](page.md#a-page) [b](gone.md)\n")
    assert dead_links(page) == ["gone.md"]
    assert unknown_names("`model/events.py` `model/gone.py` `policies.base` `policies.base.gone`") == [
        "model/gone.py",
        "policies.base.gone",
    ]
    assert unknown_options("`--limit N`, and `--limmit`, or `fairsched search --drift 30`") == ["--limmit", "--drift"]
    with pytest.raises(AssertionError):
        run_page(page)
    (words,) = commands("```console\n$ fairsched compare \\\n    --polices fcfs  # misspelt\n```\n")
    assert words == ["fairsched", "compare", "--polices", "fcfs"]
    with pytest.raises(CycloptsError, match="Did you mean --policies"):
        parsed(words[1:])
    with pytest.raises(ValueError, match="unknown policy"):
        names_what_there_is(parsed(["compare", "--policies", "dplm"]))
