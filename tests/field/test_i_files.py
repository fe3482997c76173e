"""I3 and beyond: a file that is broken, or not what it was, is an error that names it, never a wrong row.

A file may grow, shrink, get other content, be replaced or vanish: while a run reads it and between two runs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.elastic.endings import run_leg
from tests.field.corpora import (
    FILES,
    POLICIES,
    dataset_of,
    documents_of,
    open_here,
    recipe_of,
    write_file,
    write_parquet,
)
from tests.helpers import INLINE, digest_of, loaders, take_steps
from zephon import feed, lane, prepare
from zephon.dataset import Dataset
from zephon.errors import DataError, StateError
from zephon.opened import Opened
from zephon.options import LoaderOptions
from zephon.recipe import Recipe

WORDS = [f"word {i:02} and more" for i in range(12)]
OTHER = [f"talk {i:02} and less" for i in range(12)]
"""Of the same lengths."""
MOVED = [text + " " if i % 2 == 0 else text[:-1] for i, text in enumerate(WORDS)]
"""Of the same length together, each at another place."""


def rewrite(path: Path, texts: list[str]) -> None:
    """Writes other texts into the file that is there, which keeps its size."""
    size = path.stat().st_size
    made = write_file(path.parent.parent / f"made{path.suffix}", texts).read_bytes()
    assert len(made) == size
    with path.open("r+b") as file:
        file.write(made)


def with_its_times(path: Path, change: Callable[[Path], object]) -> None:
    status = path.stat()
    change(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace_by(path: Path, texts: list[str]) -> None:
    """Puts another file in place of this one, as a download that is done does."""
    os.replace(write_file(path.parent.parent / f"made{path.suffix}", texts), path)


def grow(path: Path) -> None:
    """Appends the first three lines once more."""
    lines = path.read_bytes().splitlines(keepends=True)
    with path.open("ab") as file:
        file.writelines(lines[:3])


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_a_broken_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nowhere"))


CHANGES: dict[str, Callable[[Path], object]] = {
    "grows": grow,
    "shrinks": lambda path: os.truncate(path, path.stat().st_size - 30),
    "is emptied": lambda path: os.truncate(path, 0),
    "gets other text": lambda path: rewrite(path, OTHER),
    "gets other text and its times back": lambda path: with_its_times(path, lambda p: rewrite(p, OTHER)),
    "gets other lines and its times back": lambda path: with_its_times(path, lambda p: rewrite(p, MOVED)),
    "is replaced": lambda path: replace_by(path, OTHER),
    "is replaced by another size": lambda path: replace_by(path, OTHER[:7]),
    "is replaced with its times": lambda path: with_its_times(path, lambda p: replace_by(p, OTHER)),
    "is replaced by itself": lambda path: replace_by(path, WORDS),
    "vanishes": Path.unlink,
    "becomes a folder": become_a_folder,
    "becomes a broken link": become_a_broken_link,
}
SAME = ("is replaced by itself",)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Returns the digests of 30 steps over files that stay as they are, by format."""
    found = {}
    for form in FILES:
        recipe, _ = three_files(tmp_path_factory.mktemp("good"), form)
        found[form] = run_leg(open_here(recipe), num_steps=30).digests
    return found


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every block a few documents, so that files are read all the time."""
    for module in (feed, lane):
        monkeypatch.setattr(module, "MIN_BLOCK_BYTES", 64)
    monkeypatch.setattr(feed, "MAX_BLOCK_BYTES", 64)
    monkeypatch.setattr(prepare, "MAX_BLOCK_DOCUMENTS", 3)


def three_files(folder: Path, form: str, **fields: Any) -> tuple[Recipe, Path]:
    """Returns a recipe of files a, b and c, read in their order, and b."""
    for name in "abc":
        texts = WORDS if name == "b" else [text.replace("word", name * 4) for text in WORDS]
        write_file(folder / "web" / f"{name}.{form}", texts)
    time.sleep(0.02)  # times of files are as fine as the kernel's clock
    recipe = recipe_of(folder, Dataset.from_path("web", folder / "web", order="identity"), **fields)
    return recipe, folder / "web" / f"b.{form}"


def steps_until_error(
    opened: Opened, num_steps: int, options: LoaderOptions, before: Callable[[int], object]
) -> Any:
    """Returns the digests of the steps that came, and the error or None; `before` is told of each step."""
    found: list[str] = []
    with loaders(opened, 1, options) as ranks:
        for step in range(num_steps):
            before(step)
            try:
                found += [digest_of(batches) for batches in take_steps(ranks, 1)]
            except DataError as error:
                return found, error
    return found, None


def check_names(error: DataError, path: Path) -> None:
    """Refuses an error that does not name the file."""
    assert str(path) in str(error)


def check_message(error: Any, path: Path) -> None:
    """Refuses an error that does not name dataset, file, rule and cure."""
    assert isinstance(error, DataError)
    lines = str(error).splitlines()
    assert lines[0].startswith("dataset 'web': ")
    assert str(path) in lines[0]
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["got", "rule", "cure"]


EXECUTORS = {
    "inline": INLINE,
    "threads": LoaderOptions(executor="threads", workers=2, prefetch=2),
    "processes": LoaderOptions(executor="processes", workers=1, prefetch=1),
}


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_before_it_is_read_is_an_error(
    tmp_path: Path, form: str, change: str, good: dict[str, list[str]]
) -> None:
    """Between the opening and the first batch: the steps of file a come, then the error."""
    recipe, path = three_files(tmp_path, form)
    expected = good[form]
    opened = open_here(recipe)
    CHANGES[change](path)
    found, error = steps_until_error(opened, 30, EXECUTORS["inline"], lambda step: None)
    assert found == expected[: len(found)]
    if error is None:
        assert change in SAME, "nothing was said"
    else:
        check_message(error, path)


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_while_it_is_read_gives_no_wrong_row(
    tmp_path: Path, form: str, change: str, good: dict[str, list[str]]
) -> None:
    """In the second epoch: what was read already may serve on, else it is an error that names the file."""
    recipe, path = three_files(tmp_path, form)
    expected = good[form]
    opened = open_here(recipe)
    found, error = steps_until_error(
        opened, 30, EXECUTORS["threads"], lambda step: CHANGES[change](path) if step == 14 else None
    )
    assert len(found) >= 12
    assert found == expected[: len(found)]
    if error is None:
        assert len(found) == 30
    else:
        check_message(error, path)


@pytest.mark.slow
@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("change", ["shrinks", "is emptied"])
def test_a_file_that_changes_under_worker_processes_kills_none(
    tmp_path: Path, form: str, change: str, good: dict[str, list[str]]
) -> None:
    """No SIGBUS, which would be a worker that died, and no hang."""
    recipe, path = three_files(tmp_path, form)
    expected = good[form]
    opened = open_here(recipe)
    found, error = steps_until_error(
        opened, 20, EXECUTORS["processes"], lambda step: CHANGES[change](path) if step == 1 else None
    )
    assert found == expected[: len(found)]
    if error is None:
        assert len(found) == 20
    else:
        check_message(error, path)


@pytest.mark.parametrize("form", FILES)
def test_a_file_that_is_appended_to_all_the_time_gives_no_wrong_row(
    tmp_path: Path, form: str, good: dict[str, list[str]]
) -> None:
    """As by a job that still writes it: what is open is refused or right, however often it is opened."""
    recipe, path = three_files(tmp_path, form)
    expected = good[form]
    content, stop = path.read_bytes(), threading.Event()

    def write() -> None:
        while not stop.is_set():
            with path.open("ab") as file:
                file.write(content[:17])
            time.sleep(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for attempt in range(3):
            try:
                opened = open_here(recipe, f"cache {attempt}")
            except DataError as error:
                check_message(error, path)
                continue
            found, met = steps_until_error(opened, 6, EXECUTORS["threads"], lambda step: None)
            if met is not None:
                check_message(met, path)
            assert found[:2] == expected[: len(found[:2])]  # of file a
    finally:
        stop.set()
        writer.join()


# Between two runs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changed_between_two_runs_is_refused_at_the_restore(
    tmp_path: Path, form: str, change: str
) -> None:
    """With the cache of the first run; with `allow` the new data are read as without a cache."""
    recipe, path = three_files(tmp_path, form)
    first = run_leg(open_here(recipe), num_steps=8)
    CHANGES[change](path)
    try:
        opened = open_here(recipe)
    except DataError as error:
        check_names(error, path)
        return
    fresh = run_leg(opened, num_steps=12)
    assert fresh.digests == run_leg(open_here(recipe, "another cache"), num_steps=12).digests
    if change in SAME:
        assert fresh.digests[:8] == first.digests
        return
    for state in first.states[3:5]:
        with pytest.raises(StateError, match="dataset web"):
            run_leg(opened, 2, state)
    with loaders(opened) as (loader,):
        loader.load_state_dict(first.states[4], allow=["data"])
        assert any("dataset web" in note for note in loader.notes)
        assert next(loader).step == 4


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("change", ["gets other text", "is replaced by another size"])
def test_the_refusal_names_the_file_where_the_run_folder_has_the_lock(
    tmp_path: Path, form: str, change: str
) -> None:
    """C9: a state holds hashes; with the lock of the run folder the difference is that of one file."""
    recipe, path = three_files(tmp_path, form)
    folder = tmp_path / "run"
    state = run_leg(open_here(recipe), num_steps=3, run_folder=folder).states[-1]
    assert (folder / "lock.json").exists()
    CHANGES[change](path)
    with pytest.raises(StateError, match="dataset web") as caught:
        run_leg(open_here(recipe), 1, state, 1, run_folder=folder)
    assert path.name in str(caught.value)


# Broken -----------------------------------------------------------------------------------------------------


def break_file(path: Path, breakage: str) -> None:
    """Leaves of `path` what the breakage leaves."""
    content = path.read_bytes()
    left = {"cut by 20 bytes": len(content) - 20, "without a footer": len(content) // 2, "zero bytes": 0}
    if breakage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[: left[breakage]])


@pytest.mark.parametrize("breakage", ["cut by 20 bytes", "without a footer", "zero bytes", "missing"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_broken_shard_of_three_is_named_at_the_start(tmp_path: Path, breakage: str, on_error: str) -> None:
    """`skip` is for records: a shard that cannot be read is no reason for a short epoch."""
    paths = [write_parquet(tmp_path / "web" / f"{name}.parquet", WORDS) for name in "abc"]
    break_file(paths[1], breakage)
    dataset = Dataset.from_path("web", paths, on_error=on_error)
    with pytest.raises(DataError) as caught:
        open_here(recipe_of(tmp_path, dataset))
    assert str(paths[1]) in str(caught.value)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("ending", ["endless", *POLICIES])
def test_pages_that_are_damaged_stop_every_run(tmp_path: Path, on_error: str, ending: str) -> None:
    """The footer of b is good: on any ranks, before a restore and after, what comes ahead is right."""
    of_dataset, of_recipe = (
        ({}, {}) if ending == "endless" else ({"max_epochs": 1}, {"when_exhausted": ending})
    )
    documents = [f"{word} {i}" for i in range(3) for word in WORDS]
    web = dataset_of(tmp_path, "web", documents, "parquet", order="identity", on_error=on_error, **of_dataset)
    recipe = recipe_of(tmp_path, web, **of_recipe)
    expected = run_leg(open_here(recipe, "cache of the good"), num_steps=9)
    path = tmp_path / "web" / "b.parquet"
    start = pq.read_metadata(path).row_group(1).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + 30] = b"\xff" * 30
    with_its_times(path, lambda p: p.write_bytes(content))
    for world in (1, 2, 4):
        opened = open_here(recipe, f"cache {world}")
        leg = run_leg(opened, world, num_steps=2)
        assert leg.digests == expected.digests[:2]
        for state in (None, leg.states[-1]):
            with pytest.raises(DataError) as caught:
                run_leg(opened, world, state, 9)
            check_message(caught.value, path)


def test_a_file_that_is_restored_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """The cure of the message works: put the file back, start again from the last state."""
    for form in FILES:
        recipe, path = three_files(tmp_path / form, form)
        whole = run_leg(open_here(recipe, "cache of the first run"), num_steps=20)
        kept = path.read_bytes()
        opened = open_here(recipe)
        state = run_leg(opened, num_steps=1).states[-1]
        path.unlink()
        path.write_bytes(kept)
        rest = run_leg(open_here(recipe), 2, state, 19)
        assert rest.digests == whole.digests[1:]
        assert documents_of(opened, whole.steps)["web"].total() > 36
