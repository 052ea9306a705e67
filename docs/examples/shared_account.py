"""A client of an account that two gateways share."""

from fairsched.policies.gates.leased import Renewal, SharedAccount, Terms, left, renewed

terms, quanta = Terms(lease=4, holders=2), {"f": 4}
account = SharedAccount(terms)
account, answer = renewed(account, Renewal("a", terms, 1, 0, {}, ("f",), quanta), now_ns=0, ttl_ns=10)
assert answer.moved == {"f": 4}  # f waits at gateway a: the account gives a round, and a has it on lease
account, answer = renewed(account, Renewal("a", terms, 2, 1, {"f": -2}, (), quanta), now_ns=1, ttl_ns=10)
assert account.clients["f"].units == 0
assert account.holders["a"].balances == {"f": -2}
account = left(account, "a")
assert account.clients["f"].units == -2  # what f owes stays in the account
