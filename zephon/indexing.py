"""Makes a catalogue: each dataset of a recipe is looked at once, and what is found goes to a folder or URL.

Upstream: `zephon index`. Downstream: `catalogue.py`, which reads what is written. What is known of a file is
kept in the cache as it is found, so an index that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from zephon import remote, retries
from zephon.cachefiles import replace_any_file, write_atomically
from zephon.catalogue import (
    CHUNK_COLUMNS,
    MANIFEST,
    SUFFIX,
    VERSION,
    Ints,
    Listed,
    leads_out,
    most_cut,
    patterns_of,
    settings_of,
    sha256,
)
from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.opened import SPOOL_BYTES
from zephon.paths import DataFile, absolute, resolve
from zephon.readers import ChunkTable, RandomReader, Report, open_reader
from zephon.readers.parts import source_of, table_of
from zephon.recipe import Recipe, hash_json
from zephon.selection import choose, rank, select
from zephon.streaming import StreamReader
from zephon.urls import Hidden, is_url, redact, refuse_secret, variables


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
    refuse_secret("`out`", out)
    hidden = variables(out)
    out = absolute(out, Path.cwd())
    found: list[Indexed] = []
    left_out: list[str] = []
    entries = {}
    with tempfile.TemporaryDirectory(prefix="zephon-index-") as temporary:
        folder = Path(temporary) if is_url(out) else Path(out)
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for number, dataset in enumerate(recipe.datasets):
            listed = _look(dataset, recipe.base, cache, report)
            if listed is None:
                left_out.append(dataset.name)
                continue
            with _writing(folder):
                entries[dataset.name] = describe(folder, number, dataset, recipe.base, listed)
            found.append(_indexed(dataset, listed.table))
        with _writing(folder):
            catalogue_hash = finish(folder, entries)
        if is_url(out):
            _upload(folder, out, hidden)
    return catalogue_hash, found, left_out


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Makes an `OSError` one of the folder that the catalogue is written to."""
    try:
        yield
    except OSError as error:
        raise DataError.explained(
            f"a catalogue cannot be written to {folder}",
            got=error.strerror or str(error),
            rule="a catalogue is written to a folder, or put together in a temporary one for a URL",
            cure="free space there, make the folder writable, or give `--out` another",
        ) from error


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
            samples=reader.all_samples(),
            first_chunks=np.zeros(1, np.int64),
            places=none,
            num_documents=none,
            num_bytes=none,
        )
    return table_of(source_of(reader))


def _indexed(dataset: Dataset, table: ChunkTable) -> Indexed:
    return Indexed(
        name=dataset.name,
        kind=table.kind,
        num_files=len(table.files),
        num_bytes=sum(file.size_bytes for file in table.files),
        num_chunks=len(table.places),
        num_documents=None if dataset.stream else int(table.num_documents.sum()),
    )


def _upload(folder: Path, url: str, hidden: Hidden) -> None:
    """Puts the files of a catalogue at a URL, the manifest last: it names only what is there."""
    for path in sorted(folder.iterdir(), key=lambda path: (path.name == MANIFEST, path.name)):
        with retries.hiding(hidden):
            remote.write("catalogue", f"{url.rstrip('/')}/{path.name}", path)


# Writing ----------------------------------------------------------------------------------------------------


