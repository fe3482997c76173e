"""TOML says what the Python form says, as strictly, and reads back to the same recipe."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import digests, make_recipe, open_small, write_tokenizer
from zephon.dataset import Dataset, HeldOut
from zephon.errors import CheckError
from zephon.opened import open_recipe
from zephon.packing import Packing
from zephon.recipe import Recipe
from zephon.stages import Constant, Stages
from zephon.tokenizer import Tokenize
from zephon.toml import parse_setting, read_recipe, recipe_from_table, write_recipe

pytestmark = pytest.mark.usefixtures("probed_once")

PLAIN = """
seed = 42
global_batch_size = 4

[tokenize]
tokenizer = "letters"
eos = "</s>"

[packing]
seq_len = 16

[schedule]
kind = "constant"
weights = { web = 2, code = 1 }

[[datasets]]
name = "web"
path = "data/web.jsonl"

[[datasets]]
name = "code"
path = ["data/a.jsonl", "data/b/**/*.jsonl"]
text = "content"
on_error = "skip"
max_bad = 5
"""


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(PLAIN)
    return path


def edited(old: str, new: str) -> dict[str, Any]:
    assert old in PLAIN
    return tomllib.loads(PLAIN.replace(old, new, 1))


# Reading ----------------------------------------------------------------------------------------------------


def test_a_file_is_the_python_form(plain: Path) -> None:
    recipe = Recipe.from_toml(plain)
    assert recipe == Recipe(
        seed=42,
        global_batch_size=4,
        lanes=4,
        datasets=(
            Dataset.from_path("web", "data/web.jsonl"),
            Dataset.from_path(
                "code",
                ["data/a.jsonl", "data/b/**/*.jsonl"],
                text="content",
                on_error="skip",
                max_bad=5,
            ),
        ),
        schedule={"kind": "constant", "weights": {"web": 2, "code": 1}},
        tokenize=Tokenize(tokenizer="letters", eos="</s>"),
        packing=Packing(seq_len=16),
    )
    assert recipe.base == plain.parent
    assert Recipe.from_toml(str(plain)) == recipe


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seed =", "sed =", "the recipe: unknown field 'sed'; did you mean 'seed'?"),
        (
            "eos =",
            "xyz =",
            "\\[tokenize\\]: unknown field 'xyz'; known are tokenizer, bos, eos, parse_special",
        ),
        (
            "seq_len =",
            "seqlen =",
            r"\[packing\]: .* 'seqlen'; did you mean 'seq_len'\? known are kind, seq_len,",
        ),
        (
            "seq_len =",
            "knd = 'best_fit'\nseq_len =",
            r"\[packing\]: .* 'knd'; did you mean 'kind'\? known are",
        ),
        (
            "tokenizer =",
            "tokeniser =",
            r"\[tokenize\]: .* 'tokeniser'; did you mean 'tokenizer'\? known are tok",
        ),
        ("max_bad =", "max_bed =", "dataset 'code': unknown field 'max_bed'; did you mean 'max_bad'?"),
        ("global_batch_size = 4", "", "the recipe lacks `global_batch_size`"),
        ("[schedule]", "[work_source]", "the recipe lacks `schedule`"),
        ("[packing]", "[tokenize.x]", "the recipe lacks `packing`"),
        ('tokenizer = "letters"', "", "must have `tokenizer`"),
        ("seq_len = 16", "", "must have `seq_len`"),
        ('name = "web"', "", "dataset '\\?': lacks `name`"),
        ('path = "data/web.jsonl"', "", "dataset 'web': lacks `path`"),
        ('path = "data/web.jsonl"', "path = []", "must be a path or a non-empty list of paths, got \\[\\]"),
        ('path = "data/web.jsonl"', "path = 3", "`path` must be a path"),
        ('path = "data/web.jsonl"', 'path = ["a", 3]', "`path` must be a path"),
        ('path = "data/web.jsonl"', 'path = ""', "`path` must be a path"),
        ('on_error = "skip"', 'on_error = "ignore"', "`on_error` must be one of"),
        ("seq_len = 16", 'seq_len = "16"', "`seq_len` must be a whole number >= 1, got '16'"),
        ("seq_len = 16", "seq_len = 16\nkind = 3", "`kind` must"),
        ("seed = 42", "seed = 4.2", "`seed` must be a whole number >= 0, got 4.2"),
        ("seed = 42", "seed = true", "`seed` must be a whole number >= 0, got True"),
    ],
)
def test_wrong_files_are_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipe_from_table(edited(old, new), Path())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"datasets": {}}, "`datasets` must be a list of tables"),
        ({"datasets": [3]}, "`datasets` must be a list of tables"),
        ({"datasets": []}, "`datasets` must have at least one dataset"),
        ({"schedule": 3}, "`schedule` must be a table"),
        ({"tokenize": "letters"}, "`tokenize` must be a table"),
        ({"packing": [16]}, "`packing` must be a table"),
        ({"work_source": "mixture"}, "`work_source` must be a table"),
    ],
)
def test_tables_must_be_tables(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipe_from_table(edited("seed = 42", "seed = 42") | table, Path())


@pytest.mark.parametrize("weight", ["nan", "inf", "-1", "true", '"1"'])
def test_wrong_weights_of_a_file_are_refused_before_data_is_opened(weight: str) -> None:
    recipe = recipe_from_table(edited("web = 2", f"web = {weight}"), Path("/nowhere"))
    with pytest.raises(ValueError, match="the weight of 'web'"):
        open_recipe(recipe)


def test_a_missing_file_lists_what_is_there(plain: Path) -> None:
    with pytest.raises(CheckError, match=r"recipes in that folder: recipe\.toml"):
        Recipe.from_toml(plain.with_name("recip.toml"))
    with pytest.raises(CheckError, match="`zephon init DATA` writes a first one"):
        Recipe.from_toml(plain.parent / "none" / "recipe.toml")


@pytest.mark.parametrize("content", [b"seed = = 1", b"\xff\xfe", b"[a\n"])
def test_what_is_no_toml_is_refused_with_the_place(plain: Path, content: bytes) -> None:
    plain.write_bytes(content)
    with pytest.raises(CheckError, match=r"recipe '.*recipe\.toml' cannot be read"):
        Recipe.from_toml(plain)


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="cannot be read"):
        Recipe.from_toml(tmp_path)


def test_a_function_may_make_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toml_recipes.py").write_text(
        "from tests.helpers import make_recipe\n"
        "def make(): return make_recipe(seed=9)\n"
        "def wrong(): return 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert read_recipe(Path("toml_recipes:make"), {}).seed == 9
    with pytest.raises(TypeError, match=r"recipe 'toml_recipes:wrong' must return a zephon\.Recipe, got int"):
        read_recipe(Path("toml_recipes:wrong"), {})
    with pytest.raises(ValueError, match="--set works on TOML recipes"):
        read_recipe(Path("toml_recipes:make"), {"seed": 1})


# Settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed=3", ("seed", 3)),
        (" seed = 3 ", ("seed", 3)),
        ("a.b=x/y z", ("a.b", "x/y z")),
        ("a=", ("a", "")),
        ("a=b=c", ("a", "b=c")),
        ('a="3"', ("a", "3")),
        ("a=true", ("a", True)),
        ("a=[1, 2]", ("a", [1, 2])),
        ("a={ b = 1 }", ("a", {"b": 1})),
        ("a=1.5", ("a", 1.5)),
        ("a=/data/x", ("a", "/data/x")),
        ("a=s3://b/c", ("a", "s3://b/c")),
    ],
)
def test_a_setting_is_toml_where_it_can_be(text: str, expected: tuple[str, Any]) -> None:
    assert parse_setting(text) == expected


@pytest.mark.parametrize("text", ["", "seed", "=3", " =3"])
def test_a_setting_without_a_name_or_a_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--set takes NAME=VALUE"):
        parse_setting(text)


def test_settings_go_over_the_file(plain: Path) -> None:
    settings = {
        "seed": 7,
        "packing.seq_len": 8,
        "datasets.web.path": "elsewhere",
        "datasets.code.max_bad": 0,
        "schedule.weights.web": 9,
        "work_source.kind": "mixture",
    }
    recipe = Recipe.from_toml(plain, settings=settings)
    web, code = recipe.datasets
    assert (recipe.seed, recipe.packing.seq_len, web.paths, code.max_bad) == (7, 8, ("elsewhere",), 0)
    assert recipe.schedule["weights"]["web"] == 9  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sed", "unknown field 'sed'; did you mean 'seed'"),
        ("datasets.wbe.path", "no dataset is named 'wbe'"),
        ("datasets.web", "name a field of one dataset, as datasets.NAME.FIELD"),
        ("seed.x", "'seed' is a value, not a table"),
        ("datasets.web.pth", "unknown field 'pth'; did you mean 'path'"),
        ("tokenize.tokeniser", "unknown field 'tokeniser'; did you mean 'tokenizer'"),
    ],
)
def test_a_wrong_setting_is_refused(plain: Path, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe.from_toml(plain, settings={name: "x"})


# Writing ----------------------------------------------------------------------------------------------------

NAMES = st.text(min_size=1, max_size=8).filter(lambda s: s.strip() == s and s and s.isprintable())
ODD = ["a b", "a.b", 'a"b', "a\\b", "\u00e9", "-", "1", "true", "a=b", "#", "]"]


def file_recipe(**fields: Any) -> Recipe:
    datasets = (Dataset.from_path("web", "data/web.jsonl"), Dataset.from_path("code", ["a", "b"], text="t"))
    return make_recipe(**{"datasets": datasets} | fields)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"schedule": Stages({0: {"web": 1, "code": 0.25}, 500: {"web": 1e-9, "code": 1e20}})},
        {"schedule": {"kind": "alternate", "first": {"web": 1}, "second": {"code": 1}, "every": 4}},
        {"total_steps": 10, "flush_every": 8, "lanes": 2, "seed": 2**63},
        {
            "kind": "best_fit",
            "options": {"pool_documents": 3, "overlong": "drop"},
            "mask_document_ends": False,
        },
        {"bos": True, "eos": False},
        {"bos": '<|"begin\\|>', "eos": "\u00e9\n\t\x00\x7f"},
        {"work_source": {"kind": "bandit", "arms": [1, 2], "deep": {"x y": 1.5, "on": True}}},
    ],
)
def test_a_recipe_reads_back_the_same(fields: dict[str, Any], tmp_path: Path) -> None:
    recipe = file_recipe(**fields)
    path = tmp_path / "again.toml"
    path.write_text(recipe.to_toml(), encoding="utf-8")
    again = Recipe.from_toml(path)
    assert again.fingerprint() == recipe.fingerprint()
    assert again.datasets == recipe.datasets
    assert (again.tokenize, again.packing, again.total_steps) == (
        recipe.tokenize,
        recipe.packing,
        recipe.total_steps,
    )
    if not isinstance(recipe.schedule, dict):
        assert again.compile_schedule().hash() == recipe.compile_schedule().hash()
    else:
        assert again.schedule == recipe.schedule
    assert again.to_toml() == recipe.to_toml()


@given(st.lists(NAMES | st.sampled_from(ODD), min_size=1, max_size=4, unique=True), st.data())
def test_any_name_and_weight_reads_back(names: list[str], data: st.DataObject) -> None:
    weights = data.draw(
        st.lists(st.integers(0, 9) | st.floats(0, 1e9), min_size=len(names), max_size=len(names)).filter(any)
    )
    datasets = tuple(Dataset.from_path(name, name) for name in names)
    recipe = make_recipe(datasets=datasets, schedule=Constant(dict(zip(names, weights, strict=True))))
    again = recipe_from_table(tomllib.loads(write_recipe(recipe)), Path())
    assert again.datasets == datasets
    assert again.fingerprint() == recipe.fingerprint()
    assert again.compile_schedule().hash() == recipe.compile_schedule().hash()


def test_what_has_no_toml_form_is_refused() -> None:
    with pytest.raises(ValueError, match="dataset 'web' is in memory and has no TOML form"):
        make_recipe().to_toml()

    class Secret:
        def weights(self, step: int) -> dict[str, float]:
            return {"web": 1, "code": 1}

    with pytest.raises(ValueError, match="schedule Secret has no `to_config\\(\\)`"):
        file_recipe(schedule=Secret()).to_toml()


def test_none_has_no_toml_form() -> None:
    with pytest.raises(ValueError, match="None has no TOML form"):
        file_recipe(work_source={"kind": "x", "y": None}).to_toml()


def test_infinity_reads_back() -> None:
    text = file_recipe(work_source={"kind": "x", "y": math.inf, "z": -math.inf}).to_toml()
    assert tomllib.loads(text)["work_source"] == {"kind": "x", "y": math.inf, "z": -math.inf}


# From end to end --------------------------------------------------------------------------------------------


def test_a_file_s_run_is_the_python_form_s(tmp_path: Path) -> None:
    """The tokenizer.json of the 256 letters, files on disk and paths relative to the recipe."""
    texts = {"web": [f"web{i} " * (1 + i % 3) for i in range(20)], "code": [f"code{i}" for i in range(5)]}
    (tmp_path / "data").mkdir()
    for name, documents in texts.items():
        lines = [json.dumps({"text": text}) for text in documents]
        (tmp_path / "data" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    write_tokenizer(tmp_path / "letters")
    memory = make_recipe(texts, Constant({"web": 2, "code": 1}))
    path = tmp_path / "recipe.toml"
    described = replace(
        memory,
        datasets=tuple(Dataset.from_path(name, f"data/{name}.jsonl") for name in texts),
    )
    path.write_text(described.to_toml())
    opened = open_recipe(Recipe.from_toml(path), cache=tmp_path / "cache")
    assert digests(opened, 12) == digests(open_small(memory), 12)
    opened.close()


# Data that end, and held-out documents ----------------------------------------------------------------------


def test_ends_and_holdouts_read_back() -> None:
    web = Dataset.from_path("web", "data/web", order="identity", max_epochs=2)
    train, valid = web.holdout(documents=20, seed=3)
    for dataset in (web, train, valid, replace(web, max_epochs=None).holdout(documents=5)[0]):
        recipe = make_recipe(datasets=(dataset,), when_exhausted="redistribute")
        again = recipe_from_table(tomllib.loads(write_recipe(recipe)), Path())
        assert again.datasets == (dataset,)
        assert again.when_exhausted == "redistribute"
        assert again.fingerprint() == recipe.fingerprint()
    text = write_recipe(make_recipe(datasets=(train,)))
    assert "when_exhausted" not in text
    assert "holdout = { documents = 20, seed = 3 }" in text
    assert 'order = "identity"\nmax_epochs = 2' in text


def test_ends_and_holdouts_may_be_set(plain: Path) -> None:
    settings = {
        "datasets.web.max_epochs": 1,
        "datasets.web.holdout.documents": 3,
        "datasets.web.holdout.part": "valid",
        "when_exhausted": "pad",
    }
    recipe = read_recipe(plain, settings)
    assert (recipe.when_exhausted, recipe.datasets[0].max_epochs) == ("pad", 1)
    assert recipe.datasets[0].held_out == HeldOut(documents=3, part="valid")


@pytest.mark.parametrize(
    ("holdout", "message"),
    [
        ({"document": 3}, "dataset 'web', holdout: unknown field 'document'; did you mean 'documents'?"),
        ({"seed": 3}, "dataset 'web': `holdout` must say how many `documents`"),
        ({"documents": 0}, "holdout: `documents` must be a whole number >= 1, got 0"),
        ({"documents": 1, "seed": -1}, "holdout: `seed` must be a whole number >= 0, got -1"),
        ({"documents": 1, "part": "test"}, "holdout: `part` must be one of .*, got 'test'"),
        (3, "`holdout` must be a table"),
    ],
)
def test_a_wrong_holdout_is_refused(plain: Path, holdout: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_recipe(plain, {"datasets.web.holdout": holdout})
