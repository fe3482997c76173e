"""A run's start on its log: entry 0, a recipe that was edited since, and datasets that were added.

Upstream: the recipe. Downstream: `leader.py`. What a recipe says may change from the step on that a run is
at; the past, and the configuration that the fingerprint is over, may not.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from importlib import metadata

from zephon import Recipe, ScheduleTable, StateError
from zephon_curriculum.log.amend import Blobs, Layer
from zephon_curriculum.log.entries import Base, Datasets, RecipeChange
from zephon_curriculum.log.folder import CurriculumLog, table_hash
from zephon_curriculum.log.history import History
from zephon_curriculum.log.steps import AmendError, merged

_log = logging.getLogger("zephon")


def base_entry(log: CurriculumLog, recipe: Recipe, table: ScheduleTable, lead_steps: int) -> Base:
    """Returns entry 0 of a log that has none; its table is written there."""
    return Base(
        names=table.names,
        lead_steps=lead_steps,
        table=log.put_table(plain(table)),
        fingerprint=recipe.fingerprint(),
        version=metadata.version("zephon-core"),
    )


def plain(table: ScheduleTable) -> ScheduleTable:
    """Returns a table without what only the run knows."""
    return ScheduleTable(table.names, table.starts, table.shares)


def check_recipe(history: History, recipe: Recipe) -> None:
    """Refuses a recipe that is not that of the log, but for its schedule and datasets at the end."""
    names = history.composed.names
    if recipe.names[: len(names)] != names:
        raise StateError.explained(
            "the recipe lacks datasets of the curriculum log, or has them in another order",
            got=", ".join(recipe.names),
            rule=f"the log has {', '.join(names)}, and a run may have more at the end",
            cure="start with `zc.recipe_of_run(recipe, run)`, which adds those that amendments added",
        )
    base = history.base
    known = replace(recipe, datasets=recipe.datasets[: len(base.names)])
    if known.fingerprint() != base.fingerprint:
        raise StateError.explained(
            "the curriculum log is that of another recipe",
            got=f"fingerprint {known.fingerprint()[:12]}, the log has {base.fingerprint[:12]}",
            rule="a run folder keeps its recipe; only the schedule of steps not begun may change",
            cure="bring the recipe back (`zephon diff` says what differs), or begin a new run folder",
        )


def recipe_entry(
    history: History, recipe: Recipe, table: ScheduleTable, step: int
) -> RecipeChange | Datasets | None:
    """Returns the entry of what a recipe of `table` says from `step` on, which recipes in the log do not say.

    None where they do. Datasets that proposals add are no change of its own, whatever the verdict on
    those. Refuses what changes the past, or leaves no mixture with the amendments on it.
    """
    composed, names = history.composed, table.names
    ours, theirs = composed.recipe().widened(len(names)), merged(table.starts, table.shares)
    has_ended = recipe.controller is None and any(decision.weights for decision in history.decisions())
    if ours == theirs and not has_ended and {*names[len(composed.names) :]} <= {*history.wanted()}:
        return None if names == composed.names else Datasets(step=step, names=names)
    if (first := ours.first_difference(theirs, step)) is not None:
        known = ScheduleTable(names, ours.starts, ours.shares)
        raise StateError.explained(
            f"the recipe's schedule differs from the run's at step {first}",
            got=f"{table.shown(first)} in place of {known.shown(first)}; those before step {step} are in use",
            rule="the past cannot change: an edited recipe may differ from where it goes on",
            cure=f"restore its weights of the steps before {step}, or go on from a state of step "
            f"{composed.effective(first)} or earlier",
        )
    sha = table_hash(table)
    layer = Layer(number=len(history.entries), from_step=step, table=sha)
    try:
        composed.with_blobs(Blobs({sha: table})).with_names(names).with_layer(layer)
    except AmendError as error:
        raise StateError.explained(
            "the recipe's new schedule and the amendments on it do not go together",
            got=str(error),
            rule="amendments act on what the recipe says, and leave a mixture",
            cure="withdraw the amendment (`zephon amend RUN --withdraw K`) or edit the recipe",
        ) from None
    stay = ", ".join(str(amendment.number) for amendment in composed.amendments)
    _log.warning(
        "the recipe's schedule replaces the run's from step %d on; %s",
        step, f"amendments {stay} stay on it" if stay else "no amendment is on it",
    )  # fmt: skip
    return RecipeChange(step=step, names=names, table=sha, fingerprint=recipe.fingerprint())
