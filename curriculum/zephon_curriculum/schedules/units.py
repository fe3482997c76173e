"""Positions in a run, given in steps, tokens or percent of the run, as whole steps.

Upstream: the fields of a schedule's table. Downstream: the schedules, which know steps only. The rule of
rounding: the nearest step; what lies in the middle of two goes to the later one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from zephon import ScheduleContext

_POSITION = re.compile(r"(\d[\d_]*(?:\.\d+)?)\s*([KMBT]?)\s*(%|tokens?|steps?)")
_PART = re.compile(r"(\d+)\s*/\s*(\d+)")
MAX_CHANGES = 1 << 22
"""A schedule that changes at more steps is refused: its table would fill the memory."""
_TIMES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
FORMS = 'steps (500), tokens ("2.5B tokens") or a part of the run ("80%", "4/5")'


def to_steps(position: int | str, context: ScheduleContext, where: str = "the position") -> int:
    """Returns `position` in whole steps, rounded to the nearest, halves up.

    A whole number is a number of steps; a text is "500 steps", "2.5B tokens" (K, M, B or T may stand before
    the unit), converted by `context.tokens_per_step`; or "80%" or "4/5", a part of `context.total_steps`.
    """
    if type(position) is int and position >= 0:
        return position
    text = position.strip() if isinstance(position, str) else ""
    if (part := _PART.fullmatch(text)) and int(part[2]):
        return _nearest(_of_run(Fraction(int(part[1]), int(part[2])), position, context, where))
    found = _POSITION.fullmatch(text)
    if found is None:
        raise ValueError(f"{where} must be given in {FORMS}, got {position!r}")
    digits, times, unit = found.groups()
    number = Fraction(digits) * _TIMES[times]
    if unit == "%":
        return _nearest(_of_run(number / 100, position, context, where))
    if unit.startswith("token"):
        return _nearest(number / context.tokens_per_step)
    if number.denominator != 1:
        raise ValueError(f"{where}: steps are whole, got {position!r}")
    return int(number)


def to_length(length: int | str, context: ScheduleContext, where: str) -> int:
    """Returns a length in whole steps as `to_steps` does; refuses what is less than one step."""
    steps = to_steps(length, context, where)
    if steps < 1:
        raise ValueError(f"{where} must be at least one step, got {length!r}, which is {steps} steps")
    return steps


def or_end(position: int | str | None, context: ScheduleContext, where: str) -> int:
    """Returns `position` in steps, or the end of the run where it is None."""
    if position is not None:
        return to_steps(position, context, where)
    if context.total_steps is None:
        raise ValueError(f"{where} is missing, and the recipe does not say `total_steps`; give it or that")
    return context.total_steps


def end_of_cycles(config: Mapping[str, Any], period: int, context: ScheduleContext, where: str) -> int:
    """Returns the step at which cycles end: after `times` of them, at `end`, or with the run."""
    times = config.get("times")
    if times is None:
        return or_end(config.get("end"), context, f"{where}: `end` or `times`")
    if "end" in config:
        raise ValueError(f"{where}: give either `times` or `end`")
    if type(times) is not int or times < 1:
        raise ValueError(f"{where}: `times` must be a whole number >= 1, got {times!r}")
    return to_steps(config.get("begin", 0), context, f"{where}: `begin`") + times * period


def _of_run(part: Fraction, position: int | str, context: ScheduleContext, where: str) -> Fraction:
    if part > 1:
        raise ValueError(f"{where} must be at most the whole run, got {position!r}")
    if context.total_steps is None:
        raise ValueError(
            f"{where}: {position!r} is a part of the run, whose length is not known; "
            "set the recipe's `total_steps`, or give steps or tokens"
        )
    return part * context.total_steps


def _nearest(steps: Fraction) -> int:
    return int(steps + Fraction(1, 2))


def check_steps(what: str, steps: object, least: int) -> None:
    """Refuses what is no whole number of steps >= `least`."""
    if type(steps) is not int or steps < least:
        raise ValueError(f"{what} must be a whole number of steps >= {least}, got {steps!r}")


def check_changes(where: str, count: int) -> None:
    """Refuses a schedule that changes at more steps than a table can hold."""
    if count > MAX_CHANGES:
        raise ValueError(
            f"{where}: changes at {count:,} steps, and a table holds at most {MAX_CHANGES:,}; "
            "set `every`, or shorten it"
        )
