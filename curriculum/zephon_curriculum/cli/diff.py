"""`zephon diff`: what two recipes or two runs have otherwise.

Upstream: the shell. Downstream: `zephon_curriculum.compare`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from zephon.cli.common import Exit, JsonOption, write_json
from zephon_curriculum.compare import compare

AArgument = Annotated[str, typer.Argument(metavar="A", help="A recipe.toml, a run folder, module:function.")]
BArgument = Annotated[str, typer.Argument(metavar="B", help="The other one.")]
StepsOption = Annotated[
    int | None,
    typer.Option(
        "--steps",
        min=1,
        help="Steps to plan tokens for.",
        show_default="those that both delivered, or the smaller total_steps; of endless runs each one",
    ),
]


def diff(a: AArgument, b: BArgument, steps: StepsOption = None, as_json: JsonOption = False) -> None:
    """Say what two recipes or runs have otherwise: fields, data, mixture, tokens, accepted amendments, rows.

    Exit 0: equal in all that can change a row; 1: different. No data is opened: of two runs their locks say
    whether data, tokenizer and plugins are the same, of recipes their paths.
    """
    found = compare(a, b, steps=steps)
    if as_json:
        write_json(found.to_json())
    else:
        found.shown().write()
    raise typer.Exit(Exit.OK if found.is_equal else Exit.DIFFERENT)
