"""`zephon fork`: a run folder that goes its own way from a step of another run.

Upstream: the shell. Downstream: `zephon_curriculum.log.fork`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zephon.cli.common import JsonOption, as_usage, past_run, write_json
from zephon_curriculum.cli.log import RunArgument, counted
from zephon_curriculum.log.fork import fork_run
from zephon_curriculum.log.propose import newest_step, read_recipe

AtStepOption = Annotated[
    int, typer.Option("--at-step", min=0, help="The step from which it goes its own way, counted from 0.")
]
TrainerOption = Annotated[bool, typer.Option("--trainer-step", help="The step given counts from 1.")]
IntoOption = Annotated[str, typer.Option("--into", metavar="NEW", help="The new run folder.")]
StateOption = Annotated[
    Path | None,
    typer.Option("--state", help="A state to begin with: a state file, or a checkpoint that a plugin reads."),
]


def fork(
    run: RunArgument,
    at_step: AtStepOption,
    into: IntoOption,
    trainer_step: TrainerOption = False,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a run folder with recipe, lock and curriculum log of a run, as they were before a step.

    What begins at the step or later does not count there. A run in the new folder goes on from a checkpoint
    of at most that many steps.
    """
    step = counted(at_step, trainer_step)
    for note in notes_on(run, step):
        typer.echo(note, err=True)
    with as_usage(into="--into"):
        made = fork_run(run, step, into, state=state)
    if as_json:
        write_json(
            {
                "folder": str(made.folder),
                "at_step": step,
                "head": made.entry.hash,
                "dropped": list(made.dropped),
                "waiting": list(made.waiting),
                "ended": [{"entry": number, "step": end} for number, end in made.ended],
                "has_recipe": made.has_recipe,
                "state": None if made.state is None else str(made.state),
                "left": [str(path) for path in made.left],
            }
        )
    else:
        made.shown().write()


def notes_on(run: str, step: int) -> list[str]:
    """Returns what is said of a step that the run never comes to, or has not come to."""
    recipe, newest = read_recipe(run), newest_step(run)
    found = past_run(None if recipe is None else recipe.total_steps, step + 1)
    behind = "" if newest is None or step <= newest + 1 else f"the run is at step {newest + 1}, before {step}"
    return [note for note in (found, behind) if note]
