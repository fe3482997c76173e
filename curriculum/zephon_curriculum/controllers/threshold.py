"""A switch from one mixture to another when the loss of a dataset passes a value.

    [controller]
    kind = "threshold"
    dataset = "web"
    below = 2.5                        # or `above`
    weights = { web = 1, math = 3 }    # from the switch on
    back = 2.7                         # and back again at this value; without it there is no way back

Until the first switch the recipe's schedule holds, or `before`, where it is given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from zephon_curriculum.controllers.config import check_fields, check_number, check_whole
from zephon_curriculum.controllers.protocol import (
    ControllerContext,
    Number,
    Observation,
    fault_of,
    quantise,
)

FIELDS = (
    "dataset",
    "weights",
    "below",
    "above",
    "back",
    "before",
    "every",
    "warmup",
    "smoothing",
    "max_switches",
)


class _State(NamedTuple):
    """Where the losses have led to."""

    switched: bool = False
    since: int | None = None
    """The step of the last switch."""
    num_switches: int = 0
    loss: float | None = None
    """The newest smoothed loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """The mixture after a loss has passed a value; a pure function of the history."""

    context: ControllerContext
    dataset: str
    """Whose loss is watched."""
    weights: Mapping[str, Number]
    """The mixture from the switch on."""
    below: float | None = None
    """Switch at a loss under this; this or `above`."""
    above: float | None = None
    """Switch at a loss over this."""
    back: float | None = None
    """Switch back at a loss on the other side of this; None: never."""
    before: Mapping[str, Number] | None = None
    """The mixture until the switch and after a switch back; None: the schedule's at that step."""
    every: int = 1
    """Steps between decisions."""
    warmup: int = 0
    """Steps of which the losses do not count."""
    smoothing: int = 1
    """The loss that is compared is the mean of this many observations; of fewer there is none."""
    max_switches: int = 1
    """Switches in the whole run, there and back."""

    def __post_init__(self) -> None:
        names = self.context.names
        if self.dataset not in names:
            raise ValueError(
                f"controller threshold: `dataset` must be one of {', '.join(names)}, got {self.dataset!r}"
            )
        if (self.below is None) == (self.above is None):
            raise ValueError("controller threshold: give `below` or `above`, one of them")
        for name, value in (("below", self.below), ("above", self.above), ("back", self.back)):
            if value is not None:
                check_number("threshold", name, value, 0.0)
        if self.back is not None and self._passed(self.back):
            side = "below" if self.above is None else "above"
            raise ValueError(
                f"controller threshold: `back` must not be {side} the value of the switch, "
                f"got {self.back!r}; between the two nothing changes"
            )
        for name, whole, least in (
            ("every", self.every, 1),
            ("warmup", self.warmup, 0),
            ("smoothing", self.smoothing, 1),
            ("max_switches", self.max_switches, 1),
        ):
            check_whole("threshold", name, whole, least)
        for mixture in (self.weights, self.before):
            if mixture is not None:
                quantise(mixture, names)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], context: ControllerContext) -> Threshold:
        """Returns the controller of a table `kind = "threshold"`."""
        given = check_fields("threshold", config, FIELDS)
        for name in ("dataset", "weights"):
            if name not in given:
                raise ValueError(f"controller threshold: field {name!r} is missing")
        return cls(context=context, **given)

    def decide(self, history: Sequence[Observation]) -> Mapping[str, Number] | None:
        """Returns the mixture to switch to; None while none is due, and once it has been in force.

        So an amendment that comes after the switch stands.
        """
        if fault_of(history, self.context.names):
            return None
        state = self._state(history)
        target = self._target(state, history[-1].step)
        if target is None:
            return None
        parts = quantise(target, self.context.names)
        since = state.since or 0
        in_force = (seen.shares for seen in reversed(history) if seen.step >= since)
        return None if any(dict(shares) == parts for shares in in_force) else target

    def reason(self, history: Sequence[Observation]) -> str:
        """Returns why `decide` gave None on `history`."""
        if fault := fault_of(history, self.context.names):
            return f"held: {fault}"
        state = self._state(history)
        loss = "no loss yet" if state.loss is None else f"loss {state.loss:.4g}"
        side = ("below", "above")[(self.above is None) == state.switched]
        value = self.back if state.switched else self.above if self.below is None else self.below
        if value is None or state.num_switches == self.max_switches:
            return f"{loss} of {self.dataset!r}; the last switch was at step {state.since}"
        return f"{loss} of {self.dataset!r}; waits until it is {side} {value:g}"

    def _target(self, state: _State, step: int) -> Mapping[str, Number] | None:
        """Returns the mixture that is to hold; None: the schedule's, which nothing has replaced."""
        if state.switched:
            return self.weights
        if self.before is not None:
            return self.before
        return None if state.since is None else self.context.prior(step)

    def _state(self, history: Sequence[Observation]) -> _State:
        state = _State()
        window: list[float] = []
        for seen in history:
            value = seen.losses.get(self.dataset)
            if value is None or not math.isfinite(value) or seen.step < self.warmup:
                continue
            window = [*window, value][-self.smoothing :]
            if len(window) < self.smoothing:
                continue
            loss = sum(window) / len(window)
            turns = self._returned(loss) if state.switched else self._passed(loss)
            if turns and state.num_switches < self.max_switches:
                state = _State(not state.switched, seen.step, state.num_switches + 1, loss)
            else:
                state = state._replace(loss=loss)
        return state

    def _passed(self, loss: float) -> bool:
        return loss < self.below if self.below is not None else loss > (self.above or 0.0)

    def _returned(self, loss: float) -> bool:
        if self.back is None:
            return False
        return loss > self.back if self.below is not None else loss < self.back
