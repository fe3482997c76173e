"""Verify: a run's steps made once more, from its recipe, and compared with the digests it logged.

Upstream: a run folder and the recipe opened here. Downstream: `zephon verify`. Ranks are made one after the
other, so any number of them fits one machine; the first difference in (step, lane, row) order is found even
so, since no rank goes further than the first that was found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon.batch import Batch
from zephon.batchlog import LogFile
from zephon.dataset import PAD
from zephon.errors import StateError
from zephon.loader import Loader
from zephon.logged import Difference, LoggedRows
from zephon.opened import Opened
from zephon.options import LoaderOptions
from zephon.readers import Report
from zephon.runfolder import read_table
from zephon.state import lane_key

PARTS = 1000
"""Parts of the progress of one rank."""
Place = tuple[int, int, int, int]
"""Where a state is taken: (step, 0, 0, 0), or inside it (step, rows of the rank, ranks, micro-batch)."""
START: Place = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is compared, and how the steps are made."""

    folder: Path
    opened: Opened
    files: Sequence[LogFile]
    """The batch logs, oldest first."""
    steps: range
    """Half-open; those that the run did not log are not made."""
    options: LoaderOptions
    every: bool = False
    """Whether to go on after the first difference."""
    own_schedule: bool = False
    """Whether the schedule is that of the recipe opened here, not that which the run logged."""
    report: Report | None = None


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """The tokens of a step, by dataset, where they are not those logged."""

    attempt: int | None
    """None where several attempts may have logged the step."""
    step: int
    logged: dict[str, int]
    found: dict[str, int]


@dataclass(slots=True)
class Outcome:
    """What was compared and what differs."""

    num_rows: int = 0
    """Rows compared."""
    steps: set[int] = field(default_factory=set)
    """Steps with a row compared."""
    lacking: Counter[int] = field(default_factory=Counter)
    """Rows made that the log lacks, by step."""
    first: Difference | None = None
    different: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Rows that differ, by (attempt, step)."""
    ends: int | None = None
    """The step before which the data end here although the run went on."""
    tokens: list[TokenDifference] = field(default_factory=list)
    dropped: range = range(0)
    """Steps that only attempts have from which a newer one went back behind them: not compared."""
    remade: list[tuple[LogFile, int, int]] = field(default_factory=list)
    """Steps [a, b) of a rank's lanes that no log led to, made to get to where an attempt began."""

    @property
    def is_equal(self) -> bool:
        """Returns whether nothing differs."""
        return self.first is None and self.ends is None and not self.tokens


def verify_run(plan: Plan) -> Outcome:
    """Returns how the rows that count, of the newest attempts, compare; made from step 0 on."""
    recipe, outcome = plan.opened.recipe, Outcome()
    plan.options.check(recipe.lanes, recipe.rows_per_step)
    logged = _new_log(plan, range(recipe.lanes))
    for file in plan.files:
        logged.add(file)
    outcome.dropped = logged.dropped
    follower = _Follower(plan, logged, outcome, logged.end_step)
    opened, num_ranks = _with_schedule(plan, logged.schedule), plan.options.dp_world_size
    for number in range(num_ranks):
        with Loader(opened, replace(_endless(plan), dp_rank=number)) as loader:
            follower.follow(loader, START, (number, num_ranks))
    follower.compare_tokens()
    return outcome if plan.every else _up_to_first(outcome)


def replay_run(plan: Plan) -> Outcome:
    """Returns how all rows compare, made as the run went: each attempt on its ranks, from earlier states."""
    outcome, states = Outcome(), _States(plan)
    for _, members in groupby(enumerate(plan.files), key=lambda member: member[1].attempt):
        bound = plan.steps.stop
        for number, file in members:
            if file.first_step < bound:
                found = _replay_file(plan, number, bound, states)
                _merge(outcome, found)
                if found.first is not None and not plan.every:
                    bound = found.first.step + 1
        if not (outcome.is_equal or plan.every):
            return _up_to_first(outcome)
    return outcome


def _replay_file(plan: Plan, number: int, bound: int, states: _States) -> Outcome:
    """Returns how what one rank delivered in one attempt compares."""
    file, outcome = plan.files[number], Outcome()
    logged = _new_log(plan, file.ranks.lanes)
    logged.add(file)
    opened = _with_schedule(plan, logged.schedule)
    follower = _Follower(plan, logged, outcome, min(bound, logged.end_step), file.attempt)
    with Loader(opened, _options_of(plan, file)) as loader:
        place = states.restore(loader, file, outcome)
        follower.follow(loader, place, (number, len(plan.files)), states)
    follower.compare_tokens()
    return outcome


