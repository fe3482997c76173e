"""Schedules: step -> weights, compiled to integer shares before the run.

Upstream: the recipe and its schedule, such as those of `stages.py`. Downstream: `mixture.py`, which draws by
shares. Whatever a schedule computes with, only
the integers of its table reach the data, so a run is the same on every machine.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, pairwise
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from zephon.shares import PARTS, Weights, shares_of_each

TOGETHER = 512
"""Steps whose weights are compiled at once: as many as a processor's cache holds."""
MAX_ASKED = 1 << 24
"""Steps at which a schedule without `changes()` is asked at most: minutes."""
BLOCK_STEPS = 1024
"""A state holds one hash of the shares for each block of this many steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleContext:
    """What a schedule may know of the recipe it is built for."""

    names: tuple[str, ...]
    """The datasets, in order."""
    total_steps: int | None
    """The planned length of the run, where the recipe gives it."""
    tokens_per_step: int
    """global_batch_size * seq_len."""
    base: Path = field(default_factory=Path)
    """The folder at which relative paths of the recipe start."""


@runtime_checkable
class Schedule(Protocol):
    """A plugin role: the weights of every step. Pure; built by `factory(config, context)`.

    A schedule may also have `changes() -> Sequence[int]`: the steps, ascending and beginning with 0, at which
    the weights may differ from the step before; the last of them hold for ever. Without it the weights are
    asked for at every step up to the recipe's `total_steps`.
    """

    def weights(self, step: int) -> Weights:
        """Returns the weight of every dataset at `step`; only their ratios count."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerContext:
    """What a controller may know of the run it is built for."""

    names: tuple[str, ...]
    """The datasets, in order."""
    base: ScheduleTable
    """What the recipe's schedule says. A dataset to which it gives nothing at a step should get nothing."""
    total_steps: int | None
    """The planned length of the run, where the recipe gives it."""
    tokens_per_step: int
    """global_batch_size * seq_len."""
    seed: int = 0
    """The recipe's seed: the only source of chance for a controller that needs some."""

    def prior(self, step: int) -> dict[str, int]:
        """Returns the integer shares of the schedule at `step`, by name."""
        return dict(zip(self.names, self.base.at(step), strict=True))


@runtime_checkable
class ScheduleUpdates(Protocol):
    """Schedule updates that reach a running loader at step boundaries.

    They may also have `check_state(state, table)`, which raises StateError where they know why a state does
    not fit that is restored, and `close()`, which gives up what they hold as the loader is closed.
    """

    lead_steps: int
    """The loader mixes rows of at most this many steps after the step that is being delivered."""
    head: str
    """Hash of the newest entry of the log that the updates come from; states keep it. Equal on all ranks."""

    def exchange(self, step: int) -> None:
        """Agrees with all ranks on the updates from step + lead_steps + 1 on; collective.

        Called once for each step, in the thread that takes the batches, before the first of the step is.
        """
        ...

    def update(self, step: int) -> ScheduleTable | None:
        """Returns the table in force from `step` on, or None where nothing changes.

        Called for each step, in order, before the first row of the step is mixed, maybe in a thread of its
        own; and for the first step after a restore, whose state was taken with the table's shares of all
        earlier steps. The table may differ from the one in force only at steps >= `step`.
        """
        ...


