"""The loader of one rank as a trainer drives it, whatever the trainer's contract.

Upstream: `zephon.Loader`. Downstream: the adapters, `dataloader.py` for TorchTitan 0.3.0 and
`next_contract.py`. Knows torch.distributed, so that ranks refuse and end together, and no TorchTitan.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed

from zephon import Batch, Loader, LoaderOptions, Opened, Recipe, StateError, open_recipe
from zephon_torchtitan.launch import broadcast, check_tokenizer, compare_ranks, gather, num_ranks, together
from zephon_torchtitan.recipes import check_allowances
from zephon_torchtitan.updates import EndsTogether, find_log, is_first, tell

OPTIONS = ("workers", "executor", "prefetch", "pin_memory", "cache", "run_folder", "replay")
"""What the config of every adapter has under the name that `LoaderOptions` gives it."""
BEGAN_AT = "began_at"
"""What a state has besides the loader's own."""
Taken = TypeVar("Taken")


class RankLoader:
    """Batches, state and progress of this rank."""

    def __init__(
        self,
        describe: Callable[[], tuple[Recipe, LoaderOptions]],
        *,
        tokenizer: Any = None,
        allow: Sequence[str] = (),
        amendments: bool = True,
        sees_losses: bool = False,
    ) -> None:
        """Opens the data of the recipe; every rank makes its loader at the same time. Collective.

        `describe` may refuse, and the tokenizer must be the trainer's: all ranks then end with one report.
        With `amendments` the run follows the curriculum log of its run folder. `sees_losses` says that the
        trainer will tell the losses of datasets, which a controller needs.
        """
        together(lambda: check_allowances(allow))
        recipe, options = together(describe)
        log = find_log(recipe, options, amendments=amendments, sees_losses=sees_losses)
        recipe = recipe if log is None else log.recipe
        compare_ranks(_texts(recipe.configuration()))
        lock = _shared_lock(options) if recipe.follows_lock else None
        if not is_first_of_its_rank(options.dp_rank):
            options = replace(options, run_folder=None)  # a peer with the same batches writes the log
        if recipe.is_finite:
            options = replace(options, any_rank=any_rank(options.worker_timeout_s))
        opened = together(lambda: _open(recipe, options, tokenizer, lock))
        self.updates: Any = None if log is None else log.follow(opened, options.worker_timeout_s)
        """What the run follows: `zephon.ScheduleUpdates` and what is written down of a controller."""
        options = replace(options, updates=None if log is None else EndsTogether(self.updates))
        self.loader = together(lambda: Loader(opened, options, owns_opened=True))
        state = self.loader.state_dict()
        compare_ranks(_texts(json.loads(state["lock"])) | {"schedule": opened.table.hash()})
        self._begin(len(recipe.names), allow)

    def _begin(self, num_datasets: int, allow: Sequence[str]) -> None:
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
        self.tokens: NDArray[np.int64] = np.zeros(num_datasets, dtype=np.int64)
        """(num_datasets,) tokens delivered to this rank since the last look."""
        self.kept: deque[Batch] | None = None
        """Where batches are kept for who has to know what was in them."""
        self.controller_every: int | None = None
        if self.updates is not None:
            self.controller_every = broadcast(self.updates.controller_every, 0)
        """Steps between decisions of a controller; None without one."""
        self._num_told = 0 if self.updates is None else len(self.updates.history.entries)

    @property
    def recipe(self) -> Recipe:
        """Returns the recipe."""
        return self.loader.opened.recipe

    def __iter__(self) -> Iterator[Batch]:
        if self.refusal is not None:
            raise StateError(self.refusal)
        while True:
            batch = self._timed(lambda: next(self.loader, None))
            if batch is None:
                if self.recipe.when_exhausted == "pad":
                    self.loader.close()  # a trainer builds one for each validation and closes none
                return
            self.since = batch.step if self.since is None else self.since
            self.tokens += batch.tokens.sum(axis=1)
            if self.updates is not None and is_first():
                self._num_told = tell(self.updates, self._num_told)
            if self.kept is not None:
                self.kept.append(batch)
            yield batch

    def observe(self, losses: Mapping[str, float | None], num_tokens: Mapping[str, int]) -> None:
        """Hands on what was measured up to here of all ranks: mean losses, and tokens drawn."""
        if self.updates is not None and is_first():
            self.updates.observe(self.loader.num_steps, losses, num_tokens)

    def log_line(self) -> str:
        """Returns what is to be said of the curriculum log at the first step."""
        if self.updates is None:
            return ""
        history, lead = self.updates.history, self.updates.lead_steps
        return (
            f", curriculum log of {len(history.entries)} entries, {len(history.pending)} of them to decide, "
            f"head {self.updates.head[:12]}, lead {lead} steps"
        )

    def has_next(self) -> bool:
        """Returns whether another step can be taken on all ranks; for finite recipes a collective call."""
        return self._timed(self.loader.has_next)

    def _timed(self, take: Callable[[], Taken]) -> Taken:
        """Returns what the loader gives, and adds to what was waited; its workers end where it fails."""
        started = time.perf_counter()
        try:
            taken = take()
        except BaseException:
            self.loader.close()
            raise
        self.wait_s += time.perf_counter() - started
        return taken

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
            self.refusal = str(error)
        else:
            self.restored, self.began_at = True, state.get(BEGAN_AT, 0)


