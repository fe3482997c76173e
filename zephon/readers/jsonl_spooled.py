"""JSONL datasets that are remote or compressed: whole chunks, for the spool to expand.

Upstream: `files.py`. Downstream: the spool. Chunks are cut as those of plain local files are, so the same
records in another place or compression are read in the same order. A remote file is read by the byte ranges
of its chunks; a compressed one only from its start, all its chunks in one pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from zephon.errors import Fault
from zephon.files import check_read, read_range, sample
from zephon.paths import DataFile
from zephon.readers.base import Chunks, Column, Origin
from zephon.readers.expanded import Expanding, cut, is_compressed
from zephon.readers.json_records import parse_column, parse_values, split_lines
from zephon.readers.jsonl import scan_of
from zephon.readers.lines import record_starts
from zephon.readers.table import Advance, Scan, open_table


class RemoteJsonl:
    """Records of plain JSONL files anywhere; a chunk is the records that start in one MiB of a file."""

    def __init__(self, origin: Origin) -> None:
        self.name, self._dataset = origin.dataset.name, origin.dataset
        self.is_tokenized = bool(origin.dataset.tokens)
        self.table = open_table(origin, "jsonl", self._scan, key=["starts", self._dataset.on_error])

    def _scan(self, file: DataFile, advance: Advance) -> Scan:
        expanding = Expanding(self.name, file, skip=self._dataset.on_error == "skip")
        is_plain, total = not is_compressed(file), 0

        def count(num_bytes: int) -> None:
            nonlocal total
            total += num_bytes
            if is_plain:
                advance(num_bytes)

        parts = list(record_starts(expanding, count))
        if not is_plain:
            advance(file.size_bytes)
        starts = np.concatenate([np.empty(0, np.int64), *parts, [total]]).astype(np.int64)
        return scan_of(starts, total, sample(self.name, file))

    def chunks(self) -> Chunks:
        """Returns the chunks, weighed by the bytes of their records."""
        return self.table.chunks()

    def read(self, chunk: int) -> Column:
        """Returns the documents of a chunk, by one read of its byte range."""
        return self._column(split_lines(self._bytes(chunk)))

    def values(self, chunk: int, columns: tuple[str, ...]) -> pa.Table:
        """Returns other columns of all records of a chunk."""
        file = self.table.files[self.table.file_of(chunk)]
        return parse_values(split_lines(self._bytes(chunk)), columns, self.name, file.shown)

    def _bytes(self, chunk: int) -> bytes:
        number = self.table.file_of(chunk)
        file = self.table.current(number, lambda file: sample(self.name, file))
        start, size = int(self.table.places[chunk]), int(self.table.num_bytes[chunk])
        data = read_range(self.name, file, start, size)
        check_read(self.name, file)
        return data

    def _column(self, raws: Iterable[bytes]) -> Column:
        return parse_column(raws, self._dataset.text, self._dataset.tokens)

    def identity(self) -> dict[str, Any]:
        """Returns the kind, the counts and a sample of each file."""
        return self.table.identity


class CompressedJsonl(RemoteJsonl):
    """Records of JSONL files of which some are compressed; a chunk is one MiB of them, expanded."""

    def read(self, chunk: int) -> Column:
        """Returns the documents of a chunk; reads its file up to it."""
        file = self.table.file_of(chunk)
        first = int(self.table.first_chunks[file])
        return next(column for number, column in enumerate(self.read_file(file), first) if number == chunk)

    def read_file(self, number: int) -> Iterator[Column]:
        """Yields the columns of all chunks of a file, in order."""
        for raws, fault in self._raws(number):
            column = self._column(raws)
            yield column if fault is None else column.with_faults([(len(raws) - 1, fault)])

    def values(self, chunk: int, columns: tuple[str, ...]) -> pa.Table:
        """Returns other columns of all records of a chunk; reads its file up to it."""
        file = self.table.file_of(chunk)
        first = int(self.table.first_chunks[file])
        tables = enumerate(self.file_values(file, columns), first)
        return next(table for number, table in tables if number == chunk)

    def file_values(self, number: int, columns: tuple[str, ...]) -> Iterator[pa.Table]:
        """Yields other columns of all records of each chunk of a file, in order."""
        for raws, _ in self._raws(number):
            yield parse_values(raws, columns, self.name, self.table.files[number].shown)

    def _raws(self, number: int) -> Iterator[tuple[list[bytes], Fault | None]]:
        """Yields the raw records of each chunk of a file, and the fault of the last record at a damage."""
        file = self.table.current(number, lambda file: sample(self.name, file))
        first, last = self.table.first_chunks[number : number + 2].tolist()
        expanding = Expanding(self.name, file, skip=self._dataset.on_error == "skip")
        chunks = cut(iter(expanding), self.table.places[first:last].tolist())
        for chunk, data in enumerate(chunks, first):
            yield split_lines(data), expanding.fault if chunk == last - 1 else None
