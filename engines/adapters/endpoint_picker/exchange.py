"""One HTTP call as Envoy reports it: from its headers to the end of its answer.

The endpoint is named when the whole request is known, where Envoy sends the body; else with the headers, and the call
is counted by its length.  However the exchange ends, the picker learns it once.
"""

import logging
from collections.abc import Iterable
from typing import Any

from fairsched.engines.adapters.endpoint_picker import wire
from fairsched.engines.adapters.endpoint_picker.answer import PickedCall
from fairsched.engines.adapters.endpoint_picker.picker import Picker
from fairsched.engines.gateway import CallError, has_prompt, sized

_log = logging.getLogger("fairsched.endpoint_picker")


class Exchange:
    """Takes Envoy's messages of one call in order, and says what to answer to each.

    `over`: nothing more is to be said.
    """

    def __init__(self, picker: Picker) -> None:
        self.over = False
        self._picker = picker
        self._config = picker.config
        self._request_mode = picker.config.request_body_mode
        self._response_mode = picker.config.response_body_mode
        self._headers: dict[str, str] = {}
        self._subset: list[str] | None = None
        self._body = bytearray()
        self._sent = False
        self._call: PickedCall | None = None

    async def answers(self, request: Any) -> Iterable[wire.Response]:
        """Return what to answer to a message; waits for a place where one is needed."""
        match request.WhichOneof("request"):
            case "request_headers":
                return await self._request_headers(request)
            case "request_body":
                return await self._request_body(request.request_body)
            case "request_trailers":
                said = [] if self._sent else await self._pick(ends=False)
                return [*said, wire.request_trailers()] if not self.over else said
            case "response_headers":
                self._learn_modes(request)
                if self._call is not None and (served := wire.served_by(request)):
                    self._call.served(served)
                return self._response_headers(request.response_headers)
            case "response_body":
                return self._response_body(request.response_body)
            case "response_trailers":
                self._end()
                return [wire.response_trailers()]
        return []

    def close(self) -> None:
        """End the exchange, whether or not the answer was whole; of one that is not seen only its end is known."""
        if self._call is not None:
            if self._response_mode == "none" and self._call.status:
                self._end()
            self._call.close()

    def _learn_modes(self, request: Any) -> None:
        """Read how bodies are sent, which the first message says: an answer's headers where Envoy itself refused."""
        said_request, said_response = wire.modes_of(request)
        self._request_mode = said_request or self._request_mode
        self._response_mode = said_response or self._response_mode

    # --- the request ------------------------------------------------------------------------------------------------

    async def _request_headers(self, request: Any) -> Iterable[wire.Response]:
        self._headers = wire.headers_of(request.request_headers)
        self._subset = wire.subset_of(request)
        self._learn_modes(request)
        if request.request_headers.end_of_stream or self._request_mode in ("none", "streamed"):
            self._request_mode = "none" if self._request_mode != "streamed" else "streamed"
            return await self._pick(ends=True)
        return [wire.request_headers()] if self._request_mode == "buffered" else []

    async def _request_body(self, body: Any) -> Iterable[wire.Response]:
        if self._request_mode == "streamed":
            return [wire.request_body()]
        self._body += body.body
        if len(self._body) > self._config.limits.body_bytes:
            return self._refused(CallError(413, f"the body is longer than {self._config.limits.body_bytes} bytes"))
        # A buffered body comes once, also where trailers follow it or Envoy could not hold all of it.
        whole = body.end_of_stream or self._request_mode == "buffered"
        return await self._pick(ends=True) if whole and not self._sent else []

    async def _pick(self, *, ends: bool) -> list[wire.Response]:
        """Name a place for the call, and where else it may go; `ends`: its body is whole, and no trailers come."""
        try:
            endpoint = await self._place()
        except CallError as error:
            return self._refused(error)
        self._sent = True
        body, self._body = bytes(self._body), bytearray()
        match self._request_mode:
            case "buffered":
                return [wire.request_body(endpoint)]
            case "full-duplex-streamed":
                return [wire.request_headers(endpoint), *wire.request_chunks(body, ends=ends)]
        return [wire.request_headers(endpoint)]

    async def _place(self) -> str:
        said = (self._headers.get(header.lower(), "").strip() for header in self._config.headers)
        client = next(filter(None, said), "")
        prompt, output, most = self._size()
        try:
            picked = await self._picker.pick(client, prompt, output, self._subset, most)
        except CallError:
            raise
        except Exception:
            _log.exception("a call of %r could not be queued, and goes around the policy", client)
            return self._picker.around(self._subset)
        self._call = PickedCall(self._picker, picked, output)
        return ",".join((picked.endpoint, *picked.fallbacks))

    def _size(self) -> tuple[int, int, int]:
        """Return tokens of prompt and output, and what the prompt may be at most, if that is known.  Raises `CallError`
        (400) for a call that says nonsense."""
        config = self._config
        if self._headers.get(":method") in ("GET", "HEAD", "OPTIONS"):
            return 1, 1, 0
        body = bytes(self._body)
        if has_prompt(body):
            try:
                size = sized(body, config.bytes_per_token, config.default_output_tokens)
            except ValueError as error:
                raise CallError(400, str(error)) from None
            return size.prompt_tokens, size.max_output_tokens, size.prompt_tokens_max
        length = self._headers.get("content-length", "")
        count = len(body) or (int(length) if length.isdecimal() and len(length) < 12 else 0)
        return max(-(-count // config.bytes_per_token), 1), config.default_output_tokens, 0

    def _refused(self, error: CallError) -> list[wire.Response]:
        self.over = True
        return [wire.refusal(error)]

    # --- the answer -------------------------------------------------------------------------------------------------

    def _response_headers(self, message: Any) -> list[wire.Response]:
        headers = wire.headers_of(message)
        status = headers.get(":status", "")
        if self._call is not None:
            self._call.begin(int(status) if status.isdecimal() else 0, headers)
        if message.end_of_stream:
            self._end()
        return [wire.response_headers()]

    def _response_body(self, message: Any) -> list[wire.Response]:
        if self._call is not None:
            self._call.read(message.body)
        if message.end_of_stream:
            self._end()
        streamed = self._response_mode == "full-duplex-streamed"
        return [wire.response_body(message.body, ends=message.end_of_stream, streamed=streamed)]

    def _end(self) -> None:
        if self._call is not None:
            self._call.finish(seen=self._response_mode != "none")
