"""Generated workloads: reproducible, well-formed, and sharing exactly the prefixes their docstrings state."""

import itertools
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairsched.engines.workloads import WORKLOADS, WorkloadError, generate
from fairsched.engines.workloads.sampling import TokenSource, prompt_of
from fairsched.engines.workloads.sampling.tokens import BLOCK_TOKENS
from fairsched.model.request import KEY_BYTES, Job, Prompt, Workload

# Parameters that make each workload small enough to draw many.
SMALL: dict[str, dict[str, Any]] = {
    "demo": {},
    "long-context-qa": {"clients": 3, "documents": 2, "questions": 3, "document_tokens": 600},
    "tree-of-thoughts": {"clients": 2, "trees": 2, "question_tokens": 90, "longer_question_tokens": 700},
    "llm-judge": {"clients": 3, "articles": 2, "article_tokens": 300},
    "multi-turn": {"clients": 3, "sessions": 12},
    "toolbench": {"documents": 4, "sharers": 9, "clients": 2},
    "agent": {"tasks": 4, "steps": 6, "clients": 3},
    "programming": {"problems": 3, "samples": 4, "clients": 2, "problem_tokens": 700},
    "video-qa": {"documents": 4, "sharers": 3, "clients": 3, "prompt_tokens": 900, "prompt_sd_tokens": 100},
    "loogle": {"documents": 4, "sharers": 3, "clients": 3, "prompt_tokens": 2_000, "question_tokens": 90},
    "mixed": {"parts": "llm-judge+agent", "llm-judge.clients": 2, "llm-judge.articles": 2, "agent.tasks": 8},
    "azure-chat": {"requests": 60, "clients": 3},
    "azure-code": {"requests": 60, "clients": 3},
    "arxiv": {"requests": 60, "clients": 3},
    "sharegpt": {"requests": 24, "phases": "mixed"},
    "showcase": {"duration_s": 2, "flood_rate": 8, "calm_rate": 3},
    "servegen": {"folder": str(Path(__file__).parent / "servegen")},
    "split": {"duration_s": 2, "keys": 3, "others": 2},
    "subagents": {"agents": 3, "others": 2, "width": 2, "turns": 2, "task_tokens": 64},
    "ce1": {"steps": 10},
}
MISBEHAVING = [name for name, spec in WORKLOADS.items() if spec.takes("misbehave")]
KINDS = ["none", "more-requests", "longer-prefix"]


def common_tokens(left: Prompt, right: Prompt) -> int:
    """Tokens of the blocks two prompts share."""
    blocks = min(left.blocks, right.blocks)
    equal = np.frombuffer(left.keys, "<i8", blocks) == np.frombuffer(right.keys, "<i8", blocks)
    return int(equal.cumprod().sum()) * BLOCK_TOKENS


def programs_of(workload: Workload) -> dict[int | None, list[Job]]:
    """Jobs of each program, in order."""
    programs: dict[int | None, list[Job]] = defaultdict(list)
    for job in workload.jobs:
        programs[job.program].append(job)
    return programs


def test_every_workload_is_tried_small() -> None:
    """The tables of this file cover the registry."""
    assert set(SMALL) == set(WORKLOADS)


@pytest.mark.parametrize("name", WORKLOADS)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**40), kind=st.sampled_from(KINDS))
def test_a_workload_is_well_formed_and_pure_in_its_seed(name: str, seed: int, kind: str) -> None:
    """Ids count up, arrivals are sorted, parents stand earlier in the same program, clients are dense."""
    misbehave = kind if WORKLOADS[name].takes("misbehave") else None
    made = generate(name, seed=seed, misbehave=misbehave, **SMALL[name])
    assert generate(name, seed=seed, misbehave=misbehave, **SMALL[name]) == made
    arrivals = [job.request.arrival_ns for job in made.jobs]
    assert [job.request.id for job in made.jobs] == list(range(len(made.jobs)))
    assert arrivals == sorted(arrivals)
    assert [client.id for client in made.clients] == list(range(len(made.clients)))
    assert {job.request.client for job in made.jobs} == set(range(len(made.clients)))
    for job in made.jobs:
        for parent in job.after:
            assert parent < job.request.id
            assert made.jobs[parent].program == job.program
            assert made.jobs[parent].request.client == job.request.client
    assert made.notes[0].startswith(f"Generated: {name}")


