"""Documents that are token ids already, as `zephon init` finds them: in files of their own or in a column.

Upstream: `discover.py`, which lists files and samples records. Downstream: the recipe's `tokens` and `dtype`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from zephon.dataset import DTYPES, Dataset
from zephon.errors import DataError
from zephon.paths import DataFile
from zephon.readers.arrays import is_token_list
from zephon.readers.beside import INDEX, MEGATRON
from zephon.readers.flat import FlatFiles

TOKEN_NAMES = ("input_ids", "token_ids", "tokens", "ids")


def find_token_files(name: str, files: Sequence[DataFile], kind: str) -> tuple[str, str]:
    """Returns (dtype, why) for files that hold nothing but token ids; `dtype` is empty where they say it.

    Raises `DataError` where their documents' boundaries are not there.
    """
    if kind == MEGATRON:
        return "", f"token ids, their documents by the {INDEX} files beside them"
    layout = FlatFiles(Dataset.from_path(name, files[0].path))
    beside = [layout.beside(file) for file in files]
    untyped = [i for i, file in enumerate(files) if not file.name.lower().endswith(".npy")]
    if not untyped:
        return "", "token ids, their documents by the .offsets.npy files beside them"
    file = next((files[i] for i in untyped if files[i].size_bytes), files[untyped[0]])
    try:
        offsets = np.load(beside[files.index(file)].path, mmap_mode="r", allow_pickle=False)
        num_tokens = max(1, int(offsets[-1]))
    except (ValueError, IndexError, TypeError):
        num_tokens = 1
    width = file.size_bytes / num_tokens
    dtype = next((name for name in DTYPES if np.dtype(name).itemsize == width), DTYPES[0])
    return dtype, f"token ids of {width:g} bytes, as the last offset says"


def find_token_column(file: DataFile, kind: str, records: Iterable[Mapping[str, Any]]) -> str:
    """Returns the column with lists of token ids; empty where there is none, or several that may be it."""
    if kind == "parquet":
        schema = pq.read_schema(file.path)
        found = [field.name for field in schema if is_token_list(field.type)]
    else:
        is_ids: dict[str, bool] = {}
        for record in records:
            for name, value in record.items():
                is_ids[name] = is_ids.get(name, True) and _is_ids(value)
        found = [name for name, yes in is_ids.items() if yes]
    usual = next((name for name in TOKEN_NAMES if name in found), "")
    return usual or (found[0] if len(found) == 1 else "")


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


def as_left_out(error: DataError) -> str:
    """Returns the lines of an error without the name of a dataset that nobody has given yet."""
    head, _, rest = str(error).partition(": ")
    return rest if head.startswith("dataset ") else str(error)
