"""Calls of OpenAI's API as this server reads them: what is asked of the engine, or why that is refused.

A field that the engine has no part for is accepted at the value that changes nothing, and refused at any other, by its
name: an answer that ignores half of a call would be a wrong one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import msgspec

from fairsched.engines.gateway.openai import CallError
from fairsched.engines.server.text import Message, Tokenizer
from fairsched.engines.serving import Sampling

COMPLETION_TOKENS = 16
"""Output of a completion that names no most: OpenAI's default."""
CHOICES_MAX = 128
"""Outputs of a call: its prompts times `n`."""
STOPS_MAX = 16
"""Stop texts of a call."""
_INT64 = 1 << 63

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (0,),
    "top_p": (1,),
    "min_p": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "use_beam_search": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "reasoning_effort": ("none",),
}
"""Fields that the engine has no part for, and their values that change nothing (null is one for all)."""
_UNREAD = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"}
    | {"request_id", "priority"}
)
"""Fields that change no answer of any server."""
_ROLES = ("system", "developer", "user", "assistant", "tool")


class CodedError(CallError):
    """A refusal that programs know by OpenAI's code for it."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(status, message)
        self.code = code


@attrs.frozen
class Call:
    """What a call asks for: `n` outputs for each prompt, of at most so many tokens each, in `prompts`' order.

    Without a `seed` every output is drawn from its request's own noise.
    """

    prompts: tuple[tuple[int, ...], ...]
    max_tokens: tuple[int, ...]
    n: int
    temperature: float
    top_k: int
    seed: int | None
    stop_tokens: frozenset[int]
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool
    continuous_usage: bool
    chat: bool

    @property
    def choices(self) -> int:
        """How many outputs there are."""
        return len(self.prompts) * self.n

    def sampling(self, choice: int, seed: int) -> Sampling:
        """Return how the tokens of a choice are drawn; `seed` is the server's."""
        if self.seed is None:
            return Sampling(self.temperature, self.top_k, seed, self.stop_tokens)
        return Sampling(self.temperature, self.top_k, self.seed, self.stop_tokens, choice)


@attrs.frozen
class CallReader:
    """Reads calls for a model of so many tokens, of which `context_tokens` fit into a request with its output."""

    model: str
    tokenizer: Tokenizer
    vocabulary: int
    context_tokens: int
    stop_tokens: frozenset[int]

    def read(self, raw: bytes, *, chat: bool) -> Call:
        """Return the call in a body.  Raises `CallError` (400, or 404 for another model)."""
        try:
            document = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CallError(400, f"the body is not JSON: {error}") from None
        if not isinstance(document, dict):
            raise CallError(400, "the body is not a JSON object")
        try:
            return self._call({key: value for key, value in document.items() if value is not None}, chat)
        except ValueError as error:
            raise CallError(400, str(error)) from None

    def _call(self, document: dict[str, Any], chat: bool) -> Call:
        model = document.pop("model", self.model)
        if model != self.model:
            raise CodedError(404, f"there is no model {_shown(model)}; this server has {self.model}", "model_not_found")
        prompts = [self._chat(document)] if chat else self._prompts(document)
        n = _whole(document, "n", 1, most=CHOICES_MAX)
        if len(prompts) * n > CHOICES_MAX:
            raise ValueError(f"{len(prompts)} prompts times n = {n} are more than {CHOICES_MAX} outputs")
        options = _table(document, "stream_options", ("include_usage", "continuous_usage_stats"))
        stream = _flag(document, "stream")
        if options and not stream:
            raise ValueError("stream_options are for calls with stream = true")
        ignore_end = _flag(document, "ignore_eos")
        call = Call(
            prompts=tuple(map(tuple, prompts)),
            max_tokens=self._max_tokens(document, prompts, chat),
            n=n,
            temperature=_number(document, "temperature", 1.0, 0.0, 2.0),
            top_k=max(_whole(document, "top_k", 0, least=-1), 0),
            seed=_whole(document, "seed", 0, least=-_INT64, most=_INT64 - 1) if "seed" in document else None,
            stop_tokens=(frozenset() if ignore_end else self.stop_tokens)
            | self._ids(document.pop("stop_token_ids", [])),
            stops=_stops(document.pop("stop", [])),
            stream=stream,
            include_usage=_flag(options, "include_usage"),
            continuous_usage=_flag(options, "continuous_usage_stats"),
            chat=chat,
        )
        _check_rest(document)
        return call

    # --- prompts ----------------------------------------------------------------------------------------------------

    def _chat(self, document: dict[str, Any]) -> list[int]:
        messages = document.pop("messages", None)
        if not isinstance(messages, list) or not messages:
            raise ValueError("messages is a list of at least one message")
        return self._not_empty(self.tokenizer.encode_chat([_message(i, message) for i, message in enumerate(messages)]))

    def _prompts(self, document: dict[str, Any]) -> list[list[int]]:
        """Return the prompts of a completion: a text or a list of token ids, or a list of either."""
        prompt = document.pop("prompt", None)
        several = isinstance(prompt, list) and prompt and not all(type(token) is int for token in prompt)
        each = prompt if several else [prompt]
        if len(each) > CHOICES_MAX:
            raise ValueError(f"{len(each)} prompts are more than {CHOICES_MAX}")
        return [self._prompt(one) for one in each]

    def _prompt(self, prompt: object) -> list[int]:
        if isinstance(prompt, str):
            return self._not_empty(self.tokenizer.encode(prompt))
        if isinstance(prompt, list) and all(type(token) is int for token in prompt):
            self._ids(prompt)
            return self._not_empty(prompt)
        raise ValueError("prompt is a text, a list of token ids, or a list of either")

    def _not_empty(self, ids: list[int]) -> list[int]:
        if not ids:
            raise ValueError("the prompt has no token")
        return ids

    def _ids(self, ids: object) -> frozenset[int]:
        if not isinstance(ids, list) or not all(type(token) is int for token in ids):
            raise ValueError("token ids are whole numbers in a list")
        found = frozenset(ids)
        wrong = next((token for token in found if not 0 <= token < self.vocabulary), None)
        if wrong is not None:
            raise ValueError(f"token {wrong} is not in the vocabulary of {self.vocabulary}")
        return found

    def _max_tokens(self, document: dict[str, Any], prompts: Sequence[Sequence[int]], chat: bool) -> tuple[int, ...]:
        """Return each prompt's most output tokens: as declared, else what the context has left for a chat."""
        declared = [_whole(document, key, 1) for key in ("max_completion_tokens", "max_tokens") if key in document]
        found = []
        for prompt in prompts:
            left = self.context_tokens - len(prompt)
            most = declared[0] if declared else max(left, 1) if chat else max(min(COMPLETION_TOKENS, left), 1)
            if most > left:
                raise CodedError(
                    400,
                    f"a prompt of {len(prompt)} tokens and {most} output tokens are more than this server's "
                    f"{self.context_tokens} tokens of context",
                    "context_length_exceeded",
                )
            found.append(most)
        return tuple(found)


