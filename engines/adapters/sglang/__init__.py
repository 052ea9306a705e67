"""The order of SGLang's queue, as a plugin. Read `shim` first."""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.adapters.sglang.shim import register
else:
    __getattr__ = lazy_exports(__name__)

__all__ = ["register"]
