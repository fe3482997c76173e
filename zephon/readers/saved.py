"""Folders that Hugging Face `datasets` writes: which of their files hold records.

Upstream: the files of a dataset as they are listed. Downstream: the Arrow reader. `save_to_disk` writes
`data-*.arrow` with `state.json` and `dataset_info.json`, and for several splits a folder of such folders with
`dataset_dict.json`; the cache of `load_dataset` holds the Arrow files of all splits side by side.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zephon.errors import DataError
from zephon.files import read_range
from zephon.paths import DataFile

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
_CACHED = re.compile(r"cache-.*\.arrow")
_PART = re.compile(r"(?:-\d+-of-\d+)?\.arrow")


def without_metadata(dataset: str, files: Sequence[DataFile]) -> list[DataFile]:
    """Returns `files` without the metadata and caches that lie beside Arrow files that `datasets` wrote.

    Raises `DataError` where they are of several splits.
    """
    if not any(_base(file) in (INFO, SPLITS) for file in files):
        return list(files)
    folders: dict[str, dict[str, DataFile]] = defaultdict(dict)
    for file in files:
        folders[_folder(file)][_base(file)] = file
    left_out: set[str] = set()
    for folder, names in folders.items():
        if SPLITS in names:
            raise _several_splits(dataset, folder, _split_folders(dataset, folder, names, folders))
        if INFO in names and any(name.endswith(".arrow") for name in names):
            _check_splits(dataset, folder, names)
            found = [name for name in names if name in (INFO, STATE) or _CACHED.fullmatch(name)]
            left_out.update(names[name].path for name in found)
    return [file for file in files if file.path not in left_out]


def _base(file: DataFile) -> str:
    return file.name.rpartition("/")[2]


def _folder(file: DataFile) -> str:
    return os.path.dirname(file.path)


def _split_folders(
    dataset: str, folder: str, names: Mapping[str, DataFile], folders: Iterable[str]
) -> list[str]:
    """Returns the paths of the splits of a saved `DatasetDict`."""
    splits = _loaded(dataset, names[SPLITS]).get("splits")
    known = splits if isinstance(splits, list) else []
    return [path for path in (f"{folder}/{split}" for split in known) if path in folders]


def _check_splits(dataset: str, folder: str, names: Mapping[str, DataFile]) -> None:
    """Refuses a folder of the cache with the files of more than one split."""
    splits = _loaded(dataset, names[INFO]).get("splits")
    if STATE in names or not isinstance(splits, dict):
        return
    found = sorted(split for split in splits if any(_is_of(name, split) for name in names))
    if len(found) > 1:
        raise _several_splits(dataset, folder, [f"{folder}/*-{split}*.arrow" for split in found])


def _is_of(name: str, split: str) -> bool:
    builder, dash, rest = name.rpartition(f"-{split}")
    return bool(builder and dash and _PART.fullmatch(rest))


def _loaded(dataset: str, file: DataFile) -> dict[str, Any]:
    try:
        value = json.loads(read_range(dataset, file, 0, file.size_bytes))
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {}


def _several_splits(dataset: str, folder: str, paths: Sequence[str]) -> DataError:
    return DataError.explained(
        f"dataset {dataset!r}: {folder} holds several splits",
        got=f"{SPLITS} or files of more than one split, as Hugging Face `datasets` writes them",
        rule="a dataset is one split, or others that are named one by one",
        cure=f"give the path of a split: {' or '.join(paths) or 'one of its folders'}",
    )
