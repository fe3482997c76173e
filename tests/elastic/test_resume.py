"""C8: from a state taken anywhere, on any ranks, a run goes on as if it had never stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.elastic.cases import PACKERS, block_sizes, divisors, recipes, ways
from tests.helpers import (
    batches_per_step,
    digest_of,
    digests,
    loaders,
    make_recipe,
    open_small,
    sized,
    take_steps,
    union,
    words,
)
from zephon.batch import Batch
from zephon.errors import StateError, ZephonError
from zephon.loader import Loader
from zephon.opened import Opened
from zephon.options import LoaderOptions
from zephon.recipe import Recipe
from zephon.stages import Stages

STEPS = 6
INLINE = LoaderOptions(executor="inline")
State = dict[str, Any]


def go_on(
    opened: Opened, state: State, num_steps: int, world: int, options: LoaderOptions = INLINE
) -> tuple[list[str], State]:
    """Returns the digests of the next steps after `state`, and the state after them."""
    with loaders(opened, world, options) as ranks:
        for loader in ranks:
            loader.load_state_dict(state)
        return [digest_of(step) for step in take_steps(ranks, num_steps)], union(ranks)


def lanes_of(state: State) -> State:
    """Returns the entries of the lanes."""
    return {key: value for key, value in state.items() if key.startswith("lane_")}


def small(kind: str, **fields: Any) -> Recipe:
    """Returns a recipe of two datasets whose documents are shorter and longer than a row."""
    documents = {"web": words("web", 11, (1, 4, 9)), "code": sized(5, (3, 40))}
    schedule = Stages({0: {"web": 3, "code": 1}, 2: {"web": 0, "code": 1}, 4: {"web": 1, "code": 1}})
    options = {"pool_documents": 4} if kind == "best_fit" else {}
    flush_every = 4 if kind == "sorted_rows" else None
    given: dict[str, Any] = {"lanes": 4, "global_batch_size": 8, "flush_every": flush_every}
    return make_recipe(documents, schedule, kind=kind, options=options, **given | fields)


@pytest.mark.parametrize("kind", PACKERS)
def test_from_every_step_on_every_number_of_ranks(kind: str) -> None:
    opened = open_small(small(kind))
    expected = digests(opened, 2 * STEPS)
    for written_by in divisors(4):
        with loaders(opened, written_by) as ranks:
            for step in range(STEPS):
                state = union(ranks)
                for world in divisors(4):
                    assert go_on(opened, state, 4, world)[0] == expected[step : step + 4]
                take_steps(ranks, 1)


@settings(max_examples=25)
@given(st.data())
def test_from_anywhere_in_any_way(data: st.DataObject) -> None:
    recipe = data.draw(recipes())
    opened = open_small(recipe)
    expected = digests(opened, STEPS)
    state: State | None = None
    step = 0
    while step < STEPS:  # a chain of runs, each in its own way
        way = data.draw(ways(recipe))
        options = LoaderOptions(
            micro_batch_size=way.micro_batch_size,
            executor=way.executor,
            workers=way.workers,
            prefetch=way.prefetch,
        )
        num_steps = min(data.draw(st.integers(0, 3)), STEPS - step) if step else 1
        with block_sizes(way), loaders(open_small(recipe), way.world, options) as ranks:
            for loader in ranks:
                if state is not None:
                    loader.load_state_dict(state)
            found = [digest_of(batches) for batches in take_steps(ranks, num_steps)]
            state = union(ranks)
        assert found == expected[step : step + num_steps]
        step += num_steps or 1
        if not num_steps:
            break


@pytest.mark.parametrize("kind", PACKERS)
def test_a_chain_of_restores_is_one_run(kind: str) -> None:
    """The second restore is the one that fails where a restored loader does not move its state."""
    opened = open_small(small(kind))
    expected = digests(opened, 15)
    with loaders(opened) as ranks:
        state, found = union(ranks), []
    for link in range(5):
        steps, state = go_on(opened, state, 3, divisors(4)[link % 3])
        found += steps
    assert found == expected


@pytest.mark.parametrize("kind", PACKERS)
def test_inside_a_step_on_its_own_ranks_and_batches(kind: str) -> None:
    """8 rows a step on 2 ranks in batches of 1: the states after every batch of three steps."""
    opened = open_small(small(kind))
    expected = digests(opened, 5)
    for micro in (1, 2):
        options = LoaderOptions(executor="inline", micro_batch_size=micro)
        with loaders(opened, 2, options) as ranks:
            given_out: list[list[Batch]] = []
            for _ in range(3 * batches_per_step(ranks[0])):
                _check_rest(opened, union(ranks), given_out, expected, options)
                given_out.append([next(loader) for loader in ranks])


def _check_rest(
    opened: Opened, state: State, given_out: list[list[Batch]], expected: list[str], options: LoaderOptions
) -> None:
    """Goes on from `state` to the end of step 3, and compares the steps, the begun one included."""
    done = [batch for batches in given_out for batch in batches]
    with loaders(opened, 2, options) as ranks:
        for loader in ranks:
            loader.load_state_dict(state)
        missing = 4 * batches_per_step(ranks[0]) - len(given_out)
        done += [batch for loader in ranks for batch in islice(loader, missing)]
    for step in range(4):
        assert digest_of([batch for batch in done if batch.step == step]) == expected[step]


def test_inside_a_step_other_ranks_and_batches_are_refused() -> None:
    opened = open_small(small("wrap"))
    options = LoaderOptions(executor="inline", micro_batch_size=1)
    with loaders(opened, 2, options) as ranks:
        for loader in ranks:
            next(loader)
        state = union(ranks)
    for world, micro in ((1, 1), (4, 1), (2, 2)):
        with (
            loaders(opened, world, options, micro_batch_size=micro) as ranks,
            pytest.raises(
                StateError, match="inside a step it restores only on 2 ranks and batches of 1 rows"
            ),
        ):
            ranks[0].load_state_dict(state)


def test_inside_a_step_its_weights_cannot_change() -> None:
    """Half of its rows are delivered by the weights of the state."""
    opened = open_small(small("wrap"))
    with loaders(opened, options=LoaderOptions(executor="inline", micro_batch_size=2)) as (loader,):
        for _ in range(2 * batches_per_step(loader) + 1):
            next(loader)
        state = loader.state_dict()
        assert loader.num_steps == 2
    for step in (2, 3):
        recipe = small("wrap")
        stages = dict(recipe.schedule.stages) | {step: {"web": 1, "code": 2}}
        with loaders(open_small(replace(recipe, schedule=Stages(stages))), micro_batch_size=2) as (loader,):
            if step == 2:
                with pytest.raises(
                    StateError, match=r"(?s)first in \[2, 3\).*2 steps are done, and one is begun"
                ):
                    loader.load_state_dict(state)
                loader.load_state_dict(state, allow=["schedule"])
                assert loader.notes == ["accepted: the schedule differs from the state's in steps [2, 3)"]
            else:
                loader.load_state_dict(state)
                assert loader.notes == ["the schedule differs from the state's at steps from 3 on: accepted"]


@pytest.mark.parametrize("kind", PACKERS)
def test_states_do_not_depend_on_how_the_run_was_made(kind: str) -> None:
    """What was prefetched is no part of a state, nor are ranks, blocks and micro-batches at a step's end."""
    opened = open_small(small(kind))
    expected = _states(opened, INLINE)
    for world, prefetch, micro in ((1, 4, None), (2, 1, 1), (4, 4, 1), (2, 0, 2)):
        options = LoaderOptions(workers=2, prefetch=prefetch, micro_batch_size=micro)
        assert _states(opened, options, world) == expected


