"""Conditions on Arrow data: what kind of value each column holds, and the exact outcome of each comparison.

Upstream: `where.py` and a schema, or a Parquet footer. Downstream: the readers, also through `Where.mask`.
Arrow compares an int64 with a float64 as floats; here a constant is first brought to the column's own type, a
column to another's only where that keeps its values.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from zephon.errors import DataError
from zephon.where import (
    ABSENT_IS_NULL,
    All,
    ColumnPath,
    Compare,
    Condition,
    Either,
    Missing,
    Not,
    Where,
    Within,
)
from zephon.where import kind_of as kind_of_constant

NUMBER, TEXT, TRUTH, TIME, NOTHING, OTHER = "number", "text", "truth value", "time", "nothing", ""

_COMPARE = {
    "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
    "==": pc.equal, "!=": pc.not_equal,
}  # fmt: skip
_CAST = {pa.float16(): pa.float32(), pa.string_view(): pa.large_string()}
"""Types that some function used here does not know, and what they are cast to."""
_NULL = pa.scalar(None, pa.bool_())
_NEVER_CUT_BYTES = 15
"""So much of the greatest text is there, where a writer of statistics cuts it short."""


def mask(where: Where, table: Any) -> NDArray[np.bool_]:
    """Returns, (n,) bool, which records of `table` the condition holds for; see `Where.mask`."""

    def column(path: ColumnPath) -> Any:
        return values_at(table, path)

    found = pc.fill_null(_Evaluation(where, table.schema, column).outcome(where.condition), False)
    return np.asarray(found.to_numpy(), dtype=np.bool_)


def values_at(table: Any, path: ColumnPath) -> Any:
    """Returns the values at `path`, null where a field is absent that may be; None where it is not there."""
    values = table.column(path.names[0])
    for name in path.names[1:]:
        if _is_absent(table.schema, values.type, name):
            return pa.chunked_array([pa.nulls(len(values))])
        if not pa.types.is_struct(values.type) or values.type.get_field_index(name) < 0:
            return None
        values = pc.struct_field(values, name)
    return values


def _is_absent(schema: Any, kind: Any, name: str) -> bool:
    """Returns whether a field that `kind` lacks may be in the structs of other chunks."""
    has_none = pa.types.is_null(kind) or (pa.types.is_struct(kind) and kind.get_field_index(name) < 0)
    return has_none and ABSENT_IS_NULL.items() <= (schema.metadata or {}).items()


def expression(where: Where, schema: Any) -> Any:
    """Returns the condition as a `pyarrow.compute.Expression` for data of `schema`: true, false or null.

    Where `mask` raises for values that cannot be compared exactly, the expression does when it is evaluated.
    """
    return _Evaluation(where, schema, lambda path: pc.field(*path.names)).outcome(where.condition)


def kind_of(kind: Any) -> str:
    """Returns what an Arrow type holds: one of the constants above."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    kind = _CAST.get(kind, kind)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return NUMBER
    if kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):  # not all writers say so
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
        if depth and _is_absent(schema, kind, name):
            return pa.null()
        names = [kind.field(i).name for i in range(kind.num_fields)] if pa.types.is_struct(kind) else []
        if names.count(name) != 1:
            above = f"fields of {ColumnPath(path.names[:depth])}" if depth else "columns"
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
            raise _error(
                where,
                f"{name!r} is there twice" if name in names else f"column {str(path)!r} is not there",
                source,
                got=f"the {above} {', '.join(names)}" if names else f"the {above}: none, its type is {kind}",
                rule="every column of a condition is in every file, once; a dot leads into a struct",
                cure=(f"did you mean {near[0]!r}? " if near else "")
                + 'name one that is there; a text takes quotes, a name with a dot col("a.b")',
            )
        kind = kind.field(name).type
    return kind


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
                return pc.is_null(self._values(path, source)[0])
            case Within():
                return self._within(condition)
            case Compare():
                return self._compare(condition)

    def _values(self, path: ColumnPath, source: str) -> tuple[Any, Any]:
        """Returns a column's values and their type, which every function used here knows."""
        kind, values = type_at(self._where, self._schema, path, source), self._column(path)
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
            values = values.cast(kind)
        return (values.cast(_CAST[kind]), _CAST[kind]) if kind in _CAST else (values, kind)

    def _within(self, condition: Within) -> Any:
        values, kind = self._values(condition.column, condition.source)
        if kind_of(kind) != TEXT or not isinstance(condition.values[0], str):
            return self.outcome(Either(condition.comparisons))
        among = pa.array(condition.values, pa.string()).cast(kind)
        return pc.if_else(pc.is_valid(values), pc.is_in(values, value_set=among), _NULL)

    def _compare(self, condition: Compare) -> Any:
        operator, constant, other_kind = condition.operator, condition.other, None
        values, kind = self._values(condition.column, condition.source)
        if isinstance(constant, ColumnPath):
            others, other_kind = self._values(constant, condition.source)
            shown, types = f"column {str(constant)!r}", f"the type {kind} and the type {other_kind}"
            holds = {kind_of(kind), kind_of(other_kind)}
            fits = holds in ({NUMBER}, {TEXT}, {TRUTH}) or (holds == {TIME} and kind == other_kind)
        else:
            shown, types = f"the {kind_of_constant(constant)} {constant!r}", f"the type {kind}"
            holds = {kind_of(kind), kind_of_constant(constant)}
            fits = len(holds) == 1 or (kind_of(kind) == TIME and TEXT in holds)
        fits = fits or (NOTHING in holds and OTHER not in holds)
        if not fits or (TRUTH in holds and operator not in ("==", "!=")):
            raise self._unfit(condition, shown, types)
        if NOTHING in holds:
            return _unless_null(values if kind_of(kind) == NOTHING else others, False)
        try:
            if isinstance(constant, int | float) and not isinstance(constant, bool):
                return _compare_number(operator, values, kind, constant)
            if other_kind is None:
                others = pa.scalar(constant).cast(kind)
            elif kind != other_kind:
                is_float = pa.types.is_floating(kind) or pa.types.is_floating(other_kind)
                common = pa.large_binary() if TEXT in holds else pa.float64() if is_float else pa.int64()
                values, others = values.cast(common), others.cast(common)
        except pa.ArrowInvalid as error:
            raise self._unfit(condition, shown, f"{types}, {str(error).splitlines()[0]}") from None
        return _COMPARE[operator](values, others)

    def _unfit(self, condition: Compare, other: str, got: str) -> DataError:
        return _error(
            self._where,
            f"column {str(condition.column)!r} cannot be compared with {other} by {condition.operator}",
            condition.source,
            got=got,
            rule="numbers go with numbers, texts with texts, truth values with truth values by == and !=, "
            "times with times of their type or ISO texts of their unit; one type holds what two columns do",
            cure='write a constant such as 2.5, True, "2024-01-31" or, where times have a zone, '
            '"2024-01-31T12:00:00Z"; a column alone is of booleans, and `is None` asks any',
        )


