"""Which row groups of a Parquet file may hold a record that a condition holds for, by their statistics.

Upstream: `where.py` and a footer. Downstream: the Parquet reader, which passes over the others.
pyarrow decides, on a weaker condition: it takes NaN, which statistics leave out, for a value within the
bounds, and the beginning that some writers leave of the greatest text for all of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from zephon.where import All, ColumnPath, Compare, Condition, Either, Missing, Not, Where, Within
from zephon.where_arrow import TEXT, expression, kind_of, type_at

_NEVER_CUT_BYTES = 15
"""So much of the greatest text is there, where a writer cuts it short."""


def row_groups(where: Where, footer: bytes, schema: Any) -> list[int]:
    """Returns, ascending, the row groups that may hold a match; the others hold none.

    `footer` is the end of the file, from the start of its footer on or from before; `schema` the Arrow schema
    that the file is read with.
    A column that is not there or of a type that does not fit raises `DataError`, as `mask` does.
    """
    from pyarrow.dataset import ParquetFileFormat  # loaded where a condition is asked for alone

    expression(where, schema)
    weaker = _weaker(where, schema, where.condition)
    kept = ParquetFileFormat().make_fragment(pa.BufferReader(footer))
    if weaker is not None:
        kept = kept.subset(filter=expression(replace(where, condition=weaker), schema))
    return [group.id for group in kept.row_groups]


def _weaker(where: Where, schema: Any, condition: Condition) -> Condition | None:
    """Returns what holds wherever `condition` does, for statistics to decide; None: there is nothing such."""
    match condition:
        case Missing() | Not(Missing()):
            return condition
        case Within():
            return _weaker(where, schema, Either(condition.comparisons))
        case All(parts) | Either(parts):
            found = [_weaker(where, schema, part) for part in parts]
            known = tuple(part for part in found if part is not None)
            is_enough = known and (isinstance(condition, All) or len(known) == len(parts))
            return type(condition)(known) if is_enough else None
        case Compare(operator="!=") | Compare(other=ColumnPath()) | Not():
            return None
        case Compare(column=column, other=str(text), operator=operator, source=source):
            if kind_of(type_at(where, schema, column, source)) != TEXT or operator in ("<", "<="):
                return condition
            start = text.encode()[:_NEVER_CUT_BYTES].decode(errors="ignore")
            from_start = replace(condition, operator=">=", other=start)
            return All((from_start, replace(condition, operator="<="))) if operator == "==" else from_start
    return condition
