"""Memory for batches that is used again once nobody holds it.

Upstream: the operating system. Downstream: `batch.py` fills what is leased here. Fresh memory costs a page
fault for every 4 KiB; a lease goes back to its pool when the last array, view or tensor over it is gone, so a
batch can be kept as long as one likes. Never for page-locked memory: a GPU may still copy from it then.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_FREE = 4
"""Buffers that a pool keeps for later."""

Int64 = NDArray[np.int64]


class BufferPool:
    """Hands out int64 arrays of any shape; those of the shape asked last are recycled."""

    def __init__(self) -> None:
        self._free: list[Int64] = []

    def __call__(self, shape: tuple[int, ...]) -> Int64:
        """Returns an uninitialised array."""
        size = math.prod(shape)
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = np.empty(size, dtype=np.int64)
        if buffer.size != size:
            buffer = np.empty(size, dtype=np.int64)
        return np.asarray(_Lease(self, buffer)).reshape(shape)

    def give_back(self, buffer: Int64) -> None:
        """Takes a buffer that nobody holds."""
        if len(self._free) < MAX_FREE:
            self._free.append(buffer)


class _Lease:
    """The base of all arrays over one buffer; its end is the end of the last of them."""

    __slots__ = ("__array_interface__", "_buffer", "_pool")

    def __init__(self, pool: BufferPool, buffer: Int64) -> None:
        self._pool, self._buffer = pool, buffer
        self.__array_interface__: dict[str, Any] = buffer.__array_interface__

    def __del__(self) -> None:
        self._pool.give_back(self._buffer)
