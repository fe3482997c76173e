"""Tests of `zephon.catalogue` and `zephon.indexing`: the same batches, and nothing listed or opened."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers import digests, loaders, make_recipe, open_small, take_steps, union, write_tokenizer
from zephon import indexing, opened, paths
from zephon.catalogue import MANIFEST, open_catalogue
from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.indexing import index_recipe
from zephon.lock import lock_hashes
from zephon.readers.jsonl import JsonlReader
from zephon.recipe import Recipe
from zephon.stages import Constant
from zephon.tokenizer import Tokenize

pytestmark = pytest.mark.usefixtures("probed_once")


def write(folder: Path) -> None:
    """Writes 3 JSONL files, 2 Parquet files and 4 more JSONL files to stream."""
    for name in ("lines", "table", "stream"):
        (folder / name / "deep").mkdir(parents=True)
    for number in range(3):
        lines = [json.dumps({"text": f"l{number}-{i} ", "score": i % 4}) + "\n" for i in range(20)]
        (folder / "lines" / f"{number}.jsonl").write_text("".join(lines))
    for number in range(2):
        rows = [{"text": f"t{number}-{i} ", "score": i % 3} for i in range(30)]
        pq.write_table(
            pa.Table.from_pylist(rows), folder / "table" / "deep" / f"{number}.pq", row_group_size=8
        )
    for number in range(4):
        (folder / "stream" / f"{number}.jsonl").write_text(f'{{"text": "s{number}"}}\n' * 5)


def recipe_of(folder: Path, **fields: Any) -> Recipe:
    """Returns a recipe over what `write` wrote: whole, by a condition, sorted, streamed, and in memory."""
    datasets = (
        Dataset.from_path("lines", "lines/*.jsonl"),
        Dataset.from_path("table", "table"),
        Dataset.from_path("best", "lines/*.jsonl", where="score >= 2", limit=25),
        Dataset.from_path("sorted", ["table/deep/0.pq", "table/deep/1.pq"], order="sorted:-score"),
        Dataset.from_path("stream", "stream/*.jsonl", stream=True),
        Dataset.from_documents("memory", ["m0 ", "m1 "]),
    )
    return make_recipe(datasets=datasets, base=folder, **fields)


@pytest.fixture
def indexed(tmp_path: Path) -> Recipe:
    """Gives the recipe with its catalogue, in a folder named `index`."""
    write(tmp_path)
    recipe = recipe_of(tmp_path)
    _, found, left_out = index_recipe(recipe, str(tmp_path / "index"), cache=tmp_path / "made")
    assert [(one.name, one.kind, one.num_files, one.num_documents) for one in found] == [
        ("lines", "jsonl", 3, 60),
        ("table", "parquet", 2, 60),
        ("best", "jsonl", 3, 60),
        ("sorted", "parquet", 2, 60),
        ("stream", "jsonl", 4, None),
    ]
    assert left_out == ["memory"]
    return replace(recipe, catalogue="index")


def small(recipe: Recipe, cache: Path) -> opened.Opened:
    """Returns what `open_small` does, with the catalogue of the recipe."""
    return open_small(recipe, cache)


def test_the_batches_are_those_of_a_run_without_it(indexed: Recipe, tmp_path: Path) -> None:
    plain = open_small(replace(indexed, catalogue=""), tmp_path / "a")
    listed = open_small(indexed, tmp_path / "b")
    one = digests(plain, 12)
    assert digests(listed, 12) == one
    assert digests(listed, 12, 4, executor="threads", workers=2) == one
    assert lock_hashes(listed.lock) == lock_hashes(plain.lock)
    assert len(listed.lock["catalogue"]) == 64
    with loaders(plain) as ranks:
        take_steps(ranks, 3)
        state = union(ranks)
    with loaders(listed, 2) as ranks:
        for loader in ranks:
            loader.load_state_dict(state)
        take_steps(ranks, 1)
    plain.close()
    listed.close()


def test_nothing_is_listed_and_no_file_opened(
    indexed: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "elsewhere"
    for name in ("lines", "table", "stream"):
        shutil.move(tmp_path / name, data / name)
    monkeypatch.setattr(paths, "_find", None)
    datasets = tuple(d for d in indexed.datasets if d.name not in ("memory", "stream"))
    recipe = make_recipe(datasets=datasets, base=tmp_path, catalogue="index")
    open_small(recipe, tmp_path / "b").close()  # none of the files is there


def test_data_that_moved_as_a_whole(indexed: Recipe, tmp_path: Path) -> None:
    expected = digests(open_small(indexed, tmp_path / "a"), 6)
    for name in ("lines", "table", "stream"):
        shutil.move(tmp_path / name, tmp_path / "moved" / name)
    moved = tuple(
        d if d.documents else replace(d, paths=tuple(f"moved/{path}" for path in d.paths))
        for d in indexed.datasets
    )
    assert digests(open_small(replace(indexed, datasets=moved), tmp_path / "b"), 6) == expected


@pytest.mark.parametrize("name", ["lines/1.jsonl", "table/deep/1.pq"])
@pytest.mark.parametrize("how", ["same size", "longer", "gone"])
def test_a_file_that_is_not_what_was_indexed_is_an_error_when_it_is_read(
    indexed: Recipe, tmp_path: Path, name: str, how: str
) -> None:
    path = tmp_path / name
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "longer":
        path.write_bytes(data + b"\n")
    else:
        path.write_bytes(b"#" + data[1:])
    listed = open_small(indexed, tmp_path / "b")
    with pytest.raises(DataError, match=rf"{path.name} changed since it was listed\n.*\n.*\n.*zephon index"):
        digests(listed, 40)
    listed.close()


@pytest.mark.parametrize("number", range(4))
def test_so_is_one_that_is_streamed(indexed: Recipe, tmp_path: Path, number: int) -> None:
    path = tmp_path / "stream" / f"{number}.jsonl"
    path.write_text(path.read_text().replace("s", "#", 1))
    listed = open_small(indexed, tmp_path / "b")
    with pytest.raises(DataError, match=rf"{path.name} changed since it was listed\n"):
        digests(listed, 40)
    listed.close()


def test_a_stream_keeps_samples_of_all_files_and_the_lock_of_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zephon.streaming.SAMPLED_FILES", 2)
    write(tmp_path)
    recipe = make_recipe(datasets=(recipe_of(tmp_path).datasets[4],), base=tmp_path)
    index_recipe(recipe, str(tmp_path / "index"), cache=tmp_path / "made")
    plain = open_small(recipe, tmp_path / "a")
    listed = open_small(replace(recipe, catalogue="index"), tmp_path / "b")
    assert len(plain.lock["data"]["stream"]["samples"]) == 2
    assert lock_hashes(listed.lock) == lock_hashes(plain.lock)
    found = open_catalogue("index", tmp_path, tmp_path / "b").find(recipe.datasets[0], tmp_path)
    assert found is not None
    assert len(set(found.table.samples) - {""}) == 4


def test_another_description_of_a_dataset_is_refused(indexed: Recipe, tmp_path: Path) -> None:
    other = (replace(indexed.datasets[2], where="score >= 1"),)
    recipe = make_recipe(datasets=other, base=tmp_path, catalogue="index")
    with pytest.raises(
        DataError,
        match=r"'best' is not the one that the catalogue 'index' lists\n  got:  where = 'score >= 1'",
    ):
        open_small(recipe)


def test_a_dataset_that_is_not_listed_is_opened_as_ever(indexed: Recipe, tmp_path: Path) -> None:
    datasets = (Dataset.from_path("new", "lines/*.jsonl"),)
    plain = open_small(make_recipe(datasets=datasets, base=tmp_path))
    listed = open_small(make_recipe(datasets=datasets, base=tmp_path, catalogue="index"))
    assert digests(listed, 4) == digests(plain, 4)


@pytest.mark.parametrize("what", ["no folder", "cut file", "no file", "no manifest", "other version"])
def test_a_broken_catalogue_is_refused(indexed: Recipe, tmp_path: Path, what: str) -> None:
    folder = tmp_path / "index"
    if what == "no folder":
        shutil.rmtree(folder)
    elif what == "cut file":
        [path] = sorted(folder.glob("0.chunks.*"))
        path.write_bytes(path.read_bytes()[:-8])
    elif what == "no file":
        sorted(folder.glob("2.chosen.*"))[0].unlink()
    elif what == "no manifest":
        (folder / MANIFEST).write_text("{}")
    else:
        manifest = json.loads((folder / MANIFEST).read_text())
        (folder / MANIFEST).write_text(json.dumps(manifest | {"version": 99}))
    with pytest.raises(
        DataError, match=r"catalogue 'index' cannot be used\n  got:  .*\n  rule: .*\n  cure: run `zep"
    ):
        open_small(indexed)


def edited(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Edits the entry `lines` of the manifest in `folder`."""
    manifest = json.loads((folder / MANIFEST).read_text())
    edit(manifest["datasets"]["lines"])
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "edit",
    [
        lambda entry: entry.clear(),
        lambda entry: entry.pop("cuts"),
        lambda entry: entry.update(cuts=[0, 0]),
        lambda entry: entry.update(cuts=["1"]),
        lambda entry: entry.update(files="0.files.arrow"),
        lambda entry: entry["files"].pop("sha256"),
        lambda entry: entry["files"].update(name="../" + entry["files"]["name"]),
        lambda entry: entry["files"].update(name=entry["chunks"]["name"]),
        lambda entry: entry["files"].update(name="/etc/passwd"),
        lambda entry: entry.update(commits={"hf://datasets/a/b": "main/../../../c/d"}),
    ],
)
def test_a_manifest_of_another_shape_is_refused(
    indexed: Recipe, tmp_path: Path, edit: Callable[[dict[str, Any]], Any]
) -> None:
    edited(tmp_path / "index", edit)
    with pytest.raises(DataError, match=r"cannot be used\n  got:  catalogue.json: dataset 'lines' is not as"):
        open_small(indexed)
    assert not (tmp_path / ".cache" / "catalogues").exists()


