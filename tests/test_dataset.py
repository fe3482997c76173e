"""Datasets as they are described: conditions are parsed at once, and a partition has each record once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import make_recipe
from zephon.dataset import Dataset, HeldOut
from zephon.recipe import Recipe
from zephon.where import parse_where


def web(**fields: Any) -> Dataset:
    return Dataset.from_path("web", "data/*.parquet", **fields)


def described(parts: tuple[Dataset, ...]) -> dict[str, str]:
    return {part.name: part.where for part in parts}


# Conditions -------------------------------------------------------------------------------------------------


def test_a_condition_is_parsed_when_it_is_given() -> None:
    assert web(where=" score > 3\n").where == "score > 3"
    assert web(where="  ").where == ""
    with pytest.raises(ValueError, match="dataset 'web': `where`, character 7: "):
        web(where="score = 3")
    with pytest.raises(ValueError, match="dataset 'web': `where`, character 1: "):
        replace(web(), where="score + 1 > 3")


# Partitions -------------------------------------------------------------------------------------------------


def test_the_parts_are_named_after_their_edges() -> None:
    assert described(web().partition(by="score", edges=[2, 3, 4], nulls=True)) == {
        "web_lt2": "score < 2",
        "web_2to3": "2 <= score < 3",
        "web_3to4": "3 <= score < 4",
        "web_ge4": "score >= 4",
        "web_null": "score is None or score != score",
    }


@pytest.mark.parametrize(
    ("edges", "names"),
    [
        ([-1, 0.5], ["web_ltm1", "web_m1to0p5", "web_ge0p5"]),
        ([1e-7], ["web_lt1em07", "web_ge1em07"]),
        ([1e22], ["web_lt1e22", "web_ge1e22"]),
        (["2024-01-01"], ["web_lt2024-01-01", "web_ge2024-01-01"]),
        (["de", "en us"], ["web_ltde", "web_detoen_us", "web_geen_us"]),
        (np.array([0.25, 0.5]), ["web_lt0p25", "web_0p25to0p5", "web_ge0p5"]),
        (np.array([1, 2]), ["web_lt1", "web_1to2", "web_ge2"]),
    ],
)
def test_names_need_no_quotes_in_toml(edges: Any, names: list[str]) -> None:
    assert [part.name for part in web().partition(by="score", edges=edges)] == names


def test_the_condition_of_the_dataset_holds_in_each_part() -> None:
    plain = web(where="a or b", order="identity", max_epochs=2)
    first, last = plain.partition(by='col("odd name")', edges=['x"y'], names=["low", "high"])
    assert first == replace(plain, name="low", where='(a or b) and (col("odd name") < "x\\"y")')
    assert last == replace(plain, name="high", where='(a or b) and (col("odd name") >= "x\\"y")')
    assert web(where="a  # all").partition(by="meta.score", edges=[1])[0].where == (
        "(a  # all\n) and (meta.score < 1)"
    )


def test_a_part_may_be_cut_again() -> None:
    part = web().partition(by="score", edges=[2])[0].partition(by="col('class')", edges=["m"])[1]
    assert (part.name, part.where) == ("web_lt2_gem", '(score < 2) and (col("class") >= "m")')


NUMBERS = (
    st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3) | st.floats(allow_nan=False, allow_infinity=False)
)


@given(
    st.lists(st.none() | st.floats(width=64) | st.integers(-3, 3).map(float), max_size=20),
    st.lists(NUMBERS, min_size=1, max_size=4),
)
def test_each_record_is_in_exactly_one_part(values: list[float | None], edges: list[float]) -> None:
    ascending = [edge for i, edge in enumerate(sorted(edges)) if i == 0 or edge > sorted(edges)[i - 1]]
    names = [str(i) for i in range(len(ascending) + 2)]
    parts = web().partition(by="score", edges=ascending, nulls=True, names=names)
    table = pa.table({"score": pa.array(values, pa.float64())})
    masks = [parse_where(part.where, part.name).mask(table) for part in parts]
    assert np.sum(masks, axis=0).tolist() == [1] * len(values)
    for value, part in zip(values, np.argmax(masks, axis=0).tolist(), strict=True):
        if value is None or value != value:
            assert part == len(ascending) + 1
        else:
            assert part == sum(edge <= value for edge in ascending)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"limit": 5}, "partition does not go with `limit`: it counts what `where` leaves"),
        ({"stream": True}, "partition does not go with `stream`: leave out `stream`"),
        ({"held_out": HeldOut(documents=5)}, "partition does not go with `holdout`: partition first"),
    ],
)
def test_fields_that_a_part_could_not_have_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"dataset 'web': {message}"):
        replace(web(), **fields).partition(by="score", edges=[2])


def test_texts_in_memory_are_not_cut() -> None:
    with pytest.raises(ValueError, match="does not go with `documents`: texts in memory have no columns"):
        Dataset.from_documents("web", ["a"]).partition(by="score", edges=[2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"edges": []}, "`edges` must be a list of numbers or of texts, at least one"),
        ({"edges": [2, 2]}, "`edges` must ascend strictly, got 2 after 2"),
        ({"edges": [3, 2]}, "`edges` must ascend strictly, got 2 after 3"),
        ({"edges": [1, "a"]}, "`edges` must be all numbers or all texts"),
        ({"edges": [float("inf")]}, "an edge must be finite, got inf"),
        ({"edges": [float("nan")]}, "an edge must be finite, got nan"),
        ({"edges": [True]}, "an edge must be a number or a text, got True"),
        ({"edges": [None]}, "an edge must be a number or a text, got None"),
        ({"edges": "abc"}, "`edges` must be a list"),
        ({"edges": 2}, "`edges` must be a list"),
        ({"edges": ["a!", "a.", "a_"]}, "two parts would be called 'web_a_toa_'; give 4 `names`"),
        (
            {"edges": [2], "names": ["a"]},
            "`names` must be a list of 2 different texts, for web_lt2, web_ge2, got",
        ),
        ({"edges": [2], "names": ["a", "a"]}, "`names` must be a list of 2 different texts"),
        ({"edges": [2], "names": ["a", 3]}, "`names` must be a list of 2 different texts"),
        ({"edges": [2], "names": "ab"}, "`names` must be a list of 2 different texts, .*, got 'ab'"),
        ({"edges": [2], "names": ["a", " b"]}, "without outer spaces, got ' b'"),
        ({"edges": [2], "nulls": 1}, "`nulls` be true or false, got 'score' and 1"),
        ({"edges": [2], "by": "quality score"}, "`by`, character 9: invalid syntax"),
        ({"edges": [2], "by": "a-b"}, '`by`, character 1: .*col\\("odd name"\\)'),
        ({"edges": [2], "by": 3}, "`by` must name a column .*, got 3 and False"),
        ({"edges": ["\ud800"]}, "an edge must be a text that UTF-8 can hold"),
    ],
)
def test_arguments_that_make_no_parts_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        web().partition(**{"by": "score", **arguments})


# In TOML ----------------------------------------------------------------------------------------------------

RECIPE = """
global_batch_size = 4

