"""C15: data that end, end for all ranks at one step, and every document comes once whatever the run."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.elastic.cases import divisors
from tests.elastic.endings import (
    check_each_once,
    finite_recipes,
    rows_of_lane,
    run_leg,
    texts,
)
from tests.helpers import (
    digest_of,
    loaders,
    make_recipe,
    open_small,
    read,
    sized,
    take_steps,
    tokens_of,
    words,
)
from zephon.dataset import Dataset
from zephon.errors import DataError, ZephonError
from zephon.lane import Lane
from zephon.loader import Loader
from zephon.options import LoaderOptions
from zephon.recipe import Recipe
from zephon.stages import Constant, Stages

MODES = ("stop", "redistribute", "pad")


def finite(*counts: int, mode: str = "redistribute", epochs: int = 1, **fields: Any) -> Recipe:
    """Returns a recipe of datasets of so many documents, each read once."""
    datasets = tuple(
        Dataset.from_documents(f"d{i}", sized(count, (5, 9, 2), "aA0"[i]), max_epochs=epochs)
        for i, count in enumerate(counts)
    )
    return make_recipe(datasets=datasets, when_exhausted=mode, **fields)


# All of it, once --------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_document_comes_once_through_any_chain_of_restores(data: st.DataObject) -> None:
    recipe = data.draw(finite_recipes())
    opened = open_small(recipe)
    whole = run_leg(opened)
    check_each_once(opened, whole.steps, all_of_it=recipe.when_exhausted == "pad")
    steps, state, ended = [], None, False
    while not ended:
        rows = recipe.global_batch_size // (world := data.draw(st.sampled_from(divisors(recipe.lanes))))
        leg = run_leg(
            opened,
            world,
            state,
            data.draw(st.integers(1, 4)),
            micro_batch_size=data.draw(st.sampled_from(divisors(rows))),
            executor=data.draw(st.sampled_from(["inline", "threads", "dawdling"])),
            prefetch=data.draw(st.sampled_from([0, 2])),
        )
        steps += leg.digests
        state, ended = leg.states[-1], leg.ended
    assert steps == whole.digests


@settings(max_examples=40, deadline=None)
@given(finite_recipes())
def test_from_every_step_the_rest_is_the_same(recipe: Recipe) -> None:
    opened = open_small(recipe)
    whole = run_leg(opened)
    for step, state in enumerate(whole.states):
        rest = run_leg(opened, max(d for d in (1, 2) if recipe.lanes % d == 0), state)
        assert rest.digests == whole.digests[step:]
        ours = [{k: v for k, v in s.items() if k != "schedule"} for s in rest.states]
        assert ours == [{k: v for k, v in s.items() if k != "schedule"} for s in whole.states[step:]]


@settings(max_examples=60, deadline=None)
@given(finite_recipes(packers=("wrap",)))
def test_wrap_gives_what_asking_before_every_document_does(recipe: Recipe) -> None:
    opened = open_small(recipe)
    whole = run_leg(opened)
    expected = [rows_of_lane(opened, lane) for lane in range(recipe.lanes)]
    if recipe.when_exhausted != "pad":
        assert len(whole.steps) == min(len(rows) for rows in expected) // recipe.rows_per_step
    for batch in (batch for step in whole.steps for batch in step):
        for lane, row, inputs in zip(batch.lanes, batch.rows, batch.inputs.tolist(), strict=True):
            if row < len(expected[lane]):
                assert inputs == expected[lane][row]


@settings(max_examples=30, deadline=None)
@given(finite_recipes(("redistribute",), packers=("wrap",)))
def test_redistribute_leaves_less_than_a_step_of_the_shortest_lane(recipe: Recipe) -> None:
    opened = open_small(recipe)
    lane_tokens = np.zeros(recipe.lanes, dtype=np.int64)
    for lane in range(recipe.lanes):
        for dataset, order in enumerate(opened.orders):
            for position in range(order.end(lane)):
                lane_tokens[lane] += len(tokens_of(opened, dataset, lane, position))
    rows = lane_tokens // recipe.packing.seq_len
    assert len(run_leg(opened).steps) == int(rows.min()) // recipe.rows_per_step


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["wrap", "best_fit"])
@pytest.mark.parametrize("order", ["shuffled", "identity"])
def test_every_number_of_ranks_ends_at_the_same_step(mode: str, kind: str, order: str) -> None:
    datasets = (
        Dataset.from_documents("web", words("web", 90), max_epochs=2, order=order),
        Dataset.from_documents("code", words("code", 60, (1, 7)), max_epochs=1, order=order),
    )
    recipe = make_recipe(
        datasets=datasets,
        kind=kind,
        options={"pool_documents": 3} if kind == "best_fit" else {},
        lanes=4,
        global_batch_size=8,
        when_exhausted=mode,
    )
    opened = open_small(recipe)
    whole = run_leg(opened)
    assert len(whole.steps) > 3
    check_each_once(opened, whole.steps, all_of_it=mode == "pad")
    for world, changes in ((2, {"prefetch": 2}), (4, {}), (1, {"micro_batch_size": 1, "prefetch": 1})):
        leg = run_leg(opened, world, options=LoaderOptions(executor="threads"), **changes)
        assert leg.digests == whole.digests
        assert leg.num_asked == [len(whole.steps) + 1] * world


def test_worker_processes_end_alike() -> None:
    opened = open_small(finite(30, 7, mode="pad"))
    ours = run_leg(opened, options=LoaderOptions(executor="processes", workers=2, prefetch=2))
    assert ours.digests == run_leg(opened).digests


def test_epochs_are_counted() -> None:
    opened = open_small(finite(5, mode="pad", epochs=3, lanes=2, global_batch_size=2))
    assert texts(opened, 0) == sorted(sized(5, (5, 9, 2), "a") * 3)
    check_each_once(opened, run_leg(opened).steps, all_of_it=True)


def test_one_dataset_may_end_and_others_not() -> None:
    datasets = (
        Dataset.from_documents("once", sized(12, (9,)), max_epochs=1),
        Dataset.from_documents("web", sized(5, (7,), "A")),
    )
    recipe = make_recipe(datasets=datasets, when_exhausted="redistribute")
    steps = run_leg(open_small(recipe), num_steps=40).steps
    assert len(steps) == 40
    assert sum(int(b.tokens_by_dataset["once"].sum()) for step in steps for b in step) == 12 * 10
    last = steps[-1][0].tokens_by_dataset
    assert (last["once"] == 0).all()
    assert (last["web"] == 16).all()
    stopped = make_recipe(datasets=datasets, when_exhausted="stop")
    assert run_leg(open_small(stopped)).ended


# Edges ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_lanes_without_any_document(mode: str) -> None:
    opened = open_small(finite(3, mode=mode, lanes=8, global_batch_size=8))
    leg = run_leg(opened, 4)
    assert leg.ended
    assert leg.digests == run_leg(opened).digests
    assert len(leg.steps) == (1 if mode == "pad" else 0)
    check_each_once(opened, leg.steps, all_of_it=mode == "pad")
    assert run_leg(opened, 2, leg.states[-1]).steps == []


def test_a_lane_without_documents_of_one_dataset_starts_with_the_others() -> None:
    opened = open_small(finite(2, 40, mode="redistribute", lanes=4, global_batch_size=4))
    with loaders(opened) as (loader,):
        next(loader)
        for lane in loader._rank.lanes.values():
            assert sum(lane.ledger.credits) == 0
            assert sum(lane.ledger.shares) == 1 << 20
        assert [lane.ledger.shares[0] for lane in loader._rank.lanes.values()][2:] == [0, 0]
        assert [lane.ledger.credits[0] for lane in loader._rank.lanes.values()][2:] == [0, 0]


@pytest.mark.parametrize("mode", MODES)
def test_rows_that_end_exactly_with_the_data(mode: str) -> None:
    datasets = (Dataset.from_documents("web", ["a" * 8] * 6, max_epochs=1),)
    recipe = make_recipe(
        datasets=datasets, eos=False, seq_len=16, lanes=1, global_batch_size=1, when_exhausted=mode
    )
    leg = run_leg(open_small(recipe))
    assert [read(step[0].inputs[0]) for step in leg.steps] == ["a" * 16] * 3


def test_empty_documents_at_the_end_are_counted_and_end_the_run() -> None:
    documents = ["ab", "", "cd", "", ""]
    datasets = (Dataset.from_documents("web", documents, order="identity", max_epochs=1),)
    recipe = make_recipe(
        datasets=datasets, eos=False, seq_len=2, lanes=1, global_batch_size=1, when_exhausted="pad"
    )
    with loaders(open_small(recipe)) as (loader,):
        assert [read(batch.inputs[0]) for batch in loader] == ["ab", "cd"]
        (lane,) = loader._rank.lanes.values()
        assert lane.end is not None
        assert lane.end.cursors[0] == (5, 0, 0)
        assert dict(lane._counts[0]) == {"empty": 3}


def test_an_epoch_of_nothing_but_empty_documents_is_an_error() -> None:
    datasets = (
        Dataset.from_documents("void", [""] * 6, max_epochs=1),
        Dataset.from_documents("web", words("web", 9), max_epochs=1),
    )
    with pytest.raises(DataError, match="'void': no document has text"):
        run_leg(open_small(make_recipe(datasets=datasets, when_exhausted="pad")))


def test_a_document_of_many_rows_at_the_end() -> None:
    datasets = (Dataset.from_documents("web", ["ab", "c" * 100], order="identity", max_epochs=1),)
    for kind in ("wrap", "best_fit"):
        recipe = make_recipe(datasets=datasets, kind=kind, lanes=2, global_batch_size=2, when_exhausted="pad")
        opened = open_small(recipe)
        leg = run_leg(opened, 2)
        assert len(leg.steps) == 7
        check_each_once(opened, leg.steps, all_of_it=True)
        last = leg.steps[-1][0]
        assert (last.lanes[0], last.tokens.sum()) == (0, 0)
        assert (last.labels == -100).all()
        assert not last.segment_ids.any()
        assert not last.positions.any()


@pytest.mark.parametrize("kind", ["wrap", "best_fit", "sorted_rows"])
def test_padding_is_not_made_again_by_a_restore(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lane 0 ends at once and is padded while lane 1 goes on: that makes a restore no longer."""
    datasets = (Dataset.from_documents("web", ["ab", "c" * 960], order="identity", max_epochs=1),)
    recipe = make_recipe(
        datasets=datasets, eos=False, kind=kind, lanes=2, global_batch_size=2, when_exhausted="pad"
    )
    opened = open_small(recipe)
    whole = run_leg(opened)
    assert len(whole.steps) == 60
    made: list[int] = []
    make_row = Lane._make_row
    monkeypatch.setattr(Lane, "_make_row", lambda self: made.append(self.ledger.lane) or make_row(self))  # type: ignore[func-returns-value]
    for step in (2, 3, 50):
        made.clear()
        rest = run_leg(opened, 2, whole.states[step], num_steps=2)
        assert rest.digests == whole.digests[step : step + 2]
        for found, expected in zip(rest.states, whole.states[step:], strict=False):
            assert [found[f"lane_{i:05d}"] for i in (0, 1)] == [expected[f"lane_{i:05d}"] for i in (0, 1)]
        assert made.count(0) <= 2 + 1


