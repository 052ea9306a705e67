"""A server of OpenAI's API over our own engine: `fairsched serve`. Read `app` first."""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.server.app import Access, ApiServer
    from fairsched.engines.server.backend import Backend, ExecutorMaker
    from fairsched.engines.server.calls import CallReader
    from fairsched.engines.server.process import address, listening, run
    from fairsched.engines.server.text import tokenizer_of
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "Access", "ApiServer", "Backend", "CallReader", "ExecutorMaker", "address", "listening", "run", "tokenizer_of"
]  # fmt: skip
