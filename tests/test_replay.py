"""A loader with `replay` gives what the earlier run gave, or stops before the batch that is not that."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import (
    INLINE,
    digest_of,
    digests,
    loaders,
    make_recipe,
    open_small,
    take_steps,
    union,
    words,
    write_tokenizer,
)
from tests.test_verify import CHAIN, edit, flip, train
from zephon.batch import step_digest
from zephon.batchlog import read_batches
from zephon.dataset import Dataset
from zephon.errors import StateError, ZephonError
from zephon.loader import Loader
from zephon.options import LoaderOptions
from zephon.recipe import Recipe
from zephon.runfolder import read_recipe
from zephon.stages import Constant

pytestmark = pytest.mark.usefixtures("probed_once")


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Any:
    """Returns what gives the messages of the logger `zephon`, with their levels."""
    caplog.set_level(logging.INFO, logger="zephon")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


def file_recipe(home: Path, texts: list[str] | None = None, **fields: Any) -> Recipe:
    """Returns a recipe over a JSONL file; it has a TOML form."""
    home.mkdir(exist_ok=True)
    lines = [json.dumps({"text": text}) for text in texts or words("web", 40)]
    (home / "web.jsonl").write_text("\n".join(lines) + "\n")
    return make_recipe(datasets=(Dataset.from_path("web", "web.jsonl"),), base=home, **fields)


# What is equal ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"micro_batch_size": 1},
        {"executor": "threads", "workers": 3, "prefetch": 2, "micro_batch_size": 2},
    ],
    ids=["inline", "micro", "threads"],
)
def test_a_run_is_repeated_on_other_ranks_and_workers(
    tmp_path: Path, world: int, options: dict[str, Any], said: Any
) -> None:
    opened = open_small(make_recipe(lanes=4, global_batch_size=8))
    train(opened, tmp_path, CHAIN)
    assert digests(opened, 11, world, replay=tmp_path, **options) == digests(opened, 11)
    ends = [message for level, message in said() if "closed" in message]
    assert len(ends) == world
    assert all(f"{88 // world} rows were equal, 0 were not in its log" in message for message in ends)


def test_the_worker_processes_of_a_replay_change_nothing(tmp_path: Path) -> None:
    opened = open_small(make_recipe())
    train(opened, tmp_path, [(2, 0, 3)])
    assert len(digests(opened, 3, 1, executor="processes", workers=1, replay=tmp_path)) == 3


def test_a_replay_goes_on_from_a_state(tmp_path: Path) -> None:
    opened = open_small(make_recipe())
    train(opened, tmp_path, [(2, 0, 6)])
    flip(tmp_path, "rank_00000_00000.jsonl", 1, 0)  # before the state, so not looked at
    with loaders(opened, 1) as ranks:
        take_steps(ranks, 3)
        state = union(ranks)
    with loaders(opened, 4, replay=tmp_path) as ranks:
        for loader in ranks:
            loader.load_state_dict(state)
        take_steps(ranks, 3)


def test_steps_behind_the_end_of_the_run_are_not_compared_and_that_is_said_once(
    tmp_path: Path, said: Any
) -> None:
    opened = open_small(make_recipe())
    train(opened, tmp_path, [(2, 0, 3)])
    assert digests(opened, 6, replay=tmp_path) == digests(opened, 6)
    found = [line for line in said() if "log ends" in line[1] or "closed" in line[1]]
    assert found == [
        (
            "INFO",
            f"replay: {tmp_path}: its log ends before step 3, from which on nothing is compared; "
            "12 rows were equal, 0 were not in its log",
        )
    ]


def test_rows_that_the_log_lacks_are_counted_and_that_is_said_once(tmp_path: Path, said: Any) -> None:
    opened = open_small(make_recipe())
    train(opened, tmp_path, [(4, 0, 5)])
    (tmp_path / "batches" / "rank_00002_00000.jsonl").unlink()
    edit(tmp_path, "rank_00001_00000.jsonl", lambda lines: [*lines[:4], lines[4][:20]])
    digests(opened, 5, 2, replay=tmp_path)
    warnings = [message for level, message in said() if level == "WARNING"]
    assert len(warnings) == 2  # once for each rank
    assert any("lacks 1 of 2 rows of a batch of step 4" in message for message in warnings)
    assert any("lacks 1 of 2 rows of a batch of step 0" in message for message in warnings)
    assert sum("9 rows were equal, 1 were not in its log" in message for _, message in said()) == 1
    assert sum("5 rows were equal, 5 were not in its log" in message for _, message in said()) == 1


@pytest.mark.parametrize("cut", [1, 20])
def test_a_log_that_ends_before_that_of_another_rank_is_warned_of(
    tmp_path: Path, said: Any, cut: int
) -> None:
    """The run went on to step 6, so from step 3 on this rank's rows are lacking, not behind its end."""
    opened = open_small(make_recipe())
    train(opened, tmp_path, [(4, 0, 6)])
    edit(tmp_path, "rank_00002_00000.jsonl", lambda lines: [*lines[:3], lines[3][:20]])
    edit(tmp_path, "rank_00003_00000.jsonl", lambda lines: [*lines[:-1], lines[-1][:-cut]])
    with Loader(opened, replace(INLINE, dp_rank=2, dp_world_size=4, replay=tmp_path)) as loader:
        take_steps([loader], 8)
    assert [level for level, message in said() if "lacks 1 of 1 rows of a batch of step 3" in message] == [
        "WARNING"
    ]
    (end,) = [message for _, message in said() if "were equal" in message]
    assert "its log ends before step 6" in end
    assert "3 rows were equal, 3 were not in its log" in end


