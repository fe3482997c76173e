"""Where the buffers of a column lie in an Arrow IPC file or stream, found without reading any of them.

Upstream: the bytes of a file. Downstream: the Arrow reader. A file is a stream between two magic words, with
a footer behind it; a stream is a schema, then dictionaries and record batches, then the mark of its end. Only
their metadata is read: flatbuffers, of which the few fields that matter are picked out here.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

SCHEMA, DICTIONARY, BATCH = 1, 2, 3
"""Kinds of messages."""
MAGIC = b"ARROW1"
MARK = b"\xff\xff\xff\xff"
END = MARK + bytes(4)
_FILE_START = 8
_MAX_RATIO = 1 << 16
"""How many times its size LZ4 and Zstandard can make of a buffer, and more."""
_TAIL_BYTES = 4 + len(MAGIC)

Int64 = NDArray[np.int64]


class DamageError(Exception):
    """What was found where a message should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a stream."""

    kind: int
    place: int
    """The byte of the file at which it begins."""
    head: bytes
    """Its length and metadata, as they stand in the file."""
    body_bytes: int
    header: _Flat
    """The schema, dictionary or record batch in the metadata."""

    @property
    def body(self) -> int:
        """Returns the byte of the file at which its buffers begin."""
        return self.place + len(self.head)

    @property
    def end(self) -> int:
        """Returns the byte of the file behind it."""
        return self.body + self.body_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Where a buffer lies in its file."""

    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """A column of a record batch that can be read in place: strings, binaries or lists of numbers."""

    kind: Any
    num_records: int
    validity: Span | None
    """One bit a record; None where no record is null."""
    offsets: Span
    data: Span

    @property
    def offset_bytes(self) -> int:
        """Returns the size of an offset."""
        large = (pa.large_string(), pa.large_binary())
        return 8 if self.kind in large or pa.types.is_large_list(self.kind) else 4

    @property
    def item_bytes(self) -> int:
        """Returns the size of what the offsets count."""
        return int(self.kind.value_type.bit_width) // 8 if _is_list(self.kind) else 1


def messages(source: BinaryIO, size_bytes: int) -> Iterator[Message]:
    """Yields the messages of a file or stream of `size_bytes`, from the first on; reads no buffer.

    Raises `DamageError` where it is cut or damaged, behind the messages ahead of that.
    """
    source.seek(0)
    is_file = source.read(len(MAGIC)) == MAGIC
    footer = _footer_start(source, size_bytes) if is_file else None
    place, end = (_FILE_START if is_file else 0), size_bytes if footer is None else footer
    is_first, has_ended = True, False
    while place < end and not has_ended:
        message = message_at(source, place, size_bytes)
        has_ended = message is None
        if message is not None:
            if is_first != (message.kind == SCHEMA):
                raise DamageError(f"a message of the kind {message.kind} at byte {place:,}, not in its turn")
            yield message
            place, is_first = message.end, False
    if is_file and footer is None:
        raise DamageError(f"{size_bytes:,} bytes that do not end in a footer")
    if is_first or not (is_file or has_ended):
        raise DamageError(f"the end of the file at byte {place:,}, without the mark of the end of a stream")


def _footer_start(source: BinaryIO, size_bytes: int) -> int | None:
    """Returns where the footer of a file begins; None where there is none."""
    source.seek(max(0, size_bytes - _TAIL_BYTES))
    tail = source.read(_TAIL_BYTES)
    if len(tail) < _TAIL_BYTES or tail[4:] != MAGIC:
        return None
    start = size_bytes - _TAIL_BYTES - int.from_bytes(tail[:4], "little")
    return start if start >= _FILE_START else None


def message_at(source: BinaryIO, place: int, size_bytes: int) -> Message | None:
    """Returns the message that begins at a byte; None for the mark of the end of the stream."""
    source.seek(place)
    prefix = source.read(8)
    skipped = 4 if prefix.startswith(MARK) else 0  # before version 0.15 the length stood alone
    if len(prefix) < skipped + 4:
        raise DamageError(f"{len(prefix)} bytes at byte {place:,}, where a message should be")
    size = int.from_bytes(prefix[skipped : skipped + 4], "little")
    if not size:
        return None
    if place + skipped + 4 + size > size_bytes:
        raise DamageError(f"metadata of {size:,} bytes at byte {place:,} of {size_bytes:,}")
    source.seek(place)
    head = source.read(skipped + 4 + size)
    try:
        message = _Flat.root(head, skipped + 4)
        kind, header = message.number(1, "<B"), message.table(2)
        body_bytes = message.number(3, "<q")
    except (struct.error, ValueError) as error:
        raise DamageError(f"metadata at byte {place:,} that is none ({error})") from None
    if kind not in (SCHEMA, DICTIONARY, BATCH) or header is None or body_bytes < 0:
        raise DamageError(f"metadata at byte {place:,} of a message of the kind {kind}")
    if place + len(head) + body_bytes > size_bytes:
        raise DamageError(
            f"a message of {len(head) + body_bytes:,} bytes at byte {place:,} of {size_bytes:,}"
        )
    return Message(kind=kind, place=place, head=head, body_bytes=body_bytes, header=header)


