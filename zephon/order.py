"""Order is a function: (lane, position) -> the document that a lane reads there, for one dataset.

Upstream: the chunks of an opened dataset (`readers/`). Downstream: `prepare.py`, which reads what is named
here. Nothing is remembered but caches; any position of any lane can be asked for at any time.

Lanes form G groups of g = L / G. A group owns whole chunks. Its order S is the endless concatenation of one
permutation of its documents per epoch, and the i-th document of a lane is S(i * g + slot). A permutation
shuffles the chunks, cuts them into windows, and shuffles the documents of each window, so a reader touches
few chunks at a time. The orders `identity` and `sorted:` have one group, whose S is the documents in file
order or as they are ranked. With `max_epochs` S ends after so many epochs, and so do the lanes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon.bits import key, permutation, permutations
from zephon.dataset import IDENTITY, SHUFFLED, SORTED
from zephon.deal import Dealt, deal

WINDOW_CHUNKS = 16
"""Chunks of which the documents are shuffled together."""
WINDOW_DOCUMENTS = 1 << 18
"""Bound on the documents of a window, where it has more than one chunk of average size."""
GROUP_CHUNKS = 16
GROUP_DOCUMENTS = 1000
"""A group has at least GROUP_CHUNKS chunks, and GROUP_DOCUMENTS documents for each of its lanes."""
CACHED_DOCUMENTS = 1 << 22
"""Bound on the shuffled places that an order keeps in memory (4 bytes each)."""
SMALL_GROUP = 512
"""Groups of one window and at most this many documents shuffle many epochs in one call."""
MAX_PAGES = 1 << 12
PAGE_POSITIONS = 512
"""Positions of every lane of a group whose places are shuffled, and kept, together."""
ENDLESS = 1 << 62
"""The end of a lane whose epochs repeat for ever; no position reaches it."""

Int64 = NDArray[np.int64]
Integers = NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Addresses:
    """Documents of a dataset: the chunk and the record within it, each (n,) int64."""

    chunk: Int64
    record: Int64


def num_groups(num_lanes: int, num_documents: Integers) -> int:
    """Returns G, the largest divisor of `num_lanes` that can leave every group enough to shuffle.

    `num_documents` is (C,), documents by chunk. Enough: GROUP_CHUNKS chunks, and GROUP_DOCUMENTS documents
    for each lane of the group. The dealing of the chunks may still refuse it; see `deal`.
    """
    total, num_chunks = int(num_documents.sum(dtype=np.int64)), len(num_documents)
    if total < GROUP_DOCUMENTS * num_lanes:
        return 1
    divisors = [g for g in range(2, num_lanes + 1) if num_lanes % g == 0 and num_chunks >= GROUP_CHUNKS * g]
    return max(divisors, default=1)


class Order:
    """The order of one dataset for all lanes; see the module's text. Safe to use from several threads."""

    def __init__(
        self,
        *,
        seed: int,
        name: str,
        num_lanes: int,
        num_documents: Integers,
        num_bytes: Integers,
        order: str = SHUFFLED,
        max_epochs: int | None = None,
        ranked: Integers | None = None,
    ) -> None:
        """Deals the chunks, of which `num_documents` and `num_bytes` are (C,), to the lane groups.

        `ranked` is (N,), all documents as numbers in file order, in the order that `sorted:` asks for. The
        arrays are kept, not copied.
        """
        if order.startswith(SORTED) != (ranked is not None):
            raise ValueError(f"`ranked` must be given for the order '{SORTED}COLUMN' only, got {order!r}")
        self.num_lanes, self.max_epochs = num_lanes, max_epochs
        self._seed, self._name = seed, name
        self._num_documents = np.asarray(num_documents)
        self._files: _FileOrder | None = None
        if order == IDENTITY or ranked is not None:
            self._files = _FileOrder(self._num_documents, ranked)
            self._dealt = deal(1, 0, num_bytes)
        else:
            self._dealt = self._deal(num_bytes)
        self.num_groups = len(self._dealt.cuts) - 1
        self.group_lanes = num_lanes // self.num_groups
        self._totals: list[int] = self._dealt.sums(self._num_documents).tolist()
        self._make_cache()

    def _deal(self, num_bytes: Integers) -> Dealt:
        deal_key = key("deal", self._seed, self._name)
        upper = num_groups(self.num_lanes, self._num_documents)
        for count in sorted((g for g in range(2, upper + 1) if self.num_lanes % g == 0), reverse=True):
            dealt = deal(count, deal_key, num_bytes)
            documents = dealt.sums(self._num_documents)
            need = GROUP_DOCUMENTS * (self.num_lanes // count)
            if dealt.num_chunks().min() >= GROUP_CHUNKS and documents.min() >= need:
                return dealt
        return deal(1, deal_key, num_bytes)

    def _make_cache(self) -> None:
        """Makes empty caches, which do not travel: of groups, as only some have lanes here, and of pages."""
        shapes = zip(self._totals, self._dealt.num_chunks().tolist(), strict=True)
        page_documents = max(_page_shape(n, c, self.group_lanes)[2] for n, c in shapes)
        size = max(2 * self.num_groups, min(MAX_PAGES, CACHED_DOCUMENTS // page_documents), 4)
        self._group = functools.lru_cache(maxsize=None)(self._make_group)
        self._page = functools.lru_cache(maxsize=size)(self._shuffle_page)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_group", "_page")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_cache()

    def _make_group(self, index: int) -> _Group:
        return _Group(
            key("order", self._seed, self._name, index),
            self._dealt.chunks(index),
            self._num_documents,
            self._totals[index],
            self.group_lanes,
        )

    def _shuffle_page(self, group: int, epoch: int, page: int) -> tuple[_Places, Integers]:
        return self._group(group).shuffle_page(epoch, page)

    def group(self, lane: int) -> tuple[range, int]:
        """Returns the lanes of the group of `lane`, and N, the documents that they share: one epoch."""
        index = lane // self.group_lanes
        lanes = range(index * self.group_lanes, (index + 1) * self.group_lanes)
        return lanes, self._totals[index]

    def end(self, lane: int) -> int:
        """Returns how many positions `lane` has: those that its group has in all epochs, dealt in turn."""
        if self.max_epochs is None:
            return ENDLESS
        group, slot = divmod(lane, self.group_lanes)
        last = self.max_epochs * self._totals[group]
        return max(0, -((slot - last) // self.group_lanes))

    @property
    def period(self) -> int:
        """Returns after how many positions a lane reads the same documents again, and only these."""
        if self._files is None or self.max_epochs is not None:
            return ENDLESS
        return self._totals[0] // math.gcd(self._totals[0], self.group_lanes)

    def locate(self, lane: int, start: int, count: int) -> Addresses:
        """Returns the addresses of positions [start, start + count) of `lane`; any start >= 0, count >= 1."""
        return self.locate_at(lane, np.arange(start, start + count, dtype=np.int64))

    def locate_at(self, lane: int, positions: Int64) -> Addresses:
        """Returns the addresses of the given positions of `lane`, (n,) ascending, n >= 1."""
        group_index, slot = divmod(lane, self.group_lanes)
        index = positions * self.group_lanes + slot
        if self._files is not None:
            return self._files.locate(index)
        group = self._group(group_index)
        if group.is_small:
            return group.locate_small(index)
        parts: list[Addresses] = []
        for epoch, first, last in _equal(index // group.num_documents):
            place = index[first:last] - epoch * group.num_documents
            starts = group.page_starts(epoch)
            for page, a, b in _equal(np.searchsorted(starts, place, side="right") - 1):
                places, numbers = self._page(group_index, epoch, page)
                parts.append(places.address(numbers[place[a:b] - starts[page]]))
        if len(parts) == 1:
            return parts[0]
        return Addresses(np.concatenate([p.chunk for p in parts]), np.concatenate([p.record for p in parts]))


def _equal(values: Int64) -> Iterator[tuple[int, int, int]]:
    """Yields (value, first, last) for each range [first, last) of equal `values`, which ascend."""
    first, count = 0, len(values)
    while first < count:
        value = int(values[first])
        is_last = value == int(values[-1])
        last = count if is_last else int(np.searchsorted(values, value, side="right"))
        yield value, first, last
        first = last


class _Places:
    """The documents of some chunks, numbered through; a page is these and their numbers in shuffled order."""

    __slots__ = ("_chunks", "_ends", "_firsts")

    def __init__(self, chunks: Integers, num_documents: Integers) -> None:
        """Numbers those of `chunks`, of which dataset-wide `num_documents` are (C,)."""
        counts = num_documents[chunks]
        self._chunks = chunks.astype(np.int64)
        self._ends = np.cumsum(counts, dtype=np.int64)
        self._firsts = self._ends - counts

    def address(self, numbers: Integers) -> Addresses:
        """Returns the addresses of the documents of these numbers."""
        which = np.searchsorted(self._ends, numbers, side="right")
        return Addresses(self._chunks[which], numbers - self._firsts[which])


class _FileOrder:
    """The endless order S of all documents of a dataset, as they stand in the files or are ranked."""

    def __init__(self, num_documents: Integers, ranked: Integers | None) -> None:
        self._counts, self._ranked = num_documents, ranked
        self._ends = np.cumsum(num_documents, dtype=np.int64)
        self._num_documents = int(self._ends[-1])
        if ranked is not None and ranked.shape != (self._num_documents,):
            raise ValueError(f"`ranked` must have {self._num_documents} documents, got {ranked.shape}")

    def locate(self, index: Int64) -> Addresses:
        """Returns the documents S(index)."""
        number = index % self._num_documents
        if self._ranked is not None:
            number = np.asarray(self._ranked[number], dtype=np.int64)
        chunk = np.searchsorted(self._ends, number, side="right")
        return Addresses(chunk, number - (self._ends[chunk] - self._counts[chunk]))


def _page_shape(num_documents: int, num_chunks: int, group_lanes: int) -> tuple[int, int, int]:
    """Returns the chunks of a window, the windows of a page and about how many documents a page has."""
    mean = max(1, num_documents // num_chunks)
    window_chunks = min(WINDOW_CHUNKS, max(1, WINDOW_DOCUMENTS // mean))
    page_windows = max(1, PAGE_POSITIONS * group_lanes // (mean * window_chunks))
    return window_chunks, page_windows, min(num_documents, mean * window_chunks * page_windows)


class _Group:
    """The endless order S of the documents of one group's chunks."""

    def __init__(
        self, group_key: int, chunks: Int64, num_documents: Integers, total: int, group_lanes: int
    ) -> None:
        """`num_documents` is (C,), of all chunks of the dataset; `total` are those of the group."""
        self._key, self._counts, self.num_documents = group_key, num_documents, total
        self._chunks: Integers = chunks.astype(_compact(len(num_documents)), copy=False)
        self._window_chunks, page_windows, _ = _page_shape(total, len(chunks), group_lanes)
        self._num_windows = -(-len(chunks) // self._window_chunks)
        self._page_chunks = page_windows * self._window_chunks
        self.is_small = self._num_windows == 1 and total <= SMALL_GROUP
        self._all = _Places(chunks, num_documents) if self.is_small else None
        self._epochs: tuple[tuple[int, Integers, Int64], ...] = ()

    def page_starts(self, epoch: int) -> Int64:
        """Returns the first place of each page, (number of pages,)."""
        if len(self._chunks) <= self._page_chunks:
            return np.zeros(1, dtype=np.int64)
        return self._epoch(epoch)[1]

    def _epoch(self, epoch: int) -> tuple[Integers, Int64]:
        """Returns the chunks in the epoch's order, and the first place of each page in it."""
        for known, order, starts in self._epochs:
            if known == epoch:
                return order, starts
        count, order = len(self._chunks), self._chunks
        if self._num_windows > 1:
            order = order[permutation(key("chunks", self._key), epoch, count)]
        firsts = np.arange(0, count, self._page_chunks)
        sizes = np.add.reduceat(self._counts[order], firsts, dtype=np.int64)
        starts = np.cumsum(sizes) - sizes
        self._epochs = ((epoch, order, starts), *self._epochs[:1])  # two: lanes drift over an epoch's end
        return order, starts

    def shuffle_page(self, epoch: int, page: int) -> tuple[_Places, Integers]:
        """Returns a page of an epoch."""
        order, _ = self._epoch(epoch)
        first = page * self._page_chunks
        members = order[first : first + self._page_chunks]
        windows = range(0, len(members), self._window_chunks)
        sizes = np.add.reduceat(self._counts[members], np.array(windows), dtype=np.int64).tolist()
        numbers = np.empty(sum(sizes), dtype=_compact(sum(sizes)))
        start = 0
        for window, size in enumerate(sizes, first // self._window_chunks):
            shuffled = permutation(key("documents", self._key, window), epoch, size)
            np.add(shuffled, start, out=numbers[start : start + size], casting="same_kind")
            start += size
        return _Places(members, self._counts), numbers

    def locate_small(self, index: Int64) -> Addresses:
        """Returns the documents S(index) of a group that is one window, many epochs in one call."""
        assert self._all is not None
        epoch, place = np.divmod(index, self.num_documents)
        epochs, which = np.unique(epoch, return_inverse=True)
        shuffled = permutations(key("documents", self._key, 0), epochs, self.num_documents)
        return self._all.address(shuffled[which, place])


def _compact(bound: int) -> type[np.int32] | type[np.int64]:
    """Returns the type of numbers below `bound`."""
    return np.int32 if bound <= 1 << 31 else np.int64
