"""Deals chunks to the lane groups of a dataset, evenly in bytes; 10^7 of them in a fraction of a second.

Upstream: `bits.py`. Downstream: `order.py`, which says how many groups there are and shuffles what they got.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zephon.bits import permutation

DEAL_RUNS = 1 << 18
"""More chunks than these are dealt to the groups in runs of consecutive ones, at most so many runs."""

Int64 = NDArray[np.int64]
Integers = NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Dealt:
    """The chunks of the groups, as runs of consecutive chunks."""

    starts: Int64
    """(U,) the first chunk of each run, ascending within a group, group after group."""
    lengths: Int64
    """(U,) chunks of each run."""
    cuts: Int64
    """(G + 1,) group i has the runs [cuts[i], cuts[i + 1])."""

    def chunks(self, group: int) -> Int64:
        """Returns the chunks of a group, ascending."""
        runs = slice(int(self.cuts[group]), int(self.cuts[group + 1]))
        return _spread(self.starts[runs], self.lengths[runs])

    def sums(self, numbers: Integers) -> Int64:
        """Returns the sums of `numbers`, (C,) by chunk, over the chunks of each group, (G,)."""
        return self._by_group(_run_sums(self.starts, numbers))

    def num_chunks(self) -> Int64:
        """Returns the chunks of each group, (G,)."""
        return self._by_group(self.lengths)

    def _by_group(self, of_runs: Int64) -> Int64:
        return np.diff(np.append(0, np.cumsum(of_runs))[self.cuts])


def deal(num_groups: int, deal_key: int, num_bytes: Integers) -> Dealt:
    """Returns the chunks of each group: dealt in seeded order, each to the group with the fewest bytes.

    Above DEAL_RUNS chunks, runs of consecutive ones are dealt; the last `num_groups` runs of the order chunk
    by chunk, so that the groups come as even as if all were. Ties go to the first group.
    """
    num_chunks = len(num_bytes)
    if num_groups == 1:
        return Dealt(np.array([0]), np.array([num_chunks]), np.array([0, 1]))
    run_chunks = -(-num_chunks // DEAL_RUNS)
    starts = permutation(deal_key, 0, -(-num_chunks // run_chunks)) * run_chunks
    lengths = np.minimum(run_chunks, num_chunks - starts)
    if run_chunks > 1:
        whole = max(0, len(starts) - num_groups)
        single = _spread(starts[whole:], lengths[whole:])
        starts = np.append(starts[:whole], single)
        lengths = np.append(lengths[:whole], np.ones_like(single))
    group = _fewest_bytes(num_groups, _run_sums(starts, num_bytes))
    by_group = np.lexsort((starts, group))
    cuts = np.searchsorted(group[by_group], np.arange(num_groups + 1))
    return Dealt(starts[by_group], lengths[by_group], cuts)


def _spread(starts: Int64, lengths: Int64) -> Int64:
    """Returns the numbers of the ranges [starts[i], starts[i] + lengths[i]), one after the other."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(int(lengths.sum()), dtype=np.int64)


def _run_sums(starts: Int64, numbers: Integers) -> Int64:
    """Returns the sum of `numbers` over each run, that is, from its start to the next start of any."""
    by_start = np.argsort(starts)
    sums = np.empty(len(starts), dtype=np.int64)
    sums[by_start] = np.add.reduceat(numbers, starts[by_start], dtype=np.int64)
    return sums


def _fewest_bytes(num_groups: int, sizes: Int64) -> Int64:
    """Returns the group that each of `sizes` is dealt to, in turn."""
    heap = list(range(num_groups))  # bytes * num_groups + group: by bytes, then by group
    groups = []
    for size in sizes.tolist():
        least = heap[0]
        groups.append(least % num_groups)
        heapq.heapreplace(heap, least + size * num_groups)
    return np.array(groups, dtype=np.int64)
