"""What runs when a policy decides, as hashes: every function, class and constant that is reached from it.

A certificate is about code, so it names all of that.  The hash of a function is of its syntax tree: comments, layout,
docstrings and annotations do not matter.  Names are followed as Python would: to what a function's globals, closure and
defaults hold now, so that what was put in another's place is what is hashed.  A method of an object that comes from the
caller (a view, an event) is the engine's and not followed; nor are the standard library and installed packages, but for
this one and those of the policy itself.
"""

import ast
import functools
import hashlib
import importlib
import linecache
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from types import CellType, CodeType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

import attrs
import msgspec
import numpy as np

from fairsched.model.theorem import Assumption, Theorem

PACKAGE = __name__.partition(".")[0]
_EVIDENCE = f"{PACKAGE}.verify"
"""What only proves: its questions are in a certificate word for word."""
_INSTALLED = ("site-packages", "dist-packages")
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
_GENERATED = ("<attrs generated", "<string>")
_OF_CLASSES = frozenset({
    "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__slots__", "__annotations__",
    "__match_args__", "__orig_bases__", "__parameters__", "__abstractmethods__", "__firstlineno__",
    "__static_attributes__", "__hash__", "__getstate__", "__setstate__", "_abc_impl", "theorems"
})  # fmt: skip
"""Attributes of a class that say nothing of what it does, or are said elsewhere."""


def code_sha256(*roots: object) -> dict[str, str]:
    """Return the hash of each function, class and constant that runs when one of `roots` does, by full name.

    A root is a policy or a part of it, a class or a function.  O(code that is reached), once; for starts and checks.
    """
    return _Reader({_top(_module_of(part)) for root in roots for part in _parts(root)}).read(roots)


def changed_code(said: Mapping[str, str], *roots: object) -> Iterator[str]:
    """Yield what of the code `said` is not what runs here when one of `roots` does, a line each."""
    here = code_sha256(*roots)
    # What was proved about beside what decides, such as one round of a refill whose closed form runs.
    beside = [found for name in said.keys() - here.keys() if (found := _reached(name)) is not None]
    yield from code_changes(said, code_sha256(*roots, *beside) if beside else here)


def code_changes(said: Mapping[str, str], here: Mapping[str, str]) -> Iterator[str]:
    """Yield what of `said` is not so here, a line each."""
    for name in sorted(said.keys() | here.keys()):
        if name not in here:
            yield f"{name}: was proved about, and does not run here"
        elif name not in said:
            yield f"{name}: runs here, and was not there when it was proved"
        elif said[name] != here[name]:
            yield f"{name}: changed since it was proved about"


def _parts(root: object) -> Iterator[object]:
    """Yield the root, and the values of its fields."""
    yield root
    for field in getattr(type(root), "__attrs_attrs__", ()):
        yield from _parts(getattr(root, field.name))


def _module_of(part: object) -> str:
    of_its_own = isinstance(part, type | FunctionType)
    return str(getattr(part if of_its_own else type(part), "__module__", ""))


def _top(module: str) -> str:
    return module.partition(".")[0]


