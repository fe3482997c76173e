"""The order of a dataset of which nothing is counted: lanes take whole files, and shuffle near records.

Upstream: the names and sizes of the files. Downstream: `prepare.py`, which reads on from a position and says
how many records a window has. Pure, as `order.py` is: any position can be asked for at any time.

A lane's files come in another order each epoch. A file is cut into windows of WINDOW_RECORDS records, and
each is permuted. A position is one integer, turn << 40 | window << 10 | index, where `turn` counts the files
that the lane has begun: positions ascend, with gaps where a window or a file is short.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zephon.bits import key, permutation
from zephon.deal import deal
from zephon.errors import DataError
from zephon.order import ENDLESS, Addresses

INDEX_BITS = 10
WINDOW_RECORDS = 1 << INDEX_BITS
TURN_SHIFT = 40
"""A file has at most 2^30 windows; a lane ends after 2^22 files."""
FILE_SHIFT = 32
CACHED_WINDOWS = 2048
"""Bound on the permutations that an order keeps in memory (8 KB each)."""

Int64 = NDArray[np.int64]
WindowRecords = Callable[[int, int], int]
"""(file, window) -> its records: WINDOW_RECORDS but for the last window, 0 past the end of the file."""


class Located(NamedTuple):
    """Consecutive documents of a lane."""

    positions: Int64
    """(n,) ascending."""
    addresses: Addresses
    """The chunk is `file << 32 | window`; the record counts from the start of the window."""
    end: int
    """The position to go on from."""


def split(position: int) -> tuple[int, int, int]:
    """Returns (turn, window, index) of a position."""
    window = (position >> INDEX_BITS) & ((1 << (TURN_SHIFT - INDEX_BITS)) - 1)
    return position >> TURN_SHIFT, window, position & (WINDOW_RECORDS - 1)


def split_chunk(chunk: int) -> tuple[int, int]:
    """Returns (file, window) of the chunk of an address."""
    return chunk >> FILE_SHIFT, chunk & ((1 << FILE_SHIFT) - 1)


class StreamOrder:
    """The order of one streamed dataset for all lanes; see the module's text. Safe in several threads."""

    period = ENDLESS
    """As for a shuffled `Order`; epochs without documents end `locate_from`."""
    max_epochs = None

    def __init__(
        self, *, seed: int, name: str, num_lanes: int, files: Sequence[str], num_bytes: NDArray[np.integer]
    ) -> None:
        """Deals the files in seeded order, each to the lane with the fewest bytes.

        `files` are the names, in the dataset's order, and `num_bytes` is (F,). Every lane has at least one:
        raises `DataError` for fewer files than lanes.
        """
        if len(files) < num_lanes:
            raise DataError.explained(
                f"dataset {name!r}: fewer files than lanes",
                got=f"{len(files)} files, {num_lanes} lanes",
                rule="with `stream` every lane takes whole files, at least one",
                cure=f"set lanes to {len(files)} or fewer, split the files, or leave out `stream`: then they "
                "are counted once, and any number will do",
            )
        self.num_lanes = num_lanes
        self._seed, self._name, self._files = seed, name, tuple(files)
        # A file counts as one byte at least, so that the first ones go to different lanes.
        self._dealt = deal(num_lanes, key("stream deal", seed, name), np.maximum(num_bytes, 1))
        self._num_files: list[int] = self._dealt.num_chunks().tolist()
        self._make_cache()

    def _make_cache(self) -> None:
        self._epoch = functools.lru_cache(maxsize=2 * self.num_lanes)(self._permute_files)
        self._window = functools.lru_cache(maxsize=CACHED_WINDOWS)(self._permute_window)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_epoch", "_window")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_cache()

    def _permute_files(self, lane: int, epoch: int) -> list[int]:
        files_key = key("stream files", self._seed, self._name, lane)
        order = permutation(files_key, epoch, self._num_files[lane])
        files: list[int] = self._dealt.chunks(lane)[order].tolist()
        return files

    def _permute_window(self, file: int, epoch: int, window: int, num_records: int) -> Int64:
        window_key = key("stream window", self._seed, self._name, self._files[file], window)
        records = permutation(window_key, epoch, num_records)
        records.flags.writeable = False
        return records

    def file_at(self, lane: int, turn: int) -> int:
        """Returns the number of the file that `lane` reads in its turn `turn`, both from 0."""
        epoch, place = divmod(turn, self._num_files[lane])
        return self._epoch(lane, epoch)[place]

    def epoch_end(self, lane: int) -> int:
        """Returns the position at which `lane` has read each of its files once."""
        return self._num_files[lane] << TURN_SHIFT

    def group(self, lane: int) -> tuple[range, int]:
        """Returns `lane`, which shares its files with no other, and the positions of an epoch, with gaps."""
        return range(lane, lane + 1), self.epoch_end(lane)

    def end(self, lane: int) -> int:
        """Returns the end of `lane`, which is endless."""
        return ENDLESS

    def permuted(self, lane: int, turn: int, window: int, num_records: int) -> Int64:
        """Returns the records of a window, (num_records,), in the order of this turn; read-only."""
        epoch = turn // self._num_files[lane]
        return self._window(self.file_at(lane, turn), epoch, window, num_records)

    def locate_from(
        self, lane: int, start: int, max_documents: int, window_records: WindowRecords
    ) -> Located:
        """Returns the next documents of `lane` from the position `start` on, at most `max_documents` >= 1.

        Fewer, namely none, only where a whole epoch has none: then it ends at that epoch's end.
        """
        found: list[tuple[int, int, int, Int64]] = []
        num_files, left = self._num_files[lane], max_documents
        turn, window, index = split(start)
        begun = turn + (window + index > 0)  # the first file that is read from its start
        while left:
            file = self.file_at(lane, turn)
            num_records = window_records(file, window)
            last = min(num_records, index + left)
            if last > index:
                records = self.permuted(lane, turn, window, num_records)[index:last]
                found.append(((turn << TURN_SHIFT) + (window << INDEX_BITS) + index, file, window, records))
                left -= last - index
            if left and num_records < WINDOW_RECORDS:
                turn, window = turn + 1, 0
                if left == max_documents and turn % num_files == 0 and turn - begun >= num_files:
                    return _located(found, turn << TURN_SHIFT)
            elif left:
                window += 1
            index = 0
        return _located(found, None)

    def locate_at(self, lane: int, positions: Int64, window_records: WindowRecords) -> Located:
        """Returns the documents at the given positions, (n,) ascending, n >= 1, without those not there."""
        found: list[tuple[int, int, int, Int64]] = []
        for position in positions.tolist():
            turn, window, index = split(position)
            file = self.file_at(lane, turn)
            num_records = window_records(file, window)
            if index < num_records:
                records = self.permuted(lane, turn, window, num_records)[index : index + 1]
                found.append((position, file, window, records))
        return _located(found, int(positions[-1]) + 1)


def _located(found: Sequence[tuple[int, int, int, Int64]], end: int | None) -> Located:
    """Returns documents that were come upon; without `end` they end after the last of them.

    Each entry is of a window: the position of the first of its documents, file, window and records.
    """
    none = np.empty(0, dtype=np.int64)
    positions = np.concatenate([none, *(np.arange(at, at + len(records)) for at, _, _, records in found)])
    chunks = [np.full(len(records), (file << FILE_SHIFT) + window) for _, file, window, records in found]
    records = np.concatenate([none, *(records for _, _, _, records in found)])
    addresses = Addresses(np.concatenate([none, *chunks]), records)
    return Located(positions, addresses, int(positions[-1]) + 1 if end is None else end)
