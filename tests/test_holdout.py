"""Documents held out: chosen by seed and name, never read by the one part, and all of the other."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.elastic.endings import run_leg
from tests.helpers import (
    INLINE,
    loaders,
    make_recipe,
    open_small,
    read,
    sized,
    take_steps,
    union,
    words,
    write_tokenizer,
)
from zephon import prepare, stream
from zephon.cli.common import Source
from zephon.cli.output import LateProgress
from zephon.dataset import Dataset, HeldOut
from zephon.errors import DataError, StateError
from zephon.holdout import choose, hold_out
from zephon.loader import Loader
from zephon.opened import Opened, open_recipe
from zephon.paths import DataFile
from zephon.prepare import Prepare, Request
from zephon.readers import ChunkTable, open_reader
from zephon.recipe import Recipe

pytestmark = pytest.mark.usefixtures("probed_once")


def write_jsonl(path: Path, documents: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))


def parts(documents: Sequence[str], count: int, seed: int = 0, **fields: Any) -> tuple[Dataset, Dataset]:
    return Dataset.from_documents("web", documents, **fields).holdout(documents=count, seed=seed)


def opened_with(dataset: Dataset, earlier: dict[str, Any] | None = None, **fields: Any) -> Opened:
    return open_small(make_recipe(datasets=(dataset,), **fields), earlier=earlier)


def documents_of(opened: Opened, lane: int, last: int) -> list[str]:
    """Returns the texts that positions [0, last) of a lane give, those without tokens left out."""
    found: list[str] = []
    work: Prepare = opened.prepare()
    position = 0
    while position < last:
        (block,) = work([Request(0, lane, position, 40)])
        assert not isinstance(block, Exception)
        passed = sum(event.number for event in block.events if event.kind == "held_out")
        assert block.end - position == len(block.positions) + passed
        ends = np.cumsum(block.lengths)
        for length, end, at in zip(block.lengths, ends, block.positions, strict=True):
            if at < last:
                found.append(read(block.tokens[end - length : end]))
        position = block.end
    return found


def test_the_choice_is_the_words_of_a_sequence() -> None:
    """Edit only when you mean to move the documents of every holdout."""
    assert choose(HeldOut(documents=5), "web", 100) == [45, 52, 2, 48, 10]
    assert choose(HeldOut(documents=5), "code", 100) == [98, 82, 44, 6, 51]
    assert choose(HeldOut(documents=3, seed=1), "web", 1 << 40) == [198134780252, 112577782900, 743115991794]
    assert choose(HeldOut(documents=4), "web", 8) == [3, 4, 0, 5]


@given(st.integers(1, 60), st.integers(0, 60), st.integers(0, 5))
def test_the_choice_has_different_documents_of_the_dataset(count: int, more: int, seed: int) -> None:
    held_out = HeldOut(documents=count, seed=seed)
    found = choose(held_out, "web", 2 * count + more)
    assert len(set(found)) == count
    assert all(0 <= number < 2 * count + more for number in found)
    assert found == choose(held_out, "web", 2 * count + more)


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_a_holdout_has_a_whole_number_of_documents(count: Any) -> None:
    with pytest.raises(ValueError, match="holdout: `documents` must be a whole number >= 1"):
        parts(words("web", 9), count)


def test_no_more_than_half_is_held_out() -> None:
    opened_with(parts(words("web", 9), 4)[0])
    with pytest.raises(DataError, match=r"5 of 9(.|\n)*at most half"):
        opened_with(parts(words("web", 9), 5)[0])


def test_a_part_is_not_split_again() -> None:
    train, _ = parts(words("web", 9), 2)
    with pytest.raises(ValueError, match="is the train part of a holdout already"):
        train.holdout(documents=1)


def test_both_parts_cannot_be_in_one_recipe() -> None:
    with pytest.raises(ValueError, match="must have different names"):
        make_recipe(datasets=parts(words("web", 9), 2))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_the_parts_are_the_whole_and_the_order_of_the_rest_stays(data: st.DataObject) -> None:
    documents = [f"{i}." for i in range(data.draw(st.integers(4, 40)))]
    count, seed = data.draw(st.integers(1, len(documents) // 2)), data.draw(st.integers(0, 9))
    lanes = data.draw(st.sampled_from([1, 2, 4]))
    fields = {"lanes": lanes, "global_batch_size": lanes, "eos": False}
    order = data.draw(st.sampled_from(["shuffled", "identity"]))
    train, valid = parts(documents, count, seed, order=order)
    whole = opened_with(Dataset.from_documents("web", documents, order=order), **fields)
    opened = opened_with(train, **fields)
    (held,) = opened.held_out
    assert held is not None
    left_out = {documents[number] for number in held.documents.tolist()}
    assert len(left_out) == count
    for lane in range(lanes):
        last = 3 * len(documents) // lanes
        expected = [text for text in documents_of(whole, lane, last) if text not in left_out]
        assert documents_of(opened, lane, last) == expected
    other = opened_with(replace(valid, order="identity", max_epochs=1), **fields)
    alone = [documents_of(other, lane, other.orders[0].end(lane)) for lane in range(lanes)]
    dealt = [alone[i % lanes][i // lanes] for i in range(count)]
    assert dealt == [text for text in documents if text in left_out]
    assert other.lock["held_out"] == opened.lock["held_out"]
    assert [record for _, records in held.records.items() for record in records] == held.documents.tolist()


@pytest.mark.parametrize("kind", ["wrap", "best_fit"])
def test_a_pass_over_both_parts_gives_every_document_once(kind: str) -> None:
    documents = words("web", 60)
    came: list[str] = []
    for part in parts(documents, 20, max_epochs=1):
        recipe = make_recipe(datasets=(part,), kind=kind, lanes=2, global_batch_size=4, when_exhausted="pad")
        legs = [run_leg(open_small(recipe), world, prefetch=world) for world in (1, 2)]
        assert legs[0].digests == legs[1].digests
        again = run_leg(open_small(recipe), 2, legs[0].states[2])
        assert again.digests == legs[0].digests[2:]
        text = "".join(
            read(inputs[segments > 0])
            for step in legs[0].steps
            for batch in step
            for inputs, segments in zip(batch.inputs, batch.segment_ids, strict=True)
        )
        came.append(text)
    assert sum(len(text) for text in came) == sum(len(text) + 1 for text in documents)


def test_what_is_passed_over_is_counted() -> None:
    train, _ = parts(words("web", 60), 20, max_epochs=1)
    recipe = make_recipe(datasets=(train,), lanes=2, global_batch_size=2, when_exhausted="pad")
    with loaders(open_small(recipe)) as (loader,):
        list(loader)
        assert sum(dict(lane._counts[0])["held_out"] for lane in loader._rank.lanes.values()) == 20


def test_many_documents_held_out_in_a_row_are_no_sign_of_a_dataset_without_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "MANY_TOKENLESS", 2)
    monkeypatch.setattr(prepare, "MAX_BLOCK_DOCUMENTS", 1)
    searched: list[int] = []
    monkeypatch.setattr(stream.Stream, "_find_text", lambda self: searched.append(1))
    train, _ = parts(words("web", 40), 20)
    with loaders(opened_with(train, lanes=1, global_batch_size=1)) as ranks:
        take_steps(ranks, 40)
    assert searched == []


def test_a_part_without_text_is_still_an_error() -> None:
    documents = [""] * 40
    for number in choose(HeldOut(documents=10), "web", 40):
        documents[number] = "held"
    train, valid = parts(documents, 10)
    for dataset in (train, replace(train, max_epochs=1)):
        with pytest.raises(DataError, match="no document has text"), loaders(opened_with(dataset)) as ranks:
            next(ranks[0])
    with loaders(opened_with(valid)) as ranks:
        take_steps(ranks, 2)


def test_what_is_held_out_is_not_read() -> None:
    documents: list[Any] = words("web", 40)
    for number in choose(HeldOut(documents=10), "web", 40):
        documents[number] = None  # a read of it would stop the run
    train, valid = parts(documents, 10)
    with loaders(opened_with(train)) as ranks:
        take_steps(ranks, 12)
    with pytest.raises(DataError, match="cannot be used"), loaders(opened_with(valid)) as ranks:
        take_steps(ranks, 2)


def test_a_document_held_out_beside_one_that_is_refused() -> None:
    """The count of what is held out does not depend on where a block ends early."""
    held = choose(HeldOut(documents=3), "web", 12)
    before = next(h for h in held if h > 2 and h + 1 not in held)
    documents = ["x" * 40 if i == before + 1 else "ok" for i in range(12)]
    train, _ = parts(documents, 3, order="identity")
    opened = opened_with(train, kind="best_fit", options={"overlong": "refuse"}, lanes=1, global_batch_size=1)
    (block,) = opened.prepare()([Request(0, 0, 0, 1 << 20)])
    assert not isinstance(block, Exception)
    passed = sum(event.number for event in block.events if event.kind == "held_out")
    assert block.end == len(block.positions) + passed
    assert passed == sum(number < block.end for number in held)


# Files and locks --------------------------------------------------------------------------------------------


def split(base: Path, kind: str = "jsonl", count: int = 6) -> tuple[Dataset, Dataset]:
    return Dataset.from_path("web", str(base / f"data/**/*.{kind}")).holdout(documents=count)


def held_texts(opened: Opened) -> list[str]:
    (held,), reader = opened.held_out, opened.readers[0]
    assert held is not None
    chunk = np.searchsorted(held.firsts, held.documents, side="right") - 1
    return reader.texts(chunk, held.documents - held.firsts[chunk], 1 << 30).texts


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_files_added_later_do_not_move_what_is_held_out(tmp_path: Path, kind: str) -> None:
    def write(name: str, documents: Sequence[str]) -> None:
        path = tmp_path / "data" / f"{name}.{kind}"
        if kind == "jsonl":
            write_jsonl(path, documents)
        else:
            path.parent.mkdir(exist_ok=True)
            pq.write_table(pa.table({"text": list(documents)}), path, row_group_size=4)

    write("b", words("b", 11))
    write("d", words("d", 9))
    train, valid = split(tmp_path, kind)
    first = open_small(make_recipe(datasets=(train,)), tmp_path / "cache")
    before = held_texts(first)
    write("a", words("a", 30))
    write("c", words("c", 5))
    lock = json.loads(json.dumps(first.lock))
    later = open_small(make_recipe(datasets=(train,)), tmp_path / "cache", lock)
    assert held_texts(later) == before
    assert later.lock["held_out"] == first.lock["held_out"]
    assert later.lock["data"] != first.lock["data"]
    other = open_small(make_recipe(datasets=(valid,)), tmp_path / "cache", lock)
    found = other.readers[0].chunks().num_documents
    assert int(found.sum()) == 6
    chunk = np.repeat(np.arange(len(found)), found)
    record = np.concatenate([np.arange(n) for n in found])
    assert other.readers[0].texts(chunk, record, 1 << 30).texts == before
    anew = open_small(make_recipe(datasets=(train,)), tmp_path / "cache")
    assert held_texts(anew) != before
    more = replace(train, held_out=HeldOut(documents=7))
    assert len(held_texts(open_small(make_recipe(datasets=(more,)), tmp_path / "cache", lock))) == 7


@pytest.mark.parametrize("fields", [{"where": "number != 1"}, {"limit": 25}, {}])
def test_a_list_finds_its_documents_of_a_selection_again(tmp_path: Path, fields: dict[str, Any]) -> None:
    def write(name: str, count: int) -> None:
        lines = [json.dumps({"text": text, "number": i % 3}) for i, text in enumerate(words(name, count))]
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines))

    write("a", 20)
    write("c", 20)
    dataset = Dataset.from_path("web", str(tmp_path / "data/**/*.jsonl"), **fields)
    recipe = make_recipe(datasets=(dataset.holdout(documents=6)[0],))
    first = open_small(recipe, tmp_path / "cache")
    if "limit" not in fields:
        write("b", 7)
    later = open_small(recipe, tmp_path / "cache", json.loads(json.dumps(first.lock)))
    assert held_texts(later) == held_texts(first)
    assert later.lock["held_out"] == first.lock["held_out"]


def test_the_files_of_many_chunks_cost_no_look_at_each() -> None:
    count = 300_000
    table = ChunkTable(
        name="web", kind="jsonl", files=[DataFile(path="/a", name="a", size_bytes=1, mtime_ns=1, entry=0)],
        samples=["x"], first_chunks=np.array([0, count]), places=np.zeros(count, np.int64),
        num_documents=np.ones(count, np.int32), num_bytes=np.ones(count, np.int32),
    )  # fmt: skip
    reader: Any = SimpleNamespace(
        table=table, chunks=table.chunks, identity=lambda: table.identity, where=None, name="web"
    )
    dataset = Dataset.from_path("web", "/a").holdout(documents=1000)[0]
    begin = time.process_time()
    made = hold_out(dataset, reader, None)
    assert made is not None
    lock = {"held_out": {"web": made.to_json()}, "data": {"web": table.identity}}
    again = hold_out(dataset, reader, lock)
    assert again is not None
    assert (again.documents == made.documents).all()
    assert time.process_time() - begin < 2


def test_a_file_of_the_list_that_is_gone_is_named(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "data" / "a.jsonl", words("a", 9))
    write_jsonl(tmp_path / "data" / "b.jsonl", words("b", 9))
    train, _ = split(tmp_path)
    lock = open_small(make_recipe(datasets=(train,)), tmp_path / "cache").lock
    assert set(lock["held_out"]["web"]["records"]) == {"a.jsonl", "b.jsonl"}
    (tmp_path / "data" / "a.jsonl").unlink()
    with pytest.raises(DataError, match=r"no record \d of 'a.jsonl'"):
        open_small(make_recipe(datasets=(train,)), tmp_path / "cache", lock)


@pytest.mark.parametrize("change", ["head", "tail", "edit"])
def test_a_file_with_documents_held_out_stays_as_it_is(tmp_path: Path, change: str) -> None:
    """Lines put at its head would hold out others, and give the old ones to the training."""
    write_jsonl(tmp_path / "data" / "a.jsonl", words("a", 20))
    write_jsonl(tmp_path / "data" / "b.jsonl", words("b", 20))
    recipe = make_recipe(datasets=(split(tmp_path, count=1)[0],))
    lock = json.loads(json.dumps(open_small(recipe, tmp_path / "cache").lock))
    (file,) = lock["held_out"]["web"]["records"]
    other = {"a.jsonl": "b.jsonl", "b.jsonl": "a.jsonl"}[file]
    write_jsonl(tmp_path / "data" / other, words("x", 30))  # of this none is held out
    assert held_texts(open_small(recipe, tmp_path / "cache", lock))
    documents = words(file[0], 20)
    changed = {"head": ["first", *documents], "tail": [*documents, "last"], "edit": ["X", *documents[1:]]}
    write_jsonl(tmp_path / "data" / file, changed[change])
    with pytest.raises(DataError) as caught:
        open_small(recipe, tmp_path / "cache", lock)
    message = str(caught.value)
    for part in (f"dataset 'web': {file!r}", f"got:  ['{file}', ", "the lock has ['"):
        assert part in message
    assert "files with held-out documents stay as they are; files may be added" in message
    assert "bring the file back" in message


def test_texts_in_memory_with_documents_held_out_stay_as_they_are() -> None:
    train, _ = parts(words("web", 20), 3)
    lock = opened_with(train).lock
    assert opened_with(train, lock).lock == lock
    more, _ = parts(["first", *words("web", 20)], 3)
    with pytest.raises(DataError, match="stay as they are"):
        opened_with(more, lock)


def test_files_of_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        write_jsonl(tmp_path / folder / "a.jsonl", words(folder, 9))
    dataset = Dataset.from_path("web", [str(tmp_path / "one"), str(tmp_path / "two")])
    with pytest.raises(DataError, match="the lock cannot name the documents"):
        open_small(make_recipe(datasets=dataset.holdout(documents=3)[:1]), tmp_path / "cache")
    above = Dataset.from_path("web", str(tmp_path / "*/*.jsonl")).holdout(documents=3)[0]
    lock = open_small(make_recipe(datasets=(above,)), tmp_path / "cache").lock
    assert set(lock["held_out"]["web"]["records"]) <= {"one/a.jsonl", "two/a.jsonl"}


def recipe_of(base: Path, dataset: Dataset) -> Recipe:
    write_tokenizer(base / "tokenizer")
    return make_recipe(datasets=(dataset,), tokenizer=str(base / "tokenizer"), base=base)


def test_a_run_folder_keeps_the_list_through_a_restore_with_more_data(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "data" / "b.jsonl", sized(20, (15,)))
    train, valid = split(tmp_path)  # of documents that fill a row each, so that none is in the middle
    recipe, run = recipe_of(tmp_path, train), tmp_path / "run"
    options = {"cache": tmp_path / "cache", "executor": "inline"}
    with recipe.loader(run_folder=run, **options) as loader:
        next(loader)
        state, before = loader.state_dict(), held_texts(loader.opened)
    kept = json.loads((run / "lock.json").read_text())["held_out"]
    write_jsonl(tmp_path / "data" / "a.jsonl", sized(30, (15,), "A"))
    with (
        recipe.loader(run_folder=run, **options) as loader,
        pytest.raises(StateError, match="dataset web"),
    ):
        loader.load_state_dict(state)
    with recipe.loader(run_folder=run, **options) as loader:
        loader.load_state_dict(state, allow=["data"])
        next(loader)
        assert held_texts(loader.opened) == before
    lock = json.loads((run / "lock.json").read_text())
    assert lock["held_out"] == kept
    assert [name for name, *_ in lock["data"]["web"]["files"]] == ["a.jsonl", "b.jsonl"]
    source = Source(recipe=str(run), settings=None, cache=tmp_path / "cache", backend="auto")
    with closing(source.open(LateProgress())) as opened:
        assert opened.lock["held_out"] == kept
    evaluation = replace(recipe, datasets=(valid,)).evaluation()
    opened = open_recipe(evaluation, cache=tmp_path / "cache", lock=lock)
    assert int(opened.readers[0].chunks().num_documents.sum()) == 6
    opened.close()


def test_a_restore_that_would_hold_out_others_is_refused(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "data" / "b.jsonl", words("b", 20))
    train, _ = split(tmp_path)
    recipe = make_recipe(datasets=(train,))
    with loaders(open_small(recipe, tmp_path / "cache")) as ranks:
        take_steps(ranks, 1)
        state = union(ranks)
    write_jsonl(tmp_path / "data" / "a.jsonl", words("a", 30))
    with loaders(open_small(recipe, tmp_path / "cache")) as (loader,):
        with pytest.raises(StateError, match="documents held out of web: state has"):
            loader.load_state_dict(state, allow=["data"])
        loader.load_state_dict(state, allow=["data", "held_out"])


def test_a_run_folder_keeps_its_list_against_a_loader_that_would_hold_out_others(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "data" / "b.jsonl", words("b", 20))
    recipe, run = make_recipe(datasets=(split(tmp_path)[0],)), tmp_path / "run"
    with loaders(open_small(recipe, tmp_path / "cache"), 2, run_folder=run) as ranks:
        take_steps(ranks, 1)
    kept = (run / "lock.json").read_text()
    write_jsonl(tmp_path / "data" / "a.jsonl", words("a", 30))
    anew = open_small(recipe, tmp_path / "cache")
    whole = open_small(make_recipe(datasets=(replace(recipe.datasets[0], held_out=None),)), tmp_path / "c")
    for opened, rank in ((anew, 0), (anew, 1), (whole, 0)):
        with pytest.raises(StateError, match=r"held out of web(.|\n)*open_recipe\(recipe, lock=\.\.\.\)"):
            Loader(opened, replace(INLINE, dp_rank=rank, dp_world_size=2, run_folder=run))
    assert (run / "lock.json").read_text() == kept
    assert len(list((run / "batches").iterdir())) == 2
    with loaders(open_small(recipe, tmp_path / "cache", json.loads(kept)), run_folder=run) as ranks:
        take_steps(ranks, 1)
    assert json.loads((run / "lock.json").read_text())["held_out"] == json.loads(kept)["held_out"]


def test_a_run_folder_without_a_lock_takes_that_of_the_run_that_is_replayed(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "data" / "b.jsonl", words("b", 20))
    recipe = recipe_of(tmp_path, split(tmp_path)[0])
    options = {"cache": tmp_path / "cache", "executor": "inline"}
    with recipe.loader(run_folder=tmp_path / "old", **options) as loader:
        next(loader)
        kept = loader.opened.lock["held_out"]
    write_jsonl(tmp_path / "data" / "a.jsonl", words("a", 30))
    lock = json.loads((tmp_path / "old" / "lock.json").read_text())
    grown = open_recipe(recipe, cache=tmp_path / "cache", lock=lock)
    (tmp_path / "old" / "lock.json").write_text(json.dumps(grown.lock))  # as after a restore with more data
    grown.close()
    with recipe.loader(run_folder=tmp_path / "new", replay=tmp_path / "old", **options) as loader:
        assert loader.opened.lock["held_out"] == kept
    assert json.loads((tmp_path / "new" / "lock.json").read_text())["held_out"] == kept


def test_worker_processes_pass_over_what_is_held_out() -> None:
    train, _ = parts(words("web", 60), 20, max_epochs=1)
    opened = opened_with(train, when_exhausted="pad")
    ours = run_leg(opened, executor="processes", workers=1)
    assert ours.digests == run_leg(opened).digests


def test_the_part_is_in_the_fingerprint() -> None:
    whole = Dataset.from_documents("web", words("web", 9))
    train, valid = whole.holdout(documents=2)
    recipes = [make_recipe(datasets=(d,)) for d in (whole, train, valid, whole.holdout(documents=3)[0])]
    assert len({recipe.fingerprint() for recipe in recipes}) == 4
    assert not any("holdout" in name for name in recipes[0].configuration())


def test_a_subset_says_where_its_documents_are(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "data" / "a.jsonl", words("a", 9))
    _, valid = split(tmp_path, count=3)
    whole = open_reader(replace(valid, held_out=None), base=tmp_path, cache=tmp_path / "c", spool_bytes=0)
    opened = open_small(make_recipe(datasets=(valid,)), tmp_path / "c")
    numbers = opened.lock["held_out"]["web"]["records"]["a.jsonl"]
    assert [opened.readers[0].where(0, i) for i in range(3)] == [("a.jsonl", number) for number in numbers]
    assert opened.readers[0].identity() == whole.identity()
    assert int(opened.readers[0].chunks().num_bytes[0]) < int(whole.chunks().num_bytes[0])
