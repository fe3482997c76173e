"""What commands take as NAME=NUMBER,...: weights, caps and floors of datasets.

Upstream: the shell. Downstream: the commands of this folder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import typer


def parse_pairs(texts: Sequence[str], *, option: str) -> dict[str, float]:
    """Returns name -> number of texts such as `web=6,code=4`; refuses a name given twice."""
    found: dict[str, float] = {}
    for text in texts:
        for pair in text.split(","):
            name, equals, value = (part.strip() for part in pair.rpartition("="))
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if not equals or not name or not math.isfinite(number):
                raise typer.BadParameter(f"{option} takes NAME=NUMBER,..., got {text!r}")
            if name in found:
                raise typer.BadParameter(f"{option} gives {name!r} twice, got {text!r}")
            found[name] = number
    return found