def test_a_lane_that_has_ended_stays_so_when_weights_change() -> None:
    datasets = (
        Dataset.from_documents("web", ["a" * 20] * 4, max_epochs=1),
        Dataset.from_documents("code", ["b" * 20] * 40, max_epochs=1),
    )
    stages = Stages({0: {"web": 1, "code": 0}, 3: {"web": 1, "code": 1}})
    for mode, num_steps in (("pad", 2), ("redistribute", 1)):
        opened = open_small(make_recipe(datasets=datasets, schedule=stages, when_exhausted=mode))
        whole = run_leg(opened, 2)
        assert len(whole.steps) == num_steps
        assert run_leg(opened, 1, whole.states[-1]).steps == []


def test_mixed_lanes_that_end_late_keep_to_their_schedule_when_restored() -> None:
    """A lane pads since step 2; at step 4 a dataset that it never read gets a share, and is left alone."""
    datasets = (
        Dataset.from_documents(
            "web", ["a" * 20, "a" * 200, "a" * 20, "a" * 20], order="identity", max_epochs=1
        ),
        Dataset.from_documents("code", ["b" * 20] * 40, max_epochs=1),
    )
    stages = Stages({0: {"web": 1, "code": 0}, 4: {"web": 1, "code": 1}})
    opened = open_small(make_recipe(datasets=datasets, schedule=stages, when_exhausted="pad"))
    whole = run_leg(opened)
    assert len(whole.steps) > 12
    last = whole.steps[-1][0]
    assert last.tokens[:, [0, 2, 3]].sum() == 0
    assert last.tokens[:, 1].sum() > 0
    code = np.sum([step[0].tokens[1] for step in whole.steps], axis=0)
    assert code[1] == 10 * 21
    assert code[[0, 2, 3]].sum() == 0
    for step in (3, 5, len(whole.steps) - 1):
        assert run_leg(opened, 4, whole.states[step]).digests == whole.digests[step:]