class _Reader:
    """Follows names; `found` has, by full name, the texts of what goes by it."""

    def __init__(self, tops: set[str]) -> None:
        self._tops = {PACKAGE} | {top for top in tops if top not in sys.stdlib_module_names}
        self._followed: set[FunctionType | type] = set()
        self._waiting: list[tuple[FunctionType | type, str]] = []
        self._found: dict[str, set[str]] = {}
        self._texts: dict[str, str] = {}

    def read(self, roots: Iterable[object]) -> dict[str, str]:
        for root in roots:
            self.said(root)
        while self._waiting:
            part, name = self._waiting.pop()
            if isinstance(part, FunctionType):
                self._function(part, name)
            else:
                self._class(part, name)
        return {
            name: hashlib.sha256("\n\n".join(sorted(texts)).encode()).hexdigest()
            for name, texts in sorted(self._found.items())
        }

    def _owns(self, module: str | None) -> bool:
        """Return whether a module is ours, or the author's: neither the standard library's nor another package's."""
        if not module or module == _EVIDENCE or module.startswith(f"{_EVIDENCE}."):
            return False
        top = _top(module)
        if top in self._tops:
            return True
        file = getattr(sys.modules.get(module), "__file__", None)
        return bool(file) and top not in sys.stdlib_module_names and not any(name in str(file) for name in _INSTALLED)

    def _reach(self, part: Any, name: str = "") -> str:
        """Return the name of a function or a class, which is read if it is ours; `name` if it goes by another than its
        own."""
        name = name or f"{part.__module__}.{part.__qualname__}"
        if self._owns(part.__module__) and part not in self._followed:
            self._followed.add(part)
            self._waiting.append((part, name))
        return name

    def _keep(self, name: str, text: str) -> None:
        self._found.setdefault(name, set()).add(text)

    # --- values -----------------------------------------------------------------------------------------------------

    def said(self, value: Any, depth: int = 0) -> str:
        """Return a value as text, the same for the same value; functions and classes in it are named, and read."""
        plain = value
        if isinstance(plain, staticmethod | classmethod):
            return f"{type(plain).__name__} {self.said(plain.__func__, depth)}"
        if isinstance(plain, property):
            return "property " + " ".join(self.said(each, depth) for each in (plain.fget, plain.fset) if each)
        if isinstance(plain, functools.cached_property):
            return f"cached_property {self.said(plain.func, depth)}"
        if isinstance(plain, functools.partial):
            return f"partial {self.said((plain.func, plain.args, plain.keywords), depth)}"
        if not isinstance(plain, type) and isinstance(wrapped := getattr(plain, "__wrapped__", None), FunctionType):
            # A cache, say: what it runs is what it wraps.
            return f"{type(plain).__name__} {self.said(wrapped, depth)}"
        if isinstance(plain, FunctionType | type):
            return self._reach(plain)
        if isinstance(plain, _PLAIN):
            return f"{type(plain).__name__} {plain!r}"
        if isinstance(plain, Enum):
            return f"{self.said(type(plain), depth)}.{plain.name}"
        if depth > 8:
            return type(plain).__name__
        return self._compound(plain, depth + 1)

    def _compound(self, value: Any, depth: int) -> str:
        def each(values: Iterable[Any]) -> str:
            return ", ".join(self.said(one, depth) for one in values)

        kind = type(value)
        if isinstance(value, Theorem):
            return f"theorem {value.id} {self.said(value.bound_cost, depth)}"
        if isinstance(value, Assumption):
            return f"assumption {value.name}"
        if isinstance(value, tuple | list):
            return f"{kind.__name__} [{each(value)}]"
        if isinstance(value, set | frozenset):
            return f"set {sorted(self.said(one, depth) for one in value)}"
        if isinstance(value, Mapping):
            items = ", ".join(f"{self.said(k, depth)}: {self.said(v, depth)}" for k, v in value.items())
            return f"{kind.__name__} {{{items}}}"
        if isinstance(value, np.ndarray | np.generic):
            return f"{value.dtype} {value.tolist()}"
        if isinstance(value, ModuleType):
            return f"module {value.__name__}"
        fields = [field.name for field in getattr(kind, "__attrs_attrs__", ())]
        fields += [*getattr(kind, "__struct_fields__", ())]
        held = {name: getattr(value, name, None) for name in fields} or getattr(value, "__dict__", {})
        if not self._owns(kind.__module__):
            # What another package's value does is its own affair; a validator of attrs is told by its fields.
            held = held if attrs.has(kind) else {}
            return f"{kind.__module__}.{kind.__qualname__} {each(held.values())}".rstrip()
        return f"{self._reach(kind)}({', '.join(f'{name}={self.said(of, depth)}' for name, of in held.items())})"

    # --- classes ----------------------------------------------------------------------------------------------------

    def _class(self, kind: type, name: str) -> None:
        """Read a class: its bases, its fields and what else it holds; each of its methods is kept by a name of its
        own."""
        lines = [self.said(base) for base in kind.__bases__]
        for field in getattr(kind, "__attrs_attrs__", ()):
            if not field.inherited:
                lines.append(f"{field.name} {self.said((field.default, field.validator, field.converter))}")
        if isinstance(kind, type(msgspec.Struct)):
            lines.append(self.said((kind.__struct_fields__, kind.__struct_defaults__)))
        own = {key: value for key, value in vars(kind).items() if _tells(key, value)}
        if issubclass(kind, Enum):
            own = {member.name: member.value for member in kind}
        for key, value in own.items():
            functions = _functions_of(value)
            if not functions:
                lines.append(f"{key} = {self.said(value)}")
            elif not any(each.__code__.co_filename.startswith(_GENERATED) for each in functions):
                lines.append(f"{key}: {type(value).__name__}")
                for each in functions:
                    self._method(each, f"{name}.{key}")
        self._keep(name, "\n".join(lines))

    def _method(self, function: FunctionType, name: str) -> None:
        """Read a function under the name by which the class has it, wherever it was written."""
        self._followed.add(function)
        self._waiting.append((function, name))

    # --- functions --------------------------------------------------------------------------------------------------

    def _function(self, function: FunctionType, name: str) -> None:
        file = function.__code__.co_filename
        if file not in self._texts:
            self._texts[file] = "".join(linecache.getlines(file))
        text, names = _syntax(function.__code__, self._texts[file])
        held = [self.said(function.__defaults__), self.said(function.__kwdefaults__)]
        for free, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            if free != "__class__":
                held.append(f"{free} = {self.said(_content(cell))}")
        self._keep(name, "\n".join([text, *held]))
        for used, attributes in names:
            if used in function.__globals__:
                self._global(function.__module__, used, function.__globals__[used], attributes)

    def _global(self, module: str, name: str, value: Any, attributes: set[str]) -> None:
        """Read what a name of a module stands for; of another module, what is asked for by attribute."""
        if isinstance(value, ModuleType):
            if self._owns(value.__name__):
                for attribute in sorted(attributes):
                    found = getattr(value, attribute, None)
                    if found is not None:
                        self._global(value.__name__, attribute, found, set())
        elif isinstance(value, FunctionType | type):
            self._reach(value)
        elif _tells(name, value):
            self._keep(f"{module}.{name}", self.said(value))


