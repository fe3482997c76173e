"""Tests of `zephon.selection`: `where`, `limit` and sorted orders, over files and through the loader."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers import digests, make_recipe, open_small
from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.indexing import index_recipe
from zephon.opened import make_order, open_dataset
from zephon.order import Order
from zephon.readers import Chunks, RandomReader
from zephon.readers.ranges import ByFile
from zephon.readers.subset import PrefixReader, SubsetReader, chunks_of_whole
from zephon.selection import rank

RECORDS = [
    {"text": f"d{i}", "score": i % 5, "lang": "en" if i % 3 else "de", "meta": {"year": 2000 - i}}
    for i in range(40)
]


def write(folder: Path, kind: str, records: Sequence[dict[str, Any]] = RECORDS, files: int = 2) -> None:
    """Writes the records as `files` files of a kind, Parquet in row groups of 7."""
    size = -(-len(records) // files)
    for number in range(files):
        part = list(records[number * size : (number + 1) * size])
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(part), folder / f"{number}.parquet", row_group_size=7)
        else:
            (folder / f"{number}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in part))


def texts_of(reader: RandomReader) -> list[str]:
    """Returns all documents of a reader, in file order."""
    counts = reader.chunks().num_documents
    chunk = np.repeat(np.arange(len(counts)), counts)
    record = np.concatenate([np.arange(count) for count in counts])
    return reader.texts(chunk, record, 1 << 40).texts


def opened(folder: Path, **fields: Any) -> RandomReader:
    """Returns the reader of the dataset over `folder` with these fields."""
    recipe = make_recipe(datasets=(Dataset.from_path("web", str(folder / "[0-9]*"), **fields),), base=folder)
    return open_dataset(recipe, recipe.datasets[0], cache=folder / "cache", spool_bytes=1 << 30).reader


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("where", "limit", "expected"),
    [
        ("score >= 3", None, [i for i in range(40) if i % 5 >= 3]),
        ("score == 4 and lang == 'de'", None, [i for i in range(40) if i % 5 == 4 and not i % 3]),
        ("meta.year <= 1962", None, [38, 39]),
        ("score >= 3", 5, [3, 4, 8, 9, 13]),
        ("", 23, list(range(23))),
        ("", 1, [0]),
        ("", 1000, list(range(40))),
    ],
)
def test_the_documents_that_condition_and_limit_leave(
    tmp_path: Path, kind: str, where: str, limit: int | None, expected: list[int]
) -> None:
    write(tmp_path, kind)
    reader = opened(tmp_path, where=where, limit=limit)
    assert texts_of(reader) == [f"d{i}" for i in expected]
    counts = reader.chunks().num_documents
    files = [reader.where(c, r) for c in range(len(counts)) for r in range(int(counts[c]))]
    assert files == [(f"{i // 20}.{kind}", i % 20) for i in expected]


def test_a_condition_that_nothing_meets_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "jsonl")
    with pytest.raises(
        DataError, match=r"no document matches `where`\n  got:  'score > 9', which none of 40"
    ):
        opened(tmp_path, where="score > 9")


def test_a_column_that_is_not_there_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "parquet")
    with pytest.raises(
        DataError, match=r"[01].parquet has no column 'scored'\n  got:  the columns text, score"
    ):
        opened(tmp_path, where="scored > 3")


def test_memory_has_no_columns() -> None:
    with pytest.raises(ValueError, match=r"'web': `where` is of files, and its documents are in memory"):
        Dataset(name="web", kind="memory", documents=("a",), where="x > 1")


def test_columns_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "jsonl")
    first = texts_of(opened(tmp_path, where="score >= 3"))
    monkeypatch.setattr("zephon.selection._matches", None)
    assert texts_of(opened(tmp_path, where="score >= 3")) == first


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("order", "where", "expected"),
    [
        ("sorted:score", "", sorted(range(40), key=lambda i: i % 5)),
        ("sorted:-score", "", sorted(range(40), key=lambda i: -(i % 5))),
        ("sorted:meta.year", "", list(range(39, -1, -1))),
        (
            "sorted:lang",
            "score == 1",
            sorted([i for i in range(40) if i % 5 == 1], key=lambda i: bool(i % 3)),
        ),
    ],
)
def test_a_sorted_order_reads_by_the_column(
    tmp_path: Path, kind: str, order: str, where: str, expected: list[int]
) -> None:
    write(tmp_path, kind)
    dataset = Dataset.from_path("web", str(tmp_path / f"*.{kind}"), order=order, where=where)
    recipe = make_recipe(datasets=(dataset,), base=tmp_path)
    one = open_dataset(recipe, dataset, cache=tmp_path / "cache", spool_bytes=1 << 30)
    reader = one.reader
    for _ in range(2):  # the second is mapped from the cache
        placed = make_order(recipe, dataset, one, cache=tmp_path / "cache")
        found = {}
        for lane in range(4):
            address = placed.locate(lane, 0, len(expected) // 4)
            texts = reader.texts(address.chunk, address.record, 1 << 40).texts
            found |= {4 * i + lane: text for i, text in enumerate(texts)}
        assert [found[i] for i in range(len(found))] == [f"d{i}" for i in expected[: len(found)]]


@pytest.mark.parametrize("fields", [{}, {"where": "score >= 1", "limit": 20}])
def test_a_sorted_order_reads_a_compressed_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    monkeypatch.setattr("zephon.readers.lines.CHUNK_BYTES", 256)
    write(tmp_path, "jsonl")
    for path in sorted(tmp_path.glob("*.jsonl")):
        (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    ranked: list[list[int]] = []
    passes: list[int] = []
    raws = ByFile._chunks

    def counted(self: Any, number: int) -> Any:
        passes.append(number)
        return raws(self, number)

    monkeypatch.setattr(ByFile, "_chunks", counted)
    for suffix in ("jsonl", "jsonl.gz"):
        dataset = Dataset.from_path("web", str(tmp_path / f"*.{suffix}"), order="sorted:-score", **fields)
        recipe = make_recipe(datasets=(dataset,), base=tmp_path)
        one = open_dataset(recipe, dataset, cache=tmp_path / suffix, spool_bytes=1 << 30)
        assert len(one.reader.chunks().num_documents) >= 6
        passes.clear()
        found = rank(dataset, one.reader, tmp_path / suffix)
        assert found is not None
        ranked.append(found.tolist())
    assert sorted(passes) == [0, 1]
    assert ranked[0] == ranked[1]


def test_a_selection_keeps_the_numbers_of_its_documents_and_no_more() -> None:
    counts = np.array([3, 0, 4, 2, 5], np.int32)
    reader: Any = SimpleNamespace(
        name="web", chunks=lambda: Chunks(counts, 10 * counts), where=lambda chunk, record: (chunk, record),
        texts=lambda chunk, record, _: list(zip(chunk.tolist(), record.tolist(), strict=True)),
    )  # fmt: skip
    documents = np.array([1, 2, 5, 8, 13])
    part = SubsetReader(reader, documents)
    assert part.documents is documents
    arrays = [kept for kept in vars(part).values() if isinstance(kept, np.ndarray)]
    assert all(kept is documents or len(kept) < len(documents) for kept in arrays)
    assert part.chunks().num_documents.tolist() == [2, 1, 1, 1]
    assert [part.inside(chunk)[1].tolist() for chunk in range(4)] == [[1, 2], [2], [1], [4]]
    places: Any = [(0, 2), (0, 1), (2, 2), (4, 4)]
    chunk, record = np.array([0, 0, 1, 3]), np.array([1, 0, 0, 0])
    assert part.texts(chunk, record, 1) == places
    assert [part.where(c, r) for c, r in zip(chunk.tolist(), record.tolist(), strict=True)] == places
    assert chunks_of_whole(SubsetReader(part, np.array([2, 4]))).tolist() == [2, 4]
    assert chunks_of_whole(PrefixReader(part, 3)).tolist() == [0, 2]


def test_documents_without_a_value_come_last(tmp_path: Path) -> None:
    records = [{"text": f"d{i}", "score": None if i in (1, 4) else float(-i)} for i in range(8)]
    write(tmp_path, "parquet", records)
    for order, expected in (
        ("sorted:score", [7, 6, 5, 3, 2, 0, 1, 4]),
        ("sorted:-score", [0, 2, 3, 5, 6, 7, 1, 4]),
    ):
        dataset = Dataset.from_path("web", str(tmp_path / "*.parquet"), order=order)
        recipe = make_recipe(datasets=(dataset,), base=tmp_path, global_batch_size=1)
        small = open_small(recipe)
        address = small.locate(0, 0, np.arange(8))
        assert small.readers[0].texts(address.chunk, address.record, 1 << 40).texts == [
            f"d{i}" for i in expected
        ]
        small.close()


def test_a_selection_is_read_alike_on_any_number_of_ranks(tmp_path: Path) -> None:
    write(tmp_path, "parquet")
    part = Dataset.from_path("web", str(tmp_path / "*.parquet"), where="score >= 1", limit=30)
    by_score = Dataset.from_path("best", str(tmp_path / "*.parquet"), order="sorted:-score")
    small = open_small(make_recipe(datasets=(part, by_score), base=tmp_path))
    one = digests(small, 6)
    assert digests(small, 6, 2) == one
    assert digests(small, 6, 4) == one
    small.close()


@pytest.mark.parametrize("catalogue", ["", "made"])
def test_held_out_parts_of_one_size_are_each_sorted(tmp_path: Path, catalogue: str) -> None:
    write(tmp_path, "parquet", [{"text": f"d{i}", "score": i * 7 % 60} for i in range(60)])
    whole = Dataset.from_path("web", str(tmp_path / "*.parquet"), order="sorted:score")
    for seed in range(2):
        part = whole.holdout(documents=10, seed=seed)[1]
        recipe = make_recipe(datasets=(part,), base=tmp_path, global_batch_size=1)
        if catalogue:
            index_recipe(recipe, str(tmp_path / catalogue), cache=tmp_path / "cache")
        small = open_small(replace(recipe, catalogue=catalogue), tmp_path / "cache")
        order = small.orders[0]
        assert isinstance(order, Order)
        found = order.locate(0, 0, 10)
        texts = small.readers[0].texts(found.chunk, found.record, 1 << 20).texts
        scores = [int(text[1:]) * 7 % 60 for text in texts]
        assert scores == sorted(scores)
        small.close()


def ranks(folder: Path, order: str) -> list[int]:
    """Returns the documents of the dataset over `folder` in this order."""
    recipe = make_recipe(
        datasets=(Dataset.from_path("web", str(folder / "[0-9]*"), order=order),), base=folder
    )
    [dataset] = recipe.datasets
    one = open_dataset(recipe, dataset, cache=folder / "cache", spool_bytes=1 << 30)
    found = rank(dataset, one.reader, folder / "cache")
    assert found is not None
    return [int(number) for number in found]


VARIED: list[dict[str, Any]] = [
    {"text": "d0", "n": 3, "meta": {"year": 7}},
    {"text": "d1", "n": 2.5},
    {"text": "d2", "meta": None},
    {"text": "d3", "n": 1, "meta": {"lang": "\ud800"}},
]


def test_types_of_json_that_differ_by_chunk(tmp_path: Path) -> None:
    write(tmp_path, "jsonl", VARIED, files=4)
    assert texts_of(opened(tmp_path, where="meta.year == 7")) == ["d0"]
    assert texts_of(opened(tmp_path, where="meta.year is None")) == ["d1", "d2", "d3"]
    assert texts_of(opened(tmp_path, where="meta.lang == '\ufffd'")) == ["d3"]
    assert texts_of(opened(tmp_path, where="n >= 2.5")) == ["d0", "d1"]
    assert ranks(tmp_path, "sorted:n") == [3, 1, 0, 2]
    assert ranks(tmp_path, "sorted:meta.year") == [0, 1, 2, 3]


def test_whole_numbers_that_need_all_64_bits_are_sorted(tmp_path: Path) -> None:
    write(tmp_path, "jsonl", [{"text": "a", "n": n} for n in (2**63, 5, 2**64 - 1)], files=3)
    assert ranks(tmp_path, "sorted:-n") == [2, 0, 1]


@pytest.mark.parametrize("values", [(2**63, -1), (2**63 + 1, 0.5), ("a", 1), (1, True), ({"a": 1}, 1)])
def test_values_that_cannot_be_sorted_together_name_the_file(tmp_path: Path, values: tuple[Any, Any]) -> None:
    write(tmp_path, "jsonl", [{"text": "a", "n": value} for value in values])
    with pytest.raises(
        DataError, match=r"'web': its documents cannot be sorted by 'n'\n  got:  .*[01].jsonl"
    ):
        ranks(tmp_path, "sorted:n")


def test_a_condition_that_a_file_does_not_fit_names_it(tmp_path: Path) -> None:
    write(tmp_path, "jsonl", [{"text": "a", "n": 1}, {"text": "b", "n": "x"}])
    with pytest.raises(DataError, match=r"'web': column 'n' cannot be compared(.|\n)*file: .*1.jsonl"):
        opened(tmp_path, where="n > 0")


def test_a_field_that_parquet_lacks_cannot_be_sorted_by(tmp_path: Path) -> None:
    write(tmp_path, "parquet")
    with pytest.raises(DataError, match=r"'meta.age'\n  got:  0.parquet, which has no such field"):
        ranks(tmp_path, "sorted:meta.age")


@pytest.mark.parametrize("damage", ["empty", "flip", "cut"])
def test_a_damaged_ranking_is_made_again(tmp_path: Path, damage: str) -> None:
    write(tmp_path, "jsonl")
    first = ranks(tmp_path, "sorted:score")
    [path] = sorted((tmp_path / "cache").rglob("*.ranked"))
    whole = bytearray(path.read_bytes())
    whole[40] ^= 1
    path.write_bytes({"empty": b"", "flip": bytes(whole), "cut": bytes(whole[:-8])}[damage])
    assert ranks(tmp_path, "sorted:score") == first


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_column_that_is_there_twice_is_refused(tmp_path: Path, kind: str) -> None:
    table = pa.table([["a", "b"], [1, 2], [3, 4]], names=["text", "n", "n"])
    if kind == "parquet":
        pq.write_table(table, tmp_path / "0.parquet")
    else:
        with pa.OSFile(str(tmp_path / "0.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
            out.write_table(table)
    said = rf"'web': .*0.{kind} has more than one column 'n'"
    with pytest.raises(DataError, match=said):
        opened(tmp_path, where="n > 0")
    with pytest.raises(DataError, match=said):
        ranks(tmp_path, "sorted:n")


@pytest.mark.parametrize("where", ["scor >= 3", "scor is None", "score >= 1 or scor == 2"])
def test_a_column_that_no_record_of_jsonl_has_is_refused(tmp_path: Path, where: str) -> None:
    write(tmp_path, "jsonl")
    for _ in range(2):  # nothing that is kept lets it pass the second time
        with pytest.raises(DataError, match=r"'web': no record has a value in the column 'scor'"):
            opened(tmp_path, where=where)


def test_a_column_that_few_records_have_is_taken(tmp_path: Path) -> None:
    write(tmp_path, "jsonl", [*RECORDS[:39], RECORDS[39] | {"rare": 1}])
    assert texts_of(opened(tmp_path, where="rare == 1")) == ["d39"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_documents_cannot_be_sorted_by_what_none_has(tmp_path: Path, kind: str) -> None:
    write(tmp_path, kind, [record | {"empty": None} for record in RECORDS])
    dataset = Dataset.from_path("web", str(tmp_path / f"*.{kind}"), order="sorted:empty")
    with pytest.raises(DataError, match=r"cannot be sorted by 'empty'\n  got:  no document that has a value"):
        open_small(make_recipe(datasets=(dataset,), base=tmp_path))
