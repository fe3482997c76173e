"""A run from Python: its recipe, log and table, amendments and forks, proof and metrics.

Upstream: notebooks and scripts. Downstream: the run folder, and the log in it that the run follows.
"""

from __future__ import annotations

import logging
import os
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from zephon import (
    Loader,
    LoaderKeywords,
    LoaderOptions,
    LoggedRows,
    Opened,
    Recipe,
    ScheduleTable,
    newest_table,
    open_recipe,
    read_lock,
    read_log_files,
)
from zephon.cli.common import add_row, new_table
from zephon_curriculum.figures import named_step, plural
from zephon_curriculum.log.added import naming_added, with_added
from zephon_curriculum.log.entries import Entry
from zephon_curriculum.log.folder import FOLDER, CurriculumLog, log_of
from zephon_curriculum.log.follow import Share, open_updates
from zephon_curriculum.log.fork import Forked, fork_run
from zephon_curriculum.log.history import History
from zephon_curriculum.log.propose import (
    RECIPE,
    Changes,
    Draft,
    Request,
    make_draft,
    newest_step,
    read_recipe,
    write_proposal,
)
from zephon_curriculum.results import Readable, Shown

_log = logging.getLogger("zephon")
ALL_STEPS = range(1 << 62)


@dataclass(frozen=True, slots=True, repr=False)
class Metrics(Readable):
    """Tokens drawn in the steps that count, as the batch logs have them."""

    names: tuple[str, ...]
    steps: NDArray[np.int64]  # (num_steps,), ascending
    tokens: NDArray[np.int64]  # (num_steps, num_datasets)

    def shares(self) -> NDArray[np.float64]:
        """Returns the realised shares of each step."""  # (num_steps, num_datasets)
        found: NDArray[np.float64] = self.tokens / np.maximum(1, self.tokens.sum(axis=1, keepdims=True))
        return found

    def shown(self) -> Shown:
        """Returns the tokens and the share of each dataset, of all steps."""
        totals = self.tokens.sum(axis=0).tolist()
        table = new_table("dataset", "#tokens", "#share", title="tokens drawn in all of them:")
        for name, tokens in zip(self.names, totals, strict=True):
            add_row(table, name, f"{tokens:,}", f"{tokens / max(1, sum(totals)):.2%}")
        first = f" from {named_step(int(self.steps[0]))} on" if len(self.steps) else ""
        return Shown(head=f"{plural(len(self.steps), 'step')}{first}", tables=[table])


@dataclass(frozen=True, slots=True)
class Verified:
    """What was made once more and found equal."""

    steps: range
    num_rows: int

    def __repr__(self) -> str:
        rows = plural(self.num_rows, "row")
        return f"Verified: {rows} of steps [{self.steps.start:,}, {self.steps.stop:,}), all equal"


