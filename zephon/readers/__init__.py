"""Readers: from the description of a dataset to documents at random addresses.

Upstream: `Dataset`, `paths.py`. Downstream: the loader, which sees only `RandomReader`.
Built-in kinds: see `SUFFIXES`; and `memory`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

from zephon import plugins
from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.paths import DataFile, list_files
from zephon.readers.base import (
    Chunks,
    Column,
    Origin,
    RandomReader,
    Reader,
    Report,
    Texts,
    TokenReader,
    Tokens,
    is_tokenized,
)
from zephon.readers.beside import FLAT, MEGATRON, kind_of_tokens, without_boundaries
from zephon.readers.parts import random_access, record_source
from zephon.readers.saved import without_metadata
from zephon.readers.table import ChunkTable

__all__ = [
    "ChunkTable",
    "Chunks",
    "Column",
    "Origin",
    "RandomReader",
    "Reader",
    "Report",
    "Texts",
    "TokenReader",
    "Tokens",
    "as_random",
    "find_factory",
    "find_files",
    "is_tokenized",
    "kind_by_name",
    "open_reader",
]

Factory = Callable[[Origin], Reader | RandomReader]
"""Of a dataset with `stream` it returns a `RecordSource`."""


SUFFIXES: Mapping[str, str] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json.gz": "jsonl",
    ".json.zst": "jsonl",
    ".json.zstd": "jsonl",
    ".json.bz2": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".bin": "flat",
    ".npy": "flat",
    ".idx": "megatron",
}
"""By the end of a file's name, without what says how it is compressed where the kind can be."""
COMPRESSED = (".gz", ".zst", ".zstd", ".bz2")
COMPRESSIBLE = ("jsonl", "csv", "text")


def open_reader(
    dataset: Dataset,
    *,
    base: Path,
    cache: Path,
    spool_bytes: int,
    report: Report | None = None,
    table: ChunkTable | None = None,
    commits: Mapping[str, str] | None = None,
) -> RandomReader:
    """Returns the opened dataset; indexes are made and footers read here, documents are not.

    With a `table`, from a catalogue, no file is looked at. `commits` are those of `hf://` entries.

    A reader that can only read whole chunks is put behind a spool of at most `spool_bytes` (a bound on the
    whole spool folder under `cache`). `report` gets bytes for an index and files for footers.
    Raises `DataError` for files that cannot be used and for a dataset without records.
    """
    if table is not None:
        kind, files = table.kind, table.files
    else:
        kind, files = find_files(dataset, base, commits)
    origin = Origin(dataset=dataset, files=files, cache=cache, report=report, table=table)
    opened = find_factory(dataset, kind)(origin)
    _refuse_other_fields(dataset, kind, opened)
    reader = as_random(opened, origin, spool_bytes)
    if not len(reader.chunks().num_documents):
        raise DataError.explained(
            f"dataset {dataset.name!r} has no records",
            got=f"{len(files):,} files, {sum(file.size_bytes for file in files):,} bytes, 0 records",
            rule="a dataset holds at least one record",
            cure="correct its path or remove it from the recipe",
        )
    return reader


def as_random(opened: object, origin: Origin, spool_bytes: int) -> RandomReader:
    """Returns what a factory made of `origin`, behind a spool or in windows where it needs that."""
    if origin.dataset.stream:
        return _stream(opened, origin, spool_bytes)
    found = random_access(opened)
    if found is not None:
        return found
    from zephon.spool import Spool

    return Spool(cast(Reader, opened), origin, limit_bytes=spool_bytes)


def find_files(
    dataset: Dataset, base: Path, commits: Mapping[str, str] | None = None
) -> tuple[str, Sequence[DataFile]]:
    """Returns the kind of a dataset and its files, without those that say something of others."""
    listed: Sequence[DataFile] = ()
    if dataset.documents is None:
        listed = list_files(dataset.paths, base, revisions=commits, dataset=dataset.name)
    if dataset.kind in ("", "arrow"):
        listed = without_metadata(dataset.name, listed)
    files = without_boundaries(listed) if dataset.kind in ("", FLAT, MEGATRON) else listed
    kind = dataset.kind or _kind(dataset, files)
    if kind == FLAT and not dataset.kind:
        kind = kind_of_tokens(dataset, files, listed)
    return kind, files


