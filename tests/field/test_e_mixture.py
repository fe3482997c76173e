"""E1-E3: shares are of tokens; what is empty gives nothing and is refused; weight zero is never read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.elastic.endings import run_leg
from tests.field.corpora import (
    FILES,
    FORMATS,
    POLICIES,
    counts_of,
    dataset_of,
    documents_of,
    open_here,
    recipe_of,
    write_file,
)
from tests.helpers import words
from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.recipe import Recipe
from zephon.stages import Constant, Stages

ENDINGS = ("endless", *POLICIES)


def ended(ending: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the fields of a dataset and of a recipe for a way to end."""
    return ({}, {}) if ending == "endless" else ({"max_epochs": 1}, {"when_exhausted": ending})


@pytest.mark.parametrize("kind", ["wrap", "best_fit"])
def test_shares_are_of_tokens_whatever_the_files(tmp_path: Path, kind: str) -> None:
    """40 tokens against 400, 1:1, JSONL against Parquet: within 2 points in every window of 100 steps."""
    short = dataset_of(tmp_path, "short", ["s" * 39] * 64, "jsonl")
    long = dataset_of(tmp_path, "long", ["l" * 399] * 64, "parquet")
    options = {"pool_documents": 4} if kind == "best_fit" else {}
    recipe = recipe_of(tmp_path, short, long, kind=kind, options=options, seq_len=128)
    steps = run_leg(open_here(recipe), num_steps=400).steps
    drawn = np.array([step[0].tokens.sum(axis=1) for step in steps])
    windows = np.lib.stride_tricks.sliding_window_view(drawn, 100, axis=0).sum(axis=2)
    shares = windows[:, 0] / windows.sum(axis=1)
    assert abs(shares - 0.5).max() < 0.02


# Nothing in it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["endless", "stop"])
@pytest.mark.parametrize("form", FORMATS)
def test_a_dataset_without_records_is_refused_by_name(tmp_path: Path, form: str, ending: str) -> None:
    """First or last, with a weight or without one."""
    of_dataset, of_recipe = ended(ending)
    datasets = [
        dataset_of(tmp_path, "void", [], form, **of_dataset),
        *(dataset_of(tmp_path, name, [name], form, **of_dataset) for name in ("two", "one")),
    ]
    for weight in (1, 0):
        datasets.reverse()
        schedule = Constant({"two": 1, "one": 1, "void": weight})
        with pytest.raises(DataError, match="dataset 'void' has no records"):
            open_here(recipe_of(tmp_path, *datasets, schedule=schedule, **of_recipe))


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("order", ["identity", "shuffled"])
def test_an_empty_file_of_a_dataset_gives_nothing(tmp_path: Path, form: str, order: str) -> None:
    """The rows are those of the dataset without it; the lock knows the file all the same."""
    found = []
    for folder in (tmp_path / "with", tmp_path / "without"):
        for name in "bd":
            write_file(folder / f"{name}.{form}", words(name, 9))
        if folder.name == "with":
            for name in "ace":
                write_file(folder / f"{name}.{form}", [])
        recipe = recipe_of(tmp_path, Dataset.from_path("web", folder, order=order))
        found.append(run_leg(open_here(recipe), num_steps=8))
    assert found[0].digests == found[1].digests
    assert found[0].states[-1]["lock"] != found[1].states[-1]["lock"]


def skipping(folder: Path, form: str, ending: str, *weights: int) -> Recipe:
    """Returns a recipe of good documents and of `void`, all of whose records are skipped."""
    of_dataset, of_recipe = ended(ending)
    void = dataset_of(folder, "void", [None] * 5, form, on_error="skip", **of_dataset)
    web = dataset_of(folder, "web", words("web", 40), form, **of_dataset)
    return recipe_of(
        folder, void, web, schedule=Constant(dict(zip(("void", "web"), weights, strict=True))), **of_recipe
    )


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("form", FORMATS)
def test_a_dataset_emptied_by_skips_is_an_error_by_name(tmp_path: Path, form: str, ending: str) -> None:
    opened = open_here(skipping(tmp_path, form, ending, 1, 1))
    with pytest.raises(DataError, match="dataset 'void': no document has text"):
        run_leg(opened, 2, num_steps=50)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("form", FORMATS)
