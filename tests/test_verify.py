"""A run's log is made once more, on any ranks or as the run went, and the first row that differs is named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.elastic.cases import divisors, recipes
from tests.helpers import (
    INLINE,
    batches_per_step,
    loaders,
    make_recipe,
    open_small,
    take_steps,
    union,
    words,
)
from zephon.batchlog import read_log_files
from zephon.dataset import Dataset
from zephon.errors import StateError
from zephon.logged import LoggedRows
from zephon.opened import Opened
from zephon.recipe import Recipe
from zephon.schedule import ScheduleTable
from zephon.stages import Constant, Stages
from zephon.verify import Outcome, Plan, replay_run, verify_run

ALL = range(1 << 40)


def train(opened: Opened, folder: Path, chain: Sequence[tuple[int, int, int]], **options: Any) -> None:
    """Logs a run of attempts (ranks, step it begins with, step it ends before), from states of the newest."""
    states: dict[int, dict[str, Any]] = {}
    for world, begin, end in chain:
        with loaders(opened, world, run_folder=folder, **options) as ranks:
            if begin:
                for loader in ranks:
                    loader.load_state_dict(states[begin])
            for step in range(begin, end):
                take_steps(ranks, 1)
                states[step + 1] = union(ranks)


def plan_of(opened: Opened, folder: Path, **fields: Any) -> Plan:
    """Returns the plan to compare all; `fields` are of `Plan`, or of `LoaderOptions` under `options`."""
    options = replace(INLINE, **fields.pop("options", {}))
    files = fields.pop("files", None) or read_log_files(folder)
    return Plan(
        **{"folder": folder, "opened": opened, "files": files, "steps": ALL, "options": options} | fields
    )


def flip(folder: Path, name: str, step: int, lane: int) -> tuple[int, str, str]:
    """Changes a digit of a digest in a log; returns the row, the true digest and the false one."""
    path = folder / "batches" / name
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines[1:], 1):
        entry = json.loads(line)
        for row in entry["rows"]:
            if entry["step"] == step and row[0] == lane:
                true = row[2]
                row[2] = ("0" if true[0] != "0" else "1") + true[1:]
                lines[number] = json.dumps(entry)
                path.write_text("\n".join(lines) + "\n")
                return row[1], true, row[2]
    raise AssertionError(f"{name} has no row of step {step}, lane {lane}")


def edit(folder: Path, name: str, change: Any) -> None:
    """Gives a log's lines, without the first, to `change`, and writes what it returns."""
    path = folder / "batches" / name
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([head, *change(lines)]) + "\n")


def both(opened: Opened, folder: Path, **fields: Any) -> list[Outcome]:
    """Returns the outcomes of both ways to compare."""
    return [verify_run(plan_of(opened, folder, **fields)), replay_run(plan_of(opened, folder, **fields))]


CHAIN = [(4, 0, 6), (2, 4, 9), (1, 7, 11)]
"""Ranks 4 -> 2 -> 1, each of which goes back behind where the one before had come."""


# What is equal ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("micro", [None, 1])
def test_a_chain_of_restores_is_equal_on_every_number_of_ranks(
    tmp_path: Path, world: int, micro: int | None
) -> None:
    opened = open_small(make_recipe(lanes=4, global_batch_size=8))
    train(opened, tmp_path, CHAIN)
    options = {"dp_world_size": world, "micro_batch_size": micro}
    found = verify_run(plan_of(opened, tmp_path, options=options))
    assert found.is_equal
    assert (found.num_rows, found.steps) == (11 * 8, set(range(11)))
    assert not found.lacking


@pytest.mark.parametrize(
    "options",
    [{"executor": "threads", "workers": 3, "prefetch": 2}, {"executor": "processes", "workers": 1}],
    ids=lambda options: options["executor"],
)
def test_it_is_equal_with_other_workers(tmp_path: Path, options: dict[str, Any]) -> None:
    opened = open_small(make_recipe())
    train(opened, tmp_path, [(2, 0, 3)])
    for found in both(opened, tmp_path, options=options):
        assert (found.is_equal, found.num_rows) == (True, 12)


