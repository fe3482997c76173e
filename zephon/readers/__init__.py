"""Readers: from the description of a dataset to documents at random addresses.

Upstream: `Dataset`, `paths.py`. Downstream: the loader, which sees only `RandomReader`.
Built-in kinds: `jsonl` (by byte offsets), `parquet` (through the spool), `memory`.
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
)

__all__ = [
    "Chunks",
    "Column",
    "Factory",
    "Origin",
    "RandomReader",
    "Reader",
    "Report",
    "Texts",
    "open_reader",
]

Factory = Callable[[Origin], Reader | RandomReader]


SUFFIXES: Mapping[str, str] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}


def open_reader(
    dataset: Dataset, *, base: Path, cache: Path, spool_bytes: int, report: Report | None = None
) -> RandomReader:
    """Returns the opened dataset; indexes are made and footers read here, documents are not.

    A reader that can only read whole chunks is put behind a spool of at most `spool_bytes` (a bound on the
    whole spool folder under `cache`). `report` gets bytes for an index and files for footers.
    Raises `DataError` for files that cannot be used and for a dataset without records.
    """
    files = tuple(list_files(dataset.paths, base)) if dataset.documents is None else ()
    kind = dataset.kind or _kind(dataset, files)
    origin = Origin(dataset=dataset, files=files, cache=cache, report=report)
    opened = _factory(dataset, kind)(origin)
    if hasattr(opened, "texts"):
        reader = cast(RandomReader, opened)
    else:
        from zephon.spool import Spool

        reader = Spool(opened, origin, limit_bytes=spool_bytes)
    if not len(reader.chunks().num_documents):
        raise DataError.explained(
            f"dataset {dataset.name!r} has no records",
            got=f"{len(files)} files, {sum(file.size_bytes for file in files):,} bytes, 0 records",
            rule="a dataset holds at least one record",
            cure="correct its path or remove it from the recipe",
        )
    return reader


def _factory(dataset: Dataset, kind: str) -> Factory:
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
    kinds = {SUFFIXES.get(suffix, "") for suffix in suffixes}
    if len(kinds) == 1 and "" not in kinds:
        return kinds.pop()
    found = ", ".join(f"{count} x {suffix or 'no suffix'}" for suffix, count in sorted(suffixes.items()))
    example = next((file.name for file in files if _suffix(file) not in SUFFIXES), "")
    known = ", ".join(f"{suffix} ({kind})" for suffix, kind in SUFFIXES.items())
    raise DataError.explained(
        f"dataset {dataset.name!r}: the names of its files do not say one kind",
        got=found + (f", such as {example}" if example else ""),
        rule=f"all files of a dataset are of one kind; known: {known}",
        cure="name the files with a pattern such as data/**/*.jsonl, or give `kind`",
    )


def _suffix(file: DataFile) -> str:
    return os.path.splitext(file.name)[1].lower()
