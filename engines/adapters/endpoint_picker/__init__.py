"""The endpoint picker behind Envoy and the Gateway API Inference Extension. Read `picker` first."""

from typing import TYPE_CHECKING

from fairsched.model import lazy_exports

if TYPE_CHECKING:
    from fairsched.engines.adapters.endpoint_picker.answer import PickedCall
    from fairsched.engines.adapters.endpoint_picker.config import (
        CallWindow,
        EndpointPool,
        PickerConfig,
        QueueLimits,
        QueueSettings,
        read_config,
    )
    from fairsched.engines.adapters.endpoint_picker.picker import Picker
    from fairsched.engines.adapters.endpoint_picker.server import serve
else:
    __getattr__ = lazy_exports(__name__)

__all__ = [
    "CallWindow", "EndpointPool", "PickedCall", "Picker", "PickerConfig", "QueueLimits", "QueueSettings",
    "read_config", "serve"
]  # fmt: skip
