"""The rows of CSV and TSV: where each begins, its fields, and what is wrong with those that are none.

Upstream: the bytes of a file, or of consecutive whole rows of it. Downstream: the CSV reader. Quotes are
read as RFC 4180 has them, strictly: a row that breaks the rules is a faulty record, and the next line begins
another row.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from zephon.errors import Fault, shorten
from zephon.readers.base import not_utf8

FIELD_CHARACTERS = 1 << 30
"""The longest field: what a quote that is never closed may swallow."""
ROW_RULE = "a row is fields, of which those with quotes, line ends or separators in them are quoted"
_BYTE_ORDER_MARK = "\ufeff"
_WHOLE = re.compile("[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,15}(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")

Row = list[str] | str | Fault
"""The fields of a row, what is wrong with it, or the damage that stands in its place."""


class Rows:
    """The rows of consecutive bytes, from the first of a row on; blank lines are passed over."""

    def __init__(self, blocks: Iterable[bytes], delimiter: str, *, is_start: bool = False) -> None:
        """`is_start`: at the start of a file, where a byte-order mark is no part of the text."""
        self._lines, self._delimiter, self._is_start = _lines(blocks), delimiter, is_start
        self.start = self.end = 0
        """The bytes ahead of the last row, and those up to its end."""

    def _read_lines(self) -> Iterator[str]:
        for raw in self._lines:
            line = raw.decode("utf-8", "surrogateescape")  # a byte that is no UTF-8 becomes a surrogate
            if self._is_start and not self.end:
                line = line.removeprefix(_BYTE_ORDER_MARK)
            self.end += len(raw)
            yield line

    def __iter__(self) -> Iterator[Row]:
        if csv.field_size_limit() < FIELD_CHARACTERS:
            csv.field_size_limit(FIELD_CHARACTERS)  # of the whole process; its default is 128 KiB
        reader = csv.reader(self._read_lines(), delimiter=self._delimiter, strict=True)
        while True:
            self.start = self.end
            try:
                row: Row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                row = str(error)
            if row:
                yield row


def _lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the lines, each with its line end."""
    parts: list[bytes] = []
    for block in blocks:
        first, newline, rest = block.partition(b"\n")
        parts.append(first + newline)
        if newline:
            yield b"".join(parts)
            *whole, last = rest.split(b"\n")
            for line in whole:
                yield line + b"\n"
            parts = [last]
    if any(parts):
        yield b"".join(parts)


def row_starts(rows: Rows) -> tuple[Row | None, NDArray[np.int64]]:
    """Returns the first row, and where each of the others begins."""
    found = iter(rows)
    header = next(found, None)
    starts = np.fromiter((rows.start for _ in found), np.int64)
    return header, starts


def text_of(row: Row, num_fields: int, index: int) -> str | Fault:
    """Returns the text in the field at `index`, or what is wrong with a row that shall have `num_fields`."""
    if isinstance(row, list) and len(row) == num_fields:
        text = row[index]
        return text if text.isascii() else _not_utf8(text) or text
    if isinstance(row, Fault):
        return row
    if isinstance(row, str):
        return Fault("not_csv", row, ROW_RULE)
    got = f"{len(row)} fields: {shorten(row)}"
    return Fault("ragged", got, f"a row has the {num_fields} fields of the header")


def _not_utf8(text: str) -> Fault | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raw = text.encode("utf-8", "surrogateescape")
        return not_utf8(raw, len(text[: error.start].encode()), "a text")
    return None


def fields_at(rows: Iterable[Row], num_fields: int, indexes: Sequence[int]) -> list[list[str | None]]:
    """Returns the fields at each of `indexes`; None for a row that is faulty."""
    columns: list[list[str | None]] = [[] for _ in indexes]
    for row in rows:
        fields = row if isinstance(row, list) and len(row) == num_fields else None
        for column, index in zip(columns, indexes, strict=True):
            column.append(None if fields is None else fields[index])
    return columns


class Inferred:
    """The type of a column, from all of its fields: null, whole numbers, numbers, else strings."""

    def __init__(self) -> None:
        self._whole = self._number = True
        self._any = False

    def add(self, fields: Iterable[str | None]) -> None:
        """Takes fields; empty ones say nothing."""
        for field in fields:
            if field:
                self._any = True
                self._whole = self._whole and _WHOLE.fullmatch(field) is not None
                self._number = self._number and _NUMBER.fullmatch(field) is not None

    @property
    def kind(self) -> Any:
        """Returns the Arrow type."""
        if not self._any:
            return pa.null()
        return pa.int64() if self._whole else pa.float64() if self._number else pa.string()


def array_of(fields: Sequence[str | None], kind: Any) -> Any:
    """Returns the fields as an array of the type; an empty field is no number: null."""
    if kind == pa.null():
        return pa.nulls(len(fields))
    if kind == pa.string():
        return pa.array([None if field is None else _shown(field) for field in fields], kind)
    convert: Any = int if kind == pa.int64() else float
    return pa.array([convert(field) if field else None for field in fields], kind)


def _shown(field: str) -> str:
    return field if field.isascii() else field.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
