"""How many tokens a call in OpenAI's format may come to, before it is computed.

A prompt's tokens are estimated from its text: the bytes of `messages` or `prompt`, `tools` and `functions` as compact
JSON in UTF-8, divided by `bytes_per_token` and rounded up; a list of token ids counts as it is.  No token of a
byte-level vocabulary is shorter than a byte, so the truth is at most `bytes_per_token` times the estimate (for text: an
image's tokens are not in the text).  A `Tokenizer` that is given counts instead.

The output is what the caller declares at most, times `n`, for each of its prompts.
"""

from collections.abc import Callable, Mapping

import attrs
import msgspec

from fairsched.model.request import TOKENS_MAX

Tokenizer = Callable[[str], int]
"""How many tokens a text has."""

_PROMPT_KEYS = ("messages", "prompt", "tools", "functions", "suffix")
_MOST_KEYS = ("max_completion_tokens", "max_tokens")


@attrs.frozen
class Size:
    """Tokens of a call; `declared` is False where the caller named no most, and the default stands."""

    prompt_tokens: int
    max_output_tokens: int
    declared: bool


def sized(
    document: Mapping[str, object],
    bytes_per_token: int,
    default_output_tokens: int,
    tokenizer: Tokenizer | None = None,
) -> Size:
    """Return the size of a call.  O(bytes).  Raises `ValueError`, with a sentence for the caller, for what is none."""
    if not document.get("messages") and not document.get("prompt"):
        raise ValueError("messages or prompt is missing")
    n = max(_whole(document, "n", 1), _whole(document, "best_of", 1))
    declared = [_whole(document, key, 1) for key in _MOST_KEYS if document.get(key) is not None]
    tokens = _prompt_tokens(document, bytes_per_token, tokenizer)
    output = max(declared or [default_output_tokens]) * n * _prompts(document.get("prompt"))
    for what, count in (("prompt", tokens), ("output", output)):
        if count > TOKENS_MAX:
            raise ValueError(f"{count} {what} tokens are over {TOKENS_MAX}")
    return Size(tokens, output, bool(declared))


def _whole(document: Mapping[str, object], key: str, default: int) -> int:
    value = document.get(key)
    if value is None:
        return default
    if type(value) is not int or not 1 <= value <= TOKENS_MAX:
        raise ValueError(f"{key} is a whole number from 1, not {str(value)[:40]!r}")
    return value


def _prompts(prompt: object) -> int:
    """Return how many prompts a completion has: a list of texts, or of lists of token ids, is one each."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return len(prompt)
    return 1


def _prompt_tokens(document: Mapping[str, object], bytes_per_token: int, tokenizer: Tokenizer | None) -> int:
    counted = 0
    texts = []
    for key in _PROMPT_KEYS:
        value = document.get(key)
        if not value:
            continue
        if key == "prompt" and isinstance(value, list) and all(isinstance(each, int) for each in value):
            counted += len(value)
        elif key == "prompt" and isinstance(value, list) and all(isinstance(each, list) for each in value):
            counted += sum(len(each) for each in value)
        else:
            texts.append(value if isinstance(value, str) else msgspec.json.encode(value).decode())
    if tokenizer is not None:
        counted += sum(tokenizer(text) for text in texts)
    else:
        counted += -(-sum(len(text.encode()) for text in texts) // bytes_per_token)
    return max(counted, 1)
