"""An endpoint picker with a policy of this library, by name: what `fairsched endpoint-picker` serves."""

from fairsched.engines.endpoint_picker.config import PickerConfig
from fairsched.engines.endpoint_picker.picker import Picker
from fairsched.integrations.window_policy import window_policy, window_router


def picker_of(config: PickerConfig) -> Picker:
    """The picker of a configuration.  Raises `ValueError` for names that are not there or cannot be used."""
    return Picker(config, window_policy(config.policy, config.quantum), window_router(config.router))
