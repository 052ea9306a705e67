"""Hypothesis profiles under names of this library, for its own tests and for those of policy authors.

Importing this registers them; `settings.load_profile("fairsched-reduced")` in a `conftest.py` chooses one.
"""

from hypothesis import settings

REDUCED = "fairsched-reduced"
"""The same examples on every run, so that a change is what turns a test red."""
FULL = "fairsched-full"
"""Many, and fresh ones on every run: for the night."""

settings.register_profile(REDUCED, derandomize=True, deadline=None, print_blob=True)
settings.register_profile(FULL, max_examples=2_000, deadline=None, print_blob=True)
