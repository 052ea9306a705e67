"""What a kernel's source may contain: straight lines of the algebra's words and operators, and nothing else.

Solver terms refuse misuse when they meet it, but a proof only runs the text once, and some slips look the same there
(a float constant, a call that ignores the algebra, a vector read again after a point update consumed it, which the
owned numpy interpretation has overwritten by then).  So the text itself is checked, and everything that it calls.
"""

import ast
import dis
import inspect
import textwrap
from collections.abc import Callable, Container, Iterable, Iterator
from types import CodeType, FunctionType, ModuleType, NoneType
from typing import Any

import numpy as np

from fairsched.model.algebra import Algebra

Kernel = Callable[..., Any]
Breaches = Iterator[tuple[ast.expr | ast.stmt, str]]
"""Where a text leaves the language, and how."""

WORDS = frozenset(name for name in vars(Algebra) if not name.startswith("_"))
_CONSUMING = frozenset({"bump", "put"})
_OPERATORS = (ast.Add, ast.Sub, ast.BitAnd, ast.BitOr)
_COMPARISONS = (ast.Gt, ast.GtE, ast.Lt, ast.LtE)


def violations(kernels: Iterable[Kernel]) -> list[str]:
    """Return every breach in the kernels and in all that they call: function, line within it, and what is wrong."""
    return [breach for kernel in closure(kernels) for breach in _Reader(kernel).breaches()]