[tokenize]
tokenizer = "letters"

[packing]
seq_len = 16

[schedule]
kind = "constant"
weights = { web_lt2 = 1, web_2to3 = 2, web_ge3 = 3, web_null = 0 }

[[datasets]]
name = "web"
path = "data/*.parquet"
where = 'lang == "en"'
partition = { by = "score", edges = [2, 3], nulls = true }
"""


def read_from(folder: Path, text: str) -> Recipe:
    path = folder / "recipe.toml"
    path.write_text(text)
    return Recipe.from_toml(path)


def test_toml_says_what_python_says(tmp_path: Path) -> None:
    recipe = read_from(tmp_path, RECIPE)
    whole = web(where='lang == "en"')
    assert recipe.datasets == whole.partition(by="score", edges=[2, 3], nulls=True)
    again = read_from(tmp_path, recipe.to_toml())
    assert again.datasets == recipe.datasets
    assert again.fingerprint() == recipe.fingerprint()
    assert "partition" not in recipe.to_toml()


def test_each_part_holds_out_its_own(tmp_path: Path) -> None:
    recipe = read_from(tmp_path, RECIPE + "holdout = { documents = 5 }\n")
    parts = web(where='lang == "en"').partition(by="score", edges=[2, 3], nulls=True)
    assert recipe.datasets == tuple(part.holdout(documents=5)[0] for part in parts)
    assert read_from(tmp_path, recipe.to_toml()).fingerprint() == recipe.fingerprint()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("edges =", "edgs =", "dataset 'web', partition: unknown field 'edgs'; did you mean 'edges'"),
        ('by = "score", ', "", "dataset 'web': `partition` must have `by`, a column, and `edges`"),
        ("[2, 3]", "[3, 2]", "dataset 'web': partition: `edges` must ascend strictly"),
        ('{ by = "score", edges = [2, 3], nulls = true }', "3", "`partition` must be a table"),
    ],
)
def test_toml_is_as_strict(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_from(tmp_path, RECIPE.replace(old, new))


def test_the_spelling_of_a_condition_is_in_the_fingerprint() -> None:
    texts = ["score > 3", " score > 3 ", "score>3"]
    recipes = [make_recipe(datasets=(web(where=text),)) for text in texts]
    assert recipes[0].fingerprint() == recipes[1].fingerprint() != recipes[2].fingerprint()


@pytest.mark.parametrize(
    "path",
    [
        "https://ann:pa55word@example.org/a.jsonl",
        "https://example.org/a.jsonl?X-Amz-Signature=0123abcd&x=1",
        "https://example.org/a.jsonl?sig=pa55word",
        "s3://key:pa55word@bucket/a.jsonl",
        "az://container/a.jsonl?sv=1&sig=pa55word",
    ],
)
def test_a_secret_in_a_path_is_refused_and_not_shown(path: str) -> None:
    with pytest.raises(ValueError, match=r"'web': `path` must not spell out a secret") as caught:
        Dataset.from_path("web", path)
    assert "pa55word" not in str(caught.value)
    assert "0123abcd" not in str(caught.value)


@pytest.mark.parametrize(
    "path",
    [
        "https://${USER_AND_PASSWORD}@example.org/a.jsonl",
        "https://example.org/a.jsonl?X-Amz-Signature=${SIGNATURE}",
        "abfs://container@account.dfs.core.windows.net/a.jsonl",
        "https://example.org/a.jsonl?revision=main",
        "data/sig=1/a.jsonl",
        "s3://bucket/token=web/a.jsonl",
        "s3://bucket/lang_token=en/b?/*.parquet",
    ],
)
def test_other_paths_are_taken(path: str) -> None:
    assert Dataset.from_path("web", path).paths == (path,)
