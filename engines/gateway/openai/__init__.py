"""The protocol that callers and servers speak: endpoints, sizes of calls, streams and usage, errors.

Read `endpoints` first: what the gateway serves, as data.  `calls` reads a body, `streams` an answer while it passes,
`errors` says what a caller sees of a refusal.
"""

from fairsched.engines.gateway.openai.calls import ForwardedCall, has_prompt, read_call, shown, sized, with_fields
from fairsched.engines.gateway.openai.endpoints import BY_PATH, MODELS, Endpoint, Form
from fairsched.engines.gateway.openai.errors import INSUFFICIENT, CallError, error_document, error_event, said_error
from fairsched.engines.gateway.openai.streams import (
    StreamReader,
    UnreadableReader,
    Usage,
    WholeReader,
    unpacked,
    usage_of,
)

__all__ = [
    "BY_PATH", "INSUFFICIENT", "MODELS", "CallError", "Endpoint", "Form", "ForwardedCall", "StreamReader",
    "UnreadableReader", "Usage", "WholeReader", "error_document", "error_event", "has_prompt", "read_call",
    "said_error", "shown", "sized", "unpacked", "usage_of", "with_fields"
]  # fmt: skip
