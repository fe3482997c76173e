"""Random access over readers that can only read whole chunks: each chunk is expanded once into a cache file.

Upstream: a `Reader`. Downstream: the loader. A spool file is a header, int64 offsets into it, the texts as
UTF-8 and a small table of faults. Chunks of short documents are mapped into memory, where a read costs no
system call; the others are read by position, so that resident memory does not grow with what was read. The
price is disk: the uncompressed size of the text, bounded for the whole folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import struct
import threading
import time
from dataclasses import astuple
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zephon.cachefiles import TEMPORARY_SUFFIX, replace_file
from zephon.errors import DataError, Fault
from zephon.readers.base import Chunks, Column, Origin, Reader, Texts, changed, labels, max_open

MAX_OPEN_CHUNKS = 512
MAPPED_BYTES = 128 << 20
MAPPED_MEAN_BYTES = 2048
"""Chunks are mapped where their documents are no longer than this on average and the budget has room."""
MAPPED_HEAD_BYTES = 64 << 10
"""Offsets that take more than this are mapped too, so that many long chunks do not fill the heap."""
_MAGIC = b"zphspool"
_VERSION = 2
_HEADER = struct.Struct("=8sQQQQ32s")
_ABANDONED_S = 3600
_SUFFIX = ".spool"


class _Descriptor:
    """An open file that is closed when the last view of it goes."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class _View(NamedTuple):
    """An open spool file."""

    hot: tuple[mmap.mmap | None, int, memoryview, bool]
    """What every read needs: the map if there is one, the descriptor, the byte of the file at which each text
    starts and the last ends, and whether any document is faulty or had surrogates replaced."""
    file: _Descriptor
    faults: dict[int, Fault]
    replaced: frozenset[int]
    size_bytes: int


