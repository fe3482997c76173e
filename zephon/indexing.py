"""Makes a catalogue: each dataset of a recipe is looked at once, and what is found goes to a folder or URL.

Upstream: `zephon index`. Downstream: `catalogue.py`, which reads what is written. What is known of a file is
kept in the cache as it is found, so an index that was stopped goes on where it was.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zephon import remote
from zephon.catalogue import MANIFEST, Listed, describe, finish
from zephon.dataset import Dataset
from zephon.opened import SPOOL_BYTES
from zephon.paths import absolute, resolve
from zephon.readers import ChunkTable, RandomReader, Report, open_reader
from zephon.recipe import Recipe
from zephon.selection import choose, rank, select
from zephon.streaming import StreamReader
from zephon.urls import is_url


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """What was found of one dataset."""

    name: str
    kind: str
    num_files: int
    num_bytes: int
    num_chunks: int
    num_documents: int | None
    """None where it is streamed: nobody counted them."""


def index_recipe(
    recipe: Recipe, out: str, *, cache: Path, report: Report | None = None
) -> tuple[str, Sequence[Indexed], Sequence[str]]:
    """Writes the catalogue of `recipe`, whatever catalogue it names itself, to `out`, a folder or URL.

    Returns its hash, what was found, and the names of datasets that have no files to list. Over an earlier
    catalogue the manifest comes last and no file is touched, so whoever reads it sees the one or the other.
    Cost: one look at every file; one reading of those whose documents must be counted, or of the columns
    that `where` and sorted orders ask for.
    """
    out = absolute(out, Path.cwd())
    found: list[Indexed] = []
    left_out: list[str] = []
    entries = {}
    with tempfile.TemporaryDirectory(prefix="zephon-index-") as temporary:
        folder = Path(temporary) if is_url(out) else Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        for number, dataset in enumerate(recipe.datasets):
            listed = _look(dataset, recipe.base, cache, report)
            if listed is None:
                left_out.append(dataset.name)
                continue
            entries[dataset.name] = describe(folder, number, dataset, recipe.base, listed)
            found.append(_indexed(dataset, listed.table))
        catalogue_hash = finish(folder, entries)
        if is_url(out):
            _upload(folder, out)
    return catalogue_hash, found, left_out


def _look(dataset: Dataset, base: Path, cache: Path, report: Report | None) -> Listed | None:
    """Returns what a catalogue keeps of a dataset; None where it has no files."""
    commits = resolve(dataset.paths, base, {})
    reader = open_reader(
        dataset, base=base, cache=cache, spool_bytes=SPOOL_BYTES, report=report, commits=commits
    )
    try:
        table = _table(dataset, reader)
        if table is None:
            return None
        chosen = choose(dataset, reader, cache, report) if dataset.where else None
        selected = select(dataset, reader, cache, report, chosen=chosen)
        ranked = rank(dataset, selected, cache, report)
    finally:
        reader.close()
    return Listed(table=table, chosen=chosen, ranked=ranked, commits=commits)


def _table(dataset: Dataset, reader: RandomReader) -> ChunkTable | None:
    if isinstance(reader, StreamReader):
        none = np.zeros(0, np.int64)
        return ChunkTable(
            name=dataset.name,
            kind=reader.kind,
            files=reader.files,
            samples=reader.samples,
            first_chunks=np.zeros(1, np.int64),
            places=none,
            num_documents=none,
            num_bytes=none,
        )
    table: ChunkTable | None = getattr(getattr(reader, "reader", reader), "table", None)
    return table


def _indexed(dataset: Dataset, table: ChunkTable) -> Indexed:
    return Indexed(
        name=dataset.name,
        kind=table.kind,
        num_files=len(table.files),
        num_bytes=sum(file.size_bytes for file in table.files),
        num_chunks=len(table.places),
        num_documents=None if dataset.stream else int(table.num_documents.sum()),
    )


def _upload(folder: Path, url: str) -> None:
    """Puts the files of a catalogue at a URL, the manifest last: it names only what is there."""
    for path in sorted(folder.iterdir(), key=lambda path: (path.name == MANIFEST, path.name)):
        remote.write("catalogue", f"{url.rstrip('/')}/{path.name}", path)
