"""B1-B3: sizes that do not fit are refused with the numbers; ranks end together and share the data out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.elastic.endings import run_leg
from tests.field.corpora import FORMATS, POLICIES, dataset_of, documents_of, open_here, recipe_of
from tests.helpers import read, words
from zephon.recipe import Recipe


@pytest.mark.parametrize(
    ("lanes", "global_batch_size", "world", "said"),
    [
        (4, 4, 3, "got 3 ranks for 4 lanes"),
        (8, 8, 3, "got 3 ranks for 8 lanes"),
        (0, 10, 4, "got 4 ranks for 10 lanes"),
        (5, 10, 4, "got 4 ranks for 5 lanes"),
    ],
)
def test_a_size_that_does_not_divide_the_lanes_is_refused_with_the_numbers(
    tmp_path: Path, lanes: int, global_batch_size: int, world: int, said: str
) -> None:
    """Before any data are opened; it says what fits."""
    web = dataset_of(tmp_path, "web", ["one"], "jsonl")
    (tmp_path / "web" / "a.jsonl").unlink()
    recipe = recipe_of(tmp_path, web, lanes=lanes, global_batch_size=global_batch_size)
    for rank in range(world):
        with pytest.raises(ValueError, match=said) as caught:
            recipe.loader(dp_rank=rank, dp_world_size=world)
        assert "set global_batch_size = " in str(caught.value)


def test_lanes_that_do_not_divide_the_global_batch_are_refused_with_the_numbers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got 4 lanes for 10 rows; nearest: 1, 2, 5 lanes"):
        recipe_of(tmp_path, dataset_of(tmp_path, "web", ["one"], "jsonl"), lanes=4, global_batch_size=10)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("form", FORMATS)
def test_five_documents_on_two_ranks(tmp_path: Path, form: str, policy: str) -> None:
    """2 rows a rank and step: the ranks have 3 and 2 documents, and give as many batches of one shape."""
    web = dataset_of(tmp_path, "web", words("doc", 5, (2,)), form, max_epochs=1)
    recipe = recipe_of(
        tmp_path, web, seq_len=4, lanes=2, global_batch_size=4, when_exhausted=policy, eos=False
    )
    opened = open_here(recipe)
    leg = run_leg(opened, 2)  # refuses ranks that end apart
    assert leg.ended
    assert {(len(step), step[0].inputs.shape, step[1].inputs.shape) for step in leg.steps} == {
        (2, (2, 4), (2, 4))
    }
    tokens = {"stop": 16, "redistribute": 16, "pad": 50}[policy]
    given = sum(int(batch.tokens.sum()) for step in leg.steps for batch in step)
    assert given == tokens if policy == "pad" else given >= tokens


def lopsided(folder: Path, form: str, policy: str) -> Recipe:
    """Returns a recipe whose lane 0 has 10 rows and whose lane 1 has 12: documents 17 and 19 fill two."""
    documents = [chr(ord("a") + i) * (16 if i in (17, 19) else 8) for i in range(20)]
    web = dataset_of(folder, "web", documents, form, order="identity", max_epochs=1)
    return recipe_of(folder, web, seq_len=8, lanes=2, global_batch_size=2, when_exhausted=policy, eos=False)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("policy", POLICIES)
def test_ranks_of_ten_and_of_twelve_rows(tmp_path: Path, form: str, policy: str) -> None:
    opened = open_here(lopsided(tmp_path, form, policy))
    leg = run_leg(opened, 2)
    assert len(leg.steps) == (12 if policy == "pad" else 10)
    assert leg.digests == run_leg(opened, 1).digests
    rows = [[read(batch.inputs[0]) for batch in step] for step in leg.steps]
    assert [row[0] for row in rows[:10]] == [chr(ord("a") + i) * 8 for i in range(0, 20, 2)]
    assert [row[1] for row in rows[:8]] == [chr(ord("a") + i) * 8 for i in range(1, 17, 2)]
    for step in leg.steps[10:]:
        assert not step[0].tokens.any()
        assert (step[0].labels == -100).all()
        assert step[1].tokens.sum() == 8


@pytest.mark.parametrize(("form", "kind"), [("jsonl", "wrap"), ("parquet", "best_fit")])
def test_sixteen_shards_are_shared_out(tmp_path: Path, form: str, kind: str) -> None:
    """16 files of 4 documents that fill a row each: an epoch is 4 steps of 16 rows."""
    documents = [f"shard {i // 4:02} text {i % 4} " for i in range(64)]
    web = dataset_of(tmp_path, "web", documents, form, num_files=16)
    recipe = recipe_of(
        tmp_path, web, kind=kind, seq_len=16, lanes=16, global_batch_size=16, eos=False,
        options={"pool_documents": 1} if kind == "best_fit" else {},
    )  # fmt: skip
    assert len(set(map(len, documents))) == 1
    opened = open_here(recipe)
    expected = run_leg(opened, num_steps=8).digests
    for world in (1, 2, 4, 16):
        leg = run_leg(opened, world, num_steps=8)
        assert leg.digests == expected
        for epoch in (leg.steps[:4], leg.steps[4:]):
            assert documents_of(opened, epoch)["web"] == Counter(documents)
            by_rank = [{read(row) for step in epoch for row in step[rank].inputs} for rank in range(world)]
            assert sum(map(len, by_rank)) == len(set().union(*by_rank)) == 64