def test_a_replay_makes_every_row_of_every_attempt(tmp_path: Path) -> None:
    opened = open_small(make_recipe(lanes=4, global_batch_size=8))
    train(opened, tmp_path, CHAIN, micro_batch_size=2)
    found = replay_run(plan_of(opened, tmp_path))
    assert found.is_equal
    assert found.num_rows == 8 * (6 + 5 + 4)
    assert found.remade == []


@given(data=st.data())
@settings(max_examples=15)
def test_every_run_is_equal_both_ways(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Random recipes and chains, rollbacks and all, compared on random ranks."""
    recipe: Recipe = data.draw(recipes(("wrap", "best_fit")))
    world = st.sampled_from(divisors(recipe.lanes))
    chain, known = [], [0]
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.sampled_from(known))
        end = begin + data.draw(st.integers(1, 3))
        chain.append((data.draw(world), begin, end))
        known += range(begin + 1, end + 1)
    opened, folder = open_small(recipe), tmp_path_factory.mktemp("run")
    train(opened, folder, chain)
    found, replayed = both(opened, folder, options={"dp_world_size": data.draw(world)})
    assert found.is_equal
    assert replayed.is_equal
    assert replayed.num_rows == recipe.global_batch_size * sum(end - begin for _, begin, end in chain)


def test_an_attempt_that_began_inside_a_step(tmp_path: Path) -> None:
    """The attempt before had gone on, so that some rows of its batches in that step count and some do not."""
    opened = open_small(make_recipe(lanes=4, global_batch_size=8))
    states = {}
    for attempt in range(2):
        with loaders(opened, 2, micro_batch_size=1, run_folder=tmp_path) as ranks:
            for loader in ranks:
                if attempt:
                    loader.load_state_dict(states)
                for _ in range(batches_per_step(loader) + 3):
                    next(loader)
            states = union(ranks)
            if not attempt:
                for loader in ranks:
                    next(loader)
    found, replayed = both(opened, tmp_path)
    for each in (found, replayed):
        assert each.is_equal
        assert each.remade == []
    assert (found.num_rows, replayed.num_rows) == (2 * (8 + 6), 2 * (8 + 6 + 1))


def test_a_schedule_that_was_amended_counts_as_it_was(tmp_path: Path) -> None:
    """The rows rolled back had another future; a replay makes them with the table of their attempt."""
    opened = open_small(make_recipe(schedule=Stages({0: {"web": 1, "code": 1}})))
    amended = open_small(make_recipe(schedule=Stages({0: {"web": 1, "code": 1}, 2: {"web": 0, "code": 1}})))
    with loaders(opened, 2, run_folder=tmp_path) as ranks:
        take_steps(ranks, 2)
        state = union(ranks)
        take_steps(ranks, 3)
    with loaders(amended, 4, run_folder=tmp_path) as ranks:
        for loader in ranks:
            loader.load_state_dict(state)
        take_steps(ranks, 2)
    for mine in (opened, amended):
        found, replayed = both(mine, tmp_path)
        assert found.is_equal
        assert replayed.is_equal
        assert (found.num_rows, replayed.num_rows) == (16, 28)
    wrong = verify_run(plan_of(opened, tmp_path, own_schedule=True))
    assert wrong.first is not None
    assert (wrong.first.step, wrong.first.file.attempt) == (2, 1)


def test_a_broken_history_of_the_schedule_can_be_gone_through_only_as_it_went(tmp_path: Path) -> None:
    """The run accepted weights that were others in the past, so no one schedule gives all its steps."""
    opened = open_small(make_recipe(schedule=Constant({"web": 1, "code": 1})))
    other = open_small(make_recipe(schedule=Constant({"web": 1, "code": 0})))
    with loaders(opened, 2, run_folder=tmp_path) as ranks:
        take_steps(ranks, 3)
        state = union(ranks)
    with loaders(other, 1, run_folder=tmp_path) as (loader,):
        loader.load_state_dict(state, allow=["schedule"])
        take_steps([loader], 2)
    found, replayed = both(opened, tmp_path)
    assert found.first is not None
    assert found.first.step == 0
    assert replayed.is_equal
    assert replayed.num_rows == 20


class FromThree:
    """Updates: only code from step 3 on."""

    lead_steps = 1
    head = ""

    def exchange(self, step: int) -> None:
        """Nothing is to be agreed on."""

    def __init__(self, table: ScheduleTable) -> None:
        self.table = table

    def update(self, step: int) -> ScheduleTable | None:
        return self.table if step == 3 else None


def test_an_update_of_the_running_loader_is_in_the_log(tmp_path: Path) -> None:
    recipe = make_recipe(schedule=Constant({"web": 1, "code": 1}))
    later = replace(recipe, schedule=Stages({0: {"web": 1, "code": 1}, 3: {"web": 0, "code": 1}}))
    opened = open_small(recipe)
    train(opened, tmp_path, [(2, 0, 5)], updates=FromThree(later.compile_schedule()))
    for found in both(opened, tmp_path):
        assert (found.is_equal, found.num_rows) == (True, 20)
    assert not verify_run(plan_of(opened, tmp_path, own_schedule=True)).is_equal
    lines = (tmp_path / "batches" / "rank_00001_00000.jsonl").read_text().splitlines()
    assert [line.count('"schedule"') for line in lines] == [1, 0, 0, 0, 1, 0]


# What differs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 4])
def test_a_digest_that_was_changed_is_named(tmp_path: Path, world: int) -> None:
    opened = open_small(make_recipe(lanes=4, global_batch_size=8))
    train(opened, tmp_path, [(2, 0, 6)])
    flip(tmp_path, "rank_00001_00000.jsonl", 4, 2)
    row, true, false = flip(tmp_path, "rank_00001_00000.jsonl", 3, 3)
    found = verify_run(plan_of(opened, tmp_path, options={"dp_world_size": world}))
    first = found.first
    assert first is not None
    assert (first.step, first.lane, first.row, first.logged, first.found) == (3, 3, row, false, true)
    assert first.file.label == "attempt 0, rank 1 of 2"
    assert found.different == {(0, 3): 1}


def test_the_first_in_order_of_steps_is_named_whichever_rank_is_made_first(tmp_path: Path) -> None:
    opened = open_small(make_recipe())
    train(opened, tmp_path, [(4, 0, 6)])
    flip(tmp_path, "rank_00000_00000.jsonl", 4, 0)
    flip(tmp_path, "rank_00003_00000.jsonl", 2, 3)
    for world in (1, 2, 4):
        found, replayed = both(opened, tmp_path, options={"dp_world_size": world})
        for each in (found, replayed):
            assert each.first is not None
            assert (each.first.step, each.first.lane) == (2, 3)


def test_all_lists_every_step_that_differs(tmp_path: Path) -> None:
    opened = open_small(make_recipe())
    train(opened, tmp_path, [(2, 0, 6)])
    for step, lane in ((1, 0), (4, 0), (4, 1)):
        flip(tmp_path, "rank_00000_00000.jsonl", step, lane)
    for found in both(opened, tmp_path, every=True):
        assert found.different == {(0, 1): 1, (0, 4): 2}
        assert found.num_rows == 24
    for found in both(opened, tmp_path):
        assert found.different == {(0, 1): 1}
        assert found.steps == {0, 1}  # nothing is made behind it, in the lanes of the other rank either


def test_a_row_that_was_rolled_back_counts_in_a_replay_only(tmp_path: Path) -> None:
    opened = open_small(make_recipe())
    train(opened, tmp_path, CHAIN)
    row, _, _ = flip(tmp_path, "rank_00001_00000.jsonl", 5, 1)
    found, replayed = both(opened, tmp_path)
    assert found.is_equal
    assert replayed.first is not None
    assert (replayed.first.step, replayed.first.lane, replayed.first.row) == (5, 1, row)
    assert replayed.first.file.label == "attempt 0, rank 1 of 4"


def test_a_replay_names_the_attempt_that_came_first(tmp_path: Path) -> None:
    """Of a difference at step 8 of attempt 1 and one at step 7 of attempt 2."""
    opened = open_small(make_recipe())
    train(opened, tmp_path, CHAIN)
    flip(tmp_path, "rank_00000_00002.jsonl", 7, 0)
    flip(tmp_path, "rank_00001_00001.jsonl", 8, 3)
    for every in (False, True):
        first = replay_run(plan_of(opened, tmp_path, every=every)).first
        assert first is not None
        assert (first.file.attempt, first.step) == (1, 8)


def test_a_document_that_was_edited_is_found_where_it_is_read(tmp_path: Path) -> None:
    """One letter of one document; the row that first differs is the first that holds it."""
    texts = {"web": words("web", 40), "code": words("code", 9, (1, 7))}
    opened = open_small(make_recipe(texts))
    train(opened, tmp_path, [(2, 0, 8)])
    place = None
    with loaders(opened) as (loader,):
        for batch in (b for step in take_steps([loader], 8) for b in step):
            pieces = batch.pieces
            columns = (pieces.row, pieces.dataset, pieces.position, pieces.offset)
            for row, dataset, position, offset in np.stack(columns, axis=1).tolist():
                lane = int(batch.lanes[row])
                address = opened.orders[dataset].locate(lane, position, 1)
                if dataset == 0 and int(address.record[0]) == 17 and offset == 0 and place is None:
                    place = (batch.step, lane)
    assert place is not None
    edited = [*texts["web"][:17], "X" + texts["web"][17][1:], *texts["web"][18:]]
    other = open_small(make_recipe(texts | {"web": edited}))
    for found in both(other, tmp_path):
        assert found.first is not None
        assert (found.first.step, found.first.lane) == place


def test_tokens_that_are_not_those_logged_are_found_though_all_rows_are_equal(tmp_path: Path) -> None:
    """Two datasets with the same texts, of which the log has the names swapped."""
    opened = open_small(make_recipe({"a": ["same"], "b": ["same"]}, Constant({"a": 1, "b": 3})))
    train(opened, tmp_path, [(2, 0, 3)])

    def swap(lines: list[str]) -> list[str]:
        entry = json.loads(lines[1])
        a, b = entry["tokens"]["a"], entry["tokens"]["b"]
        assert a != b
        entry["tokens"] = {"a": b, "b": a}
        return [lines[0], json.dumps(entry), lines[2]]

    edit(tmp_path, "rank_00001_00000.jsonl", swap)
    for found, attempt in zip(both(opened, tmp_path), (None, 0), strict=True):
        assert found.first is None
        assert not found.is_equal
        (tokens,) = found.tokens
        assert (tokens.attempt, tokens.step) == (attempt, 1)
        assert sum(tokens.logged.values()) == sum(tokens.found.values())
        assert tokens.logged["a"] - tokens.found["a"] == tokens.found["b"] - tokens.logged["b"] > 0


# Logs that lack something -----------------------------------------------------------------------------------


def test_a_run_killed_in_mid_step_is_compared_for_the_rows_there_are(tmp_path: Path) -> None:
    """One rank has begun step 2 and its last line is cut; the others have not."""
    opened = open_small(make_recipe(lanes=4, global_batch_size=8))
    with loaders(opened, 2, run_folder=tmp_path, micro_batch_size=1) as ranks:
        take_steps(ranks, 2)
        next(ranks[0])
        next(ranks[0])
    log = tmp_path / "batches" / "rank_00000_00000.jsonl"
    log.write_text(log.read_text()[:-30])
    found = verify_run(plan_of(opened, tmp_path))
    assert found.is_equal
    assert (found.num_rows, found.steps, found.lacking) == (17, {0, 1, 2}, {2: 7})
    assert replay_run(plan_of(opened, tmp_path)).is_equal


def test_ranks_whose_logs_are_not_there(tmp_path: Path) -> None:
    """The lanes of rank 2 are made without it, so that the next attempt has their states."""
    opened = open_small(make_recipe())
    train(opened, tmp_path, CHAIN)
    (tmp_path / "batches" / "rank_00002_00000.jsonl").unlink()
    found, replayed = both(opened, tmp_path)
    assert found.is_equal
    assert found.lacking == dict.fromkeys(range(4), 1)
    assert replayed.is_equal
    assert replayed.num_rows == 3 * 6 + 4 * 5 + 4 * 4
    assert [(file.label, begin, end) for file, begin, end in replayed.remade] == [
        ("attempt 1, rank 1 of 2", 0, 4)
    ]
    flip(tmp_path, "rank_00001_00001.jsonl", 6, 2)
    first = replay_run(plan_of(opened, tmp_path)).first
    assert first is not None
    assert (first.step, first.lane) == (6, 2)


def test_a_run_of_which_the_first_attempt_is_not_there(tmp_path: Path) -> None:
    opened = open_small(make_recipe())
    train(opened, tmp_path, CHAIN)
    for path in (tmp_path / "batches").glob("rank_*_00000.jsonl"):
        path.unlink()
    for found in both(opened, tmp_path):
        assert found.is_equal
        assert min(found.steps) == 4


def test_logs_of_an_attempt_that_began_inside_a_step_and_no_others(tmp_path: Path) -> None:
    opened = open_small(make_recipe(lanes=4, global_batch_size=8))
    with loaders(opened, 2, micro_batch_size=1) as ranks:
        for loader in ranks:
            for _ in range(batches_per_step(loader) + 3):
                next(loader)
        state = union(ranks)
    with loaders(opened, 2, micro_batch_size=1, run_folder=tmp_path) as ranks:
        for loader in ranks:
            loader.load_state_dict(state)
            next(loader)
            next(loader)
    found, replayed = both(opened, tmp_path)
    assert found.is_equal
    assert (found.lacking, found.num_rows) == ({0: 8, 1: 6, 2: 6}, 4)
    assert replayed.is_equal
    assert replayed.num_rows == 4
    assert [(begin, end) for _, begin, end in replayed.remade] == [(0, 2), (0, 2)]


def test_steps_bound_what_is_made_and_what_is_compared(tmp_path: Path) -> None:
    opened = open_small(make_recipe())
    train(opened, tmp_path, CHAIN)
    flip(tmp_path, "rank_00000_00000.jsonl", 2, 0)
    flip(tmp_path, "rank_00000_00002.jsonl", 9, 0)
    for found in both(opened, tmp_path, steps=range(3, 9)):
        assert found.is_equal
        assert found.steps == set(range(3, 9))
    for found in both(opened, tmp_path, steps=range(3, 99)):
        assert found.first is not None
        assert found.first.step == 9


def test_a_recipe_of_another_shape_is_refused(tmp_path: Path) -> None:
    train(open_small(make_recipe()), tmp_path, [(2, 0, 3)])
    other = open_small(make_recipe(lanes=4, global_batch_size=8))
    with pytest.raises(StateError, match="steps of another size"):
        verify_run(plan_of(other, tmp_path))


@pytest.mark.parametrize("row", [[0, 0, "zz"], [0, 0, "ab"], [0, 0]])
def test_a_line_that_is_no_batch_names_its_file(tmp_path: Path, row: list[Any]) -> None:
    opened = open_small(make_recipe())
    train(opened, tmp_path, [(1, 0, 2)])
    line = json.dumps(
        {"step": 1, "rows": [[0, 1, *row[2:]], *[[i, 1, "0" * 64] for i in range(1, 4)]], "tokens": {}}
    )
    edit(tmp_path, "rank_00000_00000.jsonl", lambda lines: [lines[0], line])
    with pytest.raises(StateError, match=r"rank_00000_00000.jsonl' cannot be read"):
        verify_run(plan_of(opened, tmp_path))


# Runs that end ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["stop", "redistribute", "pad"])
def test_a_run_to_the_end_of_its_data(tmp_path: Path, when: str) -> None:
    """One long document: with `pad` one lane has rows when the others have ended."""
    texts = {"web": words("web", 12, (1, 2, 30))}
    finite = {
        "when_exhausted": when,
        "datasets": (replace(Dataset.from_documents("web", texts["web"]), max_epochs=1),),
    }
    opened = open_small(make_recipe(**finite))
    with loaders(opened, run_folder=tmp_path) as (loader,):
        num_rows = sum(len(batch.rows) for batch in loader)
    assert num_rows
    for world in (1, 2, 4):
        for found in both(opened, tmp_path, options={"dp_world_size": world}):
            assert found.is_equal
            assert found.num_rows == num_rows


def test_a_replay_of_a_run_that_went_back_to_before_datasets_were_added(tmp_path: Path) -> None:
    """What counts needs none of them; the attempt that had them does."""
    few = make_recipe({"web": words("web", 40)})
    more = make_recipe(schedule=Stages({0: {"web": 1, "code": 0}, 2: {"web": 1, "code": 1}}))
    train(open_small(few), tmp_path, [(1, 0, 2)])
    train(open_small(more), tmp_path, [(1, 0, 4)])
    train(open_small(few), tmp_path, [(1, 0, 3)])
    assert verify_run(plan_of(open_small(few), tmp_path)).is_equal
    with pytest.raises(StateError, match=r"that the recipe lacks(.|\n)*  got:  web\n(.|\n)*with web, code\n"):
        replay_run(plan_of(open_small(few), tmp_path))
    assert replay_run(plan_of(open_small(more), tmp_path)).num_rows == 4 * (2 + 4 + 3)


def test_data_that_end_before_the_run_did(tmp_path: Path) -> None:
    data = Dataset.from_documents("web", words("web", 40))
    train(open_small(make_recipe(datasets=(data,))), tmp_path, [(2, 0, 30)])
    ended = open_small(make_recipe(datasets=(replace(data, max_epochs=1),)))
    for found in both(ended, tmp_path):
        assert found.first is None
        assert not found.is_equal
        assert found.ends == max(found.steps) + 1 < 30


def test_a_digest_of_zeros_is_a_digest(tmp_path: Path) -> None:
    opened = open_small(make_recipe())
    train(opened, tmp_path, [(1, 0, 3)])

    def forge(lines: list[str]) -> list[str]:
        entry = json.loads(lines[1])
        entry["rows"][0][2] = "0" * 64
        return [lines[0], json.dumps(entry), *lines[2:]]

    edit(tmp_path, "rank_00000_00000.jsonl", forge)
    for outcome in both(opened, tmp_path):
        assert outcome.first is not None
        assert (outcome.first.step, outcome.first.lane) == (1, 0)


def test_a_file_that_is_no_log_is_let_be(tmp_path: Path) -> None:
    opened = open_small(make_recipe())
    train(opened, tmp_path, [(1, 0, 2)])
    log = tmp_path / "batches" / "rank_00000_00000.jsonl"
    (log.parent / "rank_00000_00000 (copy).jsonl").write_bytes(log.read_bytes())
    assert all(outcome.is_equal for outcome in both(opened, tmp_path))
    train(opened, tmp_path, [(1, 0, 2)])  # a run writes on there, too


@pytest.mark.parametrize(
    "head", ['["x"]', '{"lanes": [0, "x"], "rank": 0, "dp_world_size": 1}', '{"lanes": [0, 4]}']
)
def test_a_log_with_a_broken_head_is_named(tmp_path: Path, head: str) -> None:
    opened = open_small(make_recipe())
    train(opened, tmp_path, [(1, 0, 2)])
    log = tmp_path / "batches" / "rank_00000_00000.jsonl"
    log.write_text("\n".join([head, *log.read_text().splitlines()[1:]]) + "\n")
    with pytest.raises(StateError, match=r"rank_00000_00000\.jsonl' cannot be read\n  got: "):
        read_log_files(tmp_path)


def test_a_run_that_went_back_and_stands_earlier_lacks_nothing(tmp_path: Path) -> None:
    opened = open_small(make_recipe())
    train(opened, tmp_path, [(2, 0, 6), (1, 3, 4)])
    assert all(outcome.is_equal for outcome in both(opened, tmp_path))
    logged = LoggedRows(range(opened.recipe.lanes), range(100), rows_per_step=opened.recipe.rows_per_step)
    for file in read_log_files(tmp_path):
        logged.add(file)
    assert logged.end_step == 4
