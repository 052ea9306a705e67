"""Pages: the pool never runs out, the map is the worker's prefix cache, and nobody's page is another's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.torch import Llama
from fairsched.engines.torch.executor import TorchExecutor
from fairsched.engines.torch.model import SIZES
from fairsched.engines.torch.pages import FlatBatch, Ints, OutOfPagesError, PagePool, Pages, PrefixPages, pages_needed
from fairsched.model.request import Prompt
from tests.support.torch.scenarios import CAPACITY, RUNNING_MAX, Drive, World, worlds

MODEL = Llama.random(SIZES["tiny"])


class Bookkeeper(TorchExecutor):
    """An executor that keeps all its books and computes nothing: every token is 0."""

    def _compute(self, batch: FlatBatch, rows: Ints, seats: Ints) -> list[int]:
        assert len(set(batch.slots.tolist())) == len(batch.slots), "two tokens at one place"
        return [0] * len(rows)


def check(executor: TorchExecutor, drive: Drive) -> None:
    """Everything that pages must satisfy between two steps."""
    pool, seats, prefixes = executor.pool, executor.seats, executor.prefixes
    prefixes.check()
    # Who holds a page: the map once for each of its own, every running request once for each of its own.
    held = np.zeros_like(pool.references)
    held[list(prefixes.edges.values())] += 1
    for sequence in executor.sequences.values():
        if sequence.seat >= 0:
            own = seats.table[sequence.seat, : seats.pages[sequence.seat]]
            assert len(set(own.tolist())) == len(own)
            held[own] += 1
            # It holds the pages of what it has computed, and no more.
            assert seats.pages[sequence.seat] == -(-seats.computed[sequence.seat] // executor.page_tokens)
    assert np.array_equal(held, pool.references)
    # The free ones are the others, each once.
    assert sorted(pool.stack[: pool.free].tolist()) == np.flatnonzero(held == 0).tolist()
    # The map holds what the worker counts as cached.
    assert len(prefixes.edges) * executor.page_tokens == drive.worker.cache.tree.cached_tokens
    # Whoever runs sits, and has computed what the worker counts.
    for request_id, flight in drive.worker.in_flight.items():
        sequence = executor.sequences[request_id]
        decoded = max(flight.decoded_tokens(drive.worker.clock) - 1, 0)
        assert seats.computed[sequence.seat] == flight.context_tokens - flight.remaining_tokens + decoded


@given(worlds())
def test_books_are_the_workers(world: World) -> None:
    """After every step: references are exact, the map is the worker's cache, and the pool never ran out.

    At the end only what is cached is held.
    """
    executor = Bookkeeper(MODEL, CAPACITY, page_tokens=world.page_tokens, running_max=RUNNING_MAX)
    drive = Drive(world, executor)
    for _ in drive.run():
        check(executor, drive)
    assert not executor.sequences
    assert len(executor.seats.empty) == RUNNING_MAX
    assert executor.pool.free == len(executor.pool.references) - len(executor.prefixes.edges)


def test_a_page_for_each_running_request_is_needed() -> None:
    """Without the pages for partly filled ends the pool does run out: four requests of 5 tokens in pages of 4.

    Twenty tokens of capacity are five pages, and the four hold eight.
    """
    assert pages_needed(20, 4, 4) == 9
    pool = PagePool(5)
    for _ in range(2):
        pool.take(2)
    with pytest.raises(OutOfPagesError, match="2 pages are wanted and 1 of 5 are free"):
        pool.take(2)


def prompt(*keys: int) -> Prompt:
    """A prompt of one-token blocks."""
    return Prompt.from_keys(keys)


def test_two_cold_requests_end_with_one_copy() -> None:
    """Two requests that compute one prefix at once: the second's pages are swapped for the first's and freed."""
    pool = PagePool(8)
    prefixes = PrefixPages(pool)
    first, second = pool.take(3), pool.take(4)
    assert prefixes.cache(prompt(1, 2, 3), first).tolist() == first.tolist()
    mixed = prefixes.cache(prompt(1, 2, 5, 6), second)
    assert mixed.tolist() == [*first[:2].tolist(), *second[2:].tolist()]
    assert pool.free == 8 - 5
    assert [pool.references[page] for page in first] == [3, 3, 2]
    # The swapped pages are whose turn it is next.
    assert sorted(pool.take(3)[-2:].tolist()) == sorted(second[:2].tolist())


def test_same_block_behind_another_is_another() -> None:
    """A block is known by its key and by all before it: equal keys after different beginnings are not shared."""
    prefixes = PrefixPages(PagePool(4))
    prefixes.cache(prompt(1, 9), prefixes.pool.take(2))
    prefixes.cache(prompt(2, 9), prefixes.pool.take(2))
    assert prefixes.match(prompt(1, 9), 2).tolist() != prefixes.match(prompt(2, 9), 2).tolist()
    assert len(prefixes.match(prompt(3, 9), 2)) == 0


def test_evicted_blocks_are_forgotten_but_kept_for_whom_they_serve() -> None:
    """An eviction cuts the path where it says; a page that somebody still uses is freed when he lets go."""
    pool = PagePool(3)
    prefixes = PrefixPages(pool)
    used = prefixes.cache(prompt(1, 2, 3), pool.take(3))
    prefixes.evict(prompt(1, 2, 3), 1, 2)
    assert prefixes.match(prompt(1, 2, 3), 3).tolist() == used[:1].tolist()
    assert pool.free == 0
    pool.release(used)
    assert pool.free == 2
    with pytest.raises(KeyError, match="2 blocks of a prompt are evicted and 1 are cached"):
        prefixes.evict(prompt(1, 2, 3), 1, 1)


@given(st.data())
def test_pool_gives_each_page_once(data: st.DataObject) -> None:
    """Whatever is taken, held and released, no page is given to two, and all come back."""
    pool = PagePool(6)
    out: list[Pages] = []
    for take in data.draw(st.lists(st.booleans(), max_size=12)):
        if take or not out:
            out.append(pool.take(data.draw(st.integers(0, pool.free))))
        else:
            pool.release(out.pop(data.draw(st.integers(0, len(out) - 1))))
        taken = [page for pages in out for page in pages.tolist()]
        assert len(set(taken)) == len(taken) == 6 - pool.free
    for pages in out:
        pool.release(pages)
    assert pool.free == 6
    assert not pool.references.any()
