"""Conditions on columns: what is refused and where, and outcomes as plain Python has them, nulls left out."""

from __future__ import annotations

import operator
import subprocess
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from itertools import pairwise, product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon.errors import DataError
from zephon.where import ColumnPath, parse_column, parse_where
from zephon.where_arrow import expression

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
Row = Mapping[str, Any]
Outcome = bool | None
Case = tuple[str, Callable[[Row], Outcome]]
"""A condition as text, and its outcome for a record by plain Python: None where a null decides."""

# Small tables and conditions on them ------------------------------------------------------------------------

BIG = 2**53
INTEGERS = [0, 1, -1, 2, BIG, BIG + 1, BIG - 1, 2**63 - 1, -(2**63), -(2**63) + 1]
NATURALS = [0, 1, 2, BIG, BIG + 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1]
FLOATS = [0.0, -0.0, 0.5, 1.0, -0.5, 2.0, float(BIG), 2.0**63, -(2.0**63), 2.0**64, 1e300]
UNUSUAL = [float("nan"), float("inf"), -float("inf")]
TEXTS = ["", "a", "b", "ab", "\u00e9", "\U0001f600", "\uffff"]
NUMBERS = [*INTEGERS, *NATURALS, *FLOATS, 3, 2**70, -(2**70), 10**400, 0.1]
TYPES: dict[str, tuple[Any, list[Any]]] = {
    "i": (pa.int64(), INTEGERS),
    "j": (pa.int64(), INTEGERS),
    "b": (pa.int8(), [-128, -1, 0, 1, 2, 127]),
    "u": (pa.uint64(), NATURALS),
    "f": (pa.float64(), [*FLOATS, *UNUSUAL]),
    "g": (pa.float32(), [0.0, -0.0, 0.5, 1.0, -0.5, float(np.float32(0.1)), *UNUSUAL]),
    "h": (pa.float16(), [0.0, 0.5, 1.0, 2.0, *UNUSUAL]),
    "s": (pa.string(), TEXTS),
    "t": (pa.large_string(), TEXTS),
    "v": (pa.string_view(), TEXTS),
    "d": (pa.dictionary(pa.int32(), pa.string()), TEXTS),
    "x": (pa.binary(), TEXTS),
    "p": (pa.bool_(), [True, False]),
    "q": (pa.bool_(), [True, False]),
    "n": (pa.null(), []),
    "m.k": (pa.int64(), INTEGERS),
}
KINDS = {"number": "ijbufgh", "text": "stvdx", "truth": "pq"}
COLUMNS = {kind: [*names, "m.k"] if kind == "number" else [*names] for kind, names in KINDS.items()}
ALIKE = [["i", "j", "b", "m.k"], ["u"], ["f", "g", "h"], [*KINDS["text"]], [*KINDS["truth"]]]
"""Columns that are compared whatever they hold."""
CONSTANTS: dict[str, list[Any]] = {"number": NUMBERS, "text": TEXTS, "truth": [True, False]}


def to_array(values: list[Any], kind: Any) -> Any:
    if pa.types.is_float16(kind):
        halves = [None if value is None else np.float16(value) for value in values]
        return pa.array(halves, kind)
    if kind == pa.binary():
        return pa.array([None if value is None else value.encode() for value in values], kind)
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode()
    return pa.array(values, kind)


def to_table(rows: list[dict[str, Any]]) -> Any:
    """Returns the table of rows as `rows` below makes them; a struct that is null has null fields."""
    columns = {
        name: to_array([row[name] for row in rows], kind)
        for name, (kind, _) in TYPES.items()
        if name != "m.k"
    }
    empty = pa.array([row["m is null"] for row in rows], pa.bool_())
    fields = pa.array([row["m.k"] or 0 if row["m is null"] else row["m.k"] for row in rows], pa.int64())
    columns["m"] = pa.StructArray.from_arrays([fields], ["k"], mask=empty)
    return pa.table(columns)


