"""Files of records one behind the other, whole chunks of them, for the spool.

Upstream: a `Records`, which knows one such format: `JsonlRecords`, `CsvRecords`. Downstream: the spool. A
chunk is the records that start in one MiB of a file, expanded, so the same records in another place or
compression are read in the same order. A plain file is read by the byte ranges of its chunks; a compressed
one only from its start, all its chunks in one pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from zephon.files import check_read, read_range
from zephon.paths import DataFile
from zephon.readers.base import Column, Origin
from zephon.readers.expanded import Expanding, cut
from zephon.readers.lines import Int64, scan_of
from zephon.readers.parts import RecordSource
from zephon.readers.table import DAMAGED, Advance, Scan, TableReader, open_table

T = TypeVar("T")


class Records(RecordSource, Protocol):
    """A format of records that stand one behind the other. Thread-safe and picklable."""

    is_tokenized: bool
    key: Sequence[object]
    """What a scan depends on besides the file."""

    def starts(self, file: DataFile, expanding: Expanding) -> Int64:
        """Returns where each record of a file starts, and where the last one ends: (n + 1,)."""
        ...

    def split(self, file: DataFile, data: bytes) -> Iterable[Any]:
        """Returns the raw records of consecutive bytes, from the start of one on; to be iterated once."""
        ...

    def documents(self, file: DataFile, raws: Iterable[Any]) -> Column:
        """Returns the documents of raw records of a file; a `Fault` stands for a damaged one."""
        ...

    def columns(self, file: DataFile, raws: Iterable[Any], names: Sequence[str]) -> pa.Table:
        """Returns other columns of raw records of a file, null where one is faulty."""
        ...


class ByRange(TableReader):
    """Plain files, of which a chunk is read by its byte range. Chunks are weighed by their bytes."""

    def __init__(self, origin: Origin, records: Records) -> None:
        self.name, self._records = origin.dataset.name, records
        self._skip, self.is_tokenized = origin.dataset.on_error == "skip", records.is_tokenized
        self.table = open_table(origin, records.kind, self._scan, key=records.key)

    def _scan(self, file: DataFile, advance: Advance) -> Scan:
        expanding = Expanding(self.name, file, skip=self._skip, advance=advance)
        starts, found = self._records.starts(file, expanding), self._sample(file)
        is_lost = expanding.fault is not None and len(starts) == 1
        return Scan.damaged(found) if is_lost else scan_of(starts, found)

    def read(self, chunk: int) -> Column:
        """Returns the documents of a chunk."""
        file, raws = self._raws(chunk)
        return self._records.documents(file, raws)

    def values(self, chunk: int, columns: Sequence[str]) -> pa.Table:
        """Returns other columns of all records of a chunk."""
        file, raws = self._raws(chunk)
        return self._records.columns(file, raws, columns)

    def _raws(self, chunk: int) -> tuple[DataFile, Iterable[Any]]:
        _, file = self._file_of(chunk)
        data = read_range(self.name, file, int(self.table.places[chunk]), int(self.table.num_bytes[chunk]))
        if file.is_remote:
            check_read(self.name, file)
        return file, self._records.split(file, data)


class ByFile(ByRange):
    """Files of which some are compressed: each is read from its start, all its chunks in one pass."""

    def read(self, chunk: int) -> Column:
        """Returns the documents of a chunk; reads its file up to it."""
        return self._one(chunk, self.read_file)

    def read_file(self, number: int) -> Iterator[Column]:
        """Yields the columns of all chunks of a file, in order."""
        if self._is_lost(number):
            expanding = Expanding(self.name, self._file(number), skip=True)
            deque(expanding, maxlen=0)
            assert expanding.fault is not None
            yield Column.all_faulty(1, expanding.fault)
            return
        for file, raws in self._chunks(number):
            yield self._records.documents(file, raws)

    def values(self, chunk: int, columns: Sequence[str]) -> pa.Table:
        """Returns other columns of all records of a chunk; reads its file up to it."""
        return self._one(chunk, lambda number: self.file_values(number, columns))

    def file_values(self, number: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yields other columns of all records of each chunk of a file, in order."""
        if self._is_lost(number):
            yield pa.table({name: pa.nulls(1) for name in columns})
            return
        for file, raws in self._chunks(number):
            yield self._records.columns(file, raws, columns)

    def _one(self, chunk: int, of_file: Callable[[int], Iterator[T]]) -> T:
        number = self.table.file_of(chunk)
        return next(islice(of_file(number), chunk - int(self.table.first_chunks[number]), None))

    def _places(self, number: int) -> list[int]:
        first, last = self.table.first_chunks[number : number + 2].tolist()
        places: list[int] = self.table.places[first:last].tolist()
        return places

    def _is_lost(self, number: int) -> bool:
        """Returns whether nothing comes ahead of the damage of a file."""
        return self._places(number) == [DAMAGED]

    def _chunks(self, number: int) -> Iterator[tuple[DataFile, Iterable[Any]]]:
        """Yields the raw records of each chunk of a file; its damage stands for the last record."""
        file, places = self._file(number), self._places(number)
        expanding = Expanding(self.name, file, skip=self._skip)
        for count, data in enumerate(cut(iter(expanding), places), 1):
            raws = self._records.split(file, data)
            if expanding.fault is not None and count == len(places):
                raws = [*raws]
                raws[-1] = expanding.fault
            yield file, raws
