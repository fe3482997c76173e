"""Conditions on columns, as `where` of a dataset says them: parsed strictly, and never run as Python.

Upstream: the text in a recipe. Downstream: `where_arrow.py` evaluates a condition on tables and
`where_groups.py` on the statistics of Parquet files; pyarrow is imported by these alone.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from zephon.errors import shorten

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_DEPTH = 50
"""How deep conditions may be nested, so that no walk over one meets Python's own limit."""
EXAMPLE = '`score >= 3 and lang == "en"`'

_OPERATORS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}

Constant: TypeAlias = bool | int | float | str


@dataclass(frozen=True, slots=True)
class ColumnPath:
    """A column, or a field of a struct: `("meta", "lang")`."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join(self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """A column against a constant or another column."""

    column: ColumnPath
    operator: str
    """`<`, `<=`, `>`, `>=`, `==` or `!=`."""
    other: ColumnPath | Constant
    source: str
    """How the text says it, for messages."""


@dataclass(frozen=True, slots=True)
class Within:
    """Whether a column's value is one of some constants, all of one kind."""

    column: ColumnPath
    values: tuple[Constant, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Missing:
    """Whether a column has no value."""

    column: ColumnPath
    source: str


@dataclass(frozen=True, slots=True)
class Not:
    part: Condition


@dataclass(frozen=True, slots=True)
class All:
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Either:
    parts: tuple[Condition, ...]


Condition: TypeAlias = Compare | Within | Missing | Not | All | Either


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A condition that says which records of a dataset there are; see `parse_where`."""

    text: str
    """As written, without outer spaces; what the fingerprint holds, so another spelling is another recipe."""
    dataset: str
    condition: Condition

    @property
    def columns(self) -> tuple[str, ...]:
        """Returns the top-level columns that the condition needs, by first appearance."""
        return tuple(dict.fromkeys(path.names[0] for path in _paths(self.condition)))

    def expression(self, schema: Any) -> Any:
        """Returns the condition as a `pyarrow.compute.Expression` for data of the Arrow `schema`.

        True, false or null for each record, as `mask` has it; the schema makes comparisons exact.
        """
        from zephon.where_arrow import expression

        return expression(self, schema)

    def mask(self, table: Any) -> NDArray[np.bool_]:
        """Returns, (n,) bool, which records of an Arrow table the condition holds for.

        A comparison with null is neither true nor false, nor is its `not`; where that is the outcome of the
        whole the record is left out. With NaN only `!=` is true. Chunks of the table change nothing.
        """
        from zephon.where_arrow import mask

        return mask(self, table)


def _paths(condition: Condition) -> Iterator[ColumnPath]:
    match condition:
        case Not(part):
            yield from _paths(part)
        case All(parts) | Either(parts):
            for part in parts:
                yield from _paths(part)
        case _:
            yield condition.column
            if isinstance(condition, Compare) and isinstance(condition.other, ColumnPath):
                yield condition.other


def parse_where(text: str, dataset: str) -> Where:
    """Returns the condition that `text` says of the records of `dataset`; nothing else is looked at.

    Comparisons of columns with constants or columns, `in`, `is None`, boolean columns, joined by `and`, `or`
    and `not`. `meta.lang` is a field of the struct `meta`; `col("odd name")` is a column whose name is no
    word, `col("meta", "odd name")` a field of one. Everything else raises `ValueError` with its place.
    """
    parser = _Parser(text.strip(), dataset)
    return Where(text=parser.text, dataset=dataset, condition=parser.condition(parser.root(), 0))


def parse_column(text: str, dataset: str, argument: str) -> ColumnPath:
    """Returns the column that `text` names, as conditions name one; `argument` is how messages call it."""
    parser = _Parser(text.strip(), dataset, argument)
    found = parser.operand(node := parser.root())
    if not isinstance(found, ColumnPath):
        parser.refuse(node, "a column is named", 'a name, `meta.lang` or `col("odd name")` does')
    return found


class _Parser:
    """One text; refuses with the place in it."""

    def __init__(self, text: str, dataset: str, argument: str = "where") -> None:
        self.text, self._dataset, self._argument = text, dataset, argument
        self._is_wrapped = "\n" in text
        self._parsed = f"(\n{text}\n)" if self._is_wrapped else text

    def root(self) -> ast.expr:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # such as of an unknown escape, which then is a SyntaxError
                node = ast.parse(self._parsed, mode="eval").body
        except SyntaxError as error:
            cure = f'write it as Python does, such as {EXAMPLE}; col("odd name") is a column of any name'
            raise self._error(error.lineno or 1, error.offset or 1, error.msg, self.text, cure) from None
        except (RecursionError, MemoryError, ValueError):
            cure = "shorten it, or compute the value into a column"
            raise self._error(1, 1, "it is nested too deeply or no text", self.text, cure) from None
        last = self._parsed.count("\n") + 1
        if self._is_wrapped and not 1 < node.lineno <= (node.end_lineno or 0) < last:
            raise self._error(1, 1, "it is one expression", self.text, "close every bracket where it opens")
        return node

    def refuse(self, node: ast.AST, rule: str, cure: str) -> NoReturn:
        line = getattr(node, "lineno", 1)
        before = self._parsed.split("\n")[line - 1].encode()[: getattr(node, "col_offset", 0)]
        raise self._error(line, len(before.decode()) + 1, rule, self.segment(node), cure)

    def _error(self, line: int, character: int, rule: str, got: str, cure: str) -> ValueError:
        line = max(1, line - self._is_wrapped)
        place = f"line {line}, character {character}" if self._is_wrapped else f"character {character}"
        where = f"dataset {self._dataset!r}: `{self._argument}`, {place}"
        return ValueError(f"{where}: {rule}, got {shorten(got)}; {cure}")

    def segment(self, node: ast.AST) -> str:
        return ast.get_source_segment(self._parsed, node) or self.text

    def condition(self, node: ast.expr, depth: int) -> Condition:
        if depth > MAX_DEPTH:
            self.refuse(node, f"conditions are nested at most {MAX_DEPTH} deep", "shorten it")
        match node:
            case ast.BoolOp():
                parts = tuple(self.condition(value, depth + 1) for value in node.values)
                return All(parts) if isinstance(node.op, ast.And) else Either(parts)
            case ast.UnaryOp(op=ast.Not()):
                return Not(self.condition(node.operand, depth + 1))
            case ast.Compare():
                sides = [node.left, *node.comparators]
                pairs = tuple(
                    self._pair(node, left, operator, right)
                    for left, operator, right in zip(sides, node.ops, node.comparators, strict=False)
                )
                return All(pairs) if len(pairs) > 1 else pairs[0]
        column = self.operand(node)
        if not isinstance(column, ColumnPath):
            self.refuse(node, "a condition has a column", f"compare it with one, such as {EXAMPLE}")
        return Compare(column=column, operator="==", other=True, source=self.segment(node))

    def _pair(self, whole: ast.Compare, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Condition:
        source, found = self.segment(whole), self.operand(left)
        if isinstance(operator, ast.Is | ast.IsNot):
            if not isinstance(found, ColumnPath) or not _is_none(right):
                self.refuse(whole, "`is` asks for None", "write COLUMN is None, or compare with ==")
            missing = Missing(found, source)
            return missing if isinstance(operator, ast.Is) else Not(missing)
        if isinstance(operator, ast.In | ast.NotIn):
            if not isinstance(found, ColumnPath):
                self.refuse(left, "left of `in` stands a column", 'such as `lang in ["en", "de"]`')
            within = Within(found, self._values(right), source)
            return within if isinstance(operator, ast.In) else Not(within)
        other, symbol = self.operand(right), _OPERATORS[type(operator)]
        if isinstance(found, ColumnPath):
            return Compare(column=found, operator=symbol, other=other, source=source)
        if isinstance(other, ColumnPath):
            return Compare(column=other, operator=_MIRRORED[symbol], other=found, source=source)
        self.refuse(whole, "a comparison has a column", f"such as {EXAMPLE}; a column takes no quotes")

    def _values(self, node: ast.expr) -> tuple[Constant, ...]:
        cure = (
            'such as `lang in ["en", "de"]`; a list in a column, or a part of a text, cannot be looked into'
        )
        if not isinstance(node, ast.List | ast.Tuple) or not node.elts:
            self.refuse(node, "right of `in` stands a list of constants that is not empty", cure)
        values: list[Constant] = []
        for element in node.elts:
            value = self.operand(element)
            if isinstance(value, ColumnPath) or (values and kind_of(value) != kind_of(values[0])):
                rule = "a list has constants of one kind: numbers, texts or truth values"
                self.refuse(element, rule, 'such as `lang in ["en", "de"]`; join several lists by `or`')
            values.append(value)
        return tuple(values)

    def operand(self, node: ast.expr) -> ColumnPath | Constant:
        match node:
            case ast.Name(id=name):
                return ColumnPath((self._as_written(node, name),))
            case ast.Attribute():
                return self._field(node)
            case ast.Call(func=ast.Name(id="col"), args=args, keywords=[]) if args:
                texts = tuple(arg.value if isinstance(arg, ast.Constant) else None for arg in args)
                names = tuple(text for text in texts if isinstance(text, str) and text)
                if len(names) == len(args):
                    return ColumnPath(names)
            case ast.Constant(value=bool() | int() | float() | str() as value):
                return self._constant(node, value)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                if not isinstance(value, bool):
                    return -value
        self.refuse(node, *_why_not(node))

    def _field(self, node: ast.expr) -> ColumnPath:
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(self._as_written(node, node.attr))
            node = node.value
        column = self.operand(node)
        if not isinstance(column, ColumnPath):
            self.refuse(node, "before a dot stands a column", "such as `meta.lang`")
        return ColumnPath((*column.names, *reversed(names)))

    def _as_written(self, node: ast.expr, name: str) -> str:
        """Returns the name; refuses one that Python brings to another form, which the column may not have."""
        if not self.segment(node).endswith(name):
            self.refuse(node, "a name is of letters that Python keeps as they are", 'write col("name")')
        return name

    def _constant(self, node: ast.expr, value: Constant) -> Constant:
        if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
            self.refuse(node, "a text is one that UTF-8 can hold", "leave out the lone surrogates")
        return value


def kind_of(value: Constant) -> str:
    """Returns `truth value`, `text` or `number`."""
    if isinstance(value, bool):
        return "truth value"
    return "text" if isinstance(value, str) else "number"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _why_not(node: ast.expr) -> tuple[str, str]:
    """Returns the rule and the cure for what is neither a column nor a constant."""
    match node:
        case ast.Constant(value=None):
            return "None stands only in `is None` and `is not None`", "write COLUMN is None"
        case ast.Call():
            return "the only call is col with one or more names", 'write col("odd name"), or no call'
        case ast.BinOp(op=ast.BitAnd() | ast.BitOr()) | ast.UnaryOp(op=ast.Invert()):
            return "conditions are joined by `and`, `or` and `not`", f"such as {EXAMPLE}"
        case ast.BinOp() | ast.UnaryOp(op=ast.USub() | ast.UAdd()):
            cure = 'compute the value into a column; a column with an odd name is col("odd name")'
            return "columns are compared as they are, without arithmetic", cure
        case ast.BoolOp() | ast.Compare() | ast.UnaryOp():
            return "what is compared is a column or a constant", "join conditions by `and`, `or` and `not`"
    return "what is compared is a column, a number, a text, True or False", f"such as {EXAMPLE}"
