"""What a report says of a policy: its theorems, their constants, and what its configuration does not have."""

from itertools import product
from math import lcm
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest

from fairsched.model.request import Client
from fairsched.model.theorem import MEM_RESERVE, OUTPUTS_BOUNDED, Theorem
from fairsched.policies.batching import BATCHINGS, Chunked
from fairsched.policies.catalog import DLPM
from fairsched.policies.gates import AnyGate, BoundedGate, CounterGate, DeficitGate
from fairsched.policies.gates.counter import V_44
from fairsched.policies.gates.deficit import D_41, D_WEIGHTED
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.orders import Arrival, LongestPrefix, Order, ShortestPrompt
from fairsched.policies.registry import CLUSTER_POLICIES, LOCAL_POLICIES
from fairsched.policies.routers import JoinShortestQueue, RoundRobin
from fairsched.verify.proofs import SUITE, claims_of
from fairsched.verify.report import Deployment, fallen, verify
from fairsched.verify.report import text as report_text
from fairsched.verify.report.deployment import constant, document, read, seconds_of_service
from fairsched.verify.report.scope import PARTS, Subject, part, subject
from fairsched.verify.report.values import plan, run
from fairsched.verify.solvers import Proved, prove
from tests.support.authors.least_served import LeastServed

pytestmark = pytest.mark.kept

GATES: list[AnyGate] = [DeficitGate(), CounterGate()]
ORDERS: list[Order] = [Arrival(), ShortestPrompt(), LongestPrefix()]
SMALL = read({"kv_capacity_tokens": 64, "weights": {"gold": 4, "free": 1}})


def composed(gate: AnyGate, order: Order | None = None, **batching: Any) -> Subject:
    """What there is to prove about a composition."""
    return subject("mine", ComposedPolicy("mine", order or Arrival(), gate, Chunked(**batching)))


def only(of: Subject, *theorems: str) -> Subject:
    """The subject with few of its theorems."""
    return attrs.evolve(of, theorems=tuple(theorem for theorem in of.theorems if theorem.id in theorems))


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
@pytest.mark.parametrize("batching", BATCHINGS)
def test_a_composition_inherits_the_theorems_of_its_gate(gate: AnyGate, order: Order, batching: str) -> None:
    """Whatever the order and the batching rule, the same tasks decide the same theorems, beside the rule's own."""
    policy = ComposedPolicy("mine", order, gate, BATCHINGS[batching]())
    tasks = {each.theorem.id: each.task for each in plan([subject("mine", policy)]).planned}
    assert set(tasks) >= {theorem.id for theorem in gate.theorems} - {"D-cap", "D-elastic"}
    reference = {each.theorem.id: each.task for each in plan([composed(gate)]).planned}
    own, of_reference = ({theorem.id for theorem in rule.theorems} for rule in (BATCHINGS[batching], Chunked))
    assert {reference[name] for name in reference.keys() - (of_reference - own)} == {
        task for name, task in tasks.items() if name not in own - of_reference
    }


def test_every_claim_of_the_suite_is_some_shipped_policys() -> None:
    """Nothing is proved that no report shows."""
    policies = [*LOCAL_POLICIES.items(), *CLUSTER_POLICIES.items()]
    subjects = [*map(part, PARTS), *(subject(name, policy) for name, policy in policies)]
    subjects.append(subject("mine", JoinShortestQueue(measure="tokens")))
    capped = composed(DeficitGate(in_flight_cap_tokens=1024))
    planned = plan([*subjects, capped])
    assert planned.missing == ()
    assert {each.theorem.id for each in planned.planned} == set(claims_of(SUITE))


