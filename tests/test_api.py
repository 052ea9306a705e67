"""`import fairsched as fs`: what is there, what loading it costs, and what unknown names get."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairsched as fs
from fairsched.model.shown import html_table, short_repr
from fairsched.policies.local import ComposedPolicy, parameters
from fairsched.policies.registry import CLUSTER_POLICIES, LOCAL_POLICIES, with_parameters
from tests.support.access_logs import logged


@pytest.fixture(scope="module")
def workload() -> fs.Workload:
    """A small workload of four clients."""
    return fs.generate("demo", limit=60)


@pytest.fixture(scope="module")
def comparison(workload: fs.Workload) -> fs.Comparison:
    """Two policies over it, one by name and one as a value."""
    return fs.compare(workload, ["fcfs", fs.LPM()], ["round-robin"], cluster=fs.Cluster(workers=2))


def loaded_after(program: str) -> set[str]:
    """The modules that a program of its own loads."""
    code = f"import sys\n{program}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_fifty_public_names_and_every_policy_is_in_a_room() -> None:
    """`__all__` resolves and `dir` lists it; the class of every shipped policy and router is there or in a room."""
    assert len(fs.__all__) <= 50
    assert all(getattr(fs, name) is not None for name in fs.__all__)
    assert set(fs.__all__) <= set(dir(fs))
    rooms = (fs.catalog, fs.routers, fs.placement)
    for each in (*LOCAL_POLICIES.values(), *CLUSTER_POLICIES.values()):
        name = type(each).__name__
        assert any(hasattr(room, name) for room in rooms), name
        assert hasattr(fs.printed, name) == name.endswith(("Printed", "Released"))


def test_import_is_cheap() -> None:
    """`import fairsched` loads neither its own layers nor anything from outside the standard library."""
    loaded = loaded_after("import fairsched") - loaded_after("pass")
    assert "fairsched" in loaded
    assert {name.split(".")[0] for name in loaded - {"fairsched"}} <= sys.stdlib_module_names


def test_comparing_loads_no_solver_and_no_torch() -> None:
    """Nor does the command line load an engine before it runs a command."""
    heavy = {"z3", "cvc5", "hypothesis", "torch", "matplotlib", "rich", "ray", "pyarrow"}
    assert not heavy & loaded_after("import fairsched as fs; fs.compare(fs.generate('demo', limit=5), ['fcfs'])")
    assert not any(name.startswith("fairsched.engines") for name in loaded_after("import fairsched.cli"))


def test_a_policy_by_name_is_the_policy_by_value(workload: fs.Workload, comparison: fs.Comparison) -> None:
    """Same events, same hash, in a comparison too."""
    cluster = fs.Cluster(workers=2)
    by_name, by_value = fs.simulate(workload, "lpm", cluster=cluster), fs.simulate(workload, fs.LPM(), cluster=cluster)
    assert by_name.log_sha256 == by_value.log_sha256 == comparison.runs[1].log_sha256
    assert by_name.measures.finished == 60


def test_a_comparison_is_a_table_values_a_report_and_html(comparison: fs.Comparison, tmp_path: Path) -> None:
    """Text with a row for each run, plain values that JSON takes, one HTML file, and a table for notebooks."""
    assert all(label in comparison.table() for label in ("fcfs", "lpm", "TTFT"))
    assert [run["policy"] for run in msgspec.json.decode(msgspec.json.encode(comparison.to_dict()))["runs"]] == [
        "fcfs",
        "lpm",
    ]
    assert "<svg" in comparison.report(tmp_path / "report").read_text()
    html = comparison._repr_html_()
    assert html.count("<tr>") == 3
    assert html.startswith("<table>")


def test_a_comparison_is_a_table_where_pyarrow_is(comparison: fs.Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row for each run by its label and a column for each figure; without pyarrow the error names it."""
    pytest.importorskip("pyarrow")
    table = comparison.to_frame()
    assert table["run"].to_pylist() == ["fcfs", "lpm"]
    assert table["ttft_us.p99"].to_pylist() == [run.measures.ttft_us.p99 for run in comparison.runs]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match="pyarrow"):
        comparison.to_frame()


@pytest.fixture(scope="module")
def report() -> fs.Report:
    """What `fs.verify` finds of a small policy."""
    return fs.verify("fcfs", quick=True, jobs=1)


NESTED = st.recursive(
    st.text()
    | st.binary(max_size=400)
    | st.integers()
    | st.builds(np.zeros, st.integers(0, 9_999))
    | st.just("w" * 9_000),
    lambda inner: (
        st.lists(inner, max_size=40)
        | st.dictionaries(st.text(max_size=400), inner, max_size=40)
        | st.builds(fs.Client, st.just(0), st.text(max_size=9_000))
        | st.builds(fs.ClientSpec, st.text(), st.lists(inner, max_size=40).map(tuple), st.just(()), st.just(()))
    ),
)


@given(NESTED)
def test_what_is_shown_of_a_value_has_an_end(value: object) -> None:
    """However deep, long or wide it is."""
    assert len(short_repr(value)) < 2_000


