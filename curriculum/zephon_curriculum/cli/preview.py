"""`zephon preview`: the very rows of some steps and lanes, and their shares beside the plan.

Upstream: the shell. Downstream: `zephon_curriculum.preview`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from zephon.cli.common import (
    BackendOption,
    CacheOption,
    JsonOption,
    LateProgress,
    RecipeArgument,
    SetOption,
    add_row,
    new_table,
    parse_range,
    write,
    write_json,
    write_table,
)
from zephon_curriculum.cli.rows import StateOption, WidthOption, draw_row
from zephon_curriculum.figures import named_step, plural
from zephon_curriculum.opening import Opening
from zephon_curriculum.preview import Preview, Shares, preview_cost
from zephon_curriculum.preview import preview as make

WIDE = 6
"""Of more datasets only the totals are drawn."""
MAX_STEPS = 40

StepsOption = Annotated[
    str, typer.Option("--steps", metavar="A:B", help="Steps to make, half-open; B alone is 0:B.")
]
LaneOption = Annotated[list[int] | None, typer.Option("--lane", min=0, help="A lane; may be given again.")]
AllOption = Annotated[bool, typer.Option("--all-lanes", help="All lanes: whole steps.")]
AloneOption = Annotated[
    bool, typer.Option("--alone", help="Of a recipe that ends too: the lanes alone, also past the run's end.")
]
RowsOption = Annotated[int, typer.Option("--rows", min=0, help="Rows of which the pieces are shown.")]
CostOption = Annotated[bool, typer.Option("--cost", help="Only say what it would cost.")]


def preview(
    recipe: RecipeArgument,
    steps: StepsOption = "20",
    lane: LaneOption = None,
    all_lanes: AllOption = False,
    alone: AloneOption = False,
    state: StateOption = None,
    rows: RowsOption = 4,
    width: WidthOption = 72,
    only_cost: CostOption = False,
    settings: SetOption = None,
    cache: CacheOption = None,
    backend: BackendOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Show the rows that a run will have, or had: shares by step, pieces, text, digests.

    Made here by the loader itself, so they are those of the run on any number of ranks. A lane (default: lane
    0) costs its own text only, from the state given or, of a run folder, from its newest snapshot; a recipe
    that ends needs all lanes, to know when.
    """
    wanted = parse_range(steps, option="--steps")
    how = Opening(settings=tuple(settings or ()), cache=cache, backend=backend)
    lanes = None if all_lanes else tuple(lane or (0,))
    cost = preview_cost(recipe, wanted, lanes, state, check_end=not alone, how=how)
    if only_cost:
        write_json(cost.to_json()) if as_json else write(str(cost))
        return
    typer.echo(str(cost), err=True)
    with LateProgress() as progress:
        found = make(recipe, wanted, lanes, state, check_end=not alone, how=how, progress=progress)
    if as_json:
        write_json(found.to_json())
    else:
        draw(found, rows, width)


def draw(found: Preview, num_rows: int, width: int) -> None:
    """Draws shares by step and in total, and the first rows."""
    if not found.steps:
        write(f"no rows: the data end before step {found.ends}")
        return
    lanes = f"lane {found.lanes[0]}" if len(found.lanes) == 1 else f"{len(found.lanes)} lanes"
    steps, rows = plural(len(found.steps), "step"), plural(len(found.rows), "row")
    write(f"{steps} of {lanes} from {named_step(found.steps[0])}: {rows}\n")
    shares = found.shares()
    if len(shares.names) <= WIDE:
        _draw_steps(shares)
    table = new_table("dataset", "#tokens", "#planned", "#realised")
    for name, (tokens, planned, realised) in shares.total().items():
        add_row(table, name, f"{tokens:,}", f"{planned:.2%}", f"{realised:.2%}")
    write_table(table)
    if padding := int(shares.padding_tokens.sum()):
        write(f"padding: {padding:,} tokens")
    if found.ends is not None:
        write(f"the data end before step {found.ends}")
    for row in found.rows[:num_rows]:
        draw_row(row, found.texts(row), width)


def _draw_steps(shares: Shares) -> None:
    """Draws realised and planned shares, a line for each step."""
    write("realised (planned) shares of tokens:")
    table = new_table("#step", *(f"#{name}" for name in shares.names), "#padding")
    for i, step in enumerate(shares.steps[:MAX_STEPS].tolist()):
        pairs = zip(shares.realised[i], shares.planned[i], strict=True)
        add_row(table, step, *(f"{r:.1%} ({p:.1%})" for r, p in pairs), f"{shares.padding_tokens[i]:,}")
    write_table(table)
    if len(shares.steps) > MAX_STEPS:
        write(f"... and {len(shares.steps) - MAX_STEPS} more steps")
    write("")
