"""Files that are read from their start on, record after record, and never counted beforehand.

Upstream: a format that gives a file's records in order (`RecordSource`). Downstream: `prepare.py`, which asks
for the documents of windows. A window is WINDOW_RECORDS records, expanded into a spool file when it is first
wanted; the file stays open there, so the next window costs no reading again. Going back, or a restore in
the middle of a file, reads that file again from its start, without parsing what is passed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from zephon.errors import DataError
from zephon.paths import DataFile
from zephon.readers.base import TOKEN, Chunks, Column, Origin, Texts, Tokens, is_tokenized, labels
from zephon.readers.table import file_key, with_stamps
from zephon.spool import folder_name, open_column, trim, write_column
from zephon.stream_order import FILE_SHIFT, WINDOW_RECORDS, split_chunk
from zephon.views import View, Views

MAX_OPEN_FILES = 64
"""Files kept open where they were read up to, in each process."""
SAMPLED_FILES = 64
"""Files of which the lock has a sample; of all others it has name and size."""
_VERSION = 1

Int64 = NDArray[np.int64]


class RecordSource(Protocol):
    """A format of which files can be read in order; what its reader is where a dataset has `stream`."""

    kind: str

    def records(self, file: DataFile) -> Iterator[Sequence[Any]]:
        """Yields the raw records of a file in order, some at a time; a `Fault` stands for a damaged one."""
        ...

    def column(self, raws: Sequence[Any]) -> Column:
        """Returns the documents of raw records."""
        ...

    def sample(self, file: DataFile) -> str:
        """Returns the hash of some of the file's bytes."""
        ...


class _Reading:
    """A file that is being read: its windows, from the next one on."""

    def __init__(self, source: RecordSource, file: DataFile) -> None:
        self._batches = source.records(file)
        self._waiting: list[Any] = []
        self.window = 0

    def next_window(self) -> list[Any]:
        """Returns the raw records of the next window; none past the end of the file."""
        while len(self._waiting) < WINDOW_RECORDS:
            batch = next(self._batches, None)
            if batch is None:
                break
            self._waiting += batch
        found = self._waiting[:WINDOW_RECORDS]
        del self._waiting[:WINDOW_RECORDS]
        self.window += 1
        return found


