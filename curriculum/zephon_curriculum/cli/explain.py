"""`zephon explain`: why a lane drew what it drew in one step.

Upstream: the shell. Downstream: `zephon_curriculum.explain`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from zephon import PARTS
from zephon.cli.common import (
    BackendOption,
    CacheOption,
    JsonOption,
    LateProgress,
    RecipeArgument,
    SetOption,
    add_row,
    chosen_step,
    cut,
    new_table,
    visible,
    write,
    write_json,
    write_table,
)
from zephon_curriculum.cli.rows import StateOption, WidthOption, piece_line
from zephon_curriculum.explain import ExplainedRow, Explanation
from zephon_curriculum.explain import explain as make
from zephon_curriculum.figures import named_step, plural
from zephon_curriculum.log.entries import Decision, Entry, Proposal, RecipeChange
from zephon_curriculum.opening import Opening
from zephon_curriculum.preview import preview_cost

MAX_DATASETS = 8
"""Of more datasets, the credits of those drawn are shown."""

StepOption = Annotated[int | None, typer.Option("--step", min=0, help="The step, from 0; default 0.")]
TrainerStepOption = Annotated[
    int | None, typer.Option("--trainer-step", min=1, help="The step as TorchTitan logs it, from 1.")
]
LaneOption = Annotated[int, typer.Option("--lane", min=0, help="The lane.")]
RowOption = Annotated[
    int | None, typer.Option("--row", min=0, help="Only the row with this number in the lane.")
]


def explain(
    recipe: RecipeArgument,
    step: StepOption = None,
    lane: LaneOption = 0,
    row: RowOption = None,
    trainer_step: TrainerStepOption = None,
    state: StateOption = None,
    width: WidthOption = 60,
    settings: SetOption = None,
    cache: CacheOption = None,
    backend: BackendOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Say why the rows of a step in a lane hold what they hold: weights, credits and choice of each draw.

    A credit is what the lane owes a dataset, in tokens: the largest among those with a share is drawn from.
    The entry of the curriculum log that set the weights is named.
    """
    chosen = chosen_step(step, trainer_step)
    how = Opening(settings=tuple(settings or ()), cache=cache, backend=backend)
    typer.echo(str(preview_cost(recipe, [chosen], [lane], state, check_end=False, how=how)), err=True)
    with LateProgress() as progress:
        found = make(recipe, step=chosen, lane=lane, row=row, state=state, how=how, progress=progress)
    if as_json:
        write_json(found.to_json())
    else:
        draw(found, width)


def draw(found: Explanation, width: int) -> None:
    """Draws the weights in force and, for each row, its draws and pieces."""
    write(f"{named_step(found.step)}, lane {found.lane}: the largest of the credits below is drawn from")
    if found.work_source != "mixture":
        write(f"the work source is {visible(found.work_source)}, which may choose by other rules")
    write(f"weights since step {found.in_force_since}:")
    table = new_table("dataset", "#share")
    for name, part in zip(found.names, found.planned, strict=True):
        add_row(table, name, f"{part / PARTS:.4%}")
    write_table(table)
    for entry in found.entries:
        write(f"set by {describe_entry(entry)}")
    for row in found.rows:
        _draw_row(found, row, width)


def describe_entry(entry: Entry) -> str:
    """Returns in a line what an entry of the log is, who asked for it and why."""
    body = entry.body
    line = f"entry {entry.number} ({body.kind}, {entry.hash[:12]})"
    if isinstance(body, Proposal):
        asked = ", ".join(op.kind for op in body.ops)
        until = "" if body.until is None else f" until {body.until}"
        by = f" by {visible(body.author)}" if body.author else ""
        return f"{line}: {asked} from step {body.at_step}{until}{by}: {visible(body.reason)}"
    if isinstance(body, Decision):
        return f"{line}: the controller {visible(body.controller)} from step {body.from_step} on"
    if isinstance(body, RecipeChange):
        return f"{line}: the schedule of the recipe from step {body.step} on"
    return f"{line}: the schedule of the recipe"


def _draw_row(found: Explanation, row: ExplainedRow, width: int) -> None:
    described = row.row
    write(
        f"\nrow {described.row}: {plural(len(row.draws), 'draw')}, {plural(len(described.pieces), 'piece')}"
    )
    drawn = {draw.dataset for draw in row.draws}
    is_wide = len(found.names) > MAX_DATASETS
    shown = [i for i, name in enumerate(found.names) if not is_wide or name in drawn]
    credits = (f"#{found.names[i]} owed" for i in shown)
    place = "#room" if found.pool else "#from token"
    table = new_table("#draw", "drawn from", place, "#at least", "#drawn", *credits)
    for number, draw in enumerate(row.draws):
        owed = draw.owed_tokens()
        cells = (f"{owed[i]:,.1f}" if draw.shares[i] else "no share" for i in shown)
        at = draw.rest if found.pool else row.begin_of(draw)
        add_row(table, number, draw.dataset, f"{at:,}", f"{draw.at_least:,}", f"{draw.num_tokens:,}", *cells)
    write_table(table)
    if found.pool:
        write("the packer keeps a pool, which these draws fill; its pieces may be of earlier ones")
    for piece, text, origin in zip(described.pieces, row.texts, row.drawn_for, strict=True):
        other = "before" if origin is None else f"for row {origin}"
        write(f"  {piece_line(piece)}{'' if origin == described.row else f', drawn {other}'}")
        write(f"    {cut(text, width)}")
