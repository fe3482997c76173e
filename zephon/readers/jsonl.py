"""JSONL datasets on local disks: records read in place, at byte offsets of an index.

Upstream: `lines.py`, which finds the records. Downstream: the loader. Files are read with `pread` and never
mapped, so a file that shrinks is an error message and not a dead process. Compressed and remote files are
read in whole chunks, by `ranges.py`.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pyarrow as pa

from zephon.descriptors import Descriptor, Held
from zephon.files import SAMPLE_BYTES, changed, check_unchanged, open_unchanged, rewritten, sample_of
from zephon.paths import DataFile
from zephon.readers.base import TOKEN, Origin, Reader, Texts, Tokens
from zephon.readers.expanded import is_compressed
from zephon.readers.json_records import JsonlRecords, parse, parse_column, parse_values
from zephon.readers.kept import Remade
from zephon.readers.lines import Int64, load_starts, scan_of
from zephon.readers.parts import RecordSource
from zephon.readers.ranges import ByFile, ByRange
from zephon.readers.table import Advance, Scan, TableReader, open_table

MAX_OPEN_FILES = 128
FILES_TOGETHER = 8
"""What one call keeps from being closed for want of descriptors; a file is looked at again after so many."""
NUM_GATES = 64


def open_jsonl(origin: Origin) -> Reader | JsonlReader | RecordSource:
    """Returns the reader of JSONL files: in place where all are local and plain, else behind the spool."""
    records = JsonlRecords(origin.dataset)
    if origin.dataset.stream:
        return records
    files = origin.table.files if origin.table is not None else origin.files
    if any(is_compressed(file) for file in files):
        return ByFile(origin, records)
    return ByRange(origin, records) if any(file.is_remote for file in files) else JsonlReader(origin)


class _Handle:
    """An open file and the starts of its records; closes when the last user lets go."""

    __slots__ = ("ctime_ns", "descriptor", "file", "held", "starts")

    def __init__(self, descriptor: int, file: DataFile, starts: Int64) -> None:
        self.held = Descriptor(descriptor, 2)  # the map of the index holds one too
        self.descriptor, self.file = descriptor, file
        self.ctime_ns = file.ctime_ns
        self.starts = starts.data  # gives Python ints, at a third of the time that numpy takes


class JsonlReader(TableReader, Remade):
    """Records of JSONL files; a chunk is the records that start in one MiB of a file."""

    _made = ("_lock", "_gates", "_handles")

    def __init__(self, origin: Origin) -> None:
        self.name = origin.dataset.name
        self.is_tokenized = bool(origin.dataset.tokens)
        self._cache, self._dataset = origin.cache, origin.dataset
        self._make()
        self.table = open_table(origin, "jsonl", self._scan, key=())

    def _make(self) -> None:
        self._lock = threading.Lock()
        self._gates = [threading.Lock() for _ in range(NUM_GATES)]
        self._handles: OrderedDict[int, _Handle] = OrderedDict()

    def _scan(self, file: DataFile, advance: Advance) -> Scan:
        starts = load_starts(self.name, file, self._cache, advance)
        return scan_of(starts, self._sample(file))

    def texts(self, chunk: Int64, record: Int64, max_bytes: int) -> Texts:
        """Returns the documents at (chunk[i], record[i]), as asked; `max_bytes` counts raw bytes."""
        return parse(self._raws(chunk, record, max_bytes), self._dataset.text)

    def tokens(self, chunk: Int64, record: Int64, max_bytes: int) -> Tokens:
        """Returns the token ids at (chunk[i], record[i]), as asked; `max_bytes` counts raw bytes."""
        column = parse_column(self._raws(chunk, record, max_bytes), "", self._dataset.tokens)
        lengths = np.diff(column.offsets) // TOKEN.itemsize
        return Tokens(np.frombuffer(column.data, TOKEN), lengths, list(column.faults))

    def values(self, chunk: int, columns: tuple[str, ...]) -> pa.Table:
        """Returns other columns of all records of a chunk."""
        count = int(self.table.num_documents[chunk])
        file = self.table.files[self.table.file_of(chunk)]
        raws = self._raws(np.full(count, chunk), np.arange(count, dtype=np.int64), 1 << 62)
        return parse_values(raws, columns, self.name, file.shown)

    def _raws(self, chunk: Int64, record: Int64, max_bytes: int) -> Iterator[bytes]:
        """Yields the raw record at each (chunk, record in it), until `max_bytes` are reached."""
        table = self.table
        file = np.searchsorted(table.first_chunks, chunk, side="right") - 1
        firsts = table.first_documents
        numbers = firsts[chunk] - firsts[table.first_chunks[file]] + record
        handles: dict[int, _Handle] = {}
        pread = os.pread
        total = 0
        for f, number in zip(file.tolist(), numbers.tolist(), strict=True):
            handle = handles.get(f)
            if handle is None:
                if len(handles) == FILES_TOGETHER:
                    handles.clear()
                handle = handles[f] = self._handle(f)
            start = handle.starts[number]
            size = handle.starts[number + 1] - start
            raw = pread(handle.descriptor, size, start)
            yield raw if len(raw) == size else self._rest(raw, number, handle)
            total += size
            if total >= max_bytes:
                return

    def _rest(self, raw: bytes, record: int, handle: _Handle) -> bytes:
        """Returns the record of which a read gave only `raw`: one call gives at most 2 GiB."""
        start, end = handle.starts[record], handle.starts[record + 1]
        while start + len(raw) < end:
            more = os.pread(handle.descriptor, end - start - len(raw), start + len(raw))
            if not more:
                place = f"{handle.file.shown}, record {record},"
                raise changed(self.name, place, f"{len(raw):,} of {end - start:,} bytes at {start:,}")
            raw += more
        return raw

    def _handle(self, number: int) -> _Handle:
        """Returns the open file, checked against what was indexed; one thread of several opens it."""
        handle = self._open_handle(number)
        if handle is None:
            with self._gates[number % NUM_GATES]:
                handle = self._open_handle(number) or self._open(number)
        return handle

    def _open_handle(self, number: int) -> _Handle | None:
        with self._lock:
            handle = self._handles.get(number)
            if handle is None:
                return None
            self._handles.move_to_end(number)
        ctime_ns = check_unchanged(self.name, handle.file, handle.descriptor)
        if ctime_ns != handle.ctime_ns:
            self._compare(number, handle)
            handle.ctime_ns = ctime_ns
        return handle

    def _open(self, number: int) -> _Handle:
        """Opens a file; counts its records where the cache has no index of it, as with a catalogue."""
        file = self._file(number)
        starts = load_starts(self.name, file, self._cache)
        if len(starts) - 1 != self.table.num_records[number]:
            got = f"{len(starts) - 1:,} records, {self.table.num_records[number]:,} when it was indexed"
            raise changed(self.name, file.path, got)
        handle = _Handle(open_unchanged(self.name, file), file, starts)
        with self._lock:
            self._handles[number] = handle
            handle.held.owned_by(self)
            for old in list(islice(self._handles, max(0, len(self._handles) - MAX_OPEN_FILES))):
                del self._handles[old]
        return handle

    def release(self, held: Held) -> None:
        """Lets go of the file that is open by `held`."""
        with self._lock:
            for number in [number for number, handle in self._handles.items() if handle.held is held]:
                del self._handles[number]

    def _compare(self, number: int, handle: _Handle) -> None:
        """Refuses an open file of which the sample is another: it was touched since it was listed."""
        file, descriptor = handle.file, handle.descriptor
        found = sample_of(file.size_bytes, lambda start: os.pread(descriptor, SAMPLE_BYTES, start))
        if found != self.table.samples[number]:
            raise rewritten(self.name, file)

    def close(self) -> None:
        """Closes the files; a later read opens them again."""
        with self._lock:
            self._handles.clear()
