"""C1, C3, C5 of amended tables: skipped steps and dropped documents, on any ranks, from any step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.elastic.cases import PACKERS, block_sizes, divisors, recipes, ways
from tests.helpers import (
    INLINE,
    digest_of,
    digests,
    loaders,
    make_recipe,
    open_small,
    read,
    sized,
    take_steps,
    union,
    words,
)
from zephon.batch import Batch
from zephon.errors import DataError
from zephon.opened import Opened
from zephon.options import LoaderOptions
from zephon.schedule import Drop, ScheduleTable
from zephon.shares import PARTS
from zephon.stages import Stages

STEPS = 7


def amended(
    opened: Opened, skips: Sequence[tuple[int, int]] = (), drops: Sequence[tuple[int, str, list[int]]] = ()
) -> Opened:
    """Returns the opened recipe whose table skips steps and drops (step, dataset, records)."""
    found = tuple(
        Drop(step, tuple((name, name, record) for record in sorted(records)))
        for step, name, records in sorted(drops)
    )
    return replace(opened, table=replace(opened.table, skips=tuple(sorted(skips)), drops=found))


def rows_of(steps: list[list[Batch]]) -> dict[int, list[list[int]]]:
    """Returns the tokens of every row of each lane, in order."""
    found: dict[int, list[list[int]]] = {}
    for step in steps:
        for batch in step:
            for lane, tokens in zip(batch.lanes.tolist(), batch.inputs.tolist(), strict=True):
                found.setdefault(lane, []).append(tokens)
    return found


def documents_of(steps: list[list[Batch]], first: int = 0) -> list[tuple[int, int, int]]:
    """Returns (lane, dataset, position) of each document that begins in a step >= `first`."""
    found = []
    for step in steps[first:]:
        for batch in step:
            pieces = batch.pieces
            for at in np.flatnonzero(pieces.offset == 0).tolist():
                lane = int(batch.lanes[pieces.row[at]])
                found.append((lane, int(pieces.dataset[at]), int(pieces.position[at])))
    return found


def record(opened: Opened, lane: int, dataset: int, position: int) -> int:
    """Returns the record of a document in memory."""
    address = opened.locate(dataset, lane, np.array([position], dtype=np.int64))
    return opened.readers[dataset].where(int(address.chunk[0]), int(address.record[0]))[1]


# Skipped steps ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows_per_step", [1, 3])
def test_skipping_steps_gives_the_rows_that_would_come_after_them(rows_per_step: int) -> None:
    """With one mixture: step s >= 2 has what step s + 3 would have had, and no row changes its number."""
    opened = open_small(make_recipe(global_batch_size=4 * rows_per_step, lanes=4))
    with loaders(opened) as ranks:
        plain = rows_of(take_steps(ranks, 8))
    with loaders(amended(opened, [(2, 5)])) as ranks:
        steps = take_steps(ranks, 5)
        skipped = rows_of(steps)
    assert [step[0].step for step in steps] == [0, 1, 2, 3, 4]
    for lane in range(4):
        before, after = 2 * rows_per_step, 5 * rows_per_step
        assert skipped[lane] == plain[lane][:before] + plain[lane][after:]


def test_skipped_tokens_are_charged_to_credits_and_counted_apart() -> None:
    """C4's identity holds with what was skipped: drawn - integral of the share = initial - credit."""
    opened = open_small(make_recipe(schedule=Stages({0: {"web": 3, "code": 1}, 3: {"web": 1, "code": 1}})))
    with loaders(opened) as ranks:
        take_steps(ranks, 1)
        first = [json.loads(union(ranks)[f"lane_{lane:05d}"]) for lane in range(4)]
    with loaders(amended(opened, [(2, 5)])) as ranks:
        take_steps(ranks, 4)
        last = [json.loads(union(ranks)[f"lane_{lane:05d}"]) for lane in range(4)]
    for before, after in zip(first, last, strict=True):
        assert after["rows"] == 4
        assert sum(after["skipped"]) == 3 * 16
        assert sum(after["tokens"]) == (4 + 3) * 16
        integral = [0, 0]
        for step in [1, 2, 3, 4, 2, 3]:  # one row each: step 1, those skipped, then steps 2 and 3
            for i, share in enumerate(opened.table.at(step)):
                integral[i] += 16 * share
        for i in range(2):
            drawn = (after["tokens"][i] - before["tokens"][i]) * PARTS
            assert drawn - integral[i] == before["credits"][i] - after["credits"][i]


def test_a_state_without_skips_has_no_entry_for_them() -> None:
    with loaders(open_small(make_recipe())) as ranks:
        take_steps(ranks, 2)
        assert "skipped" not in json.loads(union(ranks)["lane_00000"])


