"""Conditions on columns, as `where` of a dataset says them: parsed strictly, and never run as Python.

Upstream: the text in a recipe. Downstream: `where_arrow.py`, which alone imports pyarrow, evaluates a
condition on tables and on the statistics of Parquet files.
"""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zephon.errors import shorten

MAX_DEPTH = 50
"""How deep conditions may be nested, so that no walk over one meets Python's own limit."""
ABSENT_IS_NULL = {b"zephon.absent": b"null"}
"""Metadata of an Arrow table whose types are found chunk by chunk: a field may be in others only."""
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

    @property
    def comparisons(self) -> tuple[Compare, ...]:
        """Returns the comparisons of which one holds where this does."""
        return tuple(
            Compare(column=self.column, operator="==", other=value, source=self.source)
            for value in self.values
        )


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

    def mask(self, table: Any) -> NDArray[np.bool_]:
        """Returns, (n,) bool, which records of an Arrow table the condition holds for.

        A comparison with null is neither true nor false, nor is its `not`; where that is the outcome of the
        whole the record is left out. With NaN only `!=` is true. Comparisons are exact; `DataError`: a column
        is not there or unfit, or integers beyond 2**53 meet floats, or uint64 from 2**63 on another type.
        """
        from zephon.where_arrow import mask

        return mask(self, table)


def _paths(condition: Condition) -> list[ColumnPath]:
    match condition:
        case Not(part):
            return _paths(part)
        case All(parts) | Either(parts):
            return [path for part in parts for path in _paths(part)]
        case Compare(column=column, other=ColumnPath() as other):
            return [column, other]
    return [condition.column]


def parse_where(text: str, dataset: str) -> Where:
    """Returns the condition that `text` says of the records of `dataset`; nothing else is looked at.

    Comparisons of columns with constants or columns, `in`, `is None`, boolean columns, joined by `and`, `or`
    and `not`. `meta.lang` is a field of the struct `meta`; `col("odd name")` is a column whose name is no
    word that Python keeps (NFKC), `col("meta", "x")` a field. All else raises `ValueError` with its place.
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
        self._is_wrapped = "\n" in text  # alone where it must be: the places of errors are better without
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
        if self._is_wrapped and not 1 < node.lineno <= (node.end_lineno or 0) <= self._parsed.count("\n"):
            rule = "it is one expression, every bracket closed where it opens"
            raise self._error(1, 1, rule, self.text, f"such as {EXAMPLE}")
        return node

    def refuse(self, node: ast.expr, rule: str, cure: str) -> NoReturn:
        before = self._parsed.split("\n")[node.lineno - 1].encode()[: node.col_offset]
        raise self._error(node.lineno, len(before.decode()) + 1, rule, self.segment(node), cure)

    def _error(self, line: int, character: int, rule: str, got: str, cure: str) -> ValueError:
        place = f"line {max(1, line - 1)}, " if self._is_wrapped else ""
        where = f"dataset {self._dataset!r}: `{self._argument}`, {place}character {character}"
        return ValueError(f"{where}: {rule}, got {shorten(got)}; {cure}")

    def segment(self, node: ast.expr) -> str:
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
                sides = pairwise([node.left, *node.comparators])
                pairs = tuple(self._pair(node, *side, op) for side, op in zip(sides, node.ops, strict=True))
                return All(pairs) if len(pairs) > 1 else pairs[0]
        column = self.operand(node)
        if not isinstance(column, ColumnPath):
            self.refuse(node, "a condition has a column", f"compare it with one, such as {EXAMPLE}")
        return Compare(column=column, operator="==", other=True, source=self.segment(node))

    def _pair(self, whole: ast.Compare, left: ast.expr, right: ast.expr, operator: ast.cmpop) -> Condition:
        source, found = self.segment(whole), self.operand(left)
        if isinstance(operator, ast.Is | ast.IsNot | ast.In | ast.NotIn):
            if not isinstance(found, ColumnPath):
                self.refuse(left, "left of `in` and `is` stands a column", 'such as `lang in ["en", "de"]`')
            if isinstance(operator, ast.In | ast.NotIn):
                part: Condition = Within(found, self._values(right), source)
            elif isinstance(right, ast.Constant) and right.value is None:
                part = Missing(found, source)
            else:
                self.refuse(whole, "`is` asks for None", "write COLUMN is None, or compare with ==")
            return Not(part) if isinstance(operator, ast.IsNot | ast.NotIn) else part
        other, symbol = self.operand(right), _OPERATORS[type(operator)]
        if not isinstance(found, ColumnPath):
            found, other, symbol = other, found, _MIRRORED[symbol]
        if not isinstance(found, ColumnPath):
            self.refuse(whole, "a comparison has a column", f"such as {EXAMPLE}; a column takes no quotes")
        return Compare(column=found, operator=symbol, other=other, source=source)

    def _values(self, node: ast.expr) -> tuple[Constant, ...]:
        found = [self.operand(e) for e in node.elts] if isinstance(node, ast.List | ast.Tuple) else []
        values = tuple(value for value in found if not isinstance(value, ColumnPath))
        if len(values) == len(found) and len({kind_of(value) for value in values}) == 1:
            return values
        cure = 'such as `lang in ["en", "de"]`; no list in a column, nor part of a text, is looked into'
        self.refuse(node, "right of `in` stands a list of numbers, of texts or of truth values", cure)

    def operand(self, node: ast.expr) -> ColumnPath | Constant:
        match node:
            case ast.Name(id=name):
                return ColumnPath((name,))
            case ast.Attribute():
                names, before = [node.attr], node.value
                while isinstance(before, ast.Attribute):
                    names.insert(0, before.attr)
                    before = before.value
                if isinstance(column := self.operand(before), ColumnPath):
                    return ColumnPath((*column.names, *names))
                self.refuse(before, "before a dot stands a column", "such as `meta.lang`")
            case ast.Call(func=ast.Name(id="col"), args=args, keywords=[]) if args:
                texts = [arg.value for arg in args if isinstance(arg, ast.Constant)]
                if len(texts) == len(args) and all(text and isinstance(text, str) for text in texts):
                    return ColumnPath(tuple(map(str, texts)))
            case ast.Constant(value=str() as text):
                if any("\ud800" <= letter <= "\udfff" for letter in text):
                    self.refuse(node, "a text is one that UTF-8 can hold", "leave out the lone surrogates")
                return text
            case ast.Constant(value=bool() | int() | float() as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return -value
        self.refuse(node, *_why_not(node))


def kind_of(value: Constant) -> str:
    """Returns `truth value`, `text` or `number`."""
    return {bool: "truth value", str: "text"}.get(type(value), "number")


def _why_not(node: ast.expr) -> tuple[str, str]:
    """Returns the rule and the cure for what is neither a column nor a constant."""
    match node:
        case ast.Constant(value=None):
            return "None stands only in `is None` and `is not None`", "write COLUMN is None"
        case ast.Call():
            return "the only call is col with one or more names", 'write col("odd name"), or no call'
        case ast.BinOp() | ast.UnaryOp():
            rule = "columns are compared without arithmetic, and conditions joined by `and`, `or` and `not`"
            return rule, 'compute the value into a column; a column with an odd name is col("odd name")'
    return "what is compared is a column, a number, a text, True or False", f"such as {EXAMPLE}"
