"""A kernel with one change to its text: what a proof must refute to be believed.

Only the section of kernels (and of closed forms beside them) is compiled, from the very file that ships.
"""

import inspect
import linecache
from itertools import count
from types import ModuleType

_SECTION = "# --- kernel "
_AFTER = "# --- gate "
_numbers = count(1)


def variant(module: ModuleType, function: str, old: str, new: str) -> ModuleType:
    """The kernels of `module` where, inside `function`, the text `old` reads `new`.

    Raises `ValueError` unless `old` occurs there exactly once, so that a variant cannot silently be the original.
    """
    source = inspect.getsource(module)
    begin, end = source.index(_SECTION), source.index(_AFTER)
    text = inspect.getsource(getattr(module, function))
    if text.count(old) != 1:
        raise ValueError(f"{module.__name__}.{function}: {old!r} occurs {text.count(old)} times, not once")
    changed = source[begin:end].replace(text, text.replace(old, new))
    header = "from fairsched.model.algebra import Algebra, Mask, Point, Scalar, Vector\n"
    name = f"<variant {next(_numbers)} of {module.__name__}: {function}>"
    linecache.cache[name] = (len(changed), None, (header + changed).splitlines(keepends=True), name)
    made = ModuleType(module.__name__)
    exec(compile(header + changed, name, "exec"), vars(made))
    return made
