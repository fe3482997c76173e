"""C1, C2: the order of files is that of their names or of the list given, and a state knows it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.elastic.endings import run_leg
from tests.field.corpora import FILES, open_here, recipe_of, write_file
from tests.helpers import words
from zephon.dataset import Dataset
from zephon.errors import StateError

MADE = ["c", "a", "b", "a10", "a2"]
SORTED = ["a", "a10", "a2", "b", "c"]
STEPS = 6


def write_corpus(folder: Path, names: Sequence[str], form: str) -> Path:
    for name in names:
        write_file(folder / f"{name}.{form}", words(name + "-", 7))
    return folder


def run(folder: Path, path: Any, order: str = "identity") -> tuple[list[str], dict[str, Any]]:
    """Returns the digests and the last state of a run over `path`."""
    recipe = recipe_of(folder, Dataset.from_path("web", path, order=order))
    leg = run_leg(open_here(recipe), num_steps=STEPS)
    return leg.digests, leg.states[-1]


@contextmanager
def listed_backwards() -> Iterator[None]:
    """Gives every listing of a folder in the other direction."""
    listdir, scandir = os.listdir, os.scandir

    class Backwards:
        def __init__(self, path: Any = ".") -> None:
            with scandir(path) as entries:
                self._entries = iter(list(entries)[::-1])

        def __enter__(self) -> Backwards:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def __iter__(self) -> Iterator[Any]:
            return self._entries

        def __next__(self) -> Any:
            return next(self._entries)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "listdir", lambda path=".": listdir(path)[::-1])
        patch.setattr(os, "scandir", Backwards)
        yield


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("order", ["identity", "shuffled"])
def test_folder_glob_and_list_in_byte_order_are_one_dataset(tmp_path: Path, form: str, order: str) -> None:
    folder = write_corpus(tmp_path / "data", MADE, form)
    expected, state = run(tmp_path, folder, order)
    found = [
        run(tmp_path, path, order) for path in (str(folder / "*"), [folder / f"{n}.{form}" for n in SORTED])
    ]
    with listed_backwards():
        found += [run(tmp_path, path, order) for path in (folder, str(folder / f"*.{form}"))]
    elsewhere = write_corpus(tmp_path / "elsewhere", sorted(MADE, reverse=True), form)
    found.append(run(tmp_path, elsewhere, order))
    for digests, after in found:
        assert digests == expected
        assert after == state


@pytest.mark.parametrize("form", FILES)
def test_a_list_is_read_in_its_own_order_and_a_state_of_another_is_refused(tmp_path: Path, form: str) -> None:
    folder = write_corpus(tmp_path / "data", MADE, form)
    paths = [folder / f"{name}.{form}" for name in MADE]
    digests, state = run(tmp_path, paths)
    assert digests != run(tmp_path, folder)[0]
    assert digests == run(tmp_path, [str(path) for path in paths])[0]
    opened = open_here(recipe_of(tmp_path, Dataset.from_path("web", folder, order="identity")))
    with pytest.raises(StateError, match="dataset web"):
        run_leg(opened, 1, state)
    again = open_here(recipe_of(tmp_path, Dataset.from_path("web", paths, order="identity")))
    assert run_leg(again, 2, state, 2).steps[0][0].step == STEPS


@pytest.mark.parametrize("form", FILES)
def test_a_file_that_comes_between_two_runs_is_refused_and_changes_nothing_of_a_run(
    tmp_path: Path, form: str
) -> None:
    folder = write_corpus(tmp_path / "data", MADE, form)
    recipe = recipe_of(tmp_path, Dataset.from_path("web", folder))
    expected, state = run(tmp_path, folder, "shuffled")
    opened = open_here(recipe)
    write_file(folder / f"b2.{form}", words("late", 3))
    assert run_leg(opened, num_steps=STEPS).digests == expected
    with pytest.raises(StateError, match="dataset web"):
        run_leg(open_here(recipe), 1, state)
