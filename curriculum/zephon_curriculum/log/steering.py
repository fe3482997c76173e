"""A controller in a run: when it is asked, with what history, and what becomes of its word.

Upstream: `controllers/`. Downstream: `follow.py` writes the decision down; from then on the log has it, so
that a replay, or a run that went back behind it, needs neither controller nor model.
"""

from __future__ import annotations

from collections.abc import Sequence

from zephon_curriculum.controllers.protocol import (
    Controller,
    ControllerContext,
    Observation,
    consult,
    is_due,
)
from zephon_curriculum.log.entries import Decision
from zephon_curriculum.log.history import History, decided
from zephon_curriculum.log.steps import AmendError


def decide(
    controller: Controller,
    context: ControllerContext,
    history: History,
    seen: Sequence[Observation],
    step: int,
) -> Decision | None:
    """Returns the decision in the exchange of `step`, or None where none is due.

    Nor where the log has one of this step or a later one: a run that went back goes on with those. `seen` is
    what was observed since the last decision.
    """
    if not is_due(controller, step):
        return None
    made = history.decisions()
    if made and made[-1].step >= step:
        return None
    before = [Observation.from_json(seen) for decision in made for seen in decision.inputs]
    newest = before[-1].step if before else -1
    fresh = [observation for observation in seen if newest < observation.step <= step]
    if not fresh:
        return None
    found = consult(controller, context, [*before, *fresh])
    decision = Decision(
        step=step,
        from_step=history.composed.first_free(step + history.base.lead_steps + 1),
        weights=found.weights,
        inputs=tuple(observation.to_json() for observation in fresh),
        controller=type(controller).__name__,
        reason=found.reason,
    )
    if found.weights is None:
        return decision
    try:
        history.composed.with_layer(decided(len(history.entries), decision))
    except AmendError as error:
        return _held(decision, f"held: {error}")
    return decision


def _held(decision: Decision, reason: str) -> Decision:
    return Decision(
        step=decision.step,
        from_step=decision.from_step,
        weights=None,
        inputs=decision.inputs,
        controller=decision.controller,
        reason=reason,
    )