def _message(i: int, message: object) -> Message:
    if not isinstance(message, dict):
        raise ValueError(f"messages[{i}] is a table with role and content")
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise ValueError(f"messages[{i}].role is one of {', '.join(_ROLES)}, not {_shown(role)}")
    if message.get("tool_calls") or message.get("function_call"):
        raise ValueError(f"messages[{i}]: this server knows no tools")
    if isinstance(content, list):
        content = "".join(_part(i, part) for part in content)
    if not isinstance(content, str):
        raise ValueError(f"messages[{i}].content is a text, or a list of parts of type text")
    return {"role": role, "content": content}


def _part(i: int, part: object) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else part
    raise ValueError(f"messages[{i}].content: this server reads parts of type text, not {_shown(kind)}")


# --- fields ---------------------------------------------------------------------------------------------------------


def _shown(value: object) -> str:
    """Return a caller's value for a sentence, and no more than fits into one."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _whole(document: dict[str, Any], key: str, default: int, *, least: int = 1, most: int = _INT64 - 1) -> int:
    value = document.pop(key, default)
    if type(value) is not int or not least <= value <= most:
        limit = f"from {least} to {most}" if most < _INT64 - 1 else f"from {least}"
        raise ValueError(f"{key} is a whole number {limit}, not {_shown(value)}")
    return value


def _number(document: dict[str, Any], key: str, default: float, least: float, most: float) -> float:
    value = document.pop(key, default)
    if type(value) not in (int, float) or not least <= value <= most:
        raise ValueError(f"{key} is a number from {least:g} to {most:g}, not {_shown(value)}")
    return float(value)


def _flag(document: dict[str, Any], key: str) -> bool:
    value = document.pop(key, False)
    if not isinstance(value, bool):
        raise ValueError(f"{key} is true or false, not {_shown(value)}")
    return value


def _table(document: dict[str, Any], key: str, known: Sequence[str]) -> dict[str, Any]:
    value = document.pop(key, {})
    if not isinstance(value, dict) or not value.keys() <= set(known):
        raise ValueError(f"{key} is a table with {' and '.join(known)}, not {_shown(value)}")
    return {name: each for name, each in value.items() if each is not None}


def _stops(stop: object) -> tuple[str, ...]:
    several = [stop] if isinstance(stop, str) else stop
    if not isinstance(several, list) or not all(isinstance(text, str) and text for text in several):
        raise ValueError(f"stop is a text or a list of texts, none of them empty, not {_shown(stop)}")
    if len(several) > STOPS_MAX:
        raise ValueError(f"{len(several)} stop texts are more than {STOPS_MAX}")
    return tuple(several)


def _check_rest(document: Mapping[str, object]) -> None:
    """Raise `ValueError` for a field that was not read, unless it changes nothing."""
    for key, value in document.items():
        if key in _UNREAD:
            continue
        if key not in _NEUTRAL:
            raise ValueError(f"{_shown(key)} is no field that this server knows")
        if value not in _NEUTRAL[key] or isinstance(value, bool) != isinstance(_NEUTRAL[key][0], bool):
            raise ValueError(f"this server does not support {key} = {_shown(value)}; leave it out")