def _merge(outcome: Outcome, found: Outcome) -> None:
    """Adds what one rank of one attempt gave; of two differences in one attempt the earlier is first."""
    first = found.first
    if first is not None and (
        outcome.first is None
        or (first.file.attempt == outcome.first.file.attempt and _order(first) < _order(outcome.first))
    ):
        outcome.first = first
    outcome.num_rows += found.num_rows
    outcome.steps |= found.steps
    outcome.lacking += found.lacking
    outcome.different += found.different
    outcome.ends = found.ends if outcome.ends is None else outcome.ends
    outcome.tokens += found.tokens
    outcome.remade += found.remade


def _up_to_first(outcome: Outcome) -> Outcome:
    """Leaves out what a rank met behind the first difference, before that was found on another."""
    if outcome.first is not None:
        step = outcome.first.step
        outcome.different = Counter({key: n for key, n in outcome.different.items() if key[1] <= step})
    return outcome


def _order(difference: Difference) -> tuple[int, int, int]:
    return difference.step, difference.lane, difference.row


def _new_log(plan: Plan, lanes: range) -> LoggedRows:
    recipe = plan.opened.recipe
    return LoggedRows(lanes, plan.steps, rows_per_step=recipe.rows_per_step, names=recipe.names)


def _with_schedule(plan: Plan, schedule: str) -> Opened:
    """Returns the opened recipe with the table that the run logged, where it is to count and is there.

    Refuses one of datasets that the recipe lacks: of a run that went back to before they were added.
    """
    table, names = None if plan.own_schedule else read_table(plan.folder, schedule), plan.opened.recipe.names
    if table is None:
        return plan.opened
    if names[: len(table.names)] != table.names:
        raise StateError.explained(
            f"the run {str(plan.folder)!r} had datasets that the recipe lacks, or another order of them",
            got=", ".join(names),
            rule=f"an attempt was made with {', '.join(table.names)}",
            cure="give a recipe with all of them: --recipe RECIPE",
        )
    return replace(plan.opened, table=table)


def _endless(plan: Plan) -> LoaderOptions:
    """Returns the options with which padding goes on for as long as some rank of the run had rows."""
    is_padded = plan.opened.recipe.when_exhausted == PAD
    return replace(plan.options, any_rank=(lambda _: True) if is_padded else bool)


def _options_of(plan: Plan, file: LogFile) -> LoaderOptions:
    return replace(
        _endless(plan),
        dp_rank=file.ranks.dp_rank,
        dp_world_size=file.ranks.dp_world_size,
        micro_batch_size=file.micro_batch_size,
    )


class _Follower:
    """Takes the batches of ranks, one rank after the other, and compares them."""

    def __init__(
        self, plan: Plan, logged: LoggedRows, outcome: Outcome, end: int, attempt: int | None = None
    ) -> None:
        self._plan, self._logged, self._outcome = plan, logged, outcome
        self._end, self._attempt = end, attempt
        self._tokens: dict[int, tuple[int, NDArray[np.int64]]] = {}
        """By step: rows made, and their tokens by dataset."""

    def follow(
        self, loader: Loader, place: Place, part: tuple[int, int], states: _States | None = None
    ) -> None:
        """Takes batches from `place` up to the end of the steps, or of the step that differs first.

        The rank is `part` (i, n), the i-th of n.
        """
        begin = place[0]
        while place[0] < self._end:
            batch = next(loader, None)
            if batch is None:
                self._outcome.ends = self._end = place[0]
                return
            place = _place_after(batch, loader)
            if batch.step >= self._plan.steps.start:
                self._compare(batch)
            if states is not None:
                states.keep(loader, place)
            if self._plan.report is not None:
                done = (batch.step + 1 - begin) * PARTS // max(1, self._end - begin)
                self._plan.report("steps", part[0] * PARTS + done, part[1] * PARTS)

    def _compare(self, batch: Batch) -> None:
        outcome, logged = self._outcome, self._logged
        num_rows, differences = logged.compare(batch)
        outcome.num_rows += num_rows
        if num_rows:
            outcome.steps.add(batch.step)
        if num_rows < len(batch.rows):
            outcome.lacking[batch.step] += len(batch.rows) - num_rows
        for difference in differences:
            outcome.different[difference.file.attempt, batch.step] += 1
            if outcome.first is None or _order(difference) < _order(outcome.first):
                outcome.first = difference
        if outcome.first is not None and not self._plan.every:
            self._end = min(self._end, outcome.first.step + 1)
        made, tokens = self._tokens.get(batch.step, (0, np.zeros(len(batch.datasets), np.int64)))
        self._tokens[batch.step] = made + len(batch.rows), tokens + batch.tokens.sum(axis=1)

    def compare_tokens(self) -> None:
        """Notes the steps, of those made whole, whose tokens by dataset are not those logged."""
        recipe, num_lanes = self._plan.opened.recipe, len(self._logged.lanes)
        for step, (made, tokens) in sorted(self._tokens.items()):
            found = [int(value) for value in tokens]
            logged = self._logged.tokens(step) if made == num_lanes * recipe.rows_per_step else None
            if logged is not None and logged != found:
                by_name = (dict(zip(recipe.names, values, strict=True)) for values in (logged, found))
                self._outcome.tokens.append(TokenDifference(self._attempt, step, *by_name))


