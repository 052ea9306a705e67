"""Answers as OpenAI's API has them: whole documents, and the chunks of a stream."""

import time
from collections.abc import Sequence
from typing import Literal
from uuid import uuid4

import attrs
import msgspec

from fairsched.engines.server.calls import CompletionCall
from fairsched.engines.serving import Document

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
