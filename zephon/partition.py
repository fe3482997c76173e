"""A dataset cut by the values of a column into several that a schedule can weigh: their names and conditions.

Upstream: the arguments of `Dataset.partition`. Downstream: `dataset.py`, which makes the datasets.
"""

from __future__ import annotations

import json
import math
import numbers
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from zephon.where import ColumnPath, kind_of, parse_column

Edge = int | float | str


def split_by(
    name: str, by: str, edges: Sequence[Edge], nulls: bool, names: Sequence[str] | None
) -> list[tuple[str, str]]:
    """Returns (name, condition) of each part of dataset `name`, in ascending order of `by`.

    Below the first edge, from each edge on until the next, from the last on, and without a value.
    """
    where = f"dataset {name!r}: partition"
    if not isinstance(by, str):
        raise ValueError(f"{where}: `by` must name a column, got {by!r}")
    if not isinstance(nulls, bool):
        raise ValueError(f"{where}: `nulls` must be true or false, got {nulls!r}")
    column = parse_column(by, name, "by")
    found = _check_edges(where, edges)
    text = _name(column)
    pairs = list(pairwise(found))
    conditions = [f"{text} < {_literal(found[0])}"]
    conditions += [f"{_literal(low)} <= {text} < {_literal(high)}" for low, high in pairs]
    conditions.append(f"{text} >= {_literal(found[-1])}")
    suffixes = [f"lt{_word(found[0])}"]
    suffixes += [f"{_word(low)}to{_word(high)}" for low, high in pairs]
    suffixes.append(f"ge{_word(found[-1])}")
    if nulls:
        no_number = "" if isinstance(found[0], str) else f" or {text} != {text}"  # NaN is in no other part
        conditions.append(f"{text} is None{no_number}")
        suffixes.append("null")
    chosen = _check_names(where, names, [f"{name}_{suffix}" for suffix in suffixes])
    return list(zip(chosen, conditions, strict=True))


def both(where: str, condition: str) -> str:
    """Returns the condition that `where`, which may be empty, and `condition` hold."""
    if not where:
        return condition
    end = "\n" if "#" in where else ""  # a comment ends with its line
    return f"({where}{end}) and ({condition})"


def _check_edges(where: str, edges: Sequence[Edge]) -> list[Edge]:
    if isinstance(edges, str) or not isinstance(edges, Iterable):
        raise ValueError(f"{where}: `edges` must be a list of numbers or of texts, got {edges!r}")
    found: list[Edge] = []
    for edge in edges:
        if isinstance(edge, bool) or not isinstance(edge, numbers.Real | str):
            raise ValueError(f"{where}: an edge must be a number or a text, got {edge!r}")
        if isinstance(edge, str):
            if any("\ud800" <= letter <= "\udfff" for letter in edge):
                raise ValueError(f"{where}: an edge must be a text that UTF-8 can hold, got {edge!r}")
            found.append(str(edge))
        else:  # numpy's too, of which the repr is no constant
            found.append(int(edge) if isinstance(edge, numbers.Integral) else float(edge))
        if isinstance(found[-1], float) and not math.isfinite(found[-1]):
            raise ValueError(f"{where}: an edge must be finite, got {edge!r}; leave it out, it cuts nothing")
    if not found:
        raise ValueError(f"{where}: `edges` must have at least one edge, got none")
    if len({kind_of(edge) for edge in found}) > 1:
        raise ValueError(f"{where}: `edges` must be all numbers or all texts, got {list(edges)!r}")
    for low, high in pairwise(found):
        if not low < high:  # type: ignore[operator]  # of one kind, see above
            raise ValueError(f"{where}: `edges` must ascend strictly, got {high!r} after {low!r}")
    return found


def _check_names(where: str, names: Sequence[str] | None, made: list[str]) -> list[str]:
    if names is None:
        if twice := [name for name in made if made.count(name) > 1]:
            raise ValueError(
                f"{where}: two parts would be called {twice[0]!r}; give `names`, {len(made)} of them"
            )
        return made
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ValueError(f"{where}: `names` must be a list of texts, got {names!r}")
    chosen = list(names)
    if len(chosen) != len(made):
        raise ValueError(
            f"{where}: `names` must have a name for each of the {len(made)} parts ({', '.join(made)}), "
            f"got {len(chosen)}"
        )
    if not all(isinstance(name, str) for name in chosen) or len(set(chosen)) < len(chosen):
        raise ValueError(f"{where}: `names` must be different texts, got {chosen!r}")
    return chosen


def _name(column: ColumnPath) -> str:
    """Returns the column as conditions name it."""
    dotted = str(column)
    try:
        is_plain = dotted.isascii() and parse_column(dotted, "", "by") == column
    except ValueError:
        is_plain = False
    return (
        dotted if is_plain else f"col({', '.join(json.dumps(n, ensure_ascii=False) for n in column.names)})"
    )


def _literal(edge: Edge) -> str:
    """Returns the edge as a constant of a condition."""
    return json.dumps(edge, ensure_ascii=False) if isinstance(edge, str) else repr(edge)


def _word(edge: Edge) -> str:
    """Returns the edge as a part of a name that TOML takes without quotes."""
    if isinstance(edge, str):
        return re.sub(r"[^A-Za-z0-9_-]", "_", edge)
    return repr(edge).replace("+", "").replace(".", "p").replace("-", "m")
