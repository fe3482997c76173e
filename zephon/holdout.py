"""Documents held out of a dataset: chosen once by seed and name, and kept in the lock by file and record.

Upstream: `Dataset.holdout` and an opened reader. Downstream: `opened.py` gives the part `valid` a reader of
just these, `prepare.py` passes over them in the part `train`, and `lock.py` writes down which they are, so
that files added later do not move them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon.bits import bits, key
from zephon.dataset import Dataset, HeldOut
from zephon.documents import are_among, find_documents_of, places_of
from zephon.errors import DataError, shorten
from zephon.order import Addresses
from zephon.readers import RandomReader
from zephon.urls import is_url

Int64 = NDArray[np.int64]
Records = Mapping[str, Sequence[int]]
"""File, as `where` of the reader calls it, -> records in it, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutDocuments:
    """The documents of an opened dataset that are held out."""

    held_out: HeldOut
    num_documents: int
    """Documents of the whole dataset."""
    firsts: Int64
    """(C,) documents ahead of each chunk."""
    documents: Int64
    """(k,) ascending, numbered through all chunks."""
    records: Records

    def contains(self, addresses: Addresses) -> NDArray[np.bool_]:
        """Returns, for each address, whether the document is held out."""
        return are_among(self.firsts[addresses.chunk] + addresses.record, self.documents)

    def to_json(self) -> dict[str, Any]:
        """Returns what the lock keeps; the same for both parts."""
        return {
            "documents": self.held_out.documents,
            "seed": self.held_out.seed,
            "records": {file: list(records) for file, records in self.records.items()},
        }


def hold_out(
    dataset: Dataset, reader: RandomReader, lock: Mapping[str, Any] | None
) -> HeldOutDocuments | None:
    """Returns the documents held out of `dataset`, or None where it is whole.

    The list in an earlier `lock` counts where it was made with the same number and seed; its files must be
    as they were. Cost: some microseconds a document held out.
    """
    held_out = dataset.held_out
    if held_out is None:
        return None
    counts = reader.chunks().num_documents
    firsts = np.cumsum(counts, dtype=np.int64) - counts
    earlier = (lock or {}).get("held_out", {}).get(dataset.name)
    if lock and earlier and (earlier["documents"], earlier["seed"]) == (held_out.documents, held_out.seed):
        _refuse_changes(dataset, earlier["records"], lock["data"][dataset.name], reader.identity())
        documents = _find(dataset, reader, earlier["records"])
    else:
        documents = np.array(choose(held_out, dataset.name, int(counts.sum())), dtype=np.int64)
    documents.sort()
    records = _records(dataset, reader, documents)
    return HeldOutDocuments(
        held_out=held_out,
        num_documents=int(counts.sum()),
        firsts=firsts,
        documents=documents,
        records=records,
    )


def choose(held_out: HeldOut, name: str, num_documents: int) -> list[int]:
    """Returns the numbers of the documents to hold out of `num_documents`, as they are drawn.

    The first different ones of a sequence that seed and name decide.
    """
    if held_out.documents > num_documents // 2:
        raise DataError.explained(
            f"dataset {name!r}: too many documents to hold out",
            got=f"{held_out.documents:,} of {num_documents:,}",
            rule="at most half of a dataset's documents are held out",
            cure="hold out fewer, or give the dataset more documents",
        )
    found: dict[int, None] = {}
    stream, first = key("holdout", held_out.seed, name), 0
    while len(found) < held_out.documents:
        last = first + held_out.documents
        for word in bits(stream, np.arange(first, last)).tolist():
            found.setdefault(word * num_documents >> 64)
        first = last
    return list(found)[: held_out.documents]


def _records(dataset: Dataset, reader: RandomReader, documents: Int64) -> Records:
    found: dict[str, list[int]] = {}
    for file, number in places_of(reader, documents):
        found.setdefault(file, []).append(number)
    if paths := [file for file in found if os.path.isabs(file) or is_url(file)]:
        raise DataError.explained(
            f"dataset {dataset.name!r}: the lock cannot name the documents to hold out",
            got=f"several files of the name of {paths[0]!r}",
            rule="files of a dataset with a holdout have different names below their entries of `path`",
            cure="name one folder above them in `path`",
        )
    return {file: sorted(found[file]) for file in sorted(found)}


def _refuse_changes(
    dataset: Dataset, files: Iterable[str], saved: Mapping[str, Any], found: Mapping[str, Any]
) -> None:
    """Refuses files of the list that are not what they were: other documents would have its numbers."""
    for file in files:
        before, now = _entry(saved, file), _entry(found, file)
        if before is None:  # what is no file, or not listed as one, changes with anything of the dataset
            before, now = dict(saved), dict(found)
        if now is not None and json.dumps(now) != json.dumps(before):
            raise DataError.explained(
                f"dataset {dataset.name!r}: {file!r}, of which documents are held out, has changed",
                got=f"{shorten(now)}; the lock has {shorten(before)}",
                rule="files with held-out documents stay as they are; files may be added",
                cure="bring the file back as it was, or begin a new run folder, which chooses anew",
            )


def _entry(identity: Mapping[str, Any], file: str) -> Any:
    """Returns what an identity says of a file, or None where it does not list it."""
    return next((entry for entry in identity.get("files", ()) if entry[0] == file), None)


def _find(dataset: Dataset, reader: RandomReader, records: Records) -> Int64:
    """Returns the numbers of documents that a lock names."""
    asked = [(file, number) for file, numbers in records.items() for number in numbers]
    found, missing = find_documents_of(reader, asked)
    if missing is not None:
        raise DataError.explained(
            f"dataset {dataset.name!r}: a document that is held out is gone",
            got=f"no record {missing[1]} of {missing[0]!r}",
            rule="the lock's list of documents held out stays as it is; files may only be added",
            cure="bring the file back, or begin a new run folder, which chooses anew",
        )
    return found