def _joined(function: Callable[[Any, Any], Any], parts: list[Any]) -> Any:
    """Returns the parts joined by halves, so that many parts are not nested deeply."""
    half = len(parts) // 2
    return function(_joined(function, parts[:half]), _joined(function, parts[half:])) if half else parts[0]


def _unless_null(values: Any, outcome: bool) -> Any:
    return pc.if_else(pc.is_valid(values), pa.scalar(outcome), _NULL)


def _compare_number(operator: str, values: Any, kind: Any, constant: float) -> Any:
    """Returns the exact outcome for a constant that the column's type may lack."""
    near = _near(constant, kind)
    if near != constant:
        if operator in ("==", "!="):
            return _unless_null(values, operator == "!=")
        operator = operator[0] + "=" * ((operator[0] == "<") == (near < constant))
    return _COMPARE[operator](values, pa.scalar(near, kind))


def _near(constant: float, kind: Any) -> float:
    """Returns a value of a type of numbers such that none other lies between it and `constant`."""
    letter = "f" if pa.types.is_floating(kind) else "i" if pa.types.is_signed_integer(kind) else "u"
    dtype = np.dtype(f"{letter}{kind.bit_width // 8}")
    if letter != "f":
        return math.floor(min(max(constant, np.iinfo(dtype).min), np.iinfo(dtype).max))
    try:
        with np.errstate(over="ignore"):
            return float(dtype.type(constant))
    except OverflowError:
        return math.inf if constant > 0 else -math.inf


# Statistics of Parquet files ------------------------------------------------------------------------------


def row_groups(where: Where, footer: bytes, schema: Any) -> list[int]:
    """Returns, ascending, the row groups of a Parquet file that may hold a match; the others hold none.

    pyarrow decides by their statistics, on a weaker condition: it takes NaN, which statistics leave out, for
    a value within the bounds, and the beginning that some writers leave of the greatest text for all of it.
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
