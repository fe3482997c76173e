"""The batch logs tell what a run read, whoever wrote them and however often it was begun again."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

from tests.helpers import (
    batches_per_step,
    digest_of,
    digests,
    loaders,
    make_recipe,
    open_small,
    take_steps,
    union,
)
from tests.test_replay import file_recipe
from zephon import batchlog
from zephon.batch import step_digest
from zephon.batchlog import last_steps, log_files, read_batches, read_lines, read_log_files
from zephon.errors import StateError, ZephonError
from zephon.loader import Loader
from zephon.lock import lock_hashes
from zephon.opened import Opened
from zephon.options import LoaderOptions
from zephon.recipe import Recipe, hash_json
from zephon.runfolder import read_recipe, read_table
from zephon.stages import Stages


def logged(folder: Path) -> list[str]:
    """Returns the digests of the steps that the folder holds, which must be the first ones."""
    steps = read_batches(folder)
    assert list(steps) == list(range(len(steps)))
    return [step_digest(rows) for rows in steps.values()]


def run(
    opened: Opened, folder: Path, num_steps: int, world: int, state: dict[str, Any] | None = None, **more: Any
) -> tuple[list[str], dict[str, Any]]:
    """Returns the digests of the next steps of a logged run, and the state after them."""
    with loaders(opened, world, run_folder=folder, **more) as ranks:
        for loader in ranks:
            if state is not None:
                loader.load_state_dict(state)
        found = [digest_of(step) for step in take_steps(ranks, num_steps)]
        return found, union(ranks)


@pytest.mark.parametrize(("world", "micro"), [(1, None), (2, 2), (4, 1)])
def test_the_log_has_the_digests_of_the_batches(tmp_path: Path, world: int, micro: int | None) -> None:
    opened = open_small(make_recipe(lanes=4, global_batch_size=8))
    found, _ = run(opened, tmp_path, 5, world, micro_batch_size=micro)
    assert logged(tmp_path) == found == digests(opened, 5)
    files = sorted(path.name for path in (tmp_path / "batches").iterdir())
    assert files == [f"rank_{rank:05d}_00000.jsonl" for rank in range(world)]


def test_a_line_for_each_batch_after_one_for_the_attempt(tmp_path: Path) -> None:
    opened = open_small(make_recipe())
    with loaders(opened, 2, run_folder=tmp_path) as ranks:
        batches = take_steps(ranks, 2)
    path = tmp_path / "batches" / "rank_00001_00000.jsonl"
    head = json.loads(path.read_text().splitlines()[0])
    hashes = {
        "recipe": opened.recipe.fingerprint(),
        "schedule": opened.table.hash(),
        "lock": hash_json(lock_hashes(opened.lock)),
    }
    assert head == {"attempt": 0, "rank": 1, "dp_world_size": 2, "lanes": [2, 4], **hashes}
    lines = list(read_lines(path))
    assert [line["step"] for line in lines] == [0, 1]
    for line, (_, batch) in zip(lines, batches, strict=True):
        assert line["tokens"] == {name: int(n.sum()) for name, n in batch.tokens_by_dataset.items()}
        assert [row[:2] for row in line["rows"]] == [[2, batch.step], [3, batch.step]]


def test_what_was_only_prefetched_is_not_logged(tmp_path: Path) -> None:
    run(open_small(make_recipe()), tmp_path, 2, 1, executor="threads", workers=2, prefetch=4)
    assert len(logged(tmp_path)) == 2


def test_a_last_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    run(open_small(make_recipe()), tmp_path, 3, 1)
    log = tmp_path / "batches" / "rank_00000_00000.jsonl"
    whole = log.read_text()
    for cut in (1, 2, 50, len(whole.splitlines()[-1]) + 1):
        log.write_text(whole[:-cut])
        assert len(read_batches(tmp_path)) == (3 if cut == 1 else 2)


def test_a_run_goes_on_after_a_line_that_was_cut(tmp_path: Path) -> None:
    """The lines of the next attempt must not be glued to it."""
    opened = open_small(make_recipe())
    expected, _ = run(opened, tmp_path, 2, 1)
    state = run(opened, tmp_path / "elsewhere", 2, 1)[1]
    log = tmp_path / "batches" / "rank_00000_00000.jsonl"
    log.write_text(log.read_text()[:-40])
    more, _ = run(opened, tmp_path, 2, 1, state)
    lines = read_batches(tmp_path)
    assert list(lines) == [0, 2, 3]
    assert [step_digest(lines[step]) for step in (0, 2, 3)] == [expected[0], *more]


def test_the_newest_attempt_counts_from_its_first_step_on(tmp_path: Path) -> None:
    """Attempt 1 goes back to step 2 with another future: what attempt 0 logged from there on is no more."""
    opened = open_small(make_recipe(schedule=Stages({0: {"web": 1, "code": 1}})))
    amended = open_small(make_recipe(schedule=Stages({0: {"web": 1, "code": 1}, 2: {"web": 0, "code": 1}})))
    with loaders(opened, 2, run_folder=tmp_path) as ranks:
        old = [digest_of(step) for step in take_steps(ranks, 2)]
        state = union(ranks)
        take_steps(ranks, 4)
    new, _ = run(amended, tmp_path, 2, 4, state)
    assert logged(tmp_path) == [*old, *new]


def test_attempts_on_other_numbers_of_ranks_make_one_log(tmp_path: Path) -> None:
    opened = open_small(make_recipe())
    state = None
    for world in (4, 1, 2):
        _, state = run(opened, tmp_path, 2, world, state)
    assert logged(tmp_path) == digests(opened, 6)


def test_an_attempt_that_begins_inside_a_step_leaves_the_rows_before_it(tmp_path: Path) -> None:
    opened = open_small(make_recipe(lanes=4, global_batch_size=8))
    with loaders(opened, 2, micro_batch_size=1, run_folder=tmp_path) as ranks:
        for loader in ranks:
            for _ in range(batches_per_step(loader) + 1):
                next(loader)
        state = union(ranks)
    with loaders(opened, 2, micro_batch_size=1, run_folder=tmp_path) as ranks:
        for loader in ranks:
            loader.load_state_dict(state)
            for _ in range(batches_per_step(loader) - 1):
                next(loader)
    assert logged(tmp_path) == digests(opened, 2)


def test_two_restores_of_one_state_are_two_attempts(tmp_path: Path) -> None:
    """The first gets further, on other ranks and with another future; the second is what counts."""
    opened = open_small(make_recipe(schedule=Stages({0: {"web": 1, "code": 1}})))
    other = open_small(make_recipe(schedule=Stages({0: {"web": 1, "code": 1}, 2: {"web": 0, "code": 1}})))
    old, state = run(opened, tmp_path, 2, 1)
    run(other, tmp_path, 4, 4, state)
    new, _ = run(opened, tmp_path, 2, 2, state)
    assert logged(tmp_path) == [*old, *new]
    names = [path.name for path in log_files(tmp_path / "batches")]
    assert names == [
        "rank_00000_00000.jsonl",
        *(f"rank_{rank:05d}_00001.jsonl" for rank in range(4)),
        *(f"rank_{rank:05d}_00002.jsonl" for rank in range(2)),
    ]


@pytest.mark.parametrize("cut", [0, 1, 60, 1 << 20])
def test_an_attempt_after_one_that_only_some_ranks_logged(tmp_path: Path, cut: int) -> None:
    """Of 4 ranks only rank 1 logged a row, of lane 1, or not even its head; rank 1 of 2 has lanes 2 and 3."""
    opened = open_small(make_recipe())
    with loaders(opened, 4, run_folder=tmp_path) as ranks:
        next(ranks[1])
    log = tmp_path / "batches" / "rank_00001_00000.jsonl"
    text = log.read_text()
    log.write_text(text[: max(0, len(text) - cut)])
    found, _ = run(opened, tmp_path, 3, 2)
    assert logged(tmp_path) == found == digests(opened, 3)


def test_of_many_logs_the_heads_of_the_newest_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank reads the heads of logs that may be newer than its own last one, of others only the newest."""
    opened, state = open_small(make_recipe()), None
    for world in (4, 4, 2):
        _, state = run(opened, tmp_path, 1, world, state)
    read: list[str] = []
    head = batchlog._read_head
    monkeypatch.setattr(batchlog, "_read_head", lambda path: read.append(path.name) or head(path))  # type: ignore[func-returns-value]
    run(opened, tmp_path, 1, 4, state)
    older = ["rank_00001_00002.jsonl"] * 5  # each asks for the phase, then the first for the recipe
    first, second, third = (f"rank_{rank:05d}_00003.jsonl" for rank in range(3))
    newer = [first, first, second, second, first, third, third, second, first]
    assert read == older + newer
    names = [path.name for path in log_files(tmp_path / "batches")]
    assert names[-4:] == [f"rank_{rank:05d}_00003.jsonl" for rank in range(4)]


