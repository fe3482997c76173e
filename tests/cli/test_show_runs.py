"""`zephon show` of a run: by the table that it delivered by, from its snapshots or a state that is given."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.helpers import take_steps, union, words, write_tokenizer
from zephon import replay, write_state_file
from zephon.cli import build_app
from zephon.loader import Loader
from zephon.opened import open_recipe
from zephon.options import LoaderOptions
from zephon.recipe import Recipe
from zephon.schedule import ScheduleTable

pytestmark = pytest.mark.usefixtures("probed_once")

RECIPE = """
global_batch_size = 2
[tokenize]
tokenizer = "tokenizer"
[packing]
kind = "wrap"
seq_len = 16
[schedule]
kind = "constant"
weights = { web = 1, code = 0 }
[[datasets]]
name = "web"
path = "web.jsonl"
[[datasets]]
name = "code"
path = "code.jsonl"
"""


@dataclass
class CodeFromThree:
    """Only code from step 3 on."""

    table: ScheduleTable
    lead_steps: int = 2
    head: str = ""

    def exchange(self, step: int) -> None:
        """Nothing is to be agreed on."""

    def update(self, step: int) -> ScheduleTable | None:
        return self.table if step == 1 else None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of 6 steps whose schedule was amended, with a snapshot after 4 and a state file after 5."""
    monkeypatch.setenv("ZEPHON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(replay, "SNAPSHOT_STEPS", 4)
    write_tokenizer(tmp_path / "tokenizer")
    for name in ("web", "code"):
        lines = (json.dumps({"text": text}) for text in words(name, 30))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    settings = {"schedule": {"kind": "stages", "stages": [
        {"step": 0, "weights": {"web": 1, "code": 0}}, {"step": 3, "weights": {"web": 0, "code": 1}},
    ]}}  # fmt: skip
    table = Recipe.from_toml(path, settings=settings).compile_schedule()
    with closing(open_recipe(Recipe.from_toml(path))) as opened:
        options = LoaderOptions(executor="inline", run_folder=tmp_path / "run", updates=CodeFromThree(table))
        with Loader(opened, options) as loader:
            take_steps([loader], 5)
            write_state_file(union([loader]), tmp_path / "state.json")
            take_steps([loader], 1)
    return tmp_path


def show(*arguments: str) -> Any:
    result = CliRunner().invoke(build_app(), ["show", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_run_is_shown_by_the_table_that_it_delivered_by(folder: Path) -> None:
    assert show(str(folder / "recipe.toml"), "--step", "4")["datasets"]["code"]["tokens"] == 0
    assert show(str(folder / "run"), "--step", "2")["datasets"]["code"]["tokens"] == 0
    assert show(str(folder / "run"), "--step", "4")["datasets"]["code"]["tokens"] == 32


def test_a_step_is_the_same_from_a_snapshot_a_state_and_the_beginning(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = show(str(folder / "run"), "--step", "5")
    assert show(str(folder / "run"), "--step", "5", "--state", str(folder / "state.json")) == found
    for path in (folder / "run" / "snapshots").rglob("*.json"):
        path.unlink()
    assert show(str(folder / "run"), "--step", "5") == found


def test_a_state_of_a_later_step_is_refused(folder: Path) -> None:
    arguments = ["show", str(folder / "run"), "--step", "3", "--state", str(folder / "state.json")]
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code == 2
    assert "one after 5 steps" in result.output


def test_a_schedule_among_the_settings_comes_first(folder: Path) -> None:
    shown = show(str(folder / "run"), "--step", "1", "--set", "schedule.weights={ web = 0, code = 1 }")
    assert shown["datasets"]["code"]["tokens"] == 32
