"""What two recipes or two runs have otherwise: configuration, data, mixture, log and, of runs, the rows.

Upstream: recipes and run folders, as files; no data is opened. Downstream: notebooks, `zephon diff`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from zephon import (
    PARTS,
    LoggedRows,
    Recipe,
    ScheduleTable,
    changed_lock,
    check_whole,
    read_lock,
    read_log_files,
)
from zephon_curriculum.compare_text import shown_comparison
from zephon_curriculum.log.entries import Decision, Entry, Proposal, RecipeChange, body_json
from zephon_curriculum.log.folder import log_of
from zephon_curriculum.log.history import History
from zephon_curriculum.opening import PLAIN, Named, Opening, folder_of, recipe_of, table_of
from zephon_curriculum.plan.curve import Curve
from zephon_curriculum.results import Readable, Shown

ALL_STEPS = range(1 << 62)


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """One field that the two have otherwise; None where one lacks it."""

    name: str
    a: Any
    b: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureDifference:
    """The first step of which shares, skipped steps or dropped documents differ."""

    step: int
    a: dict[str, float]
    b: dict[str, float]
    """Shares by dataset at that step; they may be equal where something else differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifference:
    """The first row, by (step, lane, row), of which the runs logged different digests."""

    step: int
    lane: int
    row: int
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class EntryDifference:
    """A change of the curriculum that only one of the logs has accepted."""

    run: str
    """a or b."""
    number: int
    body: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Readable):
    """What differs between a and b."""

    fields: tuple[FieldDifference, ...]
    """Of the configurations, and `total_steps`; a dataset that one lacks is in `datasets` alone."""
    places: tuple[FieldDifference, ...]
    """Paths of data and tokenizer. They count only where no lock of either says what lies there."""
    lock: tuple[FieldDifference, ...]
    """Of data, tokenizer and plugins, by the locks of two runs."""
    is_locked: bool
    """Whether both have a lock."""
    mixture: MixtureDifference | None
    num_steps: int | None
    """The steps [0, num_steps) of both, of which tokens are planned in `tokens`; None: neither has an end."""
    whose_steps: str
    """Which these are: `those that both runs delivered`, for instance."""
    tokens: dict[str, tuple[float, float]]
    """Tokens planned of each dataset by a and b: where neither has an end, for each step from the last change
    on."""
    num_rows: int | None
    """Rows that both runs logged; None where they are not two runs with lanes of one shape."""
    first_row: RowDifference | None
    entries: tuple[EntryDifference, ...]

    @property
    def is_equal(self) -> bool:
        """Returns whether nothing differs that can change a row."""
        places = () if self.is_locked else self.places
        found = (self.fields, places, self.lock, self.entries, self.mixture or (), self.first_row or ())
        return not any(found)

    def to_json(self) -> dict[str, Any]:
        """Returns the comparison as JSON data."""
        return {"equal": self.is_equal} | asdict(self)

    def shown(self) -> Shown:
        """Returns the verdict, the tokens planned and what differs as lines and tables."""
        return shown_comparison(self)


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two, as far as it can be read without its data."""

    recipe: Recipe
    table: ScheduleTable
    folder: Path | None
    logged: LoggedRows | None
    """The rows that a run delivered."""
    history: History | None


def compare(a: Named, b: Named, *, steps: int | None = None, how: Opening = PLAIN) -> Comparison:
    """Returns what a and b have otherwise.

    `steps` is how many of them to plan tokens for; by default those that both runs delivered, else the
    smaller `total_steps`, else tokens are of one step, after the last change. Cost: of runs, a pass over
    their batch logs and 32 bytes a row.
    """
    if steps is not None:
        check_whole("`steps`", steps, 1)
    sides = (_read(a, how), _read(b, how))
    ours, theirs = sides
    logged = _compare_rows(ours, theirs)
    names = tuple(dict.fromkeys(ours.recipe.names + theirs.recipe.names))
    num_steps, whose_steps = _steps_to_plan(sides) if steps is None else (steps, "as asked for")
    locks = [None if side.folder is None else read_lock(side.folder) for side in sides]
    lone = {*ours.recipe.names} ^ {*theirs.recipe.names}
    return Comparison(
        fields=_fields(*(_without(lone, s.recipe, _configuration(s.recipe)) for s in sides)),
        places=_fields(*(_without(lone, s.recipe, _places(s.recipe)) for s in sides)),
        lock=tuple(d for d in _changed(locks[0], locks[1]) if d.name.removeprefix("data.") not in lone),
        is_locked=None not in locks,
        mixture=_compare_mixtures(ours.table, theirs.table, names),
        num_steps=num_steps,
        whose_steps=whose_steps,
        tokens=_planned(sides, names, num_steps),
        num_rows=None if logged is None else logged[0],
        first_row=None if logged is None else logged[1],
        entries=_compare_entries(ours.history, theirs.history),
    )


def _read(named: Named, how: Opening) -> _Side:
    folder, recipe, logged, history = folder_of(named), recipe_of(named, how), None, None
    if folder is not None:
        log = log_of(folder)
        history = History.read(log) if log.exists else None
        if files := read_log_files(folder):
            logged = LoggedRows(range(recipe.lanes), ALL_STEPS, rows_per_step=recipe.rows_per_step)
            for file in files:
                logged.add(file)
    return _Side(recipe, table_of(named, how), folder, logged, history)


# Configuration and data -------------------------------------------------------------------------------------


def _configuration(recipe: Recipe) -> dict[str, Any]:
    return recipe.configuration() | {"total_steps": recipe.total_steps}


def _places(recipe: Recipe) -> dict[str, Any]:
    found: dict[str, Any] = {
        f"datasets.{d.name}.path": [_absolute(path, recipe.base) for path in d.paths] for d in recipe.datasets
    }
    tokenizer = recipe.tokenize.tokenizer
    if (recipe.base / tokenizer).exists():  # else the name of one
        tokenizer = _absolute(tokenizer, recipe.base)
    return found | {"tokenize.tokenizer": tokenizer}


def _without(datasets: Collection[str], recipe: Recipe, found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields without those of some datasets, of which names may have dots."""

    def owner(field: str) -> str | None:
        names = (name for name in recipe.names if field.startswith(f"datasets.{name}."))
        return max(names, key=len, default=None)

    return {field: value for field, value in found.items() if owner(field) not in datasets}


