"""C11: records that cannot be used stop the run at one step, or are counted and passed, whatever the run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.elastic.cases import LETTERS, block_sizes, divisors, ways
from tests.helpers import (
    digest_of,
    digests,
    faulty,
    loaders,
    make_recipe,
    open_small,
    read,
    sized,
    take_steps,
    tokens_of,
    union,
    words,
    write_tokenizer,
)
from zephon.batch import Batch
from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.opened import Opened
from zephon.options import LoaderOptions
from zephon.recipe import Recipe

BAD: list[object] = [None, 17, ["a"], {"text": "a"}, True, 1.5]
TOKENLESS = ["", BAD[0], BAD[1]]
GOOD = ["   ", "\n", "one ", "two two ", "three three three "]


def recipe_of(documents: Sequence[object], on_error: str, **fields: Any) -> Recipe:
    max_bad = fields.pop("max_bad", 1000)
    web = faulty("web", documents, on_error=on_error, max_bad=max_bad)
    code = Dataset.from_documents("code", words("code", 9))
    return make_recipe(datasets=(web, code), **{"lanes": 4, "global_batch_size": 8} | fields)


def counts_of(state: dict[str, Any]) -> dict[str, int]:
    """Returns what the streams of the first dataset counted, over all lanes."""
    total: dict[str, int] = {}
    for key, entry in state.items():
        if key.startswith("lane_"):
            for kind, number in json.loads(entry)["counts"][0].items():
                total[kind] = total.get(kind, 0) + number
    return total


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_a_record_that_is_no_text_stops_the_run_and_is_named(bad: object) -> None:
    opened = open_small(recipe_of([*GOOD, bad], "raise"))
    with loaders(opened) as ranks, pytest.raises(DataError) as caught:
        take_steps(ranks, 50)
    assert str(caught.value).startswith("dataset 'web', file 'web', record 5: cannot be used")
    assert 'on_error = "skip"' in str(caught.value)


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_a_record_that_is_no_text_may_be_skipped_and_is_counted(bad: object) -> None:
    opened = open_small(recipe_of([*GOOD, bad], "skip", lanes=1, global_batch_size=1))
    with loaders(opened) as ranks:
        take_steps(ranks, 20)
        state = union(ranks)
    epochs = json.loads(state["lane_00000"])["cursors"][0][0] // 6
    assert epochs <= counts_of(state)["bad"] <= epochs + 1
    assert "empty" not in counts_of(state)


def test_text_of_spaces_is_text_and_no_text_is_counted() -> None:
    opened = open_small(recipe_of([*GOOD, ""], "raise", lanes=1, global_batch_size=1))
    with loaders(opened) as ranks:
        batches = [batch for step in take_steps(ranks, 20) for batch in step]
        state = union(ranks)
    text = "".join(read(batch.inputs[0]) for batch in batches)
    assert "   >" in text
    assert "\n>" in text
    assert ">>" not in text
    assert all(batch.pieces.length.min() > 0 for batch in batches)
    epochs = json.loads(state["lane_00000"])["cursors"][0][0] // 6
    assert epochs <= counts_of(state)["empty"] <= epochs + 1


@settings(max_examples=15)
@given(st.data())
def test_what_is_skipped_does_not_depend_on_the_run(data: st.DataObject) -> None:
    documents = data.draw(st.lists(st.sampled_from([*TOKENLESS, *GOOD]), min_size=1, max_size=12))
    kind = data.draw(st.sampled_from(["wrap", "best_fit", "sorted_rows"]))
    flush_every = 3 if kind == "sorted_rows" else None
    recipe = recipe_of([*documents, "end "], "skip", kind=kind, flush_every=flush_every)
    with loaders(open_small(recipe)) as ranks:
        expected = [digest_of(step) for step in take_steps(ranks, 3)]
        middle = union(ranks)
        expected += [digest_of(step) for step in take_steps(ranks, 3)]
        end = union(ranks)
    way = data.draw(ways(recipe))
    options = LoaderOptions(executor=way.executor, workers=way.workers, prefetch=way.prefetch)
    with block_sizes(way), loaders(open_small(recipe), way.world, options) as ranks:
        assert [digest_of(step) for step in take_steps(ranks, 3)] == expected[:3]
        assert union(ranks) == middle
    world = data.draw(st.sampled_from(divisors(4)))
    with block_sizes(way), loaders(open_small(recipe), world, options) as ranks:
        for loader in ranks:
            loader.load_state_dict(middle)
        assert [digest_of(step) for step in take_steps(ranks, 3)] == expected[3:]
        assert counts_of(union(ranks)) == counts_of(end)


def test_a_skipped_record_costs_its_position_and_shifts_nothing() -> None:
    """The documents that are good stand where they stand without the bad one."""
    good = words("w", 12)
    spoilt = [None if i == 5 else text for i, text in enumerate(good)]
    orders = []
    for documents in (good, spoilt):
        opened = open_small(recipe_of(documents, "skip", lanes=1, global_batch_size=1))
        orders.append([read(tokens_of(opened, 0, 0, i)) for i in range(36)])
    assert orders[1] == ["" if text == good[5] + ">" else text for text in orders[0]]


def steps_before_error(opened: Opened, world: int, options: LoaderOptions) -> tuple[int, str]:
    """Returns how many steps all ranks gave, and the error that one of them met in the next."""
    with loaders(opened, world, options) as ranks:
        for step in range(1000):
            try:
                take_steps(ranks, 1)
            except DataError as error:
                return step, str(error)
    raise AssertionError("no error in 1,000 steps")


@settings(max_examples=15)
@given(st.data())
def test_the_step_of_an_error_does_not_depend_on_the_run(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, 39))
    documents: list[object] = list(words("w", 40))
    documents[place] = None
    recipe = recipe_of(documents, "raise")
    expected = steps_before_error(open_small(recipe), 1, LoaderOptions(executor="inline"))
    way = data.draw(ways(recipe))
    options = LoaderOptions(executor=way.executor, workers=way.workers, prefetch=way.prefetch)
    with block_sizes(way):
        found = steps_before_error(open_small(recipe), way.world, options)
    assert found == expected


def test_after_an_error_the_loader_stays_stopped_and_its_state_is_good() -> None:
    documents = [*words("w", 20), None]
    opened = open_small(recipe_of(documents, "raise"))
    given_out: list[Batch] = []
    for options in (LoaderOptions(executor="inline"), LoaderOptions(workers=2, prefetch=3)):
        with loaders(opened, 1, options) as (loader,):
            given_out.clear()
            with pytest.raises(DataError):  # noqa: PT012
                for batch in loader:
                    given_out.append(batch)
            state = loader.state_dict()
            with pytest.raises(Exception, match="stopped at an earlier error"):
                next(loader)
        assert json.loads(state["schedule"])["steps"] == len(given_out)
        mended = open_small(recipe_of([*documents[:-1], "mended "], "raise"))
        with loaders(mended) as ranks:
            ranks[0].load_state_dict(state, allow=["data"])
            assert take_steps(ranks, 1)[0][0].step == len(given_out)


@pytest.mark.parametrize("max_bad", [0, 1, 3])
def test_a_lane_skips_no_more_than_its_budget(max_bad: int) -> None:
    documents = [*sized(4, (5,)), None]
    recipe = recipe_of(documents, "skip", max_bad=max_bad)
    expected = steps_before_error(open_small(recipe), 1, LoaderOptions(executor="inline"))
    assert f"a lane may skip at most max_bad = {max_bad}" in expected[1]
    for world in (2, 4):
        found = steps_before_error(open_small(recipe), world, LoaderOptions(workers=2))
        assert found[0] == expected[0]


def test_the_budget_goes_on_after_a_restore() -> None:
    recipe = recipe_of([*sized(4, (5,)), None], "skip", max_bad=3)
    opened = open_small(recipe)
    steps, _ = steps_before_error(opened, 1, LoaderOptions(executor="inline"))
    with loaders(opened) as ranks:
        take_steps(ranks, steps - 1)
        state = union(ranks)
    with loaders(opened, 2) as ranks:
        for loader in ranks:
            loader.load_state_dict(state)
        take_steps(ranks, 1)
        with pytest.raises(DataError, match="max_bad = 3"):
            take_steps(ranks, 1)


@pytest.mark.parametrize("documents", [[""], ["", "", ""], [None], [None] * 3, [""] * 2500], ids=len)
def test_a_dataset_without_text_ends_in_an_error(documents: list[object]) -> None:
    recipe = recipe_of(documents, "skip", max_bad=10**9)
    for options in (LoaderOptions(executor="inline"), LoaderOptions(workers=2)):
        with (
            loaders(open_small(recipe), 1, options) as ranks,
            pytest.raises(DataError, match="dataset 'web': no document has text"),
        ):
            next(ranks[0])


def test_a_dataset_with_little_text_is_no_dataset_without() -> None:
    """One document of 1,500 has text: two of its turns may lie nearly two epochs apart."""
    documents = ["x"] + [""] * 1499
    web = Dataset.from_documents("web", documents)
    recipe = make_recipe(datasets=(web,), lanes=1, global_batch_size=1)
    with loaders(open_small(recipe)) as ranks:
        texts = [read(batch.inputs[0]) for (batch,) in take_steps(ranks, 12)]
    assert set(texts) == {"x>" * 8}


def test_a_lane_may_seldom_meet_what_little_text_there_is() -> None:
    """Two lanes share 1,500 documents of which one has text: each meets it every other epoch or so."""
    web = Dataset.from_documents("web", ["x"] + [""] * 1499)
    recipe = make_recipe(datasets=(web,), lanes=2, global_batch_size=2)
    with loaders(open_small(recipe)) as ranks:
        for _ in range(12):
            assert {read(row) for row in next(ranks[0]).inputs} == {"x>" * 8}


def test_a_truncated_document_is_not_an_empty_one() -> None:
    """Cut to one token it still has that token, though a document of one token and its end has two."""
    options = {"overlong": "truncate", "pool_documents": 2}
    recipe = make_recipe({"web": list(LETTERS[:5])}, seq_len=1, kind="best_fit", options=options)
    with loaders(open_small(recipe)) as ranks:
        assert {read(row) for row in next(ranks[0]).inputs} <= set(LETTERS[:5])


@pytest.mark.parametrize("weight", [float("nan"), -1, float("inf"), True, "1", None])
def test_a_weight_that_is_none_is_refused_before_any_file_is_opened(weight: Any) -> None:
    with pytest.raises(ValueError, match="'web'"):
        _recipe_of_missing_files({"web": weight, "code": 1})


@pytest.mark.parametrize(
    "weights", [{"web": 0, "code": 0}, {"web": 1}, {"web": 1, "code": 1, "prose": 1}, {}]
)
def test_weights_that_do_not_fit_are_refused_before_any_file_is_opened(weights: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"weight|no dataset is named 'prose'"):
        _recipe_of_missing_files(weights)


def _recipe_of_missing_files(weights: dict[str, Any], tokenizer: str = "letters") -> None:
    """Opens a recipe of files that are not there, which is an error of its own when it is reached."""
    datasets = tuple(Dataset.from_path(name, f"missing/{name}.jsonl") for name in ("web", "code"))
    schedule = {"kind": "constant", "weights": weights}
    make_recipe(datasets=datasets, schedule=schedule, tokenizer=tokenizer).loader()


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing/web\.jsonl"):
        _recipe_of_missing_files({"web": 1, "code": 1}, str(write_tokenizer(tmp_path)))


def test_a_wrong_tokenizer_is_refused_before_any_file_is_opened() -> None:
    with pytest.raises(DataError, match="tokenizer 'letters'"):
        _recipe_of_missing_files({"web": 1, "code": 1})


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_lines_that_are_no_json(tmp_path: Path, on_error: str) -> None:
    """Five lines, the third cut in half: an error with file and line, or that line alone is left out."""
    lines = [json.dumps({"text": f"{word} "}) for word in ("one", "two", "three", "four", "five")]
    lines[2] = lines[2][: len(lines[2]) // 2]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    web = Dataset.from_path("web", tmp_path / "a.jsonl", on_error=on_error)
    recipe = make_recipe(datasets=(web,), base=tmp_path, lanes=1, global_batch_size=1)
    with loaders(open_small(recipe)) as ranks:
        if on_error == "raise":
            with pytest.raises(DataError, match=r"dataset 'web', file 'a\.jsonl', record 2"):
                take_steps(ranks, 20)
        else:
            text = "".join(read(batch.inputs[0]) for batch in islice(ranks[0], 20))
            assert {"one >", "two >", "four >", "five >"} <= {part + ">" for part in text.split(">")}
            assert counts_of(union(ranks))["bad"] > 10


def test_surrogates_are_replaced_and_counted(tmp_path: Path) -> None:
    line = b'{"text": "a\\ud800b"}\n{"text": "\\ud83d\\ude00 \\u0000"}\n'
    (tmp_path / "a.jsonl").write_bytes(line)
    recipe = make_recipe(
        datasets=(Dataset.from_path("web", tmp_path / "a.jsonl"),),
        base=tmp_path,
        lanes=1,
        global_batch_size=1,
    )
    opened = open_small(recipe)
    texts = {bytes(tokens_of(opened, 0, 0, i)[:-1]).decode() for i in range(2)}
    assert texts == {"a\ufffdb", "\U0001f600 \0"}
    with loaders(opened) as ranks:
        take_steps(ranks, 10)
        state = union(ranks)
    epochs = json.loads(state["lane_00000"])["cursors"][0][0] // 2
    assert epochs <= counts_of(state)["replaced"] <= epochs + 1


def test_an_error_leaves_digests_of_earlier_steps_as_they_are() -> None:
    good = open_small(recipe_of([*words("w", 20), "late "], "raise"))
    bad = open_small(recipe_of([*words("w", 20), None], "skip"))
    steps, _ = steps_before_error(
        open_small(recipe_of([*words("w", 20), None], "raise")), 1, LoaderOptions(executor="inline")
    )
    assert digests(bad, steps) == digests(good, steps)
