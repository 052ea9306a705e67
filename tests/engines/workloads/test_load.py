"""What a sound trace becomes: exact times, whole blocks, declared outputs, clients that stay together; and back."""

import bz2
import gzip
import json
import lzma
import os
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.workloads import ClientSpec, WorkloadError, generate, load_trace, save_workload
from fairsched.engines.workloads.readers import recognise
from fairsched.engines.workloads.readers.rows import number_ns, seconds_ns
from fairsched.engines.workloads.sampling.programs import rate_ratio, scaled_ns
from fairsched.model.request import Client, Job, Prompt, Request, Slo, Workload

SOME = Path("some.trace")
AZURE = """\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 23:59:59.9999999,374,44\r
2023-11-17 00:00:00,396,109\r
2023-11-17 00:00:00.5+00:00,2,7"""
MOONCAKE = """{"timestamp": 0, "input_length": 1030, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 2.000000001, "input_length": 1024, "output_length": 5, "hash_ids": [0, 3]}
"""
OWN = """{"timestamp": 1, "input_length": 40, "output_length": 5, "hash_ids": [5, 6], "block_tokens": 16, "weight": 3, \
"client": "b"}
{"timestamp": 1, "input_length": 3, "output_length": 9, "client": "a", "session": "s", "priority": -1, \
"slo": {"ttft_ms": 0.5}}
{"timestamp": 1, "input_length": 3, "output_length": 2, "client": "b", "id": 9, "parent": [0, 1], "think_ms": 2, \
"max_output_tokens": 30, "cancel_after_ms": 7}
{"timestamp": 4, "input_length": 3, "output_length": 2, "client": "b", "parent": 9, "predicted_output_tokens": 8}
"""
BURSTGPT = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log
19440161.5,,,ChatGPT,36,0,36,API log
19440161.5,,2,ChatGPT,37,29,66,API log
19440192.0,1722ac82,8,GPT-4,1779,123,1902,Conversation log
"""
BAILIAN = """{"chat_id": 159, "parent_chat_id": -1, "timestamp": 1, "input_length": 37, "output_length": 132, \
"type": "text", "turn": 1, "hash_ids": [10, 11, 12]}
{"chat_id": 7, "parent_chat_id": 3, "timestamp": 61.114, "input_length": 16, "output_length": 9, "type": "file", \
"turn": 4, "hash_ids": [10]}
{"chat_id": 160, "parent_chat_id": 159, "timestamp": 62.5, "input_length": 64, "output_length": 80, "type": "text", \
"turn": 2, "hash_ids": [10, 11, 13, 14]}
{"chat_id": 161, "parent_chat_id": 160, "timestamp": 99, "input_length": 70, "output_length": 1, "type": "text", \
"turn": 3, "hash_ids": [10, 11, 13, 14]}
"""


def written(tmp_path: Path, text: str) -> Path:
    """A file with this text."""
    path = tmp_path / "some.trace"
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_azure_times_count_from_the_first_row(tmp_path: Path) -> None:
    """Wall-clock times become exact nanoseconds across midnight, whatever the line ends and a byte-order mark."""
    workload = load_trace(written(tmp_path, AZURE))
    assert [job.request.arrival_ns for job in workload.jobs] == [0, 100, 500_000_100]
    assert [job.request.prompt_tokens for job in workload.jobs] == [374, 396, 2]
    assert [job.output_tokens for job in workload.jobs] == [44, 109, 7]
    assert {job.request.max_output_tokens for job in workload.jobs} == {109}
    assert not any(job.request.prompt.keys for job in workload.jobs)


def test_mooncake_blocks_are_whole_blocks(tmp_path: Path) -> None:
    """The id of a block that the prompt fills only partly is dropped, that of a full last block is kept."""
    first, second = (job.request for job in load_trace(written(tmp_path, MOONCAKE)).jobs)
    assert np.frombuffer(first.prompt.keys, "<i8").tolist() == [0, 1]
    assert np.frombuffer(second.prompt.keys, "<i8").tolist() == [0, 3]
    assert (first.prompt.tokens, first.prompt.block_tokens) == (1030, 512)
    assert second.arrival_ns == 2_000_000


SESSION = st.lists(st.tuples(st.none() | st.integers(0, 9), st.none() | st.integers(0, 9)), min_size=1, max_size=4)


@given(sessions=st.lists(SESSION, min_size=1, max_size=4))
def test_the_rows_of_a_session_follow_each_other(sessions: list[list[tuple[int | None, int | None]]]) -> None:
    """A row with a delay, or without a time, is sent so long after the one before of its session; others keep their
    time, in whatever order sessions stand."""
    rows = [
        {"session_id": place, "input_length": 5, "output_length": 1 + turn}
        | {key: value for key, value in (("timestamp", time), ("delay", delay)) if value is not None}
        for place, session in enumerate(sessions)
        for turn, (time, delay) in enumerate(session)
    ]
    with TemporaryDirectory() as folder:
        path = written(Path(folder), "".join(f"{json.dumps(row)}\n" for row in rows))
        jobs = {job.request.id: job for job in load_trace(path).jobs}
    assert len(jobs) == len(rows)
    for place, row in enumerate(rows):
        job = jobs[place]
        first = place == 0 or rows[place - 1]["session_id"] != row["session_id"]
        if not first and ("delay" in row or "timestamp" not in row):
            assert (job.after, job.think_ns) == ((place - 1,), row.get("delay", 0) * 10**6)
        else:
            assert (job.after, job.request.arrival_ns) == ((), row.get("timestamp", 0) * 10**6)
        assert job.request.session == str(row["session_id"])


@given(
    rows=st.lists(st.tuples(st.integers(0, 9**9), st.integers(1, 10**5), st.integers(1, 10**5)), min_size=1, max_size=9)
)
def test_traces_of_other_simulators_say_what_arenas_do(rows: list[tuple[int, int, int]]) -> None:
    """Vidur's and splitwise-sim's columns have other names and no clients."""
    found = []
    for form, header, row in (
        ("arena", "req_id,arrival_s,client,input_tokens,output_tokens", "{id},{at},a,{prompt},{output}"),
        ("vidur", "arrived_at,num_prefill_tokens,num_decode_tokens", "{at},{prompt},{output}"),
        (
            "splitwise",
            "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size",
            "{id},2,0,{at},1,{prompt},{output}",
        ),
    ):
        lines = [
            row.format(id=place, at=at / 1000, prompt=prompt, output=output)
            for place, (at, prompt, output) in enumerate(sorted(rows))
        ]
        with TemporaryDirectory() as folder:
            path = written(Path(folder), "\n".join([header, *lines]))
            assert recognise(path).name == form
            jobs = load_trace(path, clients=None if form == "arena" else ClientSpec.parse("1")).jobs
        found.append([(job.request.arrival_ns, job.request.prompt_tokens, job.output_tokens) for job in jobs])
    assert found[0] == found[1] == found[2]


def test_burstgpt_counts_its_failures_and_keeps_sessions_together(tmp_path: Path) -> None:
    """Times count from the first row; a call without a response token is left out and counted, also under a limit."""
    workload = load_trace(written(tmp_path, BURSTGPT), clients=ClientSpec.parse("40"))
    assert [job.request.arrival_ns for job in workload.jobs] == [0, 51_500_000_000, 82_000_000_000]
    assert [(job.request.prompt_tokens, job.output_tokens) for job in workload.jobs] == [
        (906, 446),
        (37, 29),
        (1779, 123),
    ]
    assert [job.request.session for job in workload.jobs] == ["1722ac82", None, "1722ac82"]
    assert workload.jobs[0].request.client == workload.jobs[2].request.client
    assert "1 calls failed (no response token) and are left out." in workload.notes
    limited = load_trace(written(tmp_path, BURSTGPT), limit=2)
    assert [job.request.prompt_tokens for job in limited.jobs] == [906, 37]


def test_the_first_burstgpt_release_has_no_sessions(tmp_path: Path) -> None:
    """Files without the columns `Session ID` and `Elapsed time` are read too."""
    text = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
    )
    (job,) = load_trace(written(tmp_path, text)).jobs
    assert (job.request.prompt_tokens, job.output_tokens, job.request.session) == (472, 18, None)


def test_bailian_turns_follow_their_parents(tmp_path: Path) -> None:
    """A turn waits for its parent and then as long as they are apart; one whose parent is missing begins a chat."""
    workload = load_trace(written(tmp_path, BAILIAN), clients=ClientSpec.parse("50"))
    first, orphan, second, third = workload.jobs
    assert [job.request.id for job in workload.jobs] == [159, 7, 160, 161]
    assert [job.after for job in workload.jobs] == [(), (), (159,), (160,)]
    assert [job.think_ns for job in workload.jobs] == [0, 0, 61_500_000_000, 36_500_000_000]
    assert orphan.request.arrival_ns == 61_114_000_000
    assert {job.request.session for job in (first, second, third)} == {"chat-159"}
    assert orphan.request.session == "chat-7"
    assert first.request.client == second.request.client == third.request.client
    assert (first.program, second.program, third.program, orphan.program) == (159, 159, 159, None)
    # Blocks have 16 tokens, and the id of a block that is filled only partly is dropped.
    assert np.frombuffer(first.request.prompt.keys, "<i8").tolist() == [10, 11]
    assert (third.request.prompt.blocks, third.request.prompt.tokens) == (4, 70)
    assert any(note.startswith("1 turns follow a request that is not among the rows before") for note in workload.notes)


def test_optional_keys_say_all_that_a_workload_says(tmp_path: Path) -> None:
    """Clients, weights, labels, targets, parents, programs and cancellations arrive where they belong."""
    workload = load_trace(written(tmp_path, OWN))
    one, two, three, four = workload.jobs
    assert [(client.name, client.weight) for client in workload.clients] == [("b", 3), ("a", 1)]
    assert [job.request.client for job in workload.jobs] == [0, 1, 0, 0]
    assert (one.request.prompt.block_tokens, one.request.prompt.blocks) == (16, 2)
    assert (two.request.session, two.request.priority) == ("s", -1)
    assert two.request.slo == Slo(ttft_ns=500_000)
    assert (three.request.id, three.after, three.think_ns) == (9, (0, 1), 2_000_000)
    assert (three.request.max_output_tokens, three.cancel_after_ns) == (30, 7_000_000)
    assert (four.request.max_output_tokens, four.request.predicted_output_tokens) == (9, 8)
    # Linked calls are one program, named after the root; the second root belongs to no program.
    assert [job.program for job in workload.jobs] == [0, None, 0, 0]


@given(ns=st.integers(0, 10**18))
def test_decimal_times_are_exact(ns: int) -> None:
    """Every whole nanosecond survives being written as decimal seconds or milliseconds."""
    assert seconds_ns(SOME, 1, "t", f"{ns // 10**9}.{ns % 10**9:09d}") == ns
    assert seconds_ns(SOME, 1, "t", f"{Decimal(ns).scaleb(-9):.20e}") == ns
    assert number_ns(SOME, 1, "t", Decimal(ns).scaleb(-6)) == ns


@given(ns=st.integers(0, 10**15), scale=st.floats(1e-3, 1e3))
def test_a_rate_is_scaled_exactly(ns: int, scale: float) -> None:
    """A scaled time is the quotient by the factor's decimal, rounded down."""
    assert scaled_ns(ns, rate_ratio(scale)) == Fraction(ns) / Fraction(str(scale)) // 1


