"""Schedules within bounds: the table nearest to one wished for in which epochs are in bounds, and budgets.

Upstream: a compiled schedule and sizes in tokens. Downstream: recipes, `make.py` and `zephon plan --cap`. The
one place that computes with floats, the fit, uses single multiplications, additions and divisions in a fixed
order, which give the same bits on every machine.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from zephon import PARTS, ScheduleTable
from zephon_curriculum.plan.allocate import Amounts, exact_amounts
from zephon_curriculum.plan.curve import MAX_STEPS, Curve
from zephon_curriculum.plan.shortage import Shortage, shortage

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

MAX_ROUNDS = 1000
TOLERANCE = Fraction(1, 4 * PARTS)
"""The fit stops where no bound is missed, and no total moves, by more than this part of the run."""
MAX_HASTE = 1 << 12
"""A factor that moves the same way round after round moves by a power of its step, at most this one."""
_SCALE = 1 << 32


def cap_schedule(
    table: ScheduleTable,
    *,
    sizes: Amounts,
    total_steps: int,
    tokens_per_step: int,
    max_epochs: Amounts,
    min_epochs: Amounts | None = None,
    first_step: int = 0,
) -> ScheduleTable:
    """Returns the table nearest to `table` with which every dataset's epochs over the run are in bounds.

    Each bounded dataset has one factor for all steps from `first_step` on; within a step the others keep
    their ratios and take what is left. It is the table of the least relative entropy to the one wished for.
    Bounds are met to a millionth of the run (shares are parts of 2^20, rounded by largest remainder). What
    is drawn before `first_step` counts, and what the table skips. Refused, with the tokens that are short,
    where no table can do it.
    """
    starts, steps, shares = _entries(table, total_steps, first_step)
    curve = Curve(table, tokens_per_step)
    size_of, datasets = exact_amounts("sizes", sizes), dict.fromkeys(table.names, Fraction(0))
    factor = Fraction(PARTS, tokens_per_step)  # tokens -> steps times PARTS
    caps, floors = dict[int, Fraction](), dict[int, Fraction]()
    for what, epochs, bounds in (("max_epochs", max_epochs, caps), ("min_epochs", min_epochs or {}, floors)):
        for name, number in exact_amounts(what, epochs, datasets).items():
            if name not in size_of:
                raise ValueError(f"`sizes` must have the tokens of {name!r}, of which the epochs are bounded")
            index = table.names.index(name)
            bounds[index] = number * size_of[name] * factor - curve.drawn(index, first_step)
    for index, floor in floors.items():
        if floor > caps.get(index, floor):
            raise ValueError(
                f"`min_epochs` of {table.names[index]!r} must be <= its max epochs; lower it or raise those"
            )
    for bounds, is_floor in ((caps, False), (floors, True)):
        if bounds and (found := shortage(steps, shares, bounds, is_floor=is_floor)):
            raise ValueError(_short(found, table, tokens_per_step, is_floor))
    fitted = _fit(steps, shares, *_implied(caps, floors, len(table.names), int(steps.sum()) * PARTS))
    return joined(table, first_step, starts, whole_shares(fitted))


def steps_for_epochs(
    table: ScheduleTable,
    sizes: Amounts,
    tokens_per_step: int,
    epochs: float | Fraction,
    names: Sequence[str] | None = None,
) -> int:
    """Returns the least number of steps that draw `epochs` times the tokens of `names`, together.

    Without `names`, of all datasets that the table ever draws. Together: one of them may have more epochs and
    another fewer. What the table skips counts. Of datasets whose share ends before it is reached, refused.
    """
    exact, curve = exact_amounts("sizes", sizes), Curve(table, tokens_per_step)
    active = [n for n, first in zip(table.names, table.first_active(), strict=True) if first is not None]
    chosen = list(names) if names is not None else active
    amount = Fraction(epochs) * sum((exact[name] for name in chosen), Fraction(0))
    columns, wanted = [table.names.index(name) for name in chosen], -(-(amount * PARTS) // tokens_per_step)

    def drawn(num_steps: int) -> int:
        return sum(curve.drawn(column, num_steps) for column in columns)

    steps = bisect.bisect_left(range(MAX_STEPS), wanted, key=drawn)
    if steps < MAX_STEPS:
        return steps
    raise ValueError(
        f"{float(epochs):g} epochs of {', '.join(chosen)} are never reached: the schedule ends at share 0 "
        f"after {curve.tokens(drawn(MAX_STEPS)):,} tokens of {int(amount):,}"
    )


def _entries(table: ScheduleTable, total_steps: int, first_step: int) -> tuple[list[int], Int64, Int64]:
    """Returns the entries of [first_step, total_steps), and of what these skip: starts, draws and shares.

    Their first steps; how often each is drawn, in steps, (K,); its shares, (K, m).
    """
    if not 0 <= first_step < total_steps:
        raise ValueError(f"`first_step` must be in [0, {total_steps}), got {first_step}")
    skips = [(a, b) for a, b in table.skips if first_step <= a < total_steps]
    end = max([total_steps, *(b for _, b in skips)])
    starts = [first_step, *(s for s in table.starts if first_step < s < end)]
    first = table.phase(first_step)
    steps = np.zeros(len(starts), dtype=np.int64)
    for a, b in [(first_step, total_steps), *skips]:
        inside = np.clip(np.array([*starts, end]), a, b)
        steps += np.diff(inside)
    return starts, steps, np.array(table.shares[first : first + len(steps)], dtype=np.int64)


def _implied(
    caps: Mapping[int, Fraction], floors: Mapping[int, Fraction], count: int, total: int
) -> tuple[dict[int, Fraction], dict[int, Fraction]]:
    """Returns the bounds with what follows from them: what the others' floors leave, or their caps ask for.

    They change no solution; without them bounds that leave no room at all would be neared for ever.
    """
    lows = {i: max(Fraction(0), floors.get(i, Fraction(0))) for i in range(count)}
    highs = {i: min(Fraction(total), caps.get(i, Fraction(total))) for i in range(count)}
    spare, excess = total - sum(lows.values()), sum(highs.values()) - total
    tighter = {i: min(highs[i], lows[i] + spare) for i in range(count)}
    lows = {i: max(lows[i], highs[i] - excess) for i in range(count)}
    return (
        {i: high for i, high in tighter.items() if i in caps or high < total},
        {i: low for i, low in lows.items() if low > 0},
    )


def _fit(
    steps: Int64, shares: Int64, caps: Mapping[int, Fraction], floors: Mapping[int, Fraction]
) -> Float64:
    """Returns the fitted shares, (K, m) in fractions: wished share times the dataset's factor, normalised."""
    num, bounded = shares.shape[1], sorted({*caps, *floors})
    factors, haste, rose, previous = [1.0] * num, [1] * num, [False] * num, [Fraction(-1)] * num
    slack = TOLERANCE * int(steps.sum()) * PARTS
    free = shares.sum(axis=1) - shares[:, bounded].sum(axis=1)
    for _ in range(MAX_ROUNDS):
        totals = _totals(steps, shares, free, {i: factors[i] for i in bounded})
        is_met = all(totals[i] <= cap + slack for i, cap in caps.items())
        is_met = is_met and all(totals[i] >= floor - slack for i, floor in floors.items())
        if is_met and all(abs(totals[i] - previous[i]) <= slack for i in bounded):
            return normalised(shares, factors)
        for i in bounded:
            if totals[i] and factors[i]:
                low = factors[i] * float(floors.get(i, Fraction(0)) / totals[i])
                high = factors[i] * float(max(Fraction(0), caps[i]) / totals[i]) if i in caps else math.inf
                change = max(low, min(1.0, high)) / factors[i]
                goes_on = change != 1 and rose[i] == (change > 1)
                haste[i], rose[i] = min(2 * haste[i], MAX_HASTE) if goes_on else 1, change > 1
                factors[i] *= _whole_power(change, haste[i])
            previous[i] = totals[i]
    raise ValueError(
        f"the bounds leave so little room that {MAX_ROUNDS} rounds do not meet them; loosen one a little"
    )