def closure(kernels: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """Return the kernels and every function that they call by name, each once, in order of module and name."""
    found: dict[Kernel, None] = {}
    waiting = list(kernels)
    while waiting:
        kernel = waiting.pop()
        if kernel not in found:
            found[kernel] = None
            waiting += _Reader(kernel).callees()
    return tuple(sorted(found, key=lambda kernel: (kernel.__module__, kernel.__qualname__)))


def kernels_of(module: ModuleType) -> list[Kernel]:
    """Return the functions over the algebra that a module defines, in the order of the file."""
    functions = filter(inspect.isfunction, vars(module).values())
    own = (function for function in functions if function.__module__ == module.__name__)
    return [function for function in own if next(iter(inspect.signature(function).parameters), None) == "o"]


def definition_of(function: Kernel) -> ast.FunctionDef | None:
    """Return the parsed text of the code that runs when the function is called, without its docstring; None if it is no
    plain function.

    The text is that of the code object: a decorator's wrapper shows its own, not that of the function which it wraps.
    """
    parsed = _parsed(function)
    if parsed is not None and ast.get_docstring(parsed) is not None:
        del parsed.body[0]
    return parsed


def _parsed(function: Kernel) -> ast.FunctionDef | None:
    if not inspect.isfunction(function):
        return None
    parsed = ast.parse(textwrap.dedent(inspect.getsource(function.__code__))).body[0]
    return parsed if isinstance(parsed, ast.FunctionDef) else None


def _unread(function: Kernel) -> Iterator[str]:
    """Yield what a function does beside what its text says: values that it closes over or has as defaults, and code
    that was not made from this text."""
    if function.__closure__ or function.__defaults__ or function.__kwdefaults__:
        yield "a kernel closes over nothing and has no defaults: both are values that its text does not show"
    if (text := _parsed(function)) is not None:
        text.decorator_list = []
        module = compile(ast.Module([text], []), function.__code__.co_filename, "exec")
        read = next(each for each in module.co_consts if isinstance(each, CodeType))
        if _does(read) != _does(function.__code__):
            yield "what runs was not made from this text: was the file changed after it was imported?"


def _does(code: CodeType) -> tuple[Any, ...]:
    """Return what a code object computes, without its place in a file."""
    return code.co_code, code.co_consts, code.co_names, code.co_varnames, code.co_freevars


class _Reader:
    """Reads one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.definition = definition_of(kernel)

    def callees(self) -> list[Kernel]:
        calls = [node.func for node in ast.walk(self.definition or ast.Pass()) if isinstance(node, ast.Call)]
        named = [self._global(func.id) for func in calls if isinstance(func, ast.Name)]
        return [function for function in named if inspect.isfunction(function)]

    def _global(self, name: str) -> Any:
        return getattr(self.kernel, "__globals__", {}).get(name)

    def breaches(self) -> Iterator[str]:
        if self.definition is None:
            yield f"{self.kernel.__qualname__}: a kernel is a plain function"
            return
        code = self.kernel.__code__
        where = f"{self.kernel.__qualname__} ({code.co_filename}:{{}})"
        if not self.definition.args.args or self.definition.args.args[0].arg != "o":
            yield f"{where.format(code.co_firstlineno)}: a kernel's first argument is its algebra, o"
            return
        for problem in _unread(self.kernel):
            yield f"{where.format(code.co_firstlineno)}: {problem}"
        self.known = {argument.arg for argument in self.definition.args.args}
        self.consumed: set[str] = set()
        for node, problem in (each for statement in self.definition.body for each in self._statement(statement)):
            yield f"{where.format(code.co_firstlineno + node.lineno - 1)}: {problem}"

    def _statement(self, statement: ast.stmt) -> Breaches:
        value = statement.value if isinstance(statement, ast.Assign | ast.Return) else None
        if value is None:
            kind = type(statement).__name__
            yield statement, f"{kind} is control flow or an effect; a kernel assigns and returns{_instead(statement)}"
            return
        yield from self._expression(value)
        yield from _read_after_update(value)
        self.consumed |= {vector.id for _, vector in _updates(value)}
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]
            if len(statement.targets) > 1 or not isinstance(target, ast.Name) or target.id == "o":
                yield statement, "a kernel assigns to one plain name at a time"
                return
            if isinstance(value, ast.Name):
                yield statement, "a second name for a vector hides that an update consumed it"
            self.known.add(target.id)
            self.consumed.discard(target.id)

    def _expression(self, node: ast.expr) -> Breaches:
        match node:
            case ast.Constant(value=bool() | int()):
                return
            case ast.Name(id=name):
                if name not in self.known or name == "o":
                    yield node, f"{name} is neither an argument nor assigned before"
                elif name in self.consumed:
                    yield node, f"{name} was consumed by bump or put and is read again"
                return
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _OPERATORS):
                parts = [left, right]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                parts = [operand]
            case ast.Compare(left=left, ops=[op], comparators=[right]) if isinstance(op, _COMPARISONS):
                parts = [left, right]
            case ast.Call(func=func, args=args, keywords=[]):
                yield from self._callee(func)
                parts = [arg for arg in args if not (isinstance(arg, ast.Name) and arg.id == "o")]
            case _:
                yield node, f"{ast.unparse(node)!r} is not written in the algebra's words{_instead(node)}"
                return
        for part in parts:
            yield from self._expression(part)

    def _callee(self, func: ast.expr) -> Breaches:
        match func:
            case ast.Attribute(value=ast.Name(id="o"), attr=word):
                if word not in WORDS:
                    yield func, f"o.{word} is no word of the algebra"
            case ast.Name(id=name) if inspect.isfunction(self._global(name)):
                return
            case _:
                yield func, f"{ast.unparse(func)!r} is neither a word of the algebra nor a kernel"


_INSTEAD = {
    ast.Div: ": multiply the other side of the comparison instead",
    ast.FloorDiv: ": multiply the other side of the comparison, or let a number fade by a fixed part at each refill",
    ast.Mult: ": write o.times(a, b)",
    ast.Eq: ": write (a <= b) & (a >= b)",
    ast.Invert: ": write o.where(m, False, True)",
    ast.Not: ": write o.where(m, False, True)",
    ast.IfExp: ": write o.where(m, a, b)",
    ast.BoolOp: ": write & and |",
    ast.Subscript: ": write o.pick(v, p, default)",
    ast.If: ": write o.where(m, a, b)",
    ast.Expr: ": begin the line with return",
    ast.NotEq: ": write (a < b) | (a > b)",
    ast.Constant: ": numbers are whole; count in a smaller unit",
    ast.Tuple: ": a kernel returns one vector; with several there is a kernel for each, such as admit_q",
}
"""What to write for what the words do not have."""


def _instead(node: ast.expr | ast.stmt) -> str:
    signs = [getattr(node, "op", node), *getattr(node, "ops", ())]
    return next((_INSTEAD[kind] for kind in map(type, [*signs, node]) if kind in _INSTEAD), "")


def line_of(error: Exception, function: Kernel) -> str:
    """Return the function's name and the file and line in it at which the error came up."""
    code, frame, line = function.__code__, error.__traceback__, function.__code__.co_firstlineno
    while frame is not None:
        if frame.tb_frame.f_code is code:
            line = frame.tb_lineno
        frame = frame.tb_next
    return f"{function.__qualname__} ({code.co_filename}:{line})"


def _updates(value: ast.expr) -> Iterator[tuple[ast.Call, ast.Name]]:
    """Yield each point update of a named vector in an expression."""
    for node in ast.walk(value):
        match node:
            case ast.Call(func=ast.Attribute(attr=word), args=[ast.Name() as vector, *_]) if word in _CONSUMING:
                yield node, vector


def _read_after_update(value: ast.expr) -> Breaches:
    """Yield reads of a vector beside its update in one expression: arguments are read before the update, others may
    not."""
    for call, vector in _updates(value):
        inside = {id(node) for node in ast.walk(call)}
        for node in ast.walk(value):
            if isinstance(node, ast.Name) and node.id == vector.id and id(node) not in inside:
                yield node, f"{vector.id} is read beside the bump or put that consumes it"


_FIXED = (FunctionType, int, str, NoneType)
_NO_WORDS = {
    **dict.fromkeys(("/", "//", "%"), _INSTEAD[ast.Div]),
    **dict.fromkeys(("*", "**"), _INSTEAD[ast.Mult]),
    **dict.fromkeys(("==", "!="), ": write same(a, b)"),
}
_EFFECTS = ("JUMP", "STORE_GLOBAL", "STORE_ATTR", "STORE_SUBSCR", "FORMAT", "IS_OP", "CONTAINS_OP", "IMPORT", "YIELD")


def formula_breaches(formula: Kernel, names: Container[str]) -> Iterator[str]:
    """Yield what a formula over a world does beside naming what it speaks of: branches, effects, values from elsewhere.

    A formula is asked by solvers, by exact numbers and for its words; a branch could say something else to each.
    `names` are those of the world.  Formulas of this package are trusted, but not what they close over.
    """
    waiting, seen = [formula], set()
    while waiting:
        now = waiting.pop()
        if now in seen:
            continue
        seen.add(now)
        waiting += [cell.cell_contents for cell in now.__closure__ or () if inspect.isfunction(cell.cell_contents)]
        if _is_ours(now):
            continue
        where = f"{now.__code__.co_filename}:{now.__code__.co_firstlineno}"
        if now.__defaults__ or now.__kwdefaults__:
            yield f"{where}: a formula has no default values"
        if any(not isinstance(cell.cell_contents, _FIXED) for cell in now.__closure__ or ()):
            yield f"{where}: a formula closes over functions and numbers alone"
        for each in dis.get_instructions(now):
            if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                found = now.__globals__.get(each.argval)
                if inspect.isfunction(found):
                    waiting.append(found)
                else:
                    yield f"{where}: {each.argval} is no formula; a formula names what is in its world"
            elif each.opname in ("LOAD_ATTR", "LOAD_METHOD") and each.argval not in names and each.argval not in WORDS:
                yield f"{where}: .{each.argval} is neither in the world nor a word of the algebra"
            elif each.argrepr in _NO_WORDS and each.opname in ("BINARY_OP", "COMPARE_OP"):
                yield f"{where}: a formula has no {each.argrepr}{_NO_WORDS[each.argrepr]}"
            elif any(part in each.opname for part in _EFFECTS):
                yield f"{where}: a formula is one expression; it does not branch and changes nothing"
                break


def impurities(kind: type) -> Iterator[str]:
    """Yield what the methods of an author's class read or write beside their arguments: the clock, chance, files,
    mutable globals and defaults.

    What is reached through another function or a library is not seen here: two runs that must agree see it.
    """
    for base in kind.__mro__:
        for value in vars(base).values():
            found = getattr(value, "__func__", getattr(value, "fget", value))
            if inspect.isfunction(found) and not _is_ours(found):
                where = f"{found.__qualname__} ({found.__code__.co_filename}:{found.__code__.co_firstlineno})"
                yield from (f"{where} {problem}" for problem in _impure(found))


_TRUSTED = (__name__.partition(".")[0], "attr", "typing", "abc")
_IMPURE = frozenset({"time", "datetime", "random", "secrets", "uuid", "os", "io", "socket", "threading"})
_MUTABLE = (list, dict, set, bytearray, np.ndarray)


def _is_ours(function: Kernel) -> bool:
    """Whether a function stands in a module of this package, or of those that make its classes: by the names that it
    reads, since an author can write any `__module__`."""
    made = function.__code__.co_filename.startswith("<attrs generated")
    return made or str(function.__globals__.get("__name__")).partition(".")[0] in _TRUSTED


def _impure(function: Kernel) -> Iterator[str]:
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        if isinstance(default, _MUTABLE):
            yield "has a mutable default"
    for cell in function.__closure__ or ():
        if isinstance(cell.cell_contents, _MUTABLE):
            yield "closes over a mutable value"
    for each in dis.get_instructions(function):
        if each.opname == "STORE_GLOBAL":
            yield f"writes the global {each.argval}"
        elif each.opname in ("LOAD_GLOBAL", "LOAD_NAME", "IMPORT_NAME"):
            found = function.__globals__.get(each.argval)
            module = each.argval if each.opname == "IMPORT_NAME" else getattr(found, "__module__", None)
            module = found.__name__ if isinstance(found, ModuleType) else module
            if isinstance(found, _MUTABLE):
                yield f"reads the mutable global {each.argval}"
            elif (module or "").partition(".")[0] in _IMPURE or each.argval == "open":
                yield f"uses {each.argval}, which is no argument: a decision follows from state and view alone"
