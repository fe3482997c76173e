"""The run folder: what a run is, by its recipe, its lock and the tables of its schedule.

Upstream: what is open. Downstream: `batchlog.py` describes the run where it begins to log its batches; people
and tools read it back.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from zephon.cachefiles import write_atomically
from zephon.errors import StateError
from zephon.lock import lock_hashes
from zephon.opened import Opened
from zephon.recipe import Recipe
from zephon.schedule import ScheduleTable
from zephon.statefile import write_state_file

BATCHES, SCHEDULES = "batches", "schedules"
RECIPE, LOCK = "recipe.toml", "lock.json"
START = "start.json"
"""The state that the run began with, where it continues an earlier phase."""
NO_TOML = "# this recipe has no TOML form: "


def write_description(opened: Opened, folder: Path) -> None:
    """Writes recipe, lock and table into a run folder, over what is there."""
    start = opened.recipe.continues
    if start is not None:
        write_state_file(start.state, folder / START)
    try:
        recipe = _described(opened.recipe).to_toml()
    except (ValueError, TypeError) as error:
        recipe = f"{NO_TOML}{error}\n"
    write_atomically(folder / RECIPE, recipe)
    if start is None:  # a phase that logged no batch may have left its own
        (folder / START).unlink(missing_ok=True)
    write_atomically(folder / LOCK, json.dumps(opened.lock, indent=1, sort_keys=True) + "\n")
    write_table(opened.table, folder)


def _described(recipe: Recipe) -> Recipe:
    """Returns the recipe as its copy says it, which lies in another folder with the state it continues."""
    start = None if recipe.continues is None else replace(recipe.continues, path=START)
    return replace(recipe.anchored(), continues=start)


def read_recipe(folder: Path) -> Recipe | None:
    """Returns the recipe of a run folder; None where it has none, or one without a TOML form."""
    path = folder / RECIPE
    if not path.exists() or path.read_bytes().startswith(NO_TOML.encode()):
        return None
    return Recipe.from_toml(path)


def read_lock(folder: Path) -> dict[str, Any] | None:
    """Returns the lock of a run folder, or None where it has none."""
    path = folder / LOCK
    if not path.exists():
        return None
    try:
        lock = dict(json.loads(path.read_text(encoding="utf-8")))
        lock_hashes(lock)
        return lock
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StateError.explained(
            f"the lock {str(path)!r} cannot be read",
            got=f"{type(error).__name__}: {error}",
            rule="a lock is the JSON that the run wrote",
            cure="bring the file back, or take it away to compare without it",
        ) from None


def write_table(table: ScheduleTable, folder: Path) -> None:
    """Writes a table into a run folder that does not have it."""
    path = folder / SCHEDULES / f"{table.hash()}.json"
    if not path.exists():
        write_atomically(path, json.dumps(table.to_json()) + "\n")


def read_table(folder: Path, schedule: str) -> ScheduleTable | None:
    """Returns the schedule's table that a run folder holds under its hash, or None where it does not."""
    path = folder / SCHEDULES / f"{schedule}.json"
    if not path.exists():
        return None
    try:
        return ScheduleTable.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError) as error:
        raise StateError.explained(
            f"the schedule {str(path)!r} cannot be read",
            got=f"{type(error).__name__}: {error}",
            rule="it is the table that the run wrote",
            cure="bring the file back, or take it away to compare with the recipe's own schedule",
        ) from None
