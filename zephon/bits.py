"""Counter-based random bits: every bit is a pure function of names and positions.

A key is the SHA-256 of its parts, so it is the same on every machine and in every process; the bits under a
key are those of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014, section 4, with the finaliser Mix13), addressed
by counter, so any of them can be had without the ones before.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, odd: the Weyl increment of SplitMix64."""
_MASK = (1 << 64) - 1
_BLOCK = 1 << 15
"""Elements of a large permutation of which the sort keys are made together, which keeps them in the cache."""


def key(*parts: str | int) -> int:
    """Returns the 64-bit key of `parts`; different parts, or parts divided otherwise, give other keys."""
    digest = hashlib.sha256()
    for part in parts:
        data = str(part).encode("utf-8", "surrogatepass")
        digest.update(f"{type(part).__name__}:{len(data)}:".encode() + data)
    return int.from_bytes(digest.digest()[:8], "little")


def bits(key: int | NDArray[np.uint64], counter: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Returns 64 random bits for each counter (>= 0) under `key`; the two broadcast against each other."""
    start = np.uint64(key & _MASK) if isinstance(key, int) else key
    with np.errstate(over="ignore"):
        z = np.asarray(counter).astype(np.uint64)
        z += np.uint64(1)
        z = z * np.uint64(GOLDEN) + start
        z ^= z >> np.uint64(30)
        z *= np.uint64(0xBF58476D1CE4E5B9)
        z ^= z >> np.uint64(27)
        z *= np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return z


def permutations(key: int, counters: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Returns one permutation of [0, size) per counter, shape (len(counters), size), int64.

    The order is that of `bits` under the sub-key of the counter. The index takes the low bits of each sort
    key, so no two keys are equal and the result does not depend on the sorting algorithm. Cost: about 15 ns
    an element.
    """
    index_bits = max(1, (size - 1).bit_length())
    low = np.uint64((1 << index_bits) - 1)
    index = np.arange(size, dtype=np.int64)
    subkeys = bits(key, counters)[:, None]  # (K, 1) uint64
    keys = bits(subkeys, index[None, :])  # (K, size) uint64
    keys &= ~low
    keys |= index.astype(np.uint64)[None, :]
    keys.sort(axis=1)
    keys &= low
    found: NDArray[np.int64] = keys.view(np.int64)
    return found


def permutation(key: int, counter: int, size: int) -> NDArray[np.int64]:
    """Returns the permutation of [0, size) of one counter, shape (size,), int64; in 8 bytes an element."""
    if size <= _BLOCK:
        found: NDArray[np.int64] = permutations(key, np.array([counter], dtype=np.int64), size)[0]
        return found
    subkey = int(bits(key, np.array([counter], dtype=np.int64))[0])
    low = np.uint64((1 << (size - 1).bit_length()) - 1)
    keys = np.empty(size, dtype=np.uint64)
    for first in range(0, size, _BLOCK):
        index = np.arange(first, min(first + _BLOCK, size), dtype=np.uint64)
        keys[first : first + _BLOCK] = (bits(subkey, index) & ~low) | index
    keys.sort()
    keys &= low
    found = keys.view(np.int64)
    return found
