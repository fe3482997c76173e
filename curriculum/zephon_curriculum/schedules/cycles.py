"""Blends along several mixtures: `CrossFade` from knot to knot, `Sawtooth` in cycles with a floor of replay.

Upstream: the `[schedule]` table of a recipe, or Python. Downstream: `zephon.compile_schedule`. A CSV file
(`csv_table.py`) becomes a `CrossFade` too.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

from zephon import ScheduleContext
from zephon_curriculum.schedules.easing import LINEAR, Easing
from zephon_curriculum.schedules.fields import (
    Config,
    Knots,
    Weights,
    check_fields,
    mixture,
    part_of_step,
    plain,
    tables,
    written,
)
from zephon_curriculum.schedules.nested import Described
from zephon_curriculum.schedules.units import check_changes, check_steps, end_of_cycles, to_length, to_steps


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CrossFade(Described):
    """Mixtures one after the other: each in full from its step on, until it fades into the next."""

    knots: tuple[tuple[int, Weights], ...]
    """(step, mixture), ascending from step 0; the last holds for ever."""
    fade: int | None = None
    """Steps of a fade, the last before the next knot; 0: switches at once; None: from knot to knot."""
    easing: Easing = LINEAR
    every: int = 1
    _starts: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _knots: Knots = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        where = "schedule crossfade"
        check_steps(f"{where}: `every`", self.every, 1)
        starts = tuple(at for at, _ in self.knots)
        for at in starts:
            check_steps(f"{where}: `at`", at, 0)
        if not starts or starts[0] != 0 or any(b <= a for a, b in pairwise(starts)):
            raise ValueError(f"{where}: the knots must ascend from step 0, got steps {list(starts)[:8]}")
        if self.fade is not None:
            check_steps(f"{where}: `fade`", self.fade, 0)
            for a, b in pairwise(starts):
                if self.fade > b - a:
                    raise ValueError(
                        f"{where}: `fade` must fit between two knots, got {self.fade} steps for the "
                        f"{b - a} from step {a} to {b}"
                    )
        object.__setattr__(self, "_starts", starts)
        object.__setattr__(self, "_knots", Knots.of([weights for _, weights in self.knots], where))

    @classmethod
    def from_config(cls, config: Config, context: ScheduleContext) -> CrossFade:
        """Returns the schedule of `knots = [{ at = 0, weights = {...} }, ...]`, `fade`, `easing`, `every`."""
        where = "schedule crossfade"
        check_fields(where, config, ("knots",), ("fade", "easing", "every"))
        knots: list[tuple[int, Weights]] = []
        for entry in tables(f"{where}: `knots`", config["knots"], "{ at = 0, weights = {...} }"):
            check_fields(f"{where}, knot {len(knots) + 1}", entry, ("at", "weights"))
            at = to_steps(entry["at"], context, f"{where}, knot {len(knots) + 1}: `at`")
            knots.append((at, mixture(f"{where}, knot at {entry['at']}", entry["weights"], context)))
        fade = config.get("fade")
        return cls(
            knots=tuple(knots),
            fade=None if fade is None else to_steps(fade, context, f"{where}: `fade`"),
            easing=Easing.of(config.get("easing", LINEAR), where),
            every=to_length(config.get("every", 1), context, f"{where}: `every`"),
        )

    def to_config(self) -> dict[str, Any]:
        """Returns the table of a recipe that this schedule is made of."""
        knots = [{"at": at, "weights": written(weights)} for at, weights in self.knots]
        config: dict[str, Any] = {"kind": "crossfade", "knots": knots}
        config |= {} if self.fade is None else {"fade": self.fade}
        config |= {} if self.easing == LINEAR else {"easing": self.easing.to_config()}
        return config if self.every == 1 else config | {"every": self.every}

    def weights(self, step: int) -> Weights:
        """Returns the weights of `step`, in whole numbers."""
        index = bisect.bisect_right(self._starts, step) - 1
        if index + 1 == len(self._starts):
            return self._knots.at(index)
        begin, end = self._fade(index)
        if step <= begin or begin == end:
            return self._knots.at(index)
        done = (step - begin) // self.every * self.every
        return self._knots.blend(index, index + 1, self.easing.at(done, end - begin))

    def changes(self) -> Sequence[int]:
        """Returns the steps of the knots and of the fades."""
        steps = [0]
        for index in range(len(self._starts) - 1):
            begin, end = self._fade(index)
            check_changes("schedule crossfade", len(steps) + (end - begin) // self.every)
            steps += [*range(begin + self.every, end, self.every), end]
        return steps

    def _fade(self, index: int) -> tuple[int, int]:
        """Returns the last step at which a knot is in full, and the first of the next."""
        begin, end = self._starts[index : index + 2]
        return (begin if self.fade is None else end - self.fade), end


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sawtooth(Described):
    """Cycles of `period` steps, in each of which `new` rises from nothing to all but a floor of `old`.

    At the end of a cycle the mixture falls back to `old` at once, so old data are replayed.
    """

    old: Weights
    new: Weights
    period: int
    begin: int = 0
    """`old` holds before it."""
    end: int
    """The cycles end here; what holds in the step before holds for ever."""
    floor: int | float | str = 0
    """The part of the tokens that `old` keeps at the top of a tooth: 0.2 or "20%"."""
    easing: Easing = LINEAR
    _floor: Fraction = field(init=False, repr=False, compare=False)
    _knots: Knots = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_steps("schedule sawtooth: `period`", self.period, 2)
        check_steps("schedule sawtooth: `begin`", self.begin, 0)
        check_steps("schedule sawtooth: `end`", self.end, self.begin + 1)
        object.__setattr__(self, "_floor", part_of_step("schedule sawtooth: `floor`", self.floor))
        object.__setattr__(self, "_knots", Knots.of([self.old, self.new], "schedule sawtooth"))

    @classmethod
    def from_config(cls, config: Config, context: ScheduleContext) -> Sawtooth:
        """Returns the schedule of `old`, `new`, `period`, maybe `begin`, `end`, `times`, `floor`, `easing`.

        The cycles end after `times`, at `end`, or with the run by the recipe's `total_steps`.
        """
        where = "schedule sawtooth"
        check_fields(where, config, ("old", "new", "period"), ("begin", "end", "times", "floor", "easing"))
        period = to_length(config["period"], context, f"{where}: `period`")
        return cls(
            old=mixture(f"{where}, `old`", config["old"], context),
            new=mixture(f"{where}, `new`", config["new"], context),
            period=period,
            begin=to_steps(config.get("begin", 0), context, f"{where}: `begin`"),
            end=end_of_cycles(config, period, context, where),
            floor=config.get("floor", 0),
            easing=Easing.of(config.get("easing", LINEAR), where),
        )

    def to_config(self) -> dict[str, Any]:
        """Returns the table of a recipe that this schedule is made of."""
        config: dict[str, Any] = {"kind": "sawtooth", "old": written(self.old), "new": written(self.new)}
        config |= {"period": self.period, "begin": self.begin, "end": self.end}
        config |= {"floor": plain(self._floor)} if self._floor else {}
        return config if self.easing == LINEAR else config | {"easing": self.easing.to_config()}

    def weights(self, step: int) -> Weights:
        """Returns the weights of `step`, in whole numbers."""
        since = min(step, self.end - 1) - self.begin
        if since <= 0:
            return self._knots.at(0)
        part, whole = self.easing.at(since % self.period, self.period - 1)
        top = 1 - self._floor
        return self._knots.blend(0, 1, (part * top.numerator, whole * top.denominator))

    def changes(self) -> Sequence[int]:
        """Returns 0 and every step of the cycles."""
        check_changes("schedule sawtooth", self.end - self.begin)
        return (0, *range(max(1, self.begin), self.end))
