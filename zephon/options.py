"""How one rank runs its loader: ranks, batch size, workers. Nothing here changes a row, with one exception.

Where documents are held out, a lock in `run_folder`, else in `replay`, says which, in place of a new choice.

Upstream: keywords of the user. Downstream: `loader.py` and `opened.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypedDict

from zephon import plugins
from zephon.errors import check_whole
from zephon.opened import SPOOL_BYTES
from zephon.recipe import cure_shape
from zephon.schedule import ScheduleUpdates

BUDGET_BYTES = 768 << 20
OPERATORS = ("tokenize",)


def _num_cores() -> int:
    """Returns the cores that this process may use, where the system can tell; else those it has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class LoaderKeywords(TypedDict, total=False):
    """The keywords of `Recipe.loader` and `Pipeline.loader`: the fields of `LoaderOptions`."""

    dp_rank: int
    dp_world_size: int
    micro_batch_size: int | None
    workers: int | Mapping[str, int] | None
    executor: str
    prefetch: int
    pin_memory: bool
    backend: str
    run_folder: str | os.PathLike[str] | None
    replay: str | os.PathLike[str] | None
    updates: ScheduleUpdates | None
    any_rank: Callable[[bool], bool] | None
    cache: str | os.PathLike[str] | None
    spool_bytes: int
    read_ahead_bytes: int
    worker_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """How one rank runs; nothing but a lock in `run_folder` or `replay` changes a row, see above."""

    dp_rank: int = 0
    """This rank among the data-parallel ranks, in [0, dp_world_size)."""
    dp_world_size: int = 1
    """Data-parallel ranks; must divide the lanes."""
    micro_batch_size: int | None = None
    """Rows of a batch; must divide the rank's rows of a step. None: all of them."""
    workers: int | Mapping[str, int] | None = None
    """Workers, or {"tokenize": n}; None: the cores but one, which makes the rows, from 1 to 4."""
    executor: str = "threads"
    """inline, threads, processes, or a plugin's."""
    prefetch: int = 0
    """Batches made ahead by one thread; 0: made when asked for, which costs about 30 us a row."""
    pin_memory: bool = False
    """Whether batches lie in page-locked memory; needs torch with a GPU."""
    run_folder: str | os.PathLike[str] | None = None
    """Where row digests are logged (`batches/rank_*.jsonl`), with recipe and lock. The documents held out
    are those of a lock that is there; of a loader opened with others it is refused."""
    replay: str | os.PathLike[str] | None = None
    """A run folder: each batch is compared with what that run delivered, and the first that differs stops
    the run with a StateError naming step, lane, row and both digests. Where `run_folder` has no lock, the
    documents held out are those of this one's."""
    updates: ScheduleUpdates | None = None
    """Schedule updates that reach the running loader."""
    any_rank: Callable[[bool], bool] | None = None
    """Returns whether any rank says true: an all-reduce, called once a step on every rank, in the thread that
    takes the batches. A recipe that ends needs it on several ranks; None: this rank decides alone."""
    backend: str = "auto"
    """What encodes: auto, fastokens or tokenizers; they give the same ids."""
    cache: str | os.PathLike[str] | None = None
    """The folder of indexes and spool; None: $ZEPHON_CACHE, or the user's cache folder."""
    spool_bytes: int = SPOOL_BYTES
    """Bound on the spool folder."""
    read_ahead_bytes: int = BUDGET_BYTES
    """Bound on the blocks in memory, as long as it leaves 64 KiB for each of a stream's two."""
    worker_timeout_s: float = 600.0
    """How long a block may take before the run stops."""

    @property
    def num_workers(self) -> int:
        """Returns the number of workers."""
        if self.workers is None:
            return max(1, min(4, _num_cores() - 1))
        if isinstance(self.workers, Mapping):
            return int(self.workers.get("tokenize", 1))
        return self.workers

    def check(self, lanes: int, rows_per_step: int) -> None:
        """Refuses what does not fit the recipe's lanes, naming the numbers."""
        world = self.dp_world_size
        check_whole("`dp_world_size`", world, 1)
        if type(self.dp_rank) is not int or not 0 <= self.dp_rank < world:
            raise ValueError(f"`dp_rank` must be in [0, {world}), got {self.dp_rank!r}")
        if lanes % world:
            raise ValueError(
                f"`dp_world_size` must divide the lanes, got {world} ranks for {lanes} lanes; "
                f"{cure_shape(rows_per_step * lanes, lanes, (world,))}"
            )
        rows = rows_per_step * lanes // world
        size = rows if self.micro_batch_size is None else self.micro_batch_size
        if type(size) is not int or size < 1 or rows % size:
            raise ValueError(
                f"`micro_batch_size` must divide the rank's {rows} rows a step, got {self.micro_batch_size!r}"
            )
        if isinstance(self.workers, Mapping) and (unknown := sorted(set(self.workers) - set(OPERATORS))):
            raise ValueError(f"`workers` names operators, {', '.join(OPERATORS)}, got {unknown[0]!r}")
        seconds = self.worker_timeout_s
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            raise ValueError(f"`worker_timeout_s` must be a number of seconds > 0, got {seconds!r}")
        replay, folder = self.replay, self.run_folder
        if replay is not None and folder is not None and os.path.realpath(replay) == os.path.realpath(folder):
            raise ValueError(
                f"`replay` must be another folder than `run_folder`, got {os.fspath(replay)!r} for both; "
                "give this run a folder of its own, or none"
            )
        plugins.find("executors", self.executor)
        for name, least in (("num_workers", 1), ("prefetch", 0), ("spool_bytes", 0), ("read_ahead_bytes", 1)):
            check_whole(f"`{name.removeprefix('num_')}`", getattr(self, name), least)
