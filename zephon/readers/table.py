"""The chunks of a dataset's files: what one look at each file says, put together.

Upstream: a reader's scan of one file, the cache of scans, or a catalogue. Downstream: readers, which find
their files and places here, and through them order, spool and lock. With a catalogue the columns are mapped
from its file, so nothing here is made by chunk.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from zephon import retries
from zephon.cachefiles import replace_file
from zephon.errors import DataError
from zephon.files import rewritten, sample, stamped, touched_ns
from zephon.paths import DataFile
from zephon.readers.base import Chunks, Origin, labels

NUM_THREADS = 8
"""Files looked at together; most of the time is spent waiting for them."""
CONTENT_STAMPS = ("blob_id", "xet_hash", "md5Hash", "content_md5")
"""Kinds of `etag` that are hashes of the content."""
DAMAGED = -1
"""The place of the one record that stands for what cannot be read: a file, or what follows a damage."""
_VERSION = 2

Int64 = NDArray[np.int64]
Ints = NDArray[np.integer[Any]]
Advance = Callable[[int], None]
"""Takes the bytes that are done with."""
ScanFile = Callable[[DataFile, Advance], "Scan"]
Key = Sequence[object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What one look at a file says of it: its chunks, in file order."""

    places: Int64
    """(c,) where each chunk begins, as its reader counts: the number of a row group, a byte."""
    num_documents: Int64
    """(c,) all >= 1."""
    num_bytes: Int64
    """(c,) weight of each chunk, the same on every machine."""
    sample: str
    """Hash of some of the file's bytes, for the lock."""

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[int, int, int]], sample: str) -> Scan:
        """Returns the scan of chunks given as (place, documents, weight)."""
        places, num_documents, num_bytes = np.array(rows, np.int64).reshape(len(rows), 3).T.copy()
        return cls(places=places, num_documents=num_documents, num_bytes=num_bytes, sample=sample)

    @classmethod
    def damaged(cls, sample: str) -> Scan:
        """Returns the scan of a file that is one bad record."""
        return cls.from_rows([(DAMAGED, 1, 1)], sample)


@dataclass(frozen=True)
class ChunkTable:
    """All chunks of a dataset; the columns may be mapped from a file and have any integer type."""

    name: str
    kind: str
    files: Sequence[DataFile]
    samples: Sequence[str]
    """One per file."""
    first_chunks: Int64
    """(F + 1,) the first chunk of each file, and the number of chunks."""
    places: Ints
    num_documents: Ints
    num_bytes: Ints
    _current: dict[int, DataFile] = field(default_factory=dict, repr=False, compare=False)
    _touched_ns: dict[int, int] = field(default_factory=dict, repr=False, compare=False)
    """The ctime of files that were touched since they were listed and have the same sample."""

    def current(self, number: int, sample: Callable[[DataFile], str]) -> DataFile:
        """Returns a file with its stamps; one that was listed without is compared with its sample first.

        So is a local one whose ctime is another than when it was listed: links, modes and names change that,
        too. Raises `DataError` where the sample differs.
        """
        file = self._current.get(number)
        if file is None:
            listed, file = self.files[number], self.stamped(number)
            if file is not listed and sample(file) != self.samples[number]:
                raise self._outdated(listed, "other content")
            self._current[number] = file
        if not file.is_remote and (at := touched_ns(file)) != self._touched_ns.get(number, file.ctime_ns):
            if sample(file) != self.samples[number]:
                raise rewritten(self.name, file)
            self._touched_ns[number] = at
        return file

    def stamped(self, number: int) -> DataFile:
        """Returns a file with its stamps, which a catalogue lists without."""
        listed = self.files[number]
        try:
            return with_stamps(self.name, listed)
        except DataError as error:
            has_stamps = listed.mtime_ns or listed.etag
            raise error if has_stamps else self._outdated(listed, str(error)) from None

    def _outdated(self, file: DataFile, found: str) -> DataError:
        """Returns the error of a file that is not what a catalogue, which has no stamps, says of it."""
        got = re.search(r"got: +(.*)", found)
        return DataError.explained(
            f"dataset {self.name!r}: {file.shown} changed since it was listed",
            got=got[1] if got else found,
            rule="the files of a dataset stay as they were when they were looked at",
            cure="bring the file back, or run `zephon index` again where the recipe has a catalogue",
        )

    def chunks(self) -> Chunks:
        """Returns what the order needs to know."""
        return Chunks(self.num_documents, self.num_bytes)

    def file_of(self, chunk: int) -> int:
        """Returns the number of the file that holds `chunk`."""
        return int(np.searchsorted(self.first_chunks, chunk, side="right")) - 1

    @cached_property
    def first_documents(self) -> Int64:
        """Returns the documents ahead of each chunk and all of them, (C + 1,)."""
        return np.append(0, np.cumsum(self.num_documents, dtype=np.int64))

    @cached_property
    def num_records(self) -> list[int]:
        """Returns the documents of each file."""
        filled = np.append(self.num_documents, 0)  # reduceat needs an element at every start
        sums = np.add.reduceat(filled, self.first_chunks[:-1], dtype=np.int64)
        sums[np.diff(self.first_chunks) == 0] = 0
        return [int(number) for number in sums.tolist()]

    @cached_property
    def labels(self) -> list[str]:
        """Returns what to call each file in messages."""
        return labels(self.files)

    def where(self, chunk: int, record: int) -> tuple[str, int]:
        """Returns the file as users know it, and the record's number in it."""
        file = self.file_of(chunk)
        ahead = self.num_documents[int(self.first_chunks[file]) : chunk]
        return self.labels[file], int(ahead.sum()) + record

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Returns what the lock keeps: kind, counts, and name, size, count and sample of every file."""
        rows = zip(self.files, self.num_records, self.samples, strict=True)
        return {
            "kind": self.kind,
            "num_documents": sum(self.num_records),
            "files": [[file.name, file.size_bytes, num, sample] for file, num, sample in rows],
        }


class TableReader:
    """What readers of files have alike: what their table says, and files as they stand."""

    name: str
    table: ChunkTable

    def chunks(self) -> Chunks:
        """Returns the chunks of all files, in file order."""
        return self.table.chunks()

    def where(self, chunk: int, record: int) -> tuple[str, int]:
        """Returns the file's name and the record's number in it."""
        return self.table.where(chunk, record)

    def identity(self) -> dict[str, Any]:
        """Returns the kind, the counts and a sample of each file."""
        return self.table.identity

    def _sample(self, file: DataFile) -> str:
        return sample(self.name, file)

    def _file(self, number: int) -> DataFile:
        """Returns a file with its stamps, compared with its sample where it was touched."""
        return self.table.current(number, self._sample)

    def _file_of(self, chunk: int) -> tuple[int, DataFile]:
        """Returns the number of the chunk's file, and the file as `_file` gives it."""
        number = self.table.file_of(chunk)
        return number, self._file(number)


