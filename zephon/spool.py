"""Random access over readers that can only read whole chunks: each chunk is expanded once into a cache file.

Upstream: a `Reader`. Downstream: the loader. A spool file is a header, int64 offsets into it, the texts as
UTF-8 and a small table of faults. Chunks of short documents are mapped into memory, where a read costs no
system call; the others are read by position, so that resident memory does not grow with what was read. The
price is disk: the uncompressed size of the text, bounded for the whole folder. Files that can only be read
from their start are expanded whole, in one pass. Chunks that a reader finds as they are in a local file are
read there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import mmap
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from zephon import retries
from zephon.cachefiles import TEMPORARY_SUFFIX, replace_file
from zephon.descriptors import Descriptor, are_exhausted, exhausted
from zephon.errors import DataError, Fault
from zephon.files import changed
from zephon.readers import parts
from zephon.readers.base import TOKEN, Chunks, Column, Origin, Reader, Texts, Tokens, is_tokenized
from zephon.readers.kept import Remade
from zephon.readers.table import file_key
from zephon.views import View, Views

TOGETHER = 8
TOGETHER_BYTES = 256 << 20
"""Remote chunks that one block needs are read so many at a time, of so many expanded bytes together."""
MAPPED_HEAD_BYTES = 64 << 10
"""Offsets that take more than this are mapped too, so that many long chunks do not fill the heap."""
_MAGIC = b"zphspool"
_VERSION = 4
_HEADER = struct.Struct("=8sQQQQ32s")
_ABANDONED_S = 3600
_SUFFIX = ".spool"
_BUFFER_BYTES = 1 << 20
_log = logging.getLogger("zephon")


class SpoolFolder(Remade):
    """The folder of the spool files of all datasets, which is kept within a limit."""

    _made = ("_lock", "_unseen_bytes")

    def __init__(self, cache: Path, limit_bytes: int) -> None:
        self.path, self.limit_bytes = cache / "spool", limit_bytes
        self._make()

    def _make(self) -> None:
        self._lock, self._unseen_bytes = threading.Lock(), self.limit_bytes

    def trim(self, path: Path, written: int, kept: Callable[[], set[Path]]) -> None:
        """Keeps the folder within its limit once `path` was written, of so many bytes; `kept` files stay.

        It is looked at only after a good part of the limit was written.
        """
        with self._lock:
            self._unseen_bytes += written
            if self._unseen_bytes < self.limit_bytes // 64:
                return
            self._unseen_bytes = 0
        if trim(self.path, self.limit_bytes, kept() | {path}) > self.limit_bytes:
            with self._lock:
                self._unseen_bytes = self.limit_bytes


class Spool(Remade):
    """The documents of a `Reader` at random addresses."""

    _made = ("_lock", "_gates", "_folders", "_checked", "_views")

    def __init__(self, reader: Reader, origin: Origin, *, limit_bytes: int) -> None:
        self.name = origin.dataset.name
        self.is_tokenized = is_tokenized(reader)
        self.reader = reader
        self._table = parts.table_of(reader)
        self._by_file = parts.by_file(reader)
        self._in_place = parts.in_place(reader)
        self._spool = SpoolFolder(origin.cache, limit_bytes)
        self._chunks = reader.chunks()
        self._content = [_VERSION, origin.dataset.text, origin.dataset.tokens, origin.dataset.on_error]
        self._make()

    def _make(self) -> None:
        self._lock = threading.Lock()
        self._gates: dict[int, threading.Lock] = {}
        self._folders: dict[int, Path] = {}
        self._checked: set[int] = set()
        self._is_warned = False
        self._views = Views(self._open_or_expand, self._damaged)

    def chunks(self) -> Chunks:
        """Returns the chunks of the reader."""
        return self._chunks

    def texts(self, chunk: NDArray[np.int64], record: NDArray[np.int64], max_bytes: int) -> Texts:
        """Returns the documents at (chunk[i], record[i]); the first of a chunk pays for reading all of it."""
        self._open_together(chunk)
        return self._views.texts(chunk, record, max_bytes)

    def tokens(self, chunk: NDArray[np.int64], record: NDArray[np.int64], max_bytes: int) -> Tokens:
        """Returns the token ids at (chunk[i], record[i]), as `texts` does."""
        self._open_together(chunk)
        return self._views.tokens(chunk, record, max_bytes, TOKEN)

    def _open_together(self, chunks: NDArray[np.int64]) -> None:
        """Opens the remote chunks that are not open, several at a time: it is to wait for a server.

        Those that are open in place are compared with their files.
        """
        table = self._table
        if self._in_place is not None:
            self._in_place.check(chunks)
        if table is None or not (missing := self._views.missing(chunks)):
            return
        files = {chunk: table.file_of(chunk) for chunk in missing}
        wanted = [chunk for chunk in missing if table.files[files[chunk]].is_remote]
        if self._by_file is not None:
            wanted = list({files[chunk]: chunk for chunk in wanted}.values())
        if len(wanted) > 1:
            largest = int(self._chunks.num_bytes[wanted].max())
            num_threads = max(1, min(TOGETHER, TOGETHER_BYTES // max(1, largest)))
            retries.in_parallel(self._views.view, wanted, num_threads)

    def where(self, chunk: int, record: int) -> tuple[str, int]:
        """Returns the file's name and the record's number in it."""
        if self._table is not None:
            return self._table.where(chunk, record)
        return self.name, int(self._chunks.num_documents[:chunk].sum()) + record

    def identity(self) -> dict[str, Any]:
        """Returns the identity of the reader."""
        return self.reader.identity()

    def close(self) -> None:
        """Drops descriptors and maps; a later read opens them again."""
        self._views.clear()
        if self._in_place is not None:
            self._in_place.close()

    def path(self, chunk: int) -> Path:
        """Returns where the chunk is expanded to."""
        if self._table is None:
            return self._folder_of(0) / f"{chunk}{_SUFFIX}"
        file = self._table.file_of(chunk)
        return self._folder_of(file) / f"{chunk - int(self._table.first_chunks[file])}{_SUFFIX}"

    def _folder_of(self, file: int) -> Path:
        """Returns the folder of a file's chunks; it has another name when the file has changed."""
        folder = self._folders.get(file)
        if folder is None:
            if self._table is None:  # a reader of something else than files
                known: list[Any] = [self.reader.identity()]
            else:
                stamped = self._table.stamped(file)
                known = [self._table.kind, self._table.samples[file], *file_key(stamped)]
                known += parts.spool_key(self.reader, file)
            folder = self._folders[file] = self._spool.path / folder_name([*self._content, *known])
        return folder

    def _open_or_expand(self, chunk: int) -> View:
        found = None if self._in_place is None else self._in_place.view(chunk)
        if found is not None:
            return found
        path = self.path(chunk)
        view = self._open(chunk, path)
        if view is None and self._by_file is not None:
            view = self._expand_file(chunk)
        elif view is None:
            view = self._write(chunk, path, self.reader.read(chunk))
        self._checked.add(chunk)
        return view

    def _open(self, chunk: int, path: Path) -> View | None:
        num_documents = int(self._chunks.num_documents[chunk])
        return open_column(path, num_documents, check=chunk not in self._checked)

    def _expand_file(self, chunk: int) -> View:
        """Writes the spool files of all chunks of a file; returns the view of `chunk`."""
        assert self._table is not None
        assert self._by_file is not None
        file = self._table.file_of(chunk)
        with self._lock:
            gate = self._gates.setdefault(file, threading.Lock())
        with gate:
            view = self._open(chunk, self.path(chunk))
            first, last = self._table.first_chunks[file : file + 2].tolist()
            num_bytes = 0
            columns: Iterator[Column] = iter(()) if view else self._by_file.read_file(file)
            for number in range(first, last) if view is None else ():
                column = next(columns, None)
                if column is None:
                    raise self._changed(chunk, f"{number - first:,} chunks in place of {last - first:,}")
                made = self._write(number, self.path(number), column)
                num_bytes += made.size_bytes
                view = made if number == chunk else view
            if next(columns, None) is not None:
                raise self._changed(chunk, f"more than {last - first:,} chunks")
        assert view is not None
        self._warn_if_small(chunk, num_bytes)
        return view

    def _warn_if_small(self, chunk: int, num_bytes: int) -> None:
        """Says once that the spool cannot hold a file, which is expanded whole for any of its chunks."""
        if num_bytes > self._spool.limit_bytes and not self._is_warned:
            self._is_warned = True
            _log.warning(
                "dataset %r: %s takes %s bytes expanded, and the spool may hold %s: it is expanded again and "
                "again; set `spool_bytes` to more than all files take that are read at a time, or cut it",
                self.name,
                self.where(chunk, 0)[0],
                f"{num_bytes:,}",
                f"{self._spool.limit_bytes:,}",
            )

    def _changed(self, chunk: int, got: str) -> DataError:
        return changed(self.name, self.where(chunk, 0)[0], got)

    def _write(self, chunk: int, path: Path, column: Column) -> View:
        """Writes the spool file of a chunk, and returns its view, opened before others can remove it."""
        num_documents, got = int(self._chunks.num_documents[chunk]), len(column.offsets) - 1
        if got != num_documents:
            raise self._changed(chunk, f"{got:,} records in a chunk of {num_documents:,}")
        view = write_column(path, column)
        self._spool.trim(path, view.size_bytes, lambda: set(map(self.path, self._views.open_chunks())))
        return view

    def _damaged(self, chunk: int) -> DataError:
        """Removes a spool file that does not hold what was written, and returns the error that says so."""
        self._views.drop(chunk)
        if self._in_place is not None and self._in_place.view(chunk) is not None:
            return self._changed(chunk, "bytes that are not UTF-8, or too few")
        return remove_damaged(self.name, self.path(chunk))


