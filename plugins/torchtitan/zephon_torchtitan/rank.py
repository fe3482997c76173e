"""The loader of one rank as a trainer drives it, whatever the trainer's contract.

Upstream: `zephon.Loader`. Downstream: the adapters, `dataloader.py` for TorchTitan 0.3.0 and
`next_contract.py`. Knows torch.distributed, so that ranks refuse and end together, and no TorchTitan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed

from zephon import Batch, Loader, LoaderOptions, Recipe, StateError
from zephon_torchtitan.launch import check_tokenizer, together

BEGAN_AT = "began_at"
"""What a state has besides the loader's own."""


class RankLoader:
    """Batches, state and progress of this rank."""

    def __init__(
        self,
        describe: Callable[[], tuple[Recipe, LoaderOptions]],
        *,
        tokenizer: Any = None,
        allow: Sequence[str] = (),
    ) -> None:
        """Opens the data of the recipe; every rank makes its loader at the same time. Collective.

        `describe` may refuse, and the tokenizer must be the trainer's: all ranks then end with one report.
        """
        recipe, options = together(describe)
        if options.run_folder is not None and not is_first_of_its_rank(options.dp_rank):
            options = replace(options, run_folder=None)  # a peer with the same batches writes the log
        if recipe.is_finite and num_ranks() > 1:
            options = replace(options, any_rank=AnyRank())
        self.loader = together(lambda: _open(recipe, options, tokenizer))
        self.allow = tuple(allow)
        self.restored = False
        """Whether a state was loaded."""
        self.refusal: str | None = None
        """Why a state was not."""
        self.began_at = 0
        """The trainer's step at which the data began: not 0 where they began anew in the middle of a run."""
        self.since: int | None = None
        """The step of the first batch since the last look."""
        self.wait_s = 0.0
        """What was spent waiting for batches since the last look."""
        self.tokens: NDArray[np.int64] = np.zeros(len(recipe.names), dtype=np.int64)
        """(num_datasets,) tokens delivered to this rank since the last look."""

    @property
    def recipe(self) -> Recipe:
        """Returns the recipe."""
        return self.loader.opened.recipe

    def __iter__(self) -> Iterator[Batch]:
        if self.refusal is not None:
            raise StateError(self.refusal)
        while True:
            started = time.perf_counter()
            batch = next(self.loader, None)
            self.wait_s += time.perf_counter() - started
            if batch is None:
                return
            self.since = batch.step if self.since is None else self.since
            self.tokens += batch.tokens.sum(axis=1)
            yield batch

    def has_next(self) -> bool:
        """Returns whether another step can be taken on all ranks; for finite recipes a collective call."""
        started = time.perf_counter()
        there = self.loader.has_next()
        self.wait_s += time.perf_counter() - started
        return there

    def look(self) -> None:
        """Begins the next interval of what is measured."""
        self.since, self.wait_s = None, 0.0
        self.tokens[:] = 0

    @property
    def trainer_step(self) -> int:
        """Returns the trainer's step after which the data stand."""
        return self.began_at + self.loader.num_steps

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of this rank's lanes, and what all ranks share."""
        return self.loader.state_dict() | {BEGAN_AT: self.began_at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state of any ranks; an empty one leaves the loader at its beginning.

        A state that does not fit is kept as `refusal`: the other ranks may have taken theirs, and go on to
        where all refuse together.
        """
        if not state:
            return
        try:
            self.loader.load_state_dict(state, allow=self.allow)
        except StateError as error:
            self.refusal = f"{error}\n  here: `allow` is --dataloader.allow, with its names apart by commas"
        else:
            self.restored, self.began_at = True, state.get(BEGAN_AT, 0)


def _open(recipe: Recipe, options: LoaderOptions, tokenizer: Any) -> Loader:
    loader = recipe.loader(**{f.name: getattr(options, f.name) for f in fields(options)})
    try:
        check_tokenizer(loader.opened, tokenizer)
    except BaseException:
        loader.close()
        raise
    return loader


def num_ranks() -> int:
    """Returns the processes of the job; 1 without torch.distributed."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def is_first_of_its_rank(dp_rank: int) -> bool:
    """Returns whether this process is the first of those with its `dp_rank`. Collective."""
    if num_ranks() == 1:
        return True
    found: list[int] = [0] * num_ranks()
    distributed.all_gather_object(found, dp_rank)
    return found.index(dp_rank) == distributed.get_rank()


class AnyRank:
    """Says whether any rank says true: one all-reduce of a number over Gloo, once a step on every rank."""

    def __init__(self) -> None:
        """Makes the group. Collective."""
        self._group = distributed.new_group(backend="gloo")

    def __call__(self, mine: bool) -> bool:
        """Returns whether `mine` is true on any rank. Collective."""
        said = torch.tensor(int(mine))
        distributed.all_reduce(said, op=distributed.ReduceOp.MAX, group=self._group)
        return bool(said.item())