def options_of(config: Any, dp_rank: int, dp_world_size: int, micro_batch_size: int) -> LoaderOptions:
    """Returns the options of a rank as an adapter's config has them."""
    ranks = LoaderOptions(dp_rank=dp_rank, dp_world_size=dp_world_size, micro_batch_size=micro_batch_size)
    return replace(ranks, **{name: getattr(config, name) for name in OPTIONS})


def _shared_lock(options: LoaderOptions) -> dict[str, Any] | None:
    """Returns the lock of the first rank that finds one: all hold out the same documents. Collective.

    It is that of the run folder, which may be local to a node, or of the run that is replayed.
    """
    for folder in (options.run_folder, options.replay):
        mine = together(functools.partial(_read_lock, folder))
        having = [rank for rank, has_one in enumerate(gather(bool(mine))) if has_one]
        if having:
            found: dict[str, Any] = json.loads(broadcast(mine, having[0]))
            return found
    return None


def _read_lock(folder: str | os.PathLike[str] | None) -> str:
    path = None if folder is None else Path(folder, "lock.json")
    return path.read_text(encoding="utf-8") if path is not None and path.is_file() else ""


def _open(recipe: Recipe, options: LoaderOptions, tokenizer: Any, lock: Mapping[str, Any] | None) -> Opened:
    options.check(recipe.lanes, recipe.rows_per_step)
    opened = open_recipe(
        recipe,
        cache=options.cache,
        backend=options.backend,
        spool_bytes=options.spool_bytes,
        lock=lock,
    )
    try:
        check_tokenizer(opened, tokenizer)
    except BaseException:
        opened.close()
        raise
    return opened


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: json.dumps(value, sort_keys=True) for name, value in values.items()}


def is_first_of_its_rank(dp_rank: int) -> bool:
    """Returns whether this process is the first of those with its `dp_rank`. Collective."""
    return num_ranks() == 1 or gather(dp_rank).index(dp_rank) == distributed.get_rank()


def any_rank(wait_s: float) -> AnyRank | None:
    """Returns how ranks agree; None where there is nobody to ask. Collective at its first call.

    `wait_s` is how long a rank may be without its rows; the others wait a minute longer.
    """
    return None if num_ranks() == 1 else _any_rank(distributed.group.WORLD, wait_s + 60.0)


@functools.lru_cache(maxsize=1)
def _any_rank(world: Any, timeout_s: float) -> AnyRank:
    """Returns the one of the job: groups are never given back."""
    return AnyRank(distributed.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s)))


class AnyRank:
    """Says whether any rank says true: one all-reduce of a number over Gloo, once a step on every rank."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def __call__(self, mine: bool) -> bool:
        """Returns whether `mine` is true on any rank. Collective."""
        said = torch.tensor(int(mine))
        distributed.all_reduce(said, op=distributed.ReduceOp.MAX, group=self._group)
        return bool(said.item())
