"""`zephon amend`: proposes a change of a run's curriculum from a step on.

Upstream: the shell. Downstream: the run's curriculum log, where the run finds the proposal at its next step.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from zephon import PARTS, DataError, Recipe, ScheduleTable, read_lock
from zephon.cli.common import (
    Exit,
    JsonOption,
    LateProgress,
    add_row,
    as_usage,
    new_table,
    parse_range,
    past_run,
    write,
    write_json,
    write_table,
)
from zephon_curriculum.cli.log import RunArgument, counted, verdict_on
from zephon_curriculum.cli.plan import EstimatesOption, NoEstimateOption
from zephon_curriculum.estimation import Estimates, TokenEstimation
from zephon_curriculum.figures import plural
from zephon_curriculum.log.added import check_opens
from zephon_curriculum.log.amend import Composed, Document, removed_stages
from zephon_curriculum.log.documents import read_documents
from zephon_curriculum.log.entries import Refused, window
from zephon_curriculum.log.folder import log_of
from zephon_curriculum.log.history import History
from zephon_curriculum.log.ops import Add, SkipDocuments, SkipSteps, Weights, describe
from zephon_curriculum.log.propose import (
    RECIPE,
    Draft,
    Request,
    make_draft,
    newest_step,
    read_added,
    read_recipe,
    schedule_of,
    write_proposal,
)
from zephon_curriculum.plan import plan

GIVEN_BY = ("at_step", "until", "skip_steps", "skip_documents", "add", "withdraw")
"""The options that a refusal may name."""
MAX_LINES = 12
POLL_S = 0.2
AtStepOption = Annotated[
    int | None, typer.Option("--at-step", min=0, help="The step from which it holds, counted from 0.")
]
TrainerOption = Annotated[bool, typer.Option("--trainer-step", help="Steps given count from 1.")]
WeightsOption = Annotated[
    str | None, typer.Option("--weights", metavar="A=1,...", help="Weights of all datasets: web=6,code=4.")
]
ScaleOption = Annotated[
    str | None, typer.Option("--scale", metavar="A=1,...", help="Shares times factors: code=1.1.")
]
PointsOption = Annotated[
    str | None, typer.Option("--points", metavar="A=1,...", help="Percentage points more: code=+10.")
]
ScheduleOption = Annotated[
    Path | None,
    typer.Option("--schedule", exists=True, dir_okay=False, help="A TOML file with another [schedule]."),
]
AddOption = Annotated[
    Path | None,
    typer.Option(
        "--add", exists=True, dir_okay=False, help="A TOML file of [[datasets]], opened at the next start."
    ),
]
RetireOption = Annotated[list[str] | None, typer.Option("--retire", help="A dataset that gets no share.")]
SkipStepsOption = Annotated[
    str | None,
    typer.Option("--skip-steps", metavar="A:B", help="Draw and drop the rows of steps [A, B) before step A."),
]
SkipDocumentsOption = Annotated[
    Path | None,
    typer.Option(
        "--skip-documents",
        exists=True,
        dir_okay=False,
        help="Lines `dataset file record`, or `zephon show --json`.",
    ),
]
WithdrawOption = Annotated[
    list[int] | None, typer.Option("--withdraw", metavar="K", help="An accepted entry that has not begun.")
]
UntilOption = Annotated[
    int | None, typer.Option("--until", min=0, help="The step before which it ends; default it stays.")
]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it stays in the log.")]
AuthorOption = Annotated[str | None, typer.Option("--author", help="Who; default the user's name.")]
AgainOption = Annotated[
    bool, typer.Option("--again", help="Ask once more for what an entry asks for in the same words.")
]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Only show what it would come to.")]
WaitOption = Annotated[
    float,
    typer.Option(
        "--wait", min=0.0, metavar="S", help="Seconds to wait for the run's verdict; exit 1 without."
    ),
]
NoCheckOption = Annotated[
    bool, typer.Option("--no-check", help="Do not open what --add names: the data is not at hand here.")
]
StepsOption = Annotated[
    int | None, typer.Option("--steps", min=1, help="Steps to plan; default total_steps.")
]


def amend(
    run: RunArgument,
    at_step: AtStepOption = None,
    reason: ReasonOption = ...,  # type: ignore[assignment]
    trainer_step: TrainerOption = False,
    weights: WeightsOption = None,
    scale: ScaleOption = None,
    points: PointsOption = None,
    schedule: ScheduleOption = None,
    add: AddOption = None,
    retire: RetireOption = None,
    skip_steps: SkipStepsOption = None,
    skip_documents: SkipDocumentsOption = None,
    withdraw: WithdrawOption = None,
    until: UntilOption = None,
    author: AuthorOption = None,
    again: AgainOption = False,
    dry_run: DryOption = False,
    wait: WaitOption = 0.0,
    steps: StepsOption = None,
    estimates: EstimatesOption = None,
    no_estimate: NoEstimateOption = False,
    no_check: NoCheckOption = False,
    as_json: JsonOption = False,
) -> None:
    """Propose a change of a run's curriculum from a step on; the run decides at its next step.

    --weights holds from --at-step until --until or for ever. --scale and --points act on what the schedule
    says at each step. What begins within the lead of the run's log (2 steps) after the step at which
    the run is comes too late, and is refused with the first legal step. Exit 1: the run refused it, or
    --wait is over without a verdict.
    """
    recipe = read_recipe(run)
    request = Request(
        at_step=counted(at_step, trainer_step), until=counted(until, trainer_step), weights=weights,
        scale=scale, points=points, retire=tuple(retire or ()), withdraw=tuple(withdraw or ()), again=again,
        skip_steps=_skipped(skip_steps, trainer_step), skip_documents=_listed(skip_documents), reason=reason,
        schedule=_schedule(run, recipe, schedule), add=_added(recipe, add, not no_check), author=author,
    )  # fmt: skip
    draft = _drafted(run, request, recipe)
    outcome = Outcome(None, "") if dry_run else send(run, draft, wait)
    if as_json:
        write_json(draft_json(draft, recipe) | {"entry": outcome.number, "verdict": outcome.verdict})
    else:
        draw(draft, plan_lines(recipe, draft, steps, estimates, not no_estimate), outcome, recipe)
    raise typer.Exit(outcome.exit_code)


def _drafted(run: str, request: Request, recipe: Recipe | None) -> Draft:
    """Returns the proposal; says where its step is past the run's end."""
    lock, total_steps = read_lock(Path(run)), None if recipe is None else recipe.total_steps
    with as_usage(), as_usage(**{name: f"--{name.replace('_', '-')}" for name in GIVEN_BY}):
        draft = make_draft(log_of(run), request, newest_step=newest_step(run), recipe=recipe, lock=lock)
    if note := past_run(total_steps, draft.proposal.at_step + 1):
        typer.echo(note, err=True)
    return draft


