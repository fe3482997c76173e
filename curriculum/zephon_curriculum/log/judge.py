"""The verdict on a proposal: what the run says of it at the step of an exchange. Pure.

Upstream: `history.py`. Downstream: `leader.py`, and `propose.py`, which foretells it. No time, rank or
listing decides anything, only the entries and the step.
"""

from __future__ import annotations

from collections.abc import Callable

from zephon import DataError, Recipe
from zephon_curriculum.figures import plural
from zephon_curriculum.log.amend import Composed
from zephon_curriculum.log.entries import Accepted, Proposal, Refused
from zephon_curriculum.log.history import History, amended
from zephon_curriculum.log.ops import SkipSteps, Withdraw
from zephon_curriculum.log.steps import AmendError

CheckDocuments = Callable[[Composed], None]
"""Raises DataError where a run does not have the documents that a schedule drops."""


def check_skips(proposal: Proposal, recipe: Recipe | None) -> None:
    """Raises AmendError where a proposal skips steps behind the end of a run of `recipe`."""
    total_steps = None if recipe is None else recipe.total_steps
    for op in proposal.ops:
        if isinstance(op, SkipSteps) and total_steps is not None and op.stop > total_steps:
            raise AmendError(
                f"`skip_steps` must lie in the run's steps [0, {total_steps}), got [{op.start}, {op.stop}); "
                "skip fewer, or give the recipe more `total_steps`"
            )


def first_step(history: History, proposal: Proposal) -> int:
    """Returns the first step that a proposal changes."""
    begins = history.begins()
    gone = (op.entry for op in proposal.ops if isinstance(op, Withdraw))
    steps = [begins.get(n, proposal.at_step) for n in gone if n not in history.verdicts or n in begins]
    rest = any(not isinstance(op, Withdraw) for op in proposal.ops)
    first = min([*steps, *([proposal.at_step] if rest or not steps else [])])
    return history.composed.effective(first)


def why_begun(history: History, proposal: Proposal, step: int) -> str:
    """Returns why a run at `step` cannot withdraw an entry that a proposal names; empty where it can."""
    lead, begins = history.base.lead_steps, history.begins()
    late = (op.entry for op in proposal.ops if isinstance(op, Withdraw))
    number = next((n for n in late if n in begins and begins[n] <= step + lead), None)
    if number is None:
        return ""
    start = begins[number]
    earlier = f"go on from a state of at most {plural(start - lead - 1, 'step')}, or " if start > lead else ""
    return (
        f"entry {number} begins at step {start}, and at step {step} rows of steps up to {step + lead} may be "
        f"mixed; only what has not begun can be withdrawn: {earlier}amend against it"
    )


def first_legal(history: History, proposal: Proposal, step: int) -> int | None:
    """Returns the first step of which a run at `step` accepts a change; None of a withdrawal too late."""
    if why_begun(history, proposal, step):
        return None
    return history.composed.first_free(step + history.base.lead_steps + 1)


def judge(
    history: History, number: int, step: int, recipe: Recipe, check: CheckDocuments | None = None
) -> Accepted | Refused:
    """Returns the verdict on a pending proposal in the exchange of `step` of a run of `recipe`."""
    proposal, ahead = history.pending[number], step + history.base.lead_steps
    start, legal = first_step(history, proposal), None
    if all(isinstance(op, Withdraw) and history.is_refused_behind(op.entry, number) for op in proposal.ops):
        start = history.composed.first_free(ahead + 1)  # nothing is left to withdraw
    try:
        check_skips(proposal, recipe)
        composed = amended(history, number, proposal)
        if closed := [name for name in composed.names if name not in recipe.names]:
            raise AmendError(
                f"dataset {closed[0]!r} is not open in this run, which opens its datasets when it starts: "
                "stop it, propose this again and start it"
            )
        if check is not None and composed.table().drops:
            check(composed)
        if late := why_begun(history, proposal, step):
            raise AmendError(late)
        if start <= ahead:
            legal = first_legal(history, proposal, step)
            raise AmendError(
                f"it changes step {start}, and at step {step} rows of steps up to {ahead} may be mixed"
            )
    except (AmendError, DataError) as error:
        withdrawal = history.withdraws(number)
        why = str(error) if withdrawal is None else f"withdrawn by {withdrawal} before it was decided"
        legal = legal if withdrawal is None else None
        return Refused(proposal=number, step=step, why=why, first_legal=legal)
    return Accepted(proposal=number, step=step, from_step=start)