def test_the_mix_is_within_its_bound_under_redistribution() -> None:
    opened = open_small(
        finite(9, 60, 120, mode="redistribute", schedule=Constant({"d0": 3, "d1": 2, "d2": 1}))
    )
    bound = (2 + 1 + 1 / 2) * 10 * (1 << 20) + 2 * 16 * (1 << 20)
    with loaders(opened) as (loader,):
        for _ in loader:
            for lane in loader._rank.lanes.values():
                assert sum(lane.ledger.credits) == 0
                assert max(map(abs, lane.ledger.credits)) <= bound


# The loader -------------------------------------------------------------------------------------------------


def test_has_next_asks_once_a_step() -> None:
    asked: list[bool] = []

    def any_rank(says: bool) -> bool:
        asked.append(says)
        return says

    opened = open_small(finite(20, mode="pad", global_batch_size=8))
    with loaders(opened, any_rank=any_rank, micro_batch_size=2) as (loader,):
        assert loader.has_next()
        assert loader.has_next()
        assert asked == [True]
        for _ in range(4):
            next(loader)
        assert asked == [True]
        assert loader.num_steps == 1
        rest = list(loader)
        assert len(asked) == 2 + len(rest) // 4
        assert asked[-1] is False
        assert not loader.has_next()
        assert next(loader, None) is None