def test_a_log_says_who_wrote_it_and_where_it_begins(tmp_path: Path) -> None:
    opened = open_small(make_recipe())
    _, state = run(opened, tmp_path, 3, 4)
    run(opened, tmp_path, 1, 2, state)
    (tmp_path / "batches" / "rank_00000_00000.jsonl").write_text('{"attempt": 0')
    files = read_log_files(tmp_path)
    assert [file.label for file in files] == [
        *(f"attempt 0, rank {rank} of 4" for rank in (1, 2, 3)),
        *(f"attempt 1, rank {rank} of 2" for rank in (0, 1)),
    ]
    last = files[-1]
    assert (last.first_step, last.first_row, last.first_lane, last.micro_batch_size) == (3, 3, 2, 2)
    assert last.ranks.lanes == range(2, 4)
    assert last.lock == hash_json(lock_hashes(opened.lock))
    assert read_table(tmp_path, last.schedule) == opened.table
    assert read_table(tmp_path, "0" * 64) is None


@pytest.mark.parametrize("tail", [1, 200, 1 << 16])
def test_the_last_step_of_a_lane_is_that_of_its_newest_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: int
) -> None:
    monkeypatch.setattr(batchlog, "TAIL_BYTES", tail)
    opened = open_small(make_recipe())
    _, state = run(opened, tmp_path, 3, 4)
    with loaders(opened, 2, run_folder=tmp_path) as ranks:
        ranks[1].load_state_dict(state)
        take_steps(ranks[1:], 2)
    log = tmp_path / "batches" / "rank_00001_00000.jsonl"
    log.write_text(log.read_text()[:-40])
    assert last_steps(read_log_files(tmp_path)) == {0: 2, 1: 1, 2: 4, 3: 4}


