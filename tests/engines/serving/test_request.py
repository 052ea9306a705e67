"""The edge of an engine: block keys share what prompts share, clients and ids are dense."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.engines.serving import BlockKeys, ClientRegistry
from fairsched.engines.serving.request import UsedIds
from fairsched.model.prefix_cache import PrefixTree
from fairsched.model.request import KEY_BYTES, Client, Prompt

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=20)


@given(TOKENS, TOKENS, st.sampled_from([1, 2, 4]))
def test_prompts_share_exactly_their_common_blocks(one: list[int], other: list[int], block_tokens: int) -> None:
    """Two prompts' keys agree for as many blocks as their tokens do, and the worker's cache finds just those."""
    keys = BlockKeys(block_tokens)
    first, second = keys.prompt(one), keys.prompt(other)
    assert (first.tokens, first.blocks) == (len(one), len(one) // block_tokens)
    common = 0
    while (common + 1) * block_tokens <= min(len(one), len(other)) and (
        one[common * block_tokens : (common + 1) * block_tokens]
        == other[common * block_tokens : (common + 1) * block_tokens]
    ):
        common += 1
    shared = first.keys[: common * KEY_BYTES]
    assert second.keys.startswith(shared)
    tree, _ = PrefixTree.empty().insert(first, first.blocks, 0, 0)
    if first.blocks:
        assert tree.match(second).blocks == common


def test_keys_depend_on_a_secret() -> None:
    """Without the secret nobody can look for blocks whose keys collide; with it every worker has the same keys."""
    tokens = list(range(64))
    assert BlockKeys().prompt(tokens) != BlockKeys().prompt(tokens)
    assert BlockKeys(secret=b"one").prompt(tokens) == BlockKeys(secret=b"one").prompt(tokens)
    assert "one" not in repr(BlockKeys(secret=b"one"))
    with pytest.raises(ValueError, match="block_tokens"):
        BlockKeys(0)


def test_a_prompt_of_no_tokens_is_none() -> None:
    """The model's own error says so."""
    with pytest.raises(ValueError, match="a prompt has 1 to"):
        BlockKeys().prompt([])
    assert BlockKeys().prompt([5]) == Prompt(1, 16)


def test_clients_are_dense() -> None:
    """Names get the next number, a client may change its weight, and a wrong number is named."""
    clients = ClientRegistry()
    clients.put(Client(0, "a"))
    clients.put(Client(1, "b", 2))
    clients.put(Client(0, "a", 3))
    assert [client.weight for client in clients.all] == [3, 2]
    assert "b" in clients
    assert clients["b"].id == 1
    with pytest.raises(ValueError, match="client 'c' has number 2, not 7"):
        clients.put(Client(7, "c"))
    with pytest.raises(ValueError, match="client 'a' has number 0, not 1"):
        clients.put(Client(1, "a"))


@given(st.lists(st.integers(0, 15), unique=True))
def test_used_ids_are_known_in_any_order(ids: list[int]) -> None:
    """What was added is used, nothing else is, and `next` is the least that is not."""
    used = UsedIds()
    for request_id in ids:
        used.add(request_id)
    assert [i for i in range(16) if i in used] == sorted(ids)
    assert used.next == min(set(range(17)) - set(ids))
