"""The command line before a command runs: `fairsched.toml`, completion, units, interrupts, and what is not computed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.cli import main
from fairsched.cli.run import COMMANDS
from fairsched.cli.values import positive_int, span, time_ns
from tests.cli.conftest import Figures, Refused
from tests.cli.line.test_fuzz import AUTHOR

SMALL = ["compare", "--limit", "10"]


def settings_of(folder: Path, text: str) -> Path:
    """Write a settings file, and return a folder two levels below it."""
    (folder / "fairsched.toml").write_text(text)
    inner = folder / "a" / "b"
    inner.mkdir(parents=True)
    return inner


def test_a_command_reads_the_file_above_and_the_command_line_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: Figures
) -> None:
    """Options come from the nearest file; one that is given drops the same one of the file."""
    text = '[compare]\npolicies = ["fcfs", "dlpm"]\nset = ["dlpm.quantum=64,8k"]\nworkers = 2\n'
    monkeypatch.chdir(settings_of(tmp_path, text))
    document = figures(*SMALL)
    assert [run["policy"] for run in document["runs"]] == ["fcfs", "dlpm", "dlpm"]
    assert [run["params"].get("quantum") for run in document["runs"]] == [None, 64, 8_000]
    assert document["trace"]["workers"] == 2
    document = figures(*SMALL, "--policies", "dlpm", "--set", "dlpm.quantum=32Ki")
    assert [run["params"]["quantum"] for run in document["runs"]] == [32_768]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[compare]\npolices = 1\n", 'Unknown option: "[polices]" from'),
        ("[compar]\n", "unknown command 'compar'; did you mean compare"),
        ("[compare]\nworkers = 0\n", "Invalid value for [workers]: expected a positive whole number, found '0'"),
        ("[compare]\nseed = true\n", "Invalid value for [seed]: expected a whole number, found 'True'"),
        ("[compare]\naccount = 'cliend'\n", 'Invalid value "cliend" for [account]'),
        ("compare = 1\n", "must be a mapping, but got int"),
        ("[compare\n", "fairsched.toml: line 1, column 9: expected ']'"),
    ],
)
def test_what_a_file_gets_wrong_is_one_line(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    """An unknown key, a value that the option does not take and broken TOML are refused."""
    monkeypatch.chdir(settings_of(tmp_path, text))
    assert said in refused(*SMALL)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("gateway {} --check", "bad.toml"),
        ("gateway --picker {} --check", "bad.toml"),
        ("audit bad.json --map {}", "bad.toml"),
        ("advise bad.json --map {}", "bad.toml"),
        ("verify --config {}", "bad.toml"),
        ("verify --config {}", "bad.json"),
        ("compare --latency-model {}", "bad.json"),
        ("machine import distserve {} --model opt-13b --gpu a100 --out out.json", "bad.json"),
        ("audit {}", "bad.json"),
    ],
)
def test_malformed_files_are_refused_by_place(
    command: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    """A malformed file is one line, whichever command reads it: its name, line and column, and what is wrong."""
    monkeypatch.chdir(tmp_path)
    Path("bad.toml").write_text("# one\nmodel = llama\n")
    Path("bad.json").write_text('{"a": 1,\n "model": llama}\n')
    said = refused(*command.format(name).split())
    where = {"bad.toml": "line 2, column 9: no value stands here", "bad.json": "line 2, column 11: expecting value"}
    logged = "bad.json, row 2: expected one JSON list, or a JSON object a line, found expecting value at column 11"
    assert logged in said or f"{name}: {where[name]}" in said


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_takes_the_script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The script for a shell has the commands and their options, and the shell itself finds no fault with it."""
    assert main(["--completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert "kv-capacity-tokens" in script.read_text()
    if shutil.which(shell):
        assert subprocess.run([shell, "-n", str(script)], capture_output=True, check=True).stderr == b""


def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A real bash completes a command, an option and a choice."""
    assert main(["--completion", "bash"]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    function = script.read_text().rpartition("complete -F ")[2].split()[0]
    found = []
    for words in (["comp"], ["compare", "--pol"], ["trace", "--batch", "gr"]):
        line = " ".join(["fairsched", *words])
        ask = f'COMP_WORDS=({line}); COMP_CWORD={len(words)}; {function}; printf "%s " "${{COMPREPLY[@]}}"'
        shell = subprocess.run(["bash", "-c", f"source {script}; {ask}"], capture_output=True, text=True, check=True)
        found.append(shell.stdout.split())
    assert found == [["compare"], ["--policies"], ["greedy", "greedy-absorb-last"]]


@given(number=st.integers(1, 10**6), suffix=st.sampled_from(["", "k", "M", "Ki", "Mi"]))
def test_sizes_are_whole_numbers(number: int, suffix: str) -> None:
    """A size is the number times a power of 1000 or 1024, and nothing above the largest is taken."""
    value = number * {"": 1, "k": 1000, "M": 1000**2, "Ki": 1024, "Mi": 1024**2}[suffix]
    if value <= 10**12:
        assert positive_int(f"{number}{suffix}") == value
    else:
        with pytest.raises(ValueError, match="at most 1,000,000,000,000"):
            positive_int(f"{number}{suffix}")


@given(ns=st.integers(1, 2**40))
def test_times_are_alike_with_and_without_a_unit(ns: int) -> None:
    """A number without a unit is seconds."""
    number = f"{ns / 10**6:.3f}"
    assert time_ns(number) == time_ns(number + "s")
    assert span(f"{ns}us") == ns * 1_000


DIGITS = "9" * 26


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workers", DIGITS], "a positive whole number of at most 10,000, found"),
        (["--workers", "100000000"], "of at most 10,000, found '100000000'"),
        (["--workers", "9" * 5000], "of at most 10,000, found"),
        (["--split", "99999999:1"], "at most 10,000 workers, found 100,000,000"),
        (["--cache-floor", "client-0"], "expected CLIENT=TOKENS, found 'client-0'"),
        (["--rate-scale", "1e300"], "from 1e-9 to 1e9, found 1e+300"),
        (["--rate-scale", "1e-300"], "from 1e-9 to 1e9, found 1e-300"),
        (["--kv-capacity-tokens", DIGITS], "of at most 1,000,000,000,000, found"),
        (["--workers", f"llama-3.2-3b-a10g:{DIGITS}"], "KV a number of tokens: expected a positive whole number of at"),
        (["--change", f"join:1:{DIGITS}"], "KV a number of tokens: expected a positive whole number of at most"),
        (["--link", "1e300"], "a positive number, from 1e-9 to 1e12"),
        (["--set", f"dlpm.quantum={DIGITS}"], "dlpm.quantum is a whole number of at most 1,000,000,000,000"),
        (["--reports", "delay=1e99"], "expected a length of time"),
        (["--policies", "broken_module:x"], "'broken_module:x' cannot be imported: SyntaxError"),
        (["--policies", "raising_module:x"], "'raising_module:x' cannot be imported: ZeroDivisionError"),
        (["--policies", "leaving_module:x"], "'leaving_module:x' cannot be imported: SystemExit: 7"),
        (["--policies", "ranking_module:floats"], "order constant ranked a request 0.5: a rank is a whole number from"),
        (["--policies", "ranking_module:large"], "a rank is a whole number from -4,194,304 to 4,194,304"),
        (["--polices", "x"], "Did you mean --policies"),
    ],
)
def test_absurd_values_and_authors_mistakes_are_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    """Each is refused at once, by name, with the largest value where there is one."""
    (tmp_path / "broken_module.py").write_text("def f(:\n")
    (tmp_path / "raising_module.py").write_text("1 / 0\n")
    (tmp_path / "leaving_module.py").write_text("import sys\nsys.exit(7)\n")
    (tmp_path / "ranking_module.py").write_text(AUTHOR)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert said in refused(*SMALL, *arguments)


def test_the_battery_says_what_is_wrong_with_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The conformance battery ends with the order's name, the rank and what a rank may be."""
    from hypothesis import Phase, settings

    from fairsched.policies.registry import local_policy
    from fairsched.verify.conformance import check_local_policy

    (tmp_path / "ranked_module.py").write_text(AUTHOR)
    monkeypatch.syspath_prepend(str(tmp_path))
    budget = settings(max_examples=20, stateful_step_count=10, database=None, phases=[Phase.generate])
    with pytest.raises(ValueError, match=r"order constant ranked a request 0\.5: a rank is a whole number"):
        check_local_policy(local_policy("ranked_module:floats"), settings=budget)


@pytest.mark.parametrize("module", ["cyclopts", "tomllib", "numpy", "fairsched.engines.simulation.sweep"])
def test_an_interrupt_while_something_is_imported_is_silent(module: str, tmp_path: Path) -> None:
    """Ctrl-C during any import, the first ones included, ends with 130 and not a word."""
    (tmp_path / "fairsched.toml").write_text("")
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")]), *sys.path])
    ended = subprocess.run(
        [sys.executable, "-m", "fairsched", *SMALL],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_help_imports_little() -> None:
    """`fairsched --help` and `--version` load no library from outside, none of ours, and nothing that takes long."""
    code = "import sys; from fairsched.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    listed = subprocess.run(
        [sys.executable, "-c", code + "print(*sys.modules, file=sys.stderr)"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(listed.stderr.split())
    ours = {name for name in loaded if name.startswith("fairsched.") and not name.startswith("fairsched.cli")}
    assert ours == set()
    assert not loaded & {"numpy", "attrs", "msgspec", "rich", "cyclopts", "importlib.metadata", "tomllib", "inspect"}


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_the_list_of_commands_fits(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No line is longer than the terminal, and every command is there with all that is said of it."""
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= columns
    assert all(" ".join((name, said)) in " ".join(shown.split()) for name, (_, said) in COMMANDS.items())


def test_standard_output_that_takes_nothing_is_said(tmp_path: Path) -> None:
    """Where standard output cannot be written, one line says so and the status is 3."""
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "fairsched", "gateway", "--schema"],
            stdout=full,
            stderr=-1,
            text=True,
            check=False,
        )
    assert (ended.returncode, ended.stderr.count("\n")) == (3, 1), ended.stderr