@dataclass(frozen=True, eq=False)
class Drop:
    """Documents that are dropped: each one of which the first piece would be drawn at a step >= `step`."""

    step: int
    documents: tuple[tuple[str, str, int], ...]
    """(dataset, file, record in it), sorted."""

    @functools.cached_property
    def hash(self) -> str:
        """Returns the SHA-256 of step and documents, as hex."""
        return hashlib.sha256(json.dumps([self.step, self.documents]).encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        """Compares hashes: every lane asks at every step, and documents may be thousands."""
        return isinstance(other, Drop) and self.hash == other.hash

    def __hash__(self) -> int:
        return int(self.hash[:15], 16)


@dataclass(frozen=True)
class ScheduleTable:
    """The compiled schedule: shares[k] hold from step starts[k] until the next start, the last for ever."""

    names: tuple[str, ...]
    starts: tuple[int, ...]
    shares: tuple[tuple[int, ...], ...]
    begun: frozenset[int] = field(default=frozenset(), compare=False)
    """Datasets that had a share before step 0, in a phase that this one continues."""
    skips: tuple[tuple[int, int], ...] = ()
    """(a, b), ascending and apart: ahead of step a each lane draws and drops the rows of steps [a, b)."""
    drops: tuple[Drop, ...] = ()
    """Ascending by step."""
    fresh: Mapping[int, tuple[int, ...]] = field(init=False, compare=False, repr=False)
    """Step -> the datasets that get their first share at it."""

    def __post_init__(self) -> None:
        fresh: dict[int, tuple[int, ...]] = {}
        waiting = set(range(len(self.names))) - self.begun
        for start, shares in zip(self.starts, self.shares, strict=True):
            if begun := tuple(i for i in sorted(waiting) if shares[i]):
                fresh[start] = begun
                waiting.difference_update(begun)
            if not waiting:
                break
        object.__setattr__(self, "fresh", fresh)

    def __repr__(self) -> str:
        entries = f"{len(self.starts):,} entries, the last from step {self.starts[-1]:,}"
        changed = f", {len(self.skips)} skips, {len(self.drops)} drops" if self.skips or self.drops else ""
        return f"ScheduleTable of {len(self.names)} datasets: {entries}{changed}"

    def at(self, step: int) -> tuple[int, ...]:
        """Returns the shares of `step`, one for each dataset, summing to PARTS."""
        return self.shares[self.phase(step)]

    def shown(self, step: int) -> str:
        """Returns the shares of `step` as text, such as `web 75.0000%, code 25.0000%`: each part of 2^20."""
        named = zip(self.names, self.at(step), strict=True)
        return ", ".join(f"{name} {share / PARTS:.4%}" for name, share in named)

    def phase(self, step: int) -> int:
        """Returns the index k of the entry that holds at `step`."""
        return bisect.bisect_right(self.starts, step) - 1

    def begins(self, step: int) -> bool:
        """Returns whether an entry begins at `step`."""
        return self.starts[self.phase(step)] == step

    def first_active(self) -> tuple[int | None, ...]:
        """Returns, for each dataset, the first step of which its share is > 0 (None: never)."""
        steps = self if not self.begun else replace(self, begun=frozenset())
        first = {i: start for start, begun in steps.fresh.items() for i in begun}
        return tuple(first.get(i) for i in range(len(self.names)))

    def waiting(self, step: int) -> tuple[str, ...]:
        """Returns the names of the datasets that had no share in any step before `step`."""
        first = self.first_active()
        never = (i for i, at in enumerate(first) if i not in self.begun and (at is None or at >= step))
        return tuple(self.names[i] for i in never)

    def with_datasets(self, names: tuple[str, ...], begun: frozenset[int] = frozenset()) -> ScheduleTable:
        """Returns the table for the datasets `names`: those of this table with more at the end, whose shares
        are zero, or the first of them."""
        if (names, begun) == (self.names, self.begun):
            return self
        more = (0,) * (len(names) - len(self.names))
        shares = tuple((entry + more)[: len(names)] for entry in self.shares)
        return ScheduleTable(names, self.starts, shares, begun, self.skips, self.drops)

    def skip_end(self, step: int) -> int:
        """Returns b where the rows of steps [step, b) are dropped ahead of `step`; else `step`."""
        return next((b for a, b in self.skips if a == step), step)

    def to_json(self) -> dict[str, Any]:
        """Returns the table as JSON data; the inverse of `from_json`."""
        drops = [{"step": drop.step, "documents": [list(d) for d in drop.documents]} for drop in self.drops]
        return self._as_json() | ({"drops": drops} if drops else {})

    def _as_json(self) -> dict[str, Any]:
        """Returns the table without what is dropped."""
        table: dict[str, Any] = {
            "names": list(self.names),
            "starts": list(self.starts),
            "shares": [list(s) for s in self.shares],
        }
        return table | ({"skips": [list(skip) for skip in self.skips]} if self.skips else {})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ScheduleTable:
        """Returns the table that `to_json` wrote."""
        return cls(
            tuple(data["names"]),
            tuple(data["starts"]),
            tuple(tuple(s) for s in data["shares"]),
            skips=tuple((a, b) for a, b in data.get("skips", ())),
            drops=tuple(
                Drop(drop["step"], tuple((d, f, r) for d, f, r in drop["documents"]))
                for drop in data.get("drops", ())
            ),
        )

    def hash(self) -> str:
        """Returns the SHA-256 of the whole table, as hex; computed once."""
        return self._hash

    @functools.cached_property
    def _hash(self) -> str:
        table = self._as_json() | ({"drops": [drop.hash for drop in self.drops]} if self.drops else {})
        return hashlib.sha256(json.dumps(table, separators=(",", ":")).encode()).hexdigest()

    def past(self, num_steps: int) -> tuple[str, list[str]]:
        """Returns (rolling hash of the shares of steps [0, num_steps), one short hash per BLOCK_STEPS).

        The hash of a whole block is computed once.
        """
        names = json.dumps(list(self.names)).encode()
        rolling = hashlib.sha256(names).hexdigest()
        blocks = []
        for first in range(0, num_steps, BLOCK_STEPS):
            last = min(first + BLOCK_STEPS, num_steps)
            block = self._blocks.get(last) or self._block_hash(first, last)
            if last == first + BLOCK_STEPS:
                self._blocks[last] = block
            blocks.append(block[:16])
            rolling = hashlib.sha256((rolling + block).encode()).hexdigest()
        return rolling, blocks

    @functools.cached_property
    def _blocks(self) -> dict[int, str]:
        """End of a whole block -> its hash, as far as somebody asked."""
        return {}

    def _block_hash(self, first: int, last: int) -> str:
        skips = [(a, b, self._runs(a, b)) for a, b in self.skips if first <= a < last]
        drops = [(drop.step, drop.hash) for drop in self.drops if first <= drop.step < last]
        runs = self._runs(first, last)
        return hashlib.sha256(
            json.dumps([runs, skips, drops] if skips or drops else runs).encode()
        ).hexdigest()

    def _runs(self, first: int, last: int) -> list[tuple[int, tuple[int, ...]]]:
        """Returns (steps, their shares) of the steps [first, last), each unlike the one before."""
        inside = slice(bisect.bisect_right(self.starts, first), bisect.bisect_left(self.starts, last))
        cuts = [first, *self.starts[inside], last]
        runs: list[tuple[int, tuple[int, ...]]] = []
        for a, b in pairwise(cuts):
            shares = self.at(a)
            if runs and runs[-1][1] == shares:
                runs[-1] = (runs[-1][0] + b - a, shares)
            else:
                runs.append((b - a, shares))
        return runs

    def first_difference(self, other: ScheduleTable, num_steps: int | None = None) -> int | None:
        """Returns the first step in [0, num_steps) of which shares, skips or drops differ, or None.

        Without `num_steps` all steps are compared. Rows of skipped steps [a, b) are drawn ahead of step a:
        shares that differ in them differ at a.
        """
        if self.names != other.names:
            return None if num_steps == 0 else 0
        skips = {a for a, _ in {*self.skips} ^ {*other.skips}}
        skips |= {a for a, b in self.skips if self._runs(a, b) != other._runs(a, b)}
        drops = {drop.step for drop in {*self.drops} ^ {*other.drops}}
        for step in sorted({*self.starts, *other.starts, *skips, *drops}):
            if num_steps is not None and step >= num_steps:
                return None
            if step in skips or step in drops or self.at(step) != other.at(step):
                return step
        return None


def compile_schedule(schedule: Schedule, context: ScheduleContext) -> ScheduleTable:
    """Returns the integer table of `schedule`; steps whose shares equal those before are merged."""
    changes, total = getattr(schedule, "changes", None), context.total_steps
    where = f"schedule {type(schedule).__name__}"
    if changes is not None:
        steps: Sequence[int] = [operator.index(step) for step in changes()]
    elif total is None:
        raise ValueError(f"{where}: has no `changes()`, so the recipe must say `total_steps`")
    elif total > MAX_ASKED:
        raise ValueError(
            f"{where}: has no `changes()`, so it is asked at every step, of {MAX_ASKED:,} at most, got "
            f"`total_steps` = {total:,}; give it `changes()`"
        )
    else:
        steps = range(total)
    if not steps or steps[0] != 0 or any(b <= a for a, b in pairwise(steps)):
        raise ValueError(f"{where}: `changes()` must ascend from 0, got {list(steps)[:8]}")
    starts: list[int] = []
    shares: list[tuple[int, ...]] = []
    last = np.full((1, len(context.names)), -1)
    for first in range(0, len(steps), TOGETHER):
        some = steps[first : first + TOGETHER]
        mixtures = [_kept(schedule.weights(step)) for step in some]
        entries = shares_of_each(mixtures, context.names, some)
        changed = (entries != np.concatenate([last, entries[:-1]])).any(axis=1)
        starts += compress(some, changed.tolist())
        shares += map(tuple, entries[changed].tolist())
        last = entries[-1:]
    return ScheduleTable(context.names, tuple(starts), tuple(shares))


def _kept(weights: Weights) -> Weights:
    """Returns the weights as they are now: a schedule may fill one mapping at every step."""
    return dict(weights) if isinstance(weights, Mapping) else weights
