"""What an object keeps in memory, counted object by object, so that it is the same in every run."""

import gc
import sys
from types import BuiltinFunctionType, FunctionType, ModuleType

_SHARED = (type, FunctionType, BuiltinFunctionType, ModuleType)


def kept_bytes(root: object) -> int:
    """Return the bytes of all that can be reached from an object, without code and small numbers, which are shared."""
    seen: dict[int, object] = {}
    left = [root]
    while left:
        found = left.pop()
        if id(found) in seen or isinstance(found, _SHARED) or (isinstance(found, int) and -5 <= found <= 256):
            continue
        seen[id(found)] = found
        left.extend(gc.get_referents(found))
    return sum(map(sys.getsizeof, seen.values()))
