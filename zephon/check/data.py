"""What a launch check finds where a recipe's data lies: catalogue, files, conditions, orders, streams.

Upstream: a recipe. Downstream: `check/__init__.py`, which samples what was opened here. Every dataset is
opened on its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from zephon import opened
from zephon.catalogue import Catalogue, open_catalogue
from zephon.check.report import Finding, failure, ok, warning
from zephon.dataset import Dataset
from zephon.errors import DataError, ZephonError
from zephon.opened import SPOOL_BYTES, OpenedDataset
from zephon.order import WINDOW_CHUNKS, num_groups
from zephon.readers import RandomReader, Report
from zephon.readers.parts import in_place, source_of, table_of
from zephon.readers.subset import PartReader, SubsetReader, chunks_of_whole, whole
from zephon.recipe import Recipe
from zephon.selection import rank, values_of
from zephon.spool import Spool
from zephon.streaming import StreamReader
from zephon.urls import redact, scheme
from zephon.where import parse_column

REFUSALS = (ZephonError, ValueError, TypeError, LookupError, OSError)
MANY_FILES = 100_000
"""With so many files that no catalogue lists, opening takes every rank of every launch a while."""
LOOKED_AT = 8
"""Chunks of a dataset by which it is told whether any are expanded."""
OFFSET_BYTES = 8
"""What the spool adds to a document."""


def refusal(subject: str, error: Exception) -> Finding:
    """Returns the finding of an error; the cure of its message becomes the finding's."""
    message, _, cure = str(error).partition("\n  cure: ")
    return failure(subject, message or type(error).__name__, cure)


@dataclass(slots=True)
class DataCheck:
    """Opens the datasets of a recipe; each method adds its findings."""

    recipe: Recipe
    cache: Path
    report: Report | None
    findings: list[Finding] = field(default_factory=list)
    opened: dict[int, OpenedDataset] = field(default_factory=dict)
    """By dataset; those that could be opened."""
    _catalogue: Catalogue | None = None

    def run(self) -> None:
        """Opens what can be opened, and looks at all that the readers say without reading documents."""
        recipe, started = self.recipe, time.monotonic()
        is_usable = self._open_catalogue()
        for index, dataset in enumerate(recipe.datasets):
            if is_usable or not dataset.paths:
                self._open(index, dataset)
        spent = time.monotonic() - started
        if self._catalogue is not None:
            self._say_catalogue(self._catalogue)
        self._warn_many_files(spent)
        for index, one in self.opened.items():
            self._look(recipe.datasets[index], one)

    def _open_catalogue(self) -> bool:
        """Returns whether files may be looked at: without its catalogue that might take hours."""
        written = self.recipe.catalogue
        if not written:
            return True
        try:
            self._catalogue = open_catalogue(written, self.recipe.base, self.cache)
        except REFUSALS as error:
            found = refusal("catalogue", error)
            message = f"{found.message}\nthe datasets with files were not looked at"
            self.findings.append(replace(found, message=message))
            return False
        return True

    def _open(self, index: int, dataset: Dataset) -> None:
        try:
            self.opened[index] = opened.open_dataset(
                self.recipe,
                dataset,
                cache=self.cache,
                spool_bytes=SPOOL_BYTES,
                report=self.report,
                catalogue=self._catalogue,
            )
        except REFUSALS as error:
            self.findings.append(refusal(f"dataset {dataset.name}", error))

    def _say_catalogue(self, catalogue: Catalogue) -> None:
        names = [dataset.name for dataset in self.recipe.datasets if dataset.paths]
        others = [name for name in names if name not in catalogue.names]
        message = f"{catalogue.hash[:12]} of {redact(self.recipe.catalogue)!r} lists "
        message += (
            f"{len(names) - len(others)} of {len(names)} datasets with files; these were not listed anew"
        )
        if others:
            message += f"; not in it, so looked at: {', '.join(others)}"
        self.findings.append(ok("catalogue", message))

    def _warn_many_files(self, spent_s: float) -> None:
        """Warns where all ranks of all launches would open many files."""
        unlisted = [one.reader for one in self.opened.values() if one.listed is None]
        count = sum(len(whole(reader).identity().get("files", [])) for reader in unlisted)
        if count >= MANY_FILES:
            message = f"{count:,} files are in no catalogue: opening them took {spent_s:,.0f} s here, and "
            message += "every rank of every launch lists them, and opens those that its cache does not know"
            cure = "run `zephon index RECIPE --out FOLDER` once, and name the folder as `catalogue`"
            self.findings.append(warning("files", message, cure))

    def _look(self, dataset: Dataset, one: OpenedDataset) -> None:
        subject = f"dataset {dataset.name}"
        self._say_held_out(subject, one)
        if given := [f"`{name}`" for name in ("where", "limit") if getattr(dataset, name)]:
            total = int(whole(one.reader).chunks().num_documents.sum())
            message = f"{_selected(one.reader):,} of {total:,} documents are left by {' and '.join(given)}"
            self.findings.append(ok(subject, message))
        if message := remote_message(one.reader):
            self.findings.append(ok(subject, message))
        try:
            order = opened.make_order(self.recipe, dataset, one, cache=self.cache, report=self.report)
            if isinstance(one.reader, StreamReader):
                num_files = len(one.reader.files)
                message = f"a stream of {num_files:,} files, of which nothing is counted; "
                message += f"each of {order.num_lanes} lanes takes whole files"
                self.findings.append(ok(subject, message))
            elif dataset.sorted_by:
                self._say_unsorted(subject, dataset, one)
        except REFUSALS as error:
            self.findings.append(refusal(subject, error))

    def _say_held_out(self, subject: str, one: OpenedDataset) -> None:
        if one.held_out is None:
            return
        total, given = one.held_out.num_documents, one.held_out.held_out
        message = (
            f"{given.documents:,} of {total:,} documents are held out (seed {given.seed}); this is the part "
        )
        message += f"{given.part!r}; a run folder's lock keeps which they are, this check chooses anew"
        self.findings.append(ok(subject, message))

    def _say_unsorted(self, subject: str, dataset: Dataset, one: OpenedDataset) -> None:
        """Says how many documents have no value that they could be sorted by."""
        ranked = None if one.listed is None else one.listed.ranked
        if ranked is None:
            ranked = rank(dataset, one.reader, self.cache, self.report)
        assert ranked is not None
        count = num_without_value(dataset, one.reader, ranked)
        message = f"{len(ranked):,} documents in order of {dataset.sorted_by.removeprefix('-')!r}"
        if not count:
            self.findings.append(ok(subject, f"{message}; each has a value"))
            return
        cure = "leave them out: `where` with COLUMN is not None; or nothing, if they shall come last"
        self.findings.append(
            warning(subject, f"{message}; {count:,} of them have no value and come last", cure)
        )


