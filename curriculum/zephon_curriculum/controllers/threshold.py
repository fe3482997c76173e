"""A switch from one mixture to another when the loss of a dataset passes a value.

    [controller]
    kind = "threshold"
    dataset = "web"
    below = 2.5                        # or `above`
    weights = { web = 1, math = 3 }    # from the switch on

Until the switch the recipe's schedule holds; there is no way back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zephon_curriculum.controllers.config import check_number, check_whole, fields_of
from zephon_curriculum.controllers.protocol import ControllerContext, Number, Observation, quantise


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
    every: int = 1
    """Steps between decisions."""
    warmup: int = 0
    """Steps of which the losses do not count."""
    smoothing: int = 1
    """The loss that is compared is the mean of this many observations; of fewer there is none."""

    def __post_init__(self) -> None:
        names = self.context.names
        if self.dataset not in names:
            raise ValueError(
                f"controller threshold: `dataset` must be one of {', '.join(names)}, got {self.dataset!r}"
            )
        if (self.below is None) == (self.above is None):
            raise ValueError("controller threshold: give `below` or `above`, one of them")
        for name, value in (("below", self.below), ("above", self.above)):
            if value is not None:
                check_number("threshold", name, value, 0.0)
        check_whole("threshold", self, every=1, warmup=0, smoothing=1)
        quantise(self.weights, names)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], context: ControllerContext) -> Threshold:
        """Returns the controller of a table `kind = "threshold"`."""
        return cls(context=context, **fields_of("threshold", config, cls))

    def decide(self, history: Sequence[Observation]) -> Mapping[str, Number] | None:
        """Returns the mixture of the switch; None before it, and once the mixture has been in force.

        So an amendment that comes after the switch stands.
        """
        switched, _ = self._state(history)
        if switched is None:
            return None
        parts = quantise(self.weights, self.context.names)
        in_force = (seen.shares for seen in reversed(history) if seen.step >= switched)
        return None if any(dict(shares) == parts for shares in in_force) else self.weights

    def reason(self, history: Sequence[Observation]) -> str:
        """Returns why `decide` gave None on `history`."""
        switched, newest = self._state(history)
        loss = ("no loss yet" if newest is None else f"loss {newest:.4g}") + f" of {self.dataset!r}"
        if switched is not None:
            return f"{loss}; the switch was at step {switched}"
        side, value = ("above", self.above) if self.below is None else ("below", self.below)
        return f"{loss}; waits until it is {side} {value:g}"

    def _state(self, history: Sequence[Observation]) -> tuple[int | None, float | None]:
        """Returns the step of the switch and the newest smoothed loss; None where there is none yet."""
        switched, loss = None, None
        window: list[float] = []
        for seen in history:
            value = seen.losses.get(self.dataset)
            if value is None or not math.isfinite(value) or seen.step < self.warmup:
                continue
            window = [*window, value][-self.smoothing :]
            if len(window) == self.smoothing:
                loss = sum(window) / len(window)
                if switched is None and self._passed(loss):
                    switched = seen.step
        return switched, loss

    def _passed(self, loss: float) -> bool:
        return loss < self.below if self.below is not None else loss > (self.above or 0.0)
