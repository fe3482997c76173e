"""Documents of token ids written in every format: what tests of tokenized datasets share."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.helpers import EOS

Ids = Sequence[Sequence[int]]
CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}


def ids_of(texts: Sequence[str]) -> list[list[int]]:
    """Returns the ids that the tokenizer of letters gives with EOS; none for an empty text."""
    return [[*text.encode(), EOS] if text else [] for text in texts]


def offsets_of(documents: Ids) -> Any:
    """Returns the (n + 1,) int64 offsets of documents in tokens."""
    return np.append(0, np.cumsum([len(ids) for ids in documents], dtype=np.int64))


def flat(documents: Ids, dtype: str) -> Any:
    """Returns the ids of all documents as one array."""
    return np.array([i for ids in documents for i in ids], dtype)


def write_bin(folder: Path, documents: Ids, dtype: str = "uint16", name: str = "a") -> dict[str, Any]:
    """Writes NAME.bin and its offsets; returns the fields of its dataset."""
    folder.mkdir(parents=True, exist_ok=True)
    flat(documents, dtype).tofile(folder / f"{name}.bin")
    np.save(folder / f"{name}.offsets.npy", offsets_of(documents))
    return {"dtype": dtype}


def write_npy(folder: Path, documents: Ids, dtype: str = "int64", name: str = "a") -> dict[str, Any]:
    """Writes NAME.npy and its offsets; returns the fields of its dataset."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{name}.npy", flat(documents, dtype))
    np.save(folder / f"{name}.offsets.npy", offsets_of(documents).astype(np.uint64))
    return {}


def write_megatron(
    folder: Path,
    documents: Ids,
    dtype: str = "int32",
    name: str = "a",
    *,
    sequences: int = 1,
    order: Callable[[int], Sequence[int]] = range,
    gap: int = 0,
) -> dict[str, Any]:
    """Writes NAME.bin and NAME.idx; returns the fields of the dataset.

    Each document is cut into `sequences`; these lie in the file in `order`, with `gap` bytes ahead of each.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts: list[Any] = []
    edges = [0]
    for ids in documents:
        parts += [part for part in np.array_split(np.array(ids, dtype), sequences) if len(part)]
        edges.append(len(parts))
    places, data = [0] * len(parts), b""
    for number in order(len(parts)):
        data += bytes(gap)
        places[number] = len(data)
        data += parts[number].tobytes()
    (folder / f"{name}.bin").write_bytes(data)
    sizes = [len(part) for part in parts]
    (folder / f"{name}.idx").write_bytes(index(dtype, sizes, places, edges))
    return {}


def index(dtype: str, sizes: Sequence[int], places: Sequence[int], edges: Sequence[int]) -> bytes:
    """Returns the bytes of an index of Megatron."""
    head = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, CODES[dtype], len(sizes), len(edges))
    columns = np.array(sizes, "<i4"), np.array(places, "<i8"), np.array(edges, "<i8")
    return head + b"".join(column.tobytes() for column in columns)


def write_parquet(folder: Path, documents: Sequence[Any], kind: Any) -> dict[str, Any]:
    """Writes a Parquet file with a column of lists of type `kind`, in row groups of 7."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table({"input_ids": pa.array(documents, kind), "id": range(len(documents))})
    pq.write_table(table, folder / "a.parquet", row_group_size=7)
    return {"tokens": "input_ids"}


def write_jsonl(folder: Path, documents: Sequence[Any]) -> dict[str, Any]:
    """Writes a JSONL file with the field `ids`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.jsonl").write_text("".join(json.dumps({"ids": ids}) + "\n" for ids in documents))
    return {"tokens": "ids"}


Write = Callable[[Path, Ids], dict[str, Any]]
FORMATS: dict[str, Write] = {
    "jsonl": write_jsonl,
    "list of int32": lambda folder, documents: write_parquet(folder, documents, pa.list_(pa.int32())),
    "list of uint16": lambda folder, documents: write_parquet(folder, documents, pa.list_(pa.uint16())),
    "large list": lambda folder, documents: write_parquet(folder, documents, pa.large_list(pa.int64())),
    "bin of uint16": write_bin,
    "bin of uint32": lambda folder, documents: write_bin(folder, documents, "uint32"),
    "npy of int64": write_npy,
    "npy of uint16": lambda folder, documents: write_npy(folder, documents, "uint16"),
    "megatron": write_megatron,
    "megatron, three sequences": lambda folder, documents: write_megatron(folder, documents, sequences=3),
    "megatron, backwards": lambda folder, documents: write_megatron(
        folder, documents, "uint16", sequences=2, order=reversed_order, gap=2
    ),
}


def reversed_order(count: int) -> Sequence[int]:
    """Returns the numbers below `count`, the last first."""
    return range(count - 1, -1, -1)
