"""The loader of one rank as a trainer drives it, whatever the trainer's contract.

Upstream: `zephon.Loader`. Downstream: the adapters, `dataloader.py` for TorchTitan 0.3.0 and `next_contract.py`.
Knows torch.distributed, so that ranks end together and peers do not write the same log, and no TorchTitan.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed

from zephon import Batch, Loader, LoaderOptions, Recipe


class RankLoader:
    """Batches, state and progress of this rank."""

    def __init__(self, recipe: Recipe, options: LoaderOptions, *, allow: Sequence[str] = ()) -> None:
        """Opens the recipe's data; ranks with the same `dp_rank` agree on who writes the run folder."""
        if options.run_folder is not None and not writes_log(options.dp_rank):
            options = replace(options, run_folder=None)
        if recipe.is_finite and num_ranks() > 1:
            options = replace(options, any_rank=AnyRank())
        self.loader: Loader = recipe.loader(**{f.name: getattr(options, f.name) for f in fields(options)})
        self._allow = tuple(allow)
        self.restored = False
        """Whether a state was loaded."""
        self.wait_s: list[float] = []
        """How long each batch since the last look was waited for."""
        self.tokens: NDArray[np.int64] = np.zeros(len(recipe.datasets), dtype=np.int64)
        """(num_datasets,) tokens delivered to this rank since the last look."""

    @property
    def recipe(self) -> Recipe:
        """Returns the recipe."""
        return self.loader.opened.recipe

    def __iter__(self) -> Iterator[Batch]:
        while True:
            started = time.perf_counter()
            batch = next(self.loader, None)
            self.wait_s.append(time.perf_counter() - started)
            if batch is None:
                return
            self.tokens += batch.tokens.sum(axis=1)
            yield batch

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state of any ranks; an empty one leaves the loader at its beginning."""
        if state:
            self.loader.load_state_dict(state, allow=self._allow)
            self.restored = True


def num_ranks() -> int:
    """Returns the processes of the job; 1 without torch.distributed."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def writes_log(dp_rank: int) -> bool:
    """Returns whether this process is the first of those with its `dp_rank`; a collective call."""
    if num_ranks() == 1:
        return True
    found: list[int] = [0] * num_ranks()
    distributed.all_gather_object(found, dp_rank)
    return found.index(dp_rank) == distributed.get_rank()


class AnyRank:
    """Returns whether any rank says true: one all-reduce of a number over Gloo, called once a step by every rank."""

    def __init__(self) -> None:
        """Makes the group; a collective call."""
        self._group = distributed.new_group(backend="gloo")

    def __call__(self, mine: bool) -> bool:
        said = torch.tensor(int(mine))
        distributed.all_reduce(said, op=distributed.ReduceOp.MAX, group=self._group)
        return bool(said)
