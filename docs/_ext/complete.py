"""Warn at the end of a build about what has no place in the site: a theorem, a policy, a router or a command."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cards import ALL
from sphinx.util import logging
from theorems import chosen, every

from fairsched.cli.run import COMMANDS

_DIRECTIVE = re.compile(r"^```\{([a-z-]+)\} *(.*)$", re.MULTILINE)
_PARTS = {"explanation", "policies"}
"""Where policies are described."""
_LOG = logging.getLogger(__name__)


def used(pages: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Every directive of the pages that has arguments, with these."""
    for page in pages:
        yield from _DIRECTIVE.findall(page.read_text(encoding="utf-8"))


def missing(pages: Sequence[Path]) -> Iterator[str]:
    """What the pages do not show, a line each."""
    directives = list(used(pages))
    shown = {theorem.id for name, families in directives if name == "theorems" for theorem in chosen(families.split())}
    yield from (f"theorem {each} stands on no page" for each in every() if each not in shown)
    told_of = "\n".join(page.read_text(encoding="utf-8") for page in pages if _PARTS.intersection(page.parts))
    yield from (f"policy {each} is on no page" for each in ALL if not re.search(rf"(?<![\w-]){each}(?![\w-])", told_of))
    told = {argument for name, argument in directives if name == "command"}
    yield from (f"command {command} is not described" for command in COMMANDS if command not in told)


def _check(app: Any, env: Any) -> None:
    for line in missing([Path(env.doc2path(page)) for page in env.found_docs]):
        _LOG.warning(line)


def setup(app: Any) -> dict[str, bool]:
    """Check when all pages are read."""
    app.connect("env-check-consistency", _check)
    return {"parallel_read_safe": True}
