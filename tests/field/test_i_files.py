"""I3 and beyond: a file that is broken, or not what it was, is an error that names it, never a wrong row.

A file may grow, shrink, get other content, be replaced or vanish: while a run reads it and between two runs.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.elastic.endings import run_leg
from tests.field.corpora import (
    FILES,
    POLICIES,
    counts_of,
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
    "gets another mode": lambda path: path.chmod(0o600),
    "gets a second link": lambda path: os.link(path, path.parent.parent / "backup"),
}
UNHARMED = ("gets another mode", "gets a second link")
"""What a backup may do; it changes the ctime alone."""
SAME = ("is replaced by itself", *UNHARMED)


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
        assert change not in UNHARMED
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
        assert change not in UNHARMED
        check_message(error, path)


@pytest.mark.parametrize("form", FILES)
def test_what_is_compared_of_a_file_with_its_times_back_is_its_ends_and_middle(
    tmp_path: Path, form: str
) -> None:
    """4 KiB each of JSONL, the begin and the footer of Parquet; between them an edit is not noticed."""
    words = [f"word {i:04} and more of it, to the end" for i in range(1600)]
    path = write_file(tmp_path / "web" / f"a.{form}", words)
    at = {"begin": b"word 0010", "middle": b"word 0800", "end": b"word 1590", "between": b"word 0400"}
    noticed = ["begin", "middle", "end"] if form == "jsonl" else ["begin"]
    good = path.read_bytes()
    recipe = recipe_of(tmp_path, Dataset.from_path("web", path, order="identity"))
    for place, word in at.items():
        path.write_bytes(good)
        time.sleep(0.02)
        opened = open_here(recipe, f"cache {place}")
        edited = good.replace(word, b"TALK" + word[4:], 1)
        with_its_times(path, lambda p, edited=edited: p.write_bytes(edited))
        _, error = steps_until_error(opened, 40, EXECUTORS["inline"], lambda step: None)
        assert (error is not None) == (place in noticed), place
        if error is not None:
            check_message(error, path)


@pytest.mark.slow
@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("change", ["shrinks"])
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
    """C9: a state holds hashes; with the lock of the run folder the difference is that of one file.

    It may be the folder of the run itself or, for a run without, of the one that is replayed.
    """
    recipe, path = three_files(tmp_path, form)
    folder = tmp_path / "run"
    state = run_leg(open_here(recipe), num_steps=3, run_folder=folder).states[-1]
    assert (folder / "lock.json").exists()
    size, what = path.stat().st_size, "has other content (sample)"
    CHANGES[change](path)
    if path.stat().st_size != size:
        what = f": {path.stat().st_size:,} bytes, 7 documents; it had {size:,} bytes, 12 documents"
    opened = open_here(recipe)
    with pytest.raises(StateError) as caught:
        run_leg(opened, 1, state, 1, run_folder=folder)
    got = str(caught.value).splitlines()[1]
    assert got.replace(f" {path.name} ", f" {path.name}") == f"  got:  dataset web: file {path.name}{what}"
    assert "run_folder" not in str(caught.value)
    with pytest.raises(StateError) as caught:
        run_leg(opened, 1, state, 1)
    assert path.name not in str(caught.value)
    assert "the `run_folder` of the run" in str(caught.value)
    with loaders(opened, 1, LoaderOptions(run_folder=folder)) as (loader,):
        loader.load_state_dict(state, allow=["data"])
        assert [note for note in loader.notes if path.name in note]
        next(loader)  # writes the lock of the data that are there now
    with pytest.raises(StateError, match="dataset web: state has"):
        run_leg(opened, 1, state, 1, run_folder=folder)


def test_of_many_files_that_differ_the_first_are_named(tmp_path: Path) -> None:
    """New, gone and changed ones, in the order of their names."""
    folder = tmp_path / "web"
    for name in "abcdefghi":
        write_file(folder / f"{name}.jsonl", WORDS)
    recipe = recipe_of(tmp_path, Dataset.from_path("web", folder))
    state = run_leg(open_here(recipe), num_steps=1, run_folder=tmp_path / "run").states[-1]
    (folder / "b.jsonl").unlink()
    for name in "acdefgz":
        write_file(folder / f"{name}.jsonl", WORDS if name == "a" else OTHER)
    with pytest.raises(StateError) as caught:
        run_leg(open_here(recipe), 1, state, 1, run_folder=tmp_path / "run")
    assert [line.strip().removeprefix("dataset web: ") for line in str(caught.value).splitlines()[2:8]] == [
        "file b.jsonl is gone",
        *[f"file {name}.jsonl has other content (sample)" for name in "cdef"],
        "and 2 more files",
    ]


# Broken -----------------------------------------------------------------------------------------------------


def break_file(path: Path, breakage: str) -> None:
    """Leaves of `path` what the breakage leaves."""
    content = path.read_bytes()
    left = {"cut by 20 bytes": len(content) - 20, "without a footer": len(content) // 2, "zero bytes": 0}
    if breakage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[: left[breakage]])


BREAKAGES = ["cut by 20 bytes", "without a footer", "zero bytes"]


@pytest.mark.parametrize(
    ("on_error", "breakage"),
    [*(("raise", breakage) for breakage in BREAKAGES), ("raise", "missing"), ("skip", "missing")],
)
def test_a_broken_shard_of_three_is_named_at_the_start(tmp_path: Path, breakage: str, on_error: str) -> None:
    """A file that is not there is never skipped."""
    paths = [write_parquet(tmp_path / "web" / f"{name}.parquet", WORDS) for name in "abc"]
    break_file(paths[1], breakage)
    dataset = Dataset.from_path("web", paths, on_error=on_error)
    with pytest.raises(DataError) as caught:
        open_here(recipe_of(tmp_path, dataset))
    assert str(paths[1]) in str(caught.value)


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_broken_shard_may_be_skipped_as_one_bad_record_and_is_named_in_the_log(
    tmp_path: Path, breakage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """On any ranks; what the other shards have comes once."""
    paths = [write_parquet(tmp_path / "web" / f"{name}.parquet", WORDS) for name in "abc"]
    break_file(paths[1], breakage)
    web = Dataset.from_path("web", paths, on_error="skip", max_epochs=1)
    opened = open_here(recipe_of(tmp_path, web, when_exhausted="pad"))
    for world in (1, 4):
        leg = run_leg(opened, world)
        assert documents_of(opened, leg.steps)["web"] == Counter({f"{word}>": 2 for word in WORDS})
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [line for line in told if line.startswith("dataset 'web', file 'b.parquet', record 0: skipped")]


def damage_pages(path: Path) -> None:
    """Destroys the second row group, of records [4, 8); the footer stays good."""
    start = pq.read_metadata(path).row_group(1).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + 30] = b"\xff" * 30
    with_its_times(path, lambda p: p.write_bytes(content))


def three_shards(folder: Path, ending: str, **fields: Any) -> Recipe:
    """Returns a recipe of 36 documents in file order, 12 in each of a, b and c."""
    of_dataset, of_recipe = (
        ({}, {}) if ending == "endless" else ({"max_epochs": 1}, {"when_exhausted": ending})
    )
    documents = [f"{word} {i}" for i in range(3) for word in WORDS]
    web = dataset_of(folder, "web", documents, "parquet", order="identity", **of_dataset, **fields)
    return recipe_of(folder, web, **of_recipe)


@pytest.mark.parametrize("ending", ["endless", *POLICIES])
def test_pages_that_are_damaged_stop_every_run(tmp_path: Path, ending: str) -> None:
    """On any ranks, before a restore and after, what comes ahead is right."""
    recipe, path = three_shards(tmp_path, ending), tmp_path / "web" / "b.parquet"
    expected = run_leg(open_here(recipe, "cache of the good"), num_steps=9)
    damage_pages(path)
    for world in (1, 2, 4):
        opened = open_here(recipe, f"cache {world}")
        leg = run_leg(opened, world, num_steps=2)
        assert leg.digests == expected.digests[:2]
        for state in (None, leg.states[-1]):
            with pytest.raises(DataError) as caught:
                run_leg(opened, world, state, 9)
            check_message(caught.value, path)


@pytest.mark.parametrize("ending", POLICIES)
def test_pages_that_are_damaged_may_be_skipped_and_every_run_agrees(tmp_path: Path, ending: str) -> None:
    """The four records of the row group are bad, one in each lane, whatever the ranks and restores."""
    recipe, path = three_shards(tmp_path, ending, on_error="skip"), tmp_path / "web" / "b.parquet"
    damage_pages(path)
    whole = run_leg(open_here(recipe, "cache of one rank"))
    came = documents_of(open_here(recipe), whole.steps)["web"]
    good = Counter(f"{word} {i}>" for i in range(3) for k, word in enumerate(WORDS) if i != 1 or k // 4 != 1)
    assert Counter({text: n for text, n in came.items() if text.endswith(">")}) <= good
    assert ending != "pad" or came == good
    assert counts_of(whole.states[-2]) == {"bad": 4}
    for world in (2, 4):
        opened = open_here(recipe, f"cache {world}")
        first = run_leg(opened, world, num_steps=len(whole.steps) // 2)
        rest = run_leg(opened, 4 // world, first.states[-1])
        assert first.digests + rest.digests == whole.digests


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
