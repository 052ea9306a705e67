"""The policies that ship, by name, with their parameters: what the command line lists and builds."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import attrs

from fairsched.policies.base import LocalPolicy, Router
from fairsched.policies.batching import BATCHINGS, Batching
from fairsched.policies.counter import CounterGate
from fairsched.policies.deficit import DeficitGate
from fairsched.policies.gate import Gate, OpenGate
from fairsched.policies.local import ComposedPolicy
from fairsched.policies.order import Arrival, LongestPrefix, Order, ShortestPrompt
from fairsched.policies.router import JoinShortestQueue, PerClientRoundRobin, RoundRobin
