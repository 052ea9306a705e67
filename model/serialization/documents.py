"""Text that people write, TOML or JSON, as values; what is wrong with it is said with line and column."""

import json
import re
import tomllib
from typing import Any, Literal

_MEANT = {
    "Invalid value": "no value stands here; a text needs quotes",
    "Cannot overwrite a value": "this key has a value already",
    "Illegal character '\\n'": "the text has no closing quote",
}


def parse(raw: bytes, kind: Literal["TOML", "JSON"]) -> Any:
    """Return the value of a document; raises `ValueError`, as in "line 2, column 7: ...", for one that is malformed."""
    text = raw.decode(errors="replace")
    try:
        raw.decode()
        return tomllib.loads(text) if kind == "TOML" else json.loads(text, parse_constant=str)
    except json.JSONDecodeError as error:
        line, column, what = error.lineno, error.colno, error.msg
    except tomllib.TOMLDecodeError as error:
        found = re.fullmatch(r"(.*?) \(at line (\d+), column (\d+)\)", str(error))
        what = found[1] if found else str(error).removesuffix(" (at end of document)")
        line, column = (int(found[2]), int(found[3])) if found else _position(text)
    except UnicodeDecodeError as error:
        (line, column), what = _position(raw[: error.start].decode()), "not UTF-8"
    except RecursionError:
        line, column, what = 1, 1, "nested too deeply"
    raise ValueError(f"line {line}, column {column}: {_MEANT.get(what, what[:1].lower() + what[1:])}")


def _position(before: str) -> tuple[int, int]:
    """Return line and column after a text."""
    return before.count("\n") + 1, len(before) - before.rfind("\n")
