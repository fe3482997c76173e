"""Controllers: what is measured of a run at step boundaries -> weights for the steps to come.

Upstream: the losses per dataset that the trainer hands in. Downstream: the curriculum log, which records each
decision with its inputs, so that a replay needs neither model nor controller. Nothing here does I/O.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

from zephon import PARTS, find_plugin, shares_of
from zephon import ControllerContext as ControllerContext
from zephon.cli.common import cut

Number = Fraction | int | float
BRIEF = 100
"""Characters of an advice that a REPL shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was measured of a run when `step` steps were complete: the inputs of a decision."""

    step: int
    """Steps complete when it was taken."""
    losses: Mapping[str, float | None]
    """Mean loss per label token of each dataset since the observation before; None: no label token of it."""
    num_tokens: Mapping[str, int]
    """Tokens drawn of each dataset since the run began, over all lanes."""
    shares: Mapping[str, int]
    """Integer shares in force at `step`."""

    def to_json(self) -> dict[str, Any]:
        """Returns the observation as strict JSON data, NaN and infinities as text; inverse of `from_json`."""
        return {
            "step": self.step,
            "losses": {name: _to_json(loss) for name, loss in self.losses.items()},
            "num_tokens": dict(self.num_tokens),
            "shares": dict(self.shares),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Observation:
        """Returns the observation that `to_json` wrote."""
        losses = {name: _from_json(loss) for name, loss in data["losses"].items()}
        num_tokens, shares = dict(data["num_tokens"]), dict(data["shares"])
        return cls(step=data["step"], losses=losses, num_tokens=num_tokens, shares=shares)


@runtime_checkable
class Controller(Protocol):
    """A plugin role, built by `factory(config, context)`: a pure function of what was observed.

    All that it may remember is in the history. A controller may also have `reason(history) -> str`, asked
    where `decide` gave None: why nothing changes.
    """

    @property
    def every(self) -> int:
        """Returns the steps between decisions: one is due when a whole multiple of it is complete."""
        ...

    def decide(self, history: Sequence[Observation]) -> Mapping[str, Number] | None:
        """Returns the weights from the first legal step on, or None for no change.

        `history` ascends, the newest last, and is left as it is; it is asked where the newest has no fault
        (`fault_of`). Every dataset has a weight >= 0; only their ratios count.
        """
        ...


@dataclass(frozen=True, slots=True, repr=False)
class Advice:
    """What `consult` got of a controller."""

    weights: dict[str, int] | None
    """Shares of all datasets that sum to `zephon.PARTS`; None: no change."""
    reason: str
    """Why nothing changes; empty where something does."""

    def __repr__(self) -> str:
        shares = ", ".join(f"{name} {part / PARTS:.2%}" for name, part in (self.weights or {}).items())
        return f"Advice({cut(shares or self.reason, BRIEF)})"


def make_controller(config: Mapping[str, Any], context: ControllerContext) -> Controller:
    """Returns the controller of a recipe's [controller] table: `kind` names a plugin, which gets the rest."""
    rest = dict(config)
    kind = rest.pop("kind", None)
    if not isinstance(kind, str):
        raise ValueError(f'controller: `kind` must name a controller, got {kind!r}; write kind = "exp3"')
    controller: Controller = find_plugin("controllers", kind)(rest, context)
    return controller


def is_due(controller: Controller, step: int) -> bool:
    """Returns whether a decision is due when `step` steps are complete."""
    return step > 0 and step % controller.every == 0


def consult(controller: Controller, context: ControllerContext, history: Sequence[Observation]) -> Advice:
    """Returns the decision on `history`, as integers: what the curriculum log records.

    Whatever the controller is, it is not asked where the newest observation lacks a loss, or has one that is
    no finite number. Raises ValueError where the controller's weights cannot be used.
    """
    if fault := fault_of(history, context.names):
        return Advice(None, f"held: {fault}")
    weights = controller.decide(history)
    if weights is None:
        reason = getattr(controller, "reason", None)
        return Advice(None, "no change" if reason is None else str(reason(history)))
    return Advice(quantise(weights, context.names), "")


def quantise(weights: Mapping[str, Any], names: Sequence[str]) -> dict[str, int]:
    """Returns `weights` as integer shares by name, in the order of `names`; they sum to `zephon.PARTS`.

    Largest remainder of the exact values, ties to the dataset named first. Raises ValueError for a name that
    is missing or unknown, and for what is no finite number >= 0, or all zero.
    """
    return dict(zip(names, shares_of(weights, names, "controller"), strict=True))


def fault_of(history: Sequence[Observation], names: Sequence[str]) -> str:
    """Returns why the newest observation of `history` is no ground for a decision; empty where it is one."""
    if not history:
        return "nothing is observed yet"
    newest = history[-1]
    for name in names:
        if name not in newest.losses:
            return f"step {newest.step} has no loss for dataset {name!r}"
        loss = newest.losses[name]
        if loss is not None and not math.isfinite(loss):
            return f"the loss of dataset {name!r} at step {newest.step} is {loss}"
        if name not in newest.num_tokens or name not in newest.shares:
            return f"step {newest.step} has no tokens or no share for dataset {name!r}"
    if all(newest.losses[name] is None for name in names):
        return f"step {newest.step} has no loss for any dataset"
    return ""


def waits(history: Sequence[Observation], warmup: int) -> str:
    """Returns why nothing is decided in the first `warmup` steps; empty once they are over."""
    return f"warm-up until step {warmup}" if history[-1].step < warmup else ""


def _to_json(loss: float | None) -> float | str | None:
    return loss if loss is None or math.isfinite(loss) else str(float(loss))


def _from_json(loss: float | str | None) -> float | None:
    return float(loss) if isinstance(loss, str) else loss