def _states(opened: Opened, options: LoaderOptions, world: int = 1) -> list[State]:
    states = []
    with loaders(opened, world, options) as ranks:
        for _ in range(STEPS):
            states.append(union(ranks))
            take_steps(ranks, 1)
    return states


def _state_after(opened: Opened, num_steps: int, options: LoaderOptions, world: int = 1) -> State:
    with loaders(opened, world, options) as ranks:
        take_steps(ranks, num_steps)
        return union(ranks)


@pytest.mark.parametrize("kind", PACKERS)
def test_taking_a_state_disturbs_nothing(kind: str) -> None:
    opened = open_small(small(kind))
    expected = digests(opened, STEPS)
    found = []
    with loaders(opened, workers=2, executor="threads", prefetch=4) as ranks:
        for _ in range(STEPS):
            assert union(ranks) == union(ranks)
            found.append(digest_of(take_steps(ranks, 1)[0]))
    assert found == expected


@pytest.mark.parametrize("kind", PACKERS)
def test_a_restored_state_is_the_state(kind: str) -> None:
    """But for the number of the attempt: what a lane's entry says is what it was restored from."""
    opened = open_small(small(kind))
    with loaders(opened) as ranks:
        for _ in range(STEPS):
            take_steps(ranks, 1)
            state = union(ranks)
            _, again = go_on(opened, state, 0, 1)
            assert lanes_of(again) == lanes_of(state)
            before, after = (json.loads(one["schedule"]) for one in (state, again))
            assert after.pop("attempt") == before.pop("attempt") + 1
            assert after == before


@pytest.mark.parametrize("kind", PACKERS)
def test_the_size_of_a_state_does_not_grow(kind: str) -> None:
    """After 400 steps the numbers have more digits, and nothing more."""
    opened = open_small(small(kind))
    with loaders(opened) as ranks:
        take_steps(ranks, 392)
        for _ in range(8):
            take_steps(ranks, 1)
            for entry in lanes_of(union(ranks)).values():
                assert len(json.loads(entry).get("carry", ())) <= 4
                assert len(entry) < 330