def describe(folder: Path, number: int, dataset: Dataset, base: Path, listed: Listed) -> dict[str, Any]:
    """Writes the files of the dataset `number` into `folder`, and returns its entry of the manifest."""
    table = listed.table
    files = list(table.files)
    _refuse_not_utf8(dataset, files)
    cuts, below = _cut(dataset, base, files, listed.commits)
    columns = {
        "name": pa.array([file.name for file in files], pa.string()),
        "size_bytes": pa.array([file.size_bytes for file in files], pa.int64()),
        "etag": pa.array([file.etag for file in files], pa.string()),
        "entry": pa.array([file.entry for file in files], pa.int32()),
        "below": pa.array(below, pa.string()),
        "sample": pa.array(list(table.samples), pa.string()),
    }
    entry: dict[str, Any] = {"kind": table.kind, "settings": settings_of(dataset), "cuts": cuts}
    if not dataset.stream:
        columns["first_chunk"] = pa.array(table.first_chunks[:-1], pa.int64())
        chunks = {name: _smallest(getattr(table, name)) for name in CHUNK_COLUMNS}
        entry["chunks"] = _write(folder, f"{number}.chunks{SUFFIX}", chunks)
    entry["files"] = _write(folder, f"{number}.files{SUFFIX}", columns)
    for name, numbers in (("chosen", listed.chosen), ("ranked", listed.ranked)):
        if numbers is not None:
            entry[name] = _write(
                folder, f"{number}.{name}{SUFFIX}", {"number": pa.array(numbers, pa.int64())}
            )
    return entry | ({"commits": dict(listed.commits)} if listed.commits else {})


def _refuse_not_utf8(dataset: Dataset, files: Sequence[DataFile]) -> None:
    for file in files:
        try:
            file.name.encode()
        except UnicodeEncodeError:
            raise DataError.explained(
                f"dataset {dataset.name!r}: {file.shown} cannot be listed in a catalogue",
                got="a name that is not UTF-8",
                rule="a catalogue names files in UTF-8",
                cure="rename the file, or use the recipe without a catalogue",
            ) from None


def finish(folder: Path, datasets: Mapping[str, Any]) -> str:
    """Writes the manifest of entries that `describe` made, and returns the catalogue's hash."""
    manifest = {"version": VERSION, "datasets": dict(datasets)}
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n", sync=True)
    return hash_json(manifest)


def _cut(
    dataset: Dataset, base: Path, files: Sequence[DataFile], commits: Mapping[str, str]
) -> tuple[list[int], list[str | None]]:
    """Returns how many of the last parts of each entry are not its folder, and for each file where it lies.

    None: below that folder, by its name; empty: it is the entry itself.
    """
    patterns = patterns_of(dataset, base, commits)
    cuts = [0] * len(patterns)
    below: list[str | None] = []
    for file in files:
        pattern, tail = patterns[file.entry], f"/{file.name}"
        parts, root = pattern.rstrip("/").split("/"), file.path.removesuffix(tail)
        cut = len(parts) - 1 - root.count("/")
        is_below = file.path.endswith(tail) and pattern.startswith(root) and 0 <= cut <= most_cut(parts)
        if file.path == pattern and not leads_out(file.name):
            below.append("")
        elif is_below and not leads_out(file.name):
            cuts[file.entry] = cut
            below.append(None)
        else:
            raise DataError.explained(
                f"dataset {dataset.name!r}: {file.shown} cannot be listed in a catalogue",
                got=f"it does not lie below {redact(dataset.paths[file.entry])!r}",
                rule="a catalogue names files below the entries of `path`",
                cure="name a folder above it in `path`",
            )
    return cuts, below


def _smallest(numbers: Ints) -> Any:
    """Returns the column of whole numbers, in 32 bits where they fit."""
    fits = not len(numbers) or (int(numbers.max()) < 1 << 31 and int(numbers.min()) >= -(1 << 31))
    return pa.array(numbers, pa.int32() if fits else pa.int64())


def _write(folder: Path, name: str, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Writes columns as one record batch, and returns what the manifest says of the file.

    Its name holds its hash, so a catalogue that is made anew leaves the files of the one before as they are.
    """
    batch = pa.RecordBatch.from_pydict(dict(columns))

    def write(target: BinaryIO) -> None:
        with pa.ipc.new_file(target, batch.schema) as writer:
            writer.write_batch(batch)

    temporary = folder / f".{os.getpid()}.{name}"
    replace_any_file(temporary, write)
    digest, size_bytes = sha256(temporary), temporary.stat().st_size
    named = f"{name.removesuffix(SUFFIX)}.{digest[:16]}{SUFFIX}"
    os.replace(temporary, folder / named)
    return {"name": named, "size_bytes": size_bytes, "sha256": digest}