def test_a_dataset_emptied_by_skips_is_let_be_at_weight_zero(tmp_path: Path, form: str, ending: str) -> None:
    opened = open_here(skipping(tmp_path, form, ending, 0, 1))
    leg = run_leg(opened, 2, num_steps=50)
    assert leg.ended is (ending != "endless")
    came = documents_of(opened, leg.steps)
    assert not came["void"]
    assert len(came["web"]) >= 30
    assert counts_of(leg.states[-1]) == {}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("form", FORMATS)
def test_a_lane_whose_own_documents_are_all_skipped_has_ended(tmp_path: Path, form: str, policy: str) -> None:
    """Of four documents on four lanes one is skipped: nobody gets its place."""
    documents = ["aaa", None, "ccc", "ddd"]
    web = dataset_of(
        tmp_path, "web", documents, form, num_files=1, on_error="skip", order="identity", max_epochs=1
    )
    opened = open_here(recipe_of(tmp_path, web, seq_len=4, when_exhausted=policy))
    leg = run_leg(opened, 2)
    if policy == "pad":
        assert documents_of(opened, leg.steps)["web"] == Counter(["aaa>", "ccc>", "ddd>"])
        assert [lane for batch in leg.steps[0] for lane in batch.lanes[batch.tokens[0] == 0]] == [1]
    else:
        assert leg.steps == []


# Weight zero ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("form", FORMATS)
def test_weight_zero_is_never_read_and_keeps_nothing_from_ending(
    tmp_path: Path, form: str, ending: str
) -> None:
    """The dataset of weight zero is endless: that is no reason to go on."""
    of_dataset, of_recipe = ended(ending)
    web = dataset_of(tmp_path, "web", words("web", 30), form, **of_dataset)
    rest = dataset_of(tmp_path, "rest", words("rest", 3), form)
    recipe = recipe_of(tmp_path, web, rest, schedule=Constant({"web": 1, "rest": 0}), **of_recipe)
    opened = open_here(recipe)
    for world in (1, 4):
        leg = run_leg(opened, world, num_steps=40)
        assert leg.ended is (ending != "endless")
        came = documents_of(opened, leg.steps)
        assert not came["rest"]
        if ending == "pad":
            assert came["web"] == Counter(text + ">" for text in words("web", 30))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", ["wrap", "best_fit"])
def test_a_weight_that_comes_later_starts_at_the_first_document(tmp_path: Path, form: str, kind: str) -> None:
    """Weights [1, 0], and from step 3 on [1, 1]: before it nothing is read, then lane 2 begins with rest2."""
    web = dataset_of(tmp_path, "web", words("web", 30), form)
    rest = dataset_of(tmp_path, "rest", [f"rest{i}" for i in range(8)], form, order="identity")
    recipe = recipe_of(
        tmp_path,
        web,
        rest,
        schedule=Stages({0: {"web": 1, "rest": 0}, 3: {"web": 0.5, "rest": 0.5}}),
        kind=kind,
        options={"pool_documents": 1} if kind == "best_fit" else {},
    )
    opened = open_here(recipe)
    whole = run_leg(opened, num_steps=9)
    assert not documents_of(opened, whole.steps[:3])["rest"]
    firsts: dict[int, tuple[int, int, bool]] = {}
    for batch in (batch for step in whole.steps for batch in step):
        for row, dataset, position, offset in zip(
            *(getattr(batch.pieces, name) for name in ("row", "dataset", "position", "offset")), strict=True
        ):
            if dataset == 1:
                firsts.setdefault(int(batch.lanes[row]), (int(position), int(offset), batch.step >= 3))
    assert firsts == dict.fromkeys(range(4), (0, 0, True))
    assert set(documents_of(opened, whole.steps)["rest"]) >= {f"rest{i}>" for i in range(4)}
    for step in (2, 3, 4):
        assert run_leg(opened, 4, whole.states[step], 4).digests == whole.digests[step : step + 4]
