"""The loader of one rank: the rows of its lanes, as batches, with a state at every batch.

Upstream: `ranklanes.py`, which may be ahead in a thread of its own. Downstream: the training loop. The state
is always that of what was delivered.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from zephon.batch import Batch
from zephon.continuing import begin_phase
from zephon.errors import ZephonError
from zephon.feed import run_ahead
from zephon.lanestate import LaneState
from zephon.opened import Opened, open_recipe
from zephon.options import LoaderOptions
from zephon.progress import Ending, RankProgress, describe_end, measure
from zephon.ranklanes import MadeBatch, RankLanes, Watch
from zephon.recipe import Recipe
from zephon.replay import DeliveryLog
from zephon.runfolder import read_lock
from zephon.schedule import ScheduleTable
from zephon.state import (
    check_shared,
    check_together,
    lane_key,
    lanes_missing,
    read_lane,
    write_state,
)
from zephon.updating import TableInForce

_log = logging.getLogger("zephon")


class Loader:
    """Iterates over the batches of one rank, for ever or, with `max_epochs`, to the end; see `Batch`.

    Also a context manager: leaving it, or `close()`, ends its workers at once.
    """

    def __init__(
        self,
        opened: Opened,
        options: LoaderOptions,
        *,
        owns_opened: bool = False,
        watch: Watch | None = None,
    ) -> None:
        """Makes the loader of `options.dp_rank`; no data is read before the first batch is asked for.

        `watch` is called with the ledger of a lane, which it must not change, and what was chosen by it: a
        dataset and for how many tokens at least, ahead of every draw.
        """
        recipe = opened.recipe
        options.check(recipe.lanes, recipe.rows_per_step)
        self.opened, self.options = opened, options
        self._owns_opened = owns_opened
        begun = None if recipe.continues is None else begin_phase(opened, recipe.continues)
        states, self._start_notes = begun or ([], [])
        self.notes: list[str] = list(self._start_notes)
        """Which state the phase continues, and what a restore accepted although it differs."""
        self._table = TableInForce(opened, options.updates)
        self._rank = RankLanes(opened, options, self._table, watch)
        self.lanes, self.micro_batch_size = self._rank.numbers, self._rank.micro_batch_size
        """The lanes that this rank owns, and the rows of its batches."""
        self._attempt = 0
        self._pid = os.getpid()
        self._source: Generator[MadeBatch | bool, None, None] | None = None
        self._ending = Ending(recipe.when_exhausted, options.any_rank) if recipe.is_finite else None
        if self._ending is not None and options.dp_world_size > 1 and options.any_rank is None:
            _log.warning("the data end, and without `any_rank` rank %d ends alone", options.dp_rank)
        self._next: MadeBatch | None = None
        self._is_over = False
        self._closed = False
        self._log = DeliveryLog.open(opened, options, self.lanes)
        for note in self.notes:
            _log.log(logging.INFO if note is self.notes[0] else logging.WARNING, "begin: %s", note)
        self._delivered = self._rank.begin({lane: states[lane] for lane in self.lanes} if states else {})

    def __repr__(self) -> str:
        options, done = self.options, self.num_steps
        rank = f"rank {options.dp_rank} of {options.dp_world_size}"
        where = f"after {done:,} step{'s' * (done != 1)}{', closed' * self._closed}"
        rows = f"batches of {self.micro_batch_size:,} row{'s' * (self.micro_batch_size != 1)}"
        return f"Loader of {rank}, {where}: {rows}; {self.opened.recipe!r}"

    # Delivering -------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        return self

    def has_next(self) -> bool:
        """Returns whether another batch will come; at once and always true where no dataset has `max_epochs`.

        Else the first call of a step, this or `next()`, makes the rows of the step and asks all ranks; as
        after a first batch, no state can be loaded after it.
        """
        if self._ending is None:
            return True
        if self._next is None and not self._is_over:
            item = self._pull()
            if isinstance(item, bool):
                self._is_over = self._take_verdict(self._ending, item)
                if self._is_over:
                    _log.info("%s", describe_end(self.opened, self._reached(), self.num_steps))
                item = False if self._is_over else self._pull()
            self._next = None if isinstance(item, bool) else item
        return not self._is_over

    def _take_verdict(self, ending: Ending, says: bool) -> bool:
        """Returns whether the run ends before the step of which this rank says `says`."""
        assert self._source is not None
        try:
            is_over = ending.is_over(says)
        except BaseException:  # without a verdict no step begins
            self._source.close()
            raise
        if is_over:
            self._source.close()
        return is_over

    def _pull(self) -> MadeBatch | bool:
        """Returns what comes next of this rank: a batch or, ahead of a step, what it says of it."""
        if self._closed:
            raise ZephonError("the loader is closed; make a new one to go on")
        if self._source is None:
            self._pid = os.getpid()
            depth = 0 if self.options.executor == "inline" else self.options.prefetch
            self._source = run_ahead(self._steps, depth) if depth else self._steps()
        elif os.getpid() != self._pid:
            raise ZephonError("the loader was begun before a fork, which left its threads; make a new one")
        if self.options.updates is not None and self._inside() is None:
            self._table.exchange(self.num_steps)
        try:
            return next(self._source)
        except StopIteration:
            raise ZephonError("the loader stopped at an earlier error; make a new one to go on") from None

    def __next__(self) -> Batch:
        if self._ending is not None and not self.has_next():
            raise StopIteration
        made, self._next = self._next or self._pull(), None
        assert not isinstance(made, bool)
        table = self._table.upto(made.batch.step)
        try:
            self._log.write(made.batch, self._attempt, table)
        except BaseException:  # the batch is not delivered, and none after it is
            assert self._source is not None
            self._source.close()
            raise
        for row in made.rows:
            self._delivered[row.lane] = row.state
        if self._log.wants_snapshot(made.batch.step) and self._inside() is None:
            self._log.snapshot(self.state_dict())
        return made.batch

    def _steps(self) -> Generator[MadeBatch | bool, None, None]:
        """Makes batches in order; where the data end, whole steps and ahead of each what this rank says."""
        if self._ending is None:
            return self._rank.make()
        rows_of_step = len(self.lanes) * self.opened.recipe.rows_per_step
        num_done = sum(state.delivered_rows for state in self._delivered.values()) % rows_of_step
        return self._ending.by_step(self._rank.make(), rows_of_step, num_done)

    # State ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the state after the last delivered batch: shared entries and one for each lane owned.

        Flat, JSON inside, a few hundred bytes a lane; the union of all ranks' states is the run's state.
        """
        table, inside = self._table, self._inside()
        return write_state(
            self.opened, self._delivered,
            table=table.delivered, attempt=self._attempt, inside=inside, head=table.head,
        )  # fmt: skip

    def progress(self) -> RankProgress:
        """Returns how far this rank's lanes have come, after the last delivered batch."""
        return measure(self._reached(), self.opened.orders, self.opened.recipe.rows_per_step)

    def _reached(self) -> dict[int, LaneState]:
        """Returns the lanes as delivered; at their ends in rows past these, and where the run is over."""
        reached = dict(self._delivered)
        for index, state in self._delivered.items():
            end = self._rank.lanes[index].end
            if end is not None and (self._is_over or state.delivered_rows > end.rows):
                reached[index] = end._replace(replay_rows=state.delivered_rows - end.rows)
        return reached

    @property
    def table(self) -> ScheduleTable:
        """Returns the schedule as of the last delivered batch, updates included."""
        return self._table.delivered

    @property
    def num_steps(self) -> int:
        """Returns the steps that are delivered whole, those before a restore included."""
        rows = min(state.delivered_rows for state in self._delivered.values())
        return rows // self.opened.recipe.rows_per_step

    def _inside(self) -> tuple[int, int] | None:
        rows = [state.delivered_rows for state in self._delivered.values()]
        at_step_end = len(set(rows)) == 1 and rows[0] % self.opened.recipe.rows_per_step == 0
        return None if at_step_end else (self.options.dp_world_size, self.micro_batch_size)

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Goes on from `state`; before the first batch. It may hold lanes of other ranks.

        Raises `StateError`, with what differs, where the state does not fit the recipe, the lock, the past of
        the schedule or, inside a step, the ranks. `allow` accepts differences by name, of `ALLOWANCES`: data,
        held_out, tokenizer, plugins, schedule.
        """
        if self._source is not None:
            raise ZephonError(
                "load_state_dict() comes before the first batch; make a new loader to go elsewhere"
            )
        table = self._table.restore(state, allow)
        shared, notes = check_shared(state, self.opened, table, allow, lambda: _earlier_lock(self.options))
        num_datasets = len(self.opened.recipe.datasets)
        num_saved = shared.num_datasets(self.opened.recipe.names)
        states: dict[int, LaneState] = {}
        insides = set()
        for lane in self.lanes:
            if lane_key(lane) not in state:
                raise lanes_missing(self.lanes, state)
            states[lane], inside = read_lane(state[lane_key(lane)], lane, num_saved, num_datasets - num_saved)
            insides.add(inside)
        here = (self.options.dp_world_size, self.micro_batch_size)
        check_together(states, insides, shared.steps, self.opened.recipe.rows_per_step, here)
        self.notes, self._attempt = self._start_notes + notes, shared.attempt + 1
        for note in notes:
            _log.warning("restore: %s", note)
        self._table.take(table, shared.steps)
        self._delivered = self._rank.begin(states)

    # Ending -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends threads and processes at once; a closed loader gives no more batches."""
        self._closed = True
        self._table.close()
        self._rank.close()
        source, self._source, self._next = self._source, None, None
        if source is not None:
            with contextlib.suppress(ValueError):  # it runs, if a signal closes; the closed feed ends it
                source.close()
        self._log.close()
        if self._owns_opened:
            self.opened.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_loader(recipe: Recipe, options: LoaderOptions) -> Loader:
    """Returns the loader of one rank, which owns what it opens; refuses wrong options before any work."""
    options.check(recipe.lanes, recipe.rows_per_step)
    opened = open_recipe(
        recipe,
        cache=options.cache,
        backend=options.backend,
        spool_bytes=options.spool_bytes,
        lock=_earlier_lock(options) if recipe.follows_lock else None,
    )
    try:
        return Loader(opened, options, owns_opened=True)
    except BaseException:
        opened.close()
        raise


def _earlier_lock(options: LoaderOptions) -> dict[str, Any] | None:
    """Returns the lock of the run folder or, where that has none, of the run that is replayed."""
    folders = [Path(folder) for folder in (options.run_folder, options.replay) if folder is not None]
    return next((lock for folder in folders if (lock := read_lock(folder)) is not None), None)