def schema_of(message: Message) -> Any:
    """Returns the schema that a message holds."""
    try:
        schema = pa.ipc.read_schema(pa.BufferReader(message.head))
        for field in schema:
            _check_names(field)
        return schema
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamageError(f"a schema that cannot be read: {str(error).splitlines()[0][:200]}") from None


def _check_names(field: Any) -> None:
    """Raises `ValueError` for a name that is not UTF-8, which else shows where it is asked for."""
    _ = field.name
    for i in range(field.type.num_fields):
        _check_names(field.type.field(i))


def is_big_endian(message: Message) -> bool:
    """Returns whether the numbers of the stream that a schema's message begins are the other way round."""
    return bool(message.header.number(0, "<h"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What the metadata of a record batch says."""

    num_records: int
    nodes: Int64
    """(n, 2) records and nulls of each array, the columns depth first."""
    buffers: Int64
    """(b, 2) place in the body and bytes of each buffer."""
    is_compressed: bool
    variadic: Int64
    """How many data buffers each array of views has."""


def batch_of(message: Message) -> Batch:
    """Returns what a record batch's message says of it, or a dictionary's, which is one too."""
    try:
        header = message.header if message.kind == BATCH else message.header.table(1)
        if header is None:
            raise ValueError("nothing in it")
        batch = Batch(
            num_records=header.number(0, "<q"),
            nodes=header.numbers(1, 2),
            buffers=header.numbers(2, 2),
            is_compressed=header.table(3) is not None,
            variadic=header.numbers(4, 1).ravel(),
        )
    except (struct.error, ValueError) as error:
        raise DamageError(f"a record batch at byte {message.place:,} that is none ({error})") from None
    starts, sizes = batch.buffers[:, 0], batch.buffers[:, 1]
    if batch.num_records < 0 or (starts < 0).any() or (sizes < 0).any():
        raise DamageError(f"a record batch at byte {message.place:,} with numbers below 0")
    if (starts > message.body_bytes).any() or (starts + sizes > message.body_bytes).any():
        raise DamageError(f"a record batch at byte {message.place:,} with buffers beyond its end")
    return batch


def check_expanded_sizes(data: bytes) -> None:
    """Raises `DamageError` for a message with a compressed buffer that says it is larger than it can be."""
    message = message_at(io.BytesIO(data), 0, len(data))
    if message is None or message.kind == SCHEMA:
        return
    batch = batch_of(message)
    for start, size in batch.buffers.tolist() if batch.is_compressed else ():
        place = message.body + start  # of its size, ahead of what is compressed
        expanded = int.from_bytes(data[place : place + 8], "little", signed=True) if size else 0
        if not -1 <= expanded <= size * _MAX_RATIO:
            raise DamageError(f"a buffer of {size:,} bytes that says it was {expanded:,}")


def column_bytes(batch: Batch, schema: Any, field: str) -> int:
    """Returns the bytes of all buffers of a column, as they are stored."""
    found = _find(schema, field, batch)
    return int(batch.buffers[found.buffer : found.buffer + found.num_buffers, 1].sum())


def plain_column(message: Message, batch: Batch, schema: Any, field: str) -> Plain | None:
    """Returns where the column at `field` lies, or None where it has to be read as Arrow reads it.

    That is: compressed, of another type, in a struct that is null in places, or lists that hold nulls.
    """
    found = _find(schema, field, batch)
    is_list = _is_list(found.kind)
    if batch.is_compressed or not (is_list or found.kind in _STRINGS):
        return None
    inner = [*found.parents, found.node + 1] if is_list else found.parents
    if batch.nodes[inner, 1].any():
        return None
    place = found.buffer
    spans = [Span(start=message.body + start, num_bytes=size) for start, size in batch.buffers.tolist()]
    num_records, num_nulls = batch.nodes[found.node].tolist()
    plain = Plain(
        kind=found.kind,
        num_records=num_records,
        validity=spans[place] if num_nulls else None,
        offsets=spans[place + 1],
        data=spans[place + 2 + is_list],
    )
    needed = (num_records + 1) * plain.offset_bytes if num_records else 0
    is_short = plain.validity is not None and 8 * plain.validity.num_bytes < num_records
    if num_records != batch.num_records or plain.offsets.num_bytes < needed or is_short:
        raise DamageError(f"a record batch at byte {message.place:,} with buffers too short for its records")
    return plain


_STRINGS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _is_list(kind: Any) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(is_list and pa.types.is_integer(kind.value_type))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Where the arrays of a column stand in a record batch."""

    node: int
    buffer: int
    num_buffers: int
    kind: Any
    parents: list[int]
    """The nodes of the structs around it."""


def _find(schema: Any, field: str, batch: Batch) -> _Found:
    """Returns where the column, or the field of a struct at the dotted path, stands; it is there."""
    path = [field] if schema.names.count(field) == 1 else field.split(".")
    variadic = iter(batch.variadic.tolist())
    fields: list[Any] = list(schema)
    node = buffer = 0
    parents: list[int] = []
    kind: Any = None
    top = 0
    for name in path:
        if kind is not None:  # a struct, of which `name` is a field
            parents.append(node)
            node, buffer = node + 1, buffer + 1
            fields = [kind.field(i) for i in range(kind.num_fields)]
        for other in fields:
            kind = other.type
            if other.name == name:
                break
            num_nodes, num_buffers = _size(kind, variadic)
            node, buffer = node + num_nodes, buffer + num_buffers
        top = top if parents else node
    num_nodes, num_buffers = _size(kind, variadic)
    if node + num_nodes > len(batch.nodes) or buffer + num_buffers > len(batch.buffers):
        raise DamageError("a record batch with fewer arrays than its schema has")
    if batch.nodes[top, 0] != batch.num_records:
        raise DamageError(
            f"{batch.nodes[top, 0]:,} values in a record batch of {batch.num_records:,} records"
        )
    return _Found(node=node, buffer=buffer, num_buffers=num_buffers, kind=kind, parents=parents)


def _size(kind: Any, variadic: Iterator[int]) -> tuple[int, int]:
    """Returns how many nodes and buffers an array of a type has in a record batch."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _size(kind.storage_type, variadic)
    if kind in (pa.string_view(), pa.binary_view()):
        return 1, 2 + next(variadic, 0)
    own = 2
    if kind in _STRINGS or types.is_list_view(kind) or types.is_large_list_view(kind):
        own = 3
    elif types.is_struct(kind) or types.is_fixed_size_list(kind) or _is_sparse(kind):
        own = 1
    elif types.is_null(kind) or types.is_run_end_encoded(kind):
        own = 0
    num_nodes, num_buffers = 1, own
    for child in _children(kind):
        nodes, buffers = _size(child, variadic)
        num_nodes, num_buffers = num_nodes + nodes, num_buffers + buffers
    return num_nodes, num_buffers


def _is_sparse(kind: Any) -> bool:
    return bool(pa.types.is_union(kind) and kind.mode == "sparse")


def _children(kind: Any) -> list[Any]:
    if pa.types.is_dictionary(kind):
        return []
    if pa.types.is_run_end_encoded(kind):
        return [kind.run_end_type, kind.value_type]
    return [kind.field(i).type for i in range(kind.num_fields)]


class _Flat:
    """A table of a flatbuffer; what leads out of its bytes raises `struct.error` or `ValueError`."""

    __slots__ = ("_at", "_data", "_vtable", "_vtable_bytes")

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._vtable = at - self._unpack("<i", at)
        self._vtable_bytes = self._unpack("<H", self._vtable)

    @classmethod
    def root(cls, data: bytes, start: int) -> _Flat:
        """Returns the table that the flatbuffer at `start` is."""
        return cls(data, start + int(struct.unpack_from("<I", data, start)[0]))

    def _unpack(self, code: str, at: int) -> int:
        if at < 0:
            raise ValueError(f"an offset of {at}")
        return int(struct.unpack_from(code, self._data, at)[0])

    def _field(self, index: int) -> int:
        """Returns where a field stands; 0 where the table leaves it out."""
        slot = 4 + 2 * index
        offset = self._unpack("<H", self._vtable + slot) if slot < self._vtable_bytes else 0
        return self._at + offset if offset else 0

    def number(self, index: int, code: str) -> int:
        """Returns the number in a field; 0 where it is left out."""
        at = self._field(index)
        return self._unpack(code, at) if at else 0

    def table(self, index: int) -> _Flat | None:
        """Returns the table that a field leads to."""
        at = self._field(index)
        return _Flat(self._data, at + self._unpack("<I", at)) if at else None

    def numbers(self, index: int, width: int) -> Int64:
        """Returns the vector that a field leads to, of rows of `width` int64 each."""
        at = self._field(index)
        start = at + self._unpack("<I", at) if at else 0
        count = self._unpack("<I", start) if at else 0
        if not count:
            return np.empty((0, width), np.int64)
        return np.frombuffer(self._data, "<i8", count * width, start + 4).reshape(count, width)