def test_the_end_of_an_epoch_is_no_special_place() -> None:
    """12 documents of 15 letters and their ends fill 12 rows: an epoch is 3 steps of 4 rows."""
    opened = open_small(make_recipe({"web": sized(12, (15,))}))
    expected = digests(opened, 9)
    assert len(set(expected)) == 9
    for step in (2, 3, 4, 5, 6, 7):
        state = _state_after(opened, step, INLINE)
        assert go_on(opened, state, 9 - step, 2)[0] == expected[step:]


def test_rows_between_flushes_are_part_of_the_recipe() -> None:
    state = _state_after(open_small(small("sorted_rows")), 2, INLINE)
    with (
        loaders(open_small(small("sorted_rows", flush_every=5))) as ranks,
        pytest.raises(StateError, match="flush_every: state has 4, this run has 5"),
    ):
        ranks[0].load_state_dict(state)


def test_a_state_comes_before_the_first_batch() -> None:
    opened = open_small(small("wrap"))
    with loaders(opened) as ranks:
        state = ranks[0].state_dict()
        next(ranks[0])
        with pytest.raises(ZephonError, match="before the first batch"):
            ranks[0].load_state_dict(state)


def test_a_state_may_be_loaded_over_another() -> None:
    opened = open_small(small("best_fit"))
    expected = digests(opened, STEPS)
    early, late = (_state_after(opened, step, INLINE) for step in (2, 4))
    with loaders(opened) as ranks:
        ranks[0].load_state_dict(late)
        ranks[0].load_state_dict(early)
        assert [digest_of(step) for step in take_steps(ranks, 4)] == expected[2:6]


def test_each_rank_needs_its_own_lanes_only() -> None:
    opened = open_small(small("best_fit"))
    expected = digests(opened, STEPS)
    with loaders(opened, 2) as ranks:
        take_steps(ranks, 3)
        states = [loader.state_dict() for loader in ranks]
        assert [sorted(lanes_of(s)) for s in states] == [
            ["lane_00000", "lane_00001"],
            ["lane_00002", "lane_00003"],
        ]
        shared = [{k: v for k, v in s.items() if not k.startswith("lane_")} for s in states]
        assert shared[0] == shared[1]
    with loaders(opened, 2) as ranks:
        for loader, state in zip(ranks, states, strict=True):
            loader.load_state_dict(state)
        assert [digest_of(step) for step in take_steps(ranks, 3)] == expected[3:]


def test_lanes_that_are_missing_are_named() -> None:
    opened = open_small(small("wrap"))
    with loaders(opened, 2) as ranks:
        take_steps(ranks, 1)
        first = ranks[0].state_dict()
    with loaders(opened) as ranks, pytest.raises(StateError) as caught:
        ranks[0].load_state_dict(first)
    assert "lacks 2 of this rank's 4 lanes, first lane_00002" in str(caught.value)
    assert "the union of all ranks' states" in str(caught.value)


def test_lanes_of_two_steps_are_refused() -> None:
    opened = open_small(small("wrap"))
    early, late = (_state_after(opened, step, INLINE) for step in (2, 3))
    for torn in (late | {"lane_00001": early["lane_00001"]}, early | {"lane_00000": late["lane_00000"]}):
        with loaders(opened) as ranks, pytest.raises(StateError, match="do not belong together"):
            ranks[0].load_state_dict(torn)


def test_lanes_of_two_steps_are_refused_by_some_rank_though_each_rank_s_own_agree() -> None:
    """No rank sees the other's lanes, but all see the step of the shared entries."""
    opened = open_small(small("wrap"))
    early, late = (_state_after(opened, step, INLINE) for step in (2, 3))
    torn = late | {lane: early[lane] for lane in ("lane_00000", "lane_00001")}
    with loaders(opened, 2) as ranks:
        refused = [_is_refused(loader, torn) for loader in ranks]
    assert any(refused)


def _is_refused(loader: Loader, state: State) -> bool:
    try:
        loader.load_state_dict(state)
    except StateError:
        return True
    return False


def test_a_refused_state_leaves_the_loader_at_the_start() -> None:
    opened = open_small(small("wrap"))
    expected = digests(opened, 2)
    late = _state_after(opened, 3, INLINE)
    with loaders(opened) as ranks:
        with pytest.raises(StateError):
            ranks[0].load_state_dict({k: v for k, v in late.items() if k != "lane_00002"})
        assert [digest_of(step) for step in take_steps(ranks, 2)] == expected


def test_each_restore_is_an_attempt() -> None:
    opened = open_small(small("wrap"))
    state = _state_after(opened, 0, INLINE)
    for attempt in range(3):
        assert json.loads(state["schedule"])["attempt"] == attempt
        _, state = go_on(opened, state, 1, 1)


def test_closing_in_the_middle_and_going_on_in_a_new_loader() -> None:
    opened = open_small(small("best_fit"))
    expected = digests(opened, STEPS)
    options = LoaderOptions(workers=2, prefetch=4)
    loader = Loader(opened, options)
    take_steps([loader], 2)
    loader.close()
    assert go_on(opened, loader.state_dict(), 2, 1)[0] == expected[2:4]
