"""Calls of OpenAI's API as this server reads them, and the answers that it writes.

A field that the engine has no part for is accepted at the value that changes nothing, and refused at any other, by its
name: an answer that ignores half of a call would be a wrong one.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from uuid import uuid4

import attrs
import msgspec

from fairsched.engines.gateway.openai import CallError, shown
from fairsched.engines.server.text import Message, Tokenizer
from fairsched.engines.serving import Document, Sampling
from fairsched.model.request import TOKENS_MAX

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
_READ = frozenset(
    {"model", "n", "stream", "stream_options", "ignore_eos", "max_completion_tokens", "max_tokens", "temperature"}
    | {"top_k", "seed", "stop", "stop_token_ids"}
)
_ROLES = ("system", "developer", "user", "assistant", "tool")


@attrs.frozen
class CompletionCall:
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

    def read(self, raw: bytes, *, chat: bool) -> CompletionCall:
        """Return the call in a body.  Raises `CallError` (400, or 404 for another model)."""
        try:
            document = {key: value for key, value in _document_of(raw).items() if value is not None}
            call = self._call(document, chat)
            _check_rest(document, ("messages",) if chat else ("prompt",))
            return call
        except (ValueError, RecursionError) as error:
            raise CallError(400, str(error)) from None

    def _call(self, document: dict[str, Any], chat: bool) -> CompletionCall:
        model = document.get("model", self.model)
        if model != self.model:
            message = f"there is no model {shown(model)}; this server has {self.model}"
            raise CallError(404, message, code="model_not_found")
        prompts = [self._chat(document)] if chat else self._prompts(document)
        n = _whole(document, "n", most=CHOICES_MAX) or 1
        if len(prompts) * n > CHOICES_MAX:
            raise ValueError(f"{len(prompts)} prompts times n = {n} are more than {CHOICES_MAX} outputs")
        options = _table(document, "stream_options", ("include_usage", "continuous_usage_stats"))
        stream = _flag(document, "stream")
        if options and not stream:
            raise ValueError("stream_options are for calls with stream = true")
        ignore_end = _flag(document, "ignore_eos")
        temperature = _number(document, "temperature", 0.0, 2.0)
        return CompletionCall(
            prompts=tuple(map(tuple, prompts)),
            max_tokens=self._max_tokens(document, prompts, chat),
            n=n,
            temperature=1.0 if temperature is None else temperature,
            top_k=max(_whole(document, "top_k", least=-1) or 0, 0),
            seed=_whole(document, "seed", least=-_INT64, most=_INT64 - 1),
            stop_tokens=(frozenset() if ignore_end else self.stop_tokens)
            | self._ids(document.get("stop_token_ids", [])),
            stops=_stops(document.get("stop", [])),
            stream=stream,
            include_usage=_flag(options, "include_usage"),
            continuous_usage=_flag(options, "continuous_usage_stats"),
            chat=chat,
        )

    # --- prompts ----------------------------------------------------------------------------------------------------

    def _chat(self, document: dict[str, Any]) -> list[int]:
        messages = document.get("messages")
        if not isinstance(messages, list) or not messages:
            raise ValueError("messages is a list of at least one message")
        return self._not_empty(self.tokenizer.encode_chat([_message(i, message) for i, message in enumerate(messages)]))

    def _prompts(self, document: dict[str, Any]) -> list[list[int]]:
        """Return the prompts of a completion: a text or a list of token ids, or a list of either."""
        prompt = document.get("prompt")
        each: list[object] = [prompt]
        if isinstance(prompt, list) and prompt and not all(type(token) is int for token in prompt):
            each = prompt
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
        declared = [_whole(document, key) for key in ("max_completion_tokens", "max_tokens") if key in document]
        found = []
        for prompt in prompts:
            left = self.context_tokens - len(prompt)
            most = (declared and declared[0]) or (max(left, 1) if chat else max(min(COMPLETION_TOKENS, left), 1))
            if most > left:
                message = (
                    f"a prompt of {len(prompt)} tokens and {most} output tokens are more than this server's "
                    f"{self.context_tokens} tokens of context"
                )
                raise CallError(400, message, code="context_length_exceeded")
            found.append(most)
        return tuple(found)


def _message(i: int, message: object) -> Message:
    if not isinstance(message, dict):
        raise ValueError(f"messages[{i}] is a table with role and content")
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise ValueError(f"messages[{i}].role is one of {', '.join(_ROLES)}, not {shown(role)}")
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
    raise ValueError(f"messages[{i}].content: this server reads parts of type text, not {shown(kind)}")


def _stops(stop: object) -> tuple[str, ...]:
    several = [stop] if isinstance(stop, str) else stop
    if not isinstance(several, list) or not all(isinstance(text, str) and text for text in several):
        raise ValueError(f"stop is a text or a list of texts, none of them empty, not {shown(stop)}")
    if len(several) > STOPS_MAX:
        raise ValueError(f"{len(several)} stop texts are more than {STOPS_MAX}")
    return tuple(several)


def _check_rest(document: Mapping[str, object], prompt: Sequence[str]) -> None:
    """Raise `ValueError` for a field that is not read, unless it changes nothing."""
    for key, value in document.items():
        if key in _READ or key in _UNREAD or key in prompt:
            continue
        if key not in _NEUTRAL:
            raise ValueError(f"{shown(key)} is no field that this server knows")
        if value not in _NEUTRAL[key] or isinstance(value, bool) != isinstance(_NEUTRAL[key][0], bool):
            raise ValueError(f"this server does not support {key} = {shown(value)}; leave it out")


FinishReason = Literal["stop", "length"]
DONE = b"data: [DONE]\n\n"

encode = msgspec.json.Encoder().encode


@attrs.define
class OutputChoice:
    """One output as it comes: its tokens, the text that is sure, and why it ended."""

    prompt_tokens: int
    tokens: int = 0
    cached_tokens: int = 0
    text: str = ""
    finish_reason: FinishReason | None = None


class AnswerWriter:
    """Writes the answer to one call, whose outputs are `choices`, in order."""

    def __init__(self, call: CompletionCall, model: str) -> None:
        self.choices = [OutputChoice(len(prompt)) for prompt in call.prompts for _ in range(call.n)]
        self._call = call
        self._model = model
        self._id = f"{'chatcmpl' if call.chat else 'cmpl'}-{uuid4().hex}"
        self._created = int(time.time())

    def _head(self, kind: str) -> Document:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def usage(self) -> Document:
        """Return what was computed so far; a prompt of several outputs counts once, as it does at other servers."""
        prompt = sum(choice.prompt_tokens for choice in self.choices[:: self._call.n])
        output = sum(choice.tokens for choice in self.choices)
        cached = sum(choice.cached_tokens for choice in self.choices[:: self._call.n])
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def whole(self) -> bytes:
        """Return the answer once every output has ended."""
        choices: list[Document] = []
        for i, choice in enumerate(self.choices):
            said: Document = (
                {"message": {"role": "assistant", "content": choice.text}} if self._call.chat else {"text": choice.text}
            )
            choices.append({"index": i, **said, "logprobs": None, "finish_reason": choice.finish_reason})
        kind = "chat.completion" if self._call.chat else "text_completion"
        return encode({**self._head(kind), "choices": choices, "usage": self.usage()})

    def begin(self) -> bytes:
        """Return the events before the first token: a chat's outputs say their role."""
        if not self._call.chat:
            return b""
        return b"".join(
            self._event([self._piece(i, {"role": "assistant", "content": ""}, None)]) for i in range(len(self.choices))
        )

    def token(self, i: int, text: str, finish_reason: FinishReason | None = None) -> bytes:
        """Return the event of one token of output `i`, which may complete no character; the last one says why it is."""
        said: Document = ({"content": text} if text else {}) if self._call.chat else {"text": text}
        return self._event([self._piece(i, said, finish_reason)])

    def end(self) -> bytes:
        """Return the events after all outputs have ended."""
        if not self._call.include_usage:
            return DONE
        return b"data: " + encode({**self._chunk([]), "usage": self.usage()}) + b"\n\n" + DONE

    def _piece(self, i: int, said: Document, finish_reason: FinishReason | None) -> Document:
        said = {"delta": said} if self._call.chat else said
        return {"index": i, **said, "logprobs": None, "finish_reason": finish_reason}

    def _chunk(self, choices: Sequence[Document]) -> Document:
        kind = "chat.completion.chunk" if self._call.chat else "text_completion"
        return {**self._head(kind), "choices": choices}

    def _event(self, choices: Sequence[Document]) -> bytes:
        document = self._chunk(choices)
        if self._call.include_usage:
            document["usage"] = self.usage() if self._call.continuous_usage else None
        return b"data: " + encode(document) + b"\n\n"


