"""Envoy's messages, as the endpoint picker protocol uses them: what is read of them, and the answers that there are.

Source: Envoy's `ext_proc/v3`, and the Gateway API Inference Extension, proposal 004 (endpoint picker protocol, 1.0.0).
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from google.protobuf.struct_pb2 import Struct

from fairsched.engines.adapters.endpoint_picker.config import BodyMode
from fairsched.engines.gateway import CallError, error_document

DESTINATION = "x-gateway-destination-endpoint"
SUBSET = "x-gateway-destination-endpoint-subset"
SERVED = "x-gateway-destination-endpoint-served"
_CHUNK_BYTES = 60_000
"""Envoy takes at most 64 KiB of a streamed body at a time."""
_MODES: dict[int, BodyMode] = {0: "none", 1: "streamed", 2: "buffered", 3: "buffered", 4: "full-duplex-streamed"}

Response = Any
"""A `ProcessingResponse`."""


def headers_of(message: Any) -> dict[str, str]:
    """Return the headers of a message, in lower case."""
    return {
        header.key.lower(): header.raw_value.decode("latin-1") if header.raw_value else header.value
        for header in message.headers.headers
    }


def modes_of(request: Any) -> tuple[BodyMode | None, BodyMode | None]:
    """Converse until something fails or the actor knows nothing of this handle any more."""
    if not request.HasField("protocol_config"):
        return None, None
    said = request.protocol_config
    return _MODES.get(said.request_body_mode), _MODES.get(said.response_body_mode)


def subset_of(request: Any) -> list[str] | None:
    """Return the endpoints from which one must be picked, or None for the whole pool."""
    hint = request.metadata_context.filter_metadata.get("envoy.lb.subset_hint")
    if hint is None or SUBSET not in hint.fields:
        return None
    value = hint.fields[SUBSET]
    listed = [each.string_value for each in value.list_value.values] or value.string_value.split(",")
    return [each.strip() for each in listed if each.strip()]


def served_by(request: Any) -> str:
    """Return the endpoint that answered, where the proxy says it; empty where it does not."""
    said = request.metadata_context.filter_metadata.get("envoy.lb")
    return said.fields[SERVED].string_value.strip() if said is not None and SERVED in said.fields else ""


def _picked(endpoint: str | None) -> tuple[Any, Any]:
    """Return the picked endpoint, or several with commas, as the change of a header and as metadata, which must say the
    same; None for none."""
    if endpoint is None:
        return None, None
    header = base_pb2.HeaderValue(key=DESTINATION, raw_value=endpoint.encode())
    option = base_pb2.HeaderValueOption(
        header=header, append_action=base_pb2.HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD
    )
    change = ext_proc.CommonResponse(
        header_mutation=ext_proc.HeaderMutation(set_headers=[option]), clear_route_cache=True
    )
    metadata = Struct()
    metadata.update({"envoy.lb": {DESTINATION: endpoint}})
    return change, metadata


def request_headers(endpoint: str | None = None) -> Response:
    """Go on with the request's headers; to that endpoint."""
    change, metadata = _picked(endpoint)
    headers = ext_proc.HeadersResponse(response=change)
    return ext_proc.ProcessingResponse(request_headers=headers, dynamic_metadata=metadata)


def request_body(endpoint: str | None = None) -> Response:
    """Go on with the request's body as it is; to that endpoint."""
    change, metadata = _picked(endpoint)
    return ext_proc.ProcessingResponse(request_body=ext_proc.BodyResponse(response=change), dynamic_metadata=metadata)


def request_chunks(body: bytes, *, ends: bool) -> Iterator[Response]:
    """Yield a request's body, given back in pieces."""
    for start in range(0, max(len(body), 1), _CHUNK_BYTES):
        last = start + _CHUNK_BYTES >= len(body)
        response = _streamed(body[start : start + _CHUNK_BYTES], ends and last)
        yield ext_proc.ProcessingResponse(request_body=response)


def request_trailers() -> Response:
    """Go on with the request's trailers."""
    return ext_proc.ProcessingResponse(request_trailers=ext_proc.TrailersResponse())


def response_headers() -> Response:
    """Go on with the answer's headers."""
    return ext_proc.ProcessingResponse(response_headers=ext_proc.HeadersResponse())


def response_body(body: bytes, *, ends: bool, streamed: bool) -> Response:
    """Go on with a piece of the answer's body as it is."""
    response = _streamed(body, ends) if streamed else ext_proc.BodyResponse()
    return ext_proc.ProcessingResponse(response_body=response)


def response_trailers() -> Response:
    """Go on with the answer's trailers."""
    return ext_proc.ProcessingResponse(response_trailers=ext_proc.TrailersResponse())


def _streamed(body: bytes, ends: bool) -> Any:
    piece = ext_proc.StreamedBodyResponse(body=body, end_of_stream=ends)
    return ext_proc.BodyResponse(
        response=ext_proc.CommonResponse(body_mutation=ext_proc.BodyMutation(streamed_response=piece))
    )


def refusal(error: CallError) -> Response:
    """Answer the caller at once."""
    headers = {"content-type": "application/json"}
    if error.retry_after_seconds is not None:
        headers["retry-after"] = str(error.retry_after_seconds)
    options = [
        base_pb2.HeaderValueOption(header=base_pb2.HeaderValue(key=key, raw_value=value.encode()))
        for key, value in headers.items()
    ]
    response = ext_proc.ImmediateResponse(
        headers=ext_proc.HeaderMutation(set_headers=options),
        body=msgspec.json.encode(error_document(error.status, error.message)),
        details=f"fairsched_{error.status}",
    )
    response.status.code = error.status
    return ext_proc.ProcessingResponse(immediate_response=response)
