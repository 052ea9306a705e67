"""Programs at the gateway: callers name them as they like, and all of a client's share what the client gets."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest

from fairsched.engines.gateway import GatewayConfig, Share, Window, gateway_policy, window_policy
from fairsched.engines.gateway.config import ClientConfig, LimitConfig, OrganisationConfig, ServerConfig
from fairsched.engines.gateway.identity import CallerNames
from fairsched.engines.gateway.openai import CallError
from fairsched.engines.settings import ConfigError
from fairsched.model.pricing import COMMON
from fairsched.model.request import Client
from fairsched.policies.guarantees import WindowTerms, window_limits
from fairsched.policies.registry import ROUTERS
from tests.support.adapters.gateway_scenarios import Fake, faked
from tests.support.adapters.loops import in_loop, until

PROGRAMS: dict[str, Any] = {"policy": "fcfs+hierarchical", "program_headers": ("x-program", "x-session-id")}
SERVERS = (ServerConfig("http://h:1", 100),)
SEATS, QUANTUM, DECLARED = 5, 20, 20
TERMS = WindowTerms(unreserved_tokens=30, hold_ns=7, call_ns=50)


def test_the_first_header_that_a_call_has_names_its_program() -> None:
    """Each header has names of its own, and a call that has none is of no program; two of one kind are refused."""
    names = CallerNames(GatewayConfig(SERVERS, **PROGRAMS))
    program = names.program_of
    assert program({"x-program": "p", "x-session-id": "s"}) == program({"x-program": "p"}) != ""
    assert program({"x-session-id": "p"}) not in ("", program({"x-program": "p"}))
    assert program({"x-program": " "}) == program({}) == ""
    two: Any = SimpleNamespace(getall=lambda name, default: ("p", "q") if name == "x-program" else default)
    with pytest.raises(CallError, match="more than one header x-program"):
        program(two)


def test_agents_of_a_harness_are_one_program() -> None:
    """Subagents have the program of the agent that began them, by what each harness sends; sessions of two harnesses
    are two programs, as are two sessions of one."""
    names = CallerNames(
        GatewayConfig(SERVERS, **{**PROGRAMS, "program_headers": ("Claude-Code", "codex", "opencode", "x-program")})
    )
    program = names.program_of
    claude = {"x-claude-code-session-id": "s"}
    subagent = {**claude, "x-claude-code-agent-id": "a", "x-claude-code-parent-agent-id": "b"}
    codex = {"session-id": "s", "thread-id": "s"}
    thread = {"session-id": "s", "thread-id": "t", "x-codex-parent-thread-id": "s", "x-openai-subagent": "collab_spawn"}
    root = {"x-session-affinity": "s", "x-session-id": "s"}
    child = {"x-session-affinity": "t", "x-session-id": "t", "x-parent-session-id": "s"}
    assert program(claude) == program(subagent)
    assert program(codex) == program(thread) == program({"session_id": "s"})
    assert program(root) == program(child)
    found = [program(each) for each in (claude, codex, root, {"x-program": "s"}, {"session-id": "t"}, {})]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"policy": "fcfs+deficit"}, "program_headers: a hierarchical gate has programs"),
        ({"program_headers": ("x-fairsched-client",)}, "x-fairsched-client is set by the gateway alone"),
        ({"clients": {"a/#1": ClientConfig()}}, "client.a/#1: with program_headers no name has '/#' in it"),
    ],
)
def test_what_has_no_room_for_programs_is_refused(fields: dict[str, Any], why: str) -> None:
    """By the key that is wrong."""
    with pytest.raises(ValueError, match=why):
        gateway_policy(GatewayConfig(SERVERS, **{**PROGRAMS, **fields}), Path("test.toml"))
    assert issubclass(ConfigError, ValueError)


async def order_of(calls: int, **fields: Any) -> list[str]:
    """In which order a server that takes one call at a time is asked, where a client sends so many calls, each of a
    program of its own, before another client sends four of one."""
    async with faked(Fake(held=True), window_requests=1, quantum=16, **fields) as (fake, here):

        async def ask(client: str, program: str) -> None:
            body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 10, "user": client}
            headers = {"x-client": client, "x-program": program}
            assert (await here.http.post("/v1/chat/completions", json=body, headers=headers)).status == 200

        asked = [asyncio.ensure_future(ask("many", f"p{number}")) for number in range(calls)]
        await until(lambda: here.account.window.waiting == calls - 1)
        asked += [asyncio.ensure_future(ask("one", "p")) for _ in range(4)]
        await until(lambda: here.account.window.waiting == calls + 3)
        said = here.status
        assert sorted(wait["calls"] for wait in said["waits"].values()) == [4, calls - 1]
        assert said["waits"].keys() <= said["credit"].keys() <= said["clients"].keys()
        fake.answers.set()
        await asyncio.gather(*asked)
        clients = [client for client in here.status["clients"].values() if client["requests"]]
        assert sorted(client["requests"] for client in clients) == [4, calls]
        assert {client["weight"] for client in clients} == {1}
        assert min(here.status["credit"].values()) < 0
        return [str(body["user"]) for body in fake.asked]


@in_loop
async def test_a_caller_gains_nothing_by_inventing_programs() -> None:
    """Twenty programs of one client take turns with the other client as one of them would; what is told of clients is
    told of them, not of their programs' accounts."""
    order = await order_of(20, **PROGRAMS)
    assert len(order) == 24
    # The first went while it was alone, and another may go before the gate has let both have a quantum.
    assert [place for place, client in enumerate(order) if client == "one"][-1] <= 2 * 4 + 1


