"""The exact preview: digests of real runs, lanes alone, states, finite recipes, packers with a pool."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import loaders as ranks_of
from tests.helpers import make_recipe, open_small, sized, take_steps, union, words
from zephon import PARTS, Dataset, Loader, Opened, ScheduleTable, Stages, digest, write_state_file
from zephon_curriculum.explain import explain
from zephon_curriculum.plan import plan
from zephon_curriculum.preview import Preview, preview, preview_cost
from zephon_curriculum.preview_estimated import preview_estimated

DOCUMENTS = {"web": words("web", 40), "code": words("code", 9, (1, 7)), "math": sized(12, (3, 50))}
RAMP = Stages({0: {"web": 3, "code": 1, "math": 0}, 4: {"web": 1, "code": 1, "math": 2}})


def ending(when_exhausted: str) -> Opened:
    datasets = [
        replace(Dataset.from_documents(name, texts), max_epochs=2) for name, texts in DOCUMENTS.items()
    ]
    return open_small(make_recipe(None, RAMP, datasets=tuple(datasets), when_exhausted=when_exhausted))


@pytest.fixture(scope="module")
def wrapped() -> Iterator[Opened]:
    opened = open_small(make_recipe(DOCUMENTS, RAMP, global_batch_size=8, lanes=4))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pooled() -> Iterator[Opened]:
    opened = open_small(make_recipe(DOCUMENTS, RAMP, kind="best_fit", seq_len=24))
    yield opened
    opened.close()


def delivered(opened: Opened, world: int, num_steps: int) -> dict[tuple[int, int], str]:
    """Returns the digests of a real run by (lane, row)."""
    with ranks_of(opened, world) as ranks:
        steps = take_steps(ranks, num_steps)
    return {(lane, row): d for step in steps for batch in step for lane, row, d in digest(batch)}


def found(preview: Preview) -> dict[tuple[int, int], str]:
    return {(lane, row): value for lane, row, value in preview.digests()}


@pytest.fixture
def made_steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Collects (step, rows) of every batch that any loader makes."""
    made: list[tuple[int, int]] = []
    take = Loader.__next__

    def count(loader: Loader) -> Any:
        batch = take(loader)
        made.append((batch.step, len(batch.rows)))
        return batch

    monkeypatch.setattr(Loader, "__next__", count)
    return made


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("packing", ["wrapped", "pooled"])
def test_the_digests_are_those_of_a_run_on_any_number_of_ranks(
    request: pytest.FixtureRequest, packing: str, world: int
) -> None:
    opened = request.getfixturevalue(packing)
    run = delivered(opened, world, 10)
    assert found(preview(opened, range(10), None)) == run
    some = preview(opened, [3, 9], [1, 2])
    rows = opened.recipe.rows_per_step
    assert found(some) == {at: d for at, d in run.items() if at[0] in (1, 2) and at[1] // rows in (3, 9)}


@settings(max_examples=8, deadline=None)
@given(lanes=st.sets(st.integers(0, 3), min_size=1), first=st.integers(0, 9), num=st.integers(1, 3))
def test_lanes_alone_equal_lanes_together(wrapped: Opened, lanes: set[int], first: int, num: int) -> None:
    together = preview(wrapped, range(first, first + num), None)
    alone = preview(wrapped, range(first, first + num), lanes)
    assert alone.rows == tuple(row for row in together.rows if row.lane in lanes)
    assert len(alone.rows) == num * len(lanes) * 2


def state_after(opened: Opened, num_steps: int, world: int = 2) -> dict[str, Any]:
    with ranks_of(opened, world) as ranks:
        take_steps(ranks, num_steps)
        return union(ranks)


@pytest.mark.parametrize("packing", ["wrapped", "pooled"])
def test_from_a_state_only_the_steps_after_it_are_made(
    request: pytest.FixtureRequest, packing: str, made_steps: list[tuple[int, int]], tmp_path: Path
) -> None:
    opened = request.getfixturevalue(packing)
    from_start = preview(opened, [12], [3])
    write_state_file(state_after(opened, 10), tmp_path / "state.json")
    del made_steps[:]
    from_state = preview(opened, [12], [3], tmp_path / "state.json")
    assert [step for step, _ in made_steps] == [10, 11, 12]
    assert from_state.rows == from_start.rows
    assert from_state.cost.num_rows == sum(rows for _, rows in made_steps)
    assert from_state.cost.num_tokens == from_state.cost.num_rows * opened.recipe.packing.seq_len
    assert str(from_state.cost).startswith("makes 3 rows of 1 lane of 4 from a state at step 10") or (
        packing == "wrapped" and str(from_state.cost).startswith("makes 6 rows")
    )


def test_a_state_after_the_first_step_wanted_is_refused(wrapped: Opened) -> None:
    state = state_after(wrapped, 3)
    assert preview(wrapped, [3], [0], state).steps == (3,)
    with pytest.raises(ValueError, match="at or before the first step wanted, 2, got one of step 3"):
        preview(wrapped, [2, 5], [0], state)


def test_a_lane_costs_its_own_rows_only(wrapped: Opened, made_steps: list[tuple[int, int]]) -> None:
    cost = preview_cost(wrapped, [7], [2])
    preview(wrapped, [7], [2])
    assert made_steps == [(step, 2) for step in range(8)]
    assert (cost.num_rows, cost.num_lanes, cost.from_state) == (16, 1, False)
    assert repr(cost) == "PreviewCost: makes 16 rows of 1 lane of 4 from step 0: 256 tokens"
    assert preview_cost(wrapped, [7], None).num_rows == 64


@pytest.mark.parametrize("when_exhausted", ["stop", "redistribute", "pad"])
def test_a_recipe_that_ends_ends_as_its_run_does(when_exhausted: str) -> None:
    opened = ending(when_exhausted)
    with ranks_of(opened) as (loader,):
        run = {(lane, row): d for batch in loader for lane, row, d in digest(batch)}
        num_steps = loader.num_steps
    last = range(num_steps - 1, num_steps + 3)
    ended = preview(opened, last, [1])
    assert (ended.steps, ended.ends) == ((num_steps - 1,), num_steps)
    assert ended.cost.num_lanes == 4
    assert found(ended) == {(1, num_steps - 1): run[1, num_steps - 1]}
    alone = preview(opened, last, [1], check_end=False)
    assert alone.cost.num_lanes == 1
    assert alone.digests()[0] == ended.digests()[0]
    assert not preview(opened, [num_steps + 5], [1]).rows
    assert "padding" in ended._repr_html_()


def test_planned_and_realised_shares_are_those_of_the_rows(wrapped: Opened) -> None:
    shown = preview(wrapped, range(8), None)
    shares = shown.shares()
    assert shares.tokens.sum(axis=1).tolist() == [8 * 16] * 8
    assert shares.planned[0].tolist() == [0.75, 0.25, 0]
    assert shares.planned[4].tolist() == [0.25, 0.25, 0.5]
    assert shares.tokens[:4, 2].tolist() == [0] * 4  # not one token before its stage
    assert shares.tokens[4:, 2].min() > 0
    one = shown.shares(lane=1)
    others = sum(shown.shares(lane=lane).tokens for lane in (0, 2, 3))
    assert (one.tokens + others).tolist() == shares.tokens.tolist()
    assert shares.total()["math"][0] == int(shares.tokens[:, 2].sum())


def test_the_cost_of_a_recipe_is_said_before_its_schedule_is_compiled(wrapped: Opened) -> None:
    class Long:
        def weights(self, step: int) -> dict[str, float]:
            raise AssertionError(f"step {step} is asked for")

    recipe = replace(wrapped.recipe, schedule=Long())
    assert preview_cost(recipe, [7], [2]) == preview_cost(wrapped, [7], [2])


def test_texts_and_places_are_those_of_the_documents(wrapped: Opened, pooled: Opened) -> None:
    shown = preview(wrapped, range(6), [0])
    for row in shown.rows:
        for piece, text in zip(row.pieces, shown.texts(row), strict=True):
            document = DOCUMENTS[piece.dataset][piece.record] + ">"  # EOS
            assert document[piece.offset : piece.offset + piece.num_tokens] == text
        assert shown.text(row.step, 0, row.row) == "".join(shown.texts(row))
    padded = preview(pooled, range(6), [0])
    assert any(row.padding_tokens for row in padded.rows)
    assert int(padded.shares().padding_tokens.sum()) == sum(row.padding_tokens for row in padded.rows)
    assert all(len(padded.text(r.step, 0)) == 24 - r.padding_tokens for r in padded.rows)


def test_a_preview_says_itself_as_html_and_json(wrapped: Opened) -> None:
    shown = preview(wrapped, range(2), [0, 1])
    assert json.loads(json.dumps(shown.to_json()))["rows"][0]["digest"] == shown.rows[0].digest
    html = shown._repr_html_()
    assert html == preview(wrapped, range(2), [0, 1])._repr_html_()
    assert html.count("<caption>") == 2 + 4  # shares in total and by step, the first rows
    assert "realised" in html
    with pytest.raises(LookupError, match=r"no step 2, lane 0; it has steps \[0, 2\) of lanes \[0, 2\)"):
        shown.text(2, 0)


@pytest.mark.parametrize(
    ("steps", "lanes", "message"),
    [
        ([], [0], "`steps`"),
        ([-1], [0], "`steps`"),
        ([0], [4], "of 0 to 3, the lanes of"),
        ([0], [], "`lanes`"),
    ],
)
def test_steps_and_lanes_that_no_run_has_are_refused(
    wrapped: Opened, steps: list[int], lanes: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        preview(wrapped, steps, lanes)


def test_skipped_steps_are_counted_and_left_out(wrapped: Opened) -> None:
    table = replace(wrapped.table, skips=((3, 5),))
    amended = replace(wrapped, table=table)
    assert preview_cost(amended, [5], [0]).num_rows == preview_cost(wrapped, [5], [0]).num_rows + 4
    assert preview(amended, range(3), [0]).rows == preview(wrapped, range(3), [0]).rows
    assert found(preview(amended, range(6), None)) == delivered(amended, 2, 6)
    assert preview(amended, [3], [0]).rows != preview(wrapped, [3], [0]).rows


# The estimated preview --------------------------------------------------------------------------------------


def test_the_estimated_preview_is_the_table(wrapped: Opened) -> None:
    shown = preview_estimated(wrapped, 10)
    assert shown.steps.tolist() == list(range(10))
    assert shown.shares.tolist() == preview(wrapped, range(10), [0]).shares().planned.tolist()
    assert shown.tokens[4].tolist() == [4 * 128 * 0.75, 4 * 128 * 0.25, 0]
    assert shown.total_tokens.sum() == 10 * 128
    later = preview_estimated(wrapped, range(4, 8))
    assert later.tokens[0].tolist() == [0, 0, 0]
    assert later.total_tokens.tolist() == [128, 128, 256]


def test_of_many_steps_a_few_are_shown_and_none_of_the_changes_is_missed(wrapped: Opened) -> None:
    stages = Stages({0: {"web": 1, "code": 0, "math": 0}, 70_003: {"web": 0, "code": 1, "math": 0}})
    shown = preview_estimated(replace(wrapped.recipe, schedule=stages), 100_000)
    assert len(shown.steps) <= 2000
    assert {0, 70_002, 70_003, 99_999} <= set(shown.steps.tolist())
    at = int(np.flatnonzero(shown.steps == 70_003)[0])
    assert shown.shares[at - 1 : at + 1].tolist() == [[1, 0, 0], [0, 1, 0]]
    with pytest.raises(ValueError, match="`steps` must be given"):
        preview_estimated(wrapped.recipe)
    for steps in (0, range(3, 1), range(0, 9, 2), range(-1, 4), 10**30):
        with pytest.raises(ValueError, match="`steps` must be a number > 0 or a range"):
            preview_estimated(wrapped.recipe, steps)


def test_an_estimated_preview_of_very_many_steps_is_near_the_whole_numbers() -> None:
    late = ScheduleTable(
        ("a", "b"), (0, 5 * 10**11, 10**30), ((0, PARTS), (PARTS // 4, 3 * PARTS // 4), (PARTS, 0))
    )
    shown = preview_estimated(late, 10**12, tokens_per_step=10**7)
    assert shown.total_tokens.tolist() == pytest.approx([10**19 / 8, 10**19 * 7 / 8])
    assert shown.shares[-1].tolist() == [0.25, 0.75]


def test_a_run_that_ends_before_its_first_step_has_shares_of_nothing() -> None:
    datasets = (Dataset.from_documents("web", ["a"], max_epochs=1),)
    opened = open_small(make_recipe(None, Stages({0: {"web": 1}}), datasets=datasets))
    shown = preview(opened, range(2))
    opened.close()
    assert (shown.ends, shown.steps, shown.shares().total()) == (0, (), {"web": (0, 0.0, 0.0)})
    assert "NaN" not in json.dumps(shown.to_json())


def test_what_a_controller_will_decide_is_said_not_to_be_in_it() -> None:
    note = "the recipe has a [controller]: what that will decide in the run is not in these shares"
    recipe = make_recipe(DOCUMENTS, total_steps=9)
    steered = replace(recipe, controller={"kind": "exp3", "every": 2})
    for each, notes in ((recipe, ()), (steered, (note,))):
        opened = open_small(each)
        assert preview(opened, [1], [0]).notes == notes
        assert explain(opened, step=1, lane=0).notes == notes
        for made in (preview_estimated(each), plan(each)):
            assert made.notes == notes
            assert str(made).count(note) == len(notes)
    assert json.loads(json.dumps(plan(steered).to_json()))["notes"] == [note]
    assert preview_estimated(recipe.compile_schedule(), 9, tokens_per_step=4).notes == ()
