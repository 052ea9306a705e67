"""`import fairsched as fs`: what is there, what loading it costs, and what unknown names get."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import msgspec
import pytest

import fairsched as fs
from fairsched.policies.registry import CLUSTER_POLICIES, LOCAL_POLICIES


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


def test_verify_is_a_function_and_a_package() -> None:
    """`fs.verify` can be called, and the modules in the package of that name are found."""
    report = fs.verify("fcfs", quick=True, jobs=1)
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
