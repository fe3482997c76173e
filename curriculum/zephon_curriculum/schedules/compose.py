"""Schedules made of others in time: `Then` plays parts one after the other, `Repeat` plays one in cycles.

Upstream: sub-tables with their own `kind`, or schedules in Python. Downstream: `zephon.compile_schedule`.
Inside of a part steps count from 0, and the part's length is its run: "80%" and a missing `end` mean of it.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from zephon import Schedule, ScheduleContext
from zephon_curriculum.schedules.fields import Config, Weights, check_fields, tables
from zephon_curriculum.schedules.nested import Described, build, changes_of, config_of
from zephon_curriculum.schedules.units import check_changes, check_steps, end_of_cycles, to_length


@dataclass(frozen=True, slots=True, repr=False)
class Then(Described):
    """Parts one after the other; a dataset that a part does not name has weight 0 in it."""

    parts: tuple[tuple[Schedule, int | None], ...]
    """(schedule, its steps); only the last may have None: it holds for ever."""
    _starts: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _zeros: Weights = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("schedule then: `parts` must have at least one schedule, got none")
        lengths = [length for _, length in self.parts]
        for i, length in enumerate(lengths):
            if length is None and i + 1 < len(lengths):
                raise ValueError(f"schedule then, part {i + 1}: must have a `length`, since a part follows")
            if length is not None:
                check_steps(f"schedule then, part {i + 1}: `length`", length, 1)
        starts = (0, *accumulate(length for length in lengths[:-1] if length is not None))
        object.__setattr__(self, "_starts", starts)
        object.__setattr__(self, "_zeros", {n: 0 for part, _ in self.parts for n in part.weights(0)})

    @classmethod
    def from_config(cls, config: Config, context: ScheduleContext) -> Then:
        """Returns the schedule of `parts`, a list of schedules with their `kind`, each with its `length`.

        The length of the last may be left out; it is what remains of the recipe's `total_steps`.
        """
        check_fields("schedule then", config, ("parts",))
        entries = tables("schedule then: `parts`", config["parts"], "{ kind = ..., length = ... }")
        parts: list[tuple[Schedule, int | None]] = []
        start = 0
        for i, entry in enumerate(entries):
            where = f"schedule then, part {i + 1}"
            length, inner = None, replace(context, total_steps=None)
            if "length" in entry:
                length = to_length(entry["length"], context, f"{where}: `length`")
                inner = replace(context, total_steps=length)
            elif context.total_steps is not None:
                rest = context.total_steps - start
                if rest < 1:
                    raise ValueError(
                        f"{where}: begins at step {start}, but the run ends at {context.total_steps}"
                    )
                inner = replace(context, total_steps=rest)
            table = {name: value for name, value in entry.items() if name != "length"}
            parts.append((build(table, inner, where), length))
            start += length or 0
        return cls(tuple(parts))

    def to_config(self) -> dict[str, Any]:
        """Returns the table of a recipe that this schedule is made of."""
        parts = [config_of(part) | ({} if n is None else {"length": n}) for part, n in self.parts]
        return {"kind": "then", "parts": parts}

    def weights(self, step: int) -> Weights:
        """Returns the weights of the part that `step` is in; after the end, those of the last step."""
        index = bisect.bisect_right(self._starts, step) - 1
        part, length = self.parts[index]
        inside = step - self._starts[index]
        return {**self._zeros, **part.weights(inside if length is None else min(inside, length - 1))}

    def changes(self) -> Sequence[int]:
        """Returns the steps at which a part begins or changes."""
        steps: list[int] = []
        for start, (part, length) in zip(self._starts, self.parts, strict=True):
            steps += [start + step for step in changes_of(part) if length is None or step < length]
        return steps


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Repeat(Described):
    """The first `period` steps of a schedule, over and over; what holds before `end` holds for ever."""

    schedule: Schedule
    period: int
    end: int

    def __post_init__(self) -> None:
        check_steps("schedule repeat: `period`", self.period, 1)
        check_steps("schedule repeat: `end`", self.end, 1)

    @classmethod
    def from_config(cls, config: Config, context: ScheduleContext) -> Repeat:
        """Returns the schedule of `schedule`, with its `kind`, `period` and, optionally, `times` or `end`.

        The cycles end after `times`, at `end`, or with the run by the recipe's `total_steps`.
        """
        where = "schedule repeat"
        check_fields(where, config, ("schedule", "period"), ("times", "end"))
        period = to_length(config["period"], context, f"{where}: `period`")
        end = end_of_cycles(config, period, context, where)
        inner = build(config["schedule"], replace(context, total_steps=period), where)
        return cls(schedule=inner, period=period, end=end)

    def to_config(self) -> dict[str, Any]:
        """Returns the table of a recipe that this schedule is made of."""
        inner = config_of(self.schedule)
        return {"kind": "repeat", "schedule": inner, "period": self.period, "end": self.end}

    def weights(self, step: int) -> Weights:
        """Returns the weights of the step of the cycle that `step` is."""
        return self.schedule.weights(min(step, self.end - 1) % self.period)

    def changes(self) -> Sequence[int]:
        """Returns the steps at which a cycle begins or changes."""
        inside = [step for step in changes_of(self.schedule) if step < self.period]
        check_changes("schedule repeat", len(inside) * -(-self.end // self.period))
        starts = range(0, self.end, self.period)
        return [start + step for start in starts for step in inside if start + step < self.end]