def open_table(
    origin: Origin, kind: str, scan: ScanFile, *, key: Key | Callable[[DataFile], Key], by_bytes: bool = True
) -> ChunkTable:
    """Returns the table of a dataset: that of its catalogue, or of a scan of each file.

    A scan is kept in the cache under `key`, what it depends on besides the file (or a function that returns
    this of one file), and made once; with an empty `key` it is not kept. `by_bytes` says whether a scan reads
    whole files, for the progress reported.
    """
    if origin.table is not None:
        return origin.table
    progress = Progress(origin, by_bytes=by_bytes)

    def look(file: DataFile) -> Scan:
        known = key(file) if callable(key) else key
        if not known:
            return scan(file, progress.bytes_done)
        path = _scan_path(origin.cache, [kind, *known], with_stamps(origin.dataset.name, file))
        found = _read_scan(path)
        if found is None:
            found = scan(file, progress.bytes_done)
            replace_file(path, lambda target: _write_scan(found, target), sync=False)
        else:
            progress.bytes_done(file.size_bytes)
        return found

    scans: list[Scan] = []
    for found in retries.each(look, origin.files, NUM_THREADS):
        scans.append(found)
        progress.file_done()
    return table_of(origin, kind, scans)


def table_of(origin: Origin, kind: str, scans: Sequence[Scan]) -> ChunkTable:
    """Returns the table of the origin's files, of which `scans` are the looks."""
    return ChunkTable(
        name=origin.dataset.name,
        kind=kind,
        files=origin.files,
        samples=[scan.sample for scan in scans],
        first_chunks=np.append(0, np.cumsum([len(scan.places) for scan in scans], dtype=np.int64)),
        places=_joined([scan.places for scan in scans]),
        num_documents=_joined([scan.num_documents for scan in scans]),
        num_bytes=_joined([scan.num_bytes for scan in scans]),
    )


class Progress:
    """Adds up what is done of a scan, over threads, and reports it."""

    def __init__(self, origin: Origin, *, by_bytes: bool) -> None:
        self._report, self._by_bytes = origin.report, by_bytes
        self._what = f"{'index' if by_bytes else 'footers'} {origin.dataset.name}"
        sizes = [file.size_bytes for file in origin.files]
        self._total = sum(sizes) if by_bytes else len(sizes)
        self._done, self._lock = 0, threading.Lock()

    def bytes_done(self, num_bytes: int) -> None:
        """Counts bytes that are read."""
        if self._by_bytes:
            self._add(num_bytes)

    def file_done(self) -> None:
        """Counts a file."""
        if not self._by_bytes:
            self._add(1)

    def _add(self, number: int) -> None:
        if self._report is not None:
            with self._lock:
                self._done += number
                self._report(self._what, self._done, self._total)


def file_key(file: DataFile) -> list[Any]:
    """Returns what tells a file from any other that stood, or will stand, at its path."""
    if file.etag.partition(" ")[0] in CONTENT_STAMPS:  # the same content at another commit is the same file
        return [file.size_bytes, file.etag]
    return [file.path, file.size_bytes, file.mtime_ns, file.ctime_ns, file.etag]


def with_stamps(dataset: str, file: DataFile) -> DataFile:
    """Returns `file` with the stamps that tell it from a changed one.

    Files of a catalogue, and those of servers that give none, are listed without: these are looked at now.
    """
    return file if file.mtime_ns or file.etag else stamped(dataset, file)


def _scan_path(cache: Path, key: Sequence[object], file: DataFile) -> Path:
    text = json.dumps([_VERSION, *key, *file_key(file)])
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return cache / "index" / digest[:2] / f"{digest}.scan"


def _write_scan(scan: Scan, target: BinaryIO) -> None:
    columns = np.stack([scan.places, scan.num_documents, scan.num_bytes]).astype("<i8")
    data = scan.sample.encode() + b"\n" + columns.tobytes()
    target.write(hashlib.sha256(data).digest() + data)


def _read_scan(path: Path) -> Scan | None:
    """Returns the scan at `path`, or None where there is none in good order."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        return None
    sample, _, body = data[32:].partition(b"\n")
    columns = np.frombuffer(body, "<i8").reshape(3, -1)  # not a .npy file: threads may not parse its header
    return Scan(places=columns[0], num_documents=columns[1], num_bytes=columns[2], sample=sample.decode())


def _joined(arrays: Sequence[Int64]) -> Int64:
    return np.concatenate([np.empty(0, np.int64), *arrays])
