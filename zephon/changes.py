"""What a run folder has otherwise than what is open here: fields of the recipe, parts of the lock.

Upstream: recipe and lock of a run folder. Downstream: `batchlog.py`, `replay.py` and the command `verify`,
which say what differs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zephon.errors import shorten
from zephon.lock import lock_hashes
from zephon.opened import Opened
from zephon.recipe import Recipe, diff_configuration
from zephon.runfolder import LOCK, RECIPE, read_lock, read_recipe

MAX_CHANGES = 8
"""What a message lists."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that a run folder has otherwise than what is open here."""

    name: str
    """recipe.FIELD, data.DATASET, tokenizer.PART or plugins.ROLE.KIND."""
    run: str
    here: str

    def __str__(self) -> str:
        return f"{self.name}: the run has {self.run}, here it is {self.here}"


def compare_descriptions(folder: Path, opened: Opened) -> tuple[list[Change], list[str]]:
    """Returns (what recipe and lock of a run folder have otherwise, those of them that it lacks)."""
    recipe, lock = read_recipe(folder), read_lock(folder)
    changes = [] if recipe is None else changed_recipe(recipe, opened.recipe)
    changes += [] if lock is None else changed_lock(lock, opened.lock)
    found = {f"{RECIPE} that can be read": recipe, LOCK: lock}
    return changes, [name for name, value in found.items() if value is None]


def changed_recipe(saved: Recipe, ours: Recipe) -> list[Change]:
    """Returns the fields of the configurations that differ; the schedule is in none."""
    found = diff_configuration(saved.configuration(), ours.configuration())
    return [Change(f"recipe.{name}", shorten(run), shorten(here)) for name, run, here in found]


def changed_lock(saved: Mapping[str, Any], ours: Mapping[str, Any]) -> list[Change]:
    """Returns what differs of data, tokenizer and plugins: the first part of each that does."""
    run, here = lock_hashes(saved), lock_hashes(ours)
    found = []
    for name in sorted({*run, *here}):
        if run.get(name) != here.get(name):
            table, _, entry = name.partition(".")
            parts = [json.loads(json.dumps(lock.get(table, {}).get(entry))) for lock in (saved, ours)]
            where, *values = _first_part(name, *parts)
            found.append(Change(where, *(shorten(value, 160) for value in values)))
    return found


def _first_part(name: str, run: Any, here: Any) -> tuple[str, Any, Any]:
    """Returns the innermost table, or entry of a list of entries, that differs first."""
    if isinstance(run, dict) and isinstance(here, dict):
        key = next(k for k in sorted({*run, *here}) if run.get(k) != here.get(k))
        return _first_part(f"{name}.{key}", run.get(key), here.get(key))
    if isinstance(run, list) and isinstance(here, list) and len(run) == len(here):
        at = next(i for i, (a, b) in enumerate(zip(run, here, strict=True)) if a != b)
        return f"{name}[{at}]", run[at], here[at]
    return name, run, here


def list_changes(changes: list[Change]) -> str:
    """Returns a line for each change, of many the first."""
    lines = [f"    {change}" for change in changes[:MAX_CHANGES]]
    return "\n".join(
        [*lines, *([f"    and {len(changes) - MAX_CHANGES} more"] if changes[MAX_CHANGES:] else [])]
    )
