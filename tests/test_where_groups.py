"""Row groups that a condition passes over hold no match, whatever their statistics say or leave out."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_where import Case, conditions, rows, to_table
from zephon.errors import DataError
from zephon.where import parse_where
from zephon.where_arrow import row_groups

LONG = [f"{'a' * 70}{i}" for i in range(4)]


def written(table: Any, group_size: int = 2, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=group_size, **options)
    return sink.getvalue()


def found_and_needed(text: str, file: bytes) -> tuple[list[int], list[int]]:
    """Returns the row groups that are not passed over, and those that hold a match."""
    where, source = parse_where(text, "web"), pq.ParquetFile(io.BytesIO(file))
    needed = [
        group for group in range(source.num_row_groups) if where.mask(source.read_row_group(group)).any()
    ]
    return row_groups(where, file, source.schema_arrow), needed


@given(rows(), conditions(), st.integers(1, 4), st.sampled_from([True, False, ["i", "s", "m.k"]]))
def test_no_group_with_a_match_is_passed_over(
    rows: list[dict[str, Any]], case: Case, group_size: int, statistics: bool | list[str]
) -> None:
    table = to_table(rows)
    if int(pa.__version__.split(".")[0]) < 21:  # the first that writes views
        table = table.set_column(table.column_names.index("v"), "v", table["v"].cast(pa.string()))
    file = written(table, group_size, write_statistics=statistics)
    found, needed = found_and_needed(case[0], file)
    assert set(needed) <= set(found), case[0]


SCORES = pa.table(
    {
        "score": [0, 1, 2, 3, None, None, 4, None, 5, 5],
        "level": [0.0, 1.0, float("nan"), 1.0, float("nan"), float("nan"), None, 2.0, 3.0, 3.0],
        "lang": ["a", "b", "b", "c", None, None, "d", None, "e", "e"],
        "good": [True, True, False, False, None, None, True, None, True, False],
        "at": pa.array([0, 1, 2, 3, None, None, 4, None, 5, 5], pa.timestamp("s", "UTC")),
        "day": pa.array([0, 1, 2, 3, None, None, 4, None, 5, 5], pa.date32()),
        "meta": [{"size": i} for i in [0, 1, 2, 3, None, None, 4, None, 5, 5]],
        "big": pa.array([2**64 - 1, 2**63, 2**63 - 1, 0, None, None, 1, None, 5, 5], pa.uint64()),
        "tags": [["a"], [], None, ["b"], None, None, [], [], None, ["c"]],
    }
)
"""Five row groups of two records; the third has nulls alone."""


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("score >= 2", [1, 3, 4]),
        ("score < 0", []),
        ("score == 4", [3]),
        ("score > 2.5 and score < 3.5", [1]),
        ("score in [1, 4]", [0, 3]),
        ("score in [1, 4] and lang in ['d', 'e']", [3]),
        ("score is None", [2, 3]),
        ("score is not None", [0, 1, 3, 4]),
        ("score is None or score > 4", [2, 3, 4]),
        ("score is None and score > 4", []),
        ("meta.size > 3", [3, 4]),
        ("lang == 'c'", [1]),
        ("lang < 'b'", [0]),
        ("good", [0, 3, 4]),
        ("good == False", [1, 4]),
        ("at >= '1970-01-01T00:00:04Z'", [3, 4]),
        ("day < '1970-01-02'", [0]),
        ("big > 9223372036854775807", [0]),
        ("level > 2", [2, 4]),
        ("score > 4 and (lang != 'x' or not good)", [4]),
    ],
)
def test_groups_that_cannot_match_are_passed_over(text: str, groups: list[int]) -> None:
    found, needed = found_and_needed(text, written(SCORES))
    assert found == groups
    assert set(needed) <= set(found)


@pytest.mark.parametrize(
    "text",
    [
        "score != 100",
        "not (score < 5)",
        "score not in [5]",
        "score == score",
        "level != 3",
        "not (level == 3)",
        "not (level < 3 and score < 5)",
        "level > 5 or not (level <= 5)",
        "level != level",
        "score < level",
        "tags is None",
    ],
)
def test_what_statistics_do_not_decide_keeps_every_group(text: str) -> None:
    found, _ = found_and_needed(text, written(SCORES))
    assert found == [0, 1, 2, 3, 4]


def test_without_statistics_every_group_is_kept() -> None:
    file = written(SCORES, write_statistics=False)
    assert found_and_needed("score > 100", file)[0] == [0, 1, 2, 3, 4]


TIMES = [0, 1, 86_399, 86_400, 86_401, 2 * 86_400, None, 3 * 86_400]


@pytest.mark.parametrize(
    ("kind", "literals"),
    [
        (pa.date32(), ["1970-01-01", "1970-01-02", "1969-12-31"]),
        (pa.date64(), ["1970-01-01", "1970-01-02", "1969-12-31"]),
        *[
            (kind, ["1970-01-01T00:00:00Z", "1970-01-02T01:00:01+01:00", "1970-01-02"][: 2 if kind.tz else 3])
            for kind in (pa.timestamp("s", "UTC"), pa.timestamp("us", "Europe/Berlin"))
        ],
        *[(pa.timestamp(unit), ["1970-01-01", "1970-01-02T00:00:01"]) for unit in ("s", "ms", "us", "ns")],
    ],
)
def test_no_group_with_a_matching_time_is_passed_over(kind: Any, literals: list[str]) -> None:
    table = pa.table(
        {"at": pa.array(TIMES, pa.timestamp("s", getattr(kind, "tz", None))).cast(kind, safe=False)}
    )
    file, passed = written(table), 0
    for literal in literals:
        for symbol in ("<", "<=", ">", ">=", "==", "!="):
            found, needed = found_and_needed(f"at {symbol} {literal!r}", file)
            assert set(needed) <= set(found), (literal, symbol)
            passed += 4 - len(found)
    assert passed


def test_a_file_without_records_is_taken() -> None:
    assert found_and_needed("score > 3", written(SCORES.slice(0, 0)))[1] == []


def with_maximum(file: bytes, old: bytes, new: bytes) -> bytes:
    """Returns the file with another maximum of a text column in its footer."""
    size = int.from_bytes(file[-8:-4], "little")
    body, footer = file[: -8 - size], file[-8 - size : -8]
    assert max(len(old), len(new)) < 128  # so that the length before it is one byte
    changed = footer.replace(bytes([len(old)]) + old, bytes([len(new)]) + new)
    assert changed != footer
    return body + changed + len(changed).to_bytes(4, "little") + b"PAR1"


@pytest.mark.parametrize("length", [16, 40, 64])
def test_a_maximum_that_is_cut_short_loses_nothing(length: int) -> None:
    file = written(pa.table({"name": LONG}), group_size=4)
    cut = with_maximum(file, LONG[3].encode(), LONG[3][:length].encode())
    statistics = pq.read_metadata(io.BytesIO(cut)).row_group(0).column(0).statistics
    assert statistics.max == LONG[3][:length]
    for text in (f"name == {LONG[3]!r}", f"name > {LONG[2]!r}", f"name != {LONG[0]!r}"):
        assert found_and_needed(text, cut) == ([0], [0])
    assert found_and_needed(f"name in [{LONG[3]!r}]", cut) == ([0], [0])
    assert found_and_needed("name > 'b'", cut) == ([], [])


def test_a_letter_of_several_bytes_is_not_cut_in_two() -> None:
    name = "a" * 14 + "\u00e9" * 9
    file = with_maximum(written(pa.table({"name": [name]})), name.encode(), name.encode()[:16])
    for text in (f"name == {name!r}", f"name >= {name!r}"):
        assert found_and_needed(text, file) == ([0], [0])


def test_a_binary_maximum_that_is_cut_short_loses_nothing() -> None:
    start = b"a" * 16
    file = with_maximum(written(pa.table({"name": [start + b"\xff\xff"]})), start + b"\xff\xff", start)
    for text in (f"name > '{'a' * 17}'", f"name > '{'a' * 16}\u00e9'"):
        assert found_and_needed(text, file) == ([0], [0])


def test_two_leaves_of_one_path_are_not_told_apart() -> None:
    table = pa.table({"meta.size": [9, 9], "meta": [{"size": 1}, {"size": 2}]})
    for text, mask in (("meta.size > 5", False), ('col("meta.size") > 5', True)):
        found, needed = found_and_needed(text, written(table))
        assert bool(needed) == mask
        assert set(needed) <= set(found)


def test_a_nan_among_the_statistics_is_no_bound() -> None:
    file = written(pa.table({"level": [1.0, 7.0]}))
    old, new = np.float64(7.0).tobytes(), np.float64("nan").tobytes()
    size = int.from_bytes(file[-8:-4], "little") + 8
    file = file[:-size] + file[-size:].replace(old, new)
    statistics = pq.read_metadata(io.BytesIO(file)).row_group(0).column(0).statistics
    assert not statistics.has_min_max or np.isnan(statistics.max)
    assert found_and_needed("level > 6", file) == ([0], [0])


@pytest.mark.parametrize("text", ["scroe > 3", "score > 'x'", "tags == 'a'"])
def test_a_column_that_does_not_fit_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="dataset 'web': column"):
        found_and_needed(text, written(SCORES))
    with pytest.raises(DataError, match="dataset 'web': column"):
        row_groups(parse_where(text, "web"), written(SCORES), SCORES.schema)
