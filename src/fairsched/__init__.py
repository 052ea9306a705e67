"""Scheduling policies for LLM serving whose fairness and latency bounds are proved about the code that ships.

`fairsched.model` says what exists, `fairsched.policies` what is decided, `fairsched.verify` what is shown and
`fairsched.engines` what is done.  Importing `fairsched` itself loads none of them and nothing from outside the
standard library, so a plug-in can name it at no cost.
"""

from typing import TYPE_CHECKING

__version__: str
"""The installed distribution's version, looked up when first asked for."""

# Hidden from the type checker, for which a module with `__getattr__` has every attribute.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> str:
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import version

        return version(__name__)