@pytest.mark.parametrize("name", sorted({name for name, spec in WORKLOADS.items() if spec.takes("seed")}))
def test_seeds_differ(name: str) -> None:
    """Another seed gives other contents at other times."""
    one, other = (generate(name, seed=seed, **SMALL[name]) for seed in (0, 1))
    first, second = ({job.request.prompt.keys[:KEY_BYTES] for job in made.jobs} - {b""} for made in (one, other))
    assert not first & second
    assert [job.request.arrival_ns for job in one.jobs] != [job.request.arrival_ns for job in other.jobs]


@pytest.mark.parametrize("name", MISBEHAVING)
def test_the_well_behaved_send_the_same_whatever_client_0_does(name: str) -> None:
    """Prompts, outputs, times and dependencies of the others do not depend on `misbehave`; client 0 does worse."""

    def sent(kind: str) -> tuple[list[tuple[int, int, bytes, int, int]], int, float]:
        made = generate(name, misbehave=kind, **SMALL[name])
        assert made.clients[0].name == ("client-0" if kind == "none" else "misbehaving")
        rows = [
            (job.request.client, job.request.arrival_ns, job.request.prompt.keys, job.output_tokens, job.think_ns)
            for job in made.jobs
            if job.request.client
        ]
        own = [job.request.prompt_tokens for job in made.jobs if job.request.client == 0]
        return rows, len(own), sum(own) / len(own)

    (well, requests, tokens), (well_1, more, _), (well_2, same, longer) = (sent(kind) for kind in KINDS)
    assert well == well_1 == well_2
    assert more > requests == same
    assert longer > tokens * 1.2


def test_a_long_context_question_shares_its_document() -> None:
    """Prompts of one client share a whole document or nothing; clients share nothing."""
    made = generate("long-context-qa", clients=3, documents=2, questions=20, document_tokens=640, question_tokens=32)
    documents: dict[int, set[bytes]] = defaultdict(set)
    for job in made.jobs:
        documents[job.request.client].add(job.request.prompt.keys[:KEY_BYTES])
        assert len(job.after) == 0
        assert job.output_tokens == 16
    assert all(len(found) == 2 for found in documents.values())
    assert len(set.union(*documents.values())) == 6
    for one in made.jobs[:40]:
        for other in made.jobs[:40]:
            shared = common_tokens(one.request.prompt, other.request.prompt)
            same = one.request.prompt.keys[:KEY_BYTES] == other.request.prompt.keys[:KEY_BYTES]
            # A document is cut at a quarter of its mean length at the least, and loses at most a block at its end.
            assert shared == 0 if not same else shared >= 640 // 4 - BLOCK_TOKENS


def test_long_context_lengths_are_loogle_s() -> None:
    """Mean prompt 23,474 tokens, standard deviation 6,105, outputs of 16, about 94 % of tokens shared."""
    made = generate("long-context-qa", clients=20, documents=40, questions=1)
    prompts = {job.request.prompt.keys[:KEY_BYTES]: job.request.prompt_tokens for job in made.jobs}
    assert np.mean(list(prompts.values())) == pytest.approx(23_474, rel=0.04)
    assert np.std(list(prompts.values())) == pytest.approx(6_105, rel=0.1)
    assert {job.output_tokens for job in made.jobs} == {16}


