"""The torch worker: a Llama with paged keys and values. Read `executor` first, then `model`."""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.torch.executor import BABBLE, PAGE_TOKENS, TorchExecutor, TorchSpec
    from fairsched.engines.torch.model import SIZES, Llama, LlamaConfig
else:
    __getattr__ = lazy_exports(__name__)

__all__ = ["BABBLE", "PAGE_TOKENS", "SIZES", "Llama", "LlamaConfig", "TorchExecutor", "TorchSpec"]