USERS: dict[str, Any] = {
    "organisations": {"acme": OrganisationConfig(users={"bob": 1})},
    "clients": {
        "many": ClientConfig(organisation="acme", user="ann"),
        "more": ClientConfig(organisation="acme", user="ann", weight=3),
        "one": ClientConfig(organisation="acme", user="bob"),
    },
}


@in_loop
async def test_programs_of_a_users_clients_are_below_the_user() -> None:
    """An organisation, its users and their programs are together: a program's account is in its user's group, with the
    weight of its client; what it owes is the user's and the organisation's."""
    async with faked(Fake(), **USERS, **PROGRAMS) as (_, here):
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}
        for client, program in (("many", "p"), ("more", "p"), ("one", "p")):
            headers = {"x-client": client, "x-program": program}
            assert (await here.http.post("/v1/chat/completions", json=body, headers=headers)).status == 200
        seats = {each.name: (each.weight, each.place) for each in here.account.clients.all if "/#" in each.name}
        ann, bob = (("acme", 1), ("ann", 1)), (("acme", 1), ("bob", 1))
        assert seats == {"many/#0": (1, ann), "more/#0": (3, ann), "one/#0": (1, bob)}
        here.account.configure(here.gateway.config)
        assert {each.name: (each.weight, each.place) for each in here.account.clients.all if "/#" in each.name} == seats
        assert {name: each["weight"] for name, each in here.status["clients"].items()} == {
            "many": 1,
            "more": 3,
            "one": 1,
        }
        assert here.account.window.guard.set_aside is None


@in_loop
async def test_limits_are_those_of_the_client() -> None:
    """Of the calls of a client so many may wait, whatever programs they name; and seats are bounded."""
    limits = LimitConfig(waiting_per_client=3, programs_per_client=2)
    async with faked(Fake(held=True), window_requests=1, limits=limits, **PROGRAMS) as (fake, here):

        async def ask(number: int) -> int:
            body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}
            headers = {"x-client": "a", "x-program": str(number)}
            return (await here.http.post("/v1/chat/completions", json=body, headers=headers)).status

        asked = [asyncio.ensure_future(ask(number)) for number in range(4)]
        await until(lambda: here.account.window.waiting == 3)
        assert await ask(4) == 429
        seats = [client.name[-3:] for client in here.account.clients.all if "/#" in client.name]
        assert seats == ["/#0", "/#1"]
        fake.answers.set()
        assert await asyncio.gather(*asked) == [200] * 4


