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
    as_usage,
    parse_range,
    write,
    write_json,
)
from zephon_curriculum.cli.rows import AloneOption, StateOption, WidthOption
from zephon_curriculum.opening import Opening, recipe_of
from zephon_curriculum.preview import preview as make
from zephon_curriculum.preview import preview_cost
from zephon_curriculum.preview_text import shown_preview

StepsOption = Annotated[
    str, typer.Option("--steps", metavar="A:B", help="Steps to make, half-open; B alone is 0:B.")
]
LaneOption = Annotated[list[int] | None, typer.Option("--lane", min=0, help="A lane; may be given again.")]
AllOption = Annotated[bool, typer.Option("--all-lanes", help="All lanes: whole steps.")]
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
    recipe_of(recipe, how)  # what is wrong with it is no wrong usage
    with as_usage(lanes="--lane", steps="--steps", state="--state"):
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
        shown_preview(found, rows, width).write()