def _refuse_other_fields(dataset: Dataset, kind: str, opened: object) -> None:
    """Refuses fields of a dataset that mean nothing for its kind."""
    if dataset.dtype and kind in set(SUFFIXES.values()) - {FLAT, MEGATRON}:
        raise DataError.explained(
            f"dataset {dataset.name!r}: `dtype` is for flat files of token ids",
            got=f"dtype = {dataset.dtype!r} for the kind {kind!r}",
            rule="other files say themselves what they hold",
            cure="leave `dtype` out",
        )
    if dataset.tokens and not is_tokenized(opened):
        raise DataError.explained(
            f"dataset {dataset.name!r}: its reader knows no tokens",
            got=f"tokens = {dataset.tokens!r} for the kind {kind!r}",
            rule="`tokens` names a column of token ids in JSONL, Parquet or Arrow files",
            cure="leave it out, or store the token ids in one of these formats",
        )


def _stream(opened: object, origin: Origin, spool_bytes: int) -> RandomReader:
    """Returns the reader of a streamed dataset; no file is opened but a few for their samples."""
    source = record_source(opened)
    if source is None:
        raise DataError.explained(
            f"dataset {origin.dataset.name!r}: its format cannot be streamed",
            got=f"`stream` for {type(opened).__name__}",
            rule="JSONL and CSV files are read in order; others say how many documents they have",
            cure="leave out `stream`",
        )
    from zephon.streaming import StreamReader

    return StreamReader(source, origin, limit_bytes=spool_bytes)


def find_factory(dataset: Dataset, kind: str) -> Factory:
    """Returns what opens datasets of `kind`: an entry point, as the built-in readers are."""
    try:
        return cast(Factory, plugins.find("datasets", kind))
    except LookupError as error:
        known = ", ".join(sorted({info.name for info in plugins.installed("datasets")}))
        raise DataError.explained(
            f"dataset {dataset.name!r}: there is no reader {kind!r}",
            got=f"kind = {kind!r}",
            rule=f"kinds known: {known}",
            cure="correct `kind` or install the plugin that provides it",
        ) from error


def _kind(dataset: Dataset, files: Sequence[DataFile]) -> str:
    """Returns the one kind that the names of all `files` stand for."""
    suffixes = Counter(_suffix(file) for file in files)
    kinds = {_kind_of(suffix) for suffix in suffixes}
    if len(kinds) == 1 and "" not in kinds:
        return kinds.pop()
    found = ", ".join(f"{count} x {suffix or 'no suffix'}" for suffix, count in sorted(suffixes.items()))
    example = next((file.name for file in files if not _kind_of(_suffix(file))), "")
    known = ", ".join(f"{suffix} ({kind})" for suffix, kind in SUFFIXES.items())
    raise DataError.explained(
        f"dataset {dataset.name!r}: the names of its files do not say one kind",
        got=found + (f", such as {example}" if example else ""),
        rule=f"all files of a dataset are of one kind; known: {known}; of {', '.join(COMPRESSIBLE)} also "
        f"with {', '.join(COMPRESSED)} behind it",
        cure="name the files with a pattern such as data/**/*.jsonl, or give `kind`",
    )


def kind_by_name(file: DataFile) -> str:
    """Returns the kind that a file's name stands for; empty where it stands for none."""
    return _kind_of(_suffix(file))


def _suffix(file: DataFile) -> str:
    """Returns the end of a file's name: the last suffix, or two where the last is a compression."""
    stem, last = os.path.splitext(file.name.lower())
    return os.path.splitext(stem)[1] + last if last in COMPRESSED else last


def _kind_of(suffix: str) -> str:
    """Returns the kind that a suffix stands for; empty where it stands for none."""
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    plain, last = os.path.splitext(suffix)
    kind = SUFFIXES.get(plain, "") if last in COMPRESSED else ""
    return kind if kind in COMPRESSIBLE else ""
