"""The index of a file of lines: where each record starts, found in one pass and kept in the cache.

Upstream: `DataFile`s. Downstream: the readers of JSONL and CSV. An index is a file of int64 values: the byte
at which each record starts, then the size of the file. A record runs to the start of the next one, so it
carries its line end and the blank lines that follow; readers strip them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from zephon.cachefiles import replace_file
from zephon.files import changed, check_unchanged, open_unchanged
from zephon.paths import DataFile
from zephon.readers.table import Scan

CHUNK_BYTES = 1 << 20
BUFFER_BYTES = 16 << 20
_VERSION = 1
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SPACE = np.zeros(256, np.bool_)
_SPACE[list(b" \t\r\n\x0b\x0c")] = True


Int64 = NDArray[np.int64]


def _ignore(_num_bytes: int) -> None:
    """Takes progress that nobody shows."""


def load_starts(dataset: str, file: DataFile, cache: Path, advance: Callable[[int], None] = _ignore) -> Int64:
    """Returns the (n + 1,) starts of the records and the size of the file, memory-mapped.

    Scans the file only if the cache has no index of it at this size and modification time. `advance` is told
    of the bytes that are done with.
    """
    path = index_path(file, cache)
    starts = _map(path, file)
    if starts is not None:
        advance(file.size_bytes)
        return starts
    descriptor = open_unchanged(dataset, file)
    try:

        def write(target: BinaryIO) -> None:
            for part in record_starts(_buffers(descriptor), advance):
                target.write(part.astype(np.int64, copy=False).data)
            target.write(np.int64(file.size_bytes).tobytes())
            check_unchanged(dataset, file, descriptor)

        replace_file(path, write)
    finally:
        os.close(descriptor)
    starts = _map(path, file)
    if starts is None:
        raise changed(dataset, str(path), "an index that does not fit its file")
    return starts


def index_path(file: DataFile, cache: Path) -> Path:
    """Returns where the index of `file`, as it is, is kept."""
    stamp = f"lines {_VERSION}\n{file.size_bytes} {file.mtime_ns} {file.ctime_ns}\n"
    key = stamp.encode() + os.fsencode(file.path)
    return cache / "index" / f"{hashlib.sha256(key).hexdigest()[:32]}.starts"


def _map(path: Path, file: DataFile) -> Int64 | None:
    """Returns the index at `path`, or None if there is none that fits."""
    try:
        if path.stat().st_size % 8:
            return None
        starts: Int64 = np.memmap(path, np.int64, mode="r").view(np.ndarray)
    except (OSError, ValueError):
        return None
    return starts if starts[-1] == file.size_bytes and starts[0] >= 0 else None


def _buffers(descriptor: int) -> Iterator[bytes]:
    """Yields the bytes of an open file, in order."""
    offset = 0
    while buffer := os.pread(descriptor, BUFFER_BYTES, offset):
        offset += len(buffer)
        yield buffer


def record_starts(buffers: Iterable[bytes], advance: Callable[[int], None] = _ignore) -> Iterator[Int64]:
    """Yields the starts of the records of a file, given its bytes in order, a buffer's worth at a time.

    A record is a line with more than white space; the last line may lack its line end, and a byte-order mark
    at the start of the file is skipped.
    """
    offset = open_start = 0
    open_filled = False
    for given in _long_first(buffers):
        buffer = given
        if offset == 0 and buffer.startswith(BYTE_ORDER_MARK):
            offset = open_start = len(BYTE_ORDER_MARK)
            buffer = buffer[offset:] or b"\n"  # a file of nothing but the mark has no record
        line_ends = np.flatnonzero(np.frombuffer(buffer, np.uint8) == 10)
        starts = np.concatenate(([0], line_ends + 1))
        filled = _filled(buffer, starts, np.append(line_ends, len(buffer)))
        filled[0] |= open_filled
        starts += offset
        starts[0] = open_start
        yield starts[:-1][filled[:-1]]
        open_start, open_filled = int(starts[-1]), bool(filled[-1])
        offset += len(buffer)
        advance(len(given))
    if open_filled:
        yield np.array([open_start], np.int64)


def _long_first(buffers: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the buffers, the first of them long enough to tell a byte-order mark."""
    begin, rest = b"", iter(buffers)
    while len(begin) <= len(BYTE_ORDER_MARK) and (buffer := next(rest, b"")):
        begin += buffer
    if begin:
        yield begin
    yield from rest


def _filled(buffer: bytes, starts: Int64, ends: Int64) -> NDArray[np.bool_]:
    """Returns which of the spans [start, end) of `buffer` hold more than white space."""
    filled = starts < ends
    first = np.frombuffer(buffer, np.uint8)[np.where(filled, starts, 0)]
    for i in np.flatnonzero(filled & _SPACE[first]).tolist():
        filled[i] = not buffer[starts[i] : ends[i]].isspace()
    return filled


def scan_of(starts: Int64, sample: str) -> Scan:
    """Returns the scan of a file of records: its chunks are those that start in one MiB of it.

    `starts` is (n + 1,): where each record starts, and the end of the file.
    """
    edges = np.searchsorted(starts[:-1], np.arange(0, starts[-1], CHUNK_BYTES))
    firsts = np.unique(np.append(edges, len(starts) - 1)).astype(np.int64)
    return Scan(
        places=starts[firsts[:-1]],
        num_documents=np.diff(firsts),
        num_bytes=np.diff(starts[firsts]),
        sample=sample,
    )
