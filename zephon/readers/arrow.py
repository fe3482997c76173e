"""Arrow datasets: IPC files and streams, such as Feather files and what Hugging Face `datasets` saves.

Upstream: `arrow_messages.py`, which says where a column lies. Downstream: the spool. A chunk is a record
batch, or a piece of one that is uncompressed: of these, local files are read in place, by position, so that
nothing is copied and a file that shrinks is an error. The others are read a record batch at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from zephon.errors import DataError, Fault
from zephon.files import check_file, check_unchanged, open_file, open_unchanged, read_range
from zephon.paths import DataFile
from zephon.readers.arrays import check_column, column_from_arrow, tokens_from_arrow, values_at
from zephon.readers.arrow_messages import (
    BATCH,
    DICTIONARY,
    END,
    SCHEMA,
    Batch,
    DamageError,
    Message,
    Plain,
    Span,
    batch_of,
    check_expanded_sizes,
    column_bytes,
    is_big_endian,
    message_at,
    messages,
    plain_column,
    schema_of,
)
from zephon.readers.base import TOKEN, Chunks, Column, Origin, max_open
from zephon.readers.jsonl import sample
from zephon.readers.kept import Kept
from zephon.readers.table import Advance, Scan, open_table
from zephon.views import Descriptor, View

PIECE_BYTES = 1 << 20
PIECE_RECORDS = 8192
"""A batch that is read in place is cut evenly into pieces, as few as have no more than these on average."""
RULE = "an Arrow file or stream is complete, and its metadata fits its buffers"
_BLOCK_BYTES = 64 << 10
_DAMAGED = -1
"""The place of the one record that stands for what follows a damage."""
_NUM_KEPT = 256
_MAX_OPEN_FILES = 64

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """What a stream begins with, and how to read a column of its record batches."""

    schema: Any
    is_big_endian: bool
    parts: list[Span]
    """The messages that a record batch needs ahead of it when it is read alone: schema and dictionaries."""


class ArrowReader:
    """Documents of one column of Arrow files: texts, or lists of token ids."""

    def __init__(self, origin: Origin) -> None:
        self.name, self._on_error = origin.dataset.name, origin.dataset.on_error
        self._field = origin.dataset.tokens or origin.dataset.text
        self.is_tokenized = bool(origin.dataset.tokens)
        self._reset()
        key = [self._field, self.is_tokenized, self._on_error]
        self.table = open_table(origin, "arrow", self._scan, key=key, by_bytes=False)

    def _reset(self) -> None:
        self._heads, self._batches, self._tables = Kept(_NUM_KEPT), Kept(_NUM_KEPT), Kept(1)
        self._open = Kept(max_open(_MAX_OPEN_FILES))
        self._in_place: set[int] = set()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_heads", "_batches", "_tables", "_open", "_in_place"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._reset()
        self.__dict__.update(state)

    def _scan(self, file: DataFile, _advance: Advance) -> Scan:
        rows: list[tuple[int, int, int]] = []
        head: _Head | None = None
        with open_file(self.name, file, block_bytes=_BLOCK_BYTES) as source:
            try:
                for message in messages(source, file.size_bytes):
                    if message.kind == SCHEMA:
                        head = _head_of(message)
                        path = file.shown
                        check_column(self.name, path, head.schema, self._field, tokens=self.is_tokenized)
                    elif message.kind == BATCH and head is not None:
                        rows += self._pieces(message, head)
            except DamageError as damage:
                check_file(self.name, file)
                if self._on_error != "skip":
                    raise self._unreadable(file, damage) from None
                rows.append((_DAMAGED, 1, 1))
        table = np.array(rows, np.int64).reshape(len(rows), 3)
        places, num_documents, num_bytes = table.T.copy()
        found = sample(self.name, file)
        return Scan(places=places, num_documents=num_documents, num_bytes=num_bytes, sample=found)

    def _pieces(self, message: Message, head: _Head) -> list[tuple[int, int, int]]:
        """Returns the place, documents and weight of each chunk of a record batch."""
        batch = batch_of(message)
        if not batch.num_records:
            return []
        num_bytes = column_bytes(batch, head.schema, self._field)
        num_pieces = 1
        if _plain(message, batch, head, self._field) is not None:
            num_pieces = max(-(-num_bytes // PIECE_BYTES), -(-batch.num_records // PIECE_RECORDS))
            num_pieces = min(num_pieces, batch.num_records)
        edges = _edges(batch.num_records, num_pieces)
        weight = max(1, num_bytes // num_pieces)
        return [(message.place, last - first, weight) for first, last in pairwise(edges)]

    def chunks(self) -> Chunks:
        """Returns the record batches and pieces, weighed by their share of the column as it is stored."""
        return self.table.chunks()

    def read(self, chunk: int) -> Column:
        """Returns the documents of a chunk."""
        number = self.table.file_of(chunk)
        file = self.table.current(number, self._sample)
        if self.table.places[chunk] == _DAMAGED:
            return Column.all_faulty(1, Fault("damaged", "a stream that is cut or damaged", RULE))
        try:
            plain, first, last = self._place(number, file, chunk)
            if plain is not None:
                return self._column(self._range(file, plain, first, last)[0])
            table = self._table(number, file, chunk)
            return self._column(_checked(values_at(table, self._field)))
        except DamageError as damage:
            check_file(self.name, file)
            if self._on_error != "skip":
                raise self._unreadable(file, damage) from None
            fault = Fault("damaged", f"a record batch: {damage}", RULE)
            return Column.all_faulty(int(self.table.num_documents[chunk]), fault)

    def view(self, chunk: int) -> View | None:
        """Returns the chunk as it lies in its local file; None for one that has to be expanded or mended.

        Its documents are read once here, to find those that are none.
        """
        number = self.table.file_of(chunk)
        file = self.table.current(number, self._sample)
        if file.is_remote or self.table.places[chunk] == _DAMAGED:
            return None
        try:
            plain, first, last = self._place(number, file, chunk)
            if plain is None or (self.is_tokenized and plain.item_bytes != TOKEN.itemsize):
                return None
            values, span = self._range(file, plain, first, last)
        except DamageError:
            return None  # `read` says what it is
        column = self._column(values)
        if len(column.data) != span.num_bytes:
            return None  # a faulty record has bytes, which stand between those of the others
        descriptor = self._descriptor(number, file)
        self._in_place.add(number)
        return View(
            hot=(None, descriptor.number, (column.offsets + span.start).data, bool(column.faults)),
            file=descriptor,
            faults=dict(column.faults),
            replaced=frozenset(),
            size_bytes=span.num_bytes,
            may_map=False,
        )

    def check(self, chunks: Int64) -> None:
        """Raises `DataError` if a file of these chunks that is read in place has changed."""
        numbers = set(np.unique(np.searchsorted(self.table.first_chunks, chunks, side="right") - 1).tolist())
        for number in sorted(numbers & self._in_place):
            file = self.table.current(number, self._sample)
            check_unchanged(self.name, file, self._descriptor(number, file).number)

    def _descriptor(self, number: int, file: DataFile) -> Descriptor:
        return self._open.get(number, lambda: Descriptor(open_unchanged(self.name, file)))

    def values(self, chunk: int, columns: Sequence[str]) -> pa.Table:
        """Returns other columns of all records of a chunk; null for the record of a damage."""
        number = self.table.file_of(chunk)
        file = self.table.current(number, self._sample)
        if self.table.places[chunk] == _DAMAGED:
            return pa.table({name: pa.nulls(1) for name in columns})
        try:
            self._check_columns(file, self._head(number, file).schema.names, columns)
            _, first, last = self._place(number, file, chunk)
            table = self._table(number, file, chunk).select(list(columns)).slice(first, last - first)
            table = table.replace_schema_metadata()
            table.validate(full=True)
        except (DamageError, pa.ArrowInvalid) as damage:
            check_file(self.name, file)
            raise self._unreadable(file, damage) from None
        return table

    def _check_columns(self, file: DataFile, names: list[str], columns: Sequence[str]) -> None:
        if missing := [name for name in columns if name not in names]:
            raise DataError.explained(
                f"dataset {self.name!r}: {file.shown} has no column {missing[0]!r}",
                got=f"the columns {', '.join(names)}",
                rule="every file has the columns that are compared, sorted by or shown",
                cure="name one of these columns",
            )

    def _column(self, values: Any) -> Column:
        return tokens_from_arrow(values) if self.is_tokenized else column_from_arrow(values)

    def _place(self, number: int, file: DataFile, chunk: int) -> tuple[Plain | None, int, int]:
        """Returns where the column of the chunk's batch lies, and the records [first, last) of the chunk."""
        table, start = self.table, int(self.table.first_chunks[number])
        place = int(table.places[chunk])
        first_piece = start + int(np.searchsorted(table.places[start:chunk], place))
        first = int(table.num_documents[first_piece:chunk].sum())
        plain = self._batches.get((number, place), lambda: self._find(number, file, place))
        return plain, first, first + int(table.num_documents[chunk])

    def _find(self, number: int, file: DataFile, place: int) -> Plain | None:
        head, message = self._head(number, file), self._message(file, place)
        return _plain(message, batch_of(message), head, self._field)

    def _message(self, file: DataFile, place: int) -> Message:
        with open_file(self.name, file, block_bytes=_BLOCK_BYTES) as source:
            message = message_at(source, place, file.size_bytes)
        if message is None:
            raise DamageError(f"the end of a stream at byte {place:,}")
        return message

    def _range(self, file: DataFile, plain: Plain, first: int, last: int) -> tuple[Any, Span]:
        """Returns the records [first, last) of a batch, and where their bytes lie."""
        size = plain.offset_bytes
        start = plain.offsets.start + first * size
        raw = read_range(self.name, file, start, (last - first + 1) * size)
        offsets = np.frombuffer(raw, np.dtype(f"<i{size}")).astype(np.int64)
        low, high = int(offsets[0]), int(offsets[-1])
        if low < 0 or high * plain.item_bytes > plain.data.num_bytes or (np.diff(offsets) < 0).any():
            raise DamageError("offsets that lead out of their buffer")
        items = plain.item_bytes
        span = Span(start=plain.data.start + low * items, num_bytes=(high - low) * items)
        data = read_range(self.name, file, span.start, span.num_bytes)
        validity = None
        if plain.validity is not None:
            begin, end = first // 8, -(-last // 8)
            bits = np.frombuffer(
                read_range(self.name, file, plain.validity.start + begin, end - begin), np.uint8
            )
            valid = np.unpackbits(bits, bitorder="little")[first - 8 * begin :][: last - first]
            validity = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
        if file.is_remote:
            check_file(self.name, file)
        return _array(plain.kind, validity, offsets - low, data), span

    def _table(self, number: int, file: DataFile, chunk: int) -> pa.Table:
        """Returns the record batch that a chunk is of, whole; the last one is kept."""
        place = int(self.table.places[chunk])
        return self._tables.get((number, place), lambda: self._read_table(number, file, place))

    def _read_table(self, number: int, file: DataFile, place: int) -> pa.Table:
        head, message = self._head(number, file), self._message(file, place)
        parts = [span for span in head.parts if span.start < place]
        spans = [*parts, Span(start=place, num_bytes=message.end - place)]
        data = [read_range(self.name, file, span.start, span.num_bytes) for span in spans]
        check_file(self.name, file)
        for part in data:
            check_expanded_sizes(part)
        try:
            with pa.ipc.open_stream(pa.BufferReader(b"".join([*data, END]))) as stream:
                return pa.Table.from_batches([stream.read_next_batch()])
        except pa.ArrowMemoryError:
            raise
        except (pa.ArrowException, OSError, StopIteration) as error:
            raise DamageError((str(error).strip() or repr(error)).splitlines()[0][:200]) from None

    def _head(self, number: int, file: DataFile) -> _Head:
        return self._heads.get(number, lambda: self._read_head(file))

    def _read_head(self, file: DataFile) -> _Head:
        with open_file(self.name, file, block_bytes=_BLOCK_BYTES) as source:
            found = messages(source, file.size_bytes)
            head = _head_of(next(found))
            if any(_has_dictionary(kind) for kind in head.schema.types):
                try:
                    head.parts.extend(_span_of(m) for m in found if m.kind == DICTIONARY)
                except DamageError:
                    check_file(self.name, file)  # what comes ahead of a damage can be read
        return head

    def _sample(self, file: DataFile) -> str:
        return sample(self.name, file)

    def _unreadable(self, file: DataFile, error: object) -> DataError:
        return DataError.explained(
            f"dataset {self.name!r}: {file.shown} cannot be read as Arrow",
            got=str(error).splitlines()[0][:200],
            rule=RULE,
            cure="write or download the file again, leave it out of the dataset's path, or set "
            'on_error = "skip" to read what comes before the damage',
        )

    def close(self) -> None:
        """Closes the files that are read in place; a later read opens them again."""
        self._open.clear()

    def identity(self) -> dict[str, Any]:
        """Returns the kind, the counts and a sample of each file."""
        return self.table.identity


