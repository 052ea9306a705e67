"""A calibrated latency model as a JSON document: the coefficients, and facts of the engine that was measured.

Unknown keys, coefficients below zero and pieces out of order are refused, with the key in the message.
"""

from itertools import pairwise
from typing import Annotated, Any

import attrs
import msgspec
from msgspec import Meta, Struct

from fairsched.model.machine.kernels import Kernels
from fairsched.model.machine.model import NOT_VALIDATED, Accelerators, LatencyModel, Positive
from fairsched.model.pricing import CAPACITY_TOKENS_MAX
from fairsched.model.serialization import parse

SCHEMA = 1
"""Version of the document; it grows when the meaning of a key changes."""

_Natural = Annotated[int, Meta(ge=0)]


class EngineFacts(Struct, frozen=True, forbid_unknown_fields=True):
    """The engine that was measured, in words that say nothing of the machine's name.

    At most `batch_max` requests ran at once, and `chunk_max` tokens of prompts were computed in a step.  `clock` is
    "wall", or "thread" for processor time.  `dated` is the day of the measurement, if it was given.
    """

    model: str
    device: str
    dtype: str
    torch: str
    threads: _Natural
    page_tokens: Positive
    batch_max: Positive
    chunk_max: Positive
    policy: str
    clock: str
    dated: str | None = None


class _Piece(Struct, frozen=True, forbid_unknown_fields=True):
    batch_min: Positive
    constant_ns: Positive
    context_token_ns: _Natural
    request_ns: _Natural


class _Coefficients(Struct, frozen=True, forbid_unknown_fields=True):
    prefill_constant_ns: Positive
    prefill_token_ns: _Natural
    prefill_attention_ps: _Natural
    decode: Annotated[tuple[_Piece, ...], Meta(min_length=1)]


class ServerFacts(Struct, frozen=True, forbid_unknown_fields=True):
    """The server that a log was fitted to: how many workers, and the policy of each with its settings.

    `credible` says whether what it would do under another policy is worth simulating, `reasons` why not.
    """

    workers: Positive
    policy: str
    params: dict[str, str]
    requests: _Natural
    credible: bool
    reasons: tuple[str, ...] = ()


class PresetDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The document.  `engine` is None where the coefficients were written by hand, `gpus` where no worker's GPUs were
    counted, `deployment` where nothing says which, `server` where no log was fitted; documents from before there were
    these keys have one stage.  With `kernels` the coefficients are a summary of them."""

    fairsched_preset: int
    name: Annotated[str, Meta(min_length=1)]
    source: str
    kv_capacity_tokens: Annotated[int, Meta(ge=2, le=CAPACITY_TOKENS_MAX)]
    coefficients: _Coefficients
    gpus: Positive | None = None
    stages: Positive = 1
    deployment: Accelerators | None = None
    kernels: Kernels | None = None
    validated: str = NOT_VALIDATED
    engine: EngineFacts | None = None
    server: ServerFacts | None = None

    def __post_init__(self) -> None:
        if self.fairsched_preset != SCHEMA:
            raise ValueError(f"fairsched_preset is {self.fairsched_preset}, and this version reads {SCHEMA}")
        starts = [piece.batch_min for piece in self.coefficients.decode]
        if starts[0] != 1 or any(a >= b for a, b in pairwise(starts)):
            raise ValueError(f"the batch_min of decode pieces begin at 1 and rise, and are {starts}")

    @property
    def latency(self) -> LatencyModel:
        named: dict[str, Any] = {"name": self.name, "source": self.source}
        named["kv_capacity_tokens"] = self.kv_capacity_tokens
        named |= {"gpus": self.gpus, "stages": self.stages, "validated": self.validated}
        latency = msgspec.convert(msgspec.to_builtins(self.coefficients) | named, LatencyModel)
        return attrs.evolve(latency, deployment=self.deployment, kernels=self.kernels)


_NAMED = ("name", "source", "kv_capacity_tokens", "gpus", "stages", "deployment", "kernels", "validated")


def preset_document(
    latency: LatencyModel, engine: EngineFacts | None = None, server: ServerFacts | None = None
) -> PresetDocument:
    """Return the document of a model."""
    values: dict[str, Any] = attrs.asdict(latency)
    named = {key: values.pop(key) for key in _NAMED}
    coefficients = msgspec.convert(values, _Coefficients)
    return PresetDocument(SCHEMA, coefficients=coefficients, engine=engine, server=server, **named)


def encoded(document: PresetDocument) -> bytes:
    """Return the document as JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def decoded(raw: bytes) -> PresetDocument:
    """Return the document of JSON text.  Raises `ValueError`."""
    return from_builtins(parse(raw, "JSON"))


def as_builtins(latency: LatencyModel) -> dict[str, Any]:
    """Return the document of a model as a table of keys and values."""
    table: dict[str, Any] = msgspec.to_builtins(preset_document(latency))
    return table


def from_builtins(value: object) -> PresetDocument:
    """Return the document of a table of keys and values.  Raises `ValueError`."""
    try:
        return msgspec.convert(value, PresetDocument)
    except msgspec.ValidationError as error:
        raise ValueError(f"no latency preset: {str(error).replace('`', '')}") from None
