"""The options that the commands on rows share: `preview` and `explain`.

Downstream: the commands beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="PATH",
        help="Begin with this state: a state file, a run folder, a checkpoint folder.",
        show_default="a run's newest snapshot, else step 0",
    ),
]
AloneOption = Annotated[
    bool, typer.Option("--alone", help="Of a recipe that ends too: the lane alone, also past the run's end.")
]
WidthOption = Annotated[int, typer.Option("--width", min=8, help="Characters of text shown of a piece.")]
