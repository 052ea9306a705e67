"""Splitwise: pools that are a function of the work (P-SW-1), and what is left of a layer-wise transfer (P-SW-3);
splitting does make the second token later (F-SW-1).  Its cap on preemptions is in `orders.preemption`.
"""

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import product
from types import SimpleNamespace
from typing import Any

from fairsched.model.decision import Role
from fairsched.policies.routers import P_SW_1, P_SW_3, pool_of, visible_ns
from fairsched.verify import logic as v


@v.arithmetic(P_SW_1, ("prompts", "outputs"), *v.at_least(0, "prompts", "outputs"))
def pools(w: SimpleNamespace, pool: Callable[..., Any] = pool_of) -> v.Shown:
    """For any number of prompts and outputs, of each origin."""
    prompt, token = pool("prefill", w.prompts, w.outputs), pool("decode", w.prompts, w.outputs)
    return {
        "a prompt machine is at home exactly without outputs": w.outputs == 0 if prompt == "prefill" else w.outputs > 0,
        "else it is mixed": prompt in ("prefill", "both"),
        "a token machine is at home exactly without prompts": w.prompts == 0 if token == "decode" else w.prompts > 0,
        "else that is mixed": token in ("decode", "both"),
        "a machine of both kinds is mixed": pool("both", w.prompts, w.outputs) == "both",
    }


def _transfers() -> Iterator[Mapping[str, Any]]:
    for transfer, prefill, layers in product(range(13), range(13), range(1, 6)):
        yield {"transfer": transfer, "prefill": prefill, "layers": layers}


@v.sampled(P_SW_3, _transfers, attained=lambda: (visible_ns(7, 9, 1), 7))
def layer_by_layer(w: SimpleNamespace, visible: Callable[[int, int, int], int] = visible_ns) -> v.Shown:
    """Against a pipeline of two stages: a layer is sent when it is computed and the one before is there."""
    there = Fraction(0)
    for layer in range(1, w.layers + 1):
        there = max(there, Fraction(w.prefill * layer, w.layers)) + Fraction(w.transfer, w.layers)
    left = visible(w.transfer, w.prefill, w.layers)
    exact = there - w.prefill
    return {
        "what the pipeline leaves, rounded up": left - 1 < exact <= left,
        "at most the transfer": left <= w.transfer,
        "all of it with one layer": w.layers > 1 or left == w.transfer,
    }


def _second_token(w: SimpleNamespace) -> v.Shown:
    return {"no later": visible_ns(w.transfer_us, w.prefill_us, w.layers) <= 0}


def refutations() -> tuple[v.RefutedClaim, ...]:
    """Return a natural claim of every paper that splits phases."""
    return (
        v.refuted(
            "F-SW-1",
            "splitting the phases never makes the time between tokens longer",
            "Splitwise (ISCA'24), whose own figure has the second token 16.5 % later, or 64 % without layers",
            _second_token,
            {"transfer_us": 15_000, "prefill_us": 190_000, "layers": 70},
            variant="any split with a link of finite rate, layer by layer too",
            instead=P_SW_3.id,
            text="a prompt of 1,500 tokens on BLOOM-176B, computed in 190 ms and sent in 15: 215 us and more come "
            "before the second token",
        ),
    )


def claims() -> tuple[v.ArithmeticClaim | v.SampledClaim, ...]:
    """About the pools and the transfer that ship."""
    return (pools(), layer_by_layer())


def bugs() -> tuple[v.Bug, ...]:
    """Small errors that have to be found."""
    return (
        v.Bug("a token machine is at home with prompts", pools(_by_outputs)),
        v.Bug("the last layer is hidden too", layer_by_layer(_all_hidden)),
    )


def _by_outputs(origin: Role, prompts: Any, outputs: Any) -> Role:
    return "both" if outputs > 0 else origin


def _all_hidden(transfer_ns: int, prefill_ns: int, layers: int) -> int:
    return max(-(-transfer_ns // layers), transfer_ns - prefill_ns)
