"""The Python form: each method gives a new description, and all of it is the recipe's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import digest_of, digests, make_recipe, open_small, words, write_tokenizer
from zephon.dataset import Dataset
from zephon.mixture import MixtureWorkSource
from zephon.packing import Packing
from zephon.pipeline import Pipeline
from zephon.stages import Constant, Stages
from zephon.tokenizer import Tokenize

pytestmark = pytest.mark.usefixtures("probed_once")

DATASETS = [Dataset.from_documents("web", words("web", 9)), Dataset.from_documents("code", words("code", 4))]
MIX = MixtureWorkSource(DATASETS, {"web": 2, "code": 1})


def test_the_steps_of_a_pipeline_are_the_fields_of_its_recipe() -> None:
    pipeline = Pipeline(MIX, global_batch_size=8, seed=3, lanes=4, total_steps=100)
    recipe = (
        pipeline.tokenize("letters", bos="<s>", eos=True, parse_special=True)
        .pack(32, kind="best_fit", mask_document_ends=False, pad_id=5, options={"pool_documents": 2})
        .recipe()
    )
    assert (recipe.seed, recipe.lanes, recipe.global_batch_size, recipe.total_steps) == (3, 4, 8, 100)
    assert recipe.datasets == tuple(DATASETS)
    assert recipe.schedule == Constant({"web": 2, "code": 1})
    assert recipe.tokenize == Tokenize(tokenizer="letters", bos="<s>", eos=True, parse_special=True)
    assert recipe.packing == Packing(
        seq_len=32, kind="best_fit", mask_document_ends=False, pad_id=5, options={"pool_documents": 2}
    )
    assert recipe.base == Path.cwd()


def test_every_method_gives_a_new_description() -> None:
    bare = Pipeline(MIX, global_batch_size=4)
    tokenized = bare.tokenize("letters")
    packed = tokenized.pack(16)
    assert bare.tokenizing is None
    assert tokenized.packing is None
    assert packed.pack(8).recipe().packing.seq_len == 8
    assert packed.recipe().packing.seq_len == 16
    assert bare.pack(16).tokenize("letters") == packed  # in any order
    with pytest.raises(AttributeError):
        bare.seed = 1  # type: ignore[misc]


def test_a_pipeline_and_a_recipe_of_the_same_fields_have_one_fingerprint() -> None:
    pipeline = Pipeline(MIX, global_batch_size=4, seed=42).tokenize("letters", eos="</s>").pack(16)
    recipe = make_recipe(datasets=tuple(DATASETS), schedule=Constant({"web": 2, "code": 1}))
    assert pipeline.recipe().fingerprint() == recipe.fingerprint()
    assert pipeline.recipe().compile_schedule() == recipe.compile_schedule()


def test_a_schedule_may_take_the_place_of_weights() -> None:
    stages = Stages({0: {"web": 1, "code": 0}, 5: {"web": 1, "code": 1}})
    pipeline = Pipeline(MixtureWorkSource(DATASETS, stages), global_batch_size=4).tokenize("letters").pack(16)
    assert pipeline.recipe().compile_schedule().starts == (0, 5)


@pytest.mark.parametrize(
    ("build", "missing"),
    [
        (lambda p: p, "tokenize"),
        (lambda p: p.pack(16), "tokenize"),
        (lambda p: p.tokenize("letters"), "pack"),
    ],
)
def test_a_missing_step_is_named(build: Callable[[Pipeline], Pipeline], missing: str) -> None:
    with pytest.raises(ValueError, match=rf"no `{missing}` step; call \.{missing}\(\.\.\.\) on it"):
        build(Pipeline(MIX, global_batch_size=4)).recipe()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda p: p.pack(0), "`seq_len` must be"),
        (lambda p: p.tokenize(3), "."),
        (lambda p: p.tokenize("letters", bos=1), "`bos` must be true, false or a token"),
        (lambda p: p.tokenize("x").pack(16).loader(dp_world_size=3), "3 ranks for 4 lanes"),
    ],
)
def test_wrong_arguments_are_refused_where_they_are_given(
    build: Callable[[Pipeline], Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        build(Pipeline(MIX, global_batch_size=4))


def test_a_loader_of_a_pipeline_gives_the_recipe_s_rows(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path)
    pipeline = Pipeline(MIX, global_batch_size=4, seed=42).tokenize(folder, eos="</s>").pack(16)
    recipe = replace(pipeline.recipe(), tokenize=Tokenize(tokenizer="letters", eos="</s>"))
    with pipeline.loader(workers=2) as loader:
        found = [digest_of([next(loader)]) for _ in range(6)]
    assert found == digests(open_small(recipe), 6)
