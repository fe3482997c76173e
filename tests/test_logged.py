"""What a run folder says of its newest batch, whatever its datasets are called."""

from __future__ import annotations

from pathlib import Path

from tests.helpers import loaders, make_recipe, open_small, take_steps, words
from zephon.logged import newest_table
from zephon.stages import Stages


def test_the_newest_table_of_a_run_with_a_dataset_named_schedule(tmp_path: Path) -> None:
    stages = Stages({0: {"schedule": 1, "web": 1}, 2: {"schedule": 1, "web": 3}})
    opened = open_small(make_recipe({name: words(name, 20) for name in ("schedule", "web")}, stages))
    with loaders(opened, 2, run_folder=tmp_path) as ranks:
        take_steps(ranks, 3)
    assert newest_table(tmp_path) == opened.table
