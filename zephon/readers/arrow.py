"""Arrow datasets: IPC files and streams, such as Feather files and what Hugging Face `datasets` saves.

Upstream: `arrow_messages.py`, which says where a column lies. Downstream: the spool. A chunk is a record
batch, or a piece of one that is uncompressed: of these, local files are read in place, by position, so that
nothing is copied and a file that shrinks is an error. The others are read a record batch at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from zephon.descriptors import Descriptor
from zephon.errors import DataError, Fault
from zephon.files import check_file, check_unchanged, open_file, open_unchanged, read_range
from zephon.paths import DataFile
from zephon.readers.arrays import check_column, check_columns, column_from_arrow, tokens_from_arrow, values_at
from zephon.readers.arrow_messages import (
    BATCH,
    DICTIONARY,
    END,
    SCHEMA,
    DamageError,
    Message,
    as_stored,
    damage,
    is_list,
    message_at,
    messages,
)
from zephon.readers.base import TOKEN, Column, Origin, first_line
from zephon.readers.kept import Kept, Shared
from zephon.readers.table import DAMAGED, Advance, Scan, TableReader, open_table
from zephon.views import View

PIECE_BYTES = 1 << 20
PIECE_RECORDS = 8192
"""A batch that is read in place is cut evenly into pieces, as few as have no more than these on average."""
RULE = "an Arrow file or stream is complete, and its metadata fits its buffers"
_BLOCK_BYTES = 64 << 10
_HEAD_BYTES = 4 << 10
_NUM_KEPT = 256

Int64 = NDArray[np.int64]


class _Head(NamedTuple):
    """What a stream begins with."""

    schema: Any
    stored: Any
    parts: list[tuple[int, int]]
    """(start, end) of the messages that a batch needs ahead of it: schema and dictionaries."""


class ArrowReader(TableReader):
    """Documents of one column of Arrow files: texts, or lists of token ids.

    Batches and pieces are weighed by the column as it is stored; compressed ones by the whole batch.
    """

    def __init__(self, origin: Origin) -> None:
        self.name, self._on_error = origin.dataset.name, origin.dataset.on_error
        self._field = origin.dataset.tokens or origin.dataset.text
        self.is_tokenized = bool(origin.dataset.tokens)
        self._heads, self._batches, self._tables = Kept(_NUM_KEPT), Kept(_NUM_KEPT), Kept(1)
        self._open, self._in_place = Shared(), set[int]()
        key = [self._field, self.is_tokenized, self._on_error]
        self.table = open_table(origin, "arrow", self._scan, key=key, by_bytes=False)

    def _scan(self, file: DataFile, _advance: Advance) -> Scan:
        rows: list[tuple[int, int, int]] = []
        stored: Any = None
        with open_file(self.name, file, block_bytes=_BLOCK_BYTES) as source:
            try:
                for message in messages(source, file.size_bytes):
                    if message.kind == SCHEMA:
                        schema = message.schema()
                        check_column(self.name, file.shown, schema, self._field, tokens=self.is_tokenized)
                        stored = as_stored(schema)
                    elif message.kind == BATCH:
                        rows += self._pieces(message, stored)
            except DamageError as damaged:
                check_file(self.name, file)
                if self._on_error != "skip":
                    raise self._unreadable(file, damaged) from None
                rows.append((DAMAGED, 1, 1))
        return Scan.from_rows(rows, self._sample(file))

    def _pieces(self, message: Message, stored: Any) -> list[tuple[int, int, int]]:
        """Returns the place, documents and weight of each chunk of a record batch."""
        count = message.num_records()
        num_bytes, values = message.column(stored, self._field)
        num_pieces = 1 if values is None else max(-(-num_bytes // PIECE_BYTES), -(-count // PIECE_RECORDS))
        num_pieces = min(num_pieces, count)
        edges = [i * count // num_pieces for i in range(num_pieces + 1)] if count else []
        return [(message.place, b - a, max(1, num_bytes // num_pieces)) for a, b in pairwise(edges)]

    def read(self, chunk: int) -> Column:
        """Returns the documents of a chunk."""
        number, file = self._file_of(chunk)
        if self.table.places[chunk] == DAMAGED:
            return Column.all_faulty(1, Fault("damaged", "a stream that is cut or damaged", RULE))
        try:
            message, values, first, last = self._find(number, file, chunk)
            if values is None:
                values = _checked(values_at(self._table(number, file, message), self._field))
            else:
                values, _, _ = self._range(file, message, values, first, last)
            return self._column(values)
        except DamageError as damaged:
            check_file(self.name, file)
            if self._on_error != "skip":
                raise self._unreadable(file, damaged) from None
            fault = Fault("damaged", f"a record batch: {damaged}", RULE)
            return Column.all_faulty(int(self.table.num_documents[chunk]), fault)

    def view(self, chunk: int) -> View | None:
        """Returns the chunk as it lies in its local file; None for one that has to be expanded or mended.

        Its documents are read once here, to find those that are none.
        """
        number, file = self._file_of(chunk)
        if file.is_remote or self.table.places[chunk] == DAMAGED:
            return None
        try:
            message, values, first, last = self._find(number, file, chunk)
            if values is None or (self.is_tokenized and _sizes(values.type)[1] != TOKEN.itemsize):
                return None
            values, start, num_bytes = self._range(file, message, values, first, last)
        except DamageError:
            return None  # `read` says what it is
        column = self._column(values)
        if len(column.data) != num_bytes:
            return None  # a faulty record has bytes, which stand between those of the others
        descriptor = self._descriptor(number, file)
        self._in_place.add(number)
        return View(
            hot=(None, descriptor.number, (column.offsets + start).data, bool(column.faults)),
            file=descriptor,
            faults=dict(column.faults),
            replaced=frozenset(),
            size_bytes=num_bytes,
            may_map=False,
        )

    def check(self, chunks: Int64) -> None:
        """Raises `DataError` if a file of these chunks that is read in place has changed."""
        numbers = set(np.unique(np.searchsorted(self.table.first_chunks, chunks, side="right") - 1).tolist())
        for number in sorted(numbers & self._in_place):
            file = self._file(number)
            descriptor = self._descriptor(number, file)  # open as long as it is held
            check_unchanged(self.name, file, descriptor.number)

    def values(self, chunk: int, columns: Sequence[str]) -> pa.Table:
        """Returns other columns of all records of a chunk; null for the record of a damage."""
        number, file = self._file_of(chunk)
        if self.table.places[chunk] == DAMAGED:
            return pa.table({name: pa.nulls(1) for name in columns})
        try:
            check_columns(self.name, file, self._head(number, file).schema.names, columns)
            message, _, first, last = self._find(number, file, chunk)
            table = self._table(number, file, message).select(list(columns)).slice(first, last - first)
            with damage():
                table = table.replace_schema_metadata()
                table.validate(full=True)
        except DamageError as damaged:
            check_file(self.name, file)
            raise self._unreadable(file, damaged) from None
        return table

    def _descriptor(self, number: int, file: DataFile) -> Descriptor:
        return self._open.get(number, lambda: Descriptor(open_unchanged(self.name, file)))

    def _column(self, values: Any) -> Column:
        return tokens_from_arrow(values) if self.is_tokenized else column_from_arrow(values)

    def _find(self, number: int, file: DataFile, chunk: int) -> tuple[Message, Any, int, int]:
        """Returns the chunk's batch, its column if that is to be read in place, and the chunk's records."""
        table, start = self.table, int(self.table.first_chunks[number])
        place = int(table.places[chunk])
        first_piece = start + int(np.searchsorted(table.places[start:chunk], place))
        first = int(table.num_documents[first_piece:chunk].sum())
        message, values = self._batches.get((number, place), lambda: self._batch(number, file, place))
        return message, values, first, first + int(table.num_documents[chunk])

    def _batch(self, number: int, file: DataFile, place: int) -> tuple[Message, Any]:
        with open_file(self.name, file, block_bytes=_HEAD_BYTES) as source:
            message = message_at(source, place, file.size_bytes)
        if message is None:
            raise DamageError(f"the end of a stream at byte {place:,}")
        return message, message.column(self._head(number, file).stored, self._field)[1]

    def _range(
        self, file: DataFile, message: Message, values: Any, first: int, last: int
    ) -> tuple[Any, int, int]:
        """Returns the records [first, last) of a column, where their bytes begin, and how many there are."""
        validity, offsets, *_, data = values.buffers()

        def read(buffer: Any, start: int, end: int) -> bytes:
            return read_range(self.name, file, message.place_of(buffer) + start, end - start)

        size, item_bytes = _sizes(values.type)
        ends = np.frombuffer(read(offsets, first * size, (last + 1) * size), f"<i{size}").astype(np.int64)
        low, high = int(ends[0]) * item_bytes, int(ends[-1]) * item_bytes
        if low < 0 or high > data.size or (np.diff(ends) < 0).any():
            raise DamageError("offsets that lead out of their buffer")
        bits = read(validity, first // 8, -(-last // 8)) if values.null_count else None
        array = _array(values.type, bits, first % 8, ends - ends[0], read(data, low, high))
        if file.is_remote:
            check_file(self.name, file)
        return array, message.place_of(data) + low, high - low

    def _table(self, number: int, file: DataFile, message: Message) -> pa.Table:
        """Returns a record batch, whole; the last one is kept."""
        return self._tables.get((number, message.place), lambda: self._read_table(number, file, message))

    def _read_table(self, number: int, file: DataFile, message: Message) -> pa.Table:
        ahead = [part for part in self._head(number, file).parts if part[0] < message.place]
        parts = [*ahead, (message.place, message.end)]
        data = [read_range(self.name, file, start, end - start) for start, end in parts]
        check_file(self.name, file)
        try:
            with damage(), pa.ipc.open_stream(pa.BufferReader(b"".join([*data, END]))) as stream:
                return pa.Table.from_batches([stream.read_next_batch()])
        except pa.ArrowMemoryError as error:  # of a damaged size, or for want of memory: no reason to skip
            raise self._unreadable(file, error) from None

    def _head(self, number: int, file: DataFile) -> _Head:
        return self._heads.get(number, lambda: self._read_head(file))

    def _read_head(self, file: DataFile) -> _Head:
        with open_file(self.name, file, block_bytes=_BLOCK_BYTES) as source:
            found = messages(source, file.size_bytes)
            first = next(found)
            schema, parts = first.schema(), [(first.place, first.end)]
            if "dictionary<" in str(schema):
                try:
                    parts.extend((m.place, m.end) for m in found if m.kind == DICTIONARY)
                except DamageError:
                    check_file(self.name, file)  # what comes ahead of a damage can be read
        return _Head(schema, as_stored(schema), parts)

    def _unreadable(self, file: DataFile, error: object) -> DataError:
        return DataError.explained(
            f"dataset {self.name!r}: {file.shown} cannot be read as Arrow",
            got=first_line(error),
            rule=RULE,
            cure="write or download the file again, leave it out of the dataset's path, or set "
            'on_error = "skip" to read what comes before the damage',
        )

    def close(self) -> None:
        """Does nothing: the files that are read in place close with the last view of them."""


def _array(kind: Any, bits: bytes | None, skipped: int, offsets: Int64, data: bytes) -> Any:
    """Returns the array of strings or lists of these buffers, of which `skipped` bits come ahead."""
    count, content = len(offsets) - 1, pa.py_buffer(data)
    buffers = [bits and pa.py_buffer(bits), pa.py_buffer(bytes(8 * skipped) + offsets.tobytes())]
    if not is_list(kind):
        return pa.Array.from_buffers(pa.large_binary(), count, [*buffers, content], offset=skipped)
    items = pa.Array.from_buffers(kind.value_type, int(offsets[-1]), [None, content])
    large = pa.large_list(kind.value_type)
    return pa.Array.from_buffers(large, count, buffers, offset=skipped, children=[items])


def _sizes(kind: Any) -> tuple[int, int]:
    """Returns the bytes of an offset, and of what offsets count."""
    large = kind in (pa.large_string(), pa.large_binary()) or pa.types.is_large_list(kind)
    return 8 if large else 4, kind.value_type.bit_width // 8 if is_list(kind) else 1


_AS_BINARY = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}


def _checked(values: Any) -> Any:
    """Returns the values as binaries if they are texts; raises `DamageError` for buffers that do not fit."""
    [array] = values.chunks
    with damage():
        is_dictionary = pa.types.is_dictionary(array.type)
        words = array.dictionary if is_dictionary else array
        if words.type in _AS_BINARY:
            words = words.view(_AS_BINARY[words.type])
        array = pa.DictionaryArray.from_arrays(array.indices, words) if is_dictionary else words
        array.validate(full=True)
    if array.type == pa.binary_view():  # null ones lead anywhere, and Arrow would follow them
        array = pa.array(array.to_pylist(), pa.large_binary())
    return array