@pytest.mark.parametrize(("kind", "requests", "branches"), [("none", 30, 2), ("more-requests", 340, 4)])
def test_a_tree_of_thoughts_has_the_paper_s_size(kind: str, requests: int, branches: int) -> None:
    """30 requests a tree with 2 branches, 340 with 4; each thought waits for its parent and repeats its history."""
    made = generate("tree-of-thoughts", misbehave=kind, clients=2, trees=2, question_tokens=80)
    trees = [jobs for jobs in programs_of(made).values() if jobs[0].request.client == 0]
    assert [len(jobs) for jobs in trees] == [requests, requests]
    for jobs in trees:
        children = Counter(job.after for job in jobs)
        assert set(children.values()) == {branches}
        by_id = {job.request.id: job for job in jobs}
        for job in jobs:
            if not job.after:
                assert job.request.prompt == jobs[0].request.prompt
                continue
            parent = by_id[job.after[0]]
            before = parent.request.prompt
            # The parent's prompt and thought, then 32 tokens of instruction.
            assert job.request.prompt_tokens == before.tokens + parent.output_tokens + 32
            assert common_tokens(before, job.request.prompt) == before.blocks * BLOCK_TOKENS
        # Thoughts are new text: cousins share what their grandparent said and no more.
        one, other = jobs[branches], jobs[2 * branches]
        assert common_tokens(one.request.prompt, other.request.prompt) == jobs[0].request.prompt.blocks * BLOCK_TOKENS


@pytest.mark.parametrize(("kind", "dimensions"), [("none", 2), ("more-requests", 16)])
def test_a_judge_branches_solves_and_merges(kind: str, dimensions: int) -> None:
    """The dimensions are solved after the branch, and the merge waits for all of them; all share the article."""
    made = generate("llm-judge", misbehave=kind, clients=2, articles=2, article_tokens=300)
    for jobs in programs_of(made).values():
        if jobs[0].request.client:
            continue
        first = jobs[0].request.id
        assert [job.after for job in jobs[:-1]] == [()] + [(first,)] * dimensions
        assert jobs[-1].after == tuple(range(first + 1, first + 1 + dimensions))
        assert jobs[-1].output_tokens == 2
        article = jobs[0].request.prompt
        for job in jobs[1:]:
            assert common_tokens(article, job.request.prompt) == article.blocks * BLOCK_TOKENS


def test_a_chat_s_history_grows() -> None:
    """A turn repeats the turn before and its answer, waits for it, and is sent after a think time; one session each."""
    made = generate("multi-turn", clients=2, sessions=30)
    turns = 0
    for jobs in programs_of(made).values():
        assert len({job.request.session for job in jobs}) == 1
        for before, after in itertools.pairwise(jobs):
            turns += 1
            assert after.after == (before.request.id,)
            assert after.think_ns > 0
            said = before.request.prompt_tokens + before.output_tokens
            assert after.request.prompt_tokens > said
            assert (
                common_tokens(before.request.prompt, after.request.prompt)
                == before.request.prompt.blocks * BLOCK_TOKENS
            )
    assert turns > 30


@given(steps=st.integers(1, 60))
def test_ce1_keeps_f_backlogged(steps: int) -> None:
    """f has more requests than steps, no two of which fit into 4 tokens; g's come one after another and fill them."""
    made = generate("ce1", steps=steps)
    f = [job for job in made.jobs if made.clients[job.request.client].name == "f"]
    g = [job for job in made.jobs if made.clients[job.request.client].name == "g"]
    assert len(f) == steps + 1
    assert 3 * len(g) > steps
    reserved = {job.request.prompt_tokens + job.request.max_output_tokens for job in f}
    assert reserved == {3}
    assert {(job.request.prompt_tokens, job.output_tokens) for job in f} == {(1, 1)}
    assert {(job.request.prompt_tokens, job.output_tokens, job.request.max_output_tokens) for job in g} == {(1, 3, 3)}
    assert [job.after for job in g] == [(), *((job.request.id,) for job in g[:-1])]