def test_a_folder_that_holds_no_run_has_no_steps(tmp_path: Path) -> None:
    assert read_batches(tmp_path) == {}
    assert log_files(tmp_path / "batches") == []


def test_a_batch_whose_line_cannot_be_written_is_not_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    options = LoaderOptions(executor="inline", run_folder=tmp_path)
    with Loader(open_small(make_recipe()), options) as loader:
        next(loader)
        before = loader.state_dict()
        monkeypatch.setattr("zephon.batchlog.BatchLog.write", full)
        with pytest.raises(OSError, match="No space"):
            next(loader)
        assert loader.state_dict() == before
        with pytest.raises(ZephonError, match="earlier error"):
            next(loader)


def test_a_log_of_which_the_first_line_cannot_be_written_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, opened = list[IO[Any]](), Path.open

    def on_full_disk(path: Path, *args: Any, **keywords: Any) -> IO[Any]:
        stream: IO[Any] = opened(path, *args, **keywords)
        if path.suffix == ".jsonl" and args == ("x",):
            made.append(stream)
            with Path("/dev/full").open("wb") as full:
                os.dup2(full.fileno(), stream.fileno())
        return stream

    monkeypatch.setattr(Path, "open", on_full_disk)
    options = LoaderOptions(executor="inline", run_folder=tmp_path / "run")
    with (
        Loader(open_small(make_recipe()), options) as loader,
        pytest.raises(StateError, match="No space left"),
    ):
        next(loader)
    assert [stream.closed for stream in made] == [True]


