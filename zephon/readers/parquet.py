"""Parquet datasets: chunks are row groups, known from the footers; a chunk is read whole.

Upstream: `paths.py`. Downstream: the spool, which gives random access. Only the text column is ever read.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from zephon.errors import DataError, Fault, shorten
from zephon.paths import DataFile
from zephon.readers.base import Chunks, Column, Origin, not_a_text
from zephon.readers.lines import check_unchanged, open_unchanged

_NUM_THREADS = 8
_NUM_FOOTERS = 8
_TAIL_BYTES = 64 << 10
_HEAD_BYTES = 4 << 10
_END_BYTES = 8
_MAGIC = b"PAR1"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Footer:
    """What a file's footer says of its text column."""

    num_records: list[int]
    """One per row group."""
    num_bytes: list[int]
    """Uncompressed size of the text column, one per row group."""
    sample: str


class ParquetReader:
    """Documents of one text column of Parquet files."""

    def __init__(self, origin: Origin) -> None:
        self.name = origin.dataset.name
        self._files = origin.files
        self._field = origin.dataset.text
        self._reset()
        footers = self._read_footers(origin)
        rows = [
            (file, group, num, size)
            for file, footer in enumerate(footers)
            for group, (num, size) in enumerate(zip(footer.num_records, footer.num_bytes, strict=True))
            if num
        ]
        table = np.array(rows, np.int64).reshape(len(rows), 4)
        self._chunk_file, self._chunk_group = table[:, 0], table[:, 1]  # (C,) int64 each
        self._chunks = Chunks(table[:, 2].copy(), table[:, 3].copy())
        self._identity = {
            "kind": "parquet",
            "num_documents": int(table[:, 2].sum()),
            "files": [
                [file.name, file.size_bytes, sum(footer.num_records), footer.sample]
                for file, footer in zip(self._files, footers, strict=True)
            ],
        }

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._metadata: OrderedDict[int, Any] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_lock"], state["_metadata"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._reset()
        self.__dict__.update(state)

    def _read_footers(self, origin: Origin) -> list[_Footer]:
        """Returns the footers of all files, read by a few threads."""
        footers: list[_Footer] = []
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            for footer in pool.map(self._footer, self._files):
                footers.append(footer)
                if origin.report is not None:
                    origin.report(f"footers {self.name}", len(footers), len(self._files))
        return footers

    def _footer(self, file: DataFile) -> _Footer:
        footer, head = self._ends(file)
        try:
            metadata = pq.read_metadata(pa.BufferReader(footer))
            leaf = self._leaf(file, metadata)
            groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
            sizes = [int(group.column(leaf).total_uncompressed_size) for group in groups]
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(file, error) from error
        return _Footer(
            num_records=[int(group.num_rows) for group in groups],
            num_bytes=sizes,
            sample=hashlib.sha256(footer + head).hexdigest()[:16],
        )

    def _ends(self, file: DataFile) -> tuple[bytes, bytes]:
        """Returns the end of the file from the start of its footer, and the first bytes, for the sample."""
        descriptor = open_unchanged(self.name, file)
        try:
            start = max(0, file.size_bytes - _TAIL_BYTES)
            tail = os.pread(descriptor, _TAIL_BYTES, start)
            if file.size_bytes < len(_MAGIC) + _END_BYTES or tail[-len(_MAGIC) :] != _MAGIC:
                raise self._unreadable(file, f"{file.size_bytes:,} bytes that do not end in a Parquet footer")
            size = int.from_bytes(tail[-_END_BYTES : -len(_MAGIC)], "little") + _END_BYTES
            if size > file.size_bytes:
                raise self._unreadable(file, f"a footer of {size:,} bytes in a file of {file.size_bytes:,}")
            if size > len(tail):
                tail = os.pread(descriptor, size, file.size_bytes - size)
            head = os.pread(descriptor, _HEAD_BYTES, 0)
            check_unchanged(self.name, file, descriptor)
        finally:
            os.close(descriptor)
        return tail[-size:], head

    def _leaf(self, file: DataFile, metadata: Any) -> int:
        """Returns the index of the text column among the leaves, having checked its type."""
        schema = metadata.schema.to_arrow_schema()
        found = _type_at(schema, self._field)
        if found is None:
            raise DataError.explained(
                f"dataset {self.name!r}: {file.path} has no column {self._field!r}",
                got=f"the columns {', '.join(schema.names)}",
                rule="every file has the column that `text` names (dotted for a field of a struct)",
                cure="set `text` to one of these columns",
            )
        leaves = [metadata.schema.column(i).path for i in range(len(metadata.schema.names))]
        if not _is_text(found) or self._field not in leaves:
            raise DataError.explained(
                f"dataset {self.name!r}: column {self._field!r} of {file.path} does not hold text",
                got=f"the type {found}",
                rule="the text column is of strings (string, large_string, string_view, binary, "
                "or a dictionary of these)",
                cure="set `text` to a column of strings",
            )
        return leaves.index(self._field)

    def _unreadable(self, file: DataFile, error: object) -> DataError:
        first = (str(error).strip() or repr(error)).splitlines()[0]
        return DataError.explained(
            f"dataset {self.name!r}: {file.path} cannot be read as Parquet",
            got=first[:200],
            rule="a Parquet file is complete: its footer lies at its end",
            cure="write or download the file again, or leave it out of the dataset's path",
        )

    def chunks(self) -> Chunks:
        """Returns the row groups that hold records, weighed by the text column's uncompressed size."""
        return self._chunks

    def read(self, chunk: int) -> Column:
        """Returns the documents of one row group."""
        file = int(self._chunk_file[chunk])
        data_file = self._files[file]
        self._check(data_file)
        try:
            source = pq.ParquetFile(data_file.path, metadata=self._metadata_of(file))
            with source:
                group = int(self._chunk_group[chunk])
                table = source.read_row_group(group, columns=[self._field], use_threads=False)
            column = column_from_arrow(_at(table, self._field))
        except (pa.ArrowException, OSError) as error:
            self._check(data_file)
            raise self._unreadable(data_file, error) from error
        self._check(data_file)
        return column

    def _check(self, file: DataFile) -> None:
        os.close(open_unchanged(self.name, file))

    def _metadata_of(self, file: int) -> Any:
        """Returns the parsed footer, of which the last few are kept."""
        with self._lock:
            metadata = self._metadata.get(file)
        if metadata is None:
            metadata = pq.read_metadata(self._files[file].path)
            with self._lock:
                self._metadata[file] = metadata
                while len(self._metadata) > _NUM_FOOTERS:
                    self._metadata.popitem(last=False)
        return metadata

    def identity(self) -> dict[str, Any]:
        """Returns the kind, the counts and the hash of the ends of each file."""
        return self._identity


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


def _buffers(values: Any) -> tuple[memoryview, NDArray[np.int64]]:
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
            got = f"byte 0x{raw[error.start]:02x} at {error.start} of {shorten(raw[:80])}"
            faults.append((i, Fault("not_utf8", got, "a text is UTF-8")))
            raw = b""
        kept.append(raw)
    return pa.array(kept, pa.large_binary()), faults


def _type_at(schema: Any, field: str) -> Any | None:
    """Returns the type of the column, or of the struct field at the dotted path; None if there is none."""
    if schema.names.count(field) == 1:
        return schema.field(field).type
    kind: Any = pa.struct(list(schema))
    for name in field.split("."):
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return kind


def _at(table: Any, field: str) -> Any:
    """Returns the values of the column, or of the struct field at the dotted path."""
    if field in table.column_names:
        return table.column(field)
    first, *rest = field.split(".")
    return pc.struct_field(table.column(first), rest)


def _is_text(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    strings = (pa.string(), pa.large_string(), pa.string_view())
    return kind in (*strings, pa.binary(), pa.large_binary(), pa.binary_view())
