"""The built-in schedules: weights that stay, and weights that change at given steps.

Upstream: the recipe's `[schedule]`, or a user's code. Downstream: `schedule.py`, which compiles them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zephon.errors import check_whole, unknown_field
from zephon.schedule import ScheduleContext
from zephon.shares import Weights, check_weights


@dataclass(frozen=True, slots=True)
class Constant:
    """The same weights at every step."""

    mixture: Weights

    def __post_init__(self) -> None:
        check_weights(self.mixture, "schedule constant")

    @classmethod
    def from_config(cls, config: Mapping[str, Any], context: ScheduleContext) -> Constant:
        """Returns the schedule of `weights = {...}`."""
        _refuse_unknown(config, {"weights"}, "constant")
        return cls(config["weights"])

    def to_config(self) -> dict[str, Any]:
        """Returns the schedule's table of a recipe."""
        return {"kind": "constant", "weights": dict(self.mixture)}

    def weights(self, step: int) -> Weights:
        """Returns the weights, whatever the step."""
        return self.mixture

    def changes(self) -> Sequence[int]:
        """Returns the one step from which the weights hold."""
        return (0,)


@dataclass(frozen=True, slots=True)
class Stages:
    """Weights that change at given steps: {0: {...}, 500: {...}}; each holds until the next."""

    stages: Mapping[int, Weights]

    def __post_init__(self) -> None:
        if not isinstance(self.stages, Mapping) or 0 not in self.stages:
            raise ValueError(
                f"schedule stages: must map steps to weights, from step 0 on, got {self.stages!r}"
            )
        for step, weights in self.stages.items():
            check_whole("schedule stages: a step", step, 0)
            check_weights(weights, f"schedule stages, step {step}")
        object.__setattr__(self, "stages", {step: dict(self.stages[step]) for step in sorted(self.stages)})

    @classmethod
    def from_config(cls, config: Mapping[str, Any], context: ScheduleContext) -> Stages:
        """Returns the schedule of `stages = [{ step = 0, weights = {...} }, ...]`."""
        _refuse_unknown(config, {"stages"}, "stages")
        entries = config.get("stages")
        if not isinstance(entries, Sequence) or not all(isinstance(e, Mapping) for e in entries):
            raise ValueError(f"schedule stages: `stages` must be a list of tables, got {entries!r}")
        stages: dict[int, Weights] = {}
        for entry in entries:
            if set(entry) != {"step", "weights"}:
                raise ValueError(f"schedule stages: an entry has `step` and `weights`, got {dict(entry)!r}")
            if entry["step"] in stages:
                raise ValueError(f"schedule stages: step {entry['step']} is given twice")
            stages[entry["step"]] = entry["weights"]
        return cls(stages)

    def to_config(self) -> dict[str, Any]:
        """Returns the schedule's table of a recipe."""
        stages = [{"step": step, "weights": dict(weights)} for step, weights in self.stages.items()]
        return {"kind": "stages", "stages": stages}

    def weights(self, step: int) -> Weights:
        """Returns the weights of the last stage that begins at or before `step`."""
        if step in self.stages:
            return self.stages[step]
        return self.stages[max(start for start in self.stages if start <= step)]

    def changes(self) -> Sequence[int]:
        """Returns the steps at which a stage begins."""
        return tuple(self.stages)


def _refuse_unknown(config: Mapping[str, Any], known: set[str], kind: str) -> None:
    if unknown := [name for name in config if name not in known]:
        raise unknown_field(f"schedule {kind}", unknown[0], sorted(known))
    if missing := sorted(known - set(config)):
        raise ValueError(f"schedule {kind}: field {missing[0]!r} is missing")