class Run:
    """A run folder; one that does not exist yet is made by the first loader."""

    def __init__(self, path: str | os.PathLike[str], recipe: Recipe | None = None) -> None:
        """Reads nothing yet. `recipe` is that of a run to begin, or with which to go on."""
        self.folder = Path(path)
        self._recipe = recipe

    def __repr__(self) -> str:
        return f"Run({os.fspath(self.folder)!r})"

    @property
    def recipe(self) -> Recipe:
        """Returns the recipe, with the datasets that amendments add."""
        recipe = self._recipe or Recipe.from_toml(self.folder / RECIPE)
        return with_added(recipe, self.log)

    @property
    def log(self) -> CurriculumLog:
        """Returns the curriculum log."""
        return log_of(self.folder)

    @property
    def history(self) -> History:
        """Returns what the log says, its chain verified."""
        return History.read(self.log)

    @property
    def table(self) -> ScheduleTable:
        """Returns the schedule with all that the log accepted; without a log the newest that the run had."""
        if self.log.exists:
            return self.history.composed.table()
        return newest_table(self.folder) or self.recipe.compile_schedule()

    def draft(self, *, reason: str, **changes: Unpack[Changes]) -> Draft:
        """Returns what a proposal would come to, and the first step that the run can still accept.

        Writes nothing.
        """
        if unknown := [name for name in changes if name not in Changes.__annotations__]:
            raise TypeError(
                f"a proposal takes no {unknown[0]!r}; it takes {', '.join(Changes.__annotations__)}; "
                "`run.draft(...)` returns what it would come to and writes nothing"
            )
        request = Request(reason=reason, **changes)
        recipe = self._recipe or read_recipe(self.folder)
        newest, lock = newest_step(self.folder), read_lock(self.folder)
        return make_draft(self.log, request, newest_step=newest, recipe=recipe, lock=lock)

    def amend(self, *, reason: str, **changes: Unpack[Changes]) -> Entry:
        """Writes a proposal and returns its entry; the run decides at its next step.

        The keywords are the fields of `Request`: at_step, weights, scale, points and so on. What an entry
        asks for in the same words already is written again only with `again=True`; else that entry is
        returned. Raises AmendError where the log as it is leaves no such amendment.
        """
        return write_proposal(self.log, self.draft(reason=reason, **changes))

    def fork(
        self, at_step: int, into: str | os.PathLike[str], *, state: str | os.PathLike[str] | None = None
    ) -> Forked:
        """Makes a run folder that goes its own way from step `at_step` on; see `fork_run`."""
        return fork_run(self.folder, at_step, into, state=state)

    def loader(
        self,
        options: LoaderOptions | None = None,
        *,
        share: Share | None = None,
        **keywords: Unpack[LoaderKeywords],
    ) -> Loader:
        """Returns the loader of one rank that follows the log and writes its batches into the run folder.

        `options`, or keywords as those of `recipe.loader`, of which `run_folder` and `updates` are set here.
        `share`, a broadcast from rank 0, is needed on every rank of several. Collective.
        """
        chosen = replace(options or LoaderOptions(), **keywords)
        if self.recipe.controller is not None:
            _log.warning("[controller] decides nothing here: a plain loader measures no losses")
        recipe = self.recipe
        chosen.check(recipe.lanes, recipe.rows_per_step)
        opened = self._open(recipe, chosen)
        try:
            updates = open_updates(opened, self.folder / FOLDER, is_first=chosen.dp_rank == 0, share=share)
            chosen = replace(chosen, run_folder=self.folder, updates=updates)
            return Loader(opened, chosen, owns_opened=True)
        except BaseException:
            opened.close()
            raise

    def _open(self, recipe: Recipe, options: LoaderOptions) -> Opened:
        lock = read_lock(self.folder) if recipe.follows_lock else None
        with naming_added(recipe, self.log):
            return open_recipe(
                recipe,
                cache=options.cache,
                backend=options.backend,
                spool_bytes=options.spool_bytes,
                lock=lock,
            )

    def verify(self, steps: range | None = None, options: LoaderOptions | None = None) -> Verified:
        """Returns what was compared of `steps`, default all: the run's rows, made here once more from step 0.

        Raises StateError at the first row that is not what the newest attempt logged. `zephon verify` says
        more of a run that differs.
        """
        recipe, wanted = self.recipe, steps or ALL_STEPS
        logged = self._logged(recipe, wanted)
        end, num_rows = min(wanted.stop, logged.end_step), 0
        chosen = replace(options or LoaderOptions(), replay=self.folder)
        with closing(self._open(recipe, chosen)) as opened:
            table = newest_table(self.folder) or opened.table
            known = replace(opened, table=table.with_datasets(recipe.names, opened.table.begun))
            with Loader(known, chosen) as loader:
                for batch in loader if end else ():
                    num_rows += len(batch.lanes) if batch.step >= wanted.start else 0
                    if loader.num_steps >= end:
                        break
        return Verified(range(min(wanted.start, end), end), num_rows)

    def metrics(self, steps: range | None = None) -> Metrics:
        """Returns the tokens of each dataset in `steps`, default all; without those that count in part."""
        recipe, wanted = self.recipe, steps or ALL_STEPS
        logged = self._logged(recipe, wanted)
        found = {
            step: tokens
            for step in range(wanted.start, min(wanted.stop, logged.end_step))
            if (tokens := logged.tokens(step)) is not None
        }
        columns = np.array(list(found.values()), np.int64).reshape(len(found), len(recipe.names))
        return Metrics(recipe.names, np.array(list(found), np.int64), columns)

    def _logged(self, recipe: Recipe, steps: range) -> LoggedRows:
        logged = LoggedRows(
            range(recipe.lanes), steps, rows_per_step=recipe.rows_per_step, names=recipe.names
        )
        for file in read_log_files(self.folder):
            logged.add(file)
        return logged