def test_a_run_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Of a line that a full disk did not take, closing tries to write it again."""
    loader = Loader(open_small(make_recipe()), LoaderOptions(executor="inline", run_folder=tmp_path / "run"))
    next(loader)
    assert loader._log.log is not None
    assert loader._log.log._stream is not None
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), loader._log.log._stream.fileno())
    with pytest.raises(StateError, match=r"(?s)run' cannot be written.*  got: .*No space left.*  cure: make"):
        next(loader)
    loader.close()


def test_a_snapshot_that_cannot_be_kept_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("zephon.replay.SNAPSHOT_STEPS", 2)
    opened = open_small(make_recipe())
    with Loader(opened, LoaderOptions(executor="inline", run_folder=tmp_path)) as loader:
        next(loader)
        (tmp_path / "snapshots").write_text("a file where the folder should be")
        found = [digest_of([next(loader)]) for _ in range(3)]
    assert found == digests(opened, 4)[1:]
    assert caplog.text.count("a snapshot cannot be kept in run folder") == 2


def begun(recipe: Recipe, folder: Path) -> Loader:
    """Returns the loader of a run that logs into a folder."""
    return Loader(open_small(recipe), LoaderOptions(executor="inline", run_folder=folder))


def test_another_recipe_in_the_folder_of_a_run_is_refused_field_by_field(tmp_path: Path) -> None:
    recipe = file_recipe(tmp_path)
    with begun(recipe, tmp_path / "run") as loader:
        next(loader)
    kept = (tmp_path / "run" / "recipe.toml").read_text()
    other = replace(recipe, seed=recipe.seed + 1, lanes=2)
    with (
        begun(other, tmp_path / "run") as loader,
        pytest.raises(StateError, match=r"run' holds the batches of another recipe\n  got:  what") as caught,
    ):
        next(loader)
    for name, run, here in (("lanes", recipe.lanes, 2), ("seed", recipe.seed, recipe.seed + 1)):
        assert f"recipe.{name}: the run has {run}, here it is {here}" in str(caught.value)
    assert (tmp_path / "run" / "recipe.toml").read_text() == kept
    with begun(other, tmp_path / "other") as loader:
        next(loader)


def test_another_recipe_without_a_toml_form_is_refused_by_its_fingerprint(tmp_path: Path) -> None:
    recipe = make_recipe()
    with begun(recipe, tmp_path) as loader:
        next(loader)
    other = replace(recipe, seed=recipe.seed + 1)
    with (
        begun(other, tmp_path) as loader,
        pytest.raises(StateError, match="fingerprint: the run has") as caught,
    ):
        next(loader)
    assert recipe.fingerprint() in str(caught.value)
    assert other.fingerprint() in str(caught.value)
    with begun(with_more(recipe), tmp_path) as loader:
        next(loader)


def with_more(recipe: Recipe) -> Recipe:
    """Returns the recipe with a dataset more, at the end, without a share."""
    weights = dict.fromkeys(recipe.names, 1)
    datasets = (*recipe.datasets, replace(recipe.datasets[0], name="more"))
    return replace(recipe, datasets=datasets, schedule=Stages({0: weights | {"more": 0}}))


def test_the_logs_say_of_which_recipe_a_run_is_and_not_the_copy_that_anybody_may_edit(tmp_path: Path) -> None:
    recipe, copy = file_recipe(tmp_path), tmp_path / "run" / "recipe.toml"
    with begun(recipe, tmp_path / "run") as loader:
        next(loader)
        state = loader.state_dict()
    copy.write_text(copy.read_text().replace("seed = 42", "seed = 43"))
    edited = Recipe.from_toml(copy)
    assert edited.seed == 43
    words = r"fingerprint: the run has .*; recipe\.toml in there was edited"
    with begun(edited, tmp_path / "run") as loader, pytest.raises(StateError, match=words):
        next(loader)
    with begun(recipe, tmp_path / "run") as loader:
        loader.load_state_dict(state)
        next(loader)
    assert "seed = 42" in copy.read_text()


@pytest.mark.parametrize("text", [b"seed =", b'seed = "${NOWHERE}"', b"\xff", b"strange = 1"])
def test_a_copy_of_the_recipe_that_cannot_be_read_stops_no_run(tmp_path: Path, text: bytes) -> None:
    recipe, copy = file_recipe(tmp_path), tmp_path / "run" / "recipe.toml"
    with begun(recipe, tmp_path / "run") as loader:
        next(loader)
        state = loader.state_dict()
    copy.write_bytes(text)
    other = replace(recipe, seed=recipe.seed + 1)
    with begun(other, tmp_path / "run") as loader, pytest.raises(StateError, match="fingerprint: the run"):
        next(loader)
    with begun(with_more(recipe), tmp_path / "run") as loader:
        loader.load_state_dict(state)
        next(loader)
    assert read_recipe(tmp_path / "run") is not None


def test_a_run_may_go_back_to_before_datasets_were_added(tmp_path: Path) -> None:
    """The recipe has no TOML form; rank 1 describes nothing, whose folder may be another node's."""
    recipe = make_recipe()
    for rank in (0, 1):
        state, folder = None, tmp_path / str(rank)
        for known in (recipe, with_more(recipe), recipe):
            options = LoaderOptions(executor="inline", run_folder=folder, dp_rank=rank, dp_world_size=2)
            with Loader(open_small(known), options) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                next(loader)
                state = state or loader.state_dict()
        assert len(log_files(folder / "batches")) == 3


