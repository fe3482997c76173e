"""A run that follows its log: the `ScheduleUpdates` of all ranks, decided on rank 0 at step boundaries.

Upstream: the log's folder, which rank 0 alone reads and writes. Downstream: the loaders, which get the
composed table. An exchange is one broadcast; every rank composes the same entries to one table, and compares.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from zephon import Opened, Recipe, ScheduleTable, StateError, find_documents, find_plugin
from zephon_curriculum.controllers.protocol import Controller, ControllerContext, Observation
from zephon_curriculum.log.amend import Composed
from zephon_curriculum.log.entries import Accepted, Base, Body, Decision, Entry, Fork, Proposal, RecipeChange
from zephon_curriculum.log.folder import CurriculumLog, read_blobs
from zephon_curriculum.log.history import History, judge
from zephon_curriculum.log.launch import Change, More, begin_log, check_recipe, plain, recipe_change
from zephon_curriculum.log.message import NOTHING, pack, pack_error, unpack
from zephon_curriculum.log.steering import decide

Share = Callable[[bytes | None], bytes]
"""A broadcast: rank 0 gives its bytes, the others None; all get those of rank 0. Collective."""
LEAD_STEPS = 2
REMOTE_POLL_S = 2.0

_log = logging.getLogger("zephon")


def open_updates(
    run: Opened | Recipe,
    folder: str | os.PathLike[str],
    *,
    is_first: bool = True,
    share: Share | None = None,
    lead_steps: int = LEAD_STEPS,
    poll_s: float | None = None,
) -> Updates:
    """Returns what a loader takes as `updates`; begins the log in `folder` where there is none. Collective.

    Of a recipe that is not opened nobody knows whether it has the documents that a proposal skips.
    `is_first` is rank 0, which alone uses the folder; `share` broadcasts its bytes, and is needed on every
    rank but where one process has all lanes. `lead_steps` is that of a log that is begun here; an older one
    has its own. `poll_s` is the least time between looks for proposals; None: 0 for a folder, 2 s for a URL.
    """
    if share is None and not is_first:
        raise ValueError(
            "`share` must be given on a rank that is not the first, which does not read the log; "
            "give a broadcast from rank 0"
        )
    if type(lead_steps) is not int or lead_steps < 0:
        raise ValueError(f"`lead_steps` must be a whole number >= 0, got {lead_steps!r}")
    log = CurriculumLog(folder) if is_first else None
    if poll_s is None:
        poll_s = REMOTE_POLL_S if "://" in os.fspath(folder) else 0.0
    return Updates(run, log, share or _alone, lead_steps, poll_s)


def _alone(message: bytes | None) -> bytes:
    assert message is not None
    return message


class Updates:
    """The updates of one rank; making it and `exchange` are collective, `update` may run in any thread."""

    def __init__(
        self, run: Opened | Recipe, log: CurriculumLog | None, share: Share, lead_steps: int, poll_s: float
    ) -> None:
        """Reads the log on rank 0 and shares it; see `open_updates`."""
        self._opened = run if isinstance(run, Opened) else None
        self.recipe = run if isinstance(run, Recipe) else run.recipe
        self._table = run.compile_schedule() if isinstance(run, Recipe) else run.table
        self._folder, self._share, self._poll_s = log, share, poll_s
        self._lock = threading.Lock()
        self.history = History()
        """What this rank knows of the log."""
        self._num_shared = 0
        self._raw: dict[str, str] = {}
        self._last_poll = -poll_s
        self._has_failed = False
        self._seen: list[Observation] = []
        self._controller: Controller | None = None
        self._asked, self._restored = -1, -1
        self._coming: deque[tuple[int, ScheduleTable]] = deque()
        self._change: Change | More | None = None
        self._tried: Body | None = None
        self._collective(lambda: self._open(lead_steps))
        check_recipe(self.history, self.recipe)
        self.lead_steps: int = self.history.base.lead_steps
        self.head: str = self.history.head
        self._coming = deque([(0, self.history.composed.table())])

    def _open(self, lead_steps: int) -> None:
        assert self._folder is not None
        self._folder.probe()
        if not self._folder.exists:
            begin_log(self._folder, self.recipe, self._table, lead_steps)
        self._take(self._folder.read())
        check_recipe(self.history, self.recipe)
        self._change = recipe_change(self.history, self.recipe, self._table)
        if self.recipe.controller is not None:
            self._controller = self._build_controller(dict(self.recipe.controller))

    def _build_controller(self, config: dict[str, object]) -> Controller:
        kind = config.pop("kind", None)
        if not isinstance(kind, str):
            raise ValueError(f"[controller] must have a `kind`, got {kind!r}")
        return cast(Controller, find_plugin("controllers", kind)(config, self._context()))

    def _context(self) -> ControllerContext:
        recipe = self.recipe
        return ControllerContext(
            names=recipe.names,
            base=self._table,
            total_steps=recipe.total_steps,
            tokens_per_step=recipe.tokens_per_step,
            seed=recipe.seed,
        )

    @property
    def controller_every(self) -> int | None:
        """Returns the steps between decisions, on rank 0; None without a controller."""
        return None if self._controller is None else self._controller.every

    # For the loader ---------------------------------------------------------------------------------------

    def update(self, step: int) -> ScheduleTable | None:
        """Returns the table in force from `step` on, or None where nothing changed since the last call.

        A table that was decided in the exchange of step T comes at step T + H + 1, whatever is prefetched.
        """
        with self._lock:
            if step <= self._asked:  # a loader that goes on from an earlier state
                self._coming = deque([(0, self.history.composed.table())])
            if step <= self._asked or self._asked < 0:
                self._restored = step
            self._asked = step
            found = None
            while self._coming and self._coming[0][0] <= step:
                found = self._coming.popleft()[1]
            return found

    def exchange(self, step: int) -> None:
        """Decides what waits, on rank 0, and brings all ranks to the same entries; collective.

        An error of rank 0 is raised on all ranks; a folder that cannot be read or written for a while is
        tried again at the next step.
        """
        known = len(self.history.entries) if self._folder is None else self._num_shared
        self._collective(lambda: self._lead(step))
        fresh = self.history.entries[known:]
        if fresh:
            with self._lock:
                self._queue(fresh)
                self.head = self.history.head

    def observe(self, step: int, losses: Mapping[str, float | None], num_tokens: Mapping[str, int]) -> None:
        """Takes what was measured when `step` steps were complete, before its exchange; on rank 0.

        `losses` are means per label token of each dataset since the last observation (None, or left out: no
        token seen), `num_tokens` those drawn since the run began.
        """
        if self._controller is None:
            return
        composed, names = self.history.composed, self.recipe.names
        shares = dict(zip(composed.names, composed.steps.at(step), strict=True))
        self._seen.append(
            Observation(
                step=step,
                losses={name: losses.get(name) for name in names},
                num_tokens={name: num_tokens.get(name, 0) for name in names},
                shares={name: shares.get(name, 0) for name in names},
            )
        )

    def _queue(self, fresh: list[Entry]) -> None:
        """Notes from which step on the new table is in force; it differs from the one before only there."""
        starts = []
        for entry in fresh:
            if isinstance(entry.body, RecipeChange):
                starts.append(entry.body.step)
            elif isinstance(entry.body, Accepted | Decision):
                starts.append(entry.body.step + self.lead_steps + 1)
        if starts:
            while self._coming and self._coming[-1][0] >= min(starts):
                self._coming.pop()  # the new table says what they say
            self._coming.append((min(starts), self.history.composed.table()))

    # Between the ranks ------------------------------------------------------------------------------------

    def _collective(self, work: Callable[[], None]) -> None:
        """Does `work` on rank 0 and brings what it added to the history to all ranks; or raises on all."""
        if self._folder is None:
            self._follow(self._share(None))
            return
        try:
            work()
            message = self._news()
        except BaseException as error:
            self._share(pack_error(error))
            raise
        self._share(message)
        self._num_shared, self._raw = len(self.history.entries), {}

    def _news(self) -> bytes:
        entries = self.history.entries[self._num_shared :]
        return pack(entries, self._raw, _changed(self.history, entries)) if entries else NOTHING

    def _follow(self, message: bytes) -> None:
        news = unpack(message, len(self.history.entries), self.history.head)
        if news is None:
            return
        blobs = news.blobs
        for entry in news.entries:
            self.history.add(entry, blobs)
        if (found := _changed(self.history, news.entries)) != news.schedule:
            raise StateError.explained(
                "this rank composes another schedule than rank 0",
                got=f"schedule {found[:12]}, rank 0 has {news.schedule[:12]}, of the same entries",
                rule="all ranks run the same release of zephon-curriculum",
                cure="install it alike on all machines",
            )

    # On rank 0 --------------------------------------------------------------------------------------------

    def _lead(self, step: int) -> None:
        """Polls, judges and writes; what could not be read or written stays for the next step.

        But for a recipe's new schedule, which can only begin where the run goes on.
        """
        self._change_recipe(step)
        try:
            self._poll()
            for number in sorted(self.history.pending):
                self._write(judge(self.history, number, step, self.recipe.names, self._check_documents))
            if self._controller is not None and self._seen:
                self._steer(self._controller, step)
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                _log.warning("the curriculum log cannot be used, tried again at the next step: %s", error)
            self._has_failed = True

    def _poll(self) -> None:
        assert self._folder is not None
        now = time.monotonic()
        if now - self._last_poll >= self._poll_s:
            self._last_poll = now
            found = self._folder.read_new(len(self.history.entries), self.history.head)
            for entry in found:
                self._refuse_other_run(entry)
            self._take(found)

    def _take(self, entries: list[Entry]) -> None:
        if entries:
            assert self._folder is not None
            raw = self._folder.raw_blobs(entries)
            self._raw |= raw
            blobs = read_blobs(raw)
            for entry in entries:
                self.history.add(entry, blobs)

    def _write(self, body: Body) -> None:
        assert self._folder is not None
        history, self._tried = self.history, body
        self._take(self._folder.append(body, len(history.entries), history.head, self._refuse_other_run))

    def _change_recipe(self, step: int) -> None:
        """Writes down that the recipe says something else from here on, or has more datasets.

        Refuses what changes the past.
        """
        if self._change is None:
            return
        assert self._folder is not None
        at_start = self._restored in (-1, step)  # else rows of this step may be mixed
        first = self.history.composed.first_free(step if at_start else step + self.lead_steps + 1)
        entry = self._change.at(self.history, first)
        if isinstance(self._change, Change):
            self._folder.put_table(plain(self._table))
        self._write(entry)
        self._change = None

    def _check_documents(self, composed: Composed) -> None:
        if self._opened is not None:
            drops = composed.table().drops
            find_documents(self._opened, (document for drop in drops for document in drop.documents))

    def _steer(self, controller: Controller, step: int) -> None:
        self._seen = [seen for seen in self._seen if seen.step <= step]  # none of an attempt given up
        decision = decide(controller, self._context(), self.history, self._seen, step)
        if decision is not None:
            self._write(decision)
            self._seen = []

    def _refuse_other_run(self, entry: Entry) -> None:
        """Refuses an entry of others that only the run itself writes."""
        if not isinstance(entry.body, Proposal) and entry.body != self._tried:
            raise StateError.explained(
                f"another run writes into this curriculum log: entry {entry.number} is {entry.body.kind}",
                got="a verdict that this run did not give",
                rule="one run at a time follows a log; others may only propose",
                cure="end the other run, or fork: `zephon fork RUN --at-step N --into NEW`",
            )


def _changed(history: History, entries: Sequence[Entry]) -> str:
    """Returns the hash of the schedule from the first step on that `entries`, the newest, may change."""
    starts = []
    for entry in entries:
        body = entry.body
        if isinstance(body, Accepted | Decision):
            starts.append(body.from_step)
        elif isinstance(body, RecipeChange):
            starts.append(body.step)
        elif isinstance(body, Base | Fork):
            starts.append(0)
    if not starts:
        return ""
    table = history.composed.table()
    steps = history.composed.steps.since(min(starts))
    said = [table.names, steps.starts, steps.shares, table.skips, [drop.hash for drop in table.drops]]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()
