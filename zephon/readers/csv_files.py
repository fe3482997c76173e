"""CSV and TSV datasets: whole chunks of rows, for the spool.

Upstream: `csv_rows.py`. Downstream: the spool. The first row of each file is its header. A chunk is the rows
that begin in one MiB of a file, found in one pass and read by one range; a compressed file is read from its
start, all its chunks in one pass.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from zephon.errors import DataError, Fault
from zephon.files import check_file, read_range, sample
from zephon.paths import DataFile
from zephon.readers.base import Chunks, Column, Origin
from zephon.readers.csv_rows import Inferred, Row, Rows, array_of, column_of, fields_at, row_starts, text_of
from zephon.readers.expanded import DAMAGED_RULE, Expanding, compression, cut, is_compressed
from zephon.readers.jsonl import scan_of
from zephon.readers.kept import Kept
from zephon.readers.table import Advance, Scan, open_table

if TYPE_CHECKING:
    from zephon.readers.csv_stream import CsvStream

TABS = (".tsv", ".tab")
"""Names of files whose fields are separated by tabs."""
_DAMAGED = -1
"""The place of the one record that stands for a file that is damaged before its first row ends."""
_NUM_KEPT = 256


def open_csv(origin: Origin) -> CsvReader | CsvStream:
    """Returns the reader of CSV files: by range where all are plain, else file by file."""
    from zephon.readers.csv_stream import CsvStream

    if origin.dataset.stream:
        return CsvStream(origin)
    files = origin.table.files if origin.table is not None else origin.files
    return CompressedCsv(origin) if any(is_compressed(file) for file in files) else CsvReader(origin)


class CsvReader:
    """Documents of one column of CSV files."""

    def __init__(self, origin: Origin) -> None:
        self.name, self._dataset = origin.dataset.name, origin.dataset
        self._headers, self._kinds, self._gates = Kept(_NUM_KEPT), Kept(_NUM_KEPT), Kept(_NUM_KEPT)
        key = [self._dataset.text, self._dataset.on_error]
        self.table = open_table(origin, "csv", self._scan, key=key)

    def _scan(self, file: DataFile, advance: Advance) -> Scan:
        expanding, is_plain = self._expanding(file), not is_compressed(file)
        rows = Rows(counted(expanding, advance if is_plain else None), delimiter(file), is_start=True)
        header, starts = row_starts(rows)
        found = sample(self.name, file)
        if not is_plain:
            advance(file.size_bytes)
        if expanding.fault is not None and not len(starts):
            one = np.ones(1, np.int64)
            return Scan(places=one * _DAMAGED, num_documents=one, num_bytes=one, sample=found)
        if header is not None:
            text_index(self.name, file, header, self._dataset.text)
        return scan_of(np.append(starts, rows.end), rows.end, found)

    def _expanding(self, file: DataFile) -> Expanding:
        return Expanding(self.name, file, skip=self._dataset.on_error == "skip")

    def chunks(self) -> Chunks:
        """Returns the chunks, weighed by the bytes of their rows."""
        return self.table.chunks()

    def read(self, chunk: int) -> Column:
        """Returns the documents of a chunk, by one read of its byte range."""
        number, file = self._file(chunk)
        header = self._header(number, file)
        rows = Rows([self._bytes(file, chunk)], delimiter(file))
        return self._column(file, header, rows)

    def _column(self, file: DataFile, header: list[str], rows: Iterable[Row]) -> Column:
        num_fields, index = len(header), text_index(self.name, file, header, self._dataset.text)
        return column_of(text_of(row, num_fields, index) for row in rows)

    def values(self, chunk: int, columns: Sequence[str]) -> pa.Table:
        """Returns other columns of all rows of a chunk, null where a row is faulty.

        A column is of whole numbers or numbers where all fields of it in the file are, else of strings, and
        null where all are empty: the first time that it is asked for costs a pass over the file.
        """
        number, file = self._file(chunk)
        rows = Rows([self._bytes(file, chunk)], delimiter(file))
        return self._table(number, file, rows, columns)

    def _file(self, chunk: int) -> tuple[int, DataFile]:
        number = self.table.file_of(chunk)
        return number, self.table.current(number, lambda file: sample(self.name, file))

    def _bytes(self, file: DataFile, chunk: int) -> bytes:
        start, size = int(self.table.places[chunk]), int(self.table.num_bytes[chunk])
        data = read_range(self.name, file, start, size)
        if file.is_remote:
            check_file(self.name, file)
        return data

    def _header(self, number: int, file: DataFile) -> list[str]:
        return self._headers.get(number, lambda: self._read_header(file))

    def _read_header(self, file: DataFile) -> list[str]:
        with closing(counted(Expanding(self.name, file, skip=True), None)) as blocks:
            row = next(iter(Rows(blocks, delimiter(file), is_start=True)), "no row")
        if isinstance(row, str):
            raise _without_header(self.name, file, row)
        return row

    def _table(self, number: int, file: DataFile, rows: Iterable[Row], columns: Sequence[str]) -> pa.Table:
        header = self._header(number, file)
        if missing := [name for name in columns if header.count(name) != 1]:
            raise DataError.explained(
                f"dataset {self.name!r}: {file.shown} has no column {missing[0]!r}",
                got=f"the columns {', '.join(map(repr, header))}",
                rule="every file has the columns that are compared, sorted by or shown, once",
                cure="name one of these columns",
            )
        fields = fields_at(rows, len(header), [header.index(name) for name in columns])
        kinds = [self._kind(number, file, name) for name in columns]
        arrays = [array_of(found, kind) for found, kind in zip(fields, kinds, strict=True)]
        return pa.table(dict(zip(columns, arrays, strict=True)))

    def _kind(self, number: int, file: DataFile, column: str) -> Any:
        key = number, column
        with self._gates.get(key, threading.Lock):  # one thread passes over the file, for all
            return self._kinds.get(key, lambda: self._infer(number, file, column))

    def _infer(self, number: int, file: DataFile, column: str) -> Any:
        """Returns the type of a column, from all its fields."""
        header = self._header(number, file)
        index, inferred = header.index(column), Inferred()
        rows = iter(Rows(self._expanding(file), delimiter(file), is_start=True))
        next(rows)
        inferred.add(row[index] for row in rows if isinstance(row, list) and len(row) == len(header))
        return inferred.kind

    def identity(self) -> dict[str, Any]:
        """Returns the kind, the counts and a sample of each file."""
        return self.table.identity


class CompressedCsv(CsvReader):
    """Documents of CSV files of which some are compressed; a chunk is one MiB of them, expanded."""

    def read(self, chunk: int) -> Column:
        """Returns the documents of a chunk; reads its file up to it."""
        number = self.table.file_of(chunk)
        columns = enumerate(self.read_file(number), int(self.table.first_chunks[number]))
        return next(column for found, column in columns if found == chunk)

    def read_file(self, number: int) -> Iterator[Column]:
        """Yields the columns of all chunks of a file, in order."""
        for file, rows, fault in self._chunks(number):
            if rows is None:
                yield Column.all_faulty(1, fault or Fault("damaged", "no header", DAMAGED_RULE))
                continue
            header = self._header(number, file)
            column = self._column(file, header, rows)
            yield column if fault is None else column.with_faults([(len(rows) - 1, fault)])

    def values(self, chunk: int, columns: Sequence[str]) -> pa.Table:
        """Returns other columns of all rows of a chunk; reads its file up to it."""
        number = self.table.file_of(chunk)
        tables = enumerate(self.file_values(number, columns), int(self.table.first_chunks[number]))
        return next(table for found, table in tables if found == chunk)

    def file_values(self, number: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yields other columns of all rows of each chunk of a file, in order."""
        for file, rows, _ in self._chunks(number):
            if rows is None:
                yield pa.table({name: pa.nulls(1) for name in columns})
                continue
            yield self._table(number, file, rows, columns)

    def _chunks(self, number: int) -> Iterator[tuple[DataFile, list[Row] | None, Fault | None]]:
        """Yields the rows of each chunk of a file, and with the last the fault of the row at a damage."""
        first, last = self.table.first_chunks[number : number + 2].tolist()
        if first == last:
            return
        _, file = self._file(first)
        expanding = self._expanding(file)
        places = self.table.places[first:last].tolist()
        if places == [_DAMAGED]:
            for _ in expanding:
                pass
            yield file, None, expanding.fault
            return
        for chunk, data in enumerate(cut(iter(expanding), places), first):
            rows, fault = list(Rows([data], delimiter(file))), expanding.fault
            if fault is None or chunk < last - 1:
                yield file, rows, None
            else:
                yield file, [*rows[:-1], fault.got], fault


