"""A run that follows its log: the `ScheduleUpdates` of all ranks, decided on rank 0 at step boundaries.

Upstream: `leader.py`, on rank 0. Downstream: the loaders, which get the composed table. An exchange is one
broadcast, of one byte where nothing is new; every rank composes the same entries to one table, and compares.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from zephon import Opened, Recipe, ScheduleTable, StateError
from zephon_curriculum.log.entries import (
    Accepted,
    Base,
    Decision,
    Entry,
    Fork,
    RecipeChange,
    read_entry,
)
from zephon_curriculum.log.folder import CurriculumLog, read_blobs
from zephon_curriculum.log.fork import check_state_of
from zephon_curriculum.log.history import History
from zephon_curriculum.log.launch import check_recipe
from zephon_curriculum.log.leader import Leader

Share = Callable[[bytes | None], bytes]
"""A broadcast: rank 0 gives its bytes, the others None; all get those of rank 0. Collective."""
LEAD_STEPS = 2
REMOTE_POLL_S = 2.0
NOTHING = b"."


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
        """Reads the log on rank 0, which alone has it, and shares it; see `open_updates`."""
        self.recipe = run if isinstance(run, Recipe) else run.recipe
        self.history = History()
        """What this rank knows of the log."""
        self._share, self._lock = share, threading.Lock()
        self._asked, self._restored = -1, -1
        self._leader: Leader | None = None

        def begin() -> None:
            assert log is not None
            self._leader = Leader(run, log, self.history, lead_steps, poll_s)

        self._collective(None if log is None else begin)
        check_recipe(self.history, self.recipe)
        self.lead_steps: int = self.history.base.lead_steps
        self.head: str = self.history.head
        self._coming = deque([(0, self.history.composed.table())])

    @property
    def controller_every(self) -> int | None:
        """Returns the steps between decisions, on rank 0; None without a controller."""
        controller = None if self._leader is None else self._leader.controller
        return None if controller is None else controller.every

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

    def check_state(self, state: Mapping[str, Any], table: ScheduleTable) -> None:
        """Raises StateError for a state of the run that this one is a fork of, from behind the fork."""
        check_state_of(self.history, self.recipe, state, table)

    def close(self) -> None:
        """Lets another run follow the log; an exchange after it, of another loader, takes the log again."""
        if self._leader is not None:
            self._leader.release()

    def exchange(self, step: int) -> None:
        """Decides what waits, on rank 0, and brings all ranks to the same entries; collective.

        An error of rank 0 is raised on all ranks; a folder that cannot be read or written for a while is
        tried again at the next step.
        """
        leader, at_start = self._leader, self._restored in (-1, step)
        fresh = self._collective(None if leader is None else partial(leader.lead, step, at_start=at_start))
        if fresh:
            with self._lock:
                self._queue(fresh)
                self.head = self.history.head

    def observe(self, step: int, losses: Mapping[str, float | None], num_tokens: Mapping[str, int]) -> None:
        """Takes what was measured when `step` steps were complete, before its exchange; on rank 0.

        `losses` are means per label token of each dataset since the last observation (None, or left out: no
        token seen), `num_tokens` those drawn since the run began.
        """
        if self._leader is not None:
            self._leader.observe(step, losses, num_tokens)

    def _queue(self, fresh: Sequence[Entry]) -> None:
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

    def _collective(self, work: Callable[[], None] | None) -> list[Entry]:
        """Does the `work` of rank 0; returns on all ranks the entries new by it, or raises on all."""
        num_known = len(self.history.entries)
        if work is None:
            self._follow(self._share(None))
            return self.history.entries[num_known:]
        try:
            work()
            assert self._leader is not None
            fresh, raw = self.history.entries[num_known:], self._leader.take_raw()
            message = _pack(fresh, raw, _schedule_hash(self.history, fresh)) if fresh else NOTHING
        except BaseException as error:
            self._share(json.dumps({"error": f"rank 0: {type(error).__name__}: {error}"}).encode())
            raise
        self._share(message)
        return fresh

    def _follow(self, message: bytes) -> None:
        """Takes what rank 0 tells; raises the error in it."""
        if message == NOTHING:
            return
        data, history = json.loads(message), self.history
        if "error" in data:
            raise StateError(str(data["error"]))
        blobs, first = read_blobs(data["files"]), len(history.entries)
        for number, text in enumerate(data["entries"], first):
            where = f"entry {number} from rank 0"
            history.add(read_entry(text.encode(), number, history.head, where), blobs)
        if (found := _schedule_hash(history, history.entries[first:])) != data["schedule"]:
            raise StateError.explained(
                "this rank composes another schedule than rank 0",
                got=f"schedule {found[:12]}, rank 0 has {data['schedule'][:12]}, of the same entries",
                rule="all ranks run the same release of zephon-curriculum",
                cure="install it alike on all machines",
            )


def _pack(entries: Sequence[Entry], raw: Mapping[str, str], schedule: str) -> bytes:
    """Returns the message of new entries, with what they name and the hash of the schedule they give."""
    files = [entry.to_bytes().decode() for entry in entries]
    return json.dumps({"entries": files, "files": raw, "schedule": schedule}).encode()


def _schedule_hash(history: History, entries: Sequence[Entry]) -> str:
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
