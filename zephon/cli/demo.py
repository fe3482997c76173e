"""`zephon demo`: a tour that builds its own data, kills a run and compares digests.

Upstream: the shell. Downstream: `zephon.demo`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    folder: Annotated[Path, typer.Option("--folder", help="Where its data and runs go.")] = Path(
        "zephon-demo"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="Less data and fewer steps.")] = False,
) -> None:
    """Run a tour: build data, run on 1 to 8 ranks, kill and resume, compare every digest."""
    from zephon.demo import run_demo

    raise typer.Exit(run_demo(folder, quick=quick))
