"""The loader of a rank among others: real processes over Gloo, without a model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from plugins.torchtitan.tests.corpus import SHORT, Corpus, words, write_jsonl
from plugins.torchtitan.tests.fixtures import Titan
from zephon import Batch, Loader, LoaderOptions, Recipe, digest, open_recipe
from zephon_torchtitan.rank import RankLoader
from zephon_torchtitan.recipes import TrainerValues, read_recipe

STEPS = 6
Rows = list[list[Any]]
"""Lane, row and digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What a rank reads, with a run folder that no other rank sees."""

    corpus: Corpus
    folder: Path
    recipe: Path
    dp_world_size: int = 1
    """Where it is less than the processes, several are peers, with the same batches."""

    def make(self) -> RankLoader:
        """Returns the loader of this rank. Collective."""
        rank, rows = distributed.get_rank(), 8 // self.dp_world_size
        options = LoaderOptions(
            dp_rank=rank % self.dp_world_size,
            dp_world_size=self.dp_world_size,
            micro_batch_size=rows,
            executor="inline",
            run_folder=self.folder / f"node_{rank}",
        )
        return RankLoader(lambda: (self.read_recipe(), options))

    def read_recipe(self) -> Recipe:
        """Returns the recipe in the shape of the trainer of these tests."""
        values = TrainerValues(seq_len=64, global_batch_size=8, tokenizer=str(self.corpus.tokenizer))
        return read_recipe(str(self.recipe), (), values)

    def write_rows(self) -> None:
        """Writes the digests of what this rank reads."""
        distributed.init_process_group("gloo")
        found = rows_of(self.make())
        (self.folder / f"rows_{distributed.get_rank()}.json").write_text(json.dumps(found))
        distributed.destroy_process_group()

    def check_group(self) -> None:
        """Fails unless two loaders ask by one group, which does not wait for ever."""
        distributed.init_process_group("gloo")
        loaders = [self.make().loader for _ in range(2)]
        first, second = (loader.options.any_rank for loader in loaders)
        assert first is second
        assert first is not None
        group = first._group  # type: ignore[attr-defined]
        waited = group._get_backend(torch.device("cpu")).options._timeout
        assert waited == timedelta(seconds=loaders[0].options.worker_timeout_s + 60)
        assert waited < timedelta(minutes=15)
        mine = distributed.get_rank() == 1
        assert [first(mine), second(False)] == [True, False]
        distributed.destroy_process_group()


def rows_of(batches: Iterable[Batch]) -> Rows:
    """Returns the digests of the first steps, in the order of lanes and rows."""
    return sorted([list(row) for batch in islice(batches, STEPS) for row in digest(batch)])


@pytest.mark.parametrize("dp_world_size", [1, 2], ids=["peers", "apart"])
def test_all_ranks_hold_out_what_the_lock_of_one_says(
    titan: Titan, corpus: Corpus, tmp_path: Path, dp_world_size: int
) -> None:
    folder = tmp_path / "short"
    folder.mkdir()
    write_jsonl(folder / "a.jsonl", SHORT)
    recipe = corpus.write(
        tmp_path / "recipe.toml",
        paths=corpus.file.paths | {"short": str(folder)},
        more={"short": "holdout = { documents = 21, seed = 3 }"},
    )
    node = Node(corpus=corpus, folder=tmp_path, recipe=recipe, dp_world_size=dp_world_size)
    node.read_recipe().loader(executor="inline", run_folder=tmp_path / "node_1").close()
    lock = json.loads((tmp_path / "node_1" / "lock.json").read_text())
    write_jsonl(folder / "b.jsonl", words("added", 90, (1, 2, 5)))
    titan.call(2, tmp_path / "job", node.write_rows).ok()
    rows: list[Rows] = [json.loads((tmp_path / f"rows_{rank}.json").read_text()) for rank in range(2)]
    expected, unlike = (_rows_with(node.read_recipe(), known) for known in (lock, None))
    assert expected != unlike  # the documents that would be held out without the lock are others
    if dp_world_size == 1:
        assert rows == [expected, expected]
    else:
        assert sorted(rows[0] + rows[1]) == expected


def _rows_with(recipe: Recipe, lock: Any) -> Rows:
    options = LoaderOptions(executor="inline")
    with closing(open_recipe(recipe, lock=lock)) as opened, Loader(opened, options) as loader:
        return rows_of(loader)


def test_finite_loaders_of_a_process_ask_by_one_group(titan: Titan, corpus: Corpus, tmp_path: Path) -> None:
    more = dict.fromkeys(corpus.file.paths, "max_epochs = 1")
    recipe = corpus.write(tmp_path / "recipe.toml", more=more)
    node = Node(corpus=corpus, folder=tmp_path, recipe=recipe)
    titan.call(2, tmp_path / "job", node.check_group).ok()