def test_a_scaled_limited_trace_says_so(tmp_path: Path) -> None:
    """`rate_scale` divides times, `limit` keeps the first rows, and notes say both."""
    workload = load_trace(written(tmp_path, AZURE), rate_scale=0.1, limit=2)
    assert [job.request.arrival_ns for job in workload.jobs] == [0, 1000]
    assert any("First 2 requests" in note for note in workload.notes)
    assert any("multiplied by 0.1" in note for note in workload.notes)


@pytest.mark.parametrize(
    ("rule", "declared", "outputs", "note"),
    [
        ("trace-max", [109, 109, 109], [44, 109, 7], "is 109, the largest output read"),
        ("oracle", [44, 109, 7], [44, 109, 7], "oracle"),
        ("50", [50, 50, 50], [44, 50, 7], "1 longer outputs were cut"),
        (200, [200, 200, 200], [44, 109, 7], "0 longer outputs were cut"),
    ],
)
def test_declared_outputs_follow_the_rule(
    rule: str | int, declared: list[int], outputs: list[int], note: str, tmp_path: Path
) -> None:
    """Each rule declares what it says, cuts what an engine would cut, and is noted."""
    workload = load_trace(written(tmp_path, AZURE), max_output_tokens=rule)
    assert [job.request.max_output_tokens for job in workload.jobs] == declared
    assert [job.output_tokens for job in workload.jobs] == outputs
    assert any(note in said for said in workload.notes)


