"""Floors and ceilings of the share of each dataset, kept at every step by exact water-filling.

Upstream: another schedule. Downstream: `zephon.compile_schedule`. What a floor takes and a ceiling leaves is
borne by the datasets within their bounds, in proportion to their weights; whole numbers only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from zephon import Schedule, ScheduleContext
from zephon_curriculum.figures import percent
from zephon_curriculum.schedules.fields import (
    Config,
    Knots,
    Weights,
    check_fields,
    check_names,
    decimal,
    part_of_step,
    plain,
)
from zephon_curriculum.schedules.nested import Described, build, changes_of, config_of

Limits = Mapping[str, int | float | str]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Bounds(Described):
    """A schedule whose shares stay in [floor, ceiling] for the datasets that have one.

    A floor holds also where the schedule gives the dataset no weight.
    """

    schedule: Schedule
    floors: Limits = field(default_factory=dict)
    """Dataset -> the least part of the tokens of a step: 0.2 or "20%"."""
    ceilings: Limits = field(default_factory=dict)
    """Dataset -> the most."""
    _limits: tuple[dict[str, int], dict[str, int], int] = field(init=False, repr=False, compare=False)
    """Floors, ceilings, and the whole that they are parts of."""

    def __post_init__(self) -> None:
        floors, ceilings = (
            {name: part_of_step(f"schedule bounds, `{side}`: {name}", value) for name, value in given.items()}
            for side, given in (("floors", self.floors), ("ceilings", self.ceilings))
        )
        for name, floor in floors.items():
            if floor > ceilings.get(name, 1):
                raise ValueError(
                    f"schedule bounds: the floor of {name!r} must be at most its ceiling, got "
                    f"{percent(floor)} and {percent(ceilings[name])}"
                )
        if (least := sum(floors.values(), Fraction(0))) > 1:
            raise ValueError(
                f"schedule bounds: the floors must sum to at most 100%, got {percent(least)}, "
                f"{percent(least - 1)} too much"
            )
        whole = math.lcm(*(part.denominator for part in (*floors.values(), *ceilings.values())))
        low = {name: int(part * whole) for name, part in floors.items()}
        high = {name: int(part * whole) for name, part in ceilings.items()}
        object.__setattr__(self, "_limits", (low, high, whole))

    @classmethod
    def from_config(cls, config: Config, context: ScheduleContext) -> Bounds:
        """Returns the schedule of `schedule`, with its `kind`, and `floors`, `ceilings` or both."""
        where = "schedule bounds"
        check_fields(where, config, ("schedule",), ("floors", "ceilings"))
        limits = {}
        for side in ("floors", "ceilings"):
            limits[side] = config.get(side, {})
            if not isinstance(limits[side], Mapping):
                raise ValueError(f"{where}: `{side}` must be a table, {{ NAME = 0.2 }}, got {limits[side]!r}")
            check_names(f"{where}, `{side}`", limits[side], context)
        inner = build(config["schedule"], context, where)
        bounds = cls(schedule=inner, floors=limits["floors"], ceilings=limits["ceilings"])
        bounds.check_room(context.names)
        return bounds

    def check_room(self, names: Sequence[str]) -> None:
        """Refuses ceilings of all of `names` that cannot hold the tokens of a step."""
        _, high, whole = self._limits
        most = sum((high.get(name, whole) for name in names), 0)
        if most < whole:
            missing = percent(Fraction(whole - most, whole))
            raise ValueError(
                f"schedule bounds: the ceilings must sum to at least 100%, got "
                f"{percent(Fraction(most, whole))}, {missing} too little"
            )

    def to_config(self) -> dict[str, Any]:
        """Returns the table of a recipe that this schedule is made of."""
        config: dict[str, Any] = {"kind": "bounds", "schedule": config_of(self.schedule)}
        for side, limits in (("floors", self.floors), ("ceilings", self.ceilings)):
            if limits:
                config[side] = {n: plain(decimal(side, value)) for n, value in limits.items()}
        return config

    def weights(self, step: int) -> Weights:
        """Returns the weights of `step` within the bounds, in whole numbers."""
        where = f"schedule bounds, step {step}"
        given = _whole_weights(self.schedule.weights(step), where)
        low, high, whole = self._limits
        given = {name: 0 for name in low if name not in given} | given
        return fill(given, low, high, whole, where)

    def changes(self) -> Sequence[int]:
        """Returns the steps at which the schedule inside may change."""
        return changes_of(self.schedule)


def fill(
    weights: Mapping[str, int], low: Mapping[str, int], high: Mapping[str, int], whole: int, where: str
) -> dict[str, int]:
    """Returns whole numbers with shares max(low, min(high, scale * weight)), for the scale that sums to 1.

    `low` and `high` are parts of `whole`. In each round the side that is further off is fixed for good, so
    there are at most as many rounds as datasets.
    """
    fixed: dict[str, int] = {}
    while True:
        free = {name: weight for name, weight in weights.items() if name not in fixed}
        rest, total = whole - sum(fixed.values()), sum(free.values())
        if not total:
            return _none_free(free, fixed, low, rest, whole, where)
        short = {n: low[n] for n, w in free.items() if w * rest < low.get(n, 0) * total}
        over = {n: high[n] for n, w in free.items() if w * rest > high.get(n, whole) * total}
        if not short and not over:
            return {n: fixed[n] * total if n in fixed else w * rest for n, w in weights.items()}
        missing = sum(part * total - free[n] * rest for n, part in short.items())
        excess = sum(free[n] * rest - part * total for n, part in over.items())
        fixed |= short if missing >= excess else {}
        fixed |= over if excess >= missing else {}


def _none_free(
    free: Mapping[str, int], fixed: dict[str, int], low: Mapping[str, int], rest: int, whole: int, where: str
) -> dict[str, int]:
    """Returns the fixed shares where no weight is left to bear the rest; refuses what is left over."""
    fixed = fixed | {name: low.get(name, 0) for name in free}
    left = rest - sum(fixed[name] for name in free)
    if left:
        slack = percent(Fraction(abs(left), whole))
        got = f"{slack} of the tokens are left over" if left > 0 else f"the floors ask for {slack} too much"
        raise ValueError(
            f"{where}: the bounds cannot be met, {got}; raise a ceiling, lower a floor, or give weight to "
            "a dataset within its bounds"
        )
    return fixed


def _whole_weights(weights: Weights, where: str) -> dict[str, int]:
    """Returns whole numbers with the ratios of `weights`; ours are whole already."""
    if all(type(weight) is int and weight >= 0 for weight in weights.values()) and any(weights.values()):
        return {name: int(weight) for name, weight in weights.items()}
    return Knots.of([weights], where).at(0)
