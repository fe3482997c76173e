"""A dataset cut by the values of a column into several that a schedule can weigh: their names and conditions.

Upstream: the arguments of `Dataset.partition`. Downstream: `dataset.py`, which makes the datasets.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from itertools import pairwise
from keyword import iskeyword

import numpy as np

from zephon.where import ColumnPath, kind_of, parse_column

Edge = int | float | str


def split_by(
    name: str, by: str, edges: Sequence[Edge], nulls: bool, names: Sequence[str] | None
) -> list[tuple[str, str]]:
    """Returns (name, condition) of each part of dataset `name`, in ascending order of `by`.

    Below the first edge, from each edge on until the next, from the last on, and without a value.
    """
    where = f"dataset {name!r}: partition"
    if not isinstance(by, str) or not isinstance(nulls, bool):
        rule = "`by` must name a column and `nulls` be true or false"
        raise ValueError(f"{where}: {rule}, got {by!r} and {nulls!r}")
    column, found = _name(parse_column(by, name, "by")), _check_edges(where, edges)
    texts = [json.dumps(edge, ensure_ascii=False) if isinstance(edge, str) else repr(edge) for edge in found]
    words = [_word(edge) for edge in found]
    parts = [(f"lt{words[0]}", f"{column} < {texts[0]}")]
    for (low, high), (least, end) in zip(pairwise(words), pairwise(texts), strict=True):
        parts.append((f"{low}to{high}", f"{least} <= {column} < {end}"))
    parts.append((f"ge{words[-1]}", f"{column} >= {texts[-1]}"))
    if nulls:
        is_text = isinstance(found[0], str)
        no_number = "" if is_text else f" or {column} != {column}"  # NaN is in no other part
        parts.append(("null", f"{column} is None{no_number}"))
    chosen = _check_names(where, names, [f"{name}_{suffix}" for suffix, _ in parts])
    return list(zip(chosen, [condition for _, condition in parts], strict=True))


def both(where: str, condition: str) -> str:
    """Returns the condition that `where`, which may be empty, and `condition` hold."""
    if not where:
        return condition
    end = "\n" if "#" in where else ""  # a comment ends with its line
    return f"({where}{end}) and ({condition})"


def _check_edges(where: str, edges: Sequence[Edge]) -> list[Edge]:
    if isinstance(edges, str) or not isinstance(edges, Sequence | np.ndarray) or not len(edges):
        raise ValueError(
            f"{where}: `edges` must be a list of numbers or of texts, at least one, got {edges!r}"
        )
    found: list[Edge] = [edge.item() if isinstance(edge, np.generic) else edge for edge in edges]
    for edge in found:
        if isinstance(edge, bool) or not isinstance(edge, int | float | str):
            raise ValueError(f"{where}: an edge must be a number or a text, got {edge!r}")
        if isinstance(edge, str) and any("\ud800" <= letter <= "\udfff" for letter in edge):
            raise ValueError(f"{where}: an edge must be a text that UTF-8 can hold, got {edge!r}")
        if isinstance(edge, float) and not math.isfinite(edge):
            raise ValueError(f"{where}: an edge must be finite, got {edge!r}; leave it out, it cuts nothing")
        if kind_of(edge) != kind_of(found[0]):
            raise ValueError(f"{where}: `edges` must be all numbers or all texts, got {found!r}")
    for low, high in pairwise(found):
        if not low < high:  # type: ignore[operator]  # of one kind, see above
            raise ValueError(f"{where}: `edges` must ascend strictly, got {high!r} after {low!r}")
    return found


def _check_names(where: str, names: Sequence[str] | None, made: list[str]) -> list[str]:
    if names is None:
        if twice := [name for name in made if made.count(name) > 1]:
            raise ValueError(f"{where}: two parts would be called {twice[0]!r}; give {len(made)} `names`")
        return made
    is_list = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    if not is_list or not len(set(names)) == len(names) == len(made):
        rule = f"`names` must be a list of {len(made)} different texts, for {', '.join(made)}"
        raise ValueError(f"{where}: {rule}, got {names!r}")
    return list(names)


def _name(column: ColumnPath) -> str:
    """Returns the column as conditions name it."""
    names = column.names
    if all(name.isascii() and name.isidentifier() and not iskeyword(name) for name in names):
        return ".".join(names)
    return f"col({', '.join(json.dumps(name, ensure_ascii=False) for name in names)})"


def _word(edge: Edge) -> str:
    """Returns the edge as a part of a name that TOML takes without quotes."""
    if isinstance(edge, str):
        return re.sub(r"[^A-Za-z0-9_-]", "_", edge)
    return repr(edge).replace("+", "").replace(".", "p").replace("-", "m")
