"""Whose account a call is charged to: its client's, its program's, or its session's.

A client that runs many agents is one client, and beside it are others; but among the programs of one client the one
with the most agents gets most, and where each session is a client of its own (as routers do that tell flows apart by a
session's id) it does so beside other clients, too.

With `program` each program is a client in the group of the client that runs it.  Under the hierarchical gate its calls
are then one account, below that of its client, and all theorems about siblings and groups hold as they are: no program
gains by agents (H-siblings), and no client gains by programs (H-split).
"""

from typing import Literal, get_args

from msgspec.structs import replace

from fairsched.engines.workloads.errors import WorkloadError
from fairsched.model.request import GROUPS_MAX, Client, Groups, Job, Workload

Account = Literal["client", "program", "session"]
"""Whose account a call is charged to."""
ACCOUNTS: tuple[Account, ...] = get_args(Account)
NO_PROGRAM = "-"
"""What stands for the program of calls that name none: those of one client are one account."""


def with_account(workload: Workload, account: Account) -> Workload:
    """Return the workload with an account of its own for each client, program or session.

    A program is in the group of its client, which has the client's weight; programs have equal weights.  A session is
    in no group and has the weight of its client.  Calls of a client that name no program (no session) have one account
    together.  Raises `WorkloadError` for a client that is too deep in groups already.
    """
    if account == "client":
        return workload
    accounts: dict[tuple[int, str | None], Client] = {}
    jobs = tuple([_moved(job, workload.clients[job.request.client], account, accounts) for job in workload.jobs])
    clients = tuple(accounts.values())
    note = f"Each {account} has an account of its own: {len(clients):,} of {len(workload.clients):,} clients."
    return replace(workload, jobs=jobs, clients=clients, notes=(*workload.notes, note))


def _moved(job: Job, client: Client, account: Account, accounts: dict[tuple[int, str | None], Client]) -> Job:
    label = job.request.session if account == "session" else None if job.program is None else str(job.program)
    key = client.id, label
    if key not in accounts:
        name = f"{client.name}/{NO_PROGRAM if label is None else label}"
        groups = _groups(client) if account == "program" else ()
        accounts[key] = Client(len(accounts), name, 1 if groups else client.weight, groups)
    return replace(job, request=replace(job.request, client=accounts[key].id))


def _groups(client: Client) -> Groups:
    """Return the groups of a client's programs: its own and, inside these, itself."""
    if len(client.place) >= GROUPS_MAX:
        raise WorkloadError(
            f"client {client.name!r} is in {len(client.place)} groups, so its programs would be in "
            f"{len(client.place) + 1}: at most {GROUPS_MAX}"
        )
    own = client.name.removeprefix("/".join([name for name, _ in client.place] + [""]))
    return (*client.place, (own, client.weight))
