"""The command line: what a serving team types.

Bad arguments or input give exit status 2 and one clear line on standard error, never a traceback.  An interrupted
comparison keeps what was computed and exits with 130.
"""

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import NoReturn

from fairsched import __version__
from fairsched.cli_audit import add_audit
from fairsched.cli_batch import add_batch
from fairsched.cli_calibrate import add_calibrate
from fairsched.cli_compare import add_compare
from fairsched.cli_endpoint_picker import add_endpoint_picker
from fairsched.cli_fidelity import add_fidelity
from fairsched.cli_gateway import add_gateway
from fairsched.cli_load import add_load
from fairsched.cli_logs import add_explain, add_replay
from fairsched.cli_plan import add_plan
from fairsched.cli_policies import add_policies
from fairsched.cli_reproduce import add_reproduce
from fairsched.cli_scale import add_scale
from fairsched.cli_trace import add_trace
from fairsched.cli_tune import add_tune
from fairsched.cli_verify import add_certificate, add_verify

INTERRUPTED = 130
"""Exit status after an interrupt from the keyboard."""


class Parser(ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is, and exit with status 2."""
        _fail(f"{self.prog}: {message} (see {self.prog} --help)")


def _fail(message: str) -> NoReturn:
    print(" ".join(message.split()), file=sys.stderr)
    raise SystemExit(2)


def parser() -> Parser:
    """The whole command line."""
    whole = Parser(
        prog="fairsched",
        description="Scheduling policies for LLM serving with proved bounds: compare them on your traffic.",
    )
    whole.add_argument("--version", action="version", version=f"fairsched {__version__}")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for add in (
        *(add_compare, add_policies, add_trace, add_replay, add_explain, add_verify, add_certificate),
        *(add_calibrate, add_fidelity, add_reproduce, add_scale, add_batch, add_plan),
        add_gateway,
        add_endpoint_picker,
        add_load,
        add_audit,
        add_tune,
    ):
        add(commands)
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in ("rich", "matplotlib", "jinja2"):
            _fail(f"fairsched {arguments.command} needs {error.name}: pip install 'fairsched[cli]'")
        if error.name and error.name.split(".")[0] in ("z3", "cvc5", "hypothesis"):
            _fail(f"fairsched {arguments.command} needs {error.name}: pip install 'fairsched[verify]'")
        if error.name and error.name.split(".")[0] in ("torch", "scipy", "safetensors"):
            _fail(f"fairsched {arguments.command} needs {error.name}: pip install 'fairsched[cli,torch]'")
        if error.name and error.name.split(".")[0] in ("httpx", "starlette", "uvicorn"):
            _fail(f"fairsched {arguments.command} needs {error.name}: pip install 'fairsched[gateway]'")
        if error.name and error.name.split(".")[0] in ("envoy", "google", "grpc", "grpc_health"):
            _fail(f"fairsched {arguments.command} needs {error.name}: pip install 'fairsched[endpoint-picker]'")
        raise
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python must not complain at exit either.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return 0
    except (ValueError, OSError) as error:
        _fail(f"fairsched {arguments.command}: {error}")
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


if __name__ == "__main__":
    sys.exit(main())
