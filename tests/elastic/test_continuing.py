"""A phase goes on where the one before it stood: no token is lost or read twice, on any number of ranks."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.elastic.cases import PACKERS, block_sizes, corpora, divisors, recipes, stages, ways
from tests.helpers import (
    INLINE,
    digest_of,
    digests,
    loaders,
    make_recipe,
    open_small,
    sized,
    take_steps,
    tokens_of,
    union,
    words,
)
from zephon.batch import Batch
from zephon.dataset import Dataset
from zephon.errors import StateError
from zephon.lanestate import LaneState
from zephon.loader import Loader
from zephon.opened import Opened
from zephon.options import LoaderOptions
from zephon.recipe import Recipe
from zephon.shares import PARTS
from zephon.stages import Constant, Stages
from zephon.state import read_lane

State = dict[str, Any]
STEPS = 5
DOCUMENTS = {"web": words("web", 11, (1, 4, 9)), "code": sized(5, (3, 40)), "books": sized(3, (70, 2))}
SCHEDULE = Stages(
    {
        0: {"web": 3, "code": 1, "books": 0},
        2: {"web": 0, "code": 1, "books": 0},
        4: {"web": 1, "code": 1, "books": 0},
        7: {"web": 1, "code": 1, "books": 2},
    }
)


def small(kind: str = "wrap", schedule: Any = SCHEDULE, **fields: Any) -> Recipe:
    options = {"pool_documents": 4} if kind == "best_fit" else {}
    given: dict[str, Any] = {"lanes": 4, "global_batch_size": 8, "options": options}
    return make_recipe(DOCUMENTS, schedule, kind=kind, **given | fields)


def from_step(schedule: Any, step: int) -> Stages:
    """Returns the schedule that has at step s what `schedule` has at s + `step`."""
    starts = [0, *(start - step for start in schedule.changes() if start > step)]
    return Stages({start: schedule.weights(start + step) for start in starts})


def state_at(opened: Opened, step: int, world: int = 1, options: LoaderOptions = INLINE) -> State:
    with loaders(opened, world, options) as ranks:
        take_steps(ranks, step)
        return union(ranks)


def go_on(
    opened: Opened, state: State, num_steps: int, world: int, options: LoaderOptions = INLINE
) -> list[str]:
    with loaders(opened, world, options) as ranks:
        for loader in ranks:
            loader.load_state_dict(state)
        return [digest_of(step) for step in take_steps(ranks, num_steps)]


# The same rows ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["wrap", "best_fit"])
def test_a_phase_of_the_same_shape_is_the_unbroken_run(kind: str) -> None:
    """Also of a third phase that continues the second, and on any number of ranks."""
    whole = open_small(small(kind))
    expected = digests(whole, 12)
    for step in range(STEPS):
        second = small(kind, from_step(SCHEDULE, step)).continue_from(state_at(whole, step, 2))
        opened = open_small(second)
        for world in divisors(4):
            assert digests(opened, 5, world) == expected[step : step + 5]
        third = small(kind, from_step(SCHEDULE, step + 3)).continue_from(state_at(opened, 3, 4))
        assert third.fingerprint() != second.fingerprint() != whole.recipe.fingerprint()
        for world in divisors(4):
            assert digests(open_small(third), 4, world) == expected[step + 3 : step + 7]


@pytest.mark.parametrize("kind", ["wrap", "best_fit"])
def test_a_phase_is_resumed_in_its_middle(kind: str) -> None:
    whole = open_small(small(kind))
    expected = digests(whole, 12)
    opened = open_small(small(kind, from_step(SCHEDULE, 3)).continue_from(state_at(whole, 3)))
    for step in range(STEPS):
        for written_by, read_by in ((1, 4), (4, 2), (2, 1)):
            state = state_at(opened, step, written_by)
            assert go_on(opened, state, 3, read_by) == expected[3 + step : 6 + step]


@settings(max_examples=25)
@given(st.data())
def test_any_phase_of_the_same_shape_run_in_any_way(data: st.DataObject) -> None:
    recipe = replace(data.draw(recipes(("wrap", "best_fit"))), flush_every=None)
    step, more = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 3))
    whole = open_small(recipe)
    expected = digests(whole, step + more + 3)
    second = replace(recipe, schedule=from_step(recipe.schedule, step)).continue_from(state_at(whole, step))
    opened, way = open_small(second), data.draw(ways(recipe))
    options = LoaderOptions(
        micro_batch_size=way.micro_batch_size,
        executor=way.executor,
        workers=way.workers,
        prefetch=way.prefetch,
    )
    with block_sizes(way):
        state = state_at(opened, more, way.world, options)
        assert go_on(opened, state, 3, way.world, options) == expected[step + more :]


@st.composite
def shapes(draw: st.DrawFn, names: list[str]) -> dict[str, Any]:
    """Draws what a phase may have otherwise than another."""
    kind = draw(st.sampled_from(PACKERS))
    return {
        "kind": kind,
        "seq_len": draw(st.sampled_from([1, 2, 5, 16, 33])),
        "options": {"pool_documents": draw(st.integers(1, 6))} if kind == "best_fit" else {},
        "global_batch_size": 6 * draw(st.integers(1, 3)),
        "flush_every": draw(st.integers(1, 4)) if kind == "sorted_rows" else None,
        "schedule": draw(stages(names)),
    }


@settings(max_examples=15)
@given(st.data())
def test_a_phase_of_any_shape_gives_the_same_rows_in_any_way(data: st.DataObject) -> None:
    """With other rows, packer and weights: on any ranks, and resumed after any step at any other ranks."""
    documents = data.draw(corpora())
    first = data.draw(shapes(list(documents)).filter(lambda shape: shape["kind"] != "sorted_rows"))
    second = data.draw(shapes(list(documents)))
    state = state_at(open_small(make_recipe(documents, lanes=6, **first)), data.draw(st.integers(0, 5)))
    opened = open_small(make_recipe(documents, lanes=6, **second).continue_from(state))
    expected = digests(opened, 6)
    assert digests(opened, 6, data.draw(st.sampled_from([2, 3, 6]))) == expected
    step, worlds = data.draw(st.integers(1, 4)), st.sampled_from([1, 2, 3, 6])
    state = state_at(opened, step, data.draw(worlds))
    assert go_on(opened, state, 2, data.draw(worlds)) == expected[step : step + 2]


# No token is lost -------------------------------------------------------------------------------------------

Spans = dict[tuple[int, int, int], list[tuple[int, int]]]
"""By lane, dataset and position: [begin, end) of each piece in the document."""


def add_pieces(spans: Spans, opened: Opened, batch: Batch) -> None:
    """Adds the pieces of a batch; the tokens of each are those of its document."""
    pieces, begins = batch.pieces, [0] * len(batch.rows)
    for i, row in enumerate(pieces.row.tolist()):
        begin = begins[row]
        lane, length = int(batch.lanes[row]), int(pieces.length[i])
        dataset, position, offset = (int(c[i]) for c in (pieces.dataset, pieces.position, pieces.offset))
        spans[lane, dataset, position].append((offset, offset + length))
        found = batch.inputs[row, begin : begin + length].tolist()
        assert found == tokens_of(opened, dataset, lane, position)[offset : offset + length]
        begins[row] += length


def pass_over(shapes: Sequence[dict[str, Any]], steps: Sequence[int], documents: Any) -> None:
    """Checks that phases of these shapes give each document once: so many steps each, the last to the end."""
    spans: Spans = defaultdict(list)
    datasets = tuple(replace(Dataset.from_documents(n, d), max_epochs=1) for n, d in documents.items())
    state: State | None = None
    for shape, num_steps in zip(shapes, [*steps, None], strict=True):
        recipe = make_recipe(datasets=datasets, lanes=4, when_exhausted="pad", **shape)
        opened = open_small(recipe if state is None else recipe.continue_from(state))
        with loaders(opened) as (loader,):
            batches = take_steps([loader], num_steps) if num_steps is not None else [list(loader)]
            for batch in (batch for step in batches for batch in step):
                add_pieces(spans, opened, batch)
            state = loader.state_dict()
    for lane in range(4):
        for dataset in range(len(datasets)):
            for position in range(opened.orders[dataset].end(lane)):
                whole, at = len(tokens_of(opened, dataset, lane, position)), 0
                for begin, end in sorted(spans.pop((lane, dataset, position), [])):
                    assert begin == at
                    at = end
                assert at == whole
    assert not spans


LONG = {"web": words("web", 60, (1, 4, 9)), "code": sized(40, (3, 40, 150))}


@pytest.mark.parametrize("kinds", [("wrap", "wrap"), ("best_fit", "best_fit"), ("best_fit", "wrap")])
def test_every_token_comes_once_over_phases_of_16_and_64_tokens(kinds: tuple[str, str]) -> None:
    first = {"kind": kinds[0], "seq_len": 16, "global_batch_size": 8}
    second = {"kind": kinds[1], "seq_len": 64, "global_batch_size": 4}
    for num_steps in (1, 4):
        pass_over([first, second], [num_steps], LONG)


@pytest.mark.parametrize("kind", PACKERS)
def test_pieces_longer_than_the_new_rows_are_cut(kind: str) -> None:
    """A pool of 64 tokens a piece goes through rows of 16, and of 5; what a third phase meets is in order."""
    more = {"flush_every": 2} if kind == "sorted_rows" else {}
    first = {"kind": "best_fit", "seq_len": 64, "global_batch_size": 8, "options": {"pool_documents": 4}}
    second = {"kind": kind, "seq_len": 16, "global_batch_size": 4, **more}
    pass_over([first, second], [1], LONG)
    if kind != "sorted_rows":
        third = {"kind": "best_fit", "seq_len": 5, "global_batch_size": 12}
        pass_over([first, second, third], [1, 1], LONG)
        pass_over([first, second, third], [2, 0], LONG)


@pytest.mark.parametrize("is_third", [False, True])
def test_what_a_pool_held_goes_first_in_its_order(is_third: bool) -> None:
    """`wrap` gives it token by token, over rows and restores, before the first draw.

    As a third phase: first what the second has in its pool, then what it has not taken from the first.
    """
    first = make_recipe(LONG, kind="best_fit", seq_len=64, options={"pool_documents": 5})
    state = state_at(open_small(first), 3)
    if is_third:
        second = make_recipe(LONG, kind="best_fit", seq_len=16, options={"pool_documents": 2})
        state = state_at(open_small(second.continue_from(state)), 1)
    opened = open_small(make_recipe(LONG, seq_len=16).continue_from(state))
    drawn: list[list[int]] = [[] for _ in range(4)]
    late = None
    for _ in range(20):
        with loaders(opened) as (loader,):
            if late is not None:
                loader.load_state_dict(late)
            batch, late = next(loader), loader.state_dict()
        for lane, row in zip(batch.lanes.tolist(), batch.inputs.tolist(), strict=True):
            drawn[lane] += row
    for lane, found in enumerate(drawn):
        held: list[int] = []
        entry = json.loads(state[f"lane_0000{lane}"])
        assert bool(entry.get("held")) == is_third
        for dataset, position, _, offset, length in entry["carry"] + entry.get("held", []):
            held += tokens_of(opened, dataset, lane, position)[offset : offset + length]
        assert 64 < len(held) < len(found)
        assert found[: len(held)] == held


@settings(max_examples=25)
@given(st.data())
def test_every_token_comes_once_over_phases_of_any_shape(data: st.DataObject) -> None:
    documents = data.draw(corpora())

    def shape(kinds: tuple[str, ...]) -> dict[str, Any]:
        kind = data.draw(st.sampled_from(kinds))
        return {
            "kind": kind,
            "seq_len": data.draw(st.sampled_from([2, 5, 16, 33])),
            "options": {"pool_documents": data.draw(st.integers(1, 6))} if kind == "best_fit" else {},
            "global_batch_size": 4 * data.draw(st.integers(1, 2)),
        }

    opened = open_small(
        make_recipe(
            datasets=tuple(replace(Dataset.from_documents(n, d), max_epochs=1) for n, d in documents.items()),
            lanes=4,
            when_exhausted="pad",
            **(first := shape(("wrap", "best_fit"))),
        )
    )
    with loaders(opened) as (loader,):
        states = [loader.state_dict() for _ in loader]
    num_live = sum(
        all(b"replay_rows" not in v for k, v in s.items() if k.startswith("lane_")) for s in states
    )
    if num_live:
        pass_over([first, shape(PACKERS)], [data.draw(st.integers(1, num_live))], documents)


# The mix ----------------------------------------------------------------------------------------------------


def lane_states(loader: Loader) -> list[LaneState]:
    state, number = loader.state_dict(), len(loader.opened.recipe.datasets)
    return [read_lane(state[f"lane_{lane:05d}"], lane, number)[0] for lane in loader.lanes]


@pytest.mark.parametrize("kind", ["wrap", "best_fit"])
def test_the_mix_of_a_phase_is_within_its_bound(kind: str) -> None:
    """Drawn minus the integral of the share is the credit that was carried over minus the credit."""
    state = state_at(open_small(small(kind, Constant({"web": 3, "code": 1, "books": 1}))), 4)
    weights = {"web": 1, "code": 2, "books": 3}
    opened = open_small(small(kind, Constant(weights), seq_len=32).continue_from(state))
    shares = opened.table.at(0)
    with loaders(opened) as (loader,):
        before = lane_states(loader)
        for _ in range(12):
            next(loader)
            for old, new in zip(before, lane_states(loader), strict=True):
                total = sum(new.tokens)
                for i, share in enumerate(shares):
                    drawn = new.tokens[i] * PARTS - share * total
                    assert drawn == old.credits[i] - new.credits[i]
                    assert abs(new.credits[i]) <= (2 + 1.5 + 2) * 72 * PARTS


def test_first_credits_come_once_over_all_phases() -> None:
    """Web and code had a share: only books, whose share was 0 so far, gets credits as one that begins."""
    even, all_three = {"web": 1, "code": 1, "books": 0}, {"web": 1, "code": 1, "books": 2}
    state = state_at(open_small(small(schedule=Constant(even))), 3)
    second = open_small(small(schedule=Stages({0: even, 2: all_three})).continue_from(state))
    with loaders(second) as (loader,):
        assert loader._table.mixed.fresh == {2: (2,)}
        assert loader._table.mixed.first_active() == (0, 0, 2)
        take_steps([loader], 3)
        late = loader.state_dict()
    third = open_small(small(schedule=Constant(all_three)).continue_from(late))
    with loaders(third) as (loader,):
        assert loader._table.mixed.fresh == {}
    early = open_small(small(schedule=Constant(all_three)).continue_from(state_at(second, 2)))
    with loaders(early) as (loader,):
        assert loader._table.mixed.fresh == {0: (2,)}


def test_a_share_that_no_step_of_a_state_has_reached_is_none() -> None:
    """SCHEDULE gives books a share at step 7: after 7 steps it has had none, after 8 it has."""
    whole = open_small(small())
    expected = digests(whole, 12)
    for step in (6, 7, 8):
        second = small(schedule=from_step(SCHEDULE, step)).continue_from(state_at(whole, step))
        assert digests(open_small(second), 4) == expected[step : step + 4]


# Datasets added later ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PACKERS)
def test_a_dataset_added_later_is_one_that_was_there_from_the_start(kind: str) -> None:
    """Run A knows x and y for 5 steps, then z, with a share from step 8 on; run B knows all three from 0."""
    texts = {"x": words("x", 11, (1, 4)), "y": sized(5, (3, 40)), "z": words("z", 7)}
    more: dict[str, Any] = {"lanes": 4, "global_batch_size": 8, "kind": kind}
    more |= {"flush_every": 3} if kind == "sorted_rows" else {}
    two = {name: texts[name] for name in ("x", "y")}
    before, after = {"x": 3, "y": 1}, {"x": 1, "y": 1, "z": 2}
    told_late = open_small(make_recipe(two, Constant(before), **more))
    known = open_small(make_recipe(texts, Stages({0: before | {"z": 0}, 8: after}), **more))
    expected = digests(known, 12)
    assert digests(told_late, 8) == expected[:8]
    whole = {key: value for key, value in state_at(known, 12).items() if key.startswith("lane_")}
    for step in (0, 5, 8):
        state = state_at(told_late, step, 2)
        for world in divisors(4):
            with loaders(known, world) as ranks:
                for loader in ranks:
                    loader.load_state_dict(state)
                    assert loader.notes[-1] == "added: z, from step 8 on"
                found = [digest_of(batches) for batches in take_steps(ranks, 12 - step)]
                assert found == expected[step:]
                ends = union(ranks)
            assert {key: ends[key] for key in ends if key.startswith("lane_")} == whole


def test_a_dataset_added_in_a_phase_that_continues() -> None:
    """At its begin and in its middle; its first credits are those of a phase that knew it from the start."""
    texts = DOCUMENTS | {"z": words("z", 7)}
    none, some = {"web": 1, "code": 1, "books": 1}, {"web": 1, "code": 1, "books": 1, "z": 1}
    state = state_at(open_small(small(schedule=Constant(none))), 3)
    without = open_small(small(schedule=Constant(none), seq_len=32).continue_from(state))
    fields: dict[str, Any] = {"lanes": 4, "global_batch_size": 8, "seq_len": 32}
    with_z = make_recipe(texts, Stages({0: none | {"z": 0}, 4: some}), **fields).continue_from(state)
    opened = open_small(with_z)
    expected = digests(opened, 8)
    assert digests(without, 4) == expected[:4]
    assert go_on(opened, state_at(without, 2), 6, 2) == expected[2:]
    with loaders(opened) as (loader,):
        assert "added: z, from step 4 on" in loader.notes
        assert loader._table.mixed.fresh == {4: (3,)}


# A packer that cannot say what it holds ---------------------------------------------------------------------


def test_a_state_between_flushes_is_refused_and_at_a_flush_it_is_continued() -> None:
    recipe = small("sorted_rows", flush_every=1, lanes=8)
    expected = digests(open_small(recipe), 12)
    begun = []
    for step in range(7):
        state = state_at(open_small(recipe), step)
        is_between = any(b"replay_rows" in v for key, v in state.items() if key.startswith("lane_"))
        second = small("sorted_rows", from_step(SCHEDULE, step), flush_every=1, lanes=8)
        if not is_between:
            begun.append(step)
            assert digests(open_small(second.continue_from(state)), 3, 2) == expected[step : step + 3]
            continue
        with pytest.raises(StateError, match="what its packer holds has no address") as caught:
            second.continue_from(state)
        assert "continue from a step at which no lane's entry has `replay_rows`" in str(caught.value)
    assert 0 < len(begun) < 7
