"""From Arrow arrays to columns of documents: texts or token ids, and what is wrong with those that are none.

Upstream: readers of formats that Arrow reads. Downstream: the spool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from zephon.errors import DataError, Fault
from zephon.paths import DataFile
from zephon.readers.base import TOKEN, Column, not_a_text, not_token_ids, not_utf8

MAX_TOKEN = (1 << 32) - 1

Int64 = NDArray[np.int64]


def column_from_arrow(values: Any) -> Column:
    """Returns the column of an Arrow array of strings or binaries, plain or chunked."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if values.type == pa.string_view():
        values = values.cast(pa.large_string())
    values = values.cast(pa.large_binary())
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    faults = [(i, not_a_text(None)) for i in pc.indices_nonzero(values.is_null()).to_pylist()]
    if faults:
        values = pc.fill_null(values, b"")
    try:
        values.cast(pa.large_string())
    except pa.ArrowInvalid:
        values, bad = _without_bad_utf8(values.to_pylist())
        faults = sorted(faults + bad, key=lambda fault: fault[0])
    data, offsets = _buffers(values)
    return Column(data=data, offsets=offsets, faults=tuple(faults))


def _buffers(values: Any) -> tuple[memoryview, Int64]:
    """Returns the bytes of a large_binary array without nulls, and their offsets from 0."""
    _, offsets_buffer, data_buffer = values.buffers()
    if not len(values):
        return memoryview(b""), np.zeros(1, np.int64)
    offsets = np.frombuffer(offsets_buffer, np.int64)[values.offset : values.offset + len(values) + 1]
    data = memoryview(data_buffer if data_buffer is not None else b"")[int(offsets[0]) : int(offsets[-1])]
    return data, offsets - offsets[0]


def _without_bad_utf8(raws: Sequence[bytes]) -> tuple[Any, list[tuple[int, Fault]]]:
    """Returns the array with what is not UTF-8 emptied, and the faults."""
    faults: list[tuple[int, Fault]] = []
    kept: list[bytes] = []
    for i, raw in enumerate(raws):
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            faults.append((i, not_utf8(raw, error.start, "a text")))
            raw = b""
        kept.append(raw)
    return pa.array(kept, pa.large_binary()), faults


def type_at(schema: Any, field: str) -> Any | None:
    """Returns the type of the column, or of the struct field at the dotted path; None if there is none."""
    if schema.names.count(field) == 1:
        return schema.field(field).type
    kind: Any = pa.struct(list(schema))
    for name in field.split("."):
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return kind


def values_at(table: Any, field: str) -> Any:
    """Returns the values of the column, or of the struct field at the dotted path."""
    if field in table.column_names:
        return table.column(field)
    first, *rest = field.split(".")
    return pc.struct_field(table.column(first), rest)


def is_text(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    strings = (pa.string(), pa.large_string(), pa.string_view())
    return kind in (*strings, pa.binary(), pa.large_binary(), pa.binary_view())


def is_token_list(kind: Any) -> bool:
    """Returns whether a column of this type holds lists of whole numbers."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return False
    return bool(pa.types.is_integer(kind.value_type))


def check_column(dataset: str, path: str, schema: Any, field: str, *, tokens: bool) -> None:
    """Refuses a file of which the schema has no column `field` of texts, or with `tokens` of token ids."""
    found = type_at(schema, field)
    what = "tokens" if tokens else "text"
    if found is None:
        raise DataError.explained(
            f"dataset {dataset!r}: {path} has no column {field!r}",
            got=f"the columns {', '.join(schema.names)}",
            rule=f"every file has the column that `{what}` names (dotted for a field of a struct)",
            cure=f"set `{what}` to one of these columns",
        )
    if not (is_token_list(found) if tokens else is_text(found)):
        types = "lists of whole numbers" if tokens else "strings or binaries, or a dictionary of these"
        hint = f"; for token ids set tokens = {field!r}" if is_token_list(found) else ""
        raise DataError.explained(
            f"dataset {dataset!r}: column {field!r} of {path} does not hold {what}",
            got=f"the type {found}",
            rule=f"the column that `{what}` names is of {types}",
            cure=f"set `{what}` to such a column{hint}",
        )


def check_columns(dataset: str, file: DataFile, names: Sequence[str], columns: Sequence[str]) -> None:
    """Refuses `columns` that a file, of which the columns have `names`, does not have once each."""
    if wrong := [name for name in columns if names.count(name) != 1]:
        has = "has no column" if wrong[0] not in names else "has more than one column"
        shown = ", ".join(name if name.isprintable() else repr(name) for name in names)
        raise DataError.explained(
            f"dataset {dataset!r}: {file.shown} {has} {wrong[0]!r}",
            got=f"the columns {shown}",
            rule="every file has, once, the columns that are compared, sorted by or shown",
            cure="name one of these columns",
        )


def tokens_from_arrow(values: Any) -> Column:
    """Returns the column of an Arrow array of lists of whole numbers, plain or chunked."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    if pa.types.is_fixed_size_list(values.type):
        values = values.cast(pa.large_list(values.type.value_type))
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum(lengths)
    flat = values.flatten()
    faults = {int(i): not_token_ids(None) for i in pc.indices_nonzero(values.is_null()).to_pylist()}
    wrong = np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False))
    ids = pc.fill_null(flat, 0).to_numpy(zero_copy_only=False)
    wrong = np.append(wrong, np.flatnonzero((ids < 0) | (ids > MAX_TOKEN)))
    for i in np.unique(np.searchsorted(ends, wrong, side="right")).tolist():
        faults[i] = not_token_ids(values[i].as_py())
    return column_of_ids(ids, lengths, faults)


def column_of_ids(ids: NDArray[np.integer[Any]], lengths: Int64, faults: Mapping[int, Fault]) -> Column:
    """Returns the column of documents of so many ids each, of which those with a fault are left out."""
    if faults:
        bad = np.zeros(len(lengths), np.bool_)
        bad[list(faults)] = True
        ids = ids[~np.repeat(bad, lengths)]
        lengths = np.where(bad, 0, lengths)
    offsets = np.append(0, np.cumsum(lengths)) * TOKEN.itemsize
    return Column(data=ids.astype(TOKEN).tobytes(), offsets=offsets, faults=tuple(sorted(faults.items())))
