"""Order is a function: (lane, position) -> the document that a lane reads there, for one dataset.

Upstream: the chunks of an opened dataset (`readers/`). Downstream: `prepare.py`, which reads what is named
here. Nothing is remembered but caches; any position of any lane can be asked for at any time.

Lanes form G groups of g = L / G. A group owns whole chunks. Its order S is the endless concatenation of one
permutation of its documents per epoch, and the i-th document of a lane is S(i * g + slot). A permutation
shuffles the chunks, cuts them into windows, and shuffles the documents of each window, so a reader touches
few chunks at a time. The order `identity` has one group, whose S is the documents in file order.
With `max_epochs` S ends after so many epochs, and so do the lanes.
"""

from __future__ import annotations

import functools
import heapq
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon.bits import key, permutation, permutations
from zephon.dataset import IDENTITY, SHUFFLED

WINDOW_CHUNKS = 16
"""Chunks of which the documents are shuffled together."""
WINDOW_DOCUMENTS = 1 << 18
"""Bound on the documents of a window, where it has more than one chunk of average size."""
GROUP_CHUNKS = 16
GROUP_DOCUMENTS = 1000
"""A group has at least GROUP_CHUNKS chunks, and GROUP_DOCUMENTS documents for each of its lanes."""
CACHED_DOCUMENTS = 1 << 22
"""Bound on the shuffled addresses that an order keeps in memory (16 bytes each)."""
SMALL_GROUP = 512
"""Groups of one window and at most this many documents shuffle many epochs in one call."""
MAX_PAGES = 1 << 12
PAGE_POSITIONS = 512
"""Positions of every lane of a group whose addresses are made, and kept, together."""
ENDLESS = 1 << 62
"""The end of a lane whose epochs repeat for ever; no position reaches it."""

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Addresses:
    """Documents of a dataset: the chunk and the record within it, each (n,) int64."""

    chunk: Int64
    record: Int64


def num_groups(num_lanes: int, num_documents: Int64) -> int:
    """Returns G, the largest divisor of `num_lanes` that can leave every group enough to shuffle.

    `num_documents` is (C,), documents by chunk. Enough: GROUP_CHUNKS chunks, and GROUP_DOCUMENTS documents
    for each lane of the group. The dealing of the chunks may still refuse it; see `deal`.
    """
    total, num_chunks = int(num_documents.sum()), len(num_documents)
    if total < GROUP_DOCUMENTS * num_lanes:
        return 1
    divisors = [g for g in range(2, num_lanes + 1) if num_lanes % g == 0 and num_chunks >= GROUP_CHUNKS * g]
    return max(divisors, default=1)


def deal(num_groups: int, order: Int64, num_bytes: Int64) -> list[Int64]:
    """Returns the chunks of each group: dealt in the given order, each to the group with the fewest bytes."""
    if num_groups == 1:
        return [np.arange(len(num_bytes), dtype=np.int64)]
    heap = [(0, group) for group in range(num_groups)]
    groups: list[list[int]] = [[] for _ in range(num_groups)]
    sizes = num_bytes[order].tolist()
    for chunk, size in zip(order.tolist(), sizes, strict=True):
        filled, group = heap[0]
        groups[group].append(chunk)
        heapq.heapreplace(heap, (filled + size, group))
    return [np.array(sorted(chunks), dtype=np.int64) for chunks in groups]


