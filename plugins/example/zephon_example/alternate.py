"""The schedule `alternate`: two mixtures take turns, a fixed number of steps each.

Upstream: the `[schedule]` table of a recipe. Downstream: zephon compiles the schedule to a table of integer
shares, once and before the run, so what happens here can slow nothing down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zephon import ScheduleContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternate:
    """The mixtures `first` and `second`, in turns of `every` steps; the turn before `until` never ends."""

    first: Mapping[str, int]
    """Dataset -> weight, for all datasets of the recipe."""
    second: Mapping[str, int]
    every: int
    until: int
    """No turn begins at this step or later."""

    def __post_init__(self) -> None:
        for field in ("every", "until"):
            value = getattr(self, field)
            if type(value) is not int or value < 1:
                raise ValueError(f"schedule alternate: `{field}` must be a whole number >= 1, got {value!r}")
        for field in ("first", "second"):
            _check_mixture(field, getattr(self, field))

    @classmethod
    def from_config(cls, config: Mapping[str, Any], context: ScheduleContext) -> Alternate:
        """Returns the schedule of the recipe's table: `first`, `second`, `every` and, optionally, `until`.

        `until` is the recipe's `total_steps` where it is left out, and a dataset left out has weight 0.
        """
        fields = {"until": context.total_steps, **config}
        if set(fields) != {"first", "second", "every", "until"}:
            raise ValueError(
                "schedule alternate: the fields are `first`, `second`, `every` and, optionally, `until`, "
                f"got {', '.join(config)}"
            )
        if fields["until"] is None:
            raise ValueError("schedule alternate: needs `until`, since the recipe does not say `total_steps`")
        return cls(
            first=_complete("first", fields["first"], context.names),
            second=_complete("second", fields["second"], context.names),
            every=fields["every"],
            until=fields["until"],
        )

    def to_config(self) -> dict[str, Any]:
        """Returns the table of a recipe that `from_config` makes this schedule of."""
        mixtures = {"first": dict(self.first), "second": dict(self.second)}
        return {"kind": "alternate", **mixtures, "every": self.every, "until": self.until}

    def weights(self, step: int) -> Mapping[str, float]:
        """Returns the weights of the mixture whose turn `step` is in."""
        turn = min(step, self.until - 1) // self.every
        return self.first if turn % 2 == 0 else self.second

    def changes(self) -> Sequence[int]:
        """Returns the steps at which a turn begins, ascending from 0."""
        return range(0, self.until, self.every)


def _complete(field: str, mixture: object, names: Sequence[str]) -> Mapping[str, int]:
    """Returns `mixture` with weight 0 for the datasets that it does not name."""
    if not isinstance(mixture, Mapping):
        raise ValueError(f"schedule alternate: `{field}` must be a table of weights, got {mixture!r}")
    if unknown := [name for name in mixture if name not in names]:
        raise ValueError(
            f"schedule alternate: `{field}` names {unknown[0]!r}, which is no dataset of the recipe; "
            f"its datasets are {', '.join(names)}"
        )
    return {name: mixture.get(name, 0) for name in names}


def _check_mixture(field: str, mixture: Mapping[str, int]) -> None:
    for name, weight in mixture.items():
        if type(weight) is not int or weight < 0:
            raise ValueError(
                f"schedule alternate: weights must be whole numbers >= 0, got {weight!r} for `{field}.{name}`"
            )
    if not any(mixture.values()):
        raise ValueError(f"schedule alternate: a weight in `{field}` must be > 0, got {dict(mixture)!r}")
