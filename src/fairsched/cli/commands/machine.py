"""`fairsched machine`: latency models of GPUs, from profiles that others published."""

from contextlib import suppress
from typing import Literal

from fairsched.cli import values
from fairsched.cli.output import apart, print_files, shown, writable
from fairsched.engines.analysis import Column, print_table, print_text
from fairsched.engines.calibration import Estimate, Format, Machine, import_machine
from fairsched.engines.files import write_whole
from fairsched.model.machine import encoded, preset_document

_SHOWN = (
    ("a prompt of 1,000 tokens", 1_000, 0),
    ("a prompt of 10,000 tokens", 10_000, 0),
    ("a request over 1,000 tokens", 0, 1),
    ("32 requests over 1,000 tokens", 0, 32),
)


def machine(
    action: Literal["import"],
    format: Format,
    path: str,
    /,
    *,
    model: str,
    gpu: str,
    gpus: values.PositiveInt = 1,
    kv_capacity_tokens: values.PositiveInt | None = None,
    out: values.File | None = None,
) -> int:
    """Read a published profile from your copy, and write it as a latency model for `--latency-model`, with its source.

    Args:
        action: import
        format: llmservingsim, vidur, splitwise-sim, distserve, or aiconfigurator (installed beside this package)
        path: the folder of tables, or the file; for aiconfigurator its name of the system, as h100_sxm
        model: the model, as llama-3.1-8b
        gpu: the kind of GPU, as h100
        gpus: GPUs that hold the model together (tensor parallelism)
        kv_capacity_tokens: KV tokens of the worker (default: 90 % of memory less the weights)
        out: write the model, as JSON
    """
    writable(out=out)
    apart((path,), out=out)
    estimate: Estimate | None = None
    if format == "aiconfigurator":
        with suppress(ImportError):
            from aiconfigurator.cli.api import cli_estimate

            estimate = cli_estimate
    found = import_machine(format, path, Machine(model, gpu, gpus, kv_capacity_tokens), estimate)
    if out is not None:
        write_whole(out, encoded(preset_document(found)))
    with shown(None) as console:
        print_text(console, f"{found.name}: {found.source}; {found.kv_capacity_tokens:,} tokens of KV")
        rows = []
        for what, tokens, batch in _SHOWN:
            ns = found.step_ns(((tokens, 0),) if tokens else (), batch, 1_000 * batch)
            rows.append([what, f"{ns / 1e6:,.3f} ms"])
        print_table(console, (Column("a step of", kind="name"), Column("takes")), rows)
        print_files(console, Model=out)
    return 0