def remove_damaged(dataset: str, path: Path) -> DataError:
    """Removes a spool file that does not hold what was written, and returns the error that says so."""
    path.unlink(missing_ok=True)
    return DataError.explained(
        f"dataset {dataset!r}: spool file {path} is damaged",
        got="bytes that are not UTF-8, or too few",
        rule="a spool file holds what its reader gave, as UTF-8",
        cure="start again: the file is removed and made anew; if this recurs, mend the reader",
    )


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


def folder_name(parts: list[Any]) -> str:
    """Returns the name of the folder for what `parts`, JSON data, tell from anything else."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _frame(column: Column) -> tuple[bytes, bytes]:
    """Returns what stands before the texts in a spool file, and what stands after them."""
    faults = [(i, astuple(fault)) for i, fault in column.faults]
    table = json.dumps({"faults": faults, "replaced": column.replaced}).encode()
    base = _HEADER.size + 8 * len(column.offsets)
    offsets = (column.offsets + base).tobytes()
    sizes = (len(column.offsets) - 1, len(column.data), len(table))
    digest = _digest(sizes, zlib.crc32(column.data), offsets, table)
    return _HEADER.pack(_MAGIC, _VERSION, *sizes, digest) + offsets, table


def _digest(sizes: tuple[int, int, int], text_crc: int, offsets: bytes | memoryview, table: bytes) -> bytes:
    digest = hashlib.sha256(repr((sizes, text_crc)).encode())
    digest.update(offsets)
    digest.update(table)
    return digest.digest()


def write_column(path: Path, column: Column) -> View:
    """Writes a spool file, and returns its view, opened before others can remove it.

    A file with a hole, as a power cut may leave it, is found out by its hash and made again.
    """
    head, table = _frame(column)
    views: list[View | None] = []

    def write(target: BinaryIO) -> None:
        target.write(head)
        target.write(column.data)
        target.write(table)
        target.flush()
        views.append(_view_of(Descriptor(os.dup(target.fileno())), None, check=False))

    replace_file(path, write, sync=False)
    [view] = views
    assert view is not None
    return view


def open_column(path: Path, num_documents: int | None, *, check: bool) -> View | None:
    """Returns the view of a spool file, or None if there is none in good order; marks the file as used.

    In good order has `num_documents`, where that is known; `check` reads all of it and asks for its hash too.
    """
    try:
        file = Descriptor(os.open(path, os.O_RDONLY))
        with contextlib.suppress(OSError):  # another user's file
            os.utime(file.number)
        return _view_of(file, num_documents, check=check)
    except OSError as error:
        if are_exhausted(error):
            raise exhausted(f"spool file {path}", error) from error
        return None


def _view_of(file: Descriptor, num_documents: int | None, *, check: bool) -> View | None:
    """Returns the view of an open spool file, or None if it is not in good order."""
    descriptor = file.number
    size_bytes = os.fstat(descriptor).st_size
    header = os.pread(descriptor, _HEADER.size, 0)
    if len(header) < _HEADER.size:
        return None
    magic, version, num, num_text, num_table, digest = _HEADER.unpack(header)
    base = _HEADER.size + 8 * (num + 1)
    expected = (_MAGIC, _VERSION, num if num_documents is None else num_documents, size_bytes)
    if (magic, version, num, base + num_text + num_table) != expected:
        return None
    head: bytes | mmap.mmap = (
        os.pread(descriptor, base, 0)
        if base <= MAPPED_HEAD_BYTES
        else mmap.mmap(descriptor, base, access=mmap.ACCESS_READ)
    )
    if isinstance(head, mmap.mmap):
        file.count(1)
    offsets = memoryview(head)[_HEADER.size :]
    table = os.pread(descriptor, num_table, base + num_text)
    if check:
        crc = _crc(descriptor, base, base + num_text)
        if _digest((num, num_text, num_table), crc, offsets, table) != digest:
            return None
    loaded = json.loads(table)
    return View(
        hot=(None, descriptor, offsets.cast("q"), bool(loaded["faults"] or loaded["replaced"])),
        file=file,
        faults={i: Fault(*fault) for i, fault in loaded["faults"]},
        replaced=frozenset(loaded["replaced"]),
        size_bytes=size_bytes,
    )


def _crc(descriptor: int, start: int, end: int) -> int:
    """Returns the checksum of the bytes [start, end) of an open file."""
    crc = 0
    for place in range(start, end, _BUFFER_BYTES):
        crc = zlib.crc32(os.pread(descriptor, min(_BUFFER_BYTES, end - place), place), crc)
    return crc
