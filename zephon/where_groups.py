"""Which row groups of a Parquet file may hold a record that a condition holds for, by their statistics.

Upstream: `where.py` and a footer. Downstream: the Parquet reader, which passes over the others.
Each part of a condition gets the set of outcomes that it may have among a group's records: true, false, null.
What statistics do not say is held to be possible.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa

from zephon.where import All, ColumnPath, Compare, Condition, Constant, Either, Missing, Not, Where, Within
from zephon.where_arrow import NUMBER, TEXT, TIME, TRUTH, expression, kind_of, time_value, type_at

TRUE, FALSE, NULL = 1, 2, 4
"""Outcomes that are possible, as bits of a set."""

_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY_NS = 86_400 * 10**9
_UNIT_NS = {"milliseconds": 10**6, "microseconds": 10**3, "nanoseconds": 1}
_MAY_BE_CUT_BYTES = 16
"""From this length on the greatest text is taken for a beginning of it, as some writers cut it."""


def row_groups(where: Where, metadata: Any, schema: Any) -> list[int]:
    """Returns, ascending, the row groups that may hold a match; the others hold none.

    `metadata` is a `pyarrow.parquet.FileMetaData`, `schema` the Arrow schema that the file is read with.
    A column that is not there or of a type that does not fit raises `DataError`, as `mask` does.
    """
    expression(where, schema)
    count = Counter(metadata.schema.column(i).path for i in range(metadata.num_columns))
    leaves = {
        metadata.schema.column(i).path: i
        for i in range(metadata.num_columns)
        if count[metadata.schema.column(i).path] == 1
    }
    found = []
    for number in range(metadata.num_row_groups):
        group = _Group(where, schema, metadata, number, leaves)
        if group.num_records and group.outcomes(where.condition) & TRUE:
            found.append(number)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What is known of a column's values in a row group."""

    may_be_null: bool = True
    may_be_value: bool = True
    may_be_nan: bool = True
    bounds: tuple[Any, Any] | None = None
    """(least, greatest) of the values but NaN; both may lie further out. None: unknown."""


class _Group:
    """One row group and the outcomes that conditions may have in it."""

    def __init__(self, where: Where, schema: Any, metadata: Any, number: int, leaves: dict[str, int]) -> None:
        self._where, self._schema, self._metadata, self._leaves = where, schema, metadata, leaves
        self._group = metadata.row_group(number)
        self.num_records = int(self._group.num_rows)

    def outcomes(self, condition: Condition) -> int:
        match condition:
            case Not(part):
                return _negated(self.outcomes(part))
            case All(parts):
                return reduce(_both, [self.outcomes(part) for part in parts])
            case Either(parts):
                negated = [_negated(self.outcomes(part)) for part in parts]
                return _negated(reduce(_both, negated))
            case Missing(path, source):
                facts = self._facts(path, source)
                return (TRUE if facts.may_be_null else 0) | (FALSE if facts.may_be_value else 0)
            case Within(path, values, source):
                facts = self._facts(path, source)
                points = [self._point(path, value, source) for value in values]
                return _with_nulls(_within(facts, points), facts)
            case Compare():
                return self._compare(condition)

    def _compare(self, condition: Compare) -> int:
        path, other, source = condition.column, condition.other, condition.source
        facts = self._facts(path, source)
        if isinstance(other, ColumnPath):
            others = self._facts(other, source)
        else:
            point = self._point(path, other, source)
            others = _Facts(may_be_null=False, may_be_nan=False, bounds=(point, point))
        if path == other and not facts.may_be_nan:
            return _with_nulls(TRUE if condition.operator in ("==", "<=", ">=") else FALSE, facts, others)
        return _with_nulls(_compared(condition.operator, facts, others), facts, others)

    def _point(self, path: ColumnPath, constant: Constant, source: str) -> Any:
        """Returns the constant as the bounds of its column are: bytes, numbers, nanoseconds."""
        kind = type_at(self._where, self._schema, path, source)
        if kind_of(kind) == TIME:
            kind = kind.value_type if pa.types.is_dictionary(kind) else kind
            value = time_value(self._where, path, kind, constant, source).value
            unit = _DAY_NS if kind == pa.date32() else _NS["ms" if kind == pa.date64() else kind.unit]
            return value * unit
        return constant.encode() if isinstance(constant, str) else constant

    def _facts(self, path: ColumnPath, source: str) -> _Facts:
        leaf = self._leaves.get(".".join(path.names))
        kind = type_at(self._where, self._schema, path, source)
        dictionary = pa.types.is_dictionary(kind)
        may_be_nan = pa.types.is_floating(kind.value_type if dictionary else kind)
        if leaf is None or self._metadata.schema.column(leaf).max_repetition_level:
            return _Facts(may_be_nan=may_be_nan)
        column = self._group.column(leaf)
        statistics = column.statistics if column.is_stats_set else None
        is_required = self._metadata.schema.column(leaf).max_definition_level == 0
        if statistics is None:
            return _Facts(may_be_null=not is_required, may_be_nan=may_be_nan)
        num_nulls = statistics.null_count if statistics.has_null_count else None
        return _Facts(
            may_be_null=not is_required and num_nulls != 0,
            may_be_value=num_nulls is None or num_nulls < self.num_records,
            may_be_nan=may_be_nan,
            bounds=_bounds(statistics, kind_of(kind), column.physical_type),
        )