def _absolute(path: str, base: Path) -> str:
    """Returns a path from the root, so that a recipe and the copy of it in a run folder agree."""
    return path if "://" in path or path.startswith(("~", "${")) else os.path.abspath(base / path)


def _fields(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[FieldDifference, ...]:
    pairs = ((name, *(_plain(side.get(name)) for side in (a, b))) for name in sorted({*a, *b}))
    return tuple(FieldDifference(name, x, y) for name, x, y in pairs if x != y)


def _plain(value: object) -> Any:
    """Returns a value as JSON gives it back, where a tuple is a list."""
    return json.loads(json.dumps(value))


def _changed(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> tuple[FieldDifference, ...]:
    if a is None or b is None:
        return ()
    return tuple(FieldDifference(each.name, each.run, each.here) for each in changed_lock(a, b))


# Mixture ----------------------------------------------------------------------------------------------------


def _steps_to_plan(sides: Sequence[_Side]) -> tuple[int | None, str]:
    """Returns the number of steps that both have, None where neither ends, and in words which these are."""
    known = [s.recipe.total_steps if s.logged is None else s.logged.end_step for s in sides]
    if found := [steps for steps in known if steps is not None]:
        are_runs = all(side.logged is not None for side in sides)
        return min(found), f"those that both {'runs delivered' if are_runs else 'have'}"
    return None, f"from step {_last_change(sides):,} on; neither has an end, so there is no total"


def _last_change(sides: Sequence[_Side]) -> int:
    return max(side.table.starts[-1] for side in sides)


def _compare_mixtures(a: ScheduleTable, b: ScheduleTable, names: tuple[str, ...]) -> MixtureDifference | None:
    first = _with_columns(a, names).first_difference(_with_columns(b, names))
    if first is None:
        return None
    at = [dict(zip(table.names, (s / PARTS for s in table.at(first)), strict=True)) for table in (a, b)]
    return MixtureDifference(step=first, a=at[0], b=at[1])


def _with_columns(table: ScheduleTable, names: tuple[str, ...]) -> ScheduleTable:
    """Returns a table with the columns of `names`, in their order."""
    if table.names == names:
        return table
    places = [table.names.index(name) if name in table.names else -1 for name in names]
    shares = tuple(tuple((*entry, 0)[place] for place in places) for entry in table.shares)
    return replace(table, names=names, shares=shares, begun=frozenset())


def _planned(
    sides: Sequence[_Side], names: tuple[str, ...], num_steps: int | None
) -> dict[str, tuple[float, float]]:
    """Returns the tokens that each side plans for the first steps, or for one after the last change."""
    last = _last_change(sides)
    begin, end = (last, last + 1) if num_steps is None else (0, num_steps)
    planned = []
    for side in sides:
        curve = Curve(side.table, side.recipe.tokens_per_step)
        parts = [curve.delivered(i, end) - curve.delivered(i, begin) for i in range(len(side.table.names))]
        planned.append(
            dict(zip(side.table.names, (p * curve.tokens_per_step / PARTS for p in parts), strict=True))
        )
    return {name: (planned[0].get(name, 0.0), planned[1].get(name, 0.0)) for name in names}


# Runs -------------------------------------------------------------------------------------------------------


def _compare_rows(a: _Side, b: _Side) -> tuple[int, RowDifference | None] | None:
    """Returns (rows that both logged, the first that differs); None where there is nothing to compare."""
    if a.logged is None or b.logged is None:
        return None
    if (a.recipe.lanes, a.recipe.rows_per_step) != (b.recipe.lanes, b.recipe.rows_per_step):
        return None
    num_rows, first = a.logged.compare_with(b.logged)
    if first is None:
        return num_rows, None
    lane, row = first
    return num_rows, RowDifference(
        step=row // a.recipe.rows_per_step,
        lane=lane,
        row=row,
        a=str(a.logged.digest(lane, row)),
        b=str(b.logged.digest(lane, row)),
    )


def _compare_entries(a: History | None, b: History | None) -> tuple[EntryDifference, ...]:
    ours, theirs = (({} if log is None else _accepted(log)) for log in (a, b))
    found = [EntryDifference("a", e.number, body_json(e.body)) for k, e in ours.items() if k not in theirs]
    found += [EntryDifference("b", e.number, body_json(e.body)) for k, e in theirs.items() if k not in ours]
    return tuple(sorted(found, key=lambda each: (each.number, each.run)))


def _accepted(history: History) -> dict[str, Entry]:
    """Returns the entries that count, by what they say of the mixture; who wrote them and why is left out."""
    begins = history.begins()
    found = {}
    for entry in history.entries:
        body, said = entry.body, body_json(entry.body)
        if isinstance(body, Proposal | Decision) and entry.number not in begins:
            continue
        if isinstance(body, Proposal):
            said = {name: said[name] for name in ("at_step", "until", "ops")}
        elif isinstance(body, Decision):
            said = {name: said[name] for name in ("from_step", "weights")}
        elif isinstance(body, RecipeChange):
            said = {name: said[name] for name in ("step", "table")}
        else:
            continue
        found[json.dumps(said, sort_keys=True)] = entry
    return found