def test_a_part_that_was_not_proved_about_brings_no_theorem() -> None:
    """A subclass that changes what was proved inherits nothing; one that changes a default inherits all."""

    @attrs.frozen
    class Renamed(DeficitGate):
        """Another default, the same rules."""

        quantum: int = 7

    @attrs.frozen
    class Generous(DeficitGate):
        """Admissions are free."""

        def begin(self, state: Any, heads: Any) -> Any:
            return super().begin(state, heads)

    assert composed(Renamed()).theorems == composed(DeficitGate()).theorems
    with pytest.raises(ValueError, match=r"Generous\.begin anew|overrides Generous\.begin"):
        composed(Generous())


def test_a_configuration_claims_what_it_fulfils() -> None:
    """Without a cap there is no D-cap, with one there is; a theorem falls with the one that it rests on."""
    uncapped, capped = plan([composed(DeficitGate())]), plan([composed(DeficitGate(in_flight_cap_tokens=32))])
    assert ("mine", "D-cap", "no Capped") in uncapped.unclaimed
    assert "D-cap" in {each.theorem.id for each in capped.planned}
    printed = plan([composed(DeficitGate(rejoin="reset"))])
    assert ("mine", "D-cap", "no Capped") in printed.unclaimed
    unreserved = plan([composed(DeficitGate(), reserve="optimistic")])
    assert {("mine", "KV-outputs", "no Reserves"), ("mine", "KV-charge", "no Reserves")} <= set(unreserved.unclaimed)


def test_unreserved_outputs_replace_an_assumption_and_the_constant() -> None:
    """MemReserve becomes OutputsBounded, U becomes U_dyn, and no cap helps."""
    optimistic = composed(DeficitGate(in_flight_cap_tokens=32), reserve="optimistic")
    assert MEM_RESERVE in D_41.assumptions
    assert MEM_RESERVE not in optimistic.assumptions(D_41)
    assert OUTPUTS_BOUNDED in optimistic.assumptions(D_41)
    assert ("mine", "D-cap", "no Capped") in plan([optimistic]).unclaimed
    static, dynamic = (constant(D_41, of.policy, SMALL) for of in (composed(DeficitGate()), optimistic) if of.policy)
    assert static is not None
    assert dynamic is not None
    assert dynamic.cost_units > static.cost_units


@pytest.mark.parametrize("variant", [DeficitGate(rejoin="reset"), CounterGate(lift="none")], ids=lambda gate: gate.name)
def test_a_variant_does_not_claim_what_its_events_break(variant: AnyGate, tmp_path: Any) -> None:
    """What the printed rule breaks is withdrawn with a world to replay; what it keeps is proved; nothing fails."""
    few = only(composed(variant), "D-4.2", "D-gate", "V-4.4", "V-gate")
    outcome = run("0", [few], SMALL, quick=True, self_checks=False, worlds=tmp_path)
    broken, kept = ("D-4.2", "D-gate") if isinstance(variant, DeficitGate) else ("V-4.4", "V-gate")
    assert [(entry.id, entry.verdict) for entry in outcome.report.theorems] == [(kept, "proved")]
    ((policy, theorem, reason),) = outcome.unclaimed
    assert (policy, theorem) == ("mine", broken)
    assert reason.endswith("its invariant breaks")
    command = f"fairsched verify --replay {tmp_path / f'mine-{broken}.json'}"
    assert outcome.replays == {("mine", broken): command}
    assert f"{broken}: {command}" in report_text.as_text(outcome, SMALL)
    assert outcome.failures == []


def test_the_printed_rule_keeps_what_does_not_count_on_debt() -> None:
    """DLPM as printed claims D-range and D-4.1 in the form that lets who comes back start at zero, and not D-4.2."""
    printed = only(composed(DeficitGate(rejoin="reset")), "D-range-rejoin", "D-4.1-rejoin", "D-4.1", "D-4.2")
    outcome = run("0", [printed], SMALL, quick=True, self_checks=False)
    found = {entry.id: entry.verdict for entry in outcome.report.theorems}
    assert found == {"D-range-rejoin": "proved", "D-4.1-rejoin": "proved"}
    assert {theorem for _, theorem, _ in outcome.unclaimed} == {"D-4.1", "D-4.2"}