def _tells(key: str, value: Any) -> bool:
    """Return whether an attribute of a class, or a global, says what it does: not where a field is, nor what typing
    says."""
    if key in _OF_CLASSES or key.startswith(("__attrs_", "__struct_", "__msgspec")):
        return False
    return not isinstance(value, MemberDescriptorType) and _top(type(value).__module__) not in ("typing", "types")


def _functions_of(value: Any) -> list[FunctionType]:
    """Return the functions of a method, of a property or of what wraps one."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    elif isinstance(value, functools.cached_property):
        value = value.func
    elif isinstance(value, property):
        return [each for each in (value.fget, value.fset) if isinstance(each, FunctionType)]
    value = getattr(value, "__wrapped__", value) if not isinstance(value, type) else value
    return [value] if isinstance(value, FunctionType) else []


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


# --- texts ------------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class _Syntax:
    """A function of a text."""

    node: ast.AST

    @functools.cached_property
    def text(self) -> str:
        return _plainly(self.node)

    @functools.cached_property
    def used(self) -> dict[str, set[str]]:
        """The names that it reads, each with the attributes that it asks of it by name."""
        used: dict[str, set[str]] = {}
        for each in _run(self.node):
            if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
                used.setdefault(each.value.id, set()).add(each.attr)
            elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
                used.setdefault(each.id, set())
        return used


@functools.lru_cache(maxsize=512)
def _functions_in(text: str) -> dict[int, list[_Syntax]]:
    """Return the functions of a text by the line in which each begins, its decorators included."""
    found: dict[int, list[_Syntax]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            decorators = [each.lineno for each in getattr(node, "decorator_list", ())]
            found.setdefault(min([node.lineno, *decorators]), []).append(_Syntax(node))
    return found


def _syntax(code: CodeType, source: str) -> tuple[str, list[tuple[str, set[str]]]]:
    """Return a function as text, and the names that it reads; its instructions where there is no source.

    Several lambdas of one line cannot be told apart, so each stands for all of them.
    """
    found = _functions_in(source).get(code.co_firstlineno, [])
    found = [each for each in found if getattr(each.node, "name", "<lambda>") == code.co_name]
    if not found:
        constants = [constant for constant in code.co_consts if isinstance(constant, _PLAIN)]
        return f"{code.co_code.hex()} {code.co_names} {constants}", [(name, set()) for name in code.co_names]
    local = {*code.co_varnames, *code.co_freevars, *code.co_cellvars}
    used = [pair for each in found for pair in sorted(each.used.items()) if pair[0] not in local]
    return " ".join(each.text for each in found), used


_UNSEEN = frozenset({"annotation", "returns", "type_comment", "type_params", "ctx", "kind", "type_ignores"})


def _plainly(node: Any) -> str:
    """Return a syntax tree as text, without what does not run: annotations of functions and docstrings."""
    if isinstance(node, list):
        return f"[{' '.join(map(_plainly, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {name: value for name, value in ast.iter_fields(node) if name not in _UNSEEN}
    body = fields.get("body")
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and isinstance(body, list) and _is_text(body[0]):
        fields["body"] = body[1:]
    return f"({type(node).__name__} {' '.join(f'{name}={_plainly(value)}' for name, value in fields.items())})"


def _is_text(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
    return False


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a tree that run."""
    yield node
    for name, value in ast.iter_fields(node):
        if name not in _UNSEEN or name == "ctx":
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _run(child)


def _reached(name: str) -> FunctionType | type | None:
    """Return the function or class of that full name, if there is one."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except (ImportError, ValueError):
            continue
        for attribute in parts[cut:]:
            found = getattr(found, attribute, None)
        return found if isinstance(found, FunctionType | type) else None
    return None
