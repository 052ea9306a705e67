"""Whose request it is: the client that a request of vLLM names, as one of ours."""

from collections.abc import Mapping

from fairsched.engines.serving_request import Clients
from fairsched.engines.vllm.protocol import VllmRequest
from fairsched.engines.vllm.settings import Settings
from fairsched.model.request import Client

NAME_MAX = 256


class Names:
    """Clients by what `vllm_xargs` (`SamplingParams.extra_args`) of a request says under `client_key`."""

    def __init__(self, settings: Settings) -> None:
        self.clients = Clients()
        self._key = settings.client_key
        self._most = settings.clients_max
        weights = {settings.default_client: settings.clients.get(settings.default_client, 1), **settings.clients}
        self.configured = [Client(i, name, weight) for i, (name, weight) in enumerate(weights.items())]
        for client in self.configured:
            self.clients.put(client)

    def of(self, request: VllmRequest) -> tuple[Client, bool]:
        """The request's client, and whether it is new.  Who says nothing is the default client, as is who is one too
        many."""
        known = self.clients
        name = self._said(request)
        if name in known:
            return known.all[known.id(name)], False
        if not name or len(known.all) >= self._most + len(self.configured):
            return known.all[0], False
        client = Client(len(known.all), name)
        known.put(client)
        return client, True

    def _said(self, request: VllmRequest) -> str:
        extra = getattr(request.sampling_params, "extra_args", None)
        said = extra.get(self._key) if isinstance(extra, Mapping) else None
        return str(said)[:NAME_MAX] if isinstance(said, str | int) else ""
