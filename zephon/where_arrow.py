"""Conditions on Arrow data: what kind of value each column holds, and the exact outcome of each comparison.

Upstream: `where.py` and a schema. Downstream: the readers, through `Where.mask` and `Where.expression`.
Arrow compares an int64 with a float64 as floats; here a constant is first brought to the column's own type,
rounded towards the side that leaves the outcome as it is.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from zephon.errors import DataError
from zephon.where import All, ColumnPath, Compare, Condition, Constant, Either, Missing, Not, Where, Within
from zephon.where import kind_of as kind_of_constant

NUMBER, TEXT, TRUTH, TIME, NOTHING, OTHER = "number", "text", "truth value", "time", "nothing", ""

_COMPARE = {
    "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
    "==": pc.equal, "!=": pc.not_equal,
}  # fmt: skip
_NULL = pa.scalar(None, pa.bool_())


def mask(where: Where, table: Any) -> NDArray[np.bool_]:
    """Returns, (n,) bool, which records of `table` the condition holds for; see `Where.mask`."""

    def column(path: ColumnPath) -> Any:
        values, kind = table.column(path.names[0]), table.schema.field(path.names[0]).type
        for name in path.names[1:]:
            place = kind.get_field_index(name)
            values, kind = pc.struct_field(values, [place]), kind.field(place).type
        return values

    found = pc.fill_null(_Evaluation(where, table.schema, column).outcome(where.condition), False)
    return np.asarray(found.to_numpy(), dtype=np.bool_)


def expression(where: Where, schema: Any) -> Any:
    """Returns the condition as an expression for data of `schema`; see `Where.expression`."""

    def column(path: ColumnPath) -> Any:
        return pc.field(path.names[0]) if len(path.names) == 1 else pc.field(path.names)

    return _Evaluation(where, schema, column).outcome(where.condition)


def kind_of(kind: Any) -> str:
    """Returns what an Arrow type holds: one of the constants above."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return NUMBER
    if kind in (pa.string(), pa.large_string(), pa.string_view()):
        return TEXT
    if kind in (pa.binary(), pa.large_binary(), pa.binary_view()):  # texts of writers that do not say so
        return TEXT
    if pa.types.is_boolean(kind):
        return TRUTH
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return TIME
    return NOTHING if pa.types.is_null(kind) else OTHER


def type_at(where: Where, schema: Any, path: ColumnPath, source: str) -> Any:
    """Returns the Arrow type of a column; refuses one that is not there."""
    kind: Any = pa.struct(list(schema))
    for depth, name in enumerate(path.names):
        names = [kind.field(i).name for i in range(kind.num_fields)] if pa.types.is_struct(kind) else []
        if names.count(name) != 1:
            above = f"fields of {ColumnPath(path.names[:depth])}" if depth else "columns"
            there = ", ".join(names) if names else f"none, its type is {kind}"
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise _error(
                where,
                f"column {str(path)!r} is not there" if name not in names else f"{name!r} is there twice",
                source,
                got=f"the {above} {there}" if names else f"the {above}: {there}",
                rule="every column of a condition is in every file, once; a dot leads into a struct",
                cure=f'{hint}name one that is there; a text takes quotes, a name with a dot col("a.b")',
            )
        kind = kind.field(name).type
    return kind


def time_value(where: Where, path: ColumnPath, kind: Any, text: Constant, source: str) -> Any:
    """Returns the Arrow scalar of an ISO text for a column of dates or timestamps."""
    try:
        return pa.scalar(text, pa.string()).cast(kind)
    except pa.ArrowInvalid:
        if pa.types.is_date(kind):
            form = '"2024-01-31"'
        else:
            form = '"2024-01-31T12:00:00' + ('Z"' if kind.tz else '"')
        unit = "" if pa.types.is_date(kind) else f" and no finer than {kind.unit}"
        raise _error(
            where,
            f"column {str(path)!r} cannot be compared with {text!r}",
            source,
            got=f"the type {kind}",
            rule=f"such a column is compared with an ISO text of its own form{unit}",
            cure=f"write it as {form}",
        ) from None


