"""What Splitwise's rows are made of: steps of the released simulator, baselines, designs, active tokens."""

from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.capacity import outcomes_of
from fairsched.engines.workloads import generate
from fairsched.reproduce.papers.splitwise import H100, HH, MEDIANS_US, TOKENS, _apart, _steps, machine


@given(st.sampled_from(sorted(MEDIANS_US)), st.sampled_from(range(len(TOKENS))), st.integers(1, 60))
def test_steps_are_medians_by_the_tokens_of_a_batch(which: tuple[str, str], place: int, batch: int) -> None:
    """Several prompts take what one of their tokens takes; decodes beside them count as tokens, and cost a tenth."""
    model, kind = which
    found, tokens = machine(kind, model), TOKENS[place]
    prompt_ns, decode_ns = (1000 * times[place] for times in MEDIANS_US[which])
    assert found.step_ns(((tokens, 0),), 0, 0) == found.step_ns(((tokens - 1, 0), (1, 0)), 0, 0) == prompt_ns
    assert found.step_ns(((tokens - batch, 0),), batch, 9_999) == prompt_ns * 11 // 10
    assert found.decode_run_ns(tokens, 9_999, 3) == 3 * decode_ns


def test_steps_of_a_run_are_all_of_its_tokens_and_time() -> None:
    """Requests that meet nobody are a step of their prompt and steps of one token, on the machine of each phase."""
    jobs = _apart(generate("azure-code", requests=20))
    for design, fleet, decodes in ((H100, (1, 0), 0), (HH, (1, 1), 1)):
        steps = _steps(jobs, design, fleet)
        prompts = sorted(tokens for worker, tokens, _ in steps if tokens > 1 and worker == 0)
        assert prompts == sorted(job.request.prompt.tokens for job in jobs.jobs)
        assert all(worker == decodes for worker, tokens, _ in steps if tokens == 1)
        found = outcomes_of(jobs, design.run, design.cluster(fleet))
        transfers_ns = (found.finish - found.arrival).sum() - sum(ns for *_, ns in steps)
        assert (transfers_ns > 0) == decodes
        assert transfers_ns >= 0