@st.composite
def rows(draw: st.DrawFn, max_size: int = 12) -> list[dict[str, Any]]:
    values = {
        name: st.none() | st.sampled_from(some) if some else st.none() for name, (_, some) in TYPES.items()
    }
    found = draw(st.lists(st.fixed_dictionaries({**values, "m is null": st.booleans()}), max_size=max_size))
    return [{**row, "m.k": None if row["m is null"] else row["m.k"]} for row in found]


def compared(symbol: str, left: Any, right: Any) -> Outcome:
    return None if left is None or right is None else OPERATORS[symbol](left, right)


def literal(value: Any) -> str:
    return repr(value)


@st.composite
def comparisons(draw: st.DrawFn) -> Case:
    kind = draw(st.sampled_from(sorted(KINDS)))
    column = draw(st.sampled_from(COLUMNS[kind]))
    symbol = draw(st.sampled_from(["==", "!="] if kind == "truth" else sorted(OPERATORS)))
    if draw(st.booleans()):
        other = draw(st.sampled_from([*next(names for names in ALIKE if column in names), "n"]))
        return f"{column} {symbol} {other}", lambda row: compared(symbol, row[column], row[other])
    constant = draw(st.sampled_from(CONSTANTS[kind]))
    if draw(st.booleans()):
        return f"{literal(constant)} {symbol} {column}", lambda row: compared(symbol, constant, row[column])
    return f"{column} {symbol} {literal(constant)}", lambda row: compared(symbol, row[column], constant)


@st.composite
def memberships(draw: st.DrawFn) -> Case:
    kind = draw(st.sampled_from(sorted(KINDS)))
    column = draw(st.sampled_from([*COLUMNS[kind], "n"]))
    values = draw(st.lists(st.sampled_from(CONSTANTS[kind]), min_size=1, max_size=3))
    text = f"[{', '.join(map(literal, values))}]"
    if draw(st.booleans()):
        return f"{column} in {text}", lambda row: None if row[column] is None else row[column] in values
    return f"{column} not in {text}", lambda row: None if row[column] is None else row[column] not in values


@st.composite
def chains(draw: st.DrawFn) -> Case:
    low, high = draw(st.sampled_from(NUMBERS)), draw(st.sampled_from(NUMBERS))
    column = draw(st.sampled_from(COLUMNS["number"]))

    def outcome(row: Row) -> Outcome:
        return None if row[column] is None else low <= row[column] < high

    return f"{low!r} <= {column} < {high!r}", outcome


def leaves() -> st.SearchStrategy[Case]:
    missing = st.sampled_from([*TYPES]).map(lambda name: (f"{name} is None", lambda row: row[name] is None))
    there = st.sampled_from([*TYPES]).map(
        lambda name: (f"{name} is not None", lambda row: row[name] is not None)
    )
    bare = st.sampled_from("pq").map(lambda name: (name, lambda row: row[name]))
    return st.one_of(comparisons(), memberships(), chains(), missing, there, bare)


def negated(case: Case) -> Case:
    text, outcome = case
    return f"not ({text})", lambda row: None if (found := outcome(row)) is None else not found


def joined(word: str, cases: list[Case]) -> Case:
    """Returns the cases joined by `and` or `or`: one false, or one true, decides; else one null does."""
    decides = word == "or"

    def outcome(row: Row) -> Outcome:
        found = [case[1](row) for case in cases]
        if decides in found:
            return decides
        return None if None in found else not decides

    return f" {word} ".join(f"({text})" for text, _ in cases), outcome


