"""Whose request it is: the client that a request of vLLM names, as one of ours."""

from collections.abc import Mapping

from fairsched.engines.inside import names
from fairsched.engines.vllm.protocol import VllmRequest
from fairsched.engines.vllm.settings import Settings
from fairsched.model.request import Client


class Names(names.Names):
    """Clients by what `vllm_xargs` (`SamplingParams.extra_args`) of a request says under `client_key`."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.default_client, settings.clients, settings.clients_max)
        self._key = settings.client_key

    def of(self, request: VllmRequest) -> tuple[Client, bool]:
        """The request's client, and whether it is new."""
        extra = getattr(request.sampling_params, "extra_args", None)
        return self.named(extra.get(self._key) if isinstance(extra, Mapping) else None)