def _skipped(text: str | None, trainer_step: bool) -> tuple[int, int] | None:
    if text is None:
        return None
    if ":" not in text:
        raise typer.BadParameter(f"--skip-steps takes A:B, half-open, got {text!r}; one step alone is 7:8")
    steps = parse_range(text, option="--skip-steps", first=int(trainer_step))
    return steps.start, steps.stop


@contextlib.contextmanager
def _file_of(option: str) -> Iterator[None]:
    """Makes what is wrong with a file wrong usage of the option that names it."""
    try:
        yield
    except (OSError, ValueError, LookupError) as error:
        raise typer.BadParameter(str(error), param_hint=repr(option)) from None


def _schedule(run: str, recipe: Recipe | None, path: Path | None) -> ScheduleTable | None:
    if path is None:
        return None
    recipe = recipe or Recipe.from_toml(Path(run) / RECIPE)  # which says why there is none
    with _file_of("--schedule"):
        return schedule_of(path, recipe)


def _added(recipe: Recipe | None, path: Path | None, opens: bool) -> Mapping[str, Mapping[str, Any]]:
    """Returns the datasets to add, opened here: a run that cannot open one could not start again."""
    if path is None:
        return {}
    with _file_of("--add"):
        found = read_added(path)
        if opens and recipe is not None:
            for name, config in found.items():
                check_opens(recipe, name, config)
    return found