class Order:
    """The order of one dataset for all lanes; see the module's text. Safe to use from several threads."""

    def __init__(
        self,
        *,
        seed: int,
        name: str,
        num_lanes: int,
        num_documents: Int64,
        num_bytes: Int64,
        order: str = SHUFFLED,
        max_epochs: int | None = None,
    ) -> None:
        """Deals the chunks, of which `num_documents` and `num_bytes` are (C,), to the lane groups."""
        self.num_lanes, self.max_epochs = num_lanes, max_epochs
        self._groups: list[_Group | _FileOrder]
        if order == IDENTITY:
            self._groups = [_FileOrder(num_documents)]
        else:
            dealt = self._deal(seed, name, num_documents, num_bytes)
            group_lanes = num_lanes // len(dealt)
            self._groups = [
                _Group(key("order", seed, name, index), chunks, num_documents[chunks], group_lanes)
                for index, chunks in enumerate(dealt)
            ]
        self.num_groups = len(self._groups)
        self.group_lanes = num_lanes // self.num_groups
        self._make_cache()

    def _deal(self, seed: int, name: str, num_documents: Int64, num_bytes: Int64) -> list[Int64]:
        chunk_order = permutation(key("deal", seed, name), 0, len(num_documents))
        upper = num_groups(self.num_lanes, num_documents)
        for count in sorted((g for g in range(2, upper + 1) if self.num_lanes % g == 0), reverse=True):
            dealt = deal(count, chunk_order, num_bytes)
            need = GROUP_DOCUMENTS * (self.num_lanes // count)
            if all(len(c) >= GROUP_CHUNKS and int(num_documents[c].sum()) >= need for c in dealt):
                return dealt
        return deal(1, chunk_order, num_bytes)

    def _make_cache(self) -> None:
        page_documents = max(group.page_documents for group in self._groups)
        size = max(2 * self.num_groups, min(MAX_PAGES, CACHED_DOCUMENTS // page_documents), 4)
        self._page = functools.lru_cache(maxsize=size)(self._shuffle_page)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_page"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_cache()

    def _shuffle_page(self, group: int, epoch: int, page: int) -> Addresses:
        shuffled = self._groups[group]
        assert isinstance(shuffled, _Group)
        return shuffled.shuffle_page(epoch, page)

    def group(self, lane: int) -> tuple[range, int]:
        """Returns the lanes of the group of `lane`, and N, the documents that they share: one epoch."""
        index = lane // self.group_lanes
        lanes = range(index * self.group_lanes, (index + 1) * self.group_lanes)
        return lanes, self._groups[index].num_documents

    def end(self, lane: int) -> int:
        """Returns how many positions `lane` has: those that its group has in all epochs, dealt in turn."""
        if self.max_epochs is None:
            return ENDLESS
        group, slot = divmod(lane, self.group_lanes)
        last = self.max_epochs * self._groups[group].num_documents
        return max(0, -((slot - last) // self.group_lanes))

    @property
    def period(self) -> int:
        """Returns after how many positions a lane reads the same documents again, and only these."""
        group = self._groups[0]
        if not isinstance(group, _FileOrder) or self.max_epochs is not None:
            return ENDLESS
        return group.num_documents // math.gcd(group.num_documents, self.group_lanes)

    def locate(self, lane: int, start: int, count: int) -> Addresses:
        """Returns the addresses of positions [start, start + count) of `lane`; any start >= 0, count >= 1."""
        return self.locate_at(lane, np.arange(start, start + count, dtype=np.int64))

    def locate_at(self, lane: int, positions: Int64) -> Addresses:
        """Returns the addresses of the given positions of `lane`, (n,) ascending, n >= 1."""
        group_index, slot = divmod(lane, self.group_lanes)
        group = self._groups[group_index]
        index = positions * self.group_lanes + slot
        if isinstance(group, _FileOrder) or group.is_small:
            return group.locate_small(index)
        chunk, record = np.empty_like(index), np.empty_like(index)
        for epoch in np.unique(index // group.num_documents).tolist():
            origin = epoch * group.num_documents
            pages = group.page_starts(epoch)
            cuts = np.searchsorted(index, np.append(pages, group.num_documents) + origin).tolist()
            for page in range(len(pages)):
                a, b = cuts[page], cuts[page + 1]
                if a == b:
                    continue
                shuffled = self._page(group_index, epoch, page)
                place = index[a:b] - (origin + int(pages[page]))
                chunk[a:b] = shuffled.chunk[place]
                record[a:b] = shuffled.record[place]
        return Addresses(chunk, record)


class _FileOrder:
    """The endless order S of all documents of a dataset, as they stand in the files."""

    page_documents = 1

    def __init__(self, num_documents: Int64) -> None:
        self._ends = np.cumsum(num_documents)
        self._firsts = self._ends - num_documents
        self.num_documents = int(self._ends[-1])

    def locate_small(self, index: Int64) -> Addresses:
        """Returns the documents S(index)."""
        place = index % self.num_documents
        chunk = np.searchsorted(self._ends, place, side="right")
        return Addresses(chunk, place - self._firsts[chunk])


class _Group:
    """The endless order S of the documents of one group's chunks."""

    def __init__(self, group_key: int, chunks: Int64, num_documents: Int64, group_lanes: int) -> None:
        self._key = group_key
        self._chunks = chunks
        self._counts = num_documents
        self.num_documents = int(num_documents.sum())
        mean = max(1, self.num_documents // len(chunks))
        self._window_chunks = min(WINDOW_CHUNKS, max(1, WINDOW_DOCUMENTS // mean))
        self._num_windows = -(-len(chunks) // self._window_chunks)
        self._page_windows = max(1, PAGE_POSITIONS * group_lanes // (mean * self._window_chunks))
        self.num_pages = -(-self._num_windows // self._page_windows)
        self.page_documents = min(self.num_documents, mean * self._window_chunks * self._page_windows)
        self.is_small = self._num_windows == 1 and self.num_documents <= SMALL_GROUP
        self._last_epoch: tuple[int, Int64, Int64] | None = None

    def _chunk_order(self, epoch: int) -> tuple[Int64, Int64]:
        """Returns the chunk indexes in the epoch's order, and the first place of each chunk in it."""
        last = self._last_epoch
        if last is None or last[0] != epoch:
            count = len(self._chunks)
            one = self._num_windows == 1
            order = np.arange(count) if one else permutation(key("chunks", self._key), epoch, count)
            starts = np.cumsum(self._counts[order]) - self._counts[order]
            last = self._last_epoch = (epoch, order, starts)
        return last[1], last[2]

    def page_starts(self, epoch: int) -> Int64:
        """Returns the first place of each page, (num_pages,)."""
        if self.num_pages == 1:
            return np.zeros(1, dtype=np.int64)
        return self._chunk_order(epoch)[1][:: self._window_chunks * self._page_windows]

    def shuffle_page(self, epoch: int, page: int) -> Addresses:
        """Returns the addresses of a page, that is, of some consecutive windows, in shuffled order."""
        first = page * self._page_windows
        last = min(first + self._page_windows, self._num_windows)
        windows = [self._shuffle_window(epoch, window) for window in range(first, last)]
        return Addresses(
            np.concatenate([window.chunk for window in windows]),
            np.concatenate([window.record for window in windows]),
        )

    def _shuffle_window(self, epoch: int, window: int) -> Addresses:
        order, _ = self._chunk_order(epoch)
        members = order[window * self._window_chunks : (window + 1) * self._window_chunks]
        size = int(self._counts[members].sum())
        return self._address(members, permutation(key("documents", self._key, window), epoch, size))

    def locate_small(self, index: Int64) -> Addresses:
        """Returns the documents S(index) of a group that is one window, many epochs in one call."""
        epoch, place = np.divmod(index, self.num_documents)
        epochs, which = np.unique(epoch, return_inverse=True)
        shuffled = permutations(key("documents", self._key, 0), epochs, self.num_documents)
        return self._address(np.arange(len(self._chunks)), shuffled[which, place])

    def _address(self, members: Int64, flat: Int64) -> Addresses:
        """Returns the addresses of documents numbered through the chunks `members` of this group."""
        counts = self._counts[members]
        ends = np.cumsum(counts)
        which = np.searchsorted(ends, flat, side="right")
        return Addresses(self._chunks[members][which], flat - (ends - counts)[which])