# --- fields ---------------------------------------------------------------------------------------------------------


class _Value:
    """A value at the top of a body.  The hook that makes one is called for every field, a second one of a name, too."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


def _document_of(raw: bytes) -> dict[str, object]:
    """Return the fields of a body, which come once each.  Raises `ValueError`, with a sentence for the caller."""
    count = 0

    def counted(_: type, value: object) -> _Value:
        nonlocal count
        count += 1
        return _Value(value)

    try:
        fields = msgspec.json.decode(raw, type=dict[str, _Value], dec_hook=counted)
    except msgspec.ValidationError:
        raise ValueError("the body is not a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the body is not JSON: {error}") from None
    if count != len(fields):
        raise ValueError("a field of the body comes twice")
    return {name: each.value for name, each in fields.items()}


def _whole(document: Mapping[str, Any], key: str, *, least: int = 1, most: int = TOKENS_MAX) -> int | None:
    """Return a whole number; None for a field that is not there or null."""
    value = document.get(key)
    if value is None:
        return None
    if type(value) is not int or not least <= value <= most:
        limit = f"from {least} to {most}" if most < TOKENS_MAX else f"from {least}"
        raise ValueError(f"{key} is a whole number {limit}, not {shown(value)}")
    return value


def _number(document: Mapping[str, Any], key: str, least: float, most: float) -> float | None:
    """Return a number; None for a field that is not there or null."""
    value = document.get(key)
    if value is None:
        return None
    if type(value) not in (int, float) or not least <= value <= most:
        raise ValueError(f"{key} is a number from {least:g} to {most:g}, not {shown(value)}")
    return float(value)


def _flag(document: Mapping[str, Any], key: str) -> bool:
    """Return a boolean; false for a field that is not there or null."""
    value = document.get(key)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{key} is true or false, not {shown(value)}")
    return bool(value)


def _table(document: Mapping[str, Any], key: str, known: Sequence[str] = ()) -> dict[str, Any]:
    """Return an object, with some of the `known` keys if there are any; empty for a field that is not there or null."""
    value = document.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict) or (known and not value.keys() <= set(known)):
        raise ValueError(f"{key} is an object{' with ' if known else ''}{' and '.join(known)}, not {shown(value)}")
    return value