def _bounds(statistics: Any, holds: str, physical: str) -> tuple[Any, Any] | None:
    """Returns the bounds of a column's values, such as Python compares exactly; None: unknown."""
    if not statistics.has_min_max:
        return None
    if holds == TEXT and physical == "BYTE_ARRAY":
        low, high = statistics.min_raw, statistics.max_raw
        if len(high) < _MAY_BE_CUT_BYTES:
            return low, high
        is_utf8 = json.loads(statistics.logical_type.to_json()).get("Type") == "String"
        return (low, high + b"\xff") if is_utf8 else None  # a byte that UTF-8 does not have
    if holds == TIME:
        logical = json.loads(statistics.logical_type.to_json())
        unit = _DAY_NS if logical.get("Type") == "Date" else _UNIT_NS.get(logical.get("timeUnit", ""), 0)
        known = unit and physical in ("INT32", "INT64")
        return (statistics.min_raw * unit, statistics.max_raw * unit) if known else None
    if holds in (NUMBER, TRUTH) and physical in ("INT32", "INT64", "FLOAT", "DOUBLE", "BOOLEAN"):
        low, high = statistics.min, statistics.max
        known = isinstance(low, int | float) and isinstance(high, int | float)
        return (low, high) if known and low <= high else None  # NaN is neither
    return None


def _compared(operator: str, left: _Facts, right: _Facts) -> int:
    """Returns the outcomes among values that are there."""
    found = TRUE | FALSE
    if left.bounds is not None and right.bounds is not None:
        (low, high), (other_low, other_high) = left.bounds, right.bounds
        is_less, is_more = low < other_high, high > other_low
        is_same = low <= other_high and other_low <= high
        differ = not (low == high == other_low == other_high)
        always = {
            "<": (is_less, high >= other_low),
            ">": (is_more, low <= other_high),
            "<=": (low <= other_high, is_more),
            ">=": (high >= other_low, is_less),
            "==": (is_same, differ),
            "!=": (differ, is_same),
        }
        is_true, is_false = always[operator]
        found = TRUE * is_true | FALSE * is_false
    if left.may_be_nan or right.may_be_nan:
        found |= TRUE if operator == "!=" else FALSE
    return found


def _within(facts: _Facts, points: list[Any]) -> int:
    if facts.bounds is None:
        return TRUE | FALSE
    low, high = facts.bounds
    is_true = any(low <= point <= high for point in points)
    return TRUE * is_true | FALSE * (facts.may_be_nan or low != high or low not in points)


def _with_nulls(found: int, *facts: _Facts) -> int:
    """Returns the outcomes where some records may lack a value: null."""
    values = found if all(fact.may_be_value for fact in facts) else 0
    return values | (NULL if any(fact.may_be_null for fact in facts) else 0)


def _negated(found: int) -> int:
    return (found & NULL) | (FALSE if found & TRUE else 0) | (TRUE if found & FALSE else 0)


def _both(left: int, right: int) -> int:
    """Returns the outcomes of `and`: false beats null, null beats true."""
    found = TRUE if left & TRUE and right & TRUE else 0
    found |= FALSE if (left | right) & FALSE and left and right else 0
    is_null = (left & NULL and right & (NULL | TRUE)) or (right & NULL and left & TRUE)
    return found | (NULL if is_null else 0)