def counts(workload: Workload) -> list[int]:
    """Requests of each client."""
    found = Counter(job.request.client for job in workload.jobs)
    return [found[client.id] for client in workload.clients]


def rows_of_ms(count: int, keys: str = "") -> str:
    """That many rows without a client."""
    return "".join(f'{{"timestamp": {n}, "input_length": 64, "output_length": 1{keys}}}\n' for n in range(count))


def test_clients_are_dealt_by_share_and_seed(tmp_path: Path) -> None:
    """Shares follow Zipf's law, and the same seed deals the same."""
    path = written(tmp_path, rows_of_ms(4000))
    first = load_trace(path, seed=3)
    assert [client.name for client in first.clients] == [f"client-{index}" for index in range(8)]
    shares = 1 / np.arange(1, 9)
    expected = 4000 * shares / shares.sum()
    # Four standard deviations: the chance that a right dealer fails is below one in a thousand.
    assert np.all(np.abs(np.array(counts(first)) - expected) < 4 * np.sqrt(expected))
    assert load_trace(path, seed=3) == first
    assert counts(load_trace(path, seed=4)) != counts(first)
    assert any("zipf:8:1 (the default mix), seed 3" in note for note in first.notes)
    equal = np.array(counts(load_trace(path, clients=ClientSpec.parse("4"))))
    assert len(equal) == 4
    assert np.all(np.abs(equal - 1000) < 4 * np.sqrt(1000))


