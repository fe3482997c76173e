"""Tests of `zephon.readers.memory`, and of the choice of a reader."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.readers import RandomReader, open_reader


def opened(*documents: Any) -> RandomReader:
    return open_reader(Dataset.from_documents("mem", documents), base=Path(), cache=Path(), spool_bytes=0)


def texts(reader: RandomReader, addresses: list[tuple[int, int]], max_bytes: int = 1 << 40) -> Any:
    table = np.array(addresses, np.int64)
    return reader.texts(table[:, 0], table[:, 1], max_bytes)


def test_documents_come_in_chunks_of_a_thousand() -> None:
    reader = opened(*[str(i) for i in range(2001)])
    assert reader.chunks().num_documents.tolist() == [1000, 1000, 1]
    assert reader.chunks().num_bytes.tolist() == [10 + 180 + 2700, 4000, 4]
    assert texts(reader, [(2, 0), (0, 7), (1, 999)]).texts == ["2000", "7", "1999"]
    assert reader.where(1, 5) == ("mem", 1005)


@pytest.mark.parametrize(("max_bytes", "num"), [(0, 1), (1, 1), (2, 1), (3, 2), (5, 3), (6, 3), (99, 4)])
def test_reading_stops_with_the_document_that_reaches_the_bytes(max_bytes: int, num: int) -> None:
    reader = opened("\u00e9", "", "abc", "d")
    found = texts(reader, [(0, 0), (0, 3), (0, 2), (0, 1)], max_bytes)
    assert found.texts == ["\u00e9", "d", "abc", ""][:num]


def test_what_is_no_text_is_a_fault() -> None:
    found = texts(opened("a", None, 7, "", ["x"]), [(0, i) for i in range(5)])
    assert found.texts == ["a", "", "", "", ""]
    assert [(i, fault.kind, fault.got) for i, fault in found.faults] == [
        (1, "null", "null"),
        (2, "not_text", "7"),
        (4, "not_text", "['x']"),
    ]


def test_lone_surrogates_are_replaced() -> None:
    found = texts(opened("a\ud800b", "\udc00\U0001f600", "\0"), [(0, 2), (0, 1), (0, 0)])
    assert found.texts == ["\0", "\ufffd\U0001f600", "a\ufffdb"]
    assert found.num_replaced == [1, 2]


def test_the_identity_is_of_the_texts_and_their_bounds() -> None:
    identity = opened("ab", "c").identity()
    assert identity["kind"] == "memory"
    assert identity["num_documents"] == 2
    assert identity == opened("ab", "c").identity()
    others: list[tuple[Any, ...]] = [("a", "bc"), ("c", "ab"), ("ab",), ("ab", "c", ""), ("ab", "c", None)]
    digests = {opened(*documents).identity()["sha256"] for documents in others}
    assert len(digests | {identity["sha256"]}) == len(others) + 1


def test_a_reader_travels_to_workers() -> None:
    reader = pickle.loads(pickle.dumps(opened("a", "b", None)))
    found = texts(reader, [(0, 2), (0, 1)])
    assert found.texts == ["", "b"]
    assert [i for i, _ in found.faults] == [0]
    reader.close()


def test_a_dataset_without_documents_is_refused() -> None:
    with pytest.raises(DataError, match="dataset 'mem' has no records"):
        opened()


def opened_path(folder: Path, **options: Any) -> RandomReader:
    dataset = Dataset.from_path("web", "data", **options)
    return open_reader(dataset, base=folder, cache=folder / "cache", spool_bytes=1 << 30)


@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".JSONL"])
def test_the_kind_is_found_from_the_names(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"a{suffix}").write_text('{"text": "a"}')
    assert opened_path(tmp_path).identity()["kind"] == "jsonl"


@pytest.mark.parametrize("name", ["README.md", "b.csv.gz", "b.parquet", "b.parquet.gz", "b"])
def test_mixed_and_unknown_names_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text('{"text": "a"}')
    (tmp_path / "data" / name).write_text("?")
    with pytest.raises(DataError, match=r"do not say one kind\n  got:  .*1 x .jsonl") as caught:
        opened_path(tmp_path)
    assert ".pq (parquet)" in str(caught.value)
    assert f"1 x {''.join(Path(name).suffixes) or 'no suffix'}" in str(caught.value)


def test_a_kind_that_is_given_wins_over_the_names(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "lines.txt").write_text('{"text": "a"}\n')
    assert texts(opened_path(tmp_path, kind="jsonl"), [(0, 0)]).texts == ["a"]


def test_an_unknown_kind_lists_the_known(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(DataError, match=r"no reader 'tar'(.|\n)*jsonl, megatron, memory, parquet"):
        opened_path(tmp_path, kind="tar")
