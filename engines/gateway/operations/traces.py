"""OpenTelemetry: a span for each call, a child of its caller's and the parent of its server's.

Exporter and sampler are set by OpenTelemetry's own variables of the environment (`OTEL_EXPORTER_OTLP_ENDPOINT`,
`OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME` and others).  Attributes are named by its conventions where there is one.
"""

from collections.abc import Mapping

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from fairsched.engines.gateway.operations.calls import CallRecord

_CONTEXT = TraceContextTextMapPropagator()


class Tracing:
    """Spans of calls.  `provider` exports them; without one they go to an OTLP collector in batches, from a thread."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        if provider is None:
            # Only here, so that others may export in other ways.
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            provider = TracerProvider(resource=Resource.create({"service.name": "fairsched-gateway"}))
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._provider = provider
        self._tracer = provider.get_tracer("fairsched.gateway")

    def begin(self, call: CallRecord, headers: Mapping[str, str]) -> Span:
        """Begin the span of a call with these headers, in lower case; its server is told of it."""
        given = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        span = self._tracer.start_span(
            f"{call.method} {call.path}",
            _CONTEXT.extract(given),
            SpanKind.SERVER,
            {"http.request.method": call.method, "url.path": call.path, "fairsched.request_id": call.request_id},
        )
        _CONTEXT.inject(call.headers, set_span_in_context(span))
        return span

    def end(self, span: Span, call: CallRecord) -> None:
        """End it with what the call came to."""
        told: dict[str, AttributeValue | None] = {
            "fairsched.client": call.client,
            "fairsched.wait_seconds": call.waited_seconds,
            "fairsched.tries": call.tries,
            "server.address": call.server,
            "http.response.status_code": call.status,
            "gen_ai.usage.input_tokens": call.prompt_tokens,
            "gen_ai.usage.output_tokens": call.output_tokens,
        }
        span.set_attributes({name: value for name, value in told.items() if value is not None})
        if call.status >= 500 or not call.status:
            span.set_status(StatusCode.ERROR)
        span.end()

    def close(self) -> None:
        """Export what is left.  It may take as long as the exporter does."""
        self._provider.shutdown()