@in_loop
async def test_accounts_of_programs_go_on_after_a_restart() -> None:
    """The file of debts has them: the next program takes the first one's account, with what it owes."""
    with TemporaryDirectory() as folder:
        names = []
        for program in ("p", "q"):
            async with faked(Fake(), state=f"{folder}/state.json", **PROGRAMS) as (_, here):
                body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}
                headers = {"x-client": "a", "x-program": program}
                assert (await here.http.post("/v1/chat/completions", json=body, headers=headers)).status == 200
                await here.emptied()
                names.append([(client.name, client.place) for client in here.account.clients.all])
                assert here.account.window.guard.set_aside is None
                assert [each["requests"] for each in here.status["clients"].values()] == [1]
    assert names[0] == names[1]
    (caller, _), (seat, groups) = names[0]
    assert (seat, groups) == (f"{caller}/#0", ((caller, 1),))


# --- the window -------------------------------------------------------------------------------------------------------


class Seats:
    """A window before one server, with five seats of one client beside another client with one, all of which always
    wait.  Their first calls are short, so that later ones reserve little, and then have all that they declare.

    `gap` is by how much what both clients were charged came apart at most.
    """

    def __init__(self) -> None:
        self.policy = window_policy("fcfs+hierarchical", QUANTUM)
        self.window = Window(self.policy, ROUTERS["round-robin"], [Share(100)], terms=TERMS)
        self.clients = [Client(seat, f"many/#{seat}", 1, (("many", 1),)) for seat in range(SEATS)]
        self.clients.append(Client(SEATS, "one/#0", 1, (("one", 1),)))
        for client in self.clients:
            self.window.configure(client, 0)
        self.gap = self._calls = 0

    def bound(self) -> int:
        """The bound of the two, with the over-run of the run."""
        limits = window_limits(self.policy.guarantee, 100, TERMS, self.window.overrun)
        bound = self.policy.guarantee.group_gap_bound((Client(0, "many"), Client(1, "one")), limits)
        assert bound is not None
        return bound

    def charged(self, clients: Sequence[Client]) -> int:
        """What clients were charged together, in cost units."""
        usage = self.window.usage
        outputs = sum(usage.output_tokens[each.id] + usage.hold_tokens[each.id] for each in clients)
        return COMMON.input * sum(usage.prompt_tokens[each.id] for each in clients) + COMMON.output * outputs

    def _apart(self) -> int:
        """By how much more the many were charged than the one."""
        return self.charged(self.clients[:SEATS]) - self.charged(self.clients[SEATS:])

    def served(self, rounds: int) -> "Seats":
        """Serve so many rounds, in each of which all that is in flight ends."""
        low = high = 0
        for now in range(1, rounds + 1):
            for client in self.clients:
                while self.window.waiting_of(client.id) < 2:
                    self.window.arrive(self._calls, client.id, 2, DECLARED, now)
                    self._calls += 1
            self.window.admit(now)
            for request_id in [request.id for request, _ in self.window.flights]:
                self.window.finish(request_id, 2, 1 if now < 6 else DECLARED, now)
                low, high = min(low, self._apart()), max(high, self._apart())
        self.gap = high - low
        return self


def test_many_seats_are_one_client_to_others() -> None:
    """What they come to beyond their reservations is counted together, so U and the bound of two clients are theirs;
    and the bound is not all that is served."""
    seats = Seats().served(140)
    assert seats.gap <= seats.bound()
    monitor = seats.window.usage.monitor
    assert monitor is not None
    assert monitor.report().bound_violations == 0
    assert seats.charged(seats.clients[SEATS:]) > seats.bound()


def test_seats_whose_over_runs_are_counted_each_by_itself_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it that of a seat, what five come to would be more than U counts."""
    together = Seats().served(80).window.overrun
    monkeypatch.setattr(Window, "_payers_of", lambda self, client: (client,))
    assert Seats().served(80).window.overrun < together
