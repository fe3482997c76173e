"""Plain text: every file is one document, read when it is asked for.

Upstream: `files.py`. Downstream: the loader. A chunk is files that stand next to each other, about one MiB of
them, so that shuffling mixes many files however small they are. Nothing is opened ahead but for the sample
that the lock keeps. Remote files are fetched a few at a time, one request each, and are not kept.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon import retries
from zephon.errors import Fault
from zephon.files import check_file, read_range, sample
from zephon.paths import DataFile
from zephon.readers.base import Chunks, Origin, Texts, not_utf8, num_within
from zephon.readers.expanded import Expanding, is_compressed
from zephon.readers.lines import BYTE_ORDER_MARK
from zephon.readers.table import NUM_THREADS, ChunkTable, Progress, TableReader

CHUNK_BYTES = 1 << 20
CHUNK_FILES = 1000
_FILES_TOGETHER = 16
_LOOKED_AT_TOGETHER = 64

Int64 = NDArray[np.int64]


class PlainReader(TableReader):
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
        """Returns the documents at (chunk[i], record[i]), as asked; `max_bytes` counts UTF-8."""
        wanted = self._firsts[chunk] + record
        numbers = wanted[: num_within(self._sizes[wanted], max_bytes)].tolist()  # expanded, they only grow
        out, total = Texts([]), 0
        with closing(self._read_all([self._file(number) for number in numbers])) as contents:
            for i, content in enumerate(contents):
                found = content if isinstance(content, Fault) else _text(content)
                if isinstance(found, Fault):
                    out.faults.append((i, found))
                out.texts.append("" if isinstance(found, Fault) else found)
                total += 0 if isinstance(content, Fault) else len(content)
                if total >= max_bytes:
                    break
        return out

    def _read_all(self, files: Sequence[DataFile]) -> Generator[bytes | Fault, None, None]:
        """Yields what is in each file; remote ones are fetched a few at a time."""
        if any(file.is_remote for file in files):
            yield from retries.each(self._read, files, _FILES_TOGETHER)
        else:
            yield from map(self._read, files)

    def _read(self, file: DataFile) -> bytes | Fault:
        """Returns what is in a file, expanded, or how it is damaged."""
        if is_compressed(file):
            expanding = Expanding(self.name, file, skip=self._skip)
            raw = b"".join(expanding)
            return raw if expanding.fault is None else expanding.fault
        raw = read_range(self.name, file, 0, file.size_bytes)
        if file.is_remote:
            check_file(self.name, file)
        return raw

    def where(self, chunk: int, record: int) -> tuple[str, int]:
        """Returns the file's name, and 0: it is the only document in it."""
        return self.table.labels[int(self._firsts[chunk]) + record], 0

    def close(self) -> None:
        """Does nothing: a file is open only while it is read."""


def _text(raw: bytes) -> str | Fault:
    raw = raw.removeprefix(BYTE_ORDER_MARK)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        return not_utf8(raw, error.start, "a file of plain text")


def _file_table(origin: Origin) -> ChunkTable:
    """Returns the table in which every file is a chunk of one document: its catalogue's, or made now."""
    if origin.table is not None:
        return origin.table
    files, dataset = origin.files, origin.dataset.name
    progress = Progress(origin, by_bytes=False)

    def look(some: Sequence[DataFile]) -> list[str]:
        return [sample(dataset, file) for file in some]

    samples: list[str] = []
    parts = [files[i : i + _LOOKED_AT_TOGETHER] for i in range(0, len(files), _LOOKED_AT_TOGETHER)]
    for part in retries.each(look, parts, NUM_THREADS):
        samples += part
        for _ in part:
            progress.file_done()
    ones = np.ones(len(files), np.int64)
    return ChunkTable(
        name=dataset,
        kind="text",
        files=files,
        samples=samples,
        first_chunks=np.arange(len(files) + 1, dtype=np.int64),
        places=np.zeros(len(files), np.int64),
        num_documents=ones,
        num_bytes=np.array([max(1, file.size_bytes) for file in files], np.int64),
    )


def _chunk_starts(sizes: NDArray[np.integer[Any]]) -> Int64:
    """Returns the first file of each chunk, and the number of files: a chunk ends once it is large enough."""
    starts, num_files, num_bytes = [0], 0, 0
    for number, size in enumerate(sizes.tolist()):
        if num_bytes >= CHUNK_BYTES or num_files >= CHUNK_FILES:
            starts.append(number)
            num_files = num_bytes = 0
        num_files, num_bytes = num_files + 1, num_bytes + size
    return np.array([*starts, len(sizes)], np.int64)
