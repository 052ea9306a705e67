"""Length predictors: what a policy is told of the length of an output, and how true that is.

A policy never sees the truth about an output, only `Request.predicted_output_tokens`, which the engine
fills when the request comes.  So predictors belong to the engines: a predictor is given jobs, which hold the truth,
and may learn while a run goes on; a serving system would put its model in the same place.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import numpy as np
from attrs.validators import ge, in_, le

from fairsched.engines.workloads import WorkloadError, unknown
from fairsched.model.request import Job


class Prediction(ABC):
    """A predictor in the middle of a run: mutable where it learns, so that each run has its own."""

    @abstractmethod
    def of(self, job: Job) -> int | None:
        """Return what is predicted of a request that comes now: 1 to its declared limit, None for nothing."""

    def finished(self, job: Job) -> None:  # noqa: B027  Most learn nothing.
        """Note that the request has finished, and its output is known."""


@attrs.frozen
class Predictor(ABC):
    """A predictor's parameters, from which each run makes its own."""

    name: ClassVar[str]

    def start(self) -> Prediction:
        """Return the predictor as it is before anything happened: itself if it learns nothing."""
        assert isinstance(self, Prediction)
        return self

    @property
    def title(self) -> str:
        """Its name with the parameters that are not the defaults, as a command line takes it."""
        own: Any = self
        changed = (field.name for field in attrs.fields(type(own)) if getattr(own, field.name) != field.default)
        values = ",".join(f"{name}={getattr(own, name)}" for name in changed)
        return f"{self.name}:{values}" if values else self.name


@attrs.frozen
class NoPredictor(Predictor, Prediction):
    """No predictions, also where a trace has some of its own."""

    name: ClassVar[str] = "none"

    def of(self, job: Job) -> int | None:
        return None


@attrs.frozen
class Oracle(Predictor, Prediction):
    """The true output length."""

    name: ClassVar[str] = "oracle"

    def of(self, job: Job) -> int | None:
        return job.output_tokens


@attrs.frozen
class Bucketed(Predictor, Prediction):
    """The upper end of the right bucket with probability `accuracy`, else of one of its neighbours, each as likely.

    With `end="lower"` it is the lower end, as TetriInfer prints it, which says too little even of the right bucket.
    That is what a classifier of this accuracy says (S3's and TRAIL's have ten buckets), and the right bucket never says
    too little.  Bucket k of `buckets` has the outputs of more than k and at most k + 1 times `width_tokens`; the last
    one also has those that are longer, and goes up to the declared limit.  TetriInfer's classifier is right in 58.9 %
    with buckets of 100 tokens, 74.9 % with 200 and 85 % with 400.  The draw depends on `seed` and the request's id
    alone, so that a request is predicted alike in every run.
    """

    name: ClassVar[str] = "bucketed"

    accuracy: float = attrs.field(default=0.75, validator=(ge(0), le(1)))
    buckets: int = attrs.field(default=10, validator=ge(1))
    width_tokens: int = attrs.field(default=100, validator=ge(1))
    seed: int = attrs.field(default=0, validator=ge(0))
    end: str = attrs.field(default="upper", validator=in_(("upper", "lower")))

    def of(self, job: Job) -> int | None:
        request = job.request
        right, last = min((job.output_tokens - 1) // self.width_tokens, self.buckets - 1), self.buckets - 1
        hits, up = np.random.default_rng((self.seed, request.id)).random(2)
        bucket = right
        if hits >= self.accuracy and last:
            bucket = right + (1 if up < 0.5 else -1)
            # At the ends there is one neighbour only.
            bucket = bucket if 0 <= bucket <= last else 2 * right - bucket
        if self.end == "lower":
            return min(max(bucket * self.width_tokens, 1), request.max_output_tokens)
        upper = (bucket + 1) * self.width_tokens
        return request.max_output_tokens if bucket == last else min(upper, request.max_output_tokens)


@attrs.frozen
class MeanOutput(Predictor):
    """The mean output of those that have finished and whose prompt has as many binary digits; of all that have finished
    where there are none such; nothing before any has."""

    name: ClassVar[str] = "history"

    def start(self) -> Prediction:
        return _Means()


_ALL = 0
"""The place of the mean of all, since every prompt has a digit."""


class _Means(Prediction):
    def __init__(self) -> None:
        self._sums: dict[int, tuple[int, int]] = {}

    def of(self, job: Job) -> int | None:
        request = job.request
        known = self._sums.get(request.prompt.tokens.bit_length()) or self._sums.get(_ALL)
        if known is None:
            return None
        tokens, count = known
        return max(1, min((2 * tokens + count) // (2 * count), request.max_output_tokens))

    def finished(self, job: Job) -> None:
        for place in (_ALL, job.request.prompt.tokens.bit_length()):
            tokens, count = self._sums.get(place, (0, 0))
            self._sums[place] = (tokens + job.output_tokens, count + 1)


PREDICTORS: dict[str, type[Predictor]] = {kind.name: kind for kind in (Oracle, Bucketed, MeanOutput, NoPredictor)}
"""Predictors by name."""


def predictor(name: str, params: Mapping[str, str] | None = None) -> Predictor:
    """Return the predictor of that name, with parameters set from text.

    Raises `WorkloadError` for a name or parameter that is not there, and for a value that it cannot have.
    """
    if name not in PREDICTORS:
        raise unknown("predictor", name, PREDICTORS)
    kind: Any = PREDICTORS[name]
    fields = {field.name: field for field in attrs.fields(kind)}
    values = {}
    for param, text in (params or {}).items():
        if param not in fields:
            raise unknown(f"parameter of predictor {name}", param, fields)
        default = fields[param].default
        try:
            values[param] = type(default)(text)
        except ValueError:
            number = "a number" if isinstance(default, float) else "a whole number"
            raise WorkloadError(f"{name}.{param} is {number}, not {text!r}") from None
    try:
        made: Predictor = kind(**values)
    except ValueError as error:
        raise WorkloadError(f"predictor {name}: {error}") from None
    return made
