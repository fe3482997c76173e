"""A run's start on its log: entry 0, a recipe that was edited since, and datasets that were added.

Upstream: the recipe. Downstream: `follow.py`. What a recipe says may change from the step on that a run is
at; the past, and the configuration that the fingerprint is over, may not.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from importlib import metadata

from zephon import Recipe, ScheduleTable, StateError
from zephon_curriculum.log.amend import Blobs, Layer
from zephon_curriculum.log.entries import Base, Datasets, RecipeChange
from zephon_curriculum.log.folder import CurriculumLog, table_hash
from zephon_curriculum.log.history import History
from zephon_curriculum.log.steps import AmendError, Steps, merged

_log = logging.getLogger("zephon")


def begin_log(log: CurriculumLog, recipe: Recipe, table: ScheduleTable, lead_steps: int) -> None:
    """Writes entry 0 of a log that has none."""
    body = Base(
        names=table.names,
        lead_steps=lead_steps,
        table=log.put_table(plain(table)),
        fingerprint=recipe.fingerprint(),
        version=metadata.version("zephon-core"),
    )
    log.append(body, 0, "", _refuse_second)


def _refuse_second(entry: object) -> None:
    raise StateError.explained(
        "another run began this curriculum log at the same time",
        got=f"{entry!r:.80}",
        rule="one run at a time follows a log",
        cure="give each run a folder of its own",
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


@dataclass(frozen=True, slots=True)
class Change:
    """A recipe that says another schedule than the log has of recipes, or more datasets."""

    names: tuple[str, ...]
    table: str
    fingerprint: str
    steps: Steps

    def at(self, history: History, step: int) -> RecipeChange:
        """Returns the entry of the change from `step` on; refuses one that differs before it."""
        ours = history.composed.recipe().widened(len(self.names))
        first = ours.first_difference(self.steps, step)
        if first is not None:
            raise StateError.explained(
                f"the recipe's schedule differs from the run's at step {first}",
                got=f"shares {self.steps.at(first)} in place of {ours.at(first)}; {step} steps are begun",
                rule="the past cannot change: an edited recipe may differ from where it goes on",
                cure=f"restore its weights of the steps before {step}, or go on from a state of step {first} "
                "or earlier",
            )
        entry = RecipeChange(step=step, names=self.names, table=self.table, fingerprint=self.fingerprint)
        layer = Layer(number=len(history.entries), from_step=step, table=self.table)
        known = Blobs({self.table: _table(self.names, self.steps)})
        try:
            history.composed.with_blobs(known).with_names(self.names).with_layer(layer)
        except AmendError as error:
            raise StateError.explained(
                "the recipe's new schedule and the amendments on it do not go together",
                got=str(error),
                rule="amendments act on what the recipe says, and leave a mixture",
                cure="withdraw the amendment (`zephon amend RUN --withdraw K`) or edit the recipe",
            ) from None
        stay = [str(amendment.number) for amendment in history.composed.amendments]
        _log.warning(
            "the recipe's schedule replaces the run's from step %d on; %s",
            step, f"amendments {', '.join(stay)} stay on it" if stay else "no amendment is on it",
        )  # fmt: skip
        return entry


@dataclass(frozen=True, slots=True)
class More:
    """Datasets that the run was started with because proposals add them, whatever the verdict on those."""

    names: tuple[str, ...]

    def at(self, history: History, step: int) -> Datasets:
        """Returns the entry of them."""
        return Datasets(step=step, names=self.names)


def _table(names: tuple[str, ...], steps: Steps) -> ScheduleTable:
    return ScheduleTable(names, steps.starts, steps.shares)


def recipe_change(history: History, recipe: Recipe, table: ScheduleTable) -> Change | More | None:
    """Returns how the recipe differs from what the log has of recipes; None where it does not."""
    steps, composed = merged(table.starts, table.shares), history.composed
    is_equal = composed.recipe().widened(len(table.names)) == steps
    has_ended = recipe.controller is None and any(decision.weights for decision in history.decisions())
    added = {*table.names[len(composed.names) :]} - {*history.wanted()}
    if is_equal and not has_ended and not added:
        return None if table.names == composed.names else More(table.names)
    sha = table_hash(_table(table.names, steps))
    return Change(table.names, sha, recipe.fingerprint(), steps)