def conditions() -> st.SearchStrategy[Case]:
    def grow(inner: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
        several = st.lists(inner, min_size=2, max_size=4)
        return inner.map(negated) | st.builds(joined, st.sampled_from(["and", "or"]), several)

    return st.recursive(leaves(), grow, max_leaves=5)


# Outcomes ---------------------------------------------------------------------------------------------------


@given(rows(), conditions())
def test_a_mask_is_what_plain_python_says(rows: list[dict[str, Any]], case: Case) -> None:
    text, outcome = case
    found = parse_where(text, "web").mask(to_table(rows))
    assert found.dtype == np.bool_
    assert found.tolist() == [outcome(row) is True for row in rows], text


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_comparison_of_two_columns_is_what_plain_python_says(kind: str) -> None:
    symbols = ["==", "!="] if kind == "truth" else sorted(OPERATORS)
    for left, right in product(KINDS[kind], repeat=2):
        (left_type, some), (right_type, others) = TYPES[left], TYPES[right]
        some = [value for value in some if is_held(value, left_type, right_type)]
        others = [value for value in others if is_held(value, right_type, left_type)]
        pairs = list(product([*some, None], [*others, None]))
        first, second = (
            to_array([a for a, _ in pairs], left_type),
            to_array([b for _, b in pairs], right_type),
        )
        table = pa.table({"a": first, "b": second})
        for symbol in symbols:
            found = parse_where(f"a {symbol} b", "web").mask(table).tolist()
            assert found == [compared(symbol, *pair) is True for pair in pairs], (left, symbol, right)


def is_held(value: Any, kind: Any, other: Any) -> bool:
    """Returns whether what two types of columns are both brought to holds the value of the first."""
    if pa.types.is_integer(kind) and pa.types.is_floating(other):
        return abs(int(value)) <= BIG
    return kind != pa.uint64() or other == pa.uint64() or int(value) < 2**63


@pytest.mark.parametrize("symbol", sorted(OPERATORS))
def test_columns_are_refused_that_no_type_holds_both_of(symbol: str) -> None:
    for left, right in product(KINDS["number"], repeat=2):
        (left_type, some), (right_type, _) = TYPES[left], TYPES[right]
        for value in some:
            if is_held(value, left_type, right_type):
                continue
            table = pa.table({"a": to_array([0, value], left_type), "b": to_array([0, None], right_type)})
            for text in (f"a {symbol} b", f"b {symbol} a"):
                with pytest.raises(DataError, match=f"(?s)cannot be compared with column .*{value}.*cure"):
                    parse_where(text, "web").mask(table)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_comparison_with_a_constant_is_what_plain_python_says(kind: str) -> None:
    symbols = ["==", "!="] if kind == "truth" else sorted(OPERATORS)
    for name, constant in product(KINDS[kind], CONSTANTS[kind]):
        column_type, some = TYPES[name]
        values = [*some, None]
        table = pa.table({"a": to_array(values, column_type)})
        for symbol in symbols:
            found = parse_where(f"a {symbol} {constant!r}", "web").mask(table).tolist()
            expected = [compared(symbol, value, constant) is True for value in values]
            assert found == expected, (name, symbol, constant)
        for word, symbol in (("in", "=="), ("not in", "!=")):
            found = parse_where(f"a {word} [{constant!r}]", "web").mask(table).tolist()
            expected = [compared(symbol, value, constant) is True for value in values]
            assert found == expected, (name, word, constant)


@given(rows(), conditions(), st.lists(st.integers(0, 12), max_size=4))
def test_chunks_of_a_table_change_nothing(rows: list[dict[str, Any]], case: Case, cuts: list[int]) -> None:
    where, table = parse_where(case[0], "web"), to_table(rows)
    places = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    parts = [table.slice(a, b - a) for a, b in pairwise(places)]
    chunked = pa.concat_tables([table.slice(0, 0), *parts])
    assert where.mask(chunked).tolist() == where.mask(table).tolist()


@given(rows(), conditions())
def test_an_expression_says_what_the_mask_does(rows: list[dict[str, Any]], case: Case) -> None:
    where, table = parse_where(case[0], "web"), to_table(rows)
    columns = {"kept": expression(where, table.schema)}  # a filter of pyarrow knows no string views
    kept = ds.dataset(table).scanner(columns=columns, use_threads=False).to_table()["kept"]
    assert kept.fill_null(False).to_pylist() == where.mask(table).tolist()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("score > 3", [4]),
        ("not (score > 3)", [1, 3]),
        ("score > 3 or score <= 3", [1, 3, 4]),
        ("score is None", [0, 2]),
        ("score > 3 or lang == 'en'", [0, 4]),
        ("score != 3", [1, 4]),
        ("lang in ('en', 'de')", [0, 3]),
        ("score == 3 or\n  # the best of all\n  score == 5", [3, 4]),
        ('col("score") > 3', [4]),
        ('col("odd name") >= 3', [3, 4]),
        ("meta.size > 30", [4]),
        ('col("meta", "size") > 30', [4]),
        ('col("meta.size") < 3', [0, 1, 2]),
        ("meta.col == 7", [0]),
    ],
)
def test_a_condition_keeps(text: str, kept: list[int]) -> None:
    table = pa.table(
        {
            "score": [None, 1, None, 3, 5],
            "lang": ["en", "fr", None, "de", "fr"],
            "odd name": range(5),
            "meta": [{"size": 10 * i, "col": 7 - i} for i in range(5)],
            "meta.size": range(5),
        }
    )
    assert np.flatnonzero(parse_where(text, "web").mask(table)).tolist() == kept


