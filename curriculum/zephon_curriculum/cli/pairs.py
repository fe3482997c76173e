"""What commands take as NAME=NUMBER,...: weights, caps and floors of datasets.

Upstream: the shell. Downstream: the commands of this folder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import typer

from zephon_curriculum.log.ops import split_pairs


def parse_pairs(texts: Sequence[str], *, option: str) -> dict[str, float]:
    """Returns name -> number of texts such as `web=6,code=4`; refuses a name given twice."""
    try:
        pairs = split_pairs(",".join(texts), option) if texts else {}
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return {name: _number(text, f"{option} {name}") for name, text in pairs.items()}


def _number(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise typer.BadParameter(f"{what} takes a finite number, got {text!r}")
    return number
