"""Rank 0 of a run that follows its log: it alone reads and writes the folder, judges, asks the controller.

Upstream: proposals of anyone, and what is observed of the run. Downstream: `follow.py` brings what is new to
all ranks. A controller's word is an entry, so that a replay, or a run that went back behind it, needs neither
controller nor model.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace

from zephon import ControllerContext, Opened, Recipe, StateError, find_documents
from zephon_curriculum.controllers.protocol import (
    Controller,
    Observation,
    consult,
    is_due,
    make_controller,
)
from zephon_curriculum.log.amend import Composed
from zephon_curriculum.log.entries import Body, Decision, Entry, Proposal, RecipeChange, UnfinishedError
from zephon_curriculum.log.folder import CurriculumLog, read_blobs
from zephon_curriculum.log.held import Held
from zephon_curriculum.log.history import History, decided
from zephon_curriculum.log.judge import judge
from zephon_curriculum.log.launch import base_entry, check_recipe, plain, recipe_entry
from zephon_curriculum.log.steps import AmendError

_log = logging.getLogger("zephon")


class Leader:
    """What rank 0 does at a start and at each exchange, with the history that it shares."""

    def __init__(
        self, run: Opened | Recipe, log: CurriculumLog, history: History, lead_steps: int, poll_s: float
    ) -> None:
        """Reads the log into `history`, which is empty; begins the log where there is none."""
        self._opened = run if isinstance(run, Opened) else None
        self._recipe = run if isinstance(run, Recipe) else run.recipe
        self._table = run.compile_schedule() if isinstance(run, Recipe) else run.table
        self._files, self._history = log, history
        self._poll_s, self._last_poll = poll_s, -poll_s
        self._unfinished: UnfinishedError | None = None
        """Of the file after the last entry, where the last look found it not whole."""
        self._has_begun = self._has_failed = False
        self._seen: list[Observation] = []
        self._tried: Body | None = None
        self._raw: dict[str, str] = {}
        self._held: Held | None = log.hold()
        self._is_released = False
        try:
            self.controller = self._start(lead_steps)
        except BaseException:  # whoever looks at the error keeps no other from the log
            self.release()
            raise

    def release(self) -> None:
        """Lets another run follow the log."""
        self._held, self._is_released = None, True

    def _start(self, lead_steps: int) -> Controller | None:
        """Reads the log, or begins it, and returns the controller."""
        log, config = self._files, self._recipe.controller
        with log.reading():
            self._take(log.read())
        with log.writing():
            log.probe()
            if not self._history.entries:
                self._write(base_entry(log, self._recipe, self._table, lead_steps))
        check_recipe(self._history, self._recipe)
        return None if config is None else make_controller(config, self._context())

    def _context(self) -> ControllerContext:
        return self._recipe.controller_context(self._table)

    def take_raw(self) -> dict[str, str]:
        """Returns the files that the entries since the last call name, as they were read."""
        raw, self._raw = self._raw, {}
        return raw

    def observe(self, step: int, losses: Mapping[str, float | None], num_tokens: Mapping[str, int]) -> None:
        """Takes what was measured when `step` steps were complete."""
        if self.controller is None:
            return
        composed, names = self._history.composed, self._recipe.names
        shares = dict(zip(composed.names, composed.steps.at(step), strict=True))
        self._seen.append(
            Observation(
                step=step,
                losses={name: losses.get(name) for name in names},
                num_tokens={name: num_tokens.get(name, 0) for name in names},
                shares={name: shares.get(name, 0) for name in names},
            )
        )

    def lead(self, step: int, *, at_start: bool) -> None:
        """Polls, judges and writes; what could not be read or written stays for the next step.

        But for a recipe's new schedule, which can only begin where the run goes on. `at_start` says that no
        row of `step` is mixed.
        """
        if self._is_released:
            self._held, self._is_released = self._files.hold(), False
        if not self._has_begun:
            self._begin(step, at_start)
        try:
            self._poll()
            for number in sorted(self._history.pending):
                self._write(judge(self._history, number, step, self._recipe, self._check_documents))
            if self.controller is not None and self._seen:
                self._steer(self.controller, step)
            self._has_failed = False
        except (OSError, UnfinishedError) as error:
            if not self._has_failed:
                _log.warning("the curriculum log cannot be used, tried again at the next step: %s", error)
            self._has_failed = True

    def _poll(self) -> None:
        """Takes what others wrote; raises where the next file is not whole: nothing can be written then."""
        now = time.monotonic()
        if now - self._last_poll >= self._poll_s:
            self._last_poll = now
            number = len(self._history.entries)
            found, self._unfinished = self._files.read_new(number, self._history.head)
            for entry in found:
                self._refuse_other_run(entry)
            self._take(found)
        if self._unfinished is not None:
            raise self._unfinished

    def _take(self, entries: list[Entry]) -> None:
        raw = self._files.raw_blobs(entries)
        self._raw |= raw
        blobs = read_blobs(raw)
        for entry in entries:
            self._history.add(entry, blobs)

    def _write(self, body: Body) -> None:
        history, self._tried = self._history, body
        looked, self._last_poll = self._last_poll, -self._poll_s  # with no answer, look at once
        self._take(self._files.append(body, len(history.entries), history.head, self._refuse_other_run))
        self._last_poll = looked

    def _refuse_other_run(self, entry: Entry) -> None:
        """Refuses an entry of others that only the run itself writes."""
        if not isinstance(entry.body, Proposal) and entry.body != self._tried:
            raise StateError.explained(
                f"another run writes into this curriculum log: entry {entry.number} is {entry.body.kind}",
                got="an entry that only the run itself writes, and this run did not",
                rule="one run at a time follows a log; others may only propose",
                cure="end the other run, or fork: `zephon fork RUN --at-step N --into NEW`",
            )

    def _begin(self, step: int, at_start: bool) -> None:
        """Writes down what the recipe says otherwise from here on; refuses what changes the past."""
        ahead = 0 if at_start else self._history.base.lead_steps + 1  # rows of this step may be mixed
        table, first = plain(self._table), self._history.composed.first_free(step + ahead)
        entry = recipe_entry(self._history, self._recipe, table, first)
        with self._files.writing():
            if isinstance(entry, RecipeChange):
                self._files.put_table(table)
            if entry is not None:
                self._write(entry)
        self._has_begun = True

    def _check_documents(self, composed: Composed) -> None:
        if self._opened is not None:
            drops = composed.table().drops
            find_documents(self._opened, (document for drop in drops for document in drop.documents))

    def _steer(self, controller: Controller, step: int) -> None:
        self._seen = [seen for seen in self._seen if seen.step <= step]  # none of an attempt given up
        decision = self._decision(controller, step)
        if decision is not None:
            self._write(decision)
            self._seen = []

    def _decision(self, controller: Controller, step: int) -> Decision | None:
        """Returns what the controller says in the exchange of `step`, or None where it is not asked.

        It is not where the log has a decision of this step or a later one: a run that went back goes on with
        those.
        """
        history, made = self._history, self._history.decisions()
        if not is_due(controller, step) or (made and made[-1].step >= step):
            return None
        before = [Observation.from_json(seen) for decision in made for seen in decision.inputs]
        newest = before[-1].step if before else -1
        fresh = [observation for observation in self._seen if observation.step > newest]
        if not fresh:
            return None
        found = consult(controller, self._context(), [*before, *fresh])
        decision = Decision(
            step=step,
            from_step=history.composed.first_free(step + history.base.lead_steps + 1),
            weights=found.weights,
            inputs=tuple(observation.to_json() for observation in fresh),
            controller=type(controller).__name__,
            reason=found.reason,
        )
        try:
            if found.weights is not None:
                history.composed.with_layer(decided(len(history.entries), decision))
        except AmendError as error:
            return replace(decision, weights=None, reason=f"held: {error}")
        return decision
