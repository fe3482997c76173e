"""Where a column lies in an Arrow IPC file or stream, found without reading any of it.

Upstream: the bytes of a file. Downstream: the Arrow reader. A file is a stream between two magic words, with
a footer behind it; a stream is a schema, then dictionaries and record batches, then the mark of its end.
Arrow itself takes their metadata apart: it is given zeros where the buffers would be, and where it puts the
arrays among these is where they lie in the file. Nothing is mapped, and of a remote file nothing is fetched.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from zephon.readers.base import first_line

SCHEMA, DICTIONARY, BATCH = "schema", "dictionary", "record batch"
"""Kinds of messages, as Arrow calls them."""
MAGIC = b"ARROW1"
END = b"\xff\xff\xff\xff" + bytes(4)
_FILE_START = 8
_STRINGS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_TAIL_BYTES = 4 + len(MAGIC)
_COUNT = pa.schema([("", pa.null())])
"""With this schema a record batch is read without its buffers."""
_ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, StopIteration)
"""What Arrow raises for data that does not fit."""


class DamageError(Exception):
    """What was found where a message should be."""


@contextmanager
def damage() -> Iterator[None]:
    """Raises `DamageError` for what Arrow finds wrong with the data, not for what else is wrong."""
    try:
        yield
    except pa.ArrowMemoryError:
        raise
    except _ERRORS as error:
        if isinstance(error, OSError) and error.errno:  # not of Arrow
            raise
        raise DamageError(first_line(error)) from None


class _Hollow:
    """A file at the start of a message, of which the body is zeros."""

    closed = False

    def __init__(self, source: BinaryIO, place: int, size_bytes: int) -> None:
        self._source, self._size_bytes, self.place = source, size_bytes, place
        self._announced_bytes, self._is_in_body = -1, False
        source.seek(place)

    def read(self, size: int) -> Any:
        """Returns what Arrow asks for: the mark of a message, the size of its metadata, these, its body."""
        self.place += size
        if self.place > self._size_bytes and size > 4:
            raise DamageError(f"a message that leads to byte {self.place:,} of {self._size_bytes:,}")
        if self._is_in_body:
            # Costs nothing while nothing touches it, which zeros on the heap do.
            return memoryview(mmap.mmap(-1, max(1, size), _PRIVATE))[:size]
        data = self._source.read(size)
        self._is_in_body = size == self._announced_bytes
        self._announced_bytes = int.from_bytes(data[-4:], "little")
        return data


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a stream."""

    place: int
    """The byte of the file at which it begins."""
    end: int
    kind: str
    content: Any
    """What Arrow makes of it, with a body of zeros."""

    def schema(self) -> Any:
        """Returns the schema that it is."""
        with damage():
            schema = pa.ipc.read_schema(self.content)
            _ = schema.names  # fails here for one that is not UTF-8, not where it is asked for
        return schema

    def num_records(self) -> int:
        """Returns the records of a record batch."""
        with damage():
            batch = pa.ipc.read_record_batch(self.content, _COUNT)
            if len(batch) != len(batch.column(0)):
                raise ValueError(f"{len(batch.column(0)):,} values in a record batch of {len(batch):,}")
            return len(batch)

    def column(self, stored: Any, field: str) -> tuple[int, Any]:
        """Returns the bytes of a column of a record batch, as they are stored, and the array in the body.

        `stored` is what `as_stored` makes of the schema. No array where Arrow has to read it: of other
        types than strings, binaries or lists of whole numbers, in a struct that is null in places, lists that
        hold nulls, of the other byte order, compressed or damaged. The last two count with the whole batch.
        """
        if stored is None:
            return self.content.body.size, None
        try:
            with damage():
                batch = pa.ipc.read_record_batch(self.content, stored)
                path = [field] if stored.names.count(field) == 1 else field.split(".")
                values, is_plain = batch.column(path[0]), True
                for name in path[1:]:
                    is_plain = is_plain and not values.null_count
                    values = values.field(name)
                is_plain = is_plain and len(values) == len(batch) and self._is_plain(values)
        except DamageError:  # zeros are no compressed buffers; of what else it is, a read will tell
            return self.content.body.size, None
        num_bytes = sum(buffer.size for buffer in values.buffers() if buffer is not None)
        return num_bytes, values if is_plain else None

    def _is_plain(self, values: Any) -> bool:
        """Returns whether the array is in the body; raises if its buffers are too short."""
        values.validate()
        kind = values.type
        is_plain = not values.values.null_count if is_list(kind) else kind in _STRINGS
        buffers = [buffer for buffer in values.buffers() if buffer is not None]
        first = self.end - self.content.body.size
        return is_plain and all(first <= self.place_of(b) <= self.end - b.size for b in buffers)

    def place_of(self, buffer: Any) -> int:
        """Returns the byte of the file at which a buffer of the body begins."""
        at = buffer.address - self.content.body.address if buffer.size else 0
        return int(self.end - self.content.body.size + at)


def as_stored(schema: Any) -> Any:
    """Returns the schema with numbers for words of dictionaries; None if it is of the other byte order."""
    if schema != pa.schema(list(schema)):
        return None
    kinds = [kind.index_type if pa.types.is_dictionary(kind) else kind for kind in schema.types]
    return pa.schema(list(zip(schema.names, kinds, strict=True)))


def is_list(kind: Any) -> bool:
    """Returns whether arrays of this type are lists of whole numbers, with offsets."""
    found = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(found and pa.types.is_integer(kind.value_type))


def messages(source: BinaryIO, size_bytes: int) -> Iterator[Message]:
    """Yields the messages of a file or stream of `size_bytes`, from the first on; reads no body.

    Raises `DamageError` where it is cut or damaged, behind the messages ahead of that.
    """
    source.seek(0)
    is_file = source.read(len(MAGIC)) == MAGIC
    footer = _footer_start(source, size_bytes) if is_file else None
    place, end = (_FILE_START if is_file else 0), size_bytes if footer is None else footer
    kinds: tuple[str, ...] = (SCHEMA,)
    message: Message | None = None
    while place < end and (message := message_at(source, place, size_bytes)) is not None:
        if message.kind not in kinds:
            raise DamageError(f"a message of the kind {message.kind} at byte {place:,}, not in its turn")
        yield message
        place, kinds = message.end, (DICTIONARY, BATCH)
    if is_file and footer is None:
        raise DamageError(f"{size_bytes:,} bytes that do not end in a footer")
    if SCHEMA in kinds or not (is_file or message is None):
        raise DamageError(f"the end of the file at byte {place:,}, without the mark of the end of a stream")


def _footer_start(source: BinaryIO, size_bytes: int) -> int | None:
    """Returns where the footer of a file begins; None where there is none."""
    source.seek(-min(size_bytes, _TAIL_BYTES), os.SEEK_END)
    tail = source.read(_TAIL_BYTES)
    start = size_bytes - _TAIL_BYTES - int.from_bytes(tail[:4], "little")
    return start if tail[4:] == MAGIC and start >= _FILE_START else None


def message_at(source: BinaryIO, place: int, size_bytes: int) -> Message | None:
    """Returns the message that begins at a byte; None for the mark of the end of the stream."""
    hollow = _Hollow(source, place, size_bytes)
    try:
        with damage():
            content = pa.ipc.read_message(pa.PythonFile(hollow, "r"))
    except EOFError:
        return None
    return Message(place, hollow.place, content.type, content)
