"""Which releases of SGLang the hook was run with: its plugin registry, queue and prefix cache, without a GPU."""

from fairsched.engines.inside.version import Tested

TESTED = Tested("SGLang", (0, 5, 23), (0, 5, 24), '"accept_untested_version = true"')
