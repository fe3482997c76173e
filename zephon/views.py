"""Documents at random addresses of open chunks: a file, and where each document begins in it.

Upstream: who opens a chunk, the spool or a reader of files that need none. Downstream: `Texts` and `Tokens`.
Views of short documents are mapped into memory, where a read costs no system call; the others are read by
position, so that resident memory does not grow with what was read and a file that shrinks is an error.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zephon.descriptors import Descriptor, Held
from zephon.errors import DataError, Fault
from zephon.readers.base import TOKEN, Texts, Tokens

MAX_OPEN_CHUNKS = 512
MAPPED_BYTES = 128 << 20
MAPPED_MEAN_BYTES = 2048
"""Chunks are mapped where their documents are no longer than this on average and the budget has room."""

Int64 = NDArray[np.int64]


class View(NamedTuple):
    """An open chunk."""

    hot: tuple[mmap.mmap | None, int, memoryview, bool]
    """What every read needs: the map if there is one, the descriptor, the byte of the file at which each
    document starts and the last ends, and whether any is faulty or had surrogates replaced."""
    file: Descriptor
    faults: dict[int, Fault]
    replaced: frozenset[int]
    size_bytes: int
    """What a map of it takes."""
    may_map: bool = True
    """Whether nobody else can shrink the file: reading a map beyond the end of its file ends the process."""


class Views:
    """The chunks of one dataset that are open, the latest of them; safe to use from several threads.

    So many as MAX_OPEN_CHUNKS and the descriptors of the process allow.
    """

    def __init__(self, open_view: Callable[[int], View], damaged: Callable[[int], DataError]) -> None:
        """`open_view` opens a chunk; `damaged` makes the error of one whose bytes are not what they were."""
        self._open_view, self._damaged = open_view, damaged
        self._lock = threading.Lock()
        self._gates: dict[int, threading.Lock] = {}
        self._views: dict[int, View] = {}  # the first opened come first, and go first
        self._views_bytes = 0  # of those that are mapped
        self._max_views = MAX_OPEN_CHUNKS

    def texts(self, chunk: Int64, record: Int64, max_bytes: int) -> Texts:
        """Returns the texts at (chunk[i], record[i]), in the order asked; `max_bytes` counts UTF-8.

        A text of an open chunk costs about 0.4 microseconds, 1 where the chunk is not mapped.
        """
        chunks, records = chunk.tolist(), record.tolist()
        views, any_marked = self._views, False
        texts: list[str] = []
        append, pread = texts.append, os.pread
        total, c = 0, -1
        try:
            for c, r in zip(chunks, records, strict=True):
                view = views.get(c) or self.view(c)
                data, number, bounds, marked = view.hot
                start = bounds[r]
                end = bounds[r + 1]
                if data is not None:
                    append(data[start:end].decode())
                else:
                    raw = pread(number, end - start, start)
                    if len(raw) != end - start:
                        raw = self._whole(c, number, start, end)
                    append(raw.decode())
                total += end - start
                if marked:
                    any_marked = True
                if total >= max_bytes:
                    break
        except UnicodeDecodeError as error:
            raise self._damaged(c) from error
        return self._marked(texts, chunks, records) if any_marked else Texts(texts)

    def _marked(self, texts: list[str], chunks: list[int], records: list[int]) -> Texts:
        """Returns the texts with the faults and replacements of their chunks."""
        out = Texts(texts)
        for i, (c, r) in enumerate(zip(chunks[: len(texts)], records, strict=False)):
            view = self.view(c)
            if r in view.faults:
                out.faults.append((i, view.faults[r]))
            if r in view.replaced:
                out.num_replaced.append(i)
        return out

    def tokens(self, chunk: Int64, record: Int64, max_bytes: int, dtype: np.dtype[np.integer]) -> Tokens:
        """Returns the token ids at (chunk[i], record[i]), in the order asked; the file has `dtype`s.

        `max_bytes` counts them as `TOKEN`s, whatever the file has, so that a block takes no more than one of
        text. A document costs about as much as a text does in `texts`, and its bytes.
        """
        chunks, records = chunk.tolist(), record.tolist()
        max_size = -(-max_bytes * dtype.itemsize // TOKEN.itemsize)
        views = self._views
        parts: list[bytes] = []
        sizes: list[int] = []
        faults: list[tuple[int, Fault]] = []
        append, add_size, pread = parts.append, sizes.append, os.pread
        total = 0
        for c, r in zip(chunks, records, strict=True):
            view = views.get(c) or self.view(c)
            data, number, bounds, marked = view.hot
            start = bounds[r]
            end = bounds[r + 1]
            size = end - start
            if data is not None:
                append(data[start:end])
            elif size:
                raw = pread(number, size, start)
                append(raw if len(raw) == size else self._whole(c, number, start, end))
            if marked and r in view.faults:
                faults.append((len(sizes), view.faults[r]))
            add_size(size)
            total += size
            if total >= max_size:
                break
        lengths = np.array(sizes, np.int64) // dtype.itemsize
        return Tokens(np.frombuffer(b"".join(parts), dtype), lengths, faults)

    def _whole(self, chunk: int, descriptor: int, start: int, end: int) -> bytes:
        """Returns the bytes [start, end) of an open file: one call gives at most 2 GiB."""
        data = b""
        while len(data) < end - start:
            more = os.pread(descriptor, end - start - len(data), start + len(data))
            if not more:
                raise self._damaged(chunk)
            data += more
        return data

    def view(self, chunk: int) -> View:
        """Returns the open chunk, opening it first if needed; other threads that want it wait."""
        view = self._views.get(chunk)
        if view is not None:
            return view
        with self._lock:
            gate = self._gates.setdefault(chunk, threading.Lock())
        with gate:
            try:
                view = self._views.get(chunk)
                if view is None:
                    view = self._keep(chunk, self._open_view(chunk))
            finally:
                with self._lock:
                    if self._gates.get(chunk) is gate:
                        del self._gates[chunk]
        return view

    def _keep(self, chunk: int, view: View) -> View:
        """Keeps the view, mapped if it is worth it, and drops those opened first over the limit."""
        mean_bytes = view.size_bytes // max(1, len(view.hot[2]) - 1)
        with self._lock:
            self._drop(chunk)  # another thread may have opened it after it was dropped
            while len(self._views) >= self._max_views:
                self._drop(next(iter(self._views)))
            fits = self._views_bytes + view.size_bytes <= MAPPED_BYTES and mean_bytes <= MAPPED_MEAN_BYTES
            if fits and view.may_map:
                with contextlib.suppress(OSError):  # no descriptor, no map: it is read by position
                    data = mmap.mmap(view.file.number, 0, access=mmap.ACCESS_READ)
                    view.file.close()
                    view = view._replace(hot=(data, -1, *view.hot[2:]))
                    self._views_bytes += view.size_bytes
            view.file.owned_by(self)
            self._views[chunk] = view
        return view

    def release(self, held: Held) -> None:
        """Lets go of the chunks that are open by `held`."""
        with self._lock:
            for chunk in [chunk for chunk, view in self._views.items() if view.file is held]:
                self._drop(chunk)

    def missing(self, chunks: Int64) -> list[int]:
        """Returns those of `chunks` that are not open, each once, in the order given."""
        views = self._views
        return [chunk for chunk in dict.fromkeys(chunks.tolist()) if chunk not in views]

    def open_chunks(self) -> list[int]:
        """Returns the chunks that are open."""
        with self._lock:
            return list(self._views)

    def drop(self, chunk: int) -> None:
        """Lets go of a chunk, if it is open; a thread that reads it keeps it until it is done."""
        with self._lock:
            self._drop(chunk)

    def _drop(self, chunk: int) -> None:
        view = self._views.pop(chunk, None)
        if view is not None and view.hot[0] is not None:
            self._views_bytes -= view.size_bytes

    def clear(self) -> None:
        """Drops descriptors and maps; a later read opens them again."""
        with self._lock:
            self._views.clear()
            self._views_bytes = 0