def test_what_belongs_together_stays_with_one_client(tmp_path: Path) -> None:
    """A session, a family of calls, and prompts that continue one another have one client each."""
    sessions = [rows_of_ms(1, f', "session": "s{n % 7}"') for n in range(200)]
    workload = load_trace(written(tmp_path, "".join(sessions)), clients=ClientSpec.parse("50"))
    by_session = {(job.request.session, job.request.client) for job in workload.jobs}
    assert len(by_session) == 7

    family = rows_of_ms(1) + "".join(rows_of_ms(1, f', "parent": {n}') for n in range(60))
    assert len({job.request.client for job in load_trace(written(tmp_path, family)).jobs}) == 1

    chats = [
        rows_of_ms(1, f', "block_tokens": 4, "hash_ids": [1, {chat}, {",".join(map(str, range(turn + 1)))}]')
        for turn in range(8)
        for chat in range(100, 130)
    ]
    jobs = load_trace(written(tmp_path, "".join(chats)), clients=ClientSpec.parse("50")).jobs
    owners = {(index % 30, job.request.client) for index, job in enumerate(jobs)}
    assert len(owners) == 30
    # One shared first block does not make all chats one.
    assert len({client for _, client in owners}) > 5


def test_a_traces_own_clients_are_kept(tmp_path: Path) -> None:
    """Weights can be set by name; a mix without names replaces the clients and says so."""
    path = written(tmp_path, OWN)
    weighted = load_trace(path, clients=ClientSpec.parse("weights:a=7"))
    assert [(client.name, client.weight) for client in weighted.clients] == [("b", 1), ("a", 7)]
    with pytest.raises(WorkloadError, match="unknown client 'c'; known: a, b"):
        load_trace(path, clients=ClientSpec.parse("weights:c=7"))
    replaced = load_trace(path, clients=ClientSpec.parse("2"))
    assert [client.name for client in replaced.clients] == ["client-0", "client-1"]
    assert any("own clients were replaced" in note for note in replaced.notes)


