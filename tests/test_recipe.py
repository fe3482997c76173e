"""A recipe is refused before any work where it is wrong; its fingerprint is over what decides the rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import make_recipe
from zephon import plugins
from zephon.dataset import Dataset
from zephon.opened import open_recipe
from zephon.packing import Packing, Wrap
from zephon.recipe import Recipe, diff_configuration
from zephon.schedule import ScheduleTable
from zephon.stages import Constant, Stages
from zephon.tokenizer import Tokenize

EVEN = {"web": 1, "code": 1}


def test_defaults() -> None:
    recipe = make_recipe(global_batch_size=6)
    assert (recipe.lanes, recipe.rows_per_step, recipe.tokens_per_step) == (6, 1, 96)
    assert recipe.names == ("web", "code")
    assert make_recipe(global_batch_size=6, lanes=2).rows_per_step == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seed": -1}, "`seed` must be a whole number >= 0, got -1"),
        ({"seed": 1.0}, "got 1.0"),
        ({"seed": True}, "got True"),
        ({"global_batch_size": 0}, "`global_batch_size` must be a whole number >= 1, got 0"),
        ({"lanes": -2}, "`lanes` must be a whole number >= 0, got -2"),
        ({"lanes": 3}, "got 3 lanes for 4 rows; nearest: 1, 2, 4 lanes"),
        ({"lanes": 8}, "got 8 lanes for 4 rows; nearest: 1, 2, 4 lanes"),
        ({"total_steps": 0}, "`total_steps` must be a whole number >= 1, got 0"),
        ({"flush_every": 0}, "`flush_every` must be a whole number >= 1, got 0"),
        ({"when_exhausted": "end"}, "`when_exhausted` must be one of .*, got 'end'"),
        ({"datasets": ()}, "`datasets` must have at least one dataset, got none"),
        (
            {"datasets": (Dataset.from_documents("a", ["x"]), Dataset.from_documents("a", ["y"]))},
            "must have different names, got 'a' twice",
        ),
    ],
)
def test_wrong_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_recipe(**{"schedule": Constant(EVEN)} | fields)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"web": 0, "code": 0}, "at least one weight must be > 0"),
        ({"web": -1, "code": 2}, "the weight of 'web' must be finite and >= 0, got -1"),
        ({"web": math.nan, "code": 1}, "got nan"),
        ({"web": math.inf, "code": 1}, "got inf"),
        ({"web": "1", "code": 1}, "must be a number, got '1'"),
        ({"web": True, "code": 1}, "must be a number, got True"),
        ({}, "weights must map every dataset to a number"),
        ({"web": 1}, "no weight for dataset 'code'; write code = 0"),
        ({"web": 1, "code": 1, "books": 1}, "no dataset is named 'books'"),
    ],
)
@pytest.mark.parametrize("kind", ["constant", "stages"])
def test_wrong_weights_are_refused_before_a_file_is_opened(
    weights: dict[str, Any], message: str, kind: str
) -> None:
    """The files and the tokenizer do not exist: whoever opened one would raise another error."""
    datasets = tuple(Dataset.from_path(name, f"nowhere/{name}.jsonl") for name in ("web", "code"))
    tables: dict[str, Any] = {"constant": {"weights": weights}, "stages": {"stages": []}}
    tables["stages"]["stages"] = [{"step": 0, "weights": EVEN}, {"step": 7, "weights": weights}]
    recipe = make_recipe(datasets=datasets, schedule={"kind": kind, **tables[kind]}, tokenizer="nowhere")
    with pytest.raises(ValueError, match=message):
        open_recipe(recipe)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schedule": {"kind": "constant", "weights": EVEN, "x": 1}}, "unknown field 'x'"),
        ({"schedule": {"weights": EVEN}}, "\\[schedule\\] must have a `kind`, got None"),
        ({"schedule": {"kind": 3, "weights": EVEN}}, "must have a `kind`, got 3"),
        ({"work_source": {}}, "\\[work_source\\] must have a `kind`"),
        ({"work_source": {"kind": "mixture", "x": 1}}, "work_source mixture: unknown field 'x'"),
        ({"packing": Packing(seq_len=8, options={"x": 1})}, "packing wrap: unknown field 'x'"),
    ],
)
def test_wrong_tables_are_refused_before_a_file_is_opened(change: dict[str, Any], message: str) -> None:
    datasets = tuple(Dataset.from_path(name, "nowhere") for name in ("web", "code"))
    with pytest.raises(ValueError, match=message):
        open_recipe(replace(make_recipe(datasets=datasets), **change))


def test_an_unknown_kind_lists_the_known() -> None:
    recipe = make_recipe(schedule={"kind": "stage", "stages": []})
    with pytest.raises(LookupError, match="no schedules named 'stage'; did you mean 'stages'"):
        recipe.build_schedule()


# What it builds ---------------------------------------------------------------------------------------------


def test_a_table_and_its_object_make_one_schedule() -> None:
    stages = Stages({0: EVEN, 5: {"web": 1, "code": 0}})
    of_object, of_table = make_recipe(schedule=stages), make_recipe(schedule=stages.to_config())
    assert of_table.build_schedule() == of_object.build_schedule() == stages
    assert of_table.compile_schedule() == of_object.compile_schedule()
    assert of_table.compile_schedule().starts == (0, 5)


def test_a_plugin_s_schedule_gets_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def factory(config: dict[str, Any], context: Any) -> Constant:
        seen.append((config, context.names, context.total_steps, context.tokens_per_step))
        return Constant(EVEN)

    def find(role: str, name: str) -> Callable[..., Any]:
        assert (role, name) == ("schedules", "tides")
        return factory

    monkeypatch.setattr(plugins, "find", find)
    recipe = make_recipe(schedule={"kind": "tides", "height": 3}, total_steps=9)
    assert isinstance(recipe.compile_schedule(), ScheduleTable)
    assert seen[0] == ({"height": 3}, ("web", "code"), 9, 64)
    assert recipe.schedule == {"kind": "tides", "height": 3}  # the table is left as it was


def test_packers_are_made_for_each_lane() -> None:
    made = make_recipe().build_packer_plan()
    assert isinstance(made.make(), Wrap)
    assert made.make() is not made.make()


# The fingerprint --------------------------------------------------------------------------------------------

BASE = make_recipe()
WEB, CODE = BASE.datasets
SAME: dict[str, Any] = {
    "the schedule": {"schedule": Stages({0: {"web": 9, "code": 1}, 3: EVEN})},
    "the length of the run": {"total_steps": 100},
    "where the tokenizer lies": {"tokenize": replace(BASE.tokenize, tokenizer="elsewhere")},
    "where the data lies": {"datasets": (replace(WEB, documents=None, paths=("x",)), CODE)},
    "the budget of bad records": {"datasets": (replace(WEB, max_bad=3), CODE)},
    "the folder of the recipe": {"base": Path("/elsewhere")},
    "lanes as they are by default": {"lanes": 4},
    "flushes, which a packer that carries does not need": {"flush_every": 8},
}
OTHER: dict[str, Any] = {
    "seed": {"seed": 43},
    "lanes": {"lanes": 2},
    "global_batch_size": {"global_batch_size": 8},
    "tokenize.bos": {"tokenize": replace(BASE.tokenize, bos=True)},
    "tokenize.eos": {"tokenize": replace(BASE.tokenize, eos=False)},
    "tokenize.parse_special": {"tokenize": replace(BASE.tokenize, parse_special=True)},
    "packing.seq_len": {"packing": replace(BASE.packing, seq_len=17)},
    "packing.kind": {"packing": replace(BASE.packing, kind="best_fit")},
    "packing.pad_id": {"packing": replace(BASE.packing, pad_id=1)},
    "packing.mask_document_ends": {"packing": replace(BASE.packing, mask_document_ends=False)},
    "datasets": {"datasets": (CODE, WEB)},
    "datasets.web.text": {"datasets": (replace(WEB, text="body"), CODE)},
    "datasets.web.on_error": {"datasets": (replace(WEB, on_error="skip"), CODE)},
    "work_source.kind": {"work_source": {"kind": "bandit"}},
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_what_decides_no_row_is_not_in_the_fingerprint(change: dict[str, Any]) -> None:
    assert replace(BASE, **change).fingerprint() == BASE.fingerprint()


@pytest.mark.parametrize("field", OTHER)
def test_what_decides_rows_is_in_the_fingerprint_by_its_name(field: str) -> None:
    other = replace(BASE, **OTHER[field])
    assert other.fingerprint() != BASE.fingerprint()
    names = {name for name, *_ in diff_configuration(BASE.configuration(), other.configuration())}
    assert field in names
    options = {"packing.pool_documents", "packing.pool_bytes", "packing.overlong"}
    assert names <= {field, "lanes"} | (options if field == "packing.kind" else set())


def test_the_options_of_a_packer_are_in_the_fingerprint_with_their_defaults() -> None:
    def best_fit(**options: int) -> str:
        packing = replace(BASE.packing, kind="best_fit", options=options)
        return replace(BASE, packing=packing).fingerprint()

    assert best_fit() == best_fit(pool_documents=64)
    assert best_fit() != best_fit(pool_documents=63)


def test_all_fingerprints_differ() -> None:
    assert len({replace(BASE, **change).fingerprint() for change in OTHER.values()}) == len(OTHER)


def test_the_fingerprint_is_golden() -> None:
    """Edit only when you mean that no state of a release before can be restored."""
    assert BASE.fingerprint() == "8bf8836e3c82ddc6a49db90c55d43f791860e52f8d2f718a180b2dd3ca2c8200"


def test_a_diff_names_fields_and_the_first_step() -> None:
    other = replace(BASE, seed=7, schedule=Stages({0: EVEN, 6: {"web": 3, "code": 1}}))
    assert BASE.diff(BASE) == []
    assert BASE.diff(other) == [
        ("seed", 42, 7),
        ("schedule from step 6", (524288, 524288), (786432, 262144)),
    ]


def test_a_recipe_is_a_value() -> None:
    assert make_recipe() == BASE
    assert replace(BASE, base=Path("/elsewhere")) == BASE
    with pytest.raises(AttributeError):
        BASE.seed = 3  # type: ignore[misc]
    assert isinstance(BASE, Recipe)
    assert Tokenize(tokenizer="letters", eos="</s>") == BASE.tokenize


# Data that end ----------------------------------------------------------------------------------------------


def test_a_repr_is_a_line_that_moves_no_terminal() -> None:
    recipe = make_recipe(
        {"web": ["a"], "code": ["b"]}, {"kind": "constant", "weights": {"web": 1, "code": 1}}
    )
    assert repr(recipe) == (
        "Recipe of 'web', 'code': 4 rows of 16 tokens a step, 4 lanes, schedule 'constant', seed 42"
    )
    many = make_recipe({f"d{i}\x1b[2J": ["a"] for i in range(20)}, Stages({0: {"d0": 1}}))
    assert repr(many).startswith(r"Recipe of 'd0\x1b[2J', 'd1\x1b[2J', ")
    assert repr(many).endswith(
        r"'d7\x1b[2J', ...: 4 rows of 16 tokens a step, 4 lanes, schedule Stages, seed 42"
    )


def test_what_ends_is_in_the_fingerprint_only_where_it_is_said() -> None:
    plain = make_recipe()
    assert replace(plain, when_exhausted="pad").fingerprint() == plain.fingerprint()
    assert not plain.is_finite
    web, code = plain.datasets
    finite = replace(plain, datasets=(replace(web, max_epochs=2), code))
    assert finite.is_finite
    assert plain.diff(finite) == [
        ("datasets.web.max_epochs", None, 2),
        ("when_exhausted", None, "stop"),
    ]
    assert finite.diff(replace(finite, when_exhausted="pad")) == [("when_exhausted", "stop", "pad")]
    ordered = replace(plain, datasets=(web, replace(code, order="identity")))
    assert plain.diff(ordered) == [("datasets.code.order", None, "identity")]


def test_an_evaluation_reads_every_document_once_in_file_order() -> None:
    recipe = make_recipe(kind="best_fit", lanes=2, seed=7, total_steps=9, global_batch_size=4)
    found = recipe.evaluation()
    assert [(d.name, d.order, d.max_epochs) for d in found.datasets] == [
        ("web", "identity", 1),
        ("code", "identity", 1),
    ]
    assert (found.when_exhausted, found.total_steps) == ("pad", None)
    assert found.compile_schedule().shares == ((1 << 19, 1 << 19),)
    same = ("tokenize", "packing", "lanes", "global_batch_size", "seed", "base", "flush_every")
    assert all(getattr(found, name) == getattr(recipe, name) for name in same)
    assert recipe.evaluation("code").names == ("code",)
    with pytest.raises(ValueError, match="no dataset is named 'books'; the datasets are web, code"):
        recipe.evaluation("books")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"order": "sorted"}, "dataset 'web': `order` must be .*, got 'sorted'"),
        ({"max_epochs": 0}, "dataset 'web': `max_epochs` must be a whole number >= 1, got 0"),
        ({"max_epochs": 1.0}, "got 1.0"),
        ({"max_epochs": True}, "got True"),
    ],
)
def test_wrong_fields_of_a_dataset_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Dataset.from_documents("web", ["x"], **fields)
