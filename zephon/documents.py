"""Which number a document has through all chunks of its dataset, and which file and record that is.

Upstream: an opened reader. Downstream: `holdout.py` and `dropped.py`, which name documents as people do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from zephon.readers import ChunkTable, RandomReader
from zephon.readers.parts import source_of, table_of
from zephon.readers.subset import PartReader, SubsetReader

Int64 = NDArray[np.int64]


def places_of(reader: RandomReader, documents: Int64) -> Iterator[tuple[str, int]]:
    """Yields what `where` of the reader says of documents, by their numbers through all chunks."""
    while isinstance(reader, PartReader):
        documents = reader.documents[documents] if isinstance(reader, SubsetReader) else documents
        reader = reader.reader
    table = table_of(source_of(reader))
    if table is None:
        ends = np.cumsum(reader.chunks().num_documents, dtype=np.int64)
        chunks = np.searchsorted(ends, documents, side="right")
        records = documents - np.append(0, ends)[chunks]
        yield from map(reader.where, chunks.tolist(), records.tolist())
        return
    firsts = _first_of_files(table)
    files = np.searchsorted(firsts, documents, side="right") - 1
    records = documents - firsts[files]
    yield from zip(map(table.labels.__getitem__, files.tolist()), records.tolist(), strict=True)


def numbers_of(reader: RandomReader, places: Sequence[tuple[str, int]]) -> Int64:
    """Returns the numbers of documents through all chunks, and any other one for those that are not there."""
    if isinstance(reader, SubsetReader):
        found = np.searchsorted(reader.documents, numbers_of(reader.reader, places))
    elif isinstance(reader, PartReader):
        found = numbers_of(reader.reader, places)
    else:
        runs = _runs(reader)
        found = np.array([_number(runs.get(file, ()), record) for file, record in places], np.int64)
    return np.minimum(found, int(reader.chunks().num_documents.sum(dtype=np.int64)) - 1)


def find_documents_of(
    reader: RandomReader, places: Sequence[tuple[str, int]]
) -> tuple[Int64, tuple[str, int] | None]:
    """Returns the numbers of documents, in the order asked, and the first of them that is not there."""
    found = numbers_of(reader, places)
    there = zip(places, places_of(reader, found), strict=True)
    return found, next((asked for asked, place in there if asked != place), None)


def are_among(asked: Int64, numbers: Int64) -> NDArray[np.bool_]:
    """Returns, for each number `asked`, whether it is one of `numbers`, which ascend; at least one."""
    place = np.minimum(np.searchsorted(numbers, asked), len(numbers) - 1)
    found: NDArray[np.bool_] = numbers[place] == asked
    return found


def _runs(reader: RandomReader) -> Mapping[str, Sequence[tuple[int, int]]]:
    """Returns, by file, where consecutive records of it are: (first record, number of its document)."""
    table = table_of(source_of(reader))
    if table is not None:
        firsts = _first_of_files(table).tolist()
        return {file: ((0, first),) for file, first in zip(table.labels, firsts, strict=True)}
    counts = reader.chunks().num_documents
    found: dict[str, list[tuple[int, int]]] = {}
    for chunk, first in enumerate((np.cumsum(counts, dtype=np.int64) - counts).tolist()):
        file, record = reader.where(chunk, 0)
        found.setdefault(file, []).append((record, first))
    return {file: sorted(runs) for file, runs in found.items()}


def _number(runs: Sequence[tuple[int, int]], record: int) -> int:
    place = bisect_right(runs, record, key=lambda run: run[0]) - 1
    begin, first = runs[place] if place >= 0 else (record, 0)
    return first + record - begin


def _first_of_files(table: ChunkTable) -> Int64:
    """Returns the documents ahead of each file."""
    counts = np.array(table.num_records, np.int64)
    return np.cumsum(counts) - counts