def text_index(dataset: str, file: DataFile, header: Row, text: str) -> int:
    """Returns which field of a file's rows is the text; raises `DataError` where its header has none."""
    if isinstance(header, str):
        raise _without_header(dataset, file, header)
    if header.count(text) == 1:
        return header.index(text)
    raise DataError.explained(
        f"dataset {dataset!r}: {file.shown} has {'two columns' if text in header else 'no column'} {text!r}",
        got=f"the columns {', '.join(map(repr, header))}",
        rule="the first row of a file names its columns; every file has the one that `text` names, once",
        cure="set `text` to one of these columns, or write a header",
    )


def _without_header(dataset: str, file: DataFile, got: str) -> DataError:
    return DataError.explained(
        f"dataset {dataset!r}: {file.shown} has no header",
        got=got,
        rule="the first row of a file names its columns",
        cure="write a header, or mend the file's first row",
    )


def delimiter(file: DataFile) -> str:
    """Returns what separates the fields of a file, by its name."""
    name = file.name.lower().removesuffix(compression(file))
    return "\t" if name.endswith(TABS) else ","


def counted(blocks: Iterable[bytes], advance: Advance | None) -> Generator[bytes, None, None]:
    """Yields the blocks, and tells of the bytes that are done with."""
    for block in blocks:
        yield block
        if advance is not None:
            advance(len(block))