class Spool:
    """The documents of a `Reader` at random addresses."""

    def __init__(
        self, reader: Reader, origin: Origin, *, limit_bytes: int, mapped_bytes: int = MAPPED_BYTES
    ) -> None:
        self.name = origin.dataset.name
        self._reader = reader
        self._folder = origin.cache / "spool"
        self._limit_bytes = limit_bytes
        self._mapped_bytes = mapped_bytes
        self._chunks = reader.chunks()
        self._places(origin)
        self._reset()

    def _places(self, origin: Origin) -> None:
        """Finds every chunk's file, number and first record in that file, and a key for every file."""
        identity = self._reader.identity()
        bounds = np.append(0, np.cumsum(self._chunks.num_documents))
        entries: list[Any] = identity.get("files", [])
        ends = np.cumsum([entry[2] for entry in entries], dtype=np.int64)
        known = [(file.path, file.mtime_ns, file.ctime_ns) for file in origin.files]
        names = labels(origin.files)
        if not entries or len(entries) != len(known) or not np.isin(ends, bounds).all():
            # A reader of something else than files: all its chunks are known by its identity.
            entries, ends, known, names = [identity], bounds[-1:], [("", 0, 0)], [self.name]
        self._names = names
        self._keys = [
            _key([_VERSION, identity["kind"], origin.dataset.text, entry, *stamp])
            for entry, stamp in zip(entries, known, strict=True)
        ]
        starts = np.append(0, ends[:-1])
        self._chunk_file = np.searchsorted(ends, bounds[:-1], side="right")  # (C,) int64
        self._chunk_first = bounds[:-1] - starts[self._chunk_file]  # (C,) int64
        first_chunk = np.searchsorted(bounds, starts)
        self._chunk_number = np.arange(len(bounds) - 1) - first_chunk[self._chunk_file]  # (C,) int64

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._gates: dict[int, threading.Lock] = {}
        self._views: dict[int, _View] = {}  # the first opened come first, and go first
        self._views_bytes = 0  # of those that are mapped
        self._checked: set[int] = set()
        self._max_views = max_open(MAX_OPEN_CHUNKS)
        self._unseen_bytes = self._limit_bytes

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_lock", "_gates", "_views", "_checked"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def chunks(self) -> Chunks:
        """Returns the chunks of the reader."""
        return self._chunks

    def texts(self, chunk: NDArray[np.int64], record: NDArray[np.int64], max_bytes: int) -> Texts:
        """Returns the documents at (chunk[i], record[i]), in the order asked; `max_bytes` counts UTF-8.

        A document of an open chunk costs about 0.4 microseconds, 1 where the chunk is not mapped; the
        first of a chunk pays for reading the whole chunk.
        """
        chunks, records = chunk.tolist(), record.tolist()
        views, any_marked = self._views, False
        texts: list[str] = []
        append, pread = texts.append, os.pread
        total, c = 0, -1
        try:
            for c, r in zip(chunks, records, strict=True):
                view = views.get(c) or self._view(c)
                data, number, bounds, marked = view.hot
                start = bounds[r]
                end = bounds[r + 1]
                if data is not None:
                    append(data[start:end].decode())
                else:
                    append(pread(number, end - start, start).decode())
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
            view = self._view(c)
            if r in view.faults:
                out.faults.append((i, view.faults[r]))
            if r in view.replaced:
                out.num_replaced.append(i)
        return out

    def where(self, chunk: int, record: int) -> tuple[str, int]:
        """Returns the file's name and the record's number in it."""
        return self._names[int(self._chunk_file[chunk])], int(self._chunk_first[chunk]) + record

    def identity(self) -> dict[str, Any]:
        """Returns the identity of the reader."""
        return self._reader.identity()

    def close(self) -> None:
        """Drops descriptors and maps; a later read opens them again."""
        with self._lock:
            self._views.clear()
            self._views_bytes = 0

    def path(self, chunk: int) -> Path:
        """Returns where the chunk is expanded to."""
        number = int(self._chunk_number[chunk])
        return self._folder / self._keys[int(self._chunk_file[chunk])] / f"{number}{_SUFFIX}"

    def _view(self, chunk: int) -> _View:
        """Returns the open chunk, expanding it first if needed; other threads that want it wait."""
        view = self._views.get(chunk)
        if view is not None:
            return view
        with self._lock:
            gate = self._gates.setdefault(chunk, threading.Lock())
        with gate:
            view = self._views.get(chunk)
            if view is None:
                view = self._open_or_expand(chunk)
                self._keep(chunk, view)
        return view

    def _open_or_expand(self, chunk: int) -> _View:
        path = self.path(chunk)
        num_documents = int(self._chunks.num_documents[chunk])
        view = _open(path, num_documents, check=chunk not in self._checked)
        if view is None:
            view = self._expand(chunk, path, num_documents)
            self._trim(path, view.size_bytes)
        self._checked.add(chunk)
        return view

    def _expand(self, chunk: int, path: Path, num_documents: int) -> _View:
        """Writes the spool file of a chunk, opened before others can remove it."""
        column = self._reader.read(chunk)
        got = len(column.offsets) - 1
        if got != num_documents:
            name, _ = self.where(chunk, 0)
            raise changed(self.name, name, f"{got:,} records in a chunk of {num_documents:,}")
        head, table = _frame(column)

        views: list[_View | None] = []

        def write(target: BinaryIO) -> None:
            target.write(head)
            target.write(column.data)
            target.write(table)
            target.flush()
            views.append(_view_of(_Descriptor(os.dup(target.fileno())), num_documents, check=False))

        replace_file(path, write)
        [view] = views
        assert view is not None
        return view

    def _keep(self, chunk: int, view: _View) -> None:
        """Keeps the view, mapped if it is worth it, and drops those opened first over the limit."""
        mean_bytes = view.size_bytes // max(1, int(self._chunks.num_documents[chunk]))
        with self._lock:
            self._gates.pop(chunk, None)
            while len(self._views) >= self._max_views:
                self._drop(next(iter(self._views)))
            if mean_bytes <= MAPPED_MEAN_BYTES and self._views_bytes + view.size_bytes <= self._mapped_bytes:
                data = mmap.mmap(view.file.number, 0, access=mmap.ACCESS_READ)
                view = view._replace(hot=(data, *view.hot[1:]))
                self._views_bytes += view.size_bytes
            self._views[chunk] = view

    def _drop(self, chunk: int) -> None:
        """Lets go of a view, if there is one; a thread that reads it keeps it until it is done."""
        view = self._views.pop(chunk, None)
        if view is not None and view.hot[0] is not None:
            self._views_bytes -= view.size_bytes

    def _damaged(self, chunk: int) -> DataError:
        """Removes a spool file of which the texts are not UTF-8, and returns the error that says so."""
        path = self.path(chunk)
        path.unlink(missing_ok=True)
        with self._lock:
            self._drop(chunk)
        return DataError.explained(
            f"dataset {self.name!r}: spool file {path} is damaged",
            got="bytes that are not UTF-8",
            rule="a spool file holds what its reader gave, as UTF-8",
            cure="start again: the file is removed and made anew; if this recurs, mend the reader",
        )

    def _trim(self, path: Path, written: int) -> None:
        """Keeps the folder within its limit; looks at it only after a good part of the limit was written."""
        with self._lock:
            self._unseen_bytes += written
            if self._unseen_bytes < self._limit_bytes // 64:
                return
            self._unseen_bytes = 0
            mapped = {self.path(chunk) for chunk in self._views} | {path}
        total = trim(self._folder, self._limit_bytes, mapped)
        if total > self._limit_bytes:
            with self._lock:
                self._unseen_bytes = self._limit_bytes