@pytest.fixture(scope="module")
def values(
    workload: fs.Workload, comparison: fs.Comparison, report: fs.Report, tmp_path_factory: pytest.TempPathFactory
) -> list[object]:
    """A value of each public class, and what public functions return."""
    folder = tmp_path_factory.mktemp("values")
    whole, targets = fs.generate("demo"), fs.Slo(ttft_ns=5 * 10**9, tpot_ns=10**9)
    job = max(whole.jobs, key=lambda each: each.request.prompt.tokens)
    fs.compare(workload, ["dlpm"], logs=folder)
    log = next(folder.iterdir())
    row = {"tenant": "a", "start": 0, "latency_ms": 9, "prompt_tokens": 5, "completion_tokens": 7}
    asked = [whole, *whole.clients, job, job.request, job.request.prompt, targets, fs.ClientSpec.parse("zipf:900:1")]
    found = [comparison, *comparison.runs, report, fs.audit(log), fs.plan(workload, targets, routers=[], workers_max=2)]
    found += [fs.advise(logged(folder, *(row | {"start": i} for i in range(9)))), fs.tune(workload, 10**9)]
    names = (name for name in fs.__all__ if name.lower() in {*LOCAL_POLICIES, *CLUSTER_POLICIES})
    return [
        *(*asked, *found, fs.Cluster(workers=64), fs.latency_model("llama-3.1-8b-a100"), fs.Deployment()),
        *(getattr(fs, name)() for name in names),
        *(fs.Ageing(), fs.DLPMHierarchical(), fs.LeastSlackFirst(), fs.RoundRobin(), fs.ShortestPromptFirst()),
        fs.ComposedPolicy("own", fs.orders.Arrival(), fs.gates.DeficitGate()),
    ]


def test_no_public_value_floods_a_notebook(values: list[object]) -> None:
    """A value of every public class is shown in fewer than 2,000 characters."""
    classes = {getattr(fs, name) for name in fs.__all__ if isinstance(getattr(fs, name), type)}
    assert classes <= {type(value) for value in values}
    assert {type(value).__name__: len(repr(value)) for value in values if len(repr(value)) >= 2_000} == {}


def test_notebooks_show_tables(values: list[object]) -> None:
    """Of a comparison, a run and an audit: a row for each run or client, with names as text."""
    for kind in (fs.Comparison, fs.Run, fs.Audit):
        shown: Any = next(value for value in values if isinstance(value, kind))
        html = shown._repr_html_()
        assert html.startswith("<table>")
        assert html.count("<tr>") == (3 if kind is fs.Comparison else 5)
    assert html_table(["<b>"], []) == "<table><tr><th>&lt;b&gt;</th></tr></table>"


@given(st.sampled_from([type(policy) for policy in LOCAL_POLICIES.values()]), st.data())
def test_a_policy_takes_the_parameters_of_its_name(policy: Callable[..., ComposedPolicy], data: st.DataObject) -> None:
    """`fs.DLPM(quantum=1024)` is `dlpm` with `--set dlpm.quantum=1024`, and help lists the parameters."""
    plain = policy()
    whole = {name: value for name, value in parameters(plain).items() if isinstance(value, int)}
    given = {
        name: data.draw(st.integers(1, 64)) for name in data.draw(st.sets(st.sampled_from(sorted(whole)), max_size=3))
    }
    assert {*parameters(plain), "order", "gate"} <= {*inspect.signature(policy).parameters}
    try:
        expected = with_parameters(plain, {name: str(value) for name, value in given.items()})
    except ValueError:
        with pytest.raises(ValueError, match=r"."):
            policy(**given)
        return
    assert policy(**given) == expected


def test_a_parameter_that_a_policy_does_not_have_is_named() -> None:
    """With the nearest ones, or with all that there are."""
    with pytest.raises(TypeError, match=r"parameter of DLPM 'quantumm'; did you mean quantum\?"):
        fs.DLPM(quantumm=1)
    with pytest.raises(TypeError, match=r"known: order, gate, batching, .*max_batched_tokens"):
        fs.FCFS(zzz=1)


def test_python_runs_the_package() -> None:
    """`python -m fairsched` is the command line."""
    done = subprocess.run([sys.executable, "-m", "fairsched", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"fairsched {fs.__version__}\n"


@pytest.mark.parametrize(
    ("module", "extra"), [("pyarrow", "frame"), ("rich", "cli"), ("jinja2", "cli"), ("z3", "verify")]
)
def test_a_missing_package_is_said_with_its_extra(module: str, extra: str) -> None:
    """Where a function needs what is not installed, the error says what to install."""
    call = {
        "pyarrow": "fs.requests_frame(found)",
        "rich": "found.table()",
        "jinja2": "found.report('/nowhere')",
        "z3": "fs.verify('fcfs')",
    }[module]
    code = f"""
import sys; sys.modules[{module!r}] = None
import fairsched as fs
found = fs.compare(fs.generate("demo", limit=5), ["fcfs"])
try: {call}
except ModuleNotFoundError as error: print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{module} is not installed: pip install '.[{extra}]' in a clone of fairsched\n"


def test_a_rate_for_other_workers_is_said() -> None:
    """A rate of `auto` is for as many workers as are named; a run on more says that it is not theirs."""
    alone, four = (fs.generate("toolbench", requests=100, workers=workers) for workers in (1, 4))
    assert four.jobs[-1].request.arrival_ns < alone.jobs[-1].request.arrival_ns / 3
    cluster = fs.Cluster(workers=4)
    assert any("workers=4" in note for note in fs.simulate(alone, "fcfs", cluster=cluster).notes)
    assert not any("workers=" in note for note in fs.simulate(four, "fcfs", cluster=cluster).notes)


def test_verify_is_a_function_and_a_package(report: fs.Report) -> None:
    """`fs.verify` can be called, and the modules in the package of that name are found."""
    assert isinstance(report, fs.Report)
    assert report.proved
    assert callable(import_module("fairsched.verify.report").verify)
    with pytest.raises(ValueError, match="did you mean dlpm"):
        fs.verify("dlmp")


@pytest.mark.parametrize(("name", "near"), [("DLMP", "did you mean DLPM"), ("Simulate", "did you mean simulate")])
def test_an_unknown_name_says_what_is_near(name: str, near: str) -> None:
    """The message has both names."""
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; {near}"):
        getattr(fs, name)