def test_nan_is_unequal_and_nothing_else() -> None:
    table = pa.table({"score": [float("nan"), 3.0]})
    for symbol in ("<", "<=", ">", ">=", "=="):
        assert not parse_where(f"score {symbol} 3.5", "web").mask(table)[0]
    assert parse_where("score != 3", "web").mask(table).tolist() == [True, False]
    assert parse_where("score is None", "web").mask(table).tolist() == [False, False]


@pytest.mark.parametrize(
    ("kind", "values", "constant", "kept"),
    [
        (pa.date32(), [0, 1, None], '"1970-01-02"', [1]),
        (pa.date64(), [0, 86_400_000, None], '"1970-01-02"', [1]),
        (pa.timestamp("s"), [0, 60, 61], '"1970-01-01T00:01:00"', [1, 2]),
        (pa.timestamp("us", "UTC"), [0, 10**6, 10**6 - 1], '"1970-01-01T01:00:01+01:00"', [1]),
        (pa.timestamp("ms", "Europe/Berlin"), [0, 1, None], '"1970-01-01T00:00:00.001Z"', [1]),
    ],
)
def test_times_are_compared_with_iso_texts(
    kind: Any, values: list[Any], constant: str, kept: list[int]
) -> None:
    table = pa.table({"at": pa.array(values, pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)})
    assert np.flatnonzero(parse_where(f"at >= {constant}", "web").mask(table)).tolist() == kept
    assert parse_where(f"at in [{constant}]", "web").mask(table)[1]
    assert parse_where("at == at", "web").mask(table)[0]


def test_columns_are_the_top_ones_once() -> None:
    where = parse_where('b > 1 and (meta.a in [1] or not c) and meta.z is None and col("a b") < b', "web")
    assert where.columns == ("b", "meta", "c", "a b")


def test_the_text_is_kept_as_written_but_for_outer_spaces() -> None:
    assert parse_where("  score>3 ", "web").text == "score>3"
    assert parse_where("score > 3", "web") == parse_where("score > 3\n", "web")
    assert parse_where("score > 3", "web") != parse_where("score>3", "web")


def test_many_alternatives_are_not_nested() -> None:
    where = parse_where(" or ".join(f"n == {i}" for i in range(0, 600, 2)), "web")
    table = pa.table({"n": range(10)})
    assert where.mask(table).tolist() == [True, False] * 5
    assert ds.dataset(table).count_rows(filter=expression(where, table.schema)) == 5


# Refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "character 1: invalid syntax"),
        ("score = 3", "character 7: invalid syntax"),
        ("score > 3 AND lang == 'en'", "character 11: invalid syntax"),
        ("class > 3", 'col\\("odd name"\\) is a column of any name'),
        ("score == None", "character 10: None stands only in `is None`"),
        ("score is True", "character 1: `is` asks for None"),
        ("None is score", "character 1: None stands only"),
        ("3 is None", "character 1: left of `in` and `is` stands a column"),
        ("3 > 2", "character 1: a comparison has a column"),
        ("score > 3 and True", "character 15: a condition has a column, got 'True'"),
        ("score + 1 > 3", "character 1: .* without arithmetic.*, got 'score \\+ 1'; compute the value"),
        ("-score > 3", "character 1: .* without arithmetic"),
        ("score > +3", "character 9: .* without arithmetic"),
        ("(score > 3) & p", "character 1: .* conditions joined by `and`, `or` and `not`"),
        ("~p", "character 1: .* conditions joined by `and`"),
        ("(a > 1) == p", "character 2: what is compared is a column, a number, a text.*got 'a > 1'"),
        ("len(lang) > 3", "character 1: the only call is col"),
        ("col(lang) > 3", "character 1: the only call is col"),
        ("col('') > 3", "character 1: the only call is col"),
        ("col('a', x=1) > 3", "character 1: the only call is col"),
        ("lang.lower() == 'en'", "character 1: the only call is col"),
        ("'en'.lang == 'en'", "character 1: before a dot stands a column"),
        ("lang in []", "character 9: right of `in` stands a list"),
        ("lang in langs", "character 9: right of `in` stands a list"),
        ("lang in {'en'}", "character 9: right of `in` stands a list"),
        ("lang in ['en', 3]", "character 9: right of `in` stands a list of numbers, of texts or of truth"),
        ("lang in ['en', name]", "character 9: right of `in` stands a list"),
        ("lang in ['en', None]", "character 16: None stands only"),
        ("p in [1, True]", "character 6: right of `in` stands a list"),
        ("'e' in lang", "character 1: left of `in` and `is` stands a column"),
        ("lang == b'en'", "character 9: what is compared is"),
        ("lang == f'en'", "character 9: what is compared is"),
        ("lang == '\\ud800'", "character 9: a text is one that UTF-8 can hold"),
        ("lang == '\\d'", "character 9: invalid escape sequence"),
        ("score > 3j", "character 9: what is compared is"),
        ("(score := 3)", "character 2: what is compared is"),
        ("scores[0] > 3", "character 1: what is compared is"),
        ("a, b", "character 1: what is compared is"),
        ("a if b else c", "character 1: what is compared is"),
        ("a\n) or (b", "one expression"),
        ("a > 1 and\n  b + 1 > 2", "line 2, character 3: .* without arithmetic"),
        ("'\u00e9' == a and b + 1 > 2", "character 14: .* without arithmetic"),
        ("not " * 51 + "a", "character 205: conditions are nested at most 50 deep"),
        ("not " * 9000 + "a", "character 1: it is nested too deeply"),
        ("a\x00", "null bytes|no text"),
    ],
)
def test_what_is_no_condition_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_where(text, "web")
    assert str(caught.value).startswith("dataset 'web': `where`, ")
    assert "\n" not in str(caught.value)


