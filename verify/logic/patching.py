"""A kernel with one function of another text: what a proof must refute to be believed.

Only the section of kernels (and of closed forms beside them) is compiled, from the very file that ships.  A text may
come from a file that somebody else wrote, so it is read before it is compiled: one function of plain assignments and a
return, over arithmetic and calls of the algebra's words and of its fellow kernels, and nothing else.
"""

import ast
import importlib
import inspect
import linecache
import textwrap
from itertools import count
from types import ModuleType

from fairsched.verify.guard import WORDS

_SECTION = "# --- kernel "
_AFTER = "# --- gate "
_HEADER = "from fairsched.model.algebra import Algebra, Mask, Point, Scalar, Vector\n"
_numbers = count(1)

_NODES = (
    ast.arguments | ast.arg | ast.Return | ast.Assign | ast.Expr | ast.Name | ast.Load | ast.Store | ast.Constant
) | (ast.BinOp | ast.UnaryOp | ast.Compare | ast.Call | ast.Attribute | ast.operator | ast.unaryop | ast.cmpop)


def variant(module: ModuleType, function: str, old: str, new: str) -> ModuleType:
    """The kernels of `module` where, inside `function`, the text `old` reads `new`.

    Raises `ValueError` unless `old` occurs there exactly once, so that a variant cannot silently be the original.
    """
    text = inspect.getsource(getattr(module, function))
    if text.count(old) != 1:
        raise ValueError(f"{module.__name__}.{function}: {old!r} occurs {text.count(old)} times, not once")
    return with_text(module.__name__, function, text.replace(old, new))


def with_text(module: str, function: str, text: str) -> ModuleType:
    """The kernels of the module of that name where `function` has the text `text`.

    Raises `ValueError` when there is no such function, or when the text does more than arithmetic.
    """
    shipped = importlib.import_module(module)
    source = inspect.getsource(shipped)
    if _SECTION not in source or not inspect.isfunction(getattr(shipped, function, None)):
        raise ValueError(f"{module} has no kernel {function!r}")
    begin, end = source.index(_SECTION), source.index(_AFTER)
    _check(module, function, text, source[begin:end])
    changed = _HEADER + source[begin:end].replace(inspect.getsource(getattr(shipped, function)), text)
    name = f"<variant {next(_numbers)} of {module}: {function}>"
    linecache.cache[name] = (len(changed), None, changed.splitlines(keepends=True), name)
    made = ModuleType(module)
    exec(compile(changed, name, "exec"), vars(made))
    return made


def _check(module: str, function: str, text: str, section: str) -> None:
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