def _head_of(message: Message) -> _Head:
    schema, other_way = schema_of(message), is_big_endian(message)
    return _Head(schema=schema, is_big_endian=other_way, parts=[_span_of(message)])


def _span_of(message: Message) -> Span:
    return Span(start=message.place, num_bytes=message.end - message.place)


def _plain(message: Message, batch: Batch, head: _Head, field: str) -> Plain | None:
    return None if head.is_big_endian else plain_column(message, batch, head.schema, field)


def _edges(num_records: int, num_pieces: int) -> list[int]:
    """Returns where the pieces of a batch begin, and its end."""
    return [i * num_records // num_pieces for i in range(num_pieces + 1)]


def _array(kind: Any, validity: Any, offsets: Int64, data: bytes) -> Any:
    """Returns the array of strings or lists of these buffers, with offsets of 64 bits."""
    count, buffers = len(offsets) - 1, [validity, pa.py_buffer(offsets.tobytes())]
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return pa.Array.from_buffers(pa.large_binary(), count, [*buffers, pa.py_buffer(data)])
    items = pa.Array.from_buffers(kind.value_type, int(offsets[-1]), [None, pa.py_buffer(data)])
    return pa.Array.from_buffers(pa.large_list(kind.value_type), count, buffers, children=[items])


def _has_dictionary(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(i).type) for i in range(kind.num_fields))


