"""From what a user names - a recipe, a file, a run folder - to opened data, its table and a state of the run.

Upstream: notebooks and commands. Downstream: previews, explanations and comparisons. A run folder stands for
the recipe with what its curriculum log accepted; the newest lane snapshot in it shortens the way.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zephon import (
    Opened,
    Recipe,
    ScheduleTable,
    StateError,
    find_snapshot,
    find_state,
    newest_table,
    open_recipe,
    read_lock,
    saved_steps,
)
from zephon.cli.common import LateProgress, Source
from zephon_curriculum.log.added import with_added
from zephon_curriculum.log.folder import log_of
from zephon_curriculum.log.history import History
from zephon_curriculum.run import Run

Named = Recipe | Opened | Run | str | os.PathLike[str]
"""A recipe, opened or not; a recipe.toml, a run folder or module:function; a run."""
StateLike = Mapping[str, Any] | str | os.PathLike[str]
"""A state, a file of `write_state_file`, a run folder, or a checkpoint folder that a plugin reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How to open what is named; nothing here changes a row."""

    settings: Sequence[str] = ()
    """NAME=VALUE, put over the recipe's."""
    cache: Path | None = None
    backend: str = "auto"

    @property
    def has_schedule(self) -> bool:
        """Returns whether the settings give a schedule, which then counts in place of a run's."""
        return any(name.startswith("schedule") for name in self.settings)


@dataclass(frozen=True, slots=True)
class Found:
    """An opened recipe with the table in force, and the run folder it came from, if any."""

    opened: Opened
    folder: Path | None = None


PLAIN = Opening()


def folder_of(named: Named) -> Path | None:
    """Returns the run folder that is named, or None for a recipe."""
    if isinstance(named, Recipe | Opened):
        return None
    path = named.folder if isinstance(named, Run) else Path(named)
    return path if path.is_dir() else None


def recipe_of(named: Named, how: Opening = PLAIN) -> Recipe:
    """Returns the recipe that is named, of a run with the datasets that its log adds; opens no data."""
    if isinstance(named, Opened):
        return named.recipe
    if isinstance(named, Recipe):
        return named
    if isinstance(named, Run):
        return named.recipe
    source = Source(recipe=os.fspath(named), settings=how.settings, cache=how.cache, backend=how.backend)
    folder = folder_of(named)
    return source.load() if folder is None else with_added(source.load(), log_of(folder))


def table_of(named: Named, how: Opening = PLAIN) -> ScheduleTable:
    """Returns the table of what is named; of a run, with all that its log accepted."""
    if isinstance(named, Opened):
        return named.table
    recipe, folder = recipe_of(named, how), None if how.has_schedule else folder_of(named)
    found = None if folder is None else _table_in(folder, recipe.names)
    return recipe.compile_schedule() if found is None else found


@contextmanager
def opened(named: Named, how: Opening = PLAIN, progress: LateProgress | None = None) -> Iterator[Found]:
    """Gives what is named, opened; closes it where it was opened here."""
    if isinstance(named, Opened):
        yield Found(named)
        return
    recipe, folder = recipe_of(named, how), folder_of(named)
    lock = None if folder is None or not recipe.follows_lock else read_lock(folder)
    found = open_recipe(recipe, cache=how.cache, backend=how.backend, report=progress, lock=lock)
    try:
        yield Found(found if how.has_schedule else _with_table(found, folder), folder)
    finally:
        found.close()


def _with_table(found: Opened, folder: Path | None) -> Opened:
    names, begun = found.recipe.names, found.table.begun
    table = None if folder is None else _table_in(folder, names, begun)
    return found if table is None else replace(found, table=table)


def _table_in(
    folder: Path, names: tuple[str, ...], begun: frozenset[int] = frozenset()
) -> ScheduleTable | None:
    """Returns the table of a run: of its curriculum log, else the newest that it delivered batches by."""
    log = log_of(folder)
    table = History.read(log).composed.table() if log.exists else newest_table(folder)
    return None if table is None else table.with_datasets(names, begun)


def state_before(
    state: StateLike | None, step: int, lanes: range, folder: Path | None
) -> dict[str, Any] | None:
    """Returns the state of `lanes` to go on from to `step`; without one, the run folder's newest snapshot.

    A state of a later step is refused.
    """
    if state is None:
        return None if folder is None else find_snapshot(folder, step, lanes)
    found = dict(state) if isinstance(state, Mapping) else _find_state(Path(state), state, step, lanes)
    if saved_steps(found) > step:
        raise ValueError(
            f"`state` must be of a step at or before the first step wanted, {step}, got one of step "
            f"{saved_steps(found)}; give an earlier state, or later steps"
        )
    return found


def _find_state(path: Path, named: str | os.PathLike[str], step: int, lanes: range) -> dict[str, Any]:
    """Returns the state at a path: of a run folder, its newest snapshot at or before `step`."""
    if not path.is_dir() or read_lock(path) is None:
        return find_state(named)
    found = find_snapshot(path, step, lanes)
    if found is None:
        raise StateError.explained(
            f"run folder {str(path)!r} gives no state for step {step}",
            got="no snapshot of all these lanes at or before it",
            rule="a run keeps one every 500 steps",
            cure="leave the state out, which makes the rows from step 0 on, or name a checkpoint",
        )
    return found