def check_kinds(where: Where, schema: Any, condition: Compare | Within) -> Any:
    """Returns the Arrow type of the column; refuses what it cannot be compared with."""
    path, source = condition.column, condition.source
    kind = type_at(where, schema, path, source)
    holds, operator = kind_of(kind), condition.operator if isinstance(condition, Compare) else "in"
    others = condition.values if isinstance(condition, Within) else (condition.other,)
    other_type: Any = None
    if isinstance(others[0], ColumnPath):
        other_type = type_at(where, schema, others[0], source)
        other, shown = kind_of(other_type), f"column {str(others[0])!r}"
    else:
        other, shown = kind_of_constant(others[0]), f"the {kind_of_constant(others[0])} {others[0]!r}"
    if OTHER in (holds, other):
        bad = path if holds == OTHER else others[0]
        raise _error(
            where,
            f"column {str(bad)!r} cannot be compared",
            source,
            got=f"the type {kind if holds == OTHER else other_type}",
            rule="columns of integers, floats, texts, booleans, dates and timestamps can be compared",
            cure="write the value into such a column; `is None` asks any column",
        )
    fits = holds == other or NOTHING in (holds, other) or (holds == TIME and other == TEXT)
    if holds == other == TIME or (holds == TIME and other_type is not None):
        fits = NOTHING in (holds, other) or _value_type(kind) == _value_type(other_type)
    if not fits or (TRUTH in (holds, other) and operator not in ("==", "!=", "in")):
        raise _error(
            where,
            f"column {str(path)!r} cannot be compared with {shown} by {operator}",
            source,
            got=f"the type {kind}" + (f" and the type {other_type}" if other_type is not None else ""),
            rule="numbers go with numbers, texts with texts, times with ISO texts and times of their type, "
            "truth values only by == and !=; a column alone is of booleans",
            cure="write a constant of the column's type, or name another column",
        )
    return kind


