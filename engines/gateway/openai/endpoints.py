"""What the gateway serves, as data: the endpoints that vLLM and SGLang both have, or one of them under OpenAI's names.

A call of one of them waits for a place, holds prompt and outputs, and is charged; what only splits a text into tokens
is charged a part of its bytes.  Any other path is not served, so that a caller reaches no administration of a server.
"""

from typing import Literal

import attrs

Form = Literal["choices", "responses", "messages", "no stream"]
"""How a stream is written: events with `choices`, OpenAI's `response.*` events, or Anthropic's `message_*` events."""


@attrs.frozen
class Endpoint:
    """An endpoint.

    `inputs` are the fields that its prompt is made of; a call has one of `needs` at least.  `most` are the fields that
    declare how many tokens an answer may have, and the first of them is the one that a server is told; an endpoint
    without any generates nothing.  `most_default` is what the protocol says of a call that declares none.  `answers`
    are fields that ask for several answers to a prompt, `prompts` are the fields that may hold several prompts.  In
    `pairs`, each text of the second group of fields is computed together with one of the first.
    """

    path: str
    inputs: tuple[str, ...]
    needs: tuple[str, ...]
    most: tuple[str, ...] = ()
    most_default: int | None = None
    answers: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()
    pairs: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    form: Form = "no stream"
    refused: tuple[str, ...] = ()
    """Fields that are refused when they are set: work that would outlive its call, or whose size no gateway sees."""
    cheap: int = 1
    """So many tokens of its prompt cost as much as one that is computed."""

    @property
    def generates(self) -> bool:
        """Whether answers have output tokens."""
        return bool(self.most)

    @property
    def asks_usage(self) -> bool:
        """Whether a stream says its usage only when it is asked to; the other forms always say it."""
        return self.form == "choices"


CHAT = Endpoint(
    "/v1/chat/completions",
    inputs=("messages", "tools", "functions", "documents", "chat_template", "chat_template_kwargs"),
    needs=("messages",),
    # Every server knows the older name, and a limit that a server does not know is none.
    most=("max_tokens", "max_completion_tokens"),
    answers=("n", "best_of"),
    form="choices",
)
COMPLETIONS = Endpoint(
    "/v1/completions",
    inputs=("prompt", "prompt_embeds", "suffix"),
    needs=("prompt", "prompt_embeds"),
    most=("max_tokens",),
    most_default=16,
    answers=("n", "best_of"),
    prompts=("prompt", "prompt_embeds"),
    form="choices",
)
_RESPONSES = Endpoint(
    "/v1/responses",
    inputs=("input", "instructions", "tools"),
    needs=("input",),
    most=("max_output_tokens",),
    form="responses",
    refused=("background", "previous_response_id"),
)
_MESSAGES = Endpoint(
    "/v1/messages",
    inputs=("messages", "system", "tools"),
    needs=("messages",),
    most=("max_tokens",),
    form="messages",
)
_QUERIES = ("query", "queries", "text_1", "data_1")
_DOCUMENTS = ("documents", "items", "text_2", "data_2")


def _scoring(path: str) -> Endpoint:
    pairs = (_QUERIES, _DOCUMENTS)
    return Endpoint(path, inputs=(*_QUERIES, *_DOCUMENTS, "instruction"), needs=_DOCUMENTS, pairs=pairs)


def _pooling(path: str) -> Endpoint:
    return Endpoint(path, inputs=("input", "text", "messages"), needs=("input", "text", "messages"))


def _splitting(path: str, *inputs: str) -> Endpoint:
    return Endpoint(path, inputs=inputs, needs=inputs, cheap=16)


GATED: tuple[Endpoint, ...] = (
    CHAT,
    COMPLETIONS,
    _RESPONSES,
    _MESSAGES,
    *map(_pooling, ("/v1/embeddings", "/pooling", "/classify", "/v1/classify")),
    *map(_scoring, ("/v1/rerank", "/rerank", "/v2/rerank", "/v1/score", "/score")),
    _splitting("/tokenize", "prompt", "messages"),
    _splitting("/detokenize", "tokens"),
    _splitting("/v1/messages/count_tokens", "messages", "system", "tools"),
)
"""What passes the gate.  All of them are POST."""
MODELS = "/v1/models"
"""The models of all servers, or one of them by its name."""
BY_PATH = {each.path.removeprefix("/v1"): each for each in GATED} | {each.path: each for each in GATED}
"""The gated endpoints by their paths, also without `/v1`: a base URL is often given so."""
