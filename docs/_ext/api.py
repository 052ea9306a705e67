"""Write the pages of the Python reference before a build: one for each public function and class of `fairsched`, and a
table of what each folder exports.  They are not committed."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from cards import ALL
from markdown import escaped, sentence, table

import fairsched
from fairsched.policies.base import ClusterPolicy, LocalPolicy

FOLDER = "reference/api"
PACKAGES = ("model", "policies", "verify", "engines")


def pages() -> Iterator[tuple[str, str]]:
    """Every page: its name and its Markdown."""
    public = {name: _value(name) for name in sorted(fairsched.__all__, key=str.lower)}
    rooms = {name: value for name, value in public.items() if isinstance(value, ModuleType)}
    own = {name: value for name, value in public.items() if name not in rooms and not _is_policy(value)}
    for name, value in own.items():
        yield _file(name, value), _page(name, value)
    yield "packages", "# Folders\n\nWhat each folder of the library exports.\n\n" + "\n\n".join(_packages())
    yield "index", _index(own, rooms)


def _is_policy(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, LocalPolicy | ClusterPolicy)


def _place(policy: Any, rooms: dict[str, Any]) -> str:
    """How a policy or router is written: `fs.DLPM`, or behind its room's name."""
    name = type(policy).__name__
    room = next((f"{room}." for room in ("printed", *rooms) if hasattr(rooms[room], name)), "")
    return f"fs.{name if name in fairsched.__all__ else room + name}"


def _index(own: dict[str, Any], rooms: dict[str, Any]) -> str:
    functions = {name: value for name, value in own.items() if not inspect.isclass(value)}
    values = {name: value for name, value in own.items() if name not in functions}
    rows = [(f"`{_place(policy, rooms)}`", f"`{name}`", _first(type(policy))) for name, policy in ALL.items()]
    return "\n\n".join(
        (
            "# Python",
            "```python\nimport fairsched as fs\n```",
            "A name is loaded when it is first used: importing `fairsched` loads no solver and no torch. Functions"
            "\ntake policies and routers as values or by name.",
            table(("function", "does"), [(_link(name, value), _first(value)) for name, value in functions.items()]),
            table(("value", "is"), [(_link(name, value), _first(value)) for name, value in values.items()]),
            table(("room", "has"), [(f"`fs.{name}`", _first(value)) for name, value in rooms.items()]),
            table(("policy or router", "name", "does"), rows),
            "```{toctree}\n:hidden:\n\n"
            + "\n".join([*(_file(name, value) for name, value in own.items()), "packages"])
            + "\n```",
        )
    )


def _link(name: str, value: Any) -> str:
    return f"[`fs.{name}`]({_file(name, value)}.md)"


def _first(value: Any) -> str:
    """The first sentence of a docstring."""
    paragraph = (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")
    return escaped(sentence(paragraph.split(".  ")[0].split(". ")[0]))


def _value(name: str) -> Any:
    if name == "verify":  # a folder that can be called
        return importlib.import_module("fairsched.verify.report").verify
    return getattr(fairsched, name)


def _file(name: str, value: Any) -> str:
    """The name of its page: `fs.Audit` and `fs.audit` are two also where a file system ignores case."""
    return f"type-{name.lower()}" if inspect.isclass(value) else name


def _page(name: str, value: Any) -> str:
    if value.__name__ == name and not isinstance(getattr(fairsched, name), ModuleType):
        where = f"fairsched.{name}"
    else:
        where = f"{value.__module__}.{value.__qualname__}"
    directive = "autoclass" if inspect.isclass(value) else "autofunction"
    options = "\n   :members:" if inspect.isclass(value) else ""
    if inspect.isclass(value) and value.__base__.__module__.startswith("fairsched."):
        options += "\n   :inherited-members:"
    return f"# fs.{name}\n\n```{{eval-rst}}\n.. {directive}:: {where}{options}\n```\n"


def _packages() -> Iterator[str]:
    for package in PACKAGES:
        found = importlib.import_module(f"fairsched.{package}")
        yield f"## fairsched.{package}"
        for module in [found, *_below(found)]:
            names = [name for name in getattr(module, "__all__", ()) if not name.startswith("_")]
            if module is not found:
                yield f"**{module.__name__}**"
            yield escaped(sentence((inspect.getdoc(module) or "").split("\n\n")[0]))
            yield ", ".join(f"`{name}`" for name in names)


def _below(package: ModuleType) -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if found.ispkg:
            yield importlib.import_module(found.name)


def _write(app: Any) -> None:
    folder = Path(app.srcdir) / FOLDER
    folder.mkdir(exist_ok=True)
    made = dict(pages())
    for stale in set(folder.glob("*.md")) - {folder / f"{name}.md" for name in made}:
        stale.unlink()
    for name, text in made.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Write the pages before Sphinx looks for them."""
    app.connect("builder-inited", _write)
    return {"parallel_read_safe": True}