def _selected(reader: RandomReader) -> int:
    """Returns how many documents `where` and `limit` leave, those of both parts of a holdout."""
    outer = reader
    if isinstance(reader, SubsetReader) and isinstance(reader.reader, PartReader):
        outer = reader.reader  # the part `valid` of what they leave
    return int(outer.chunks().num_documents.sum())


def num_without_value(dataset: Dataset, reader: RandomReader, ranked: Any) -> int:
    """Returns how many documents have no value (null or NaN) in the column that they are sorted by.

    These are the last of `ranked`, so a few of its documents are looked at, by bisection.
    """
    names = parse_column(dataset.sorted_by.removeprefix("-"), dataset.name, "order").names
    counts = reader.chunks().num_documents
    ends = np.cumsum(counts, dtype=np.int64)

    def has_value(place: int) -> bool:
        number = int(ranked[place])
        chunk = int(np.searchsorted(ends, number, side="right"))
        values = values_of(dataset.name, reader, chunk, names[:1]).column(names[0])
        values = pc.struct_field(values, list(names[1:])) if names[1:] else values
        value = values[number - int(ends[chunk] - counts[chunk])].as_py()
        return value is not None and value == value  # NaN is no value either

    low, high = 0, len(ranked)
    if high and has_value(high - 1):
        return 0
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if has_value(middle) else (low, middle)
    return len(ranked) - low


def remote_message(reader: RandomReader) -> str:
    """Returns what is to say of files by URL; nothing where all are local."""
    inner = whole(reader)
    table = table_of(source_of(inner))
    files = inner.files if isinstance(inner, StreamReader) else table.files if table is not None else ()
    remote = [file for file in files if file.is_remote]
    if not remote:
        return ""
    schemes = ", ".join(sorted({f"{scheme(file.path)}://" for file in remote}))
    message = f"{len(remote):,} of {len(files):,} files are remote ({schemes})"
    if isinstance(inner, Spool | StreamReader):
        return f"{message}: what is read is kept in the cache, and fetched again once it is pushed out"
    return f"{message}: every document is fetched whenever it is read, and not kept"


def is_in_place(reader: RandomReader) -> bool:
    """Returns whether a spool reads a dataset where it lies, by some of its chunks, which are opened."""
    spool = whole(reader)
    source = in_place(spool.reader) if isinstance(spool, Spool) else None
    if source is None:
        return False
    chunks = chunks_of_whole(reader)
    try:
        return all(source.view(chunk) for chunk in chunks[:: -(-len(chunks) // LOOKED_AT)].tolist())
    except DataError:  # of a file that has gone: the sample says so
        return False


def expanded_bytes(readers: Sequence[RandomReader]) -> int:
    """Returns what the chunks of spools take when expanded, about; of a part, those it has documents of."""
    total = 0
    for reader in readers:
        spool = whole(reader)
        if isinstance(spool, Spool):
            chunks, parts = spool.chunks(), chunks_of_whole(reader)
            total += int(chunks.num_bytes[parts].sum(dtype=np.int64))
            total += OFFSET_BYTES * int(chunks.num_documents[parts].sum(dtype=np.int64))
    return total


def windows_bytes(readers: Sequence[RandomReader], lanes: int) -> int:
    """Returns what the windows of all lane groups take of the spool, about: they are read from at once."""
    total = 0
    for reader in readers:
        if isinstance(whole(reader), Spool):
            chunks = reader.chunks()
            count = min(len(chunks.num_bytes), WINDOW_CHUNKS * num_groups(lanes, chunks.num_documents))
            total += count * int(chunks.num_bytes.sum(dtype=np.int64)) // len(chunks.num_bytes)
    return total
