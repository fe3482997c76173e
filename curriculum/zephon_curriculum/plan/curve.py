"""How much of each dataset is drawn by each step: whole numbers, whatever the length of the run.

Upstream: a compiled schedule. Downstream: `make.py`. Amounts are counted in parts, of which a step has PARTS
for its tokens_per_step tokens, so that nothing is rounded before it is shown.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon import PARTS, Recipe, ScheduleTable
from zephon_curriculum.quantity import Quantity

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

MAX_PHASES = 12
MAX_STEPS = 1 << 40
"""Parts of 2^20 of so many steps fit into 64 bits."""
LONG = 20
"""An entry that holds for at least one part in so many of the run is a phase of its own."""
RAMP_PARTS = 4
"""What lies between such entries is shown in at most so many phases."""


def undecided(recipe: Recipe) -> tuple[str, ...]:
    """Returns, as notes, what no schedule says of a run of a recipe: what its controller will decide."""
    if recipe.controller is None:
        return ()
    return ("the recipe has a [controller]: what that will decide in the run is not in these shares",)


class Curve:
    """What the steps of a table draw, with the steps that it skips, which are drawn and dropped.

    Drawing is in proportion to the shares; a lane differs from it by at most a few documents.
    """

    def __init__(self, table: ScheduleTable, tokens_per_step: int) -> None:
        self.table, self.tokens_per_step, self.skips = table, tokens_per_step, table.skips
        kind: Any = np.int64 if table.starts[-1] <= MAX_STEPS else object  # whole numbers of any size
        columns, rows = len(table.names), len(table.shares)
        numbers = np.fromiter(chain.from_iterable(table.shares), np.int64, rows * columns)
        self.shares, self.starts = numbers.reshape(rows, columns), np.array(table.starts, kind)
        drawn = np.diff(self.starts, append=self.starts[-1:])[:, None] * self.shares
        self._before = np.cumsum(drawn, axis=0) - drawn  # (K, m), parts drawn before each entry

    def delivered(self, dataset: int, num_steps: int) -> int:
        """Returns the parts in the rows of steps [0, num_steps)."""
        if num_steps <= 0:
            return 0
        entry = self.table.phase(num_steps - 1)
        inside = num_steps - self.table.starts[entry]
        return int(self._before[entry, dataset]) + inside * self.table.shares[entry][dataset]

    def tokens_before(self, steps: Int64) -> Float64:
        """Returns the tokens in the rows of the steps before each of `steps`, (n, D)."""
        entries = np.searchsorted(self.starts, steps, side="right") - 1
        inside = (steps - self.starts[entries])[:, None] * self.shares[entries].astype(np.float64)
        parts = np.asarray(self._before[entries] + inside, np.float64)
        return parts * (self.tokens_per_step / PARTS)

    def skipped(self, dataset: int, num_steps: int) -> int:
        """Returns the parts drawn and dropped before or in steps [0, num_steps)."""
        return sum(
            self.delivered(dataset, b) - self.delivered(dataset, a) for a, b in self.skips if a < num_steps
        )

    def drawn(self, dataset: int, num_steps: int) -> int:
        """Returns the parts drawn by the end of steps [0, num_steps)."""
        return self.delivered(dataset, num_steps) + self.skipped(dataset, num_steps)

    def all_drawn(self, num_steps: int) -> int:
        """Returns the parts of all datasets drawn by the end of steps [0, num_steps)."""
        return PARTS * (num_steps + sum(b - a for a, b in self.skips if a < num_steps))

    def tokens(self, parts: int) -> int:
        """Returns parts as tokens, rounded to the nearest."""
        return (2 * parts * self.tokens_per_step + PARTS) // (2 * PARTS)

    def step_of(self, dataset: int, tokens: float | Fraction, num_steps: int) -> int | None:
        """Returns the step, in [0, num_steps), in which more than `tokens` have been drawn; None: never."""
        wanted = int(Fraction(max(0, tokens)) * PARTS / self.tokens_per_step)  # parts are whole
        if self.drawn(dataset, num_steps) <= wanted:
            return None
        return bisect.bisect_right(range(num_steps), wanted, key=lambda s: self.drawn(dataset, s + 1))

    def when(self, dataset: int, tokens: Quantity, num_steps: int) -> Quantity | None:
        """Returns the step in which so many have been drawn, at most `num_steps`; None: most likely never."""
        value, low, high = (
            None if end is None else self.step_of(dataset, end, num_steps)
            for end in (tokens.value, tokens.low, tokens.high)
        )
        if value is None or tokens.high is None:
            return None if value is None else Quantity(value=value)
        return Quantity(value=value, low=low, high=num_steps if high is None else high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Consecutive steps with the same shares, or a part of a ramp."""

    start: int
    stop: int
    """The step after its last."""
    first: tuple[int, ...]
    """The shares of its first step, in parts of 2^20."""
    last: tuple[int, ...]
    drawn_tokens: tuple[int, ...]
    """Of each dataset, those skipped included."""


def phases(curve: Curve, num_steps: int) -> tuple[Phase, ...]:
    """Returns at most MAX_PHASES phases of steps [0, num_steps); short entries of ramps are put together."""
    table = curve.table
    found = []
    for start, stop in pairwise(_cuts([s for s in table.starts if s < num_steps], num_steps)):
        drawn = (curve.drawn(i, stop) - curve.drawn(i, start) for i in range(len(table.names)))
        tokens = tuple(curve.tokens(parts) for parts in drawn)
        found.append(
            Phase(start=start, stop=stop, first=table.at(start), last=table.at(stop - 1), drawn_tokens=tokens)
        )
    return tuple(found)


def _cuts(starts: Sequence[int], num_steps: int) -> list[int]:
    """Returns the steps at which phases begin, and the end."""
    ends = [*starts[1:], num_steps]
    if len(starts) <= MAX_PHASES:
        return [*starts, num_steps]
    cuts: list[int] = []
    is_ramp = False
    for start, end in zip(starts, ends, strict=True):
        is_long = (end - start) * LONG >= num_steps
        if is_long or not is_ramp:
            cuts.append(start)
        is_ramp = not is_long
    cuts.append(num_steps)
    room = max(1, min(RAMP_PARTS, MAX_PHASES // max(1, len(cuts) - 1)))
    split = [a + (b - a) * k // room for a, b in pairwise(cuts) for k in range(room if b - a >= room else 1)
             if k == 0 or bisect.bisect_right(starts, a) < bisect.bisect_left(starts, b)]  # fmt: skip
    split.append(num_steps)
    while len(split) - 1 > MAX_PHASES:  # many short holds: the shortest joins its neighbour
        shortest = min(range(1, len(split) - 1), key=lambda i: split[i + 1] - split[i - 1])
        del split[shortest]
    return split