def _totals(steps: Int64, shares: Int64, free: Int64, factors: Mapping[int, float]) -> dict[int, Fraction]:
    """Returns what each bounded dataset draws in all steps; `free` is the others' share in each entry."""
    columns = {i: shares[:, i] * factor for i, factor in factors.items()}
    total = free.astype(np.float64)
    for column in columns.values():
        total += column
    parts = {i: (column / total * _SCALE).astype(np.int64) for i, column in columns.items()}
    return {i: Fraction(int(steps @ column) * PARTS, _SCALE) for i, column in parts.items()}


def _whole_power(base: float, power: int) -> float:
    """Returns base^power for a power of two, by squaring: the same bits on every machine."""
    while power > 1:
        base, power = min(base * base, 2.0**64), power >> 1
    return max(base, 2.0**-64) if base else 0.0


def normalised(shares: Int64, factors: Sequence[float]) -> Float64:
    """Returns shares times factors over their sum, row by row; added up in the order of the datasets."""
    scaled = shares * np.array(factors)
    total = np.zeros(len(shares))
    for column in range(shares.shape[1]):
        total += scaled[:, column]
    return np.asarray(scaled / total[:, None])


def whole_shares(fitted: Float64) -> Int64:
    """Returns shares that sum to PARTS in every row: largest remainder, ties to the dataset named first."""
    quotas = (fitted * (PARTS * float(_SCALE))).astype(np.int64)
    whole = quotas >> 32
    remainder = quotas & (_SCALE - 1)
    missing = PARTS - whole.sum(axis=1)
    order = np.argsort(-remainder, axis=1, kind="stable")
    gets = np.arange(fitted.shape[1])[None, :] < missing[:, None]
    np.put_along_axis(whole, order, np.take_along_axis(whole, order, axis=1) + gets, axis=1)
    return whole


def joined(table: ScheduleTable, first_step: int, starts: Sequence[int], shares: Int64) -> ScheduleTable:
    """Returns `table` before `first_step` and `shares` from it on, equal neighbours merged."""
    entries = [(s, e) for s, e in zip(table.starts, table.shares, strict=True) if s < first_step]
    entries += zip(starts, map(tuple, shares.tolist()), strict=True)
    kept = [entries[0], *(b for a, b in pairwise(entries) if b[1] != a[1])]
    return replace(table, starts=tuple(s for s, _ in kept), shares=tuple(e for _, e in kept))


def _short(found: Shortage, table: ScheduleTable, tokens_per_step: int, is_floor: bool) -> str:
    names = ", ".join(table.names[i] for i in found.datasets)
    tokens = -(-found.missing * tokens_per_step // PARTS)
    need, room = (int(n * tokens_per_step // PARTS) for n in (found.needed, found.room))
    if is_floor:
        return (
            f"the floors of {names} need {need:,} tokens, and the steps in which they have a share give "
            f"{room:,}: {int(tokens):,} short; lower a floor, or give them a share in more steps"
        )
    return (
        f"{found.num_steps:,} steps draw {need:,} tokens from {names} alone, and their caps leave {room:,}: "
        f"{int(tokens):,} short; raise a cap, add data, shorten the run or give another dataset a share there"
    )
