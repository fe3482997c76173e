"""Plain text: every file is one document, read when it is asked for.

Upstream: `files.py`. Downstream: the loader. A chunk is files that stand next to each other, about one MiB of
them, so that shuffling mixes many files however small they are. Nothing is opened ahead but for the sample
that the lock keeps. Remote files are fetched a few at a time, one request each, and are not kept.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon.errors import Fault, shorten
from zephon.files import check_file, check_unchanged, open_unchanged, read_range
from zephon.paths import DataFile
from zephon.readers.base import Chunks, Column, Origin, Texts, num_within
from zephon.readers.expanded import Expanding, is_compressed
from zephon.readers.jsonl import SAMPLE_BYTES
from zephon.readers.table import ChunkTable, Progress, Scan, each, table_of

CHUNK_BYTES = 1 << 20
CHUNK_FILES = 1000
_FILES_TOGETHER = 16
_LOOKED_AT_TOGETHER = 64
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Int64 = NDArray[np.int64]


class PlainReader:
    """Documents that are whole files of UTF-8; compressed ones are expanded."""

    def __init__(self, origin: Origin) -> None:
        self.name, self._skip = origin.dataset.name, origin.dataset.on_error == "skip"
        self.table = _file_table(origin)
        """One row a file; the chunks that are shuffled are runs of these rows."""
        self._sizes = self.table.num_bytes
        self._firsts = _chunk_starts(self._sizes)  # (C + 1,) the first file of each chunk

    def chunks(self) -> Chunks:
        """Returns the chunks, weighed by the sizes of their files."""
        if not len(self._sizes):
            return Chunks(np.empty(0, np.int64), np.empty(0, np.int64))
        sums = np.add.reduceat(self._sizes, self._firsts[:-1], dtype=np.int64)
        return Chunks(np.diff(self._firsts), sums)

    def texts(self, chunk: Int64, record: Int64, max_bytes: int) -> Texts:
        """Returns the documents at (chunk[i], record[i]), as asked; `max_bytes` counts bytes of files."""
        wanted = self._firsts[chunk] + record
        numbers = wanted[: num_within(self._sizes[wanted], max_bytes)].tolist()
        files = [self.table.current(number, lambda file: sample(self.name, file)) for number in numbers]
        if any(file.is_remote for file in files):
            with ThreadPoolExecutor(_FILES_TOGETHER, thread_name_prefix="zephon-text") as pool:
                read = list(pool.map(self._read, files))
        else:
            read = [self._read(file) for file in files]
        out = Texts([])
        for i, found in enumerate(read):
            if isinstance(found, Fault):
                out.faults.append((i, found))
            out.texts.append("" if isinstance(found, Fault) else found)
        return out

    def _read(self, file: DataFile) -> str | Fault:
        """Returns the text of a file, or what is wrong with it."""
        if is_compressed(file):
            expanding = Expanding(self.name, file, skip=self._skip)
            raw = b"".join(expanding)
            if expanding.fault is not None:
                return expanding.fault
        else:
            raw = read_range(self.name, file, 0, file.size_bytes)
            if file.is_remote:
                check_file(self.name, file)
        raw = raw.removeprefix(_BYTE_ORDER_MARK)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            got = f"byte 0x{raw[error.start]:02x} at {error.start} of {shorten(raw[:80])}"
            return Fault("not_utf8", got, "a file of plain text is UTF-8")

    def where(self, chunk: int, record: int) -> tuple[str, int]:
        """Returns the file's name, and 0: it is the only document in it."""
        return self.table.labels[int(self._firsts[chunk]) + record], 0

    def identity(self) -> dict[str, Any]:
        """Returns the kind, the count and a sample of each file."""
        return self.table.identity

    def close(self) -> None:
        """Does nothing: a file is open only while it is read."""
