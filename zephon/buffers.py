"""Memory for batches that is used again once nobody holds it.

Upstream: the operating system. Downstream: `batch.py` fills what is leased here. Fresh memory costs a page
fault for every 4 KiB; a buffer is free when the last array, view or tensor over it is gone, so a batch can be
kept as long as one likes. Never for page-locked memory: a GPU may still copy from it then.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_FREE = 4
"""Buffers that a pool keeps for later."""
MAX_LENT = 32
"""Buffers that a pool hopes to get back; those lent before them go with their last holder."""

Int64 = NDArray[np.int64]


class BufferPool:
    """Hands out int64 arrays of any shape; those of the shape asked last are recycled.

    For one thread; what it handed out may end in any other. No code runs at that end: a Ctrl-C that came
    during a `__del__` would be lost.
    """

    def __init__(self) -> None:
        self._free: list[Int64] = []
        self._lent: list[tuple[Int64, weakref.ref[_Lease]]] = []

    def __call__(self, shape: tuple[int, ...]) -> Int64:
        """Returns an uninitialised array."""
        self._take_back()
        size = math.prod(shape)
        buffer = self._free.pop() if self._free else None
        if buffer is None or buffer.size != size:
            buffer = np.empty(size, dtype=np.int64)
        lease = _Lease(buffer)
        self._lent.append((buffer, weakref.ref(lease)))
        return np.asarray(lease).reshape(shape)

    def _take_back(self) -> None:
        ended = [lease() is None for _, lease in self._lent]
        self._free += [buffer for (buffer, _), is_free in zip(self._lent, ended, strict=True) if is_free]
        lent = [lent for lent, is_free in zip(self._lent, ended, strict=True) if not is_free]
        self._lent, self._free = lent[-MAX_LENT:], self._free[-MAX_FREE:]


class _Lease:
    """The base of all arrays over one buffer; its end is the end of the last of them."""

    __slots__ = ("__array_interface__", "__weakref__", "_buffer")

    def __init__(self, buffer: Int64) -> None:
        self._buffer = buffer
        self.__array_interface__: dict[str, Any] = buffer.__array_interface__
