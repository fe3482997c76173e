"""What readers have besides their role: every built-in kind, and attributes that only have the names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import token_data
from tests.readers import test_formats
from zephon import Chunks, Column, Dataset, Origin
from zephon.errors import DataError
from zephon.paths import list_files
from zephon.readers import find_factory, parts
from zephon.selection import values_of
from zephon.spool import Spool

ASKED = {
    "table": parts.table_of,
    "random": parts.random_access,
    "columns": parts.with_columns,
    "by file": parts.by_file,
    "columns by file": parts.columns_by_file,
    "in place": parts.in_place,
    "pruning": parts.pruning,
    "records": parts.record_source,
}
FOUND = {
    "jsonl": {"table", "random", "columns"},
    "jsonl_gz": {"table", "columns", "by file", "columns by file"},
    "parquet": {"table", "columns", "pruning"},
    "arrow_stream": {"table", "columns", "in place"},
    "csv": {"table", "columns"},
    "tsv_gz": {"table", "columns", "by file", "columns by file"},
    "text": {"table", "random"},
}


def parts_of(reader: object) -> set[str]:
    return {name for name, ask in ASKED.items() if ask(reader) is not None}


def opened(dataset: Dataset, kind: str, cache: Path) -> Any:
    files = list_files(dataset.paths, cache)
    return find_factory(dataset, kind)(Origin(dataset=dataset, files=files, cache=cache))


@pytest.mark.parametrize("name", FOUND)
def test_each_format_has_its_parts(name: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for file, data in test_formats.FORMATS[name](tmp_path).items():
        (tmp_path / "data" / file).write_bytes(data)
    kind = name.partition("_")[0].replace("tsv", "csv")
    dataset = Dataset.from_path("web", tmp_path / "data")
    assert parts_of(opened(dataset, kind, tmp_path / "cache")) == FOUND[name]
    if kind in ("jsonl", "csv"):
        stream = Dataset.from_path("web", tmp_path / "data", stream=True)
        assert parts_of(opened(stream, kind, tmp_path / "cache")) == {"records"}


def test_a_file_beside_another_decides_the_name_of_a_spool_file(tmp_path: Path) -> None:
    def key() -> list[object]:
        return parts.spool_key(opened(Dataset.from_path("web", tmp_path / "a.bin"), "megatron", tmp_path), 0)

    token_data.write_megatron(tmp_path, [[1, 2], [3]], order=token_data.reversed_order, sequences=2)
    before = key()
    assert before
    assert key() == before
    index = tmp_path / "a.idx"
    os.utime(index, (1, 1))
    assert key() != before


class Named:
    """Has attributes of all the names, and they are something else."""

    table, reader, name = "a table of mine", "a reader of mine", "named"
    values = records = column = sample = texts = "mine"

    def _mine(self, *_: object) -> str:
        return "mine"

    read_file = file_values = view = check = close = without = spool_key = where = _mine


def test_names_alone_are_no_parts(tmp_path: Path) -> None:
    reader = Named()
    assert parts_of(reader) == set()
    assert parts.spool_key(reader, 0) == []
    assert parts.source_of(reader) is reader
    with pytest.raises(DataError, match="its format has no columns"):
        values_of("web", reader, 0, ("id",))  # type: ignore[arg-type]


def test_the_source_of_a_spool_is_its_reader(tmp_path: Path) -> None:
    class Whole(Named):
        def chunks(self) -> Any:
            return Chunks(np.array([2]), np.array([9]))

        def read(self, chunk: int) -> Any:
            return Column.from_values(["a", "b"])

        def identity(self) -> dict[str, Any]:
            return {"kind": "whole", "num_documents": 2, "files": []}

    reader = Whole()
    origin = Origin(dataset=Dataset.from_path("web", "x", kind="whole"), files=[], cache=tmp_path)
    spool = Spool(reader, origin, limit_bytes=1 << 20)
    assert parts.source_of(spool) is reader
    assert spool.texts(np.array([0, 0]), np.array([1, 0]), 99).texts == ["b", "a"]
    assert spool.where(0, 1) == ("web", 1)
