"""Bugs in ordinary Python: functions that run with another text, in place, and every small change to a module's text.

What surrounds the kernels (queues, transactions, settlements, bounds, books) is tested and not proved.  Here is how
tests are tested: a function runs with a changed text wherever it was imported, since its code is exchanged and not its
name, and what should notice it must fail.  `in_place` seeds a bug by its text and fails loudly where the text is not
there any more; `code_mutants` makes every small change of some kinds.

Kernels, and functions that the proofs run on terms, are for `fairsched.verify.mutation.kernels`.
"""

import ast
import importlib
import inspect
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import attrs

# --- one function with another text -----------------------------------------------------------------------------------


@contextmanager
def in_place(module: str, function: str, old: str, new: str) -> Iterator[None]:
    """While it lasts, the function of that qualified name runs with `new` where its text reads `old`.

    Raises `ValueError` unless there is such a function, and `old` occurs exactly once in its text.
    """
    shipped = importlib.import_module(module)
    source, found = inspect.getsource(shipped), function_of(shipped, function)
    lines = source.splitlines(keepends=True)
    first = found.__code__.co_firstlineno - 1
    last = first + len(inspect.getblock(lines[first:]))
    text = "".join(lines[first:last])
    if text.count(old) != 1:
        raise ValueError(f"{module}.{function}: {old!r} occurs {text.count(old)} times, not once")
    changed = "".join((*lines[:first], text.replace(old, new), *lines[last:]))
    with _running(found, _code(ast.parse(changed), shipped, found)):
        yield


def function_of(module: ModuleType, name: str) -> FunctionType:
    """The function of a module by its qualified name; what wraps it (a property, a class method) is taken off."""
    found: Any = module
    for part in name.split("."):
        if part not in vars(found):
            raise ValueError(f"{module.__name__} has no {name}")
        found = vars(found)[part]
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, cached_property):
        found = found.func
    found = inspect.unwrap(getattr(found, "__func__", found))
    if not isinstance(found, FunctionType):
        raise ValueError(f"{module.__name__}.{name} is no function")
    return found


@contextmanager
def _running(function: FunctionType, code: CodeType) -> Iterator[None]:
    shipped = function.__code__
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = shipped


def _code(tree: ast.Module, module: ModuleType, function: FunctionType) -> CodeType:
    """The code of a function in a changed text of its module."""
    whole = compile(tree, str(module.__file__), "exec")
    wanted = function.__code__
    for code in _codes(whole):
        if (code.co_qualname, code.co_firstlineno) == (wanted.co_qualname, wanted.co_firstlineno):
            if code.co_freevars != wanted.co_freevars:
                raise ValueError(f"{module.__name__}.{wanted.co_qualname}: the change closes over other names")
            return code
    raise ValueError(f"{module.__name__} has no {wanted.co_qualname} at line {wanted.co_firstlineno}")


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


# --- every small change -----------------------------------------------------------------------------------------------

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift},
}
_OTHERS = {"min": "max", "max": "min", "any": "all", "all": "any", "argmin": "argmax", "argmax": "argmin"}
_UPDATES = ("replace", "evolve", "with_room")
"""What makes a value with some fields changed: a change that is left out is forgotten."""


@attrs.frozen
class CodeMutant:
    """A function of a module with one change, in words, and the code that has it."""

    module: str
    function: str
    line: int
    change: str
    code: CodeType

    @property
    def name(self) -> str:
        """What tells it from all others, whatever stands above it in the file."""
        return f"{self.module}.{self.function}: {self.change}"

    @contextmanager
    def running(self) -> Iterator[None]:
        """While it lasts, the function runs with the change."""
        with _running(function_of(importlib.import_module(self.module), self.function), self.code):
            yield


def code_mutants(name: str, skips: Callable[[str], bool] = lambda function: False) -> Iterator[CodeMutant]:
    """Every mutant of the functions and methods of a module, without those that `skips` names.

    What is not executed (annotations, docstrings), only raises, words a message, or asserts is left as it is; so are
    kernels, which are functions of an algebra, and what `check` looks at.
    """
    module = importlib.import_module(name)
    tree = ast.parse(inspect.getsource(module))
    for function, definition in _definitions(tree, ""):
        if skips(function) or not _is_mutated(definition):
            continue
        try:
            found = function_of(module, function)
        except ValueError:
            continue  # a part of a class that a decorator made anew
        before, seen, names = ast.unparse(definition), set[str](), Counter[str]()
        for holder, key, line, new, words in _places(definition):
            old = holder[key]
            holder[key] = new
            text = ast.unparse(definition)
            try:
                if text != before and text not in seen:
                    ast.fix_missing_locations(definition)
                    code = _code(tree, module, found)
                    names[words] += 1
                    again = f" ({names[words]})" * (names[words] > 1)
                    yield CodeMutant(name, function, line, f"{words}{again}", code)
            except ValueError:
                pass  # it would close over other names
            finally:
                holder[key] = old
            seen.add(text)


_Definition = ast.FunctionDef
_Place = tuple[Any, Any, int, Any, str]
"""What holds a part of the tree, where, in which line, what stands there instead, and the change in words."""


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, _Definition]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _definitions(child, f"{prefix}{child.name}.")
        elif isinstance(child, _Definition):
            yield f"{prefix}{child.name}", child