def test_theorems_about_the_worker_are_shown_once() -> None:
    """Under a heading of their own, though each policy's entries have them; the summary counts each theorem once."""
    subjects = [only(subject(name, LOCAL_POLICIES[name]), "KV-grow", "V-gate") for name in ("fcfs", "lpm", "vtc")]
    outcome = run("0", subjects, SMALL, quick=True, self_checks=False)
    assert [entry.id for entry in outcome.report.theorems] == ["KV-grow", "KV-grow", "V-gate", "KV-grow"]
    shown = report_text.as_text(outcome, SMALL).splitlines()
    rows = [line.split()[0] for line in shown if " proved " in line and not line.startswith((" ", "2 of"))]
    assert rows == ["V-gate", "KV-grow"]
    assert shown.index("vtc") < shown.index("worker (every policy)")
    assert not {"fcfs", "lpm"} & set(shown)
    assert any(line.startswith("2 of 2 theorems proved") for line in shown)


def test_no_line_is_too_long_and_no_command_is_broken(tmp_path: Path) -> None:
    """Everything else is wrapped at every width, and what is left out is said; a command is one line, so that it can be
    copied."""
    printed = composed(DeficitGate(rejoin="reset"))
    worlds = tmp_path / "-".join(["so-long-a-name-that-it-would-be-wrapped"] * 4)
    outcome = run("0", [only(printed, "D-4.2", "D-A.2", "D-wc", "D-gate")], SMALL, quick=True, worlds=worlds)
    first, *others = outcome.report.theorems
    weak = msgspec.structs.replace(first, verdict="not inductive")
    outcome = attrs.evolve(outcome, report=msgspec.structs.replace(outcome.report, theorems=(weak, *others)))
    for width in (60, 80, 100, report_text.TEXT_WIDTH):
        shown = report_text.as_text(outcome, SMALL, width).splitlines()
        assert all(len(line) <= width for line in shown if "fairsched verify --replay" not in line)
        assert all(any(line.endswith(command) for line in shown) for command in outcome.replays.values())
        left_out = [line for line in shown if line.startswith(f"Left out at {width} columns: ")]
        (heads,) = {line for line in shown if line.startswith("theorem  ")}
        assert bool(left_out) == ("ms" not in heads)
        assert ("bound" in heads) == (not any(" bound" in line for line in left_out))
        # Columns never touch, however long a verdict is.
        (row,) = [line for line in shown if line.startswith(f"{weak.id} ")]
        assert row.index("NOT INDUCTIVE  ") == heads.index("verdict")


def _promise(name: str, *rests_on: str) -> Theorem:
    return Theorem(name, name, "an exercise", (), rests_on=rests_on)


@pytest.mark.parametrize("verdict", ["refuted", "unknown", None])
def test_a_theorem_falls_with_what_it_rests_on_however_far_below(verdict: str | None) -> None:
    """Refuted, unknown and not decided are all no ground; what rests on none of it stands."""
    theorems = [_promise("a"), _promise("b", "a"), _promise("c", "b"), _promise("d")]
    verdicts = {"b": "proved", "c": "proved", "d": "proved"} | ({"a": verdict} if verdict else {})
    whys = [fallen(theorem, theorems, verdicts) for theorem in theorems]
    assert whys == ["", "rests on a, which is not proved", "rests on a, which is not proved", ""]
    assert not any(fallen(theorem, theorems, {**verdicts, "a": "proved"}) for theorem in theorems)


def test_a_promise_that_rests_on_what_is_refuted_is_not_proved() -> None:
    """Its own proof goes through; the report, its failures and the evidence say that it is none."""
    unfair = subject("tests.support.authors.least_served:LeastServed", LeastServed)
    outcome = run("0", [unfair], SMALL, quick=True, self_checks=False)
    assert isinstance(prove(claims_of(unfair.source)["gap"]), Proved)
    verdicts = {entry.id: entry.verdict for entry in outcome.report.theorems}
    fallen = dict.fromkeys(("progress", "gap", "return-debt"), "unknown")
    assert verdicts == {"gate": "proved", "always": "refuted", **fallen}
    assert "return-credit, a client that leaves and returns loses no credit" in report_text.as_text(outcome, SMALL)
    assert f"{unfair.name} gap is unknown: rests on always, which is not proved" in outcome.failures
    assert [row.decision.files for row in outcome.rows if row.theorem.id == "gap"] == [()]