def trim(folder: Path, limit_bytes: int, kept: set[Path]) -> int:
    """Removes the least recently opened spool files until the rest fit `limit_bytes`; returns their bytes.

    Files in `kept` stay. Temporary files of dead processes go once they are an hour old.
    """
    found: list[tuple[int, int, Path]] = []
    for path in folder.glob("*/*"):
        with contextlib.suppress(OSError):
            status = path.stat()
            if path.suffix == TEMPORARY_SUFFIX and status.st_mtime < time.time() - _ABANDONED_S:
                path.unlink()
            elif path.suffix == _SUFFIX:
                found.append((status.st_mtime_ns, status.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= limit_bytes:
            break
        if path not in kept:
            # Another process may have removed it, or may have it mapped: its map stays good.
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
    return total


def _key(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _frame(column: Column) -> tuple[bytes, bytes]:
    """Returns what stands before the texts in a spool file, and what stands after them."""
    faults = [(i, astuple(fault)) for i, fault in column.faults]
    table = json.dumps({"faults": faults, "replaced": column.replaced}).encode()
    base = _HEADER.size + 8 * len(column.offsets)
    offsets = (column.offsets + base).tobytes()
    sizes = (len(column.offsets) - 1, len(column.data), len(table))
    digest = _digest(sizes, offsets, table)
    return _HEADER.pack(_MAGIC, _VERSION, *sizes, digest) + offsets, table


def _digest(sizes: tuple[int, int, int], offsets: bytes | memoryview, table: bytes) -> bytes:
    digest = hashlib.sha256(repr(sizes).encode())
    digest.update(offsets)
    digest.update(table)
    return digest.digest()


def _open(path: Path, num_documents: int, *, check: bool) -> _View | None:
    """Returns the view of a spool file, or None if there is none in good order; marks the file as used."""
    try:
        file = _Descriptor(os.open(path, os.O_RDONLY))
        with contextlib.suppress(OSError):  # another user's file
            os.utime(file.number)
        return _view_of(file, num_documents, check=check)
    except OSError:
        return None


def _view_of(file: _Descriptor, num_documents: int, *, check: bool) -> _View | None:
    """Returns the view of an open spool file, or None if it does not hold `num_documents` in good order.

    `check` asks for the hash of the offsets too.
    """
    descriptor = file.number
    size_bytes = os.fstat(descriptor).st_size
    base = _HEADER.size + 8 * (num_documents + 1)
    if size_bytes < base:
        return None
    head: bytes | mmap.mmap = (
        os.pread(descriptor, base, 0)
        if base <= MAPPED_HEAD_BYTES
        else mmap.mmap(descriptor, base, access=mmap.ACCESS_READ)
    )
    magic, version, num, num_text, num_table, digest = _HEADER.unpack_from(head)
    if (magic, version, num, base + num_text + num_table) != (_MAGIC, _VERSION, num_documents, size_bytes):
        return None
    offsets = memoryview(head)[_HEADER.size :]
    table = os.pread(descriptor, num_table, base + num_text)
    if check and _digest((num, num_text, num_table), offsets, table) != digest:
        return None
    loaded = json.loads(table)
    return _View(
        hot=(None, descriptor, offsets.cast("q"), bool(loaded["faults"] or loaded["replaced"])),
        file=file,
        faults={i: Fault(*fault) for i, fault in loaded["faults"]},
        replaced=frozenset(loaded["replaced"]),
        size_bytes=size_bytes,
    )
