"""Schedules inside of schedules: builds a sub-table with its own `kind`, and asks a built one what it is.

Upstream: the combinators (`compose.py`, `bounds.py`) and the templates. Downstream: the plugin
that has the name, be it ours or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

from zephon import Schedule, ScheduleContext, check_weights, find_plugin
from zephon.cli.common import add_row, new_table
from zephon_curriculum.figures import plural
from zephon_curriculum.results import Readable, Shown
from zephon_curriculum.schedules.fields import Weights, mixture
from zephon_curriculum.schedules.units import check_changes

MAX_STEPS = 5
"""Steps of which a schedule shows the shares."""


def build(config: object, context: ScheduleContext, where: str = "") -> Schedule:
    """Returns the schedule of a table with its `kind`; it has `changes()`, whatever the plugin gave.

    `where` stands before what is refused.
    """
    if not isinstance(config, Mapping) or not isinstance(config.get("kind"), str):
        raise ValueError(f"{where or 'schedule'}: must be a table with its `kind`, got {config!r}")
    kind = config["kind"]
    rest = {name: value for name, value in config.items() if name != "kind"}
    try:
        if kind == "constant" and isinstance(rest.get("weights"), Mapping):
            mixture("schedule constant", rest["weights"], context)
        built = cast(Schedule, find_plugin("schedules", kind)(rest, context))
    except (ValueError, LookupError) as error:
        message = error.args[0] if error.args else error
        raise ValueError(f"{where}: {message}" if where else str(message)) from None
    if hasattr(built, "changes"):
        return built
    if context.total_steps is None:
        raise ValueError(
            f"{where or 'schedule'}: kind {kind!r} has no `changes()`, so the recipe must say `total_steps`"
        )
    return EveryStep(built, context.total_steps)


class Described(Readable):
    """A schedule that shows itself: the shares at some of the steps at which it changes."""

    __slots__ = ()

    def shown(self) -> Shown:
        """Returns the shares, by dataset, at five steps or fewer, spread over those of change."""
        schedule = cast(Schedule, self)
        try:
            steps = changes_of(schedule)
            last = len(steps) - 1
            chosen = [steps[i] for i in sorted({last * k // (MAX_STEPS - 1) for k in range(MAX_STEPS)})]
            weights = [check_weights(schedule.weights(step), f"step {step}") for step in chosen]
        except ValueError as error:  # of a schedule inside, or bounds that cannot be met
            return Shown(head=str(error))
        table = new_table("dataset", *(f"#step {step:,}" for step in chosen), title="shares")
        for name in dict.fromkeys(name for each in weights for name in each):
            parts = (each.get(name, Fraction(0)) / sum(each.values()) for each in weights)
            add_row(table, name, *(f"{float(part):.2%}" for part in parts))
        return Shown(head=f"changes at {plural(last, 'step')}" if last else "never changes", tables=[table])


@dataclass(frozen=True, slots=True, repr=False)
class EveryStep(Described):
    """A schedule that does not say when it changes, asked at every step of [0, num_steps)."""

    schedule: Schedule
    num_steps: int

    def to_config(self) -> dict[str, Any]:
        """Returns the table of the schedule inside."""
        return config_of(self.schedule)

    def weights(self, step: int) -> Weights:
        """Returns the weights of `step`; those of the last step hold for ever."""
        return self.schedule.weights(min(step, self.num_steps - 1))

    def changes(self) -> Sequence[int]:
        """Returns every step."""
        check_changes(f"schedule {type(self.schedule).__name__}", self.num_steps)
        return range(self.num_steps)


def changes_of(schedule: Schedule) -> Sequence[int]:
    """Returns the steps at which `schedule` may change."""
    changes = getattr(schedule, "changes", None)
    if changes is None:
        kind = type(schedule).__name__
        raise ValueError(f"schedule {kind} has no `changes()`; give it one to put it inside of another")
    return cast(Sequence[int], changes())


def config_of(schedule: Schedule) -> dict[str, Any]:
    """Returns the table of a recipe that `schedule` is made of."""
    to_config = getattr(schedule, "to_config", None)
    if to_config is None:
        raise ValueError(f"schedule {type(schedule).__name__} has no `to_config()`, so no table of a recipe")
    return dict(to_config())