SCHEMA = {
    "score": pa.array([1], pa.int64()),
    "lang": pa.array(["en"]),
    "good": pa.array([True]),
    "tags": pa.array([["a"]]),
    "meta": pa.array([{"lang": "en"}]),
    "price": pa.array([Decimal(1)], pa.decimal128(20, 2)),
    "day": pa.array([1], pa.int32()).cast(pa.date32()),
    "at": pa.array([1], pa.timestamp("s", "UTC")),
    "then": pa.array([1], pa.timestamp("ms", "UTC")),
}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("score == 'x'", "column 'score' cannot be compared with the text 'x' by ==.*the type int64"),
        ("lang > 3", "column 'lang' cannot be compared with the number 3 by >.*the type string"),
        ("lang in [1, 2]", "column 'lang' cannot be compared with the number 1 by ==.*the type string"),
        ("score == True", "column 'score' .* the truth value True"),
        ("score", "column 'score' .*the type int64.*a column alone is of booleans"),
        ("lang == True or meta.lang in [True]", "column 'lang' .*the truth value True"),
        ("good > False", "column 'good' .*by >.*the type bool"),
        ("good == 1", "column 'good' .*the number 1"),
        ("lang == score", "column 'lang' .* with column 'score' .*type string and the type int64"),
        ("tags == 'a'", "column 'tags' cannot be compared.*the type list"),
        ("lang == tags", "column 'lang' cannot be compared with column 'tags'.*string and the type list"),
        ("tags", "column 'tags' cannot be compared.*the type list"),
        ("meta == 'a'", "column 'meta' cannot be compared.*the type struct"),
        ("price > 3", "column 'price' cannot be compared.*the type decimal128"),
        ("scroe > 3", "column 'scroe' is not there.*the columns score, .*did you mean 'score'"),
        ("lang == en", "column 'en' is not there.*a text takes quotes"),
        (
            "meta.land == 'en'",
            "column 'meta.land' is not there.*the fields of meta lang.*did you mean 'lang'",
        ),
        ("score.x > 3", "column 'score.x' is not there.*the fields of score: none, its type is int64"),
        ("scroe is None", "column 'scroe' is not there"),
        ("day > '1970-01-01T10:00'", "column 'day' cannot be compared with the text.*date32.*\"2024-01-31\""),
        ("day > 3", "column 'day' cannot be compared with the number 3"),
        ("at > '1970-01-01'", "column 'at' cannot be compared.*tz=UTC.*\"2024-01-31T12:00:00Z\""),
        ("at > '1970-01-01T00:00:00.5Z'", "column 'at' cannot be compared.*ISO texts of their unit"),
        ("at > then", "column 'at' cannot be compared with column 'then'"),
        ("day == lang", "column 'day' cannot be compared with column 'lang'"),
        ("twice > 3", "'twice' is there twice"),
    ],
)
def test_columns_that_do_not_fit_are_refused(text: str, message: str) -> None:
    table = pa.table(SCHEMA)
    table = table.append_column("twice", table["score"]).append_column("twice", table["score"])
    where = parse_where(text, "web")
    for evaluate in (lambda: where.mask(table), lambda: expression(where, table.schema)):
        with pytest.raises(DataError, match=f"(?s){message}") as caught:
            evaluate()
        first, *rest = str(caught.value).splitlines()
        assert first.startswith("dataset 'web': ")
        assert [line.split()[0] for line in rest] == ["in:", "got:", "rule:", "cure:"]


@pytest.mark.parametrize(
    ("text", "names"),
    [("score", ("score",)), (" meta.lang", ("meta", "lang")), ('col("a b").c', ("a b", "c"))],
)
def test_a_column_is_named_as_in_conditions(text: str, names: tuple[str, ...]) -> None:
    assert parse_column(text, "web", "by") == ColumnPath(names)


@pytest.mark.parametrize("text", ["a b", "a-b", "3", "'a'", "not a", "a is None"])
def test_what_names_no_column_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="dataset 'web': `by`, character"):
        parse_column(text, "web", "by")


def test_parsing_loads_no_part_of_pyarrow() -> None:
    check = (
        "import sys, zephon.dataset; before = set(sys.modules)\n"
        "zephon.dataset.Dataset.from_path('web', 'web', where='score > 3')\n"
        "new = set(sys.modules) - before\n"
        "assert not [m for m in new if m.startswith(('pyarrow', 'zephon'))], new\n"
        "assert 'pyarrow.dataset' not in sys.modules\n"
        "assert 'zephon.where_arrow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