class StreamReader:
    """The documents of a streamed dataset at (file << 32 | window, record in the window)."""

    def __init__(self, source: RecordSource, origin: Origin, *, limit_bytes: int) -> None:
        self.name, self.files, self.kind = origin.dataset.name, origin.files, source.kind
        self.is_tokenized = is_tokenized(source)
        self._source, self._limit_bytes, self._listed = source, limit_bytes, origin.table
        self._spool = origin.cache / "spool"
        dataset = origin.dataset
        self._content = [f"stream {_VERSION}", source.kind, dataset.text, dataset.tokens, dataset.on_error]
        self._labels = labels(origin.files)
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._gates: dict[int, threading.Lock] = {}
        self._readings: OrderedDict[int, _Reading] = OrderedDict()
        self._records: dict[int, int] = {}
        self._unseen_bytes = self._limit_bytes
        self._views = Views(self._open_window, self._damaged)

    def __getstate__(self) -> dict[str, Any]:
        dropped = ("_lock", "_gates", "_readings", "_records", "_views")
        return {name: value for name, value in self.__dict__.items() if name not in dropped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def window_records(self, file: int, window: int) -> int:
        """Returns the records of a window: WINDOW_RECORDS but for the last one, 0 past the end of the file.

        Reads the file up to there, where that was not done before.
        """
        chunk = file << FILE_SHIFT | window
        count = self._records.get(chunk)
        if count is None:
            if window and self._records.get(chunk - 1, WINDOW_RECORDS) < WINDOW_RECORDS:
                return 0
            count = self._records[chunk] = len(self._views.view(chunk).hot[2]) - 1
        return count

    def texts(self, chunk: Int64, record: Int64, max_bytes: int) -> Texts:
        """Returns the documents at (chunk[i], record[i]), in the order asked."""
        return self._views.texts(chunk, record, max_bytes)

    def tokens(self, chunk: Int64, record: Int64, max_bytes: int) -> Tokens:
        """Returns the token ids at (chunk[i], record[i]), in the order asked."""
        return self._views.tokens(chunk, record, max_bytes, TOKEN)

    def where(self, chunk: int, record: int) -> tuple[str, int]:
        """Returns the file's name and the record's number in it."""
        file, window = split_chunk(chunk)
        return self._labels[file], window * WINDOW_RECORDS + record

    def chunks(self) -> Chunks:
        """Returns the files, of which nobody knows the documents: one stands for each."""
        sizes = np.array([max(1, file.size_bytes) for file in self.files], np.int64)
        return Chunks(np.ones(len(sizes), np.int64), sizes)

    def identity(self) -> dict[str, Any]:
        """Returns what the lock keeps: names and sizes of all files, samples of some; no counts."""
        return {
            "kind": self._source.kind,
            "stream": True,
            "files": [[file.name, file.size_bytes] for file in self.files],
            "samples": [sample for sample in self.samples if sample],
        }

    @cached_property
    def samples(self) -> Sequence[str]:
        """Returns a sample of some files, empty for the others; those of a catalogue if there is one."""
        if self._listed is not None:
            return list(self._listed.samples)
        every = -(-len(self.files) // SAMPLED_FILES)
        return [self._source.sample(file) if i % every == 0 else "" for i, file in enumerate(self.files)]

    def close(self) -> None:
        """Closes the files; a later read opens them again, from their start."""
        with self._lock:
            self._readings.clear()
        self._views.clear()

    def _path(self, chunk: int) -> Path:
        file, window = split_chunk(chunk)
        return (
            self._spool
            / folder_name([*self._content, *file_key(with_stamps(self.name, self.files[file]))])
            / f"{window}.spool"
        )

    def _open_window(self, chunk: int) -> View:
        """Returns the view of a window, reading on to it where no spool file has it."""
        path = self._path(chunk)
        view = open_column(path, None, check=True)
        if view is not None:
            return view
        file, window = split_chunk(chunk)
        with self._lock:
            gate = self._gates.setdefault(file, threading.Lock())
        with gate:
            view = open_column(path, None, check=True)
            return view if view is not None else self._read_to(file, window)

    def _read_to(self, file: int, window: int) -> View:
        with self._lock:
            reading = self._readings.pop(file, None)
        if reading is None or reading.window > window:
            reading = _Reading(self._source, with_stamps(self.name, self.files[file]))
        raws = reading.next_window()
        while reading.window <= window and len(raws) == WINDOW_RECORDS:
            raws = reading.next_window()
        if reading.window <= window:
            raws = []  # the file has no such window
        path = self._path(file << FILE_SHIFT | window)
        view = write_column(path, self._source.column(raws))
        self._trim(path, view.size_bytes)
        if len(raws) == WINDOW_RECORDS:
            with self._lock:
                self._readings[file] = reading
                while len(self._readings) > MAX_OPEN_FILES:
                    self._readings.popitem(last=False)
        return view

    def _trim(self, path: Path, written: int) -> None:
        with self._lock:
            self._unseen_bytes += written
            if self._unseen_bytes < self._limit_bytes // 64:
                return
            self._unseen_bytes = 0
        trim(self._spool, self._limit_bytes, {self._path(c) for c in self._views.open_chunks()} | {path})

    def _damaged(self, chunk: int) -> DataError:
        path = self._path(chunk)
        path.unlink(missing_ok=True)
        self._views.drop(chunk)
        return DataError.explained(
            f"dataset {self.name!r}: spool file {path} is damaged",
            got="bytes that are not UTF-8, or too few",
            rule="a spool file holds what its reader gave",
            cure="start again: the file is removed and made anew",
        )
