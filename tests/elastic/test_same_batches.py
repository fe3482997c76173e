"""C1: whatever the ranks, micro-batches, workers, blocks and delays, every step has the same rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.elastic.cases import LETTERS, Way, block_sizes, divisors, recipes, ways
from tests.helpers import digests, loaders, make_recipe, open_small, read, take_steps, words, write_tokenizer
from zephon import digest, step_digest
from zephon.dataset import Dataset
from zephon.options import LoaderOptions
from zephon.recipe import Recipe
from zephon.stages import Stages

ROOT = Path(__file__).parents[2]
STEPS = 7


def run(recipe: Recipe, way: Way, num_steps: int = STEPS) -> list[str]:
    options = LoaderOptions(
        micro_batch_size=way.micro_batch_size,
        executor=way.executor,
        workers=way.workers,
        prefetch=way.prefetch,
    )
    with block_sizes(way):
        return digests(open_small(recipe), num_steps, way.world, options)


@settings(max_examples=40)
@given(st.data())
def test_every_way_to_run_a_recipe_gives_the_same_steps(data: st.DataObject) -> None:
    recipe = data.draw(recipes())
    expected = digests(open_small(recipe), STEPS)
    assert run(recipe, data.draw(ways(recipe))) == expected


def test_every_number_of_ranks_gives_the_same_steps() -> None:
    recipe = make_recipe(lanes=12, global_batch_size=24, total_steps=9)
    expected = digests(open_small(recipe), 9)
    assert len(set(expected)) == 9
    for world in divisors(12):
        for micro in divisors(24 // world):
            options = LoaderOptions(executor="inline", micro_batch_size=micro)
            assert digests(open_small(recipe), 9, world, options) == expected


def test_prefetching_threads_that_dawdle_change_nothing() -> None:
    recipe = make_recipe(lanes=4, global_batch_size=8)
    expected = digests(open_small(recipe), 20)
    slow = LoaderOptions(executor="dawdling", workers=3, prefetch=4, micro_batch_size=1)
    for _ in range(3):
        assert digests(open_small(recipe), 20, 2, slow) == expected


@pytest.mark.slow
def test_worker_processes_change_nothing(tmp_path: Path) -> None:
    recipe = make_recipe(tokenizer=str(write_tokenizer(tmp_path)), lanes=4, global_batch_size=8)
    found = {}
    for executor in ("inline", "processes"):
        with recipe.loader(executor=executor, workers=2, cache=tmp_path, backend="tokenizers") as loader:
            found[executor] = [step_digest(digest(next(loader))) for _ in range(6)]
    assert found["processes"] == found["inline"]


def write_corpus(folder: Path, names: list[str]) -> Path:
    """Writes one file per name, in the order given; what a file holds depends on its name alone."""
    folder.mkdir()
    for name in names:
        lines = [json.dumps({"text": text}) + "\n" for text in words(name.partition(".")[0], 7)]
        (folder / name).write_text("".join(lines))
    return folder


def recipe_of(paths: object, cache: Path) -> Recipe:
    dataset = Dataset.from_path("web", paths)  # type: ignore[arg-type]
    return make_recipe(datasets=(dataset,), base=cache)


def test_the_order_in_which_files_are_listed_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["c.jsonl", "a.jsonl", "b.jsonl", "a10.jsonl", "a2.jsonl"]
    first = write_corpus(tmp_path / "first", names)
    expected = digests(open_small(recipe_of(first, tmp_path)), STEPS)
    second = write_corpus(tmp_path / "second", sorted(names))
    assert digests(open_small(recipe_of(second, tmp_path)), STEPS) == expected
    assert digests(open_small(recipe_of(str(second / "*.jsonl"), tmp_path)), STEPS) == expected
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path=".": list(reversed(listdir(path))))
    assert digests(open_small(recipe_of(first, tmp_path)), STEPS) == expected


PROGRAM = """
from tests.helpers import digests, make_recipe, open_small, words
from zephon.options import LoaderOptions
from zephon.stages import Stages

documents = {name: words(name, 30) for name in ("web", "code", "prose")}
schedule = Stages({0: dict.fromkeys(documents, 1), 3: {"web": 1, "code": 5, "prose": 0}})
opened = open_small(make_recipe(documents, schedule, kind="best_fit", lanes=4, global_batch_size=8))
print(*digests(opened, 7, 2, LoaderOptions(workers=2)))
"""


def test_the_seed_of_hash_does_not_matter() -> None:
    found = []
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
        )
        found.append(done.stdout.split())
    documents = {name: words(name, 30) for name in ("web", "code", "prose")}
    schedule = Stages({0: {"prose": 1, "code": 1, "web": 1}, 3: {"prose": 0, "code": 5, "web": 1}})
    opened = open_small(make_recipe(documents, schedule, kind="best_fit", lanes=4, global_batch_size=8))
    assert found == [digests(opened, 7)] * 2


def test_ranks_share_out_the_documents_of_an_epoch() -> None:
    """16 documents, 16 lanes: a step in which every lane reads one document reads each once."""
    recipe = make_recipe({"web": [letter * 15 for letter in LETTERS[:16]]}, lanes=16, global_batch_size=16)
    for world in (1, 2, 4, 16):
        with loaders(open_small(recipe), world) as ranks:
            for step in take_steps(ranks, 3):
                firsts = [int(token) for batch in step for token in batch.inputs[:, 0]]
                assert sorted(read(firsts)) == list(LETTERS[:16])
