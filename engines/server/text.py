"""Text and tokens: a tokenizer by bytes or from a model's folder, chats as prompts, texts that end an output.

An output's text comes token by token.  A token may complete no character, and a text that could be the beginning of a
stop text is held back until it cannot be one.
"""

import codecs
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs

BYTES = 256
"""Tokens of the byte tokenizer: token i is byte i."""
TOKENIZER, TOKENIZER_CONFIG, CHAT_TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"

Message = Mapping[str, str]
"""A chat's message: its `role` and its `content`."""


class Decoder(Protocol):
    """The text of one output, as its tokens come."""

    def push(self, token: int) -> str:
        """Return the characters that this token completes."""

    def rest(self) -> str:
        """Return what is left at the end of the output."""


class Tokenizer(Protocol):
    """Text to tokens and back; `name` says what it is."""

    name: str

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a prompt."""

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of a chat, up to where the assistant's answer begins.

        Raises `ValueError`, with a sentence for the caller, for a chat that the model's template does not take.
        """

    def decoder(self) -> Decoder:
        """Return a decoder for a new output."""


def plain_chat(messages: Sequence[Message]) -> str:
    """Return a chat as text for a model that has no template of its own.

    >>> plain_chat([{"role": "user", "content": "Hi"}])
    'user: Hi\\nassistant:'
    """
    return "".join(f"{message['role']}: {message['content']}\n" for message in messages) + "assistant:"


# --- bytes ----------------------------------------------------------------------------------------------------------


class _ByteDecoder:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        # Tokens above the bytes belong to a vocabulary that this tokenizer does not know.
        return self._decoder.decode(bytes((token,))) if token < BYTES else self._decoder.decode(b"\xff")

    def rest(self) -> str:
        return self._decoder.decode(b"", final=True)


class ByteTokenizer:
    """Each byte of a text in UTF-8 is a token."""

    name = "bytes"

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        return self.encode(plain_chat(messages))

    def decoder(self) -> Decoder:
        return _ByteDecoder()


# --- a model's own --------------------------------------------------------------------------------------------------


class _FileDecoder:
    def __init__(self, tokenizer: Any) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def push(self, token: int) -> str:
        return self._stream.step(self._tokenizer, token) or ""

    def rest(self) -> str:
        return ""


class FileTokenizer:
    """The tokenizer of a model's folder: `tokenizer.json`, and the chat template that stands beside it."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer as Loaded

        self.name = TOKENIZER
        try:
            self._tokenizer = Loaded.from_file(str(folder / TOKENIZER))
        except Exception as error:  # It raises nothing narrower.
            raise ValueError(f"{folder / TOKENIZER}: cannot be read: {error}") from None
        self._chat = chat_template(folder)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        if self._chat is None:
            return self.encode(plain_chat(messages))
        ids: list[int] = self._tokenizer.encode(self._chat(messages), add_special_tokens=False).ids
        return ids

    def decoder(self) -> Decoder:
        return _FileDecoder(self._tokenizer)


def tokenizer_of(folder: Path | None) -> Tokenizer:
    """Return the tokenizer in a model's folder, or the one by bytes where there is none or `tokenizers` is missing."""
    if folder is None or not (folder / TOKENIZER).is_file():
        return ByteTokenizer()
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        return ByteTokenizer()
    return FileTokenizer(folder)


def chat_template(folder: Path) -> Callable[[Sequence[Message]], str] | None:
    """Return the model's own way to write a chat; None where it has none, or `jinja2` is missing.

    Raises `ValueError` for a template that cannot be read.
    """
    config: dict[str, Any] = {}
    if (folder / TOKENIZER_CONFIG).is_file():
        try:
            config = json.loads((folder / TOKENIZER_CONFIG).read_bytes())
        except ValueError as error:
            raise ValueError(f"{folder / TOKENIZER_CONFIG}: cannot be read: {error}") from None
    own = folder / CHAT_TEMPLATE
    source = own.read_text(encoding="utf-8") if own.is_file() else config.get("chat_template")
    if not isinstance(source, str):
        return None
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        return None

    def refuse(message: str) -> str:
        raise TemplateError(message)

    # A template comes with a model, from anywhere: it is run in a sandbox.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    try:
        template = environment.from_string(source)
    except TemplateError as error:
        raise ValueError(f"{folder}: the chat template cannot be read: {error}") from None
    marks = {name: _mark(config.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}

    def render(messages: Sequence[Message]) -> str:
        try:
            return template.render(messages=messages, add_generation_prompt=True, **marks)
        except Exception as error:  # A template is somebody's code.
            raise ValueError(f"the model's chat template does not take this chat: {error}") from None

    return render


def _mark(value: object) -> str:
    """Return a special token, which is a text or a table with one."""
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else ""


# --- the end --------------------------------------------------------------------------------------------------------


@attrs.define
class _Stop:
    """A stop text, and how many of its characters the output ends with (Knuth, Morris and Pratt)."""

    text: str
    back: list[int]
    matched: int = 0

    @classmethod
    def of(cls, text: str) -> "_Stop":
        back, length = [0] * len(text), 0
        for i in range(1, len(text)):
            while length and text[i] != text[length]:
                length = back[length - 1]
            length += text[i] == text[length]
            back[i] = length
        return cls(text, back)

    def take(self, character: str) -> bool:
        """Take the next character; return whether the output ends with the whole text now."""
        while self.matched and self.text[self.matched] != character:
            self.matched = self.back[self.matched - 1]
        self.matched += self.text[self.matched] == character
        return self.matched == len(self.text)


class OutputText:
    """The text of an output up to the first of its stop texts; `stopped` once that has come.

    >>> output = OutputText(ByteTokenizer(), ["END"])
    >>> [output.push(token) for token in b"a ENE END!"]
    ['a', ' ', '', '', 'EN', 'E ', '', '', '', '']
    >>> output.stopped
    True
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self.stopped = False
        self._decoder = tokenizer.decoder()
        self._stops = [_Stop.of(text) for text in stops]
        self._held = ""

    def push(self, token: int) -> str:
        """Return the text that is sure after this token.  O(characters x stop texts) in all."""
        return "" if self.stopped else self._sure(self._decoder.push(token))

    def rest(self) -> str:
        """Return what was held back, at the end of the output."""
        if self.stopped:
            return ""
        text = self._sure(self._decoder.rest())
        if not self.stopped:
            text, self._held = text + self._held, ""
        return text

    def _sure(self, text: str) -> str:
        if not self._stops:
            return text
        for i, character in enumerate(text):
            ended = [len(stop.text) for stop in self._stops if stop.take(character)]
            if ended:
                self.stopped = True
                return (self._held + text[: i + 1])[: -max(ended)]
        whole = self._held + text
        sure = len(whole) - max(stop.matched for stop in self._stops)
        self._held = whole[sure:]
        return whole[:sure]
