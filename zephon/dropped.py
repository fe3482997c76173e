"""Documents that a run drops from a step on, found by file and record.

Upstream: the drops of a schedule's table. Downstream: `lane.py`, whose streams ask before they draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from zephon.documents import are_among, find_documents_of
from zephon.errors import DataError
from zephon.opened import Opened
from zephon.schedule import Drop
from zephon.stream_order import FILE_SHIFT, WINDOW_RECORDS
from zephon.streaming import StreamReader

RECORD_SHIFT = 40
"""A record of a streamed file has the number file << RECORD_SHIFT | record."""
MAX_SHARE = 2
"""At most this part of a dataset is dropped: 1/2."""

Int64 = NDArray[np.int64]
IsDropped = Callable[[Int64], NDArray[np.bool_]]
"""Positions of a lane, ascending -> whether each document is dropped."""
Documents = Iterable[tuple[str, str, int]]


class DroppedDocuments:
    """The documents that some drops name, as numbers; made once for each list of drops."""

    def __init__(self, opened: Opened, drops: Sequence[Drop]) -> None:
        """Finds the documents; raises `DataError` where the data has none such."""
        self._opened = opened
        documents = {document for drop in drops for document in drop.documents}
        self._numbers = {
            opened.recipe.names.index(name): numbers
            for name, numbers in find_documents(opened, documents).items()
        }
        self._firsts = {
            dataset: np.cumsum(counts, dtype=np.int64) - counts
            for dataset in self._numbers
            if not isinstance(opened.readers[dataset], StreamReader)
            for counts in [opened.readers[dataset].chunks().num_documents]
        }

    def of(self, dataset: int, lane: int) -> IsDropped | None:
        """Returns what says which documents of a stream are dropped; None where none is."""
        return partial(self._is_dropped, dataset, lane) if dataset in self._numbers else None

    def _is_dropped(self, dataset: int, lane: int, positions: Int64) -> NDArray[np.bool_]:
        if not len(positions):
            return np.zeros(0, np.bool_)
        addresses, numbers = self._opened.locate(dataset, lane, positions), self._numbers[dataset]
        if dataset in self._firsts:
            asked = self._firsts[dataset][addresses.chunk] + addresses.record
        else:
            window = addresses.chunk & ((1 << FILE_SHIFT) - 1)
            record = window * WINDOW_RECORDS + addresses.record
            asked = (addresses.chunk >> FILE_SHIFT << RECORD_SHIFT) | record
        return are_among(asked, numbers)


def find_documents(opened: Opened, documents: Documents) -> dict[str, Int64]:
    """Returns the numbers of (dataset, file, record) documents, ascending, by dataset.

    Raises `DataError` for one that the data does not have, and for more than half of a dataset: that is what
    a weight is for. Records of a stream's file are not counted, so only the file is looked for.
    """
    asked: dict[str, list[tuple[str, int]]] = {}
    for name, file, record in sorted(set(documents)):
        if name not in opened.recipe.names:
            raise _unknown(f"no dataset is named {name!r}", ", ".join(opened.recipe.names))
        asked.setdefault(name, []).append((file, record))
    return {name: _find(opened, name, places) for name, places in asked.items()}


def _find(opened: Opened, name: str, places: list[tuple[str, int]]) -> Int64:
    if far := [place for place in places if not 0 <= place[1] < 1 << RECORD_SHIFT]:
        raise _unknown(f"dataset {name!r} has no such document to drop", f"record {far[0][1]}")
    reader = opened.readers[opened.recipe.names.index(name)]
    if isinstance(reader, StreamReader):
        files = {label: number for number, label in enumerate(reader.labels)}
        if absent := [file for file, _ in places if file not in files]:
            raise _unknown(f"dataset {name!r} has no file {absent[0]!r}", f"{len(files):,} files")
        found = np.array([files[file] << RECORD_SHIFT | record for file, record in places], np.int64)
    else:
        found, missing = find_documents_of(reader, places)
        if missing is not None:
            got = f"no record {missing[1]} of a file {missing[0]!r} among the documents that the recipe reads"
            raise _unknown(f"dataset {name!r} has no such document to drop", got)
        total = int(reader.chunks().num_documents.sum(dtype=np.int64))
        if len(found) * MAX_SHARE > total:
            raise DataError.explained(
                f"dataset {name!r}: too many documents to drop",
                got=f"{len(found):,} of {total:,}",
                rule="at most half of a dataset's documents are dropped",
                cure=f"retire {name!r}, and add what is left of it as another dataset",
            )
    found.sort()
    return found


def _unknown(what: str, got: str) -> DataError:
    return DataError.explained(
        what,
        got=got,
        rule="a document is named by dataset, file and record, as `zephon show` does",
        cure="correct the list",
    )
