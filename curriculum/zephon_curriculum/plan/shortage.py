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
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Node = tuple[str, int]

SOURCE, SINK = ("source", 0), ("sink", 0)


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
    parts, num = int(shares[0].sum()), shares.shape[1]
    patterns, which = np.unique(shares > 0, axis=0, return_inverse=True)
    lengths = [int(steps[which.reshape(-1) == i].sum()) for i in range(len(patterns))]
    total = Fraction(sum(lengths) * parts)
    room = [max(Fraction(0), bounds.get(d, Fraction(0) if is_floor else total)) for d in range(num)]
    wanted = sum(room) if is_floor else total
    able = [set(np.flatnonzero(pattern).tolist()) for pattern in patterns]
    left: dict[Node, dict[Node, Fraction]] = {
        SOURCE: {("pattern", p): Fraction(length * parts) for p, length in enumerate(lengths)},
        SINK: {},
    }
    left |= {("pattern", p): {("dataset", d): total for d in datasets} for p, datasets in enumerate(able)}
    left |= {("dataset", d): {SINK: room[d]} for d in range(num)}
    flow, reached = _flow(left)
    if flow == wanted:
        return None
    if is_floor:
        short = tuple(d for d in range(num) if ("dataset", d) not in reached and room[d])
        theirs = [p for p, datasets in enumerate(able) if datasets & set(short)]
    else:
        short = tuple(d for d in range(num) if ("dataset", d) in reached)
        theirs = [p for p in range(len(able)) if ("pattern", p) in reached]
    num_steps = sum(lengths[p] for p in theirs)
    given, asked = Fraction(num_steps * parts), sum((room[d] for d in short), Fraction(0))
    needed, there = (asked, given) if is_floor else (given, asked)
    return Shortage(datasets=short, num_steps=num_steps, needed=needed, room=there)


def _flow(left: dict[Node, dict[Node, Fraction]]) -> tuple[Fraction, set[Node]]:
    """Returns the largest flow from SOURCE to SINK, and what the source reaches beside it.

    `left` is what each edge still takes, the flow back too; shortest ways first (Edmonds and Karp 1972).
    """
    flow = Fraction(0)
    while True:
        before, waiting = {SOURCE: SOURCE}, deque([SOURCE])
        while waiting and SINK not in before:
            here = waiting.popleft()
            for there, amount in left[here].items():
                if amount and there not in before:
                    before[there] = here
                    waiting.append(there)
        if SINK not in before:
            return flow, set(before)
        way = [SINK]
        while way[-1] != SOURCE:
            way.append(before[way[-1]])
        edges = list(pairwise(reversed(way)))
        amount = min(left[a][b] for a, b in edges)
        for a, b in edges:
            left[a][b] -= amount
            left[b][a] = left[b].get(a, Fraction(0)) + amount
        flow += amount