@pytest.mark.parametrize("manifest", ["[1]", "null", '{"version": 1}', '{"version": 1, "datasets": []}', "{"])
def test_a_manifest_that_is_none_is_refused(indexed: Recipe, tmp_path: Path, manifest: str) -> None:
    (tmp_path / "index" / MANIFEST).write_text(manifest)
    with pytest.raises(DataError, match=r"cannot be used\n  got:  catalogue.json (is no catalogue's|has no)"):
        open_small(indexed)


def forged(folder: Path, column: str, text: str) -> None:
    """Puts `text` into a column of the files of `lines`, and the hash of that into the manifest."""

    def edit(entry: dict[str, Any]) -> None:
        with pa.memory_map(str(folder / entry["files"]["name"])) as source:
            table = pa.ipc.open_file(source).read_all()
        entries = [text, *table.column(column).to_pylist()[1:]]
        place = table.column_names.index(column)
        columns = dict(zip(table.column_names, table.columns, strict=True))
        columns[column] = pa.chunked_array([pa.array(entries, table.schema.field(place).type)])
        entry["files"] = indexing._write(
            folder, "0.files.arrow", {name: c.combine_chunks() for name, c in columns.items()}
        )

    edited(folder, edit)


@pytest.mark.parametrize("column", ["name", "below"])
@pytest.mark.parametrize("text", ["/etc/passwd", "../secret.jsonl", "deep/../../secret.jsonl", ".."])
def test_a_file_outside_of_path_is_refused(indexed: Recipe, tmp_path: Path, column: str, text: str) -> None:
    forged(tmp_path / "index", column, text)
    with pytest.raises(DataError, match=rf"'lines': the file name '{text}' leads out of `path`"):
        open_small(indexed)


