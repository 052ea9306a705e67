"""A log as a workload: what was asked for, to be tried under other policies (`fairsched compare --trace`).

An access log has lengths and times, and no contents: no two prompts share a prefix.  Requests without an output never
ran as far as anybody knows, and are left out.
"""

import numpy as np

from fairsched.engines.audit.access_log import AccessLog
from fairsched.engines.audit.values import UNKNOWN
from fairsched.model.request import Client, Prompt, Request
from fairsched.model.workload import Job, Workload


def workload_of_log(log: AccessLog) -> Workload:
    """The log's requests in order of arrival, from time 0.

    What the log does not say of the most that a request asked for is the largest output in it.
    """
    kept = np.flatnonzero((log.output > 0) & (log.served_ns != UNKNOWN))
    origin = int(log.arrival_ns[kept].min(initial=np.iinfo(np.int64).max))
    longest = int(log.output[kept].max(initial=1))
    known = np.unique(log.client[kept]).tolist()
    clients = tuple(Client(i, log.clients[client]) for i, client in enumerate(known))
    number = {client: i for i, client in enumerate(known)}
    columns = (log.client, log.arrival_ns, log.prompt, log.output, log.most)
    rows = zip(*(column[kept].tolist() for column in columns), strict=True)
    jobs = tuple(
        Job(
            Request(
                id=i,
                client=number[client],
                arrival_ns=arrival - origin,
                prompt=Prompt(tokens=max(prompt, 1)),
                max_output_tokens=max(most, output) if most != UNKNOWN else longest,
            ),
            output_tokens=output,
        )
        for i, (client, arrival, prompt, output, most) in enumerate(rows)
    )
    notes = ["Prompts have no contents in an access log: none shares a prefix with another."]
    left = len(log.client) - len(kept)
    if left:
        notes.append(f"Requests without an output, which are left out: {left:,}.")
    if bool((log.most[kept] == UNKNOWN).any()):
        notes.append(f"max_output_tokens is {longest:,}, the largest output, where the log does not say it.")
    return Workload(log.path.name, jobs, clients, tuple(notes))
