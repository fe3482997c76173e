"""Parquet datasets: chunks are row groups, known from the footers; a chunk is read whole.

Upstream: `files.py`. Downstream: the spool, which gives random access. Of a row group only the columns asked
for are read, in one range each, so remote files are read as local ones are.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from zephon.errors import DataError, Fault
from zephon.files import check_file, check_read, read_range
from zephon.paths import DataFile
from zephon.readers.arrays import check_column, check_columns, column_from_arrow, tokens_from_arrow, values_at
from zephon.readers.base import Column, Origin, first_line
from zephon.readers.kept import Kept
from zephon.readers.table import DAMAGED, Advance, Scan, TableReader, open_table
from zephon.where import Where
from zephon.where_arrow import row_groups

_NUM_FOOTERS = 8
_NUM_CHECKED = 1024
_TAIL_BYTES = 64 << 10
_HEAD_BYTES = 4 << 10
_END_BYTES = 8
_MAGIC = b"PAR1"
RULE = "a Parquet file is complete: its footer lies at its end"


class ParquetReader(TableReader):
    """Documents of one column of Parquet files: texts, or lists of token ids.

    Row groups are weighed by the column's uncompressed size; those without records are left out.
    """

    def __init__(self, origin: Origin) -> None:
        self.name, self._on_error = origin.dataset.name, origin.dataset.on_error
        self._field = origin.dataset.tokens or origin.dataset.text
        self.is_tokenized = bool(origin.dataset.tokens)
        self._footers, self._checked = Kept(_NUM_FOOTERS), Kept(_NUM_CHECKED)
        key = [self._field, self.is_tokenized, self._on_error]
        self.table = open_table(origin, "parquet", self._scan, key=key, by_bytes=False)

    def _scan(self, file: DataFile, _advance: Advance) -> Scan:
        try:
            footer, head = self._ends(file)
            metadata = parse_footer(footer)
            leaves = _leaves(metadata, [self._field])
            check_groups(metadata, leaves)
        except _FooterFault as fault:
            if self._on_error != "skip":
                raise self._unreadable(file, fault) from None
            return Scan.damaged(self._sample(file))
        check_column(self.name, file.shown, _schema(metadata), self._field, tokens=self.is_tokenized)
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        rows = [
            (i, group.num_rows, sum(group.column(leaf).total_uncompressed_size for leaf in leaves))
            for i, group in enumerate(groups)
            if group.num_rows
        ]
        return Scan.from_rows(rows, _hash(footer + head))

    def _ends(self, file: DataFile) -> tuple[bytes, bytes]:
        """Returns the end of the file from the start of its footer, and its first bytes, for the sample."""
        start = max(0, file.size_bytes - _TAIL_BYTES)
        tail = read_range(self.name, file, start, _TAIL_BYTES)
        if file.size_bytes < len(_MAGIC) + _END_BYTES or tail[-len(_MAGIC) :] != _MAGIC:
            raise _FooterFault(f"{file.size_bytes:,} bytes that do not end in a Parquet footer")
        size = int.from_bytes(tail[-_END_BYTES : -len(_MAGIC)], "little") + _END_BYTES
        if size > file.size_bytes:
            raise _FooterFault(f"a footer of {size:,} bytes in a file of {file.size_bytes:,}")
        if size > len(tail):
            tail = read_range(self.name, file, file.size_bytes - size, size)
        return tail[-size:], read_range(self.name, file, 0, _HEAD_BYTES)

    def _sample(self, file: DataFile) -> str:
        try:
            footer, head = self._ends(file)
            parse_footer(footer)
        except _FooterFault:
            return _hash(read_range(self.name, file, 0, _HEAD_BYTES))
        return _hash(footer + head)

    def _unreadable(self, file: DataFile, error: object) -> DataError:
        return DataError.explained(
            f"dataset {self.name!r}: {file.shown} cannot be read as Parquet",
            got=first_line(error),
            rule=RULE,
            cure="write or download the file again, or leave it out of the dataset's path",
        )

    def read(self, chunk: int) -> Column:
        """Returns the documents of one row group."""
        number, file = self._file_of(chunk)
        if self.table.places[chunk] == DAMAGED:
            return Column.all_faulty(1, Fault("damaged", "a file without a readable footer", RULE))
        try:
            values = values_at(self._read_columns(number, file, chunk, [self._field]), self._field)
            return tokens_from_arrow(values) if self.is_tokenized else column_from_arrow(values)
        except pa.ArrowMemoryError:
            raise
        except (pa.ArrowException, OSError) as error:
            check_file(self.name, file)
            if self._on_error != "skip":
                raise self._unreadable(file, error) from None
            fault = Fault("damaged", f"a row group: {first_line(error)}", "a row group can be expanded")
            return Column.all_faulty(int(self.table.num_documents[chunk]), fault)

    def values(self, chunk: int, columns: Sequence[str]) -> pa.Table:
        """Returns other columns of all records of a row group; null for the record of a damaged file."""
        number, file = self._file_of(chunk)
        if self.table.places[chunk] == DAMAGED:
            return pa.table({name: pa.nulls(1) for name in columns})
        self.check_columns(number, columns)
        try:
            return self._read_columns(number, file, chunk, list(columns))
        except (pa.ArrowException, OSError) as error:
            check_file(self.name, file)
            raise self._unreadable(file, error) from None

    def without(self, number: int, where: Where) -> frozenset[int]:
        """Returns the chunks of a file that cannot meet a condition, by the statistics in its footer."""
        first, last = self.table.first_chunks[number : number + 2].tolist()
        places = self.table.places[first:last].tolist()
        if DAMAGED in places:
            return frozenset()
        self.check_columns(number, where.columns)
        metadata, footer = self._footer(number)
        try:
            kept = set(row_groups(where, footer, _schema(metadata)))
        except (pa.ArrowException, OSError):  # damaged: reading says how
            return frozenset()
        return frozenset(chunk for chunk, place in enumerate(places, first) if place not in kept)

    def check_columns(self, number: int, columns: Sequence[str]) -> None:
        """Refuses top-level columns that a file does not have once, and a footer that cannot give them."""
        self._checked.get((number, *columns), lambda: self._check_columns(number, columns))

    def _check_columns(self, number: int, columns: Sequence[str]) -> bool:
        metadata, file = self._footer(number)[0], self.table.files[number]
        check_columns(self.name, file, _schema(metadata).names, columns)
        try:
            check_groups(metadata, _leaves(metadata, columns))
        except _FooterFault as fault:
            raise self._unreadable(file, fault) from None
        return True

    def _read_columns(self, number: int, file: DataFile, chunk: int, columns: list[str]) -> Any:
        """Returns the columns of a row group, each read in one range."""
        metadata, group = self._footer(number)[0], int(self.table.places[chunk])
        window = _Window(lambda start, size: read_range(self.name, file, start, size), file.size_bytes)
        row_group = metadata.row_group(group)
        for leaf in _leaves(metadata, columns):
            window.fill(*_range(row_group.column(leaf)))
        with pq.ParquetFile(pa.PythonFile(window, "r"), metadata=metadata) as source:
            table = source.read_row_group(group, columns=columns, use_threads=False)
        check_read(self.name, file)
        return table

    def _footer(self, number: int) -> tuple[Any, bytes]:
        """Returns the footer of a file, parsed and as it is; the last few are kept."""
        return self._footers.get(number, lambda: self._read_footer(self._file(number)))

    def _read_footer(self, file: DataFile) -> tuple[Any, bytes]:
        try:
            footer = self._ends(file)[0]
            return parse_footer(footer), footer
        except _FooterFault as fault:
            raise self._unreadable(file, fault) from None


class _FooterFault(Exception):
    """A file's footer cannot be read: the text says what was found."""


