"""The part of OpenAI's protocol that the gateway reads and writes."""

from typing import TYPE_CHECKING

from fairsched.model.lazy import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.gateway.openai.answer import StreamReader, Usage, usage_of
    from fairsched.engines.gateway.openai.request import Call, CallerNames, CallError, read_call
    from fairsched.engines.gateway.openai.size import Tokenizer, sized
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "Call", "CallError", "CallerNames", "StreamReader", "Tokenizer", "Usage", "read_call", "sized", "usage_of"
]  # fmt: skip
