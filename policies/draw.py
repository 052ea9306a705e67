"""Randomness as a function: the same seed and counter give the same draw, on every machine and in every replay."""

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15


def draw(seed: int, counter: int, count: int) -> int:
    """Return number `counter` (from 0) of the stream `seed`: an integer from 0 to `count` - 1.  O(1).

    SplitMix64 at a place of its sequence (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
    OOPSLA'14); no value is likelier than another by more than 2^-64.
    """
    z = (seed + (counter + 1) * _STEP) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) * count) >> 64
