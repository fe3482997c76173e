"""Files that are read from their start on, record after record, and never counted beforehand.

Upstream: a format that gives a file's records in order (`RecordSource`). Downstream: `prepare.py`, which asks
for the documents of windows. A window is WINDOW_RECORDS records, expanded into a spool file when it is first
wanted; the file stays open there, so the next window costs no reading again. Going back, a restore in the
middle of a file, or a file that was put away for others, reads it again from its start, without parsing what
is passed; a file that was put away is then read ahead for many windows.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon import retries
from zephon.descriptors import Held
from zephon.errors import DataError
from zephon.paths import DataFile
from zephon.readers.base import TOKEN, Chunks, Origin, Texts, Tokens, is_tokenized, labels
from zephon.readers.kept import Remade
from zephon.readers.parts import RecordSource
from zephon.readers.table import NUM_THREADS, file_key, with_stamps
from zephon.spool import SpoolFolder, folder_name, open_column, remove_damaged, write_column
from zephon.stream_order import FILE_SHIFT, WINDOW_RECORDS, split_chunk
from zephon.views import View, Views

MAX_OPEN_FILES = 256
"""Files kept open where they were read up to, in each process, as its descriptors allow: one for a lane."""
AHEAD_WINDOWS = 16
AHEAD_BYTES = 16 << 20
"""A file that was put away is read ahead when it comes back: so many windows, or spool files so large."""
SAMPLED_FILES = 64
"""Files of which the lock has a sample; of all others it has name and size."""
_VERSION = 1

Int64 = NDArray[np.int64]


class _Reading:
    """A file that is being read: its windows, from the next one on."""

    def __init__(self, source: RecordSource, file: DataFile) -> None:
        self._batches = source.records(file)
        self._waiting: list[Any] = []
        self.window = 0
        self.held = Held(0 if file.is_remote else 1)

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


class StreamReader(Remade):
    """The documents of a streamed dataset at (file << 32 | window, record in the window)."""

    _made = ("_lock", "_gates", "_readings", "_put_away", "_records", "_views")

    def __init__(self, source: RecordSource, origin: Origin, *, limit_bytes: int) -> None:
        self.name, self.files, self.kind = origin.dataset.name, origin.files, source.kind
        self.is_tokenized = is_tokenized(source)
        self._source, self._listed = source, origin.table
        self._spool = SpoolFolder(origin.cache, limit_bytes)
        dataset = origin.dataset
        self._content = [f"stream {_VERSION}", source.kind, dataset.text, dataset.tokens, dataset.on_error]
        self.labels = labels(origin.files)
        self._make()

    def _make(self) -> None:
        self._lock = threading.Lock()
        self._gates: dict[int, threading.Lock] = {}
        self._readings: OrderedDict[int, _Reading] = OrderedDict()
        self._put_away: set[int] = set()
        self._records: dict[int, int] = {}
        self._views = Views(self._open_window, self._damaged)

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
        return self.labels[file], window * WINDOW_RECORDS + record

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
            "samples": self._samples,
        }

    @cached_property
    def _samples(self) -> list[str]:
        """Returns the samples of some files; those of a catalogue if there is one."""
        sampled = range(0, len(self.files), self._every)
        if self._listed is not None:
            return [self._listed.samples[number] for number in sampled]
        return self._look(sampled)

    def all_samples(self) -> list[str]:
        """Returns what a catalogue keeps: a sample of each file that no ETag tells from a changed one.

        And of those of which the lock has one; empty for the others.
        """
        numbers = [i for i, file in enumerate(self.files) if not file.etag or i % self._every == 0]
        found = dict(zip(numbers, self._look(numbers), strict=True))
        return [found.get(number, "") for number in range(len(self.files))]

    def _look(self, numbers: Sequence[int]) -> list[str]:
        files = [self.files[number] for number in numbers]
        return retries.in_parallel(self._source.sample, files, NUM_THREADS)

    @property
    def _every(self) -> int:
        return -(-len(self.files) // SAMPLED_FILES)

    def _current(self, number: int) -> DataFile:
        """Returns a file with its stamps; a catalogue's is compared with its sample, where that has one."""
        if self._listed is not None and self._listed.samples[number]:
            return self._listed.current(number, self._source.sample)
        return with_stamps(self.name, self.files[number])

    def close(self) -> None:
        """Closes the files; a later read opens them again, from their start."""
        with self._lock:
            self._readings.clear()
        self._views.clear()

    def _path(self, chunk: int) -> Path:
        file, window = split_chunk(chunk)
        folder = folder_name([*self._content, *file_key(self._current(file))])
        return self._spool.path / folder / f"{window}.spool"

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
            num_ahead = AHEAD_WINDOWS if reading is None and file in self._put_away else 0
        if reading is None or reading.window > window:
            reading = _Reading(self._source, self._current(file))
        raws = reading.next_window()
        while reading.window <= window and len(raws) == WINDOW_RECORDS:
            raws = reading.next_window()
        if reading.window <= window:
            raws = []  # the file has no such window
        view = self._write(file, window, raws)
        num_bytes = view.size_bytes
        while num_ahead and num_bytes < AHEAD_BYTES and len(raws) == WINDOW_RECORDS:
            raws, num_ahead = reading.next_window(), num_ahead - 1
            num_bytes += self._write(file, reading.window - 1, raws).size_bytes
        if len(raws) == WINDOW_RECORDS:
            with self._lock:
                self._readings[file] = reading
                reading.held.owned_by(self)
                while len(self._readings) > MAX_OPEN_FILES:
                    self._put_away.add(self._readings.popitem(last=False)[0])
        return view

    def _write(self, file: int, window: int, raws: Sequence[Any]) -> View:
        path = self._path(file << FILE_SHIFT | window)
        view = write_column(path, self._source.column(raws))
        self._spool.trim(path, view.size_bytes, lambda: set(map(self._path, self._views.open_chunks())))
        return view

    def release(self, held: Held) -> None:
        """Puts away the file that is open by `held`."""
        with self._lock:
            for file in [file for file, reading in self._readings.items() if reading.held is held]:
                del self._readings[file]
                self._put_away.add(file)

    def _damaged(self, chunk: int) -> DataError:
        self._views.drop(chunk)
        return remove_damaged(self.name, self._path(chunk))
