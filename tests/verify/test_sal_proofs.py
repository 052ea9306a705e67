"""P-SAL-1 and P-SAL-2 proved about `SAL.terms` as it ships: it is run on symbols, once along each of its branches.

Symbols are reals, of which integers are some, and any two workers will do, so what is proved holds for any number.
Growth since the poll (`decode_step_us`) is none.  That `route` takes the least load is tested in policies/test_sal.py.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import z3

from fairsched.policies.sal import SAL, Estimate, SALPrinted, Terms


class Path:
    """One run: answers to the questions asked so far are `given`, later ones are yes, and all are written down."""

    def __init__(self, given: list[bool]) -> None:
        self.given = given
        self.taken: list[bool] = []
        self.conditions: list[z3.BoolRef] = []

    def ask(self, condition: z3.BoolRef) -> bool:
        """Whether the condition holds on this path."""
        answer = self.given[len(self.taken)] if len(self.taken) < len(self.given) else True
        self.taken.append(answer)
        self.conditions.append(condition if answer else z3.Not(condition))
        return answer


class Question:
    """A comparison that is answered when somebody branches on it."""

    def __init__(self, path: Path, condition: z3.BoolRef) -> None:
        self.path, self.condition = path, condition

    def __bool__(self) -> bool:
        return self.path.ask(self.condition)


class Symbol:
    """A number that is not known."""

    def __init__(self, path: Path, term: z3.ArithRef) -> None:
        self.path, self.term = path, term

    def _with(self, other: Any, operation: Callable[[Any, Any], Any]) -> "Symbol":
        return Symbol(self.path, operation(self.term, term_of(other)))

    def __add__(self, other: Any) -> "Symbol":
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other: Any) -> "Symbol":
        return self._with(other, lambda a, b: a - b)

    def __mul__(self, other: Any) -> "Symbol":
        return self._with(other, lambda a, b: a * b)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> "Symbol":
        return Symbol(self.path, -self.term)

    def __gt__(self, other: Any) -> Question:
        return Question(self.path, self.term > term_of(other))

    def __lt__(self, other: Any) -> Question:
        return Question(self.path, self.term < term_of(other))

    def __bool__(self) -> bool:
        return self.path.ask(self.term != 0)


def term_of(value: Any) -> Any:
    """The solver's term of a symbol, or the number itself."""
    return value.term if isinstance(value, Symbol) else value


def paths(run: Callable[[Path], Any]) -> Iterator[tuple[list[z3.BoolRef], Any]]:
    """The conditions and the result of every way through `run`."""
    given: list[bool] | None = []
    while given is not None:
        path = Path(given)
        result = run(path)
        yield path.conditions, result
        while path.taken and not path.taken[-1]:
            path.taken.pop()
        given = [*path.taken[:-1], False] if path.taken else None


N, T, MEAN_IN, MEAN_OUT = z3.Reals("n t mean_in mean_out")
FREE, QUEUED, RUNNING = (z3.Reals(f"{name}_0 {name}_1") for name in ("free", "queued", "running"))
SOUND = [N >= 1, T >= 1, MEAN_IN >= 1, MEAN_OUT >= 1, *(q >= 0 for q in QUEUED)]
WHOLE = [z3.Or(b == 0, b >= 1) for b in RUNNING]
"""Requests running are none, or at least one."""
WORSE = [FREE[1] < FREE[0], QUEUED[1] > QUEUED[0]]
NO_BUSIER = RUNNING[1] <= RUNNING[0]


def both(kind: type[SAL]) -> Iterator[tuple[list[z3.BoolRef], tuple[Terms, Terms]]]:
    """The loads of worker 0 and worker 1 along every branch."""

    def run(path: Path) -> tuple[Terms, Terms]:
        router = object.__new__(kind)
        object.__setattr__(router, "max_batched_tokens", Symbol(path, T))
        ratio: Any = (Symbol(path, MEAN_IN), Symbol(path, MEAN_OUT))
        tokens: Any = Symbol(path, N)
        made: Any = [
            Estimate(*(Symbol(path, figures[i]) for figures in (FREE, QUEUED, RUNNING)))  # type: ignore[arg-type]
            for i in (0, 1)
        ]
        return router.terms(tokens, made[0], 0, ratio), router.terms(tokens, made[1], 0, ratio)

    return paths(run)


def possible(kind: type[SAL], assumed: list[z3.BoolRef], claim: Callable[[Any, Any], Any]) -> bool:
    """Whether the claim about the two loads, each a ratio, can be false; raises unless the solver knows."""
    for conditions, (zero, one) in both(kind):
        solver = z3.Solver()
        solver.set("timeout", 20_000)
        left, right = term_of(zero[0]) * term_of(one[2]), term_of(one[0]) * term_of(zero[2])
        solver.add(*SOUND, *WHOLE, *assumed, *conditions, z3.Not(claim(left, right)))
        answer = solver.check()
        assert answer != z3.unknown, solver.reason_unknown()
        if answer == z3.sat:
            return True
    return False


def less(left: Any, right: Any) -> Any:
    """The first load is less."""
    return left < right


def at_most(left: Any, right: Any) -> Any:
    """The first load is not more."""
    return left <= right


def test_every_branch_is_run() -> None:
    """Running or not, short of memory or not, memory or queue the larger: six ways for a worker that can be."""
    seen = 0
    for conditions, _ in both(SAL):
        solver = z3.Solver()
        solver.add(*SOUND, *WHOLE, *conditions)
        seen += solver.check() == z3.sat
    assert seen == 36


def test_p_sal_1() -> None:
    """A worker with less memory and a longer queue has the larger load if it is no busier; otherwise it may not."""
    assert not possible(SAL, [*WORSE, NO_BUSIER], less)
    assert possible(SAL, WORSE, at_most)


def test_p_sal_1_as_printed() -> None:
    """As printed it always has."""
    assert not possible(SALPrinted, WORSE, less)


class Hopeful(SAL):
    """Counts only the smaller term."""

    def terms(self, tokens: int, estimate: Estimate, steps: int, ratio: tuple[int, int]) -> Terms:
        """The two the wrong way round."""
        high, low, *rest = super().terms(tokens, estimate, steps, ratio)
        return low, high, rest[0], rest[1], rest[2]


def test_a_wrong_load_is_found() -> None:
    """With the smaller term for the larger, a worker that is worse in both can have no larger a load."""
    assert possible(Hopeful, [*WORSE, NO_BUSIER], less)


@pytest.mark.parametrize("kind", [SAL, SALPrinted])
def test_p_sal_2(kind: type[SAL]) -> None:
    """With as many running, more memory and a shorter queue never make a larger load; they can make a smaller one."""
    better = [FREE[0] >= FREE[1], QUEUED[0] <= QUEUED[1], RUNNING[0] == RUNNING[1]]
    assert not possible(kind, better, at_most)
    assert possible(kind, better, lambda left, right: left >= right)


def test_f_sal_1() -> None:
    """A worker without room for a request can have a smaller load than one with room, in both forms."""
    room = [FREE[0] >= N, FREE[1] < N]
    assert possible(SAL, room, at_most)
    assert possible(SALPrinted, room, at_most)