def test_names_with_two_dots_in_them_are_names(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "lines" / "0.jsonl").rename(tmp_path / "lines" / "0..jsonl")
    (tmp_path / "lines" / "1.jsonl").rename(tmp_path / "lines" / "a..b.jsonl")
    recipe = make_recipe(datasets=(Dataset.from_path("lines", "lines/*.jsonl"),), base=tmp_path)
    index_recipe(recipe, str(tmp_path / "index"), cache=tmp_path / "made")
    plain, listed = open_small(recipe), open_small(replace(recipe, catalogue="index"))
    assert digests(listed, 4) == digests(plain, 4)


def test_a_folder_above_that_of_path_is_refused(indexed: Recipe, tmp_path: Path) -> None:
    edited(tmp_path / "index", lambda entry: entry.update(cuts=[2]))
    with pytest.raises(DataError, match=r"'lines': 2 parts of '.*lines/\*.jsonl' leads out of `path`"):
        open_small(indexed)


@pytest.mark.parametrize("out", ["index", "memory://catalogues/three"])
def test_a_damaged_copy_is_brought_again(
    indexed: Recipe, tmp_path: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    index_recipe(replace(indexed, catalogue=""), out, cache=tmp_path / "made")
    recipe = replace(indexed, catalogue=out)
    expected = digests(open_small(recipe, tmp_path / "b"), 4)
    [path] = (tmp_path / "b" / "catalogues").glob("*/0.chunks.*")
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
    assert digests(open_small(recipe, tmp_path / "b"), 4) == expected
    assert path.read_bytes() == data


def test_a_folder_that_is_cut_short_ends_no_run(indexed: Recipe, tmp_path: Path) -> None:
    expected = digests(open_small(indexed, tmp_path / "a"), 4)
    listed = open_small(indexed, tmp_path / "b")
    for path in (tmp_path / "index").glob("*.arrow"):
        os.truncate(path, 0)  # a map of it would be a dead process
    assert digests(listed, 4) == expected


def test_no_document_of_a_listed_dataset_is_read_at_a_launch(
    indexed: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tokenizer(tmp_path / "letters")
    indexed = replace(indexed, tokenize=Tokenize(tokenizer="letters"))
    monkeypatch.setattr("zephon.readers.jsonl.JsonlReader.texts", None)
    monkeypatch.setattr("zephon.readers.parquet.ParquetReader.read", None)
    opened.open_recipe(indexed, cache=tmp_path / "b").close()
    assert not (tmp_path / "b" / "spool").exists()


def test_a_sample_is_read_of_a_few_datasets_with_a_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    names = [f"d{number:02}" for number in range(20)]
    datasets = tuple(Dataset.from_path(name, "lines/0.jsonl") for name in names)
    weights = {name: float(name != "d03") for name in names}
    write_tokenizer(tmp_path / "letters")
    recipe = make_recipe(datasets=datasets, base=tmp_path, schedule=Constant(weights))
    recipe = replace(recipe, tokenize=Tokenize(tokenizer="letters"))
    seen: list[str] = []
    texts = JsonlReader.texts

    def noted(reader: JsonlReader, *args: Any) -> Any:
        seen.append(reader.name)
        return texts(reader, *args)

    monkeypatch.setattr(JsonlReader, "texts", noted)
    opened.open_recipe(recipe, cache=tmp_path / "a").close()
    assert sorted(seen) == [name for name in names if name != "d03"][:16]


def test_a_catalogue_that_spells_out_a_secret_is_refused(indexed: Recipe, tmp_path: Path) -> None:
    url = "https://ann:pa55word@example.org/c"
    for use in (
        lambda: replace(indexed, catalogue=url),
        lambda: index_recipe(indexed, url, cache=tmp_path / "made"),
    ):
        with pytest.raises(ValueError, match=r"must not spell out a secret") as caught:
            use()
        assert "pa55word" not in str(caught.value)
    replace(indexed, catalogue="https://${SECRET}@example.org/c")


def test_the_hash_says_what_is_in_it(indexed: Recipe, tmp_path: Path) -> None:
    first = open_catalogue("index", tmp_path, tmp_path / "cache").hash
    again, _, _ = index_recipe(
        replace(indexed, catalogue=""), str(tmp_path / "again"), cache=tmp_path / "other"
    )
    assert again == first
    (tmp_path / "lines" / "3.jsonl").write_text('{"text": "new"}\n')
    more, _, _ = index_recipe(
        replace(indexed, catalogue=""), str(tmp_path / "more"), cache=tmp_path / "other"
    )
    assert more != first


def test_a_remote_catalogue_is_brought_once(indexed: Recipe, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    plain = replace(indexed, catalogue="")
    index_recipe(plain, "memory://catalogues/one", cache=tmp_path / "made")
    recipe = replace(indexed, catalogue="memory://catalogues/one")
    expected = digests(open_small(indexed, tmp_path / "a"), 4)
    assert digests(open_small(recipe, tmp_path / "b"), 4) == expected
    memory = fsspec.filesystem("memory")
    for path in memory.ls("/catalogues/one", detail=False):
        if not path.endswith(MANIFEST):
            memory.rm(path)
    assert digests(open_small(recipe, tmp_path / "b"), 4) == expected
    memory.rm("/catalogues", recursive=True)


def test_a_table_travels_by_name(indexed: Recipe, tmp_path: Path) -> None:
    reader = open_small(indexed, tmp_path / "b").readers[0]
    data = pickle.dumps(reader)
    assert len(data) < 6000
    chunk, record = np.zeros(2, np.int64), np.arange(2)
    assert pickle.loads(data).texts(chunk, record, 1 << 20).texts == ["l0-0 ", "l0-1 "]


def test_an_index_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    recipe = recipe_of(tmp_path)
    bad = tmp_path / "table" / "deep" / "1.pq"
    data = bad.read_bytes()
    bad.write_bytes(data[:-1])
    with pytest.raises(DataError, match=r"1.pq"):
        index_recipe(recipe, str(tmp_path / "index"), cache=tmp_path / "made")
    bad.write_bytes(data)
    monkeypatch.setattr("zephon.readers.lines.record_starts", None)  # what was counted is not counted again
    index_recipe(recipe, str(tmp_path / "index"), cache=tmp_path / "made")
    assert sorted(os.listdir(tmp_path / "index"))[-1] == MANIFEST


def test_an_evaluation_reads_through_the_catalogue_of_the_training(indexed: Recipe, tmp_path: Path) -> None:
    for name in ("lines", "best", "sorted", "stream"):
        plain = open_small(replace(indexed, catalogue="").evaluation(name), tmp_path / "a")
        listed = open_small(indexed.evaluation(name), tmp_path / "b")
        assert digests(listed, 1) == digests(plain, 1)
        plain.close()
        listed.close()


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.jsonl")).write_text('{"text": "a"}\n')
    recipe = make_recipe(datasets=(Dataset.from_path("web", "*.jsonl"),), base=tmp_path)
    with pytest.raises(DataError, match=r"(?s)dataset 'web': .*udcff.jsonl cannot be listed .*not UTF-8"):
        index_recipe(recipe, str(tmp_path / "made"), cache=tmp_path / "cache")


def test_a_folder_that_takes_no_catalogue_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    (tmp_path / "made").write_text("a file")
    full = OSError(errno.ENOSPC, "No space left on device")
    for out in ("made", "full"):
        with pytest.raises(DataError, match=f"(?s)written to .*/{out}\n.*`--out`") as caught:
            index_recipe(recipe_of(tmp_path), str(tmp_path / out), cache=tmp_path / "cache")
        assert "ZEPHON_CACHE" not in str(caught.value)
        monkeypatch.setattr(indexing, "replace_any_file", lambda *_: (_ for _ in ()).throw(full))
