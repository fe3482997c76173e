"""Rows and their pieces as lines for people, and the options that commands on lanes share.

Upstream: the commands beside it. Downstream: standard output.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from zephon import DescribedRow
from zephon.cli.common import cut, visible, write
from zephon_curriculum.figures import plural

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


def draw_row(row: DescribedRow, texts: Sequence[str], width: int) -> None:
    """Writes a row as plain lines, which are never wrapped."""
    pieces = plural(len(row.pieces), "piece")
    write(f"\nstep {row.step}, lane {row.lane}, row {row.row}: {pieces}, digest {row.digest[:12]}")
    for piece, text in zip(row.pieces, texts, strict=True):
        write(f"  {visible(str(piece))}")
        write(f"    {cut(text, width)}")
    if row.padding_tokens:
        write(f"  [{row.num_tokens}, {len(row.tokens)})  padding")