def test_a_log_whose_newest_attempt_ends_earlier_ends_there(tmp_path: Path, said: Any) -> None:
    """Attempt 1 went back to step 2, and no further than step 3: what attempt 0 had behind is no more."""
    opened = open_small(make_recipe())
    train(opened, tmp_path, [(2, 0, 6), (1, 2, 3)])
    digests(opened, 5, 2, replay=tmp_path)
    assert not [message for level, message in said() if level == "WARNING"]
    assert sum("its log ends before step 3" in message for _, message in said()) == 2


def test_a_rank_of_whose_lanes_no_row_is_logged_is_refused(tmp_path: Path) -> None:
    opened = open_small(make_recipe())
    train(opened, tmp_path, [(4, 0, 3)])
    (tmp_path / "batches" / "rank_00002_00000.jsonl").unlink()
    options = replace(INLINE, dp_rank=2, dp_world_size=4, replay=tmp_path, run_folder=tmp_path / "new")
    with Loader(opened, options) as loader:
        before = loader.state_dict()
        with pytest.raises(StateError, match=r"no row of lanes \[2, 3\)(.|\n)*logs of all ranks"):
            next(loader)
        assert loader.state_dict() == before
    assert read_batches(tmp_path / "new") == {}


def test_a_replay_behind_the_end_of_the_run_says_so(tmp_path: Path, said: Any) -> None:
    opened = open_small(make_recipe())
    train(opened, tmp_path, [(2, 0, 3)])
    with loaders(opened, 1) as ranks:
        take_steps(ranks, 4)
        state = union(ranks)
    with loaders(opened, 1, replay=tmp_path) as ranks:
        ranks[0].load_state_dict(state)
        take_steps(ranks, 1)
    assert any("its log ends before step 3" in m and "0 rows were equal" in m for _, m in said())


def test_a_rank_keeps_only_the_rows_of_its_lanes(tmp_path: Path) -> None:
    opened = open_small(make_recipe())
    train(opened, tmp_path, [(1, 0, 50)])
    with Loader(opened, replace(INLINE, dp_rank=1, dp_world_size=4, replay=tmp_path)) as loader:
        next(loader)
        assert loader._log.replay is not None
        logged = loader._log.replay._logged
        assert logged is not None
        assert {lane: len(rows.digests) for lane, rows in logged._rows.items()} == {1: 50 * 32}


# What differs -----------------------------------------------------------------------------------------------


def test_a_batch_that_differs_is_neither_delivered_nor_logged(tmp_path: Path) -> None:
    opened, old, new = open_small(make_recipe()), tmp_path / "old", tmp_path / "new"
    train(opened, old, [(2, 0, 6)])
    row, true, false = flip(old, "rank_00001_00000.jsonl", 3, 2)
    with loaders(opened, 1, replay=old, run_folder=new, prefetch=2, executor="threads") as (loader,):
        expected = [digest_of(step) for step in take_steps([loader], 3)]
        before = loader.state_dict()
        with pytest.raises(StateError) as caught:
            next(loader)
        message = str(caught.value)
        for part in ("step 3 (a trainer that counts from 1 logs it as 4), lane 2, row 3 is not", true, false):
            assert part in message
        assert f"attempt 0, rank 1 of 2, rank_00001_0000{row - 3}.jsonl" in message
        assert "1 of the batch's 4 logged rows differ" in message
        assert loader.state_dict() == before
        with pytest.raises(ZephonError, match="earlier error"):
            next(loader)
    assert [step_digest(rows) for rows in read_batches(new).values()] == expected