def test_a_recipe_without_an_end_is_never_asked() -> None:
    def any_rank(says: bool) -> bool:
        raise AssertionError("no verdict is needed")

    with loaders(open_small(make_recipe()), any_rank=any_rank) as (loader,):
        assert loader.has_next()
        assert loader._source is None
        take_steps([loader], 3)


def test_another_rank_may_end_the_run() -> None:
    opened = open_small(finite(40))
    answers = iter([False, False, True])
    with loaders(opened, any_rank=lambda _: next(answers)) as (loader,):
        assert len(list(loader)) == 2
        state = loader.state_dict()
    with loaders(opened) as (loader,):
        loader.load_state_dict(state)
        assert next(loader).step == 2


def test_a_rank_of_several_that_decides_alone_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    for recipe, world, said in ((finite(8), 2, 2), (finite(8), 1, 0), (make_recipe(), 2, 0)):
        caplog.clear()
        with loaders(open_small(recipe), world):
            assert sum("without `any_rank`" in record.message for record in caplog.records) == said


def test_an_any_rank_that_contradicts_this_rank_is_refused() -> None:
    with loaders(open_small(finite(8, mode="pad")), any_rank=lambda _: False) as (loader,):
        with pytest.raises(ValueError, match="`any_rank` must return true"):
            next(loader)
        with pytest.raises(ZephonError, match="stopped at an earlier error"):
            next(loader)


def test_inside_a_step_of_a_run_that_ends() -> None:
    opened = open_small(finite(20, mode="pad", global_batch_size=8))
    whole = [digest_of(step) for step in run_leg(opened).steps]
    asked: list[bool] = []
    options = LoaderOptions(executor="inline", micro_batch_size=2)
    for taken in range(1, 4 * len(whole)):
        with loaders(opened, options=options) as (loader,):
            first = [next(loader) for _ in range(taken)]
            state = loader.state_dict()
        asked.clear()
        with loaders(opened, options=options, any_rank=lambda says: asked.append(says) or says) as (loader,):
            loader.load_state_dict(state)
            rest = list(loader)
        batches = first + rest
        assert [digest_of(batches[i : i + 4]) for i in range(0, len(batches), 4)] == whole
        assert len(asked) == len(whole) - -(-taken // 4) + 1


@pytest.mark.parametrize("mode", MODES)
def test_the_end_is_said_in_one_line(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    opened = open_small(finite(21, mode=mode))
    with caplog.at_level(logging.INFO, logger="zephon"), loaders(opened) as (loader,):
        num_steps = len(list(loader))
        next(loader, None)
        state = loader._delivered
    (line,) = [record.message for record in caplog.records if "the data end" in record.message]
    left = sum(
        opened.orders[0].end(lane) - s.cursors[0].position for lane, s in state.items() if s.cursors[0]
    )
    assert line.startswith(f"the data end after {num_steps} steps; lanes 0 to 3 leave unread, in documents: ")
    assert f"d0 {0 if mode == 'pad' else left};" in line


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("is_held_out", [False, True])
def test_a_lane_whose_own_documents_have_no_text_is_an_error_and_no_endless_search(
    executor: str, is_held_out: bool
) -> None:
    """In file order each of two lanes reads one of two documents, for ever."""
    dataset = Dataset.from_documents("d", ["text", "more" if is_held_out else ""], order="identity")
    if is_held_out:
        dataset, _ = dataset.holdout(documents=1)
    opened = open_small(make_recipe(datasets=(dataset,), lanes=2, global_batch_size=2))
    with (
        Loader(opened, LoaderOptions(executor=executor, workers=1)) as loader,
        pytest.raises(DataError, match=r"no document of this lane has text"),
    ):
        next(loader)
