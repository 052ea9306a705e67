"""Quotas: how many tokens callers may have over time (`policies.gates.quota`). Read `budgets` first.

`account` is an account that reserves what a call may come to before the call waits, and charges it when it has ended.
"""

from fairsched.engines.gateway.account.quota.account import QuotaAccount, under_quotas
from fairsched.engines.gateway.account.quota.budgets import Budgets, Reservation

__all__ = ["Budgets", "QuotaAccount", "Reservation", "under_quotas"]