def _value_type(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _error(where: Where, what: str, source: str, *, got: str, rule: str, cure: str) -> DataError:
    what = f"dataset {where.dataset!r}: {what}\n  in:   {' '.join(source.split())[:200]}"
    return DataError.explained(what, got=got, rule=rule, cure=cure)


class _Evaluation:
    """One condition on arrays or expressions, of which pyarrow's functions take either."""

    def __init__(self, where: Where, schema: Any, column: Callable[[ColumnPath], Any]) -> None:
        self._where, self._schema, self._column = where, schema, column

    def outcome(self, condition: Condition) -> Any:
        match condition:
            case Not(part):
                return pc.invert(self.outcome(part))
            case All(parts):
                return _joined(pc.and_kleene, [self.outcome(part) for part in parts])
            case Either(parts):
                return _joined(pc.or_kleene, [self.outcome(part) for part in parts])
            case Missing(path, source):
                kind = type_at(self._where, self._schema, path, source)
                return pc.is_null(self._values(path, kind)[0])
            case Within():
                kind = check_kinds(self._where, self._schema, condition)
                return self._within(condition, *self._values(condition.column, kind))
            case Compare():
                return self._compare(condition)

    def _values(self, path: ColumnPath, kind: Any) -> tuple[Any, Any]:
        """Returns a column's values and their type, which every function used here knows."""
        values = self._column(path)
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
            values = values.cast(kind)
        views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
        known = pa.float32() if pa.types.is_float16(kind) else views.get(kind, kind)
        return (values, kind) if known == kind else (values.cast(known), known)

    def _compare(self, condition: Compare) -> Any:
        kind = check_kinds(self._where, self._schema, condition)
        values, kind = self._values(condition.column, kind)
        other, operator = condition.other, condition.operator
        if isinstance(other, ColumnPath):
            other_type = type_at(self._where, self._schema, other, condition.source)
            others, other_type = self._values(other, other_type)
            return _compare_columns(operator, values, kind, others, other_type)
        if kind_of(kind) == NOTHING:
            return _unless_null(values, False)
        if kind_of(kind) == NUMBER and not isinstance(other, str):
            return _compare_number(operator, values, kind, other)
        return _COMPARE[operator](values, self._scalar(condition, kind, other))

    def _scalar(self, condition: Compare | Within, kind: Any, value: Constant) -> Any:
        """Returns a constant that is no number in the type of its column."""
        if kind_of(kind) == TIME:
            return time_value(self._where, condition.column, kind, value, condition.source)
        is_bytes = kind in (pa.binary(), pa.large_binary())
        return pa.scalar(value.encode() if is_bytes and isinstance(value, str) else value, kind)

    def _within(self, condition: Within, values: Any, kind: Any) -> Any:
        if kind_of(kind) == NOTHING:
            return _unless_null(values, False)
        if kind_of(kind) == NUMBER:
            sides = [around(value, kind) for value in condition.values if not isinstance(value, str)]
            found = [low for low, high in sides if low is not None and low == high]
            if 0 in found and pa.types.is_floating(kind):
                found += [0.0, -0.0]  # is_in tells them apart
            among = pa.array(found, kind)
        else:
            among = pa.array([self._scalar(condition, kind, v).as_py() for v in condition.values], kind)
        return pc.if_else(pc.is_valid(values), pc.is_in(values, value_set=among), _NULL)


def _joined(function: Callable[[Any, Any], Any], parts: list[Any]) -> Any:
    """Returns the parts joined in pairs of pairs, so that many parts are not nested deeply."""
    while len(parts) > 1:
        pairs = [function(*parts[i : i + 2]) for i in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[2 * len(pairs) :]
    return parts[0]


def _unless_null(values: Any, outcome: bool) -> Any:
    return pc.if_else(pc.is_valid(values), pa.scalar(outcome), _NULL)


def _compare_number(operator: str, values: Any, kind: Any, constant: float) -> Any:
    """Returns the exact outcome for a constant that the column's type may lack."""
    low, high = around(constant, kind)
    if low is not None and low == high:
        return _COMPARE[operator](values, pa.scalar(low, kind))
    if operator in ("==", "!="):
        return _unless_null(values, operator == "!=")
    bound = low if operator in ("<", "<=") else high
    if bound is None:
        return _unless_null(values, False)
    return _COMPARE["<=" if bound is low else ">="](values, pa.scalar(bound, kind))


def around(constant: float, kind: Any) -> tuple[Any, Any]:
    """Returns (greatest value <= `constant`, least value >= it) of a type of numbers; None: no such."""
    if pa.types.is_floating(kind):
        return _around_float(constant, kind.to_pandas_dtype())
    bounds = np.iinfo(kind.to_pandas_dtype())
    least, most = int(bounds.min), int(bounds.max)
    if isinstance(constant, float) and math.isinf(constant):
        return (most, None) if constant > 0 else (None, least)
    below, above = math.floor(constant), math.ceil(constant)
    return (None if below < least else min(below, most)), (None if above > most else max(above, least))


def _around_float(constant: float, dtype: Any) -> tuple[float, float]:
    try:
        with np.errstate(over="ignore"):
            near = dtype(constant)
    except OverflowError:
        near = dtype(math.inf if constant > 0 else -math.inf)
    value = float(near)
    if value == constant:
        return value, value
    if value < constant:
        return value, float(np.nextafter(near, dtype(math.inf)))
    return float(np.nextafter(near, dtype(-math.inf))), value


def _compare_columns(operator: str, left: Any, left_type: Any, right: Any, right_type: Any) -> Any:
    kinds = kind_of(left_type), kind_of(right_type)
    if NOTHING in kinds:
        return _unless_null(left if kinds[0] == NOTHING else right, False)
    if kinds[0] == TEXT and left_type != right_type:
        left, right = left.cast(pa.large_binary()), right.cast(pa.large_binary())
    if kinds[0] != NUMBER:
        return _COMPARE[operator](left, right)
    left, left_type = _widest(left, left_type)
    right, right_type = _widest(right, right_type)
    if left_type == right_type:
        return _COMPARE[operator](left, right)
    mirrored = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(operator, operator)
    if pa.types.is_floating(left_type):
        return _integer_float(mirrored, right, right_type, left)
    if pa.types.is_floating(right_type):
        return _integer_float(operator, left, left_type, right)
    if left_type == pa.uint64():
        return _signed_unsigned(mirrored, right, left)
    return _signed_unsigned(operator, left, right)


def _widest(values: Any, kind: Any) -> tuple[Any, Any]:
    integer = pa.uint64() if kind == pa.uint64() else pa.int64()
    wide = pa.float64() if pa.types.is_floating(kind) else integer
    return (values if kind == wide else values.cast(wide)), wide


def _signed_unsigned(operator: str, signed: Any, unsigned: Any) -> Any:
    is_negative = pc.less(signed, pa.scalar(0, pa.int64()))
    compared = _COMPARE[operator](
        pc.if_else(is_negative, pa.scalar(0, pa.int64()), signed).cast(pa.uint64()), unsigned
    )
    below = _unless_null(unsigned, operator in ("<", "<=", "!="))
    return pc.if_else(is_negative, below, compared)


def _integer_float(operator: str, integers: Any, kind: Any, floats: Any) -> Any:
    """Returns integer `operator` float: the float is rounded to the side that leaves the outcome as it is."""
    if operator in ("==", "!="):
        both = [_integer_float(side, integers, kind, floats) for side in ("<=", ">=")]
        return pc.and_kleene(*both) if operator == "==" else pc.invert(pc.and_kleene(*both))
    rounded = pc.ceil(floats) if operator in ("<", ">=") else pc.floor(floats)
    bounds = np.iinfo(kind.to_pandas_dtype())
    least, end = pa.scalar(float(bounds.min)), pa.scalar(float(int(bounds.max) + 1))
    is_within = pc.and_kleene(pc.greater_equal(rounded, least), pc.less(rounded, end))
    whole = pc.if_else(is_within, rounded, pa.scalar(0.0)).cast(kind, safe=False)
    beyond = _COMPARE[operator](
        pc.if_else(pc.is_valid(integers), pa.scalar(0.0), pa.scalar(None, pa.float64())), floats
    )
    return pc.if_else(is_within, _COMPARE[operator](integers, whole), beyond)