def test_rate_and_limit_apply_to_generators() -> None:
    """Arrivals are divided by the factor, and a limit keeps a prefix that is closed under parents."""
    made, faster = (generate("llm-judge", clients=2, articles=3, rate_scale=scale) for scale in (1.0, 2.0))
    assert [job.request.arrival_ns // 2 for job in made.jobs] == [job.request.arrival_ns for job in faster.jobs]
    assert any("multiplied by 2" in note for note in faster.notes)
    some = generate("llm-judge", clients=2, articles=3, limit=7)
    assert list(some.jobs) == list(made.jobs[:7])
    assert "Only the first 7 of 24 requests are kept." in some.notes


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("tree-of-thought", {}, "unknown workload 'tree-of-thought'; did you mean tree-of-thoughts"),
        ("llm-judge", {"artcles": 3}, "unknown parameter of workload llm-judge 'artcles'; did you mean articles"),
        ("llm-judge", {"clients": 0}, "parameter clients: Expected int >= 1, found 0"),
        ("llm-judge", {"clients": "many"}, "parameter clients: Expected int"),
        ("llm-judge", {"rate": float("nan")}, "parameter rate: .*found nan"),
        ("llm-judge", {"rate": "inf"}, "parameter rate: .*found 'inf'"),
        ("llm-judge", {"cv": -1.0}, "parameter cv"),
        ("llm-judge", {"arrivals": "steady"}, "parameter arrivals"),
        ("llm-judge", {"seed": -1}, "parameter seed"),
        ("llm-judge", {"misbehave": "loudly"}, "parameter misbehave"),
        ("llm-judge", {"rate_scale": float("nan")}, "positive finite"),
        ("llm-judge", {"limit": 0}, "at least 1"),
        ("ce1", {"misbehave": "more-requests"}, "no client of it can misbehave"),
        ("multi-turn", {"clients": 28}, "Expected int <= 27"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(name: str, arguments: dict[str, Any], message: str) -> None:
    """Unknown names get the nearest ones; values out of range are named with what they should be."""
    with pytest.raises(WorkloadError, match=message):
        generate(name, **arguments)


def test_parameters_are_documented_and_convert_from_text() -> None:
    """Every parameter has a help text and a default; text, as a command line gives it, converts."""
    for spec in WORKLOADS.values():
        for parameter in spec.parameters:
            assert parameter.help, (spec.name, parameter.name)
    as_text = generate("llm-judge", clients="2", articles="3", rate="8")
    assert as_text.jobs == generate("llm-judge", clients=2, articles=3, rate=8.0).jobs


@given(seed=st.integers(0, 99), cut=st.integers(0, 100), split=st.integers(1, 99))
def test_prompts_share_exactly_their_common_content(seed: int, cut: int, split: int) -> None:
    """Keys agree up to the first block that differs, wherever the parts of a prompt begin."""
    source = TokenSource(seed)
    text = source.fresh(100)
    changed = text.copy()
    changed[cut:] = source.fresh(100 - cut)
    whole = prompt_of(text)
    assert prompt_of(text[:split], text[split:]) == whole
    assert common_tokens(whole, prompt_of(changed)) == min(cut // BLOCK_TOKENS, whole.blocks) * BLOCK_TOKENS
    assert np.frombuffer(whole.keys, "<i8").min() >= 0


@pytest.mark.parametrize("phases", ["LPLD", "LPHD", "HPLD", "HPHD"])
def test_a_class_of_lengths_has_no_others(phases: str) -> None:
    """A heavy prompt has more than 512 tokens and a heavy output more than 128, a light one no more."""
    for job in generate("sharegpt", phases=phases, requests=200, seed=5).jobs:
        assert (job.request.prompt.tokens > 512) is (phases[0] == "H")
        assert (job.output_tokens > 128) is (phases[2] == "H")


def test_the_mix_has_as_many_of_each_class() -> None:
    """Of 40 mixed requests ten belong to each class, in no fixed order."""
    jobs = generate("sharegpt", phases="mixed", requests=40, seed=5).jobs
    classes = [(job.request.prompt.tokens > 512, job.output_tokens > 128) for job in jobs]
    assert {classes.count(each) for each in set(classes)} == {10}
    assert classes[:4] != classes[4:8] or classes[4:8] != classes[8:12]