def _listed(path: Path | None) -> tuple[Document, ...] | None:
    if path is None:
        return None
    with _file_of("--skip-documents"):
        return read_documents(path)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a proposal."""

    number: int | None
    """That of its entry; None where none was written."""
    verdict: str
    exit_code: Exit = Exit.OK


def send(run: str, draft: Draft, wait_s: float) -> Outcome:
    """Writes a proposal; returns the verdict once the run gave it, or what there is when the time is over."""
    number = write_proposal(log_of(run), draft).number
    deadline = time.monotonic() + wait_s
    while wait_s or draft.repeats:
        history = History.read(log_of(run))
        if (verdict := history.verdicts.get(number)) is not None:
            if isinstance(verdict, Refused):
                return Outcome(number, f"{verdict_on(history, number)}: {verdict.why}", Exit.DIFFERENT)
            return Outcome(number, verdict_on(history, number))
        if time.monotonic() >= deadline:
            waited = Outcome(number, "no verdict yet; it waits for the run", Exit.DIFFERENT)
            return waited if wait_s else Outcome(number, "")
        time.sleep(POLL_S)
    return Outcome(number, "")


def draft_json(draft: Draft, recipe: Recipe | None) -> dict[str, Any]:
    """Returns a draft as JSON data."""
    skipped = sum(op.stop - op.start for op in draft.proposal.ops if isinstance(op, SkipSteps))
    return {
        "at_step": draft.proposal.at_step,
        "until": draft.proposal.until,
        "ops": [describe(op) for op in draft.proposal.ops],
        "repeats": draft.repeats and draft.repeats.number,
        "first_step": draft.first_step,
        "first_legal_step": draft.first_legal,
        "removed_stages": _removed(draft),
        "skipped_tokens": None if recipe is None else skipped * recipe.tokens_per_step,
        "shares": [
            {"steps": [a, b], "before": before, "after": after} for a, b, before, after in share_lines(draft)
        ],
    }


def _removed(draft: Draft) -> list[int]:
    is_absolute = any(isinstance(op, Weights) for op in draft.proposal.ops)
    return removed_stages(draft.before, draft.proposal.at_step, draft.proposal.until) if is_absolute else []


Line = tuple[int, int | None, dict[str, float], dict[str, float]]


def share_lines(draft: Draft) -> list[Line]:
    """Returns (first step, end or None, shares before, after) where shares differ; of many the first."""
    cuts = sorted({*draft.before.steps.starts, *draft.after.steps.starts})
    before, lines = draft.before.with_names(draft.after.names), list[Line]()
    for place, step in enumerate(cuts):
        old, new = before.steps.at(step), draft.after.steps.at(step)
        if old != new:
            end = cuts[place + 1] if place + 1 < len(cuts) else None
            lines.append((step, end, _named(draft.after, old), _named(draft.after, new)))
    return lines[:MAX_LINES]


def _named(composed: Composed, shares: Sequence[int]) -> dict[str, float]:
    return {name: share / PARTS for name, share in zip(composed.names, shares, strict=True)}


def plan_lines(
    recipe: Recipe | None, draft: Draft, steps: int | None, estimates: Path | None, measures: bool
) -> Table | None:
    """Returns the table of tokens and epochs before and after; None where that is unknown or the same."""
    if recipe is None or draft.repeats or draft.after.names != recipe.names:
        return None
    if (steps or recipe.total_steps) is None:
        typer.echo("tokens and epochs: the recipe has no total_steps; --steps N shows them", err=True)
        return None
    sizes = sizes_of(recipe, estimates, measures)
    before, after = (plan(recipe, steps, sizes, table=c.table()) for c in (draft.before, draft.after))
    return before.compare(after).shown().tables[0]


def sizes_of(recipe: Recipe, estimates: Path | None, measures: bool) -> Estimates | None:
    """Returns the estimates of a file, or of a small sample, or none where the data is not at hand."""
    if estimates is not None:
        return Estimates.read(estimates)
    if not measures:
        return None
    try:
        with LateProgress() as progress:
            return TokenEstimation().measure(recipe, report=progress)
    except (DataError, OSError) as error:
        typer.echo(f"epochs: the data cannot be looked at here: {str(error).splitlines()[0]}", err=True)
        return None


def _notes(draft: Draft, recipe: Recipe | None) -> list[str]:
    """Returns what no table of shares shows."""
    found = list[str]()
    if draft.repeats is not None:
        return found
    for op in draft.proposal.ops:
        if isinstance(op, SkipSteps):
            number = op.stop - op.start
            cost = "" if recipe is None else f": {number * recipe.tokens_per_step:,} tokens"
            found.append(f"every lane draws and drops the rows of {plural(number, 'step')}{cost}")
        if isinstance(op, SkipDocuments):
            found.append(f"documents passed over: {op.num_documents:,}")
        if isinstance(op, Add):
            found.append(f"{op.dataset} is opened when a run starts: a run that trains now refuses it")
    return found


def _too_late(draft: Draft) -> str:
    """Returns why a run that goes on where it is refuses a draft; empty where it may not."""
    if draft.why_begun or draft.first_legal is None or draft.first_step >= draft.first_legal:
        return draft.why_begun
    return (
        "it accepts this only if it goes on from an earlier state; else the first legal step is "
        f"{draft.first_legal}"
    )


def draw(draft: Draft, planned: Table | None, outcome: Outcome, recipe: Recipe | None) -> None:
    """Draws a draft and what became of it."""
    proposal = draft.proposal
    if draft.repeats is None and (late := _too_late(draft)):
        write(f"too late where the run is: {late}")
    write(f"step {window(proposal)}: {'; '.join(map(describe, proposal.ops))}")
    if draft.repeats is not None:
        write(f"entry {draft.repeats.number} asks for this in the same words, which counts once; see --again")
    write(f"it changes step {draft.first_step} first (a trainer logs it as {draft.first_step + 1})\n")
    lines = share_lines(draft)
    if lines:
        table = new_table("steps", "dataset", "#before", "#after")
        for a, b, before, after in lines:
            for name in before:
                add_row(
                    table, f"{a}:{'' if b is None else b}", name, f"{before[name]:.2%}", f"{after[name]:.2%}"
                )
        write_table(table)
    for line in _notes(draft, recipe):
        write(line)
    if removed := _removed(draft):
        hidden = plural(len(removed), "later change")
        write(f"\nthe weights hide {hidden} of the schedule, first at step {removed[0]}")
    if planned is not None:
        write("")
        write_table(planned)
    write("")
    if outcome.number is None:
        write("dry run: nothing was written")
    else:
        write(f"entry {outcome.number}: {outcome.verdict or 'proposed; the run decides at its next step'}")