@pytest.mark.parametrize("kind", PACKERS)
def test_skips_and_drops_are_the_same_from_every_step_on_any_ranks(kind: str) -> None:
    documents = {"web": words("web", 11, (1, 4, 9)), "code": sized(5, (3, 40))}
    schedule = Stages({0: {"web": 3, "code": 1}, 2: {"web": 0, "code": 1}, 4: {"web": 1, "code": 1}})
    more: dict[str, Any] = {"options": {"pool_documents": 4}} if kind == "best_fit" else {}
    more |= {"flush_every": 4} if kind == "sorted_rows" else {}
    recipe = make_recipe(documents, schedule, kind=kind, lanes=4, global_batch_size=8, **more)
    opened = amended(open_small(recipe), [(0, 1), (3, 6)], [(2, "web", [1, 4]), (4, "code", [0, 2])])
    expected = digests(opened, 2 * STEPS)
    assert expected != digests(open_small(recipe), 2 * STEPS)
    for world in divisors(4):
        with loaders(opened, world, micro_batch_size=1) as ranks:
            for step in range(STEPS):
                state = union(ranks)
                for other in divisors(4):
                    with loaders(opened, other) as again:
                        for loader in again:
                            loader.load_state_dict(state)
                        found = [digest_of(batches) for batches in take_steps(again, 4)]
                    assert found == expected[step : step + 4]
                take_steps(ranks, 1)


@settings(max_examples=15)
@given(st.data())
def test_random_amendments_in_any_way(data: st.DataObject) -> None:
    recipe = data.draw(recipes())
    begins = sorted(data.draw(st.sets(st.integers(0, STEPS - 1), max_size=3)))
    skips = [(a, a + data.draw(st.integers(1, 3))) for a in begins]
    drops = []
    for dataset in recipe.datasets:
        texts = dataset.documents or ()
        blank = [i for i, text in enumerate(texts) if not text]
        most = len(texts) // 2 if len(blank) < len(texts) - len(texts) // 2 else 0
        records = data.draw(st.sets(st.integers(0, len(texts) - 1), max_size=most)) if most else set()
        if records:
            drops.append((data.draw(st.integers(0, STEPS)), dataset.name, sorted(records)))
    opened = amended(open_small(recipe), skips, drops)
    expected = digests(opened, STEPS)
    way = data.draw(ways(recipe))
    options = LoaderOptions(
        micro_batch_size=way.micro_batch_size,
        executor=way.executor,
        workers=way.workers,
        prefetch=way.prefetch,
    )
    cut = data.draw(st.integers(0, STEPS))
    with block_sizes(way), loaders(opened, way.world, options) as ranks:
        found = [digest_of(step) for step in take_steps(ranks, cut)]
        state = union(ranks)
    with block_sizes(way), loaders(opened, 1, INLINE) as ranks:
        for loader in ranks:
            loader.load_state_dict(state)
        found += [digest_of(step) for step in take_steps(ranks, STEPS - cut)]
    assert found == expected


@pytest.mark.parametrize("when", ["stop", "redistribute", "pad"])
def test_a_finite_run_ends_where_the_skipped_rows_leave_it(when: str) -> None:
    documents = {"web": sized(64, (16,)), "code": sized(64, (16,))}
    recipe = make_recipe(documents, eos=False, when_exhausted=when)
    datasets = tuple(replace(dataset, max_epochs=1) for dataset in recipe.datasets)
    opened = open_small(replace(recipe, datasets=datasets))

    def num_steps(opened: Opened) -> int:
        with loaders(opened) as (loader,):
            return len(list(loader))

    plain = num_steps(opened)
    assert plain == {"stop": plain, "redistribute": 32, "pad": 32}[when]
    assert num_steps(amended(opened, [(2, 7)])) == plain - 5
    assert num_steps(amended(opened, [(2, 70)])) == 2


@pytest.mark.parametrize("skip", [(2, 4), (2, 70)], ids=["amid", "to the end"])
@pytest.mark.parametrize("kind", PACKERS)
def test_all_tokens_of_a_lane_that_ended_are_delivered_or_skipped(kind: str, skip: tuple[int, int]) -> None:
    """Those of the rows dropped before the end too, where the lane ends while it skips."""
    documents = {"web": words("web", 60, (1, 4, 9)), "code": sized(20, (3, 40))}
    more: dict[str, Any] = {"options": {"pool_documents": 4}} if kind == "best_fit" else {}
    more |= {"flush_every": 4} if kind == "sorted_rows" else {}
    recipe = make_recipe(documents, kind=kind, when_exhausted="pad", **more)
    datasets = tuple(replace(dataset, max_epochs=1) for dataset in recipe.datasets)
    opened = amended(open_small(replace(recipe, datasets=datasets)), [skip])
    with loaders(opened, prefetch=0) as (loader,):
        delivered = np.zeros((4, 2), np.int64)
        for batch in loader:
            lanes = batch.lanes[batch.pieces.row]
            np.add.at(delivered, (lanes, batch.pieces.dataset), batch.pieces.length)
        for lane, state in loader._reached().items():
            assert sum(state.skipped) > 0
            assert np.add(state.skipped, delivered[lane]).tolist() == list(state.tokens)


