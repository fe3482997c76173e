"""Whether bounds can be met at all: the steps' tokens spread over datasets, as a flow of whole numbers.

Upstream and downstream: `allocate.py`. A step may give tokens only to the datasets that have a share in it;
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
    sent: dict[tuple[int, int], Fraction] = {(p, d): Fraction(0) for p, ds in enumerate(edges) for d in ds}
    while True:
        path, reached = _path(left, free, edges, sent)
        if not path:
            return reached, sum(supply) - sum(left, Fraction(0))
        back = [sent[p, d] for (p, d), is_back in path if is_back]
        first, last = path[0][0][0], path[-1][0][1]
        amount = min([left[first], free[last], *back])
        left[first] -= amount
        free[last] -= amount
        for pair, is_back in path:
            sent[pair] += -amount if is_back else amount


def _path(
    left: list[Fraction],
    free: list[Fraction],
    edges: list[list[int]],
    sent: Mapping[tuple[int, int], Fraction],
) -> tuple[list[tuple[tuple[int, int], bool]], tuple[set[int], set[int]]]:
    """Returns a shortest way from a pattern with something left to a dataset with room, and what is reached.

    Its steps are ((pattern, dataset), whether the flow between them is taken back).
    """
    came: dict[tuple[bool, int], tuple[bool, int] | None] = {
        (True, p): None for p, amount in enumerate(left) if amount
    }
    waiting = deque(came)
    while waiting:
        is_pattern, node = here = waiting.popleft()
        if not is_pattern and free[node]:
            return _steps_to(here, came), (set(), set())
        if is_pattern:
            beyond = [(False, d) for d in edges[node]]
        else:
            beyond = [(True, p) for p, ds in enumerate(edges) if node in ds and sent[p, node]]
        for there in beyond:
            if there not in came:
                came[there] = here
                waiting.append(there)
    return [], ({n for is_p, n in came if is_p}, {n for is_p, n in came if not is_p})


def _steps_to(
    end: tuple[bool, int], came: Mapping[tuple[bool, int], tuple[bool, int] | None]
) -> list[tuple[tuple[int, int], bool]]:
    found: list[tuple[tuple[int, int], bool]] = []
    here, before = end, came[end]
    while before is not None:
        is_back = not before[0]
        pair = (here[1], before[1]) if is_back else (before[1], here[1])
        found.append((pair, is_back))
        here, before = before, came[before]
    return found[::-1]