class _NoDataError(Exception):
    """Data was asked for, so the metadata was in order."""


class _Window(io.RawIOBase):
    """A file of which some ranges are at hand; others are read when they are asked for."""

    def __init__(self, read: Callable[[int, int], bytes], size_bytes: int) -> None:
        super().__init__()
        self._read, self._size_bytes = read, size_bytes
        self._ranges: list[tuple[int, bytes]] = []
        self._position = 0

    def fill(self, start: int, size: int) -> None:
        """Reads a range, to be at hand; raises `OSError` for one that is not in the file."""
        if start < 0 or size < 0 or start + size > self._size_bytes:
            raise OSError(f"a column of {size:,} bytes at {start:,} in a file of {self._size_bytes:,}")
        self._ranges.append((start, self._read(start, size)))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}[whence]
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        """Returns the bytes from the position on."""
        start = self._position
        if start < 0:
            raise OSError(f"data at byte {start:,}")
        end = self._size_bytes if size < 0 else min(start + size, self._size_bytes)
        self._position = max(start, end)
        for first, data in self._ranges:
            if first <= start and end <= first + len(data):
                return data[start - first : end - first]
        return self._read(start, max(0, end - start))


class _NoData(_Window):
    """A file without data; of its own, as each frame ahead of an error costs Arrow time."""

    def __init__(self) -> None:
        super().__init__(lambda start, size: b"", 1 << 40)

    def read(self, size: int = -1, /) -> bytes:
        raise _NoDataError


def parse_footer(footer: bytes) -> Any:
    """Returns the metadata of a Parquet file from its footer."""
    try:
        return pq.read_metadata(pa.BufferReader(footer))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # names of columns are UTF-8
        raise _FooterFault(first_line(error)) from None


def check_groups(metadata: Any, leaves: Sequence[int]) -> None:
    """Refuses metadata of which pyarrow cannot make columns: asked for them directly it ends the process.

    Such are footers with certain bytes damaged, and columns that are encrypted. About 80 us a row group.
    """
    if not leaves:
        return
    kinds = {leaf: metadata.schema.column(leaf).physical_type for leaf in leaves}
    with pq.ParquetFile(pa.PythonFile(_NoData(), "r"), metadata=metadata) as source:
        for group in range(metadata.num_row_groups):
            try:
                source.reader.read_row_group(group, column_indices=list(leaves), use_threads=False)
            except _NoDataError:
                pass
            except (pa.ArrowException, OSError) as error:
                raise _FooterFault(first_line(error)) from None
            found = metadata.row_group(group)
            for leaf, kind in kinds.items():
                column = found.column(leaf)
                if column.physical_type != kind or min(found.num_rows, column.total_uncompressed_size) < 0:
                    got = f"{found.num_rows:,} rows, {column.total_uncompressed_size:,} bytes"
                    raise _FooterFault(f"row group {group}: {got} of {column.physical_type} for {kind}")


def _schema(metadata: Any) -> Any:
    return metadata.schema.to_arrow_schema()


def _leaves(metadata: Any, columns: Sequence[str]) -> list[int]:
    """Returns the leaves that are `columns` (dotted for a field of a struct), or lie below them."""
    paths = [metadata.schema.column(i).path for i in range(len(metadata.schema.names))]
    return [
        i
        for i, path in enumerate(paths)
        if any(path == column or path.startswith(f"{column}.") for column in columns)
    ]


def _range(column: Any) -> tuple[int, int]:
    """Returns where a column of a row group lies in its file, and its size."""
    start = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset:
        start = min(start, column.dictionary_page_offset)
    return start, column.total_compressed_size


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
