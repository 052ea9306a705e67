"""A kernel with one function of another text: what a proof must refute to be believed.

Only the section of kernels (and of closed forms beside them) is compiled, from the very file that ships.  A text may
come from a file that another person wrote, so it is read before it is compiled: one function of plain assignments and a
return, over arithmetic and calls of the algebra's words and of its fellow kernels, and nothing else.
"""

import ast
import importlib
import inspect
import linecache
import re
import textwrap
from collections.abc import Collection
from itertools import count
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from fairsched.verify.logic.kernel_language import WORDS

_SECTION = "# --- kernel "
_AFTER = re.compile(r"^# --- (?:gate|ability)\b", re.MULTILINE)
_HEADER = "from fairsched.model.algebra import Algebra, Mask, Point, Scalar, Vector\n"
_numbers = count(1)

_NODES = (
    ast.arguments | ast.arg | ast.Return | ast.Assign | ast.Expr | ast.Name | ast.Load | ast.Store | ast.Constant
) | (ast.BinOp | ast.UnaryOp | ast.Compare | ast.Call | ast.Attribute | ast.operator | ast.unaryop | ast.cmpop)


def variant(module: ModuleType, function: str, old: str, new: str) -> ModuleType:
    """Return the kernels of `module` where, inside `function`, the text `old` reads `new`.

    Raises `ValueError` unless `old` occurs there exactly once, so that a variant cannot silently be the original.
    """
    text = inspect.getsource(getattr(module, function))
    return with_text(module.__name__, function, _replaced(f"{module.__name__}.{function}", text, old, new))


def with_text(module: str, function: str, text: str) -> ModuleType:
    """Return the kernels of the module of that name where `function` has the text `text`.

    Raises `ValueError` when there is no such function, or when the text does more than arithmetic.
    """
    shipped = importlib.import_module(module)
    source = inspect.getsource(shipped)
    if _SECTION not in source or not inspect.isfunction(getattr(shipped, function, None)):
        raise ValueError(f"{module} has no kernel {function!r}")
    after = _AFTER.search(source)
    assert after is not None, f"{module}: no section follows the kernel"
    begin, end = source.index(_SECTION), after.start()
    others = _kernels_of_others(shipped)
    _check(module, function, text, source[begin:end], others)
    changed = _HEADER + source[begin:end].replace(inspect.getsource(getattr(shipped, function)), text)
    made = ModuleType(module)
    vars(made).update(others)
    _execute(changed, f"variant of {module}: {function}", vars(made))
    return made


def _kernels_of_others(module: ModuleType) -> dict[str, Any]:
    """Return the kernels that a module takes from others, by the names that it has for them."""
    taken = ((name, each) for name, each in vars(module).items() if inspect.isfunction(each))
    foreign = ((name, each) for name, each in taken if each.__module__ != module.__name__)
    return {name: each for name, each in foreign if next(iter(inspect.signature(each).parameters), None) == "o"}


def _replaced(where: str, text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise ValueError(f"{where}: {old!r} occurs {text.count(old)} times, not once")
    return text.replace(old, new)


def _execute(text: str, what: str, names: dict[str, Any]) -> None:
    """Run a module's text, which can be inspected from then on."""
    name = f"<{what}, {next(_numbers)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), names)


def _check(module: str, function: str, text: str, section: str, others: Collection[str]) -> None:
    def refuse(why: str) -> ValueError:
        return ValueError(f"{module}.{function}: the variant's text {why}")

    try:
        (definition,) = ast.parse(textwrap.dedent(text)).body
    except (SyntaxError, ValueError) as error:
        raise refuse(f"is not one function: {error}") from None
    if not isinstance(definition, ast.FunctionDef) or definition.name != function or definition.decorator_list:
        raise refuse("is not that function")
    if definition.args.defaults or definition.args.kw_defaults:
        raise refuse("has defaults")
    kernels = {node.name for node in ast.parse(section).body if isinstance(node, ast.FunctionDef)}
    kernels.update(others)
    for node in (inner for statement in definition.body for inner in ast.walk(statement)):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in kernels:
                pass
            case ast.Call(func=ast.Attribute(value=ast.Name(id="o"), attr=word)) if word in WORDS:
                pass
            case ast.Attribute(value=ast.Name(id="o"), attr=word) if word in WORDS:
                pass
            case ast.Call() | ast.Attribute():
                raise refuse(f"calls {ast.unparse(node)}")
            case _ if not isinstance(node, _NODES):
                raise refuse(f"has {ast.unparse(node) or type(node).__name__}")


# --- shipped Python ---------------------------------------------------------------------------------------------------

Kind = TypeVar("Kind")


def changed(kind: type[Kind], method: str, old: str, new: str) -> type[Kind]:
    """Return the class where, in the text of one of its methods, `old` reads `new`.

    Raises `ValueError` unless `old` occurs there exactly once, so that a bug cannot silently be none.
    """
    home = next(base for base in kind.__mro__ if method in vars(base))
    text = textwrap.dedent(inspect.getsource(vars(home)[method]))
    text = _replaced(f"{kind.__name__}.{method}", text, old, new)
    names: dict[str, Any] = {**vars(inspect.getmodule(home)), "Base": kind}
    _execute(f"class {kind.__name__}(Base):\n{textwrap.indent(text, '    ')}", f"{kind.__name__}.{method}", names)
    made: type[Kind] = names[kind.__name__]
    return made


def reworded(function: Any, old: str, new: str) -> Any:
    """Return a function of a module where, in its text, `old` reads `new`, which occurs there exactly once."""
    name = function.__name__
    names = dict(function.__globals__)
    _execute(_replaced(name, inspect.getsource(function), old, new), name, names)
    return names[name]


def with_names(function: Any, **names: Any) -> Any:
    """Return the function, for which these global names and builtins mean something else."""
    made = FunctionType(function.__code__, {**function.__globals__, **names})
    made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return made


def unchecked(kind: type[Kind], **values: Any) -> Kind:
    """Return a configuration with these values, such as unknown integers, that no validator has seen; others are
    defaults."""
    made = object.__new__(kind)
    fields: Any = getattr(kind, "__attrs_attrs__", ())
    for field in fields:
        object.__setattr__(made, field.name, values.get(field.name, field.default))
    return made