# Dropped documents ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 2, 4])
def test_dropped_documents_do_not_begin_from_their_step_on_and_others_keep_their_order(
    world: int,
) -> None:
    opened = open_small(make_recipe(seq_len=8))
    gone = {0: [3, 5, 11, 30], 1: [2]}
    dropping = amended(opened, drops=[(4, "web", gone[0]), (4, "code", gone[1])])
    with loaders(dropping, world) as ranks:
        steps = take_steps(ranks, 40)
    begun = documents_of(steps, 4)
    assert not [d for d in begun if record(opened, *d) in gone[d[1]]]
    assert any(record(opened, *d) in gone[d[1]] for d in documents_of(steps[:4]))
    for lane in range(4):
        for dataset in range(2):
            positions = [p for at, of, p in documents_of(steps) if (at, of) == (lane, dataset)]
            missing = sorted(set(range(positions[-1])) - set(positions))
            assert positions == sorted(positions)
            assert all(record(opened, lane, dataset, p) in gone[dataset] for p in missing)


def test_the_rest_of_a_document_that_is_begun_is_given() -> None:
    documents = {"web": ["x" * 60, *words("web", 9)]}
    opened = open_small(make_recipe(documents, lanes=1, global_batch_size=1, seed=0))
    with loaders(opened) as ranks:
        plain = take_steps(ranks, 12)
    first = next(i for i, (batch,) in enumerate(plain) if "xxxx" in read(batch.inputs[0]))
    with loaders(amended(opened, drops=[(first + 1, "web", [0])])) as ranks:
        found = take_steps(ranks, 40)
    text = "".join(read(batch.inputs[0]) for (batch,) in found)
    assert text.count("x") == 60


def test_dropped_documents_are_counted() -> None:
    opened = amended(open_small(make_recipe({"web": words("w", 8)})), drops=[(1, "web", [0, 1, 2, 3])])
    with loaders(opened, prefetch=0) as (loader,):
        take_steps([loader], 20)
        entry = [json.loads(union([loader])[f"lane_{lane:05d}"]) for lane in range(4)]
        assert all(lane["counts"][0]["skipped"] > 0 for lane in entry)


def test_documents_that_the_data_does_not_have_are_refused() -> None:
    with (
        loaders(amended(open_small(make_recipe()), drops=[(1, "web", [40])])) as ranks,
        pytest.raises(DataError, match="dataset 'web' has no such document to drop"),
    ):
        take_steps(ranks, 2)


def test_more_than_half_of_a_dataset_is_refused() -> None:
    with (
        loaders(amended(open_small(make_recipe()), drops=[(1, "code", [0, 1, 2, 3, 4])])) as ranks,
        pytest.raises(DataError, match="too many documents to drop"),
    ):
        take_steps(ranks, 2)


def test_a_lane_of_which_all_documents_with_text_are_dropped_is_refused() -> None:
    """It would read on for ever."""
    documents = {"web": ["a", "b", "", "", "", ""]}
    recipe = make_recipe(documents, lanes=1, global_batch_size=1, bos=False, eos=False)
    with (
        loaders(amended(open_small(recipe), drops=[(1, "web", [0, 1])])) as ranks,
        pytest.raises(DataError, match="the amendments drop all documents of the lane"),
    ):
        take_steps(ranks, 3)


# The table --------------------------------------------------------------------------------------------------


def test_a_table_without_amendments_has_the_hash_it_always_had() -> None:
    table = ScheduleTable(("web",), (0,), ((PARTS,),))
    assert table.hash() == "02db521af7c63e1337d3c95ffe3bf1af3909c8ad50b98460f7911e823d209198"


def test_skips_and_drops_are_in_hash_past_and_differences() -> None:
    table = ScheduleTable(("web",), (0,), ((PARTS,),))
    drop = Drop(7, (("web", "a.jsonl", 1),))
    for other, step in ((replace(table, skips=((4, 6),)), 4), (replace(table, drops=(drop,)), 7)):
        assert other.hash() != table.hash()
        assert other.past(step) == table.past(step)
        assert other.past(step + 1) != table.past(step + 1)
        assert other.first_difference(table, step) is None
        assert table.first_difference(other, step + 1) == step
        assert ScheduleTable.from_json(json.loads(json.dumps(other.to_json()))) == other
        assert other.with_datasets(("web", "code")).skips == other.skips
        assert other.with_datasets(("web", "code")).drops == other.drops


def test_shares_of_skipped_steps_are_of_the_step_they_are_drawn_ahead_of() -> None:
    """They decide which rows are dropped, so a change of them changes the rows of the step."""
    table = ScheduleTable(("web", "code"), (0, 6), ((PARTS, 0), (0, PARTS)), skips=((4, 7),))
    other = ScheduleTable(("web", "code"), (0, 5), ((PARTS, 0), (0, PARTS)), skips=((4, 7),))
    assert table.first_difference(other, 4) is None
    assert table.first_difference(other, 5) == 4
    assert table.past(4) == other.past(4)
    assert table.past(5) != other.past(5)
