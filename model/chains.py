"""Key chains beside each other: how far two of them agree.

A chain is the keys of a prompt's blocks as bytes, the same number of bytes a key (`model.request.Prompt.keys` has
eight; token ids below 2^32 go into four).  In sorted order, chains that share a prefix stand side by side.
"""

import numpy as np


def common_keys(left: bytes, right: bytes, key_bytes: int) -> int:
    """Leading keys that two chains share.  O(bytes), by memcmp where one begins with the other.

    >>> common_keys(b"aabbcc", b"aabbcd", 2)
    2
    """
    size = min(len(left), len(right))
    if left[:size] == right[:size]:
        return size // key_bytes
    keys = f"<u{key_bytes}"
    differs = np.frombuffer(left, keys, size // key_bytes) != np.frombuffer(right, keys, size // key_bytes)
    return int(differs.argmax())
