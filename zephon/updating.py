"""The schedule's table while a loader runs: of the rows that are mixed, and of the batches delivered.

Upstream: the recipe's table and the updates of `LoaderOptions`. Downstream: `loader.py`. Rows are mixed at
most `lead_steps` after the step that is delivered, maybe in another thread; an update reaches both in turn.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

from zephon.dropped import DroppedDocuments
from zephon.errors import ZephonError
from zephon.opened import Opened
from zephon.recipe import Recipe
from zephon.schedule import Drop, ScheduleTable, ScheduleUpdates
from zephon.state import saved_steps


class TableInForce:
    """The tables of a loader, and when a step may be mixed."""

    def __init__(self, opened: Opened, updates: ScheduleUpdates | None) -> None:
        self._recipe, self._updates = opened.recipe, updates
        self.mixed = self.delivered = fit(opened.table, opened.recipe)
        """The table of the rows that are mixed next, and that of the last batch delivered."""
        self._coming: deque[tuple[int, ScheduleTable]] = deque()
        self._moved = threading.Condition()
        self._exchanged = -1
        self._delivered_step = 0
        self._is_closed = False
        self._find: Callable[[tuple[Drop, ...]], DroppedDocuments] = lru_cache(4)(
            lambda drops: DroppedDocuments(opened, drops)
        )

    @property
    def head(self) -> str:
        """Returns the hash of the newest entry that the updates come from."""
        return "" if self._updates is None else self._updates.head

    def drops_at(self, table: ScheduleTable, step: int) -> DroppedDocuments | None:
        """Returns the documents that are dropped from `step` on."""
        drops = tuple(drop for drop in table.drops if drop.step <= step)
        return self._find(drops) if drops else None

    def restore(self, state: Mapping[str, Any], allow: Collection[str]) -> ScheduleTable:
        """Returns the table of a run that goes on from `state`; `take` puts it in force.

        Updates that have `check_state(state, table)` may know better than the schedule why it does not fit.
        """
        found = None if self._updates is None else self._updates.update(saved_steps(state))
        table = self.mixed if found is None else fit(found, self._recipe)
        check_state = getattr(self._updates, "check_state", None)
        if check_state is not None and "schedule" not in allow:
            check_state(state, table)
        return table

    def take(self, table: ScheduleTable, step: int) -> None:
        """Puts in force the table of a run that goes on after `step` steps."""
        self.mixed = self.delivered = table
        self._exchanged, self._delivered_step = -1, step

    # In the thread that takes the batches -----------------------------------------------------------------

    def exchange(self, step: int) -> None:
        """Agrees on updates where a step begins, and lets rows of the steps that they cannot change be mixed.

        `step` is the one of which the next batch is; does nothing when it was there before.
        """
        if self._updates is None or step == self._exchanged:
            return
        self._updates.exchange(step)
        self._exchanged = step
        with self._moved:
            self._delivered_step = step
            self._moved.notify_all()

    def upto(self, step: int) -> ScheduleTable:
        """Returns the table of a batch of `step`, which is about to be delivered."""
        while self._coming and self._coming[0][0] <= step:
            self.delivered = self._coming.popleft()[1]
        return self.delivered

    # In the thread that mixes -----------------------------------------------------------------------------

    def begin(self, step: int) -> bool:
        """Waits until rows of `step` may be mixed; returns whether their table is a new one."""
        updates = self._updates
        if updates is None:
            return False
        with self._moved:
            self._moved.wait_for(lambda: self._is_closed or step <= self._delivered_step + updates.lead_steps)
        found = updates.update(step)
        if found is None:
            return False
        table = fit(found, self._recipe)
        differs = self.mixed.first_difference(table, step)
        if differs is not None:
            theirs, ours = table.shown(differs), self.mixed.shown(differs)
            raise ZephonError.explained(
                f"a schedule update at step {step} changes step {differs}",
                got=f"{theirs} in place of {ours}" if theirs != ours else "other steps or documents to skip",
                rule="the past cannot change: an update may differ from its own step on",
                cure="propose the change for a later step",
            )
        self.mixed = table
        self._coming.append((step, table))
        return True

    def close(self) -> None:
        """Ends the waiting of the thread that mixes; updates that have `close()` give up what they hold."""
        self._is_closed = True
        with self._moved:
            self._moved.notify_all()
        close = getattr(self._updates, "close", None)
        if close is not None:
            close()


def fit(table: ScheduleTable, recipe: Recipe) -> ScheduleTable:
    """Returns a table with the recipe's datasets, which may be more than it was made for."""
    num_names = len(table.names)
    if table.names != recipe.names[:num_names]:
        return table  # it is refused where it is compared
    begun = frozenset[int]() if recipe.continues is None else recipe.continues.begun
    return table.with_datasets(recipe.names, begun)