def test_only_the_rank_whose_lanes_differ_stops(tmp_path: Path) -> None:
    opened = open_small(make_recipe())
    train(opened, tmp_path, [(1, 0, 4)])
    flip(tmp_path, "rank_00000_00000.jsonl", 2, 3)
    with loaders(opened, 2, replay=tmp_path) as ranks:
        take_steps(ranks, 2)
        next(ranks[0])
        with pytest.raises(StateError, match=r"step 2 .* lane 3, row 2"):
            next(ranks[1])


def test_another_future_of_the_schedule_stops_where_it_begins(tmp_path: Path) -> None:
    """The schedule is in no fingerprint: the step that differs is named instead."""
    recipe = make_recipe()
    train(open_small(recipe), tmp_path, [(2, 0, 4)])
    other = open_small(replace(recipe, schedule=Constant({"web": 1, "code": 0})))
    with loaders(other, replay=tmp_path) as (loader,), pytest.raises(StateError, match=r"step 0 .* is not"):
        next(loader)


# What is refused at once ------------------------------------------------------------------------------------


def test_its_own_run_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match=r"`replay` must be another folder than `run_folder`.*give this run"):
        LoaderOptions(run_folder=tmp_path, replay=tmp_path / "link").check(4, 1)


@pytest.mark.parametrize(("name", "got"), [("nowhere", "no such folder"), ("empty", "no batch log")])
def test_a_folder_without_batches_is_refused(tmp_path: Path, name: str, got: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(StateError, match=got):
        Loader(open_small(make_recipe()), replace(INLINE, replay=tmp_path / name))


def test_a_run_of_another_recipe_is_refused_field_by_field(tmp_path: Path) -> None:
    home = tmp_path / "home"
    train(open_small(file_recipe(home)), tmp_path / "run", [(1, 0, 1)])
    for changes in ({"seed": 43, "eos": False}, {"seq_len": 17}):
        other = open_small(file_recipe(home, **changes))
        with pytest.raises(StateError) as caught:
            Loader(other, replace(INLINE, replay=tmp_path / "run", run_folder=tmp_path / "new"))
        assert ("recipe.seed: the run has 42, here it is 43" in str(caught.value)) == ("seed" in changes)
        assert ("recipe.packing.seq_len: the run has 16, here it is 17" in str(caught.value)) == (
            "seq_len" in changes
        )
        assert not (tmp_path / "new").exists()


def test_other_data_are_refused_by_file(tmp_path: Path) -> None:
    home = tmp_path / "home"
    train(open_small(file_recipe(home)), tmp_path / "run", [(1, 0, 1)])
    other = open_small(file_recipe(home, ["X" + text[1:] for text in words("web", 40)]))
    with pytest.raises(StateError, match=r"data.web.files\[0\]: the run has \['web.jsonl', \d+, 40, "):
        Loader(other, replace(INLINE, replay=tmp_path / "run"))


def test_what_cannot_be_compared_is_said(tmp_path: Path, said: Any) -> None:
    opened = open_small(make_recipe())
    train(opened, tmp_path, [(1, 0, 1)])
    (tmp_path / "lock.json").unlink()
    with Loader(opened, replace(INLINE, replay=tmp_path)):
        pass
    messages = [message for level, message in said() if level == "INFO"]
    assert any("has no recipe.toml that can be read" in message for message in messages)
    assert any("has no lock.json" in message for message in messages)
    assert not any("closed" in message for message in messages)  # nothing was compared


def test_by_the_keywords_of_a_recipe(tmp_path: Path) -> None:
    """With a tokenizer's file; the recipe that the folder holds is that of the run."""
    home = tmp_path / "home"
    recipe = file_recipe(home)
    write_tokenizer(home / "letters")
    more: dict[str, Any] = {"executor": "inline", "backend": "tokenizers", "cache": home}
    with recipe.loader(run_folder=tmp_path / "run", **more) as loader:
        next(loader)
    saved = read_recipe(tmp_path / "run")
    assert saved is not None
    assert saved.fingerprint() == recipe.fingerprint()
    with saved.loader(replay=tmp_path / "run", **more) as loader:
        next(loader)
    with pytest.raises(ValueError, match="another folder"):
        recipe.loader(replay=tmp_path / "run", run_folder=tmp_path / "run", **more)
