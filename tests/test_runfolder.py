"""The run folder tells what a run is: its recipe, its lock, the tables of its schedule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import digest_of, make_recipe, open_small, write_tokenizer
from zephon.dataset import Dataset
from zephon.errors import StateError
from zephon.loader import Loader
from zephon.options import LoaderOptions
from zephon.recipe import Recipe
from zephon.runfolder import read_lock
from zephon.schedule import ScheduleTable

pytestmark = pytest.mark.usefixtures("probed_once")


def test_the_lock_and_the_schedule_lie_beside(tmp_path: Path) -> None:
    opened = open_small(make_recipe())
    with Loader(opened, LoaderOptions(executor="inline", run_folder=tmp_path)) as loader:
        next(loader)
    assert json.loads((tmp_path / "lock.json").read_text()) == opened.lock
    (path,) = (tmp_path / "schedules").iterdir()
    table = ScheduleTable.from_json(json.loads(path.read_text()))
    assert table == opened.table
    assert path.stem == table.hash()


def test_the_recipe_is_the_recipe_wherever_it_is_read(tmp_path: Path) -> None:
    """Relative paths start at the recipe's own folder, and its copy lies in another."""
    home = tmp_path / "home"
    write_tokenizer(home / "letters")
    (home / "web.jsonl").write_text('{"text": "one two "}\n' * 9)
    recipe = make_recipe(datasets=(Dataset.from_path("web", "web.jsonl"),), base=home, tokenizer="letters")
    found = []
    with recipe.loader(
        executor="inline", run_folder=tmp_path / "run", backend="tokenizers", cache=home
    ) as loader:
        found.append(digest_of([next(loader)]))
    copy = Recipe.from_toml(tmp_path / "run" / "recipe.toml")
    assert copy.fingerprint() == recipe.fingerprint()
    with copy.loader(executor="inline", backend="tokenizers", cache=home) as loader:
        found.append(digest_of([next(loader)]))
    assert found[0] == found[1]


def test_a_recipe_without_a_toml_form_says_why(tmp_path: Path) -> None:
    Loader(open_small(make_recipe()), LoaderOptions(executor="inline", run_folder=tmp_path)).close()
    text = (tmp_path / "recipe.toml").read_text()
    assert text.startswith("# this recipe has no TOML form: dataset 'web' is in memory")


def test_a_damaged_lock_is_an_error(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"data": {}}'):
        (tmp_path / "lock.json").write_text(text)
        with pytest.raises(StateError, match=r"lock.json' cannot be read"):
            read_lock(tmp_path)
