"""Replay: every batch is compared with what an earlier run delivered, before it is delivered.

Upstream: a run folder. Downstream: `loader.py`, which hands every batch to a `DeliveryLog`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zephon.batch import Batch
from zephon.batchlog import ALL_STEPS, BatchLog, Ranks, find_log_files, last_steps
from zephon.changes import compare_descriptions, list_changes
from zephon.errors import StateError
from zephon.logged import Difference, LoggedRows
from zephon.opened import Opened
from zephon.options import LoaderOptions
from zephon.schedule import ScheduleTable
from zephon.snapshots import SNAPSHOT_STEPS, write_snapshot

_log = logging.getLogger("zephon")


class Replay:
    """Compares the batches of some lanes with what a run logged; the first that differs is an error."""

    def __init__(self, folder: Path, opened: Opened, lanes: range) -> None:
        """Refuses a folder of another recipe or other data; the batch logs are read at the first batch."""
        self._folder, self._opened, self._lanes = folder, opened, lanes
        self._files = find_log_files(folder, "`replay` folder")
        self._refuse_changes()
        self._logged: LoggedRows | None = None
        self._num_rows = self._num_lacking = self._end_step = 0  # one past the last step of any rank
        self._is_over = False

    def _refuse_changes(self) -> None:
        changes, missing = compare_descriptions(self._folder, self._opened)
        for name in missing:
            _log.info("replay: %s has no %s; it is not compared", self._folder, name)
        if changes:
            raise StateError.explained(
                f"the run of `replay` folder {str(self._folder)!r} is another",
                got=f"{len(changes)} things differ:\n{list_changes(changes)}",
                rule="a replay has the recipe, data, tokenizer and plugins of the run it repeats",
                cure="bring these back as the run had them, or leave `replay` out",
            )

    def check(self, batch: Batch) -> None:
        """Returns if the rows of the batch are those of the run; raises StateError if one is not."""
        logged = self._logged or self._read(batch.step)
        if batch.step >= self._end_step:
            self._end(f"its log ends before step {self._end_step}, from which on nothing is compared")
            return
        num_rows, differences = logged.compare(batch)
        if differences:
            self._is_over = True
            raise self._differs(differences, num_rows)
        lacking = len(batch.rows) - num_rows
        if lacking and not self._num_lacking:
            _log.warning(
                "replay: %s lacks %d of %d rows of a batch of step %d: such rows are counted, not compared",
                self._folder, lacking, len(batch.rows), batch.step,
            )  # fmt: skip
        self._num_rows += num_rows
        self._num_lacking += lacking

    def _read(self, step: int) -> LoggedRows:
        """Returns the log of these lanes from `step` on, as far as it is written; refuses one of none."""
        lanes, rows_per_step = self._lanes, self._opened.recipe.rows_per_step
        logged = LoggedRows(lanes, range(step, ALL_STEPS.stop), rows_per_step=rows_per_step)
        for file in self._files:
            if file.ranks.lanes.start < lanes.stop and lanes.start < file.ranks.lanes.stop:
                logged.add(file)
        if not logged.end_step:
            raise StateError.explained(
                f"`replay` folder {str(self._folder)!r} has no row of lanes [{lanes.start}, {lanes.stop})",
                got=f"{len(self._files)} batch logs without such a row",
                rule="every rank compares the rows of its own lanes",
                cure="give the folder with the logs of all ranks, or leave `replay` out",
            )
        self._end_step = 1 + max(last_steps(self._files).values())
        self._logged = logged
        return logged

    def _differs(self, differences: list[Difference], num_rows: int) -> StateError:
        first = min(differences, key=lambda difference: (difference.lane, difference.row))
        step = f"step {first.step} (a trainer that counts from 1 logs it as {first.step + 1})"
        return StateError.explained(
            f"{step}, lane {first.lane}, row {first.row} is not that of the run {str(self._folder)!r}",
            got=f"digest {first.found}; {len(differences)} of the batch's {num_rows} logged rows differ",
            rule=f"the run logged {first.logged} ({first.file.label}, {first.file.path.name})",
            cure=f"`zephon verify {self._folder}` says what else differs; leave `replay` out to go on",
        )

    def _end(self, why: str) -> None:
        if not self._is_over:
            self._is_over = True
            _log.info(
                "replay: %s: %s; %d rows were equal, %d were not in its log",
                self._folder, why, self._num_rows, self._num_lacking,
            )  # fmt: skip

    def close(self) -> None:
        """Says once how much was compared."""
        if self._logged is not None:
            self._end("closed")


@dataclass(frozen=True, slots=True)
class DeliveryLog:
    """What sees each batch before it is delivered: the replay, which may refuse it; the run's own log."""

    replay: Replay | None
    log: BatchLog | None

    @classmethod
    def open(cls, opened: Opened, options: LoaderOptions, lanes: range) -> DeliveryLog:
        """Returns what the options ask for."""
        replay = None if options.replay is None else Replay(Path(options.replay), opened, lanes)
        folder = None if options.run_folder is None else Path(options.run_folder)
        ranks = Ranks(dp_rank=options.dp_rank, dp_world_size=options.dp_world_size, lanes=lanes)
        return cls(replay, BatchLog.open(opened, folder, ranks))

    def write(self, batch: Batch, restores: int, table: ScheduleTable) -> None:
        """Compares and logs a batch; see `BatchLog.write`."""
        if self.replay is not None:
            self.replay.check(batch)
        if self.log is not None:
            self.log.write(batch, restores, table)

    def wants_snapshot(self, step: int) -> bool:
        """Returns whether the state after the last batch of `step` is kept."""
        return self.log is not None and (step + 1) % SNAPSHOT_STEPS == 0

    def snapshot(self, state: Mapping[str, Any]) -> None:
        """Keeps a state of this rank in the run folder; where that fails, a far preview takes longer."""
        assert self.log is not None
        try:
            write_snapshot(self.log.folder, state, self.log.ranks.dp_rank, self.log.attempt)
        except OSError as error:
            _log.warning("a snapshot cannot be kept in run folder %r: %s", str(self.log.folder), error)

    def close(self) -> None:
        """Ends both."""
        if self.replay is not None:
            self.replay.close()
        if self.log is not None:
            self.log.close()
