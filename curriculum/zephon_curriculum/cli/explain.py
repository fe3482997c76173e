"""`zephon explain`: why a lane drew what it drew in one step.

Upstream: the shell. Downstream: `zephon_curriculum.explain`.
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
    chosen_step,
    write_json,
)
from zephon_curriculum.cli.rows import AloneOption, StateOption, WidthOption
from zephon_curriculum.explain import explain as make
from zephon_curriculum.opening import Opening, recipe_of
from zephon_curriculum.preview import preview_cost
from zephon_curriculum.preview_text import shown_explanation

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
    alone: AloneOption = False,
    state: StateOption = None,
    width: WidthOption = 60,
    settings: SetOption = None,
    cache: CacheOption = None,
    backend: BackendOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Say why the rows of a step in a lane hold what they hold: weights, credits and choice of each draw.

    A credit is what the lane owes a dataset, in tokens: the largest among those with a share is drawn from.
    The entry of the curriculum log that set the weights is named. A recipe that ends needs all lanes, to know
    when.
    """
    chosen = chosen_step(step, trainer_step)
    how = Opening(settings=tuple(settings or ()), cache=cache, backend=backend)
    recipe_of(recipe, how)  # what is wrong with it is no wrong usage
    with as_usage(lanes="--lane", row="--row", step="--step", state="--state"), LateProgress() as progress:
        cost = preview_cost(recipe, [chosen], [lane], state, check_end=not alone, how=how)
        typer.echo(str(cost), err=True)
        found = make(
            recipe, step=chosen, lane=lane, row=row, state=state, check_end=not alone, how=how,
            progress=progress,
        )  # fmt: skip
    if as_json:
        write_json(found.to_json())
    else:
        shown_explanation(found, width).write()
