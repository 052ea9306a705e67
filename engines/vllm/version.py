"""Which releases of vLLM the scheduler was run with, on CPU."""

from fairsched.engines.inside.version import Tested

TESTED = Tested("vLLM", (0, 32, 0), (0, 33, 0), '"accept_untested_version": true')
