"""Schedules inside of schedules: builds a sub-table with its own `kind`, and asks a built one what it is.

Upstream: the combinators (`compose.py`, `bounds.py`) and the templates. Downstream: our kinds, else whatever
plugin has the name.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from zephon import Constant, Schedule, ScheduleContext, Stages, find_plugin
from zephon_curriculum.schedules.fields import Weights, mixture
from zephon_curriculum.schedules.mixing import Knots

KINDS = {
    "linear": "ramp:linear",
    "cosine": "ramp:cosine",
    "smoothstep": "ramp:smoothstep",
    "exponential": "ramp:exponential",
    "ramp": "ramp:Ramp.from_config",
    "wsd": "ramp:Wsd.from_config",
    "crossfade": "cycles:CrossFade.from_config",
    "sawtooth": "cycles:Sawtooth.from_config",
    "table": "csv_table:table",
    "then": "compose:Then.from_config",
    "repeat": "compose:Repeat.from_config",
    "bounds": "bounds:Bounds.from_config",
}
"""Our kinds, as this distribution registers them: module of this package and factory."""


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
        built = cast(Schedule, _factory(kind)(rest, context))
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


def _factory(kind: str) -> Any:
    if kind not in KINDS:
        return find_plugin("schedules", kind)
    module, _, path = KINDS[kind].partition(":")
    found: Any = importlib.import_module(f"zephon_curriculum.schedules.{module}")
    for name in path.split("."):
        found = getattr(found, name)
    return found


@dataclass(frozen=True, slots=True)
class EveryStep:
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
        return range(self.num_steps)

    def __str__(self) -> str:
        """Returns the schedule inside in a line."""
        return describe(self.schedule)


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


def describe(schedule: Schedule) -> str:
    """Returns a schedule in a line: its own text, or that of one of the core's."""
    if isinstance(schedule, Constant):
        return f"constant: {Knots.of([schedule.mixture], 'schedule constant').text(0)}"
    if isinstance(schedule, Stages):
        knots = Knots.of(list(schedule.stages.values()), "schedule stages")
        texts = [f"{knots.text(i)} from {at}" for i, at in enumerate(schedule.stages)]
        return f"stages: {', then '.join(texts[:4])}" + (f" and {len(texts) - 4} more" * (len(texts) > 4))
    is_told = type(schedule).__str__ is not object.__str__
    return str(schedule) if is_told else f"schedule {type(schedule).__name__}"
