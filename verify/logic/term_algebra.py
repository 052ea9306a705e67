"""The words of kernels on solver terms, where a vector is a function from an uninterpreted sort of clients.

A proof over this interpretation is a proof for every number of clients.  It stays quantifier-free: no word and no
field is a function *to* clients, so the clients that an obligation names (its own constants, those that `argmax`,
`argmin` and `any` introduced) form a closed universe, and a universally quantified fact says exactly what its
instances at those clients say.  Unsatisfiable instances refute the whole; a model of the instances is a model of the
whole whose clients are the named ones.  So nothing is lost, and no solver heuristic for quantifiers is involved.

The wrappers refuse whatever Python would answer without an exception and without meaning: truth values, ``==``,
``in``, iteration, indexing, hashing, and ``/ // % *``.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import z3

from fairsched.model.algebra import NO_GROUP
from fairsched.verify.logic.system import Kind

CLIENT = z3.DeclareSort("Client")

_ANY = z3.Const("any client", CLIENT)
"""No client of any obligation: two masks that say the same of it are the same mask."""


class KernelError(TypeError):
    """A kernel, or a formula of a proof, did something that has no meaning on solver terms."""


class _Term:
    """Refuses every operation that a kernel must not use."""

    __slots__ = ()

    def _refuse(self, *_: Any) -> NoReturn:
        raise KernelError(f"{type(self).__name__}: a kernel uses + - > >= < <= & | and the words of the algebra only")

    __bool__ = __contains__ = __iter__ = __getitem__ = __len__ = _refuse
    __int__ = __index__ = __float__ = __hash__ = _refuse
    __eq__ = __ne__ = _refuse
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _refuse
    __mod__ = __rmod__ = __pow__ = __rpow__ = __invert__ = __abs__ = _refuse


def _operator(
    build: Callable[[Any, Any], Any], *, boolean: bool = False, takes: bool = False
) -> Callable[["Value", Any], "Value"]:
    """Return the method that combines two values term by term: of truth values if it `takes` them, else of numbers."""

    def combined(self: "Value", other: Any) -> "Value":
        right = lifted(other)
        if self.boolean is not takes or right.boolean is not takes:
            raise KernelError("a truth value where a number belongs, or the other way round")
        return _made(self, right)(
            lambda c: build(self.at(c), right.at(c)), boolean=boolean, vector=self.vector or right.vector
        )

    return combined


class Value(_Term):
    """A scalar (`at` ignores its client) or a vector: a term a client.

    A term is built once a client, since whatever is computed from the value asks for it again.
    """

    __slots__ = ("_at", "_built", "boolean", "vector")

    def __init__(self, at: Callable[[Any], Any], *, boolean: bool, vector: bool) -> None:
        self._at = at
        self._built: dict[int | None, tuple[Any, Any]] = {}
        self.boolean = boolean
        self.vector = vector

    def at(self, client: Any) -> Any:
        """Return the term for a client: one of the obligation, or its number where there are so many (`z3_fixed`)."""
        key = (client if isinstance(client, int) else client.get_id()) if self.vector else None
        if key not in self._built:
            # The client stays with its term: an id is given again once nothing holds what had it.
            self._built[key] = (client, self._at(client))
        return self._built[key][1]

    __add__ = __radd__ = _operator(lambda a, b: a + b)
    __sub__ = _operator(lambda a, b: a - b)
    __rsub__ = _operator(lambda a, b: b - a)
    __gt__ = _operator(lambda a, b: a > b, boolean=True)
    __ge__ = _operator(lambda a, b: a >= b, boolean=True)
    __lt__ = _operator(lambda a, b: a < b, boolean=True)
    __le__ = _operator(lambda a, b: a <= b, boolean=True)
    __and__ = __rand__ = _operator(z3.And, boolean=True, takes=True)
    __or__ = __ror__ = _operator(z3.Or, boolean=True, takes=True)

    times = _operator(lambda a, b: a * b)
    """The product, for clauses and closed forms: the guard keeps kernels from calling it."""

    def __neg__(self) -> "Value":
        return 0 - self


class ClosedFormValue(Value):
    """A number that may also be multiplied and divided, for closed forms that live beside a kernel.

    ``//`` is Python's for positive divisors only, so a proof about it assumes that they are.
    """

    __slots__ = ()

    __mul__ = Value.times  # type: ignore[assignment]
    __floordiv__ = _operator(lambda a, b: a / b)  # type: ignore[assignment]


def _made(*values: Value) -> type[Value]:
    """Return the class of what is computed from `values`."""
    return ClosedFormValue if any(isinstance(value, ClosedFormValue) for value in values) else Value


class Point(_Term):
    """The client `who` when `found`, none otherwise."""

    __slots__ = ("found", "who")

    def __init__(self, found: Any, who: Any) -> None:
        self.found = found
        self.who = who


def scalar(term: Any) -> Value:
    """Return a solver term (Int or Bool) as a scalar."""
    return Value(lambda _: term, boolean=z3.is_bool(term), vector=False)


def lifted(value: Any) -> Value:
    """Return a value as it is, or a Python int or truth value as a constant; anything else is refused."""
    if isinstance(value, Value):
        return value
    if isinstance(value, bool):
        return scalar(z3.BoolVal(value))
    if isinstance(value, int):
        return scalar(z3.IntVal(value))
    raise KernelError(f"a kernel computes with integers and truth values, not with {value!r}")


def _numbers(*values: Any) -> list[Value]:
    found = [lifted(value) for value in values]
    if any(value.boolean for value in found):
        raise KernelError("a truth value where a number belongs")
    return found


def _mask(m: Any) -> Value:
    value = lifted(m)
    if not (value.boolean and value.vector):
        raise KernelError("a mask, one truth value a client, belongs here")
    return value


class Z3Algebra:
    """One obligation's interpretation: it names the clients, and collects what the words promise about them.

    `facts` are plain formulas, `laws` hold for every client.  Among equals `argmax` and `argmin` may return anyone,
    so a theorem holds however ties are broken.  While `sealed`, words that would name a new client are refused: a
    formula that is instantiated client by client must not choose one.
    """

    def __init__(self) -> None:
        self.clients: list[Any] = []
        self.chosen: list[Any] = []
        self.facts: list[Any] = []
        self.laws: list[Callable[[Any], Any]] = []
        self.sealed = False
        self.totals: list[tuple[Value, Any]] = [(scalar(z3.IntVal(0)), z3.IntVal(0))]
        self._asked: dict[int, tuple[Any, Any]] = {}
        self._names = 0

    def fresh_client(self, name: str) -> Any:
        """Return a new constant of the sort of clients."""
        if self.sealed:
            raise KernelError("a formula over all clients must not choose a client")
        client = z3.Const(self._name(name), CLIENT)
        self.clients.append(client)
        return client

    def named(self, client: Any) -> Point:
        """Return a client as a point."""
        return Point(z3.BoolVal(True), client)

    def symbol(self, name: str, kind: Kind, closed_form: bool) -> Value | Point:
        """Return an unknown of this kind; a point is a client that exists, or none."""
        match kind:
            case Kind.POINT:
                return self._some_client(name)
            case Kind.SCALAR | Kind.FLAG:
                return scalar(z3.Int(name) if kind is Kind.SCALAR else z3.Bool(name))
        boolean = kind is Kind.MASK
        made = ClosedFormValue if closed_form and not boolean else Value
        return made(self._function(name, z3.BoolSort() if boolean else z3.IntSort()), boolean=boolean, vector=True)

    def _some_client(self, name: str) -> Point:
        return Point(z3.Bool(f"{name} exists"), self.fresh_client(name))

    def _function(self, name: str, sort: Any) -> Callable[[Any], Any]:
        """Return an unknown of the sort for each client."""
        function: Callable[[Any], Any] = z3.Function(name, CLIENT, sort)
        return function

    def _name(self, name: str) -> str:
        self._names += 1
        return f"{name}!{self._names}"

    def instances(self) -> list[Any]:
        """Return every fact, and every law at every client named so far."""
        return self.facts + [law(client) for law in self.laws for client in self.clients]

    def where(self, m: Any, a: Any, b: Any) -> Value:
        condition, left, right = lifted(m), lifted(a), lifted(b)
        if not condition.boolean or left.boolean is not right.boolean:
            raise KernelError("where(m, a, b) takes a condition and two values of one type")
        if not condition.vector and (left.vector or right.vector):
            raise KernelError("where: one truth value chooses between scalars; between vectors choose by a mask")
        return _made(left, right)(
            lambda c: z3.If(condition.at(c), left.at(c), right.at(c)), boolean=left.boolean, vector=condition.vector
        )

    def any(self, m: Any) -> Value:
        return scalar(self._exists(_mask(m)))

    def none(self, m: Any) -> Value:
        return scalar(z3.Not(self._exists(_mask(m))))

    def all(self, m: Any) -> Value:
        mask = _mask(m)
        return scalar(z3.Not(self._exists(Value(lambda c: z3.Not(mask.at(c)), boolean=True, vector=True))))

    def _exists(self, mask: Value) -> Any:
        """Return whether the mask has a client; one that is asked again is answered by the same client."""
        said = mask.at(_ANY)
        if said.get_id() not in self._asked:
            witness = self.fresh_client("client")
            found = z3.Bool(self._name("any"))
            self.facts.append(z3.Implies(found, mask.at(witness)))
            self.laws.append(lambda c: z3.Implies(mask.at(c), found))
            # The formula stays with its answer: an id is given again once nothing holds what had it.
            self._asked[said.get_id()] = (said, found)
        return self._asked[said.get_id()][1]

    def argmax(self, v: Any, m: Any) -> Point:
        return self._choose(v, m, lambda best, other: best >= other)

    def argmin(self, v: Any, m: Any) -> Point:
        return self._choose(v, m, lambda best, other: best <= other)

    def _choose(self, v: Any, m: Any, beats: Callable[[Any, Any], Any]) -> Point:
        (values,), mask = _numbers(v), _mask(m)
        found = self._exists(mask)
        best = self.fresh_client("best")
        self.chosen.append(best)
        self.facts.append(z3.Implies(found, mask.at(best)))
        self.laws.append(lambda c: z3.Implies(mask.at(c), beats(values.at(best), values.at(c))))
        return Point(found, best)

    def total(self, v: Any) -> Value:
        """Return the sum of a vector over all clients, however many: for clauses, no word of kernels.

        It is known by what is true of all finite sums: how it compares with every other total of the obligation (see
        `_compare`), that of vectors of no negative entry it is above each entry, and that totals add.
        """
        (values,) = _numbers(v)
        new = (values, z3.Int(self._name("total")))
        for other in self.totals:
            self._compare(new, other)
        known = self.totals[1:]
        for i, one in enumerate(known):
            for two in known[i + 1 :]:
                self._adds(new, one, two)
                self._adds(one, new, two)
                self._adds(two, new, one)
        negative = self.fresh_client("negative")
        self.laws.append(lambda c: z3.Or(values.at(negative) < 0, new[1] >= values.at(c)))
        self.totals.append(new)
        return scalar(new[1])

    def _compare(self, one: tuple[Value, Any], two: tuple[Value, Any]) -> None:
        """Compare the totals of two vectors that are ordered. two that differ at one client only differ by that
        much."""
        (a, sum_a), (b, sum_b) = one, two
        for less, more, sum_less, sum_more in ((a, b, sum_a, sum_b), (b, a, sum_b, sum_a)):
            larger = self.fresh_client("larger")
            self.facts.append(z3.Or(sum_less <= sum_more, less.at(larger) > more.at(larger)))
        here, there = self.fresh_client("differs"), self.fresh_client("differs")
        single = z3.Bool(self._name("differ at one client only"))
        both = z3.And(here != there, a.at(here) != b.at(here), a.at(there) != b.at(there))
        self.facts.append(z3.If(single, sum_a - sum_b == a.at(here) - b.at(here), both))
        self.laws.append(lambda c: z3.Implies(z3.And(single, a.at(c) != b.at(c)), c == here))

    def _adds(self, whole: tuple[Value, Any], one: tuple[Value, Any], two: tuple[Value, Any]) -> None:
        """Add totals where a vector is the sum of two others everywhere."""
        (a, sum_a), (b, sum_b), (c, sum_c) = whole, one, two
        apart = self.fresh_client("apart")
        self.facts.append(z3.Or(sum_a == sum_b + sum_c, a.at(apart) != b.at(apart) + c.at(apart)))

    def summed(self, clients: list[Any]) -> list[Any]:
        """State that these are all the clients there are, each once, and every total is a sum over them."""
        if len(self.totals) == 1:
            return []
        all_of_them = [z3.Or([name == client for client in self.clients]) for name in clients]
        sums = [total == sum((v.at(client) for client in clients), z3.IntVal(0)) for v, total in self.totals]
        apart = [z3.Distinct(*clients)] if len(clients) > 1 else []
        return [*apart, *all_of_them, *sums]

    def exists(self, p: Point) -> Value:
        return scalar(_point(p).found)

    def pick(self, v: Any, p: Point, default: Any) -> Value:
        point, values, other = _point(p), lifted(v), lifted(default)
        if values.boolean is not other.boolean:
            raise KernelError("pick(v, p, default) takes a default of the vector's type")
        return scalar(z3.If(point.found, values.at(point.who), other.at(None)))

    def bump(self, v: Any, p: Point, x: Any) -> Value:
        return self.put(v, p, self.pick(v, p, 0) + x)

    def put(self, v: Any, p: Point, x: Any) -> Value:
        point, values, new = _point(p), lifted(v), lifted(x)
        if not values.vector or new.vector or values.boolean is not new.boolean:
            raise KernelError("put(v, p, x) takes a vector, a point and a scalar of the vector's type")
        term = new.at(None)
        return Value(
            lambda c: z3.If(z3.And(point.found, c == point.who), term, values.at(c)),
            boolean=values.boolean,
            vector=True,
        )

    def maximum(self, a: Any, b: Any) -> Value:
        left, right = _numbers(a, b)
        return self._select(left, right, left >= right)

    def minimum(self, a: Any, b: Any) -> Value:
        left, right = _numbers(a, b)
        return self._select(left, right, left <= right)

    def times(self, a: Any, b: Any) -> Value:
        left, right = _numbers(a, b)
        return left.times(right)

    def _select(self, left: Value, right: Value, condition: Value) -> Value:
        return _made(left, right)(
            lambda c: z3.If(condition.at(c), left.at(c), right.at(c)), boolean=False, vector=left.vector or right.vector
        )


def _point(p: Any) -> Point:
    if not isinstance(p, Point):
        raise KernelError(f"a point belongs here, not {p!r}")
    return p


# --- a fixed number of clients ----------------------------------------------------------------------------------------


def point(number: Any) -> Point:
    """Return the client of that number, none for NO_GROUP."""
    return Point(number >= 0, number)


class FixedAlgebra(Z3Algebra):
    """The words over `size` clients."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.clients = list(range(size))

    def fresh_client(self, name: str) -> Any:
        raise KernelError("all clients of a small world are numbered")

    def named(self, client: Any) -> Point:
        return point(z3.IntVal(client))

    def _some_client(self, name: str) -> Point:
        number = z3.Int(name)
        self.facts.append(z3.And(number >= NO_GROUP, number < len(self.clients)))
        return point(number)

    def _function(self, name: str, sort: Any) -> Callable[[Any], Any]:
        return [z3.Const(f"{name} {client}", sort) for client in self.clients].__getitem__

    def _exists(self, mask: Value) -> Any:
        return z3.Or([mask.at(client) for client in self.clients])

    def _choose(self, v: Any, m: Any, beats: Callable[[Any, Any], Any]) -> Point:
        values, mask = lifted(v), lifted(m)
        best: Any = z3.IntVal(NO_GROUP)
        most: Any = z3.IntVal(0)
        for client in self.clients:
            takes = z3.And(mask.at(client), z3.Or(best < 0, z3.Not(beats(most, values.at(client)))))
            best, most = z3.If(takes, client, best), z3.If(takes, values.at(client), most)
        return point(best)

    def pick(self, v: Any, p: Point, default: Any) -> Value:
        values, found = lifted(v), lifted(default).at(None)
        for client in self.clients:
            found = z3.If(z3.And(p.found, p.who == client), values.at(client), found)
        return scalar(found)

    def total(self, v: Any) -> Value:
        values = lifted(v)
        return scalar(z3.Sum([values.at(client) for client in self.clients]))
