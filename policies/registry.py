"""The policies that ship, by name: what the command line lists, and how it sets their parameters."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import attrs

from fairsched.policies.base import LocalPolicy, Router
from fairsched.policies.batching import BATCHINGS
from fairsched.policies.counter import CounterGate
from fairsched.policies.deficit import DeficitGate
from fairsched.policies.gate import Gate, OpenGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.order import Arrival, LongestPrefix, Order, ShortestPrompt
from fairsched.policies.router import JoinShortestQueue, PerClientRoundRobin, RoundRobin
