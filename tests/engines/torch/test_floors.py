"""The torch worker evicts as floors say: pages go with the blocks of clients over their floors."""

from collections.abc import Sequence

import pytest

pytest.importorskip("torch")

from fairsched.engines.serving import Engine
from fairsched.engines.torch import SIZES, Llama, TorchExecutor
from fairsched.model.events import Admitted, Event, Evicted
from fairsched.model.request import Client
from fairsched.policies.catalog import FCFS


@pytest.mark.parametrize(("floor", "found"), [(None, 0), (96, 64)])
def test_a_flood_takes_no_page_below_a_floor(floor: int | None, found: int) -> None:
    """The polite client finds its four blocks in the pool again, and its answer is the one it had."""
    events: list[Event] = []

    def hear(told: Sequence[Event]) -> None:
        events.extend(told)

    executor = TorchExecutor(Llama.random(SIZES["tiny"], seed=0), 256, page_tokens=16, running_max=4)
    engine = Engine(FCFS(), executor, kv_capacity_tokens=256, clients=[Client(0, "polite")], listeners=[hear])
    if floor is not None:
        engine.configure_client("polite", 1, cache_floor_tokens=floor)
    prompt, answers = list(range(65)), list[list[int]]()
    for asked in range(2):
        if asked:
            for first in range(10):
                engine.ask("flood", [100 + first] * 33 + list(range(first, first + 60)), 3)
        answer = engine.ask("polite", prompt, 4)
        while engine.step():
            pass
        answers.append(list(answer.tokens))
    executor.close()
    polite = [event for event in events if isinstance(event, Admitted) and event.client == 0]
    assert polite[1].cached_prefix_tokens == found
    assert answers[0] == answers[1]
    assert any(isinstance(event, Evicted) for event in events)