def test_of_two_recipes_that_begin_in_a_folder_the_later_one_is_refused(tmp_path: Path) -> None:
    """Between the loader and its first batch a trainer may build a model for minutes."""
    recipe = make_recipe()
    with begun(recipe, tmp_path) as first, begun(replace(recipe, seed=7), tmp_path) as later:
        next(first)
        with pytest.raises(StateError, match="the batches of another recipe"):
            next(later)
        next(first)


@pytest.mark.parametrize("head", [b"[1]", b"null", b'"x"', b"\xff\xfe", b"\0\0", b"{"])
def test_a_log_whose_first_line_is_none_stops_no_run(tmp_path: Path, head: bytes) -> None:
    opened = open_small(make_recipe())
    _, state = run(opened, tmp_path, 2, 1)
    log = tmp_path / "batches" / "rank_00000_00000.jsonl"
    log.write_bytes(head + b"\n")
    found, _ = run(opened, tmp_path, 1, 1, state)
    assert found == digests(opened, 3)[2:]
    assert list(read_batches(tmp_path)) == [2]


def test_a_log_with_batches_of_which_nobody_says_whose_they_are_is_refused_by_file(tmp_path: Path) -> None:
    run(open_small(make_recipe()), tmp_path, 2, 1)
    log = tmp_path / "batches" / "rank_00000_00000.jsonl"
    for head in ("[1]", "{", "{}"):
        log.write_text("\n".join([head, *log.read_text().splitlines()[1:]]) + "\n")
        with pytest.raises(StateError, match=rf"{log.name}' cannot be read(.|\n)*whose rows it has"):
            read_log_files(tmp_path)


def test_a_state_that_does_not_fit_is_refused_in_its_own_words(tmp_path: Path) -> None:
    recipe = make_recipe()
    with begun(recipe, tmp_path) as loader:
        next(loader)
        state = loader.state_dict()
    words = "the recipe is not the one that the state was taken with"
    other = replace(recipe, seed=recipe.seed + 1)
    with begun(other, tmp_path) as loader, pytest.raises(StateError, match=words):
        loader.load_state_dict(state)


def test_a_folder_whose_run_logged_no_batch_takes_another_recipe(tmp_path: Path) -> None:
    recipe = file_recipe(tmp_path)
    begun(recipe, tmp_path / "run").close()
    other = replace(recipe, seed=recipe.seed + 1)
    with begun(other, tmp_path / "run") as loader:
        next(loader)
    found = read_recipe(tmp_path / "run")
    assert found is not None
    assert found.seed == other.seed


def test_datasets_at_the_end_are_the_same_run(tmp_path: Path) -> None:
    recipe = file_recipe(tmp_path)
    with begun(recipe, tmp_path / "run") as loader:
        next(loader)
        state = loader.state_dict()
    with begun(with_more(recipe), tmp_path / "run") as loader:
        loader.load_state_dict(state)
        next(loader)
    assert list(read_batches(tmp_path / "run")) == [0, 1]


@pytest.mark.parametrize("name", ["file", "file/run", "link"])
def test_a_run_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "run")
    with pytest.raises(StateError, match=f"(?s)/{name}' cannot be made.*  got: .*  cure: give an"):
        begun(make_recipe(), tmp_path / name)
