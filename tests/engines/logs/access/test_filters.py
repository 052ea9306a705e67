"""Which requests of a log are looked at, by model, time and status."""

from pathlib import Path

import pytest

from fairsched.engines.logs.access import UNKNOWN, AccessLog, Filters, When, read_access_log
from tests.support.access_logs import logged

ROWS = [
    {"start": f"2026-11-21T18:00:{i:02}+02:00", "latency_s": 1, "prompt_tokens": i, "output_tokens": 1}
    | {"client": "ab"[i % 2], "model": ["small", "large", None][i % 3], "status": [200, 429, 500, 503, 200][i % 5]}
    for i in range(30)
]


def read(folder: Path, filters: Filters) -> AccessLog:
    """The requests that are kept; the number of each is in its prompt."""
    return read_access_log(logged(folder, *ROWS), filters=filters)


@pytest.mark.parametrize(
    ("start", "until", "kept"),
    [
        ("10", None, range(10, 30)),
        (None, "10s", range(10)),
        ("0:00:10", "20s", range(10, 20)),
        ("2026-11-21T18:00:10", "2026-11-21T16:00:20Z", range(10, 20)),
        ("2026-11-21 18:00:10 +0200", "21/Nov/2026:18:00:12 +0200", range(10, 12)),
        ("1795276810", None, range(10, 30)),
    ],
)
def test_times_are_on_the_logs_clock(tmp_path: Path, start: str | None, until: str | None, kept: range) -> None:
    """A date without a zone is in the log's; a length of time is from its first request; the end is not in it."""
    first, last = (None if text is None else When.parse(text) for text in (start, until))
    log = read(tmp_path, Filters(start=first, until=last))
    assert log.prompt.tolist() == list(kept)
    said = [f"{word} {text}" for word, text in (("from", start), ("until", until)) if text]
    assert log.notes[0] == f"Only requests with {', '.join(said)}: {len(kept)} of 30."


@pytest.mark.parametrize(
    ("statuses", "kept"),
    [
        (("200",), {0, 4}),
        (("429", "5xx"), {1, 2, 3}),
        (("finished",), {0, 4}),
        (("Error",), {1, 2, 3}),
        (("5XX",), {2, 3}),
    ],
)
def test_statuses_are_codes_kinds_of_codes_and_outcomes(
    tmp_path: Path, statuses: tuple[str, ...], kept: set[int]
) -> None:
    """As the log writes them, by their first digit, or by how the request ended; what was refused had an output."""
    log = read(tmp_path, Filters(statuses=statuses))
    assert {int(prompt) % 5 for prompt in log.prompt} == kept
    assert len(log.prompt) == 6 * len(kept)


def test_names_of_what_is_left_are_those_in_use(tmp_path: Path) -> None:
    """Clients, models and statuses without a request that is kept are gone; numbers are those of the names."""
    log = read(tmp_path, Filters(models=("small",), statuses=("429",)))
    assert log.prompt.tolist() == [6, 21]
    assert (log.clients, log.models, log.statuses) == (("a", "b"), ("small",), ("429",))
    assert log.client.tolist() == [0, 1]
    assert (set(log.model.tolist()), set(log.status.tolist())) == ({0}, {0})
    every = read(tmp_path, Filters(statuses=("429",)))
    assert every.models == ("large", "small")
    assert [UNKNOWN if m == UNKNOWN else every.models[m] for m in every.model] == ["large", "small", UNKNOWN] * 2


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        (Filters(models=("smal",)), "unknown model 'smal'; did you mean small"),
        (Filters(statuses=("404", "done")), "unknown status 'done'"),
        (
            Filters(statuses=("4xx",), models=("small",), until=When.parse("1s")),
            "none of its 30 requests is left: model small keeps 10, until 1s keeps 1, status 4xx keeps 6",
        ),
    ],
)
def test_filters_that_keep_nothing_are_refused(tmp_path: Path, filters: Filters, said: str) -> None:
    """In one line: an unknown name, or how many requests each filter keeps."""
    with pytest.raises(ValueError, match=said):
        read(tmp_path, filters)


def test_a_date_needs_a_clock(tmp_path: Path) -> None:
    """A log whose times count from nowhere has no dates."""
    path = logged(tmp_path, {"start": 3, "latency_s": 1, "prompt_tokens": 1, "output_tokens": 1})
    with pytest.raises(ValueError, match="give a time from its start"):
        read_access_log(path, filters=Filters(start=When.parse("2026-11-21")))


@pytest.mark.parametrize("text", ["soon", "", "-5s", "2026-13-01", "1,234"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    """In one line that says what a time is."""
    with pytest.raises(ValueError, match="expected a date and time as 2026-11-21T18:00 or a length of time"):
        When.parse(text)
