"""`fairsched trace --batch`: the order that is written, the figures, and what bad input gets."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

import fairsched as fs
from fairsched.cli import main
from fairsched.policies.offline import GroupOrder
from tests.cli.conftest import Refused


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A file of jobs in blocks of one token."""
    whole = [
        {"timestamp": 0, "output_length": 1, "block_tokens": 1, "input_length": len(row["hash_ids"]), **row}
        for row in rows
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in whole))
    return path


def ordered(path: Path) -> list[tuple[int, int, int]]:
    """Job, group and shared tokens of each line of an order."""
    return [(row["id"], row["group"], row["prefix_tokens"]) for row in map(json.loads, path.read_text().splitlines())]


FIVE = [[1, 1, 1, 2], [9, 9, 9, 9], [1, 1, 1, 3], [5, 5, 6], [1, 1, 1, 4]]


def test_the_order_and_its_saving_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Groups of more requests for each token first, the jobs of each as they came, every job once."""
    jobs = written(tmp_path / "jobs.jsonl", [{"hash_ids": keys, "id": 10 + i} for i, keys in enumerate(FIVE)])
    out, figures = tmp_path / "order.jsonl", tmp_path / "figures.json"
    assert main(["trace", str(jobs), "--batch", "exact", "--out", str(out), "--json", str(figures)]) == 0
    assert ordered(out) == [(10, 0, 3), (12, 0, 3), (14, 0, 3), (13, 1, 0), (11, 2, 0)]
    found = json.loads(figures.read_bytes())
    assert (found["saved_tokens"], found["prompt_tokens"], found["groups"], found["shared_groups"]) == (6, 19, 3, 1)
    assert "31.58%" in capsys.readouterr().out
    assert not list(tmp_path.glob("*.part"))


def test_orders_and_groupings_can_be_chosen(tmp_path: Path) -> None:
    """As printed the group of three counts once, and with known lengths the job with most output goes first."""
    rows = [{"hash_ids": keys, "output_length": 50 if i == 1 else 1} for i, keys in enumerate(FIVE)]
    jobs, out = written(tmp_path / "jobs.jsonl", rows), tmp_path / "order.jsonl"
    first = {}
    for order in get_args(GroupOrder):
        fs.order_batch(jobs, grouping="greedy", order=order).write(out, lambda count: None)
        first[order] = ordered(out)[0][0]
    assert first == {"per_request": 0, "paper": 3, "known_lengths": 1}


def test_keys_of_eight_bytes_are_grouped_like_those_of_four(tmp_path: Path) -> None:
    """A hash of 63 bits in the middle of the file changes how keys are kept, and nothing else."""
    orders = []
    for far in (7, 2**62):
        rows = [{"hash_ids": [far if key == 9 else key for key in keys]} for keys in FIVE]
        out = tmp_path / "order.jsonl"
        assert main(["trace", "--batch", "exact", str(written(tmp_path / "jobs.jsonl", rows)), "--out", str(out)]) == 0
        orders.append(ordered(out))
    assert orders[0] == orders[1]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([], "at least one"),
        ([{"hash_ids": [1], "id": 3}, {"hash_ids": [1], "id": 3}], "row 2, field id"),
        ([{"hash_ids": [1]}, {"hash_ids": [1], "parent": 0}], "row 2, field parent"),
        ([{"hash_ids": [1], "input_length": 0}], "row 1, field input_length"),
        ([{"hash_ids": [1], "colour": "red"}], "row 1, field colour"),
    ],
)
def test_bad_jobs_are_one_line(rows: list[dict[str, Any]], complaint: str, tmp_path: Path, refused: Refused) -> None:
    """What is wrong with the file is said with its row, and no order is left."""
    out = tmp_path / "order.jsonl"
    assert complaint in refused(
        "trace", "--batch", "exact", str(written(tmp_path / "jobs.jsonl", rows)), "--out", str(out)
    )
    assert not out.exists()


@pytest.mark.parametrize("flag", ["--out", "--json"])
def test_a_folder_that_is_not_there_is_named(flag: str, tmp_path: Path, refused: Refused) -> None:
    """Before anything is read."""
    assert "no folder" in refused(
        "trace", "--batch", "exact", "no-jobs.jsonl", flag, str(tmp_path / "nowhere" / "file")
    )


def test_the_jobs_are_not_overwritten(tmp_path: Path, refused: Refused) -> None:
    """The order does not go where the jobs are."""
    jobs = written(tmp_path / "jobs.jsonl", [{"hash_ids": [1, 2]}])
    before = jobs.read_bytes()
    assert f"--out: {jobs} is what is read" in refused("trace", "--batch", "exact", str(jobs), "--out", str(jobs))
    assert jobs.read_bytes() == before
