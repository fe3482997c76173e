"""`zephon show`: the rows of one step as people read them, piece by piece.

Upstream: the shell. Downstream: `zephon.loader`, whose batches name every piece by its address.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from zephon.batch import Batch
from zephon.cli.common import (
    BackendOption,
    CacheOption,
    JsonOption,
    RecipeArgument,
    SetOption,
    Source,
    chosen_step,
    past_run,
)
from zephon.cli.output import LateProgress, add_row, cut, new_table, visible, write, write_json, write_table
from zephon.described import DescribedRow, describe_rows
from zephon.loader import Loader
from zephon.opened import Opened
from zephon.options import LoaderOptions
from zephon.shares import PARTS
from zephon.snapshots import find_snapshot
from zephon.state import saved_steps
from zephon.statefile import find_state
from zephon.tokenizer import Encoder


def show(
    recipe: RecipeArgument,
    step: Annotated[int | None, typer.Option("--step", min=0, help="The step, from 0; default 0.")] = None,
    trainer_step: Annotated[
        int | None, typer.Option("--trainer-step", min=1, help="The step as TorchTitan logs it, from 1.")
    ] = None,
    lane: Annotated[int | None, typer.Option("--lane", min=0, help="Only this lane.")] = None,
    state: Annotated[
        str,
        typer.Option("--state", metavar="PATH", help="Begin there: a state file or a checkpoint."),
    ] = "",
    width: Annotated[int, typer.Option("--width", min=8, help="Characters of text shown of a piece.")] = 72,
    settings: SetOption = None,
    cache: CacheOption = None,
    backend: BackendOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Show what the rows of one step hold: dataset, file, record, tokens and text of every piece.

    The steps before it are made to get there: from --state on, else from the newest snapshot of the run
    folder, else from 0. --json prints all of it, with the whole text.
    """
    chosen = chosen_step(step, trainer_step)
    source = Source(recipe=recipe, settings=settings, cache=cache, backend=backend)
    with LateProgress() as progress, closing(source.open(progress)) as opened:
        batch = batch_of_step(opened, chosen, lane, progress, state_before(recipe, state, chosen))
        rows = [row for row in describe_rows(opened, batch) if lane in (None, row.lane)]
        shares = shares_of_step(opened, batch, lane)
    if note := past_run(opened.recipe.total_steps, chosen + 1):
        typer.echo(note, err=True)
    if as_json:
        head = {"step": chosen, "trainer_step": chosen + 1, "datasets": shares}
        write_json(head | {"rows": [row_json(row, opened.encoder) for row in rows]})
    else:
        draw(chosen, shares, rows, opened.encoder, width)


def state_before(recipe: str, given: str, step: int) -> dict[str, Any] | None:
    """Returns the state that is given, or the newest of a run folder, to go on from to `step`."""
    if not given:
        return find_snapshot(Path(recipe), step) if Path(recipe).is_dir() else None
    state = find_state(given)
    if (steps := saved_steps(state)) > step:
        raise typer.BadParameter(f"--state must be of a step before {step}, got one after {steps} steps")
    return state


def batch_of_step(
    opened: Opened, step: int, lane: int | None, progress: LateProgress, state: Mapping[str, Any] | None
) -> Batch:
    """Returns a batch with the rows of one step, of all lanes or at least of one; goes on from `state`."""
    lanes = opened.recipe.lanes
    if lane is not None and lane >= lanes:
        raise typer.BadParameter(f"--lane must be in [0, {lanes}), got {lane}")
    # Where the data end, only all lanes together say at which step.
    is_alone = lane is not None and not opened.recipe.is_finite
    options = LoaderOptions(dp_rank=lane or 0, dp_world_size=lanes) if is_alone else LoaderOptions()
    with Loader(opened, options) as loader:
        if state is not None:
            loader.load_state_dict(state)
        first = loader.num_steps
        for batch in loader:
            progress("steps", batch.step + 1 - first, step + 1 - first)
            if batch.step == step:
                return batch
        raise typer.BadParameter(
            f"--step must be a step of the run, got {step}; the data end at {loader.num_steps}"
        )


def row_json(row: DescribedRow, encoder: Encoder) -> dict[str, Any]:
    """Returns a row as JSON data, with the text of every piece."""
    pieces = [asdict(piece) | {"text": encoder.decode(row.tokens_of(piece))} for piece in row.pieces]
    return {"lane": row.lane, "row": row.row, "pieces": pieces, "padding_tokens": row.padding_tokens}


def shares_of_step(opened: Opened, batch: Batch, lane: int | None) -> dict[str, dict[str, float | int]]:
    """Returns, for each dataset, tokens drawn and the share planned and realised in the rows of the lane."""
    shown = np.ones(len(batch.lanes), dtype=np.bool_) if lane is None else batch.lanes == lane
    drawn = {name: int(column[shown].sum()) for name, column in batch.tokens_by_dataset.items()}
    total = max(1, sum(drawn.values()))
    planned = dict(zip(batch.datasets, opened.table.at(batch.step), strict=True))
    return {
        name: {"tokens": tokens, "planned": planned[name] / PARTS, "realised": tokens / total}
        for name, tokens in drawn.items()
    }


def draw(
    step: int,
    shares: dict[str, dict[str, float | int]],
    rows: list[DescribedRow],
    encoder: Encoder,
    width: int,
) -> None:
    """Draws shares and rows."""
    head = f"step {step} (a trainer that counts from 1 logs it as {step + 1})"
    write(f"{head}: {counted(len(rows), 'row')}\n")
    table = new_table("dataset", "#tokens", "#planned", "#realised")
    for name, share in shares.items():
        add_row(table, name, f"{share['tokens']:,}", f"{share['planned']:.2%}", f"{share['realised']:.2%}")
    write_table(table)
    for row in rows:
        _draw_row(row, encoder, width)


def counted(number: int, what: str) -> str:
    """Returns `1 row`, `2 rows`."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def _draw_row(row: DescribedRow, encoder: Encoder, width: int) -> None:
    """Writes a row as plain lines, which are never wrapped."""
    pieces, padding = counted(len(row.pieces), "piece"), counted(row.padding_tokens, "token")
    write(f"\nlane {row.lane}, row {row.row}: {pieces}, {padding} of padding")
    for piece in row.pieces:
        write(f"  {visible(str(piece))}")
        write(f"    {cut(encoder.decode(row.tokens_of(piece)), width)}")
    if row.padding_tokens:
        write(f"  [{row.num_tokens}, {len(row.tokens)})  padding")
