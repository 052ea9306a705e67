"""Whose request it is: the client that a request names, as one of ours."""

from collections.abc import Mapping

from fairsched.engines.serving_request import Clients
from fairsched.model.request import Client

NAME_MAX = 256


class Names:
    """Clients by what requests say; `configured` are those whose weights are set, the default client first."""

    def __init__(self, default_client: str, weights: Mapping[str, int], clients_max: int) -> None:
        self.clients = Clients()
        self._most = clients_max
        known = {default_client: weights.get(default_client, 1), **weights}
        self.configured = [Client(i, name, weight) for i, (name, weight) in enumerate(known.items())]
        for client in self.configured:
            self.clients.put(client)

    def named(self, said: object) -> tuple[Client, bool]:
        """The client of that name, and whether it is new.

        Who says nothing that is a name is the default client, as is who is one too many.
        """
        known = self.clients
        # Half a surrogate pair, which JSON can say, could be written neither to a log nor to a scrape.
        name = str(said)[:NAME_MAX].encode("utf-8", "replace").decode() if isinstance(said, str | int) else ""
        if name in known:
            return known.all[known.id(name)], False
        if not name or len(known.all) >= self._most + len(self.configured):
            return known.all[0], False
        client = Client(len(known.all), name)
        known.put(client)
        return client, True