@pytest.mark.parametrize(
    "text",
    ["", "0", "-3", "1.5", "zipf", "zipf:", "zipf:0", "zipf:4:", "zipf:4:-1", "zipf:4:nan", "uniform:3", "٣"]
    + ["weights:", "weights:a", "weights:a=0", "weights:a=1.5", "weights:a=1,a=2", "weights:a=1,,b=2", "9999999"],
)
def test_mixes_outside_the_grammar_are_refused(text: str) -> None:
    """The message gives the grammar."""
    with pytest.raises(WorkloadError, match=r"zipf:N\[:S\]"):
        ClientSpec.parse(text)


@given(clients=st.integers(1, 300), exponent=st.integers(0, 3))
def test_shares_of_a_mix_sum_to_one(clients: int, exponent: int) -> None:
    """Shares are positive, fall with the rank, and sum to one."""
    spec = ClientSpec.parse(f"zipf:{clients}:{exponent}")
    assert abs(sum(spec.shares) - 1) < 1e-9
    assert list(spec.shares) == sorted(spec.shares, reverse=True)
    assert spec.shares[-1] > 0


# --- written and read back --------------------------------------------------------------------------------------------

TIMES = st.none() | st.integers(0, 10**13)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Small workloads that use every field, clients numbered by first appearance and each with a request."""
    jobs: list[Job] = []
    arrivals = sorted(draw(st.lists(st.integers(0, 10**13), min_size=1, max_size=6)))
    ids = draw(st.permutations(range(len(arrivals))))
    clients = 0
    for place, (identity, arrival) in enumerate(zip(ids, arrivals, strict=True)):
        client = draw(st.integers(0, clients))
        clients = max(clients, client + 1)
        keys = draw(st.lists(st.integers(0, 2**63 - 1), max_size=3))
        size = draw(st.integers(1, 20))
        output = draw(st.integers(1, 50))
        after = tuple(draw(st.sets(st.sampled_from(ids[:place]), max_size=2))) if place else ()
        request = Request(
            id=identity,
            client=client,
            arrival_ns=arrival,
            prompt=Prompt.from_keys(
                np.array(keys, dtype=np.int64),
                block_tokens=size,
                tokens=len(keys) * size + draw(st.integers(0 if keys else 1, 30)),
            ),
            max_output_tokens=output + draw(st.integers(0, 9)),
            predicted_output_tokens=draw(st.none() | st.integers(1, 99)),
            slo=draw(st.none() | st.builds(Slo, TIMES, TIMES, TIMES)),
            session=draw(st.none() | st.text(min_size=1, max_size=4)),
            priority=draw(st.integers(-5, 5)),
            downstream_levels=draw(st.integers(0, 4)),
        )
        jobs.append(
            Job(
                request=request,
                output_tokens=output,
                after=after,
                think_ns=draw(st.integers(0, 10**10)) if after else 0,
                program=draw(st.integers(0, 3)),
                cancel_after_ns=draw(TIMES),
            )
        )
    names = draw(st.lists(st.text(min_size=1, max_size=5), min_size=clients, max_size=clients, unique=True))
    people = tuple(Client(index, name, draw(st.integers(1, 9))) for index, name in enumerate(names))
    return Workload(name="drawn", jobs=tuple(jobs), clients=people)


@given(workload=workloads())
def test_reading_inverts_writing(workload: Workload) -> None:
    """Jobs and clients come back exactly, to the nanosecond and the last key."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "saved.jsonl"
        save_workload(workload, path)
        read = load_trace(path)
    assert read.clients == workload.clients
    assert read.jobs == workload.jobs


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_trace_may_be_packed_or_come_through_a_pipe(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """Whatever its name, it is the same trace; what can be read once must be told its format."""
    plain, packed = tmp_path / "plain.jsonl", tmp_path / "packed"
    save_workload(generate("demo", limit=20), plain)
    packed.write_bytes(pack(plain.read_bytes()))
    jobs = load_trace(plain).jobs
    assert load_trace(packed).jobs == jobs
    for format in (None, "mooncake"):
        out, into = os.pipe()
        try:
            os.write(into, packed.read_bytes())
            os.close(into)
            if format is None:
                with pytest.raises(WorkloadError, match="the format of a trace that can be read once"):
                    load_trace(f"/dev/fd/{out}")
            else:
                assert load_trace(f"/dev/fd/{out}", format=format).jobs == jobs
        finally:
            os.close(out)
