"""SGLang's plugin (entry point group `sglang.srt.plugins`): a shipped policy ranks the waiting queue.

It does nothing unless `FAIRSCHED_SGLANG_CONFIG` names a TOML file.
"""

import os
import sys


def register() -> None:
    """Register the hooks, if they are asked for.

    What cannot be used stops the engine with one line: SGLang goes on without a plugin that raises, and a user that
    asked for fairness must not be served without.
    """
    if not os.environ.get("FAIRSCHED_SGLANG_CONFIG"):
        return
    try:
        # Only here, so that an engine that does not ask starts as fast as without us.
        from fairsched.engines.adapters.sglang import register as register_hooks

        register_hooks()
    except (ImportError, ValueError) as error:
        sys.exit(str(error) if str(error).startswith("fairsched") else f"fairsched: {error}")
