"""Clients of a log are of one level throughout, by a rule that is stated."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.cli import main
from fairsched.engines.analysis.audit import audit_log
from fairsched.engines.logs.access import Columns, read_access_log, read_map
from tests.support.access_logs import GOOD, logged

BARE = {key: value for key, value in GOOD.items() if key != "client"}
COLUMNS = ("tenant", "team_id", "api_key_name", "api_key", "user", "end_user", "remote_addr")
"""A column of each level, the preferred first."""
NAMES = st.sampled_from(["", "-", "x", "y", "z"])
CALLS = st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(COLUMNS, NAMES)), min_size=1, max_size=12)


def clients(folder: Path, *rows: dict[str, Any], columns: Columns | None = None) -> tuple[tuple[str, ...], str]:
    """The clients of a log of these rows, and what is said of them first."""
    log = read_access_log(logged(folder, *(BARE | row for row in rows)), columns)
    return log.clients, " ".join(log.opening)


@given(rows=CALLS, seed=st.randoms(use_true_random=False))
def test_clients_are_of_one_level(rows: list[dict[str, str]], seed: Any) -> None:
    """All names stand in one column, the first with two in nine of ten rows, however the rows are ordered."""
    with TemporaryDirectory() as folder:
        found, said = clients(Path(folder), *rows)
        seed.shuffle(rows)
        assert clients(Path(folder), *rows) == (found, said)
    values = {name: [row[name] for row in rows if row.get(name, "") not in ("", "-")] for name in COLUMNS}
    good = [name for name in COLUMNS if len(set(values[name])) > 1 and len(values[name]) >= 0.9 * len(rows)]
    if not any(values.values()):
        assert (found, said) == (("(all)",), "")
        return
    if good:
        assert set(found) - {"(none)"} == set(values[good[0]])
        assert f"({good[0]})" in said or f"by {good[0]}" in said
    assert set(found) - {"(none)"} in [set(each) for each in values.values()]


def test_the_other_levels_are_counted(tmp_path: Path) -> None:
    """Teams whose rows also name keys and some end users are the clients; a map takes another level."""
    rows = [{"team_alias": f"t{i % 3}", "key": f"k{i % 6}", "end_user": f"u{i}" if i % 2 else ""} for i in range(24)]
    found, said = clients(tmp_path, *rows)
    assert found == ("t0", "t1", "t2")
    assert said == "Clients: 3 by team name (team_alias); it would be 6 by key, 12 by end user."
    (tmp_path / "map.toml").write_text('client = "key"\n')
    found, said = clients(tmp_path, *rows, columns=read_map(tmp_path / "map.toml"))
    assert (len(found), said) == (6, "Clients: 6 by key, as the map says.")


def test_one_user_of_all_rows_is_no_client_where_keys_differ(tmp_path: Path) -> None:
    """A spend log has `default_user_id` throughout, and a key a client."""
    rows = [{"user": "default_user_id", "api_key": f"k{i % 3}", "team_id": ""} for i in range(9)]
    assert clients(tmp_path, *rows)[0] == ("k0", "k1", "k2")


def test_the_level_is_the_first_line_of_an_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With how many requests name none."""
    path = logged(tmp_path, *(BARE | {"user": f"u{i % 2}" if i else ""} for i in range(20)))
    assert main(["audit", str(path)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "Clients: 2 by user, named by all but 1 requests."


def test_requests_without_a_name_are_no_client_that_starves(tmp_path: Path) -> None:
    """They may be of any client, and every client that has a name is served."""
    late = BARE | {"ttft_ms": 40_000, "latency_ms": 40_001}
    named = [BARE | {"start_ms": 1_000 * i, "user": f"u{i % 2}"} for i in range(60)]
    assert audit_log(logged(tmp_path, late | {"user": "u2"}, *named)).starved
    found = audit_log(logged(tmp_path, late, *named))
    assert not found.starved
    assert any("may be of any client" in said for said in found.evidence.limits)
