"""The documents of a dataset that `where` and `limit` leave, and their order by a column.

Upstream: an opened reader whose format has columns. Downstream: `opened.py`, which reads on through the
parts that are made here. What is found of a file is kept in the cache, so its columns are read once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from zephon.cachefiles import replace_file
from zephon.dataset import VALID, Dataset
from zephon.errors import DataError
from zephon.readers import ChunkTable, RandomReader, Report
from zephon.readers.parts import WithColumns, columns_by_file, pruning, source_of, table_of, with_columns
from zephon.readers.subset import PrefixReader, SubsetReader, chunks_of_whole, whole
from zephon.readers.table import NUM_THREADS, file_key, with_stamps
from zephon.retries import each
from zephon.where import ColumnPath, Where, parse_column, parse_where

MAY_LACK = ("jsonl",)
"""Kinds of files of which a record may lack a column that others have."""
_VERSION = 2

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
    file = _path(cache, known, ".ranked")
    ranked = _map(file, int(counts.sum()))
    if ranked is None:
        values = _column(dataset, reader, path, report)
        made = _sorted(dataset, path, values, descending=by.startswith("-"))
        replace_file(file, lambda target: target.write(_checked(made)))
        ranked = _map(file, int(counts.sum()))
        ranked = made if ranked is None else ranked
    return ranked


def values_of(dataset: str, reader: RandomReader, chunk: int, columns: tuple[str, ...]) -> Any:
    """Returns columns of all documents of a chunk of `reader`, as a table of Arrow."""
    [found] = _values(dataset, reader, [chunk], columns)
    return found


def _values(
    dataset: str, reader: RandomReader, chunks: Sequence[int], columns: tuple[str, ...]
) -> Iterator[Any]:
    """Yields the columns of ascending chunks, of one file where files are read from their start."""
    if isinstance(reader, SubsetReader):
        inner, records = zip(*map(reader.inside, chunks), strict=True)
        found = _values(dataset, reader.reader, inner, columns)
        yield from (table.take(which) for table, which in zip(found, records, strict=True))
    elif isinstance(reader, PrefixReader):
        counts = reader.chunks().num_documents[list(chunks)].tolist()
        found = _values(dataset, reader.reader, chunks, columns)
        yield from (table.slice(0, count) for table, count in zip(found, counts, strict=True))
    else:
        source = _columns_of(dataset, source_of(reader), columns)
        by_file = columns_by_file(source)
        if by_file is None:
            yield from (source.values(chunk, columns) for chunk in chunks)
            return
        number = by_file.table.file_of(chunks[0])
        first = int(by_file.table.first_chunks[number])
        ends = range(first, chunks[-1] + 1)
        wanted = frozenset(chunks)
        found = zip(ends, by_file.file_values(number, columns), strict=False)
        yield from (table for chunk, table in found if chunk in wanted)


def _columns_of(dataset: str, source: object, columns: tuple[str, ...]) -> WithColumns:
    """Returns a reader of a format that has columns; refuses another."""
    found = with_columns(source)
    if found is None:
        raise DataError.explained(
            f"dataset {dataset!r}: its format has no columns",
            got=f"the columns {', '.join(columns)}, asked for by `where`, `columns` or `order`",
            rule="JSONL, Parquet, Arrow and CSV files have columns besides the text",
            cure="leave the condition out, or store the documents in one of these formats",
        )
    return found


def choose(dataset: Dataset, reader: RandomReader, cache: Path, report: Report | None) -> Int64:
    """Returns the numbers of the documents that meet the condition, ascending."""
    where = parse_where(dataset.where, dataset.name)
    source = _columns_of(dataset.name, source_of(reader), where.columns)
    table = table_of(source)
    counts = reader.chunks().num_documents
    if table is None:
        firsts = np.cumsum(counts, dtype=np.int64) - counts
        parts = [first + _matches(where, source, chunk, "") for chunk, first in enumerate(firsts.tolist())]
        return np.concatenate([np.empty(0, np.int64), *parts])

    _refuse_absent(dataset.name, reader, table, where.columns)

    def look(number: int) -> Int64:
        stamped = with_stamps(dataset.name, table.files[number])
        path = _path(
            cache, [_VERSION, table.kind, dataset.on_error, dataset.where, *file_key(stamped)], ".chosen"
        )
        found = _map(path)
        if found is None:
            found = np.concatenate([np.empty(0, np.int64), *_matches_of_file(where, source, table, number)])
            checked = _checked(found)
            replace_file(path, lambda target: target.write(checked), sync=False)
        return found

    parts = []
    for number, found in enumerate(each(look, range(len(table.files)), NUM_THREADS)):
        first = int(table.first_documents[table.first_chunks[number]])
        parts.append(found + first)
        if report is not None:
            report(f"where {dataset.name}", number + 1, len(table.files))
    return np.concatenate([np.empty(0, np.int64), *parts])


def _refuse_absent(dataset: str, reader: RandomReader, table: ChunkTable, columns: tuple[str, ...]) -> None:
    """Refuses a column that no record has a value in, where records may lack one, as those of JSONL may.

    Reads until each column was seen, which most often is in the first chunk.
    """
    missing = list(columns) if table.kind in MAY_LACK else []
    for first, last in pairwise(table.first_chunks.tolist()):
        for found in _values(dataset, reader, range(first, last), tuple(missing)) if missing else ():
            missing = [name for name in missing if found.column(name).null_count == len(found)]
            if not missing:
                return
    if missing:
        raise DataError.explained(
            f"dataset {dataset!r}: no record has a value in the column {missing[0]!r}",
            got=f"{int(table.num_documents.sum()):,} records without it",
            rule="a column that is compared or sorted by is there in some record",
            cure="correct its name",
        )


def _matches_of_file(where: Where, source: WithColumns, table: ChunkTable, number: int) -> Iterator[Int64]:
    """Yields the records of a file that meet the condition, chunk by chunk."""
    first, last = table.first_chunks[number : number + 2].tolist()
    pruned, by_file = pruning(source), columns_by_file(source)
    skipped = frozenset[int]() if pruned is None else pruned.without(number, where)
    tables = None if by_file is None else by_file.file_values(number, where.columns)
    ahead, shown = 0, table.files[number].shown
    for chunk in range(first, last):
        if tables is not None:
            yield ahead + _meeting(where, next(tables), shown)
        elif chunk not in skipped:
            yield ahead + _matches(where, source, chunk, shown)
        ahead += int(table.num_documents[chunk])


def _matches(where: Where, source: WithColumns, chunk: int, shown: str) -> Int64:
    return _meeting(where, source.values(chunk, where.columns), shown)


def _meeting(where: Where, table: Any, shown: str) -> Int64:
    """Returns which records of a table meet the condition; errors name the file, `shown`."""
    try:
        return np.flatnonzero(where.mask(table))
    except DataError as error:
        raise DataError(f"{error}\n  file: {shown}" if shown else str(error)) from None


def _column(dataset: Dataset, reader: RandomReader, path: ColumnPath, report: Report | None) -> Any:
    """Returns the values of a column for all documents, in file order, as a chunked array of Arrow."""

    from zephon.where_arrow import values_at

    def look(chunks: Sequence[int]) -> list[Any]:
        tables = _values(dataset.name, reader, chunks, path.names[:1])
        return [values_at(table, path) for table in tables]

    parts: list[Any] = []
    owners: list[int] = []
    together = _read_together(reader)
    for number, found in enumerate(each(look, together, NUM_THREADS)):
        for column in found:
            if column is None:
                file = reader.where(together[number][0], 0)[0]
                raise _unsortable(dataset, path, f"{file}, which has no such field")
            parts += column.chunks
            owners += [number] * column.num_chunks
        if report is not None:
            report(f"sort {dataset.name}", number + 1, len(together))
    kind = _common([part.type for part in parts if not pa.types.is_null(part.type)])
    cast = []
    for part, owner in zip(parts, owners, strict=True):
        try:
            cast.append(_brought_to(kind, part))
        except pa.ArrowException as error:
            file, why = reader.where(together[owner][0], 0)[0], str(error).splitlines()[0]
            got = f"the type {part.type} in {file} beside the type {kind}: {why}"
            raise _unsortable(dataset, path, got) from None
    return pa.chunked_array(cast, kind)


def _brought_to(kind: Any, part: Any) -> Any:
    """Returns a part of a column as `kind`; an error of Arrow where its values would change."""
    if part.type == kind or pa.types.is_null(part.type) or (_is_number(part.type) and _is_number(kind)):
        return part.cast(kind)
    raise pa.ArrowInvalid("they do not go together")


def _common(kinds: list[Any]) -> Any:
    """Returns the type that parts of a column are brought to: of numbers one for all, else the first."""
    if len(set(kinds)) < 2:
        return kinds[0] if kinds else pa.int64()
    if any(map(pa.types.is_floating, kinds)) and all(map(_is_number, kinds)):
        return pa.float64()
    if all(map(pa.types.is_integer, kinds)):
        return pa.uint64() if pa.uint64() in kinds else pa.int64()
    return kinds[0]


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _read_together(reader: RandomReader) -> Sequence[Sequence[int]]:
    """Returns the chunks of a reader: those of each file that is read from its start, else each alone."""
    chunks = range(len(reader.chunks().num_documents))
    by_file = columns_by_file(source_of(whole(reader)))
    if by_file is None:
        return [(chunk,) for chunk in chunks]
    cuts = np.searchsorted(chunks_of_whole(reader), by_file.table.first_chunks).tolist()
    return [chunks[first:last] for first, last in pairwise(cuts) if first < last]


def _sorted(dataset: Dataset, path: ColumnPath, values: Any, *, descending: bool) -> Int64:
    if values.null_count == len(values):
        raise _unsortable(dataset, path, "no document that has a value in it")
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
    table = table_of(source_of(whole(reader)))
    return [] if table is None else [file_key(with_stamps(dataset.name, file)) for file in table.files]


def _path(cache: Path, known: object, suffix: str) -> Path:
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:32]
    return cache / "index" / digest[:2] / f"{digest}{suffix}"


def _checked(numbers: Int64) -> bytes:
    data = numbers.tobytes()
    return hashlib.sha256(data).digest() + data


def _map(path: Path, count: int | None = None) -> Int64 | None:
    """Returns the numbers at `path`, mapped, or None where there are none, or not `count`, in good order."""
    try:
        mapped: NDArray[np.uint8] = np.memmap(path, np.uint8, mode="r").view(np.ndarray)
    except (OSError, ValueError):
        return None
    fits = count is None or len(mapped) == 32 + 8 * count
    is_whole = fits and hashlib.sha256(mapped[32:].data).digest() == mapped[:32].tobytes()
    return mapped[32:].view(np.int64) if is_whole else None
