"""Files of token ids and the files of boundaries beside them: which is which, by name.

Upstream: the listing of a dataset's files. Downstream: `token_files.py` and its layouts; `zephon init`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from zephon import remote, retries
from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.paths import DataFile
from zephon.retries import MissingError
from zephon.urls import without_query

OFFSETS, INDEX = ".offsets.npy", ".idx"
"""Ends of the names of files that hold boundaries."""
FLAT, MEGATRON = "flat", "megatron"


def path_beside(path: str, ending: str) -> str:
    """Returns a path or URL with another ending in place of its suffix."""
    whole = without_query(path)
    return os.path.splitext(whole)[0] + ending + path[len(whole) :]


def file_beside(dataset: str, file: DataFile, ending: str) -> DataFile | None:
    """Returns the file that is called as `file` but for the ending, as it stands; None if there is none."""
    path, name = path_beside(file.path, ending), path_beside(file.name, ending)
    if file.is_remote:
        try:
            with retries.hiding(file.hidden):
                found = remote.look(f"dataset {dataset!r}: {replace(file, path=path).shown}", path)
        except MissingError:
            return None
        return replace(file, path=path, name=name, size_bytes=found.size_bytes, etag=found.etag)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return replace(
        file,
        path=path,
        name=name,
        size_bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
    )


def without_boundaries(files: Sequence[DataFile]) -> list[DataFile]:
    """Returns the files but for those that hold boundaries of others; all, where nothing else is there."""
    paths = {without_query(file.path) for file in files}
    kept = [
        file
        for file in files
        if not file.name.endswith(OFFSETS)
        and not (file.name.endswith(INDEX) and path_beside(without_query(file.path), ".bin") in paths)
    ]
    return kept or list(files)


def kind_of_tokens(dataset: Dataset, files: Sequence[DataFile], listed: Sequence[DataFile]) -> str:
    """Returns `megatron` for .bin files with an index beside each, `flat` for files that have none.

    `listed` is `files` with those beside them. A remote file costs a request where the listing does not tell
    and no `dtype` says that it is flat.
    """
    paths = {without_query(file.path) for file in listed}
    indexed = [file for file in files if _has_index(dataset, file, paths)]
    if indexed and len(indexed) < len(files):
        other = next(file for file in files if file not in indexed)
        raise DataError.explained(
            f"dataset {dataset.name!r}: its files are of two kinds",
            got=f"{indexed[0].shown} has an {INDEX} file beside it, {other.shown} has none",
            rule="all files of a dataset are of one kind",
            cure=f"copy the missing {INDEX} files there, or make two datasets of it",
        )
    return MEGATRON if indexed else FLAT


def _has_index(dataset: Dataset, file: DataFile, paths: set[str]) -> bool:
    if not file.name.lower().endswith(".bin"):
        return False
    if path_beside(without_query(file.path), INDEX) in paths:
        return True
    if file.is_remote:
        return not dataset.dtype and file_beside(dataset.name, file, INDEX) is not None
    return os.path.exists(path_beside(file.path, INDEX))
