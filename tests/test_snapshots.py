"""The states that a run folder keeps every so many steps: of which attempt, of which lanes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import digest_of, digests, loaders, make_recipe, open_small, take_steps, union
from zephon import replay, snapshots
from zephon.snapshots import find_snapshot, snapshot_path


@pytest.fixture(autouse=True)
def every_second_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "SNAPSHOT_STEPS", 2)


def steps_of(state: dict[str, object] | None) -> int:
    assert state is not None
    return int(json.loads(str(state["schedule"]))["steps"])


def test_the_newest_state_at_or_before_a_step_goes_on_as_the_run_did(tmp_path: Path) -> None:
    opened = open_small(make_recipe())
    with loaders(opened, 2, run_folder=tmp_path) as ranks:
        take_steps(ranks, 7)
    assert [steps_of(find_snapshot(tmp_path, n)) for n in (2, 3, 4, 5, 6, 99)] == [2, 2, 4, 4, 6, 6]
    assert find_snapshot(tmp_path, 1) is None
    state = find_snapshot(tmp_path, 5)
    assert state is not None
    with loaders(opened, 4) as ranks:
        for loader in ranks:
            loader.load_state_dict(state)
        assert [digest_of(step) for step in take_steps(ranks, 3)] == digests(opened, 7)[4:]


def test_a_state_that_a_later_attempt_made_again_does_not_count(tmp_path: Path) -> None:
    opened = open_small(make_recipe())
    with loaders(opened, 1, run_folder=tmp_path) as ranks:
        take_steps(ranks, 3)
        state = union(ranks)
        take_steps(ranks, 5)
    assert steps_of(find_snapshot(tmp_path, 99)) == 8
    with loaders(opened, 2, run_folder=tmp_path) as ranks:
        for loader in ranks:
            loader.load_state_dict(state)
        take_steps(ranks, 2)
    found = find_snapshot(tmp_path, 99)
    assert found is not None
    assert steps_of(found) == 4
    assert json.loads(str(found["schedule"]))["attempt"] == 1


def test_a_file_that_cannot_be_read_makes_the_way_longer(tmp_path: Path) -> None:
    with loaders(open_small(make_recipe()), 2, run_folder=tmp_path) as ranks:
        take_steps(ranks, 4)
    snapshot_path(tmp_path, 4, 1, 0).write_text("{")
    assert steps_of(find_snapshot(tmp_path, 99)) == 2
    assert steps_of(find_snapshot(tmp_path, 99, range(2))) == 4
    snapshot_path(tmp_path, 4, 1, 0).unlink()
    assert steps_of(find_snapshot(tmp_path, 99)) == 2


def test_steps_in_several_batches_are_kept_at_their_end(tmp_path: Path) -> None:
    with loaders(open_small(make_recipe()), 1, run_folder=tmp_path, micro_batch_size=1) as ranks:
        take_steps(ranks, 2)
        assert find_snapshot(tmp_path, 9) == union(ranks)


def test_a_folder_of_no_run_has_none(tmp_path: Path) -> None:
    assert find_snapshot(tmp_path, 5) is None
    assert snapshots.SNAPSHOT_STEPS == 500
