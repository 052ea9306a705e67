"""The client of a call, and how many tokens it may come to: read from what a deployment is called with.

A call says it by the keyword arguments `client`, `prompt_tokens` and `max_output_tokens`.  What it does not say is
found in a body in OpenAI's format (a dict, or an object with such fields, as `ray.serve.llm` passes it), in headers, or
in a text; a client that is named nowhere is the multiplexed model, or `others`.  An extractor of the user's stands
instead of all of that.
"""

import importlib
from collections.abc import Callable, Mapping
from operator import index
from typing import Any, Protocol

import attrs
import msgspec

from fairsched.engines.adapters.ray_serve.settings import RouterSettings
from fairsched.engines.gateway import sized
from fairsched.engines.serving import OTHERS
from fairsched.model.request import TOKENS_MAX

_BODY_KEYS = (
    *("messages", "prompt", "tools", "functions", "suffix", "n", "best_of"),
    *("max_tokens", "max_completion_tokens", "user"),
)


class Pending(Protocol):
    """What an extractor is given: Ray Serve's `PendingRequest`."""

    args: list[object]
    kwargs: dict[str, Any]
    metadata: Any


@attrs.frozen
class Wanted:
    """A call: its client, its prompt's tokens by estimate, and the most that its output may have."""

    client: str
    prompt_tokens: int
    max_output_tokens: int

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.client, str) or not self.client:
            raise ValueError(f"a client is a name, not {self.client!r}")
        for what in ("prompt_tokens", "max_output_tokens"):
            value = getattr(self, what)
            if type(value) is not int or not 1 <= value <= TOKENS_MAX:
                raise ValueError(f"{what} is a whole number from 1, not {str(value)[:40]!r}")


def usage_said(output_tokens: object, computed_tokens: object) -> tuple[int, int | None]:
    """Return what a replica says that a call used, as whole numbers (numpy's, too).  Raises `ValueError` for what is
    none."""
    output = _count("output_tokens", output_tokens)
    return output, None if computed_tokens is None else _count("computed_prompt_tokens", computed_tokens)


def _count(what: str, value: object) -> int:
    try:
        count = index(value)  # type: ignore[arg-type]
    except TypeError:
        count = -1
    if isinstance(value, bool) or not 0 <= count <= TOKENS_MAX:
        raise ValueError(f"{what} is a whole number of tokens, not {str(value)[:40]!r}")
    return count


Extractor = Callable[[Any], Wanted]
"""From a `PendingRequest`; it raises `ValueError` for a call that says nothing usable."""


def extractor_of(settings: RouterSettings) -> Extractor:
    """Return the settings' extractor.  Raises `ValueError` where there is none of that name."""
    if settings.extractor is None:
        return lambda pending: wanted(pending, settings)
    module, colon, name = settings.extractor.partition(":")
    try:
        found = getattr(importlib.import_module(module), name) if colon else None
    except (ImportError, AttributeError) as error:
        raise ValueError(f"extractor: {error}") from None
    if not callable(found):
        raise ValueError(f"extractor is MODULE:FUNCTION, not {settings.extractor!r}")
    extractor: Extractor = found
    return extractor


def wanted(pending: Pending, settings: RouterSettings) -> Wanted:
    """Return the call as far as it says itself, and defaults.  Raises `ValueError` for a value that cannot be."""
    arguments = [*pending.args, *pending.kwargs.values()]
    body = next((found for found in map(_body, arguments) if found), {})
    headers = next((found for found in map(_headers, arguments) if found is not None), {})
    prompt, output = _tokens(body, headers, arguments, settings)
    said = pending.kwargs
    client = said.get("client") or headers.get(settings.client_header.lower()) or body.get("user")
    return Wanted(
        str(client or pending.metadata.multiplexed_model_id or OTHERS),
        said.get("prompt_tokens", prompt),
        said.get("max_output_tokens", output),
    )


def _tokens(
    body: Mapping[str, object], headers: Mapping[str, str], arguments: list[object], settings: RouterSettings
) -> tuple[int, int]:
    if body:
        size = sized(msgspec.json.encode(body), settings.bytes_per_token, settings.default_output_tokens)
        return size.prompt_tokens, size.max_output_tokens
    text = sum(len(each.encode()) for each in arguments if isinstance(each, str))
    length = headers.get("content-length", "")
    count = max(text, int(length) if length.isdecimal() else 0)
    return max(-(-count // settings.bytes_per_token), 1), settings.default_output_tokens


def _body(argument: object) -> dict[str, object]:
    """Return the fields of a call in OpenAI's format; empty for anything else."""
    if isinstance(argument, dict):
        found = {key: argument.get(key) for key in _BODY_KEYS}
    else:
        found = {key: _plain(getattr(argument, key, None)) for key in _BODY_KEYS}
    return found if found["messages"] or isinstance(found["prompt"], str | list) else {}


def _plain(value: Any) -> Any:
    """JSON values of an object of pydantic, in lists too."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def _headers(argument: object) -> dict[str, str] | None:
    """Headers in lower case, of an HTTP request (an ASGI scope) or an object that has some; None without any."""
    scope = getattr(argument, "asgi_scope", None)
    if isinstance(scope, Mapping):
        pairs = scope.get("headers", ())
        return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in pairs}
    headers = getattr(argument, "headers", None)
    if isinstance(headers, Mapping):
        return {str(name).lower(): str(value) for name, value in headers.items()}
    return None
