"""A window under attack in virtual time: a made-up server, floods of each kind beside a polite client, and the truth.

The server has a batch of so many slots, in which every call gets a token a step, and a queue of its own; what it
computed of each call is known here, whatever the gateway is told.  The polite client asks again when it was answered.
No clock and no sleep: the same run gives the same figures.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import attrs
import msgspec

from fairsched.engines.gateway import Share, Window, window_policy
from fairsched.engines.serving import TWO_CLIENTS
from fairsched.model.events import Decoded, Event, Settled
from fairsched.model.monitor import Monitor, MonitorReport, Promise
from fairsched.model.pricing import COMMON
from fairsched.model.request import Client
from fairsched.policies.guarantees import SECOND_NS, WindowTerms, window_limits
from fairsched.policies.registry import ROUTERS

STEP_NS = 20_000_000
"""A step of the server: a token for each call of the batch, and so many prompt tokens for one that begins."""
TICK = 2
"""Steps from one charge of the gateway to the next."""
POLITE = 0
"""The polite client's number; the flood's follow."""
QUANTUM = 1000
"""Of the gate, in cost units: small beside what the flood asks for, so that the runs are long for it."""


@attrs.frozen
class Flood:
    """How the flooding clients call: `outputs[i]` tokens come of the i-th call of each, and so on from the first.

    `declares` None: the call names no limit.  `seen`: the gateway counts tokens as they come; otherwise it learns them
    at the end, from the server's usage, and with `hidden` never, as when usage is not asked.  `leaves_after`: so many
    steps at the server, and the caller is gone; `fails`: the server answers 500 when the work is done.  `prompt` is
    what the gateway estimates of a prompt of `dense` times as many; `withdraws_after`: so many steps in the queue, and
    the caller is gone.
    """

    name: str
    declares: int | None = 300
    outputs: Sequence[int] = (137, 211, 263, 189)
    prompt: int = 50
    seen: bool = True
    leaves_after: int | None = None
    fails: bool = False
    hidden: bool = False
    dense: int = 1
    withdraws_after: int | None = None


POLITE_CALLS = Flood("polite", declares=40, outputs=(31, 27, 40), prompt=20)
TERMS = WindowTerms()
AMPLE = 4096
"""Least outputs of a call whose caller names no limit, as the gateway has it."""
HONEST = Flood("honest")
FLOODS = (
    Flood("text withheld by a stop sequence", seen=False),
    Flood("callers leave early", seen=False, leaves_after=180),
    Flood("callers leave at once", seen=False, leaves_after=20),
    Flood("500 after the work", seen=False, fails=True),
    Flood("the most is declared", declares=3900, outputs=(100,)),
    Flood("2,048 for 64", declares=2048, outputs=(64,)),
    Flood("nothing is declared", declares=None, outputs=(100,)),
    Flood("predictions are misled", declares=3900, outputs=(1,) * 9 + (900,)),
    Flood("long prompts, an output each", prompt=1000, declares=1, outputs=(1,)),
    Flood("dense prompts, left at the first token", prompt=400, dense=4, leaves_after=12),
    Flood("as large as the window", prompt=3990, declares=8, outputs=(8,)),
    Flood("as large as the window, and withdrawn", prompt=3990, declares=8, outputs=(8,), withdraws_after=100),
)
"""The attacks of the findings, and others on what is new: predictions, estimates, time held."""


@attrs.define
class _Call:
    id: int
    client: int
    flood: Flood
    outputs: int
    computed: int = 0
    age: int = 0
    prompt_left: int = 0
    waits: bool = True
    withdraws_ns: int | None = None


@attrs.define
class Outcome:
    """What came of a run: answers by client, what was really computed and charged by client in cost units, and the
    monitor's reports, the window's own and one that saw each token when it was computed."""

    answers: Counter[int]
    computed: Counter[int]
    charged: Counter[int]
    report: MonitorReport
    truth: MonitorReport

    @property
    def polite(self) -> int:
        """Answers of the polite client."""
        return self.answers[POLITE]


class AttackedWindow:
    """A window over one server, `clients` that flood with `callers` calls each, and a polite one."""

    def __init__(
        self,
        flood: Flood,
        *,
        tokens: int = 4000,
        slots: int = 16,
        clients: int = 4,
        callers: int = 8,
        polite: Flood = POLITE_CALLS,
        polite_callers: int = 1,
        terms: WindowTerms = TERMS,
        policy: str = "fcfs+deficit",
        requests: int | None = None,
        weights: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        chosen = window_policy(policy, QUANTUM)
        self.tokens, self.slots, self.terms, self._overrun = tokens, slots, terms, 0
        self._guarantee, self.now_ns = chosen.guarantee, 0
        self._truth = Monitor(self._promise())
        self._fresh: Counter[int] = Counter()
        router = ROUTERS["join-shortest-queue"]
        self.window = Window(chosen, router, (Share(tokens, requests or slots),), (self._listen,), terms=terms)
        for client, weight in weights.items():
            self.window.configure(Client(client, str(client), weight), 0)
        self._callers = {POLITE: (polite, polite_callers)} | {i + 1: (flood, callers) for i in range(clients)}
        self._calls: dict[int, _Call] = {}
        self._made: Counter[int] = Counter()
        self._open: Counter[int] = Counter()
        self._server: deque[_Call] = deque()
        self.answers: Counter[int] = Counter()
        self.computed: Counter[int] = Counter()
        self._next = 0

    def run(self, seconds: int) -> Outcome:
        """Let so many seconds pass."""
        for step in range(seconds * SECOND_NS // STEP_NS):
            self.now_ns += STEP_NS
            for client, (flood, callers) in self._callers.items():
                while self._open[client] < callers:
                    self._ask(client, flood)
            for call in [call for call in self._calls.values() if call.withdraws_ns == self.now_ns and call.waits]:
                self.window.withdraw(call.id, self.now_ns)
                self._gone(call)
            for placement in self.window.admit(self.now_ns):
                call = self._calls[placement.request_id]
                call.prompt_left, call.waits = call.flood.prompt * call.flood.dense, False
                self._server.append(call)
            self._step()
            if step % TICK == 0:
                self.window.charge(self.now_ns)
                self._tell_truth()
        usage = self.window.usage
        charged = Counter({
            client: COMMON.input * usage.prompt_tokens[client]
            + COMMON.output * (usage.output_tokens[client] + usage.hold_tokens[client])
            for client in self._callers
        })  # fmt: skip
        held = Counter({
            client: COMMON.output * self.window.held_token_ns(client) // self.terms.hold_ns for client in self._callers
        })  # fmt: skip
        assert usage.monitor is not None
        return Outcome(self.answers, self.computed + held, charged, usage.monitor.report(), self._truth.report())

    # --- clients ----------------------------------------------------------------------------------------------------

    def _ask(self, client: int, flood: Flood) -> None:
        outputs = flood.outputs[self._made[client] % len(flood.outputs)]
        call = self._calls[self._next] = _Call(self._next, client, flood, outputs)
        if flood.withdraws_after is not None:
            call.withdraws_ns = self.now_ns + flood.withdraws_after * STEP_NS
        self._next += 1
        self._made[client] += 1
        self._open[client] += 1
        most = self.window.ample_outputs(client, flood.prompt, AMPLE) if flood.declares is None else flood.declares
        self.window.arrive(call.id, client, flood.prompt, most, self.now_ns, flood.prompt * flood.dense)

    def _over(self, call: _Call) -> None:
        """A call ends, by its caller, in an error, or in an answer that says what was computed."""
        done = call.computed == call.outputs
        answered = done and not call.flood.fails
        if answered:
            said = 0 if call.flood.hidden else call.computed
            self.window.finish(call.id, call.flood.prompt * call.flood.dense, said, self.now_ns)
        else:
            self.window.cancel(call.id, self.now_ns)
        self._server.remove(call)
        self._gone(call)
        self.answers[call.client] += answered

    def _gone(self, call: _Call) -> None:
        del self._calls[call.id]
        self._open[call.client] -= 1

    # --- the server -------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Every call of the batch gets a token; prompts are computed before, a step for each 1,000 tokens."""
        for call in list(self._server)[: self.slots]:
            if call.prompt_left:
                chunk = min(call.prompt_left, 1000)
                call.prompt_left -= chunk
                self.computed[call.client] += COMMON.input * chunk
            else:
                call.computed += 1
                self._fresh[call.client] += 1
                self.computed[call.client] += COMMON.output
                if call.flood.seen:
                    self.window.produced(call.id, 1, self.now_ns)
        for call in list(self._server):
            call.age += 1
            leaves = call.flood.leaves_after is not None and call.age >= call.flood.leaves_after
            if leaves or call.computed == call.outputs:
                self._over(call)

    def _tell_truth(self) -> None:
        if self._fresh:
            clients = tuple(sorted(self._fresh))
            tokens = tuple(self._fresh[client] for client in clients)
            self._fresh.clear()
            self._truth.observe(Decoded(self.now_ns, 0, 1, clients, tokens))

    def _listen(self, event: Event) -> None:
        """The second monitor sees what the window's does, but outputs when they are computed, and prompts as they
        are."""
        if isinstance(event, Decoded):
            return
        self._tell_truth()
        if isinstance(event, Settled):
            flood = self._calls[event.request_id].flood
            event = msgspec.structs.replace(event, extend_tokens=flood.prompt * flood.dense)
        if self.now_ns and self.window.overrun != self._overrun:
            self._overrun = self.window.overrun
            self._truth.promised(self._promise(), self.now_ns)
        self._truth.observe(event)

    def _promise(self) -> Promise:
        limits = window_limits(self._guarantee, self.tokens, self.terms, self._overrun)
        promise = self._guarantee.promise(TWO_CLIENTS, limits)
        assert promise is not None
        return promise