@pytest.mark.parametrize("weights", [{"a": 1}, {"a": 3}, {"gold": 4, "free": 1}, {"a": 2, "b": 3, "c": 4}])
@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_constants_are_the_gates_own_bounds(weights: dict[str, int], gate: BoundedGate[Any]) -> None:
    """The report's number for the widest pair is what the gate itself promises, in the heavier client's cost units."""
    deployment = read({"kv_capacity_tokens": 64, "weights": weights})
    of = composed(gate)
    assert of.policy is not None
    found = constant(D_WEIGHTED if isinstance(gate, DeficitGate) else V_44, of.policy, deployment)
    assert found is not None
    pairs = []
    for f, g in product(weights.values(), repeat=2):
        promised = gate.service_gap_bound((Client(0, "f", f), Client(1, "g", g)), deployment.limits(of.policy))
        assert promised is not None
        pairs.append(-(-promised // (lcm(f, g) // max(f, g))))
    assert found.cost_units == max(pairs)
    assert found.output_tokens == -(-found.cost_units // gate.rates.output)


def test_seconds_are_those_of_a_full_worker() -> None:
    """As many cost units as one step serves take as long as that step."""
    policy = LOCAL_POLICIES["dlpm"]
    deployment = Deployment()
    batch = policy.batching.max_running
    step_ns = deployment.latency.decode_ns(batch, deployment.kv_capacity_tokens)
    assert seconds_of_service(2 * batch, policy, deployment) == pytest.approx(step_ns / 1e9)


def test_values_are_verified_as_names_are() -> None:
    """A router by value has the verdicts that its name has, as the example of `verify` shows of a policy; two of one
    name are refused."""
    by_name, by_value = (verify(each, quick=True, jobs=1) for each in ("round-robin", RoundRobin()))
    told = [[(row.policy, row.id, row.verdict) for row in report.theorems] for report in (by_name, by_value)]
    assert told[0] == told[1]
    assert "round-robin" in {policy for policy, _, _ in told[0]}
    with pytest.raises(ValueError, match="two policies are called 'dlpm'"):
        verify(DLPM(), ComposedPolicy("dlpm", Arrival(), DeficitGate()))


def test_a_deployment_is_written_and_read() -> None:
    """The document of a deployment makes it again."""
    given = read({"latency_model": "opt-13b-a100", "weights": {"a": 2}, "policies": {"dlpm": {"quantum": 5}}})
    assert read(document(given)) == given
    assert given.parameters("dlpm") == {"quantum": "5"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"kv_capacity": 5}, "did you mean kv_capacity_tokens"),
        ({"latency_model": "opt-13b"}, "did you mean opt-13b-a100"),
        ({"kv_capacity_tokens": 1}, "kv_capacity_tokens is a whole number of at least 2, not 1"),
        ({"kv_capacity_tokens": "many"}, "kv_capacity_tokens is a whole number"),
        ({"max_output_tokens": True}, "max_output_tokens is a whole number"),
        ({"weights": {"gold": 0}}, "weights.gold"),
        ({"weights": {}}, "names no client"),
        ({"weights": 3}, "weights is a table"),
        ({"policies": {"dlpm": {"quantum": 1.5}}}, "policies.dlpm.quantum"),
        ([], "the document is a table"),
    ],
)
def test_a_deployment_that_does_not_fit_is_refused(given: Any, expected: str) -> None:
    """The key is named, with the nearest ones where it is unknown."""
    with pytest.raises(ValueError, match=expected):
        read(given)
