"""Files of nothing but token ids, as `zephon init` finds them.

Upstream: `discover.py`, which lists files. Downstream: the recipe's `dtype`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zephon.dataset import DTYPES, Dataset
from zephon.files import read_range
from zephon.paths import DataFile
from zephon.readers.beside import INDEX, MEGATRON
from zephon.readers.flat import FlatFiles

OFFSET_BYTES = 8


def find_token_files(name: str, files: Sequence[DataFile], kind: str) -> tuple[str, str]:
    """Returns (dtype, why) for files that hold nothing but token ids; `dtype` is empty where they say it.

    Raises `DataError` where their documents' boundaries are not there.
    """
    if kind == MEGATRON:
        return "", f"token ids, their documents by the {INDEX} files beside them"
    layout = FlatFiles(Dataset.from_path(name, files[0].name))
    beside = [layout.beside(file) for file in files]
    untyped = [i for i, file in enumerate(files) if not file.name.lower().endswith(".npy")]
    if not untyped:
        return "", "token ids, their documents by the .offsets.npy files beside them"
    number = next((i for i in untyped if files[i].size_bytes), untyped[0])
    offsets = beside[number]
    last = read_range(name, offsets, max(0, offsets.size_bytes - OFFSET_BYTES), OFFSET_BYTES)
    width = files[number].size_bytes / max(1, int.from_bytes(last, "little"))
    dtype = next((name for name in DTYPES if np.dtype(name).itemsize == width), DTYPES[0])
    return dtype, f"token ids of {width:g} bytes, as the last offset says"
