"""Whether bounds can be met at all: the steps' tokens spread over datasets, as a flow of whole numbers.

Upstream and downstream: `capping.py`. A step may give tokens only to the datasets that have a share in it;
a dataset takes at most its cap, or wants at least its floor. The largest flow from steps to datasets
(augmenting paths) says whether it can be done, and the smallest cut which datasets and steps are short, and
by how much.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Datasets and steps of which the bounds contradict each other; amounts in steps times PARTS."""

    datasets: tuple[int, ...]
    num_steps: int
    """Steps in which no other dataset (caps), or any of these (floors), has a share."""
    needed: Fraction
    room: Fraction

    @property
    def missing(self) -> Fraction:
        """Returns by how much the room falls short."""
        return self.needed - self.room


def shortage(
    steps: Int64, shares: Int64, bounds: Mapping[int, Fraction], *, is_floor: bool
) -> Shortage | None:
    """Returns where caps (or floors) cannot be met by any shares; None where they can.

    `steps` is (K,), the length of each entry, and `shares` (K, m), of which only what is > 0 counts.
    """
    parts = int(shares[0].sum())
    patterns, which = np.unique(shares > 0, axis=0, return_inverse=True)
    lengths = [int(steps[which.reshape(-1) == i].sum()) for i in range(len(patterns))]
    edges = [np.flatnonzero(pattern).tolist() for pattern in patterns]
    total = Fraction(sum(lengths) * parts)
    without = Fraction(0) if is_floor else total
    room = [max(Fraction(0), bounds.get(d, without)) for d in range(shares.shape[1])]
    reached, flow = _flow([Fraction(n * parts) for n in lengths], edges, room)
    if flow == (sum(room) if is_floor else total):
        return None
    if is_floor:
        short = tuple(d for d in range(len(room)) if d not in reached[1] and room[d])
        able = [p for p, datasets in enumerate(edges) if set(datasets) & set(short)]
    else:
        short = tuple(sorted(reached[1]))
        able = sorted(reached[0])
    num_steps = sum(lengths[p] for p in able)
    given, wanted = Fraction(num_steps * parts), sum((room[d] for d in short), Fraction(0))
    needed, there = (wanted, given) if is_floor else (given, wanted)
    return Shortage(datasets=short, num_steps=num_steps, needed=needed, room=there)


def _flow(
    supply: list[Fraction], edges: list[list[int]], room: list[Fraction]
) -> tuple[tuple[set[int], set[int]], Fraction]:
    """Returns what the source still reaches, (patterns, datasets), and the largest flow."""
    left, free = list(supply), list(room)
    sent = {(p, d): Fraction(0) for p, ds in enumerate(edges) for d in ds}
    while True:
        way, reached = _way(left, free, edges, sent)
        if not way:
            return reached, sum(supply) - sum(left, Fraction(0))
        ahead, back = (
            set(zip(way[::2], way[1::2], strict=True)),
            list(zip(way[2::2], way[1:-1:2], strict=True)),
        )
        amount = min([left[way[0]], free[way[-1]], *(sent[pair] for pair in back)])
        left[way[0]] -= amount
        free[way[-1]] -= amount
        for pair in (*ahead, *back):
            sent[pair] += amount if pair in ahead else -amount


def _way(
    left: list[Fraction],
    free: list[Fraction],
    edges: list[list[int]],
    sent: Mapping[tuple[int, int], Fraction],
) -> tuple[list[int], tuple[set[int], set[int]]]:
    """Returns a shortest way from a pattern with something left to a dataset with room, and what is reached.

    A way names patterns and datasets in turn; from a dataset to a pattern flow is taken back.
    """
    ways = {(True, p): [p] for p, amount in enumerate(left) if amount}
    waiting = deque(ways)
    while waiting:
        is_pattern, node = here = waiting.popleft()
        if not is_pattern and free[node]:
            return ways[here], (set(), set())
        beyond = (
            edges[node] if is_pattern else [p for p, ds in enumerate(edges) if node in ds and sent[p, node]]
        )
        for there in ((not is_pattern, n) for n in beyond):
            if there not in ways:
                ways[there] = [*ways[here], there[1]]
                waiting.append(there)
    return [], ({n for is_p, n in ways if is_p}, {n for is_p, n in ways if not is_p})