_AS_BINARY = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}


def _checked(values: Any) -> Any:
    """Returns the values as binaries if they are texts; raises `DamageError` for buffers that do not fit."""
    checked = []
    try:
        for array in values.chunks:
            if pa.types.is_dictionary(array.type):
                words = _binary(array.dictionary)
                array = pa.DictionaryArray.from_arrays(array.indices, words)
            else:
                array = _binary(array)
            array.validate(full=True)
            checked.append(_without_null_views(array) if array.type == pa.binary_view() else array)
    except (pa.ArrowException, OSError) as error:
        raise DamageError(str(error).splitlines()[0][:200]) from None
    return pa.chunked_array(checked, checked[0].type)


def _binary(array: Any) -> Any:
    """Returns an array of strings as one of binaries, whose bytes are not looked at."""
    return array.view(_AS_BINARY[array.type]) if array.type in _AS_BINARY else array


def _without_null_views(array: Any) -> Any:
    """Returns an array of views with empty ones for nulls, which Arrow does not check, but follows."""
    if not array.null_count:
        return array
    validity, views, *data = array.buffers()
    rows = np.frombuffer(views, "<i4").reshape(-1, 4).copy()
    rows[array.offset : array.offset + len(array)][array.is_null().to_numpy(zero_copy_only=False)] = 0
    buffers = [validity, pa.py_buffer(rows.tobytes()), *data]
    return pa.Array.from_buffers(array.type, len(array), buffers, offset=array.offset)