# States of a replay -----------------------------------------------------------------------------------------


def _begin(file: LogFile, rows_per_step: int) -> Place:
    """Returns where the rank of a log stood before its first batch."""
    lanes = file.ranks.lanes
    rows = file.first_row * len(lanes) + file.first_lane - lanes.start
    return _place(rows, len(lanes) * rows_per_step, file.ranks.dp_world_size, file.micro_batch_size)


def _place_after(batch: Batch, loader: Loader) -> Place:
    """Returns where the rank of a loader stands after `batch`, of which the last row is the last made."""
    lanes, rows_per_step = loader.lanes, loader.opened.recipe.rows_per_step
    rows = int(batch.rows[-1]) * len(lanes) + int(batch.lanes[-1]) - lanes.start + 1
    return _place(rows, len(lanes) * rows_per_step, loader.options.dp_world_size, loader.micro_batch_size)


def _place(rows: int, rows_of_step: int, world: int, micro_batch_size: int) -> Place:
    step, inside = divmod(rows, rows_of_step)
    return (step, inside, world, micro_batch_size) if inside else (step, 0, 0, 0)


class _States:
    """The states at the places where attempts began, merged over the ranks made so far; the newest count."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        rows_per_step = plan.opened.recipe.rows_per_step
        self._wanted = {_begin(file, rows_per_step) for file in plan.files}
        self._kept: dict[Place, dict[str, Any]] = {}

    def keep(self, loader: Loader, place: Place) -> None:
        """Keeps the state of a rank at `place` where an attempt began with it."""
        if place in self._wanted:
            self._kept.setdefault(place, {}).update(loader.state_dict())

    def restore(self, loader: Loader, file: LogFile, outcome: Outcome) -> Place:
        """Brings a loader to where the log of `file` begins, and returns that place."""
        place = _begin(file, self._plan.opened.recipe.rows_per_step)
        if place != START:
            lanes = {lane_key(lane) for lane in file.ranks.lanes}
            if not lanes <= set(self._kept.get(place, ())):
                self._make(place, file, lanes, loader.opened, outcome)
            loader.load_state_dict(self._kept[place], allow=("schedule",))
        return place

    def _make(self, place: Place, file: LogFile, lanes: set[str], opened: Opened, outcome: Outcome) -> None:
        """Makes the lanes' states at `place` from the last ones known, since the log that led there lacks."""
        known = [at for at, state in self._kept.items() if at < place and not at[1] and lanes <= set(state)]
        begin = max(known, default=START)
        outcome.remade.append((file, begin[0], place[0] + (place[1] > 0)))
        with Loader(opened, _options_of(self._plan, file)) as loader:
            if begin != START:
                loader.load_state_dict(self._kept[begin], allow=("schedule",))
            at = begin
            while at < place:
                batch = next(loader, None)
                if batch is None:
                    raise StateError.explained(
                        f"{file.label} cannot be made: the data end before step {place[0]}, where it began",
                        got="data with fewer steps than the run had",
                        rule="an attempt goes on where an earlier one was",
                        cure="verify with the data of the run",
                    )
                at = _place_after(batch, loader)
            self._kept.setdefault(place, {}).update(loader.state_dict())