def _is_mutated(definition: _Definition) -> bool:
    """Whether it is no kernel, no invariant, and no abstract method."""
    first = next(iter(definition.args.args), None)
    kernel = first is not None and first.annotation is not None and "Algebra" in ast.unparse(first.annotation)
    abstract = any("abstractmethod" in ast.unparse(each) for each in definition.decorator_list)
    return not (kernel or abstract or definition.name in ("check", "__repr__") or definition.name.startswith("check_"))


def _places(definition: _Definition) -> Iterator[_Place]:
    """Every change to a function, after what holds the part that changes."""
    bound = {argument.arg for argument in (*definition.args.args, *definition.args.kwonlyargs)}
    todo: list[tuple[Any, Any]] = [(definition.body, i) for i in range(len(definition.body))]
    while todo:
        holder, key = todo.pop(0)
        node = holder[key]
        if not isinstance(node, ast.AST) or _is_left(node):
            continue
        line = getattr(node, "lineno", definition.lineno)
        for new in _changes(node, bound):
            if not hasattr(new, "lineno"):
                ast.copy_location(new, node)
            yield holder, key, line, new, f"{_shown(node)} -> {_shown(new)}"
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound |= {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
        for name in node._fields:
            value = getattr(node, name, None)
            if name in ("annotation", "returns", "decorator_list", "type_params", "ctx", "func", "type"):
                if name == "func" and isinstance(value, ast.Attribute):
                    todo.append((vars(value), "value"))
                continue
            if isinstance(value, list):
                todo += [(value, i) for i in range(len(value))]
            elif isinstance(value, ast.AST):
                todo.append((vars(node), name))


def _shown(node: ast.AST) -> str:
    """A part in words; of a branch its condition."""
    if isinstance(node, ast.Pass):
        return "(left out)"
    if isinstance(node, ast.If | ast.While):
        return f"{type(node).__name__.lower()} {ast.unparse(node.test)}"
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 200 else f"{text[:197]}..."


def _is_left(node: ast.AST) -> bool:
    """Whether a part is left as it is: messages, assertions, errors, docstrings, whether lengths are compared."""
    match node:
        case ast.Assert() | ast.Raise() | ast.JoinedStr() | ast.Constant(value=str() | None):
            return True
        case ast.Expr(value=ast.Constant()) | ast.keyword(arg="strict"):
            return True
    return False


def _changes(node: ast.AST, bound: set[str]) -> Iterator[ast.AST]:  # noqa: C901  (one case a kind)
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield ast.Compare(left, [_COMPARED[type(op)]()], [right])
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMPUTED:
            yield ast.BinOp(left, _COMPUTED[type(op)](), right)
            yield from (left, right)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for i in range(len(values)):
                rest = [*values[:i], *values[i + 1 :]]
                yield ast.BoolOp(op, rest) if len(rest) > 1 else rest[0]
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.IfExp(body=body, orelse=orelse):
            yield from (body, orelse)
        case ast.If(body=body, orelse=orelse) if not _only_leaves(body):
            for value in (True, False):
                yield ast.If(ast.Constant(value), body, orelse)
        case ast.While(body=body, orelse=orelse):
            yield ast.While(ast.Constant(False), body, orelse)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Call():
            yield from _calls(node)
        case ast.Continue() | ast.Break() | ast.AugAssign():
            yield ast.Pass()
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Assign(targets=[target]):
            if not isinstance(target, ast.Name) or target.id in bound:
                yield ast.Pass()
            yield from _forgotten(target, node)
        case ast.comprehension(target=target, iter=over, ifs=[_, *_], is_async=is_async):
            yield ast.comprehension(target, over, [], is_async)


def _only_leaves(body: list[ast.stmt]) -> bool:
    return len(body) == 1 and isinstance(body[0], ast.Raise)


def _calls(call: ast.Call) -> Iterator[ast.AST]:
    """Another word, or an update that is left out."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in _OTHERS:
        other = _OTHERS[name]
        func: ast.expr = ast.Name(other, ast.Load())
        if isinstance(call.func, ast.Attribute):
            func = ast.Attribute(call.func.value, other, ast.Load())
        yield ast.Call(func, call.args, call.keywords)
    if name in _UPDATES:
        for i in range(len(call.keywords)):
            yield ast.Call(call.func, call.args, [*call.keywords[:i], *call.keywords[i + 1 :]])
    for i, keyword in enumerate(call.keywords):
        # A field that a call makes of its former value keeps that.
        if keyword.arg and (kept := _former(keyword.arg, keyword.value)) is not None:
            rest = [*call.keywords[:i], ast.keyword(keyword.arg, kept), *call.keywords[i + 1 :]]
            yield ast.Call(call.func, call.args, rest)


def _forgotten(target: ast.expr, node: ast.Assign) -> Iterator[ast.AST]:
    """A value that a call makes of its former one keeps that: `gate = after(state.gate, ...)` -> `gate = state.gate`"""
    name = target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute) else ""
    kept = _former(name, node.value)
    if kept is not None:
        yield ast.Assign(node.targets, kept)


def _former(name: str, value: ast.expr) -> ast.expr | None:
    """The argument of a call that is the former value of that name."""
    if not isinstance(value, ast.Call):
        return None
    former = [*value.args]
    if isinstance(value.func, ast.Attribute):
        former.append(value.func.value)
    for each in former:
        last = each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "")
        if name and last.lstrip("_") == name.lstrip("_"):
            return each
    return None


def same_changes() -> dict[str, dict[str, str]]:
    """Changes that change no decision, charge or bound, by function, each with the reason."""
    path = Path(__file__).with_name("same.toml")
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
