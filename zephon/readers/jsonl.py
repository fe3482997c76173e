"""JSONL datasets: records read in place, at byte offsets of an index.

Upstream: `lines.py`, which finds the records. Downstream: the loader. Files are read with `pread` and never
mapped, so a file that shrinks is an error message and not a dead process.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon.errors import Fault, shorten
from zephon.paths import DataFile
from zephon.readers.base import (
    Chunks,
    Origin,
    Texts,
    changed,
    labels,
    max_open,
    not_a_text,
    replace_surrogates,
)
from zephon.readers.lines import check_unchanged, load_starts, open_unchanged

CHUNK_BYTES = 1 << 20
MAX_OPEN_FILES = 128
SAMPLE_BYTES = 4096
_NUM_THREADS = 8


class _Handle:
    """An open file and the starts of its records; closes when the last user lets go."""

    __slots__ = ("descriptor", "starts")

    def __init__(self, descriptor: int, starts: NDArray[np.int64]) -> None:
        self.descriptor = descriptor
        self.starts = starts.data  # gives Python ints, at a third of the time that numpy takes

    def __del__(self) -> None:
        os.close(self.descriptor)


class JsonlReader:
    """Records of JSONL files; a chunk is the records that start in one MiB of a file."""

    def __init__(self, origin: Origin) -> None:
        self.name = origin.dataset.name
        self._files = origin.files
        self._labels = labels(origin.files)
        self._cache = origin.cache
        self._field = origin.dataset.text
        self._reset()
        advance = _progress(origin)
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            tables = list(pool.map(lambda file: self._table(file, advance), self._files))
        counts = [len(table) - 1 for table, _ in tables]
        self._chunk_file = np.repeat(np.arange(len(tables)), counts)  # (C,) int64
        self._chunk_first = _joined([table[:-1] for table, _ in tables])  # (C,) int64
        documents = _joined([np.diff(table) for table, _ in tables])
        self._chunks = Chunks(documents, _joined([sizes for _, sizes in tables]))
        self._num_records = [int(table[-1]) for table, _ in tables]

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._handles: OrderedDict[int, _Handle] = OrderedDict()
        self._max_open = max_open(2 * MAX_OPEN_FILES) // 2  # the map of an index holds a descriptor too
        self._identity: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_lock", "_handles", "_max_open"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._reset()
        self.__dict__.update(state)

    def _table(
        self, file: DataFile, advance: Callable[[int], None]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the (c + 1,) first record of each chunk, ending with the records, and the (c,) bytes."""
        starts = load_starts(self.name, file, self._cache, advance)
        edges = np.searchsorted(starts[:-1], np.arange(0, file.size_bytes, CHUNK_BYTES))
        firsts = np.unique(np.append(edges, len(starts) - 1)).astype(np.int64)
        return firsts, np.diff(starts[firsts])

    def chunks(self) -> Chunks:
        """Returns the chunks, weighed by their byte range."""
        return self._chunks

    def texts(self, chunk: NDArray[np.int64], record: NDArray[np.int64], max_bytes: int) -> Texts:
        """Returns the documents at (chunk[i], record[i]), as asked; `max_bytes` counts raw bytes."""
        files, records = self._chunk_file[chunk], self._chunk_first[chunk] + record
        return parse(self._raws(files.tolist(), records.tolist(), max_bytes), self._field)

    def _raws(self, files: list[int], records: list[int], max_bytes: int) -> Iterator[bytes]:
        """Yields the raw record at each (file, record in it), until `max_bytes` are reached."""
        handles: dict[int, _Handle] = {}
        pread = os.pread
        total = 0
        for file, record in zip(files, records, strict=True):
            handle = handles.get(file)
            if handle is None:
                handle = handles[file] = self._handle(file)
            start = handle.starts[record]
            size = handle.starts[record + 1] - start
            raw = pread(handle.descriptor, size, start)
            yield raw if len(raw) == size else self._rest(raw, file, record, handle)
            total += size
            if total >= max_bytes:
                return

    def _rest(self, raw: bytes, file: int, record: int, handle: _Handle) -> bytes:
        """Returns the record of which a read gave only `raw`: one call gives at most 2 GiB."""
        start, end = handle.starts[record], handle.starts[record + 1]
        while start + len(raw) < end:
            more = os.pread(handle.descriptor, end - start - len(raw), start + len(raw))
            if not more:
                place = f"{self._files[file].path}, record {record},"
                raise changed(self.name, place, f"{len(raw):,} of {end - start:,} bytes at {start:,}")
            raw += more
        return raw

    def _handle(self, file: int) -> _Handle:
        """Returns the open file, checked against what was indexed."""
        with self._lock:
            handle = self._handles.get(file)
            if handle is not None:
                self._handles.move_to_end(file)
        if handle is not None:
            check_unchanged(self.name, self._files[file], handle.descriptor)
            return handle
        starts = load_starts(self.name, self._files[file], self._cache, _ignore)
        handle = _Handle(open_unchanged(self.name, self._files[file]), starts)
        with self._lock:
            self._handles[file] = handle
            while len(self._handles) > self._max_open:
                self._handles.popitem(last=False)
        return handle

    def where(self, chunk: int, record: int) -> tuple[str, int]:
        """Returns the file's name and the record's number in it; blank lines are not counted."""
        return self._labels[int(self._chunk_file[chunk])], int(self._chunk_first[chunk]) + record

    def identity(self) -> dict[str, Any]:
        """Returns the kind, the counts and a sample of each file; reads 12 KiB of each, once."""
        if self._identity is None:
            with ThreadPoolExecutor(_NUM_THREADS) as pool:
                samples = list(pool.map(self._sample, self._files))
            self._identity = {
                "kind": "jsonl",
                "num_documents": sum(self._num_records),
                "files": [
                    [file.name, file.size_bytes, num, sample]
                    for file, num, sample in zip(self._files, self._num_records, samples, strict=True)
                ],
            }
        return self._identity

    def _sample(self, file: DataFile) -> str:
        """Returns the hash of the first, middle and last 4 KiB."""
        descriptor = open_unchanged(self.name, file)
        try:
            digest = hashlib.sha256()
            last = max(0, file.size_bytes - SAMPLE_BYTES)
            for start in (0, last // 2, last):
                digest.update(os.pread(descriptor, SAMPLE_BYTES, start))
        finally:
            os.close(descriptor)
        return digest.hexdigest()[:16]

    def close(self) -> None:
        """Closes the files; a later read opens them again."""
        with self._lock:
            self._handles.clear()


def parse(raws: Iterable[bytes], field: str) -> Texts:
    """Returns the text at `field` of each raw record; a dotted `field` that is no key leads into objects."""
    texts: list[str] = []
    out = Texts(texts)
    decode = json.JSONDecoder().raw_decode
    pick: Callable[[Any], Any] = itemgetter(field) if "." not in field else lambda value: _pick(value, field)
    text: Any
    line = ""
    for i, raw in enumerate(raws):
        try:
            line = raw.strip().decode()
            value, end = decode(line)
            text = pick(value) if end == len(line) else None
        except (ValueError, KeyError, TypeError, RecursionError):
            text = None
        if type(text) is not str:
            out.faults.append((i, diagnose(raw, field)))
            text = ""
        elif not text.isascii() and "\\u" in line:
            # Only an escape can bring a surrogate in: raw ones are not UTF-8.
            try:
                text.encode()
            except UnicodeEncodeError:
                out.num_replaced.append(i)
                text = replace_surrogates(text)
        texts.append(text)
    return out


def _pick(value: Any, field: str) -> Any:
    """Returns what stands at `field`, or the error of a subscript: KeyError or TypeError."""
    if field in value:
        return value[field]
    for key in field.split("."):
        value = value[key]
    return value


def diagnose(raw: bytes, field: str) -> Fault:
    """Returns what is wrong with a record that has no text at `field`."""
    try:
        line = raw.strip().decode()
    except UnicodeDecodeError as error:
        got = f"byte 0x{raw.strip()[error.start]:02x} at {error.start} of {shorten(raw[:80])}"
        return Fault("not_utf8", got, "a record is UTF-8")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Fault("not_json", f"{shorten(line)} ({error})", "a line is one JSON object")
    if not isinstance(value, dict):
        return Fault("not_object", shorten(value), "a line is one JSON object")
    try:
        return not_a_text(_pick(value, field))
    except (KeyError, TypeError):
        return Fault("missing", f"the keys {shorten(list(value))}", f"a record has the field {field!r}")


def _joined(arrays: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *arrays])


def _ignore(_num_bytes: int) -> None:
    """Takes progress that nobody shows."""


def _progress(origin: Origin) -> Callable[[int], None]:
    """Returns what adds up the bytes indexed, over threads, and reports them."""
    report = origin.report
    if report is None:
        return _ignore
    total = sum(file.size_bytes for file in origin.files)
    lock = threading.Lock()
    done = 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        with lock:
            done += num_bytes
            report(f"index {origin.dataset.name}", done, total)

    return advance
