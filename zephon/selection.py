"""The documents of a dataset that `where` and `limit` leave, and their order by a column.

Upstream: an opened reader whose format has columns. Downstream: `opened.py`, which reads on through the
parts that are made here. What is found of a file is kept in the cache, so its columns are read once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from zephon.cachefiles import replace_file
from zephon.dataset import VALID, Dataset
from zephon.errors import DataError
from zephon.readers import ChunkTable, RandomReader, Report
from zephon.readers.subset import PrefixReader, SubsetReader
from zephon.readers.table import each, file_key, with_stamps
from zephon.where import ColumnPath, Where, parse_column, parse_where

_VERSION = 1

Int64 = NDArray[np.int64]


def select(
    dataset: Dataset,
    reader: RandomReader,
    cache: Path,
    report: Report | None = None,
    *,
    chosen: Int64 | None = None,
) -> RandomReader:
    """Returns a reader of the documents that `where` and then `limit` leave, in file order.

    `chosen` are the numbers of those that `where` leaves, where a catalogue has them. Cost of a condition
    else: its columns of every file, the first time.
    """
    if dataset.where:
        documents = choose(dataset, reader, cache, report) if chosen is None else chosen
        if not len(documents):
            total = int(reader.chunks().num_documents.sum())
            raise DataError.explained(
                f"dataset {dataset.name!r}: no document matches `where`",
                got=f"{dataset.where!r}, which none of {total:,} documents meets",
                rule="a dataset holds at least one document",
                cure="correct `where`, or take the dataset out of the recipe",
            )
        reader = SubsetReader(reader, documents[: dataset.limit])
    elif dataset.limit is not None:
        reader = PrefixReader(reader, dataset.limit)
    return reader


def rank(dataset: Dataset, reader: RandomReader, cache: Path, report: Report | None = None) -> Int64 | None:
    """Returns the numbers of the documents by their column, where the dataset is sorted by one: (N,), mapped.

    The values that have none come last; equals stay in file order, of descending orders too.
    Cost: the column of every document and its sort, the first time.
    """
    by = dataset.sorted_by
    if not by:
        return None
    path = parse_column(by.removeprefix("-"), dataset.name, "order")
    counts = reader.chunks().num_documents
    known = [_VERSION, reader.identity(), dataset.where, dataset.limit, by, _stamps(dataset, reader)]
    if dataset.held_out is not None and dataset.held_out.part == VALID and isinstance(reader, SubsetReader):
        known.append([[chunk, records.tolist()] for chunk, records in map(reader.inside, range(len(counts)))])
    file = _path(cache, known, ".ranked.npy")
    ranked = _map(file, int(counts.sum()))
    if ranked is None:
        values = _column(dataset, reader, path, report)
        made = _sorted(dataset, path, values, descending=by.startswith("-"))
        replace_file(file, lambda target: np.save(target, made, allow_pickle=False))
        ranked = _map(file, int(counts.sum()))
        ranked = made if ranked is None else ranked
    return ranked


def values_of(dataset: str, reader: RandomReader, chunk: int, columns: tuple[str, ...]) -> Any:
    """Returns columns of all documents of a chunk of `reader`, as a table of Arrow."""
    if isinstance(reader, SubsetReader):
        inner, records = reader.inside(chunk)
        return values_of(dataset, reader.reader, inner, columns).take(records)
    if isinstance(reader, PrefixReader):
        count = int(reader.chunks().num_documents[chunk])
        return values_of(dataset, reader.reader, chunk, columns).slice(0, count)
    source = _source(reader)
    _refuse_without_columns(dataset, source, columns)
    return source.values(chunk, columns)


def _source(reader: Any) -> Any:
    """Returns the reader of the format, behind a spool or not."""
    return getattr(reader, "reader", reader)


def _refuse_without_columns(dataset: str, source: Any, columns: tuple[str, ...]) -> None:
    if not hasattr(source, "values"):
        raise DataError.explained(
            f"dataset {dataset!r}: its format has no columns",
            got=f"the columns {', '.join(columns)}, asked for by `where`, `columns` or `order`",
            rule="JSONL, Parquet, Arrow and CSV files have columns besides the text",
            cure="leave the condition out, or store the documents in one of these formats",
        )


def choose(dataset: Dataset, reader: RandomReader, cache: Path, report: Report | None) -> Int64:
    """Returns the numbers of the documents that meet the condition, ascending."""
    where, source = parse_where(dataset.where, dataset.name), _source(reader)
    _refuse_without_columns(dataset.name, source, where.columns)
    table: ChunkTable | None = getattr(source, "table", None)
    counts = reader.chunks().num_documents
    if table is None:
        firsts = np.cumsum(counts, dtype=np.int64) - counts
        parts = [first + _matches(where, source, chunk) for chunk, first in enumerate(firsts.tolist())]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def look(number: int) -> Int64:
        stamped = with_stamps(dataset.name, table.files[number])
        path = _path(
            cache, [_VERSION, table.kind, dataset.on_error, dataset.where, *file_key(stamped)], ".chosen"
        )
        found = _read(path)
        if found is None:
            found = np.concatenate([np.empty(0, np.int64), *_matches_of_file(where, source, table, number)])
            checked = _checked(found)
            replace_file(path, lambda target: _write(checked, target), sync=False)
        return found

    parts = []
    for number, found in enumerate(each(range(len(table.files)), look)):
        first = int(table.first_documents[table.first_chunks[number]])
        parts.append(found + first)
        if report is not None:
            report(f"where {dataset.name}", number + 1, len(table.files))
    return np.concatenate([np.empty(0, np.int64), *parts])


def _matches_of_file(where: Where, source: Any, table: ChunkTable, number: int) -> Iterator[Int64]:
    """Yields the records of a file that meet the condition, chunk by chunk."""
    first, last = table.first_chunks[number : number + 2].tolist()
    skipped = source.without(number, where) if hasattr(source, "without") else frozenset()
    tables = source.file_values(number, where.columns) if hasattr(source, "file_values") else None
    ahead = 0
    for chunk in range(first, last):
        if tables is not None:
            yield ahead + np.flatnonzero(where.mask(next(tables)))
        elif chunk not in skipped:
            yield ahead + _matches(where, source, chunk)
        ahead += int(table.num_documents[chunk])


def _matches(where: Where, source: Any, chunk: int) -> Int64:
    return np.flatnonzero(where.mask(source.values(chunk, where.columns)))


def _column(dataset: Dataset, reader: RandomReader, path: ColumnPath, report: Report | None) -> Any:
    """Returns the values of a column for all documents, in file order, as a chunked array of Arrow."""
    import pyarrow as pa
    import pyarrow.compute as pc

    count = len(reader.chunks().num_documents)
    top, *rest = path.names

    def look(chunk: int) -> Any:
        found = values_of(dataset.name, reader, chunk, (top,)).column(top)
        return pc.struct_field(found, rest) if rest else found

    parts = []
    for chunk, found in enumerate(each(range(count), look)):
        parts += found.chunks
        if report is not None:
            report(f"sort {dataset.name}", chunk + 1, count)
    kinds = {str(part.type) for part in parts if not pa.types.is_null(part.type)}
    if len(kinds) > 1:
        raise _unsortable(dataset, path, f"the types {', '.join(sorted(kinds))}")
    kind = next((part.type for part in parts if not pa.types.is_null(part.type)), pa.int64())
    return pa.chunked_array([part.cast(kind) for part in parts], kind)


def _sorted(dataset: Dataset, path: ColumnPath, values: Any, *, descending: bool) -> Int64:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    try:
        keys = [("value", "descending" if descending else "ascending"), ("number", "ascending")]
        table = pa.table({"value": values, "number": np.arange(len(values), dtype=np.int64)})
        found = pc.sort_indices(table, sort_keys=keys)  # nulls come last
    except pa.ArrowException as error:
        raise _unsortable(dataset, path, str(error).splitlines()[0]) from None
    numbers: Int64 = found.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _unsortable(dataset: Dataset, path: ColumnPath, got: str) -> DataError:
    return DataError.explained(
        f"dataset {dataset.name!r}: its documents cannot be sorted by {str(path)!r}",
        got=got,
        rule="a column that documents are sorted by is of numbers, texts or times, of one type",
        cure="sort by another column",
    )


def _stamps(dataset: Dataset, reader: Any) -> list[Any]:
    """Returns what tells the files of a reader from changed ones."""
    while isinstance(reader, SubsetReader | PrefixReader):
        reader = reader.reader
    table: ChunkTable | None = getattr(_source(reader), "table", None)
    return [] if table is None else [file_key(with_stamps(dataset.name, file)) for file in table.files]


def _path(cache: Path, known: object, suffix: str) -> Path:
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:32]
    return cache / "index" / digest[:2] / f"{digest}{suffix}"


def _checked(numbers: Int64) -> bytes:
    data = numbers.tobytes()
    return hashlib.sha256(data).digest() + data


def _write(data: bytes, target: BinaryIO) -> None:
    target.write(data)


def _read(path: Path) -> Int64 | None:
    """Returns the numbers at `path`, or None where there are none in good order."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return np.frombuffer(data[32:], np.int64) if hashlib.sha256(data[32:]).digest() == data[:32] else None


def _map(path: Path, count: int) -> Int64 | None:
    try:
        found: Int64 = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
    except (OSError, ValueError):
        return None
    return found if found.shape == (count,) else None
