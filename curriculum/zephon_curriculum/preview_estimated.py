"""The estimated preview: the planned mixture of a whole run, from its table alone, in well under a second.

Upstream: a recipe, a run folder or a table. Downstream: notebooks and charts, which take its columns. No data
is opened; what is planned is exact, the tokens that a lane really draws lie within a few pieces of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zephon import PARTS, ScheduleTable
from zephon_curriculum.opening import PLAIN, Named, Opening, recipe_of, table_of

MAX_POINTS = 2000
"""At most so many steps are shown."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EstimatedPreview:
    """The planned mixture of a whole run at n steps of it; D datasets."""

    names: tuple[str, ...]
    steps: NDArray[np.int64]
    """(n,) ascending."""
    shares: NDArray[np.float64]
    """(n, D) planned at each of the steps."""
    tokens: NDArray[np.float64]
    """(n, D) planned before each of the steps."""
    total_tokens: NDArray[np.float64]
    """(D,) planned in all steps."""
    tokens_per_step: int


def preview_estimated(
    named: Named | ScheduleTable,
    steps: range | int | None = None,
    *,
    tokens_per_step: int = 0,
    how: Opening = PLAIN,
) -> EstimatedPreview:
    """Returns the planned mixture of the steps, from the table alone, at 2,000 of them or fewer.

    `steps` defaults to the recipe's `total_steps`. Cost: under 0.3 s for a table of 100,000 steps.
    A table has no recipe that says `tokens_per_step`; without it, tokens are counted in steps.
    """
    if isinstance(named, ScheduleTable):
        table, total, per_step = named, None, tokens_per_step or 1
    else:
        recipe = recipe_of(named, how)
        table, total, per_step = table_of(named, how), recipe.total_steps, recipe.tokens_per_step
    wanted = _steps_of(steps, total)
    points = _points(table, wanted)
    starts = np.array(table.starts, dtype=np.int64)
    shares = np.array(table.shares, dtype=np.int64)
    before = np.zeros_like(shares)
    np.cumsum(shares[:-1] * np.diff(starts)[:, None], axis=0, out=before[1:])

    def drawn(at: NDArray[np.int64]) -> NDArray[np.float64]:
        entry = np.searchsorted(starts, at, side="right") - 1
        parts = before[entry] + shares[entry] * (at - starts[entry])[:, None]
        return parts.astype(np.float64) * (per_step / PARTS)

    first, last = drawn(np.array([wanted.start, wanted.stop], dtype=np.int64))
    return EstimatedPreview(
        names=table.names,
        steps=points,
        shares=shares[np.searchsorted(starts, points, side="right") - 1] / PARTS,
        tokens=drawn(points) - first,
        total_tokens=last - first,
        tokens_per_step=per_step,
    )


def _steps_of(steps: range | int | None, total: int | None) -> range:
    if steps is None:
        if total is None:
            raise ValueError(
                "`steps` must be given, as the recipe has no `total_steps`; give a number of steps"
            )
        steps = total
    found = range(steps) if isinstance(steps, int) else steps
    if not found or found.step != 1 or found.start < 0:
        raise ValueError(f"`steps` must be a number > 0 or a range(a, b) of steps from 0, got {steps!r}")
    return found


def _points(table: ScheduleTable, steps: range) -> NDArray[np.int64]:
    """Returns the steps to show: all, or spread evenly, and with them the steps of change where few."""
    if len(steps) <= MAX_POINTS:
        return np.arange(steps.start, steps.stop, dtype=np.int64)
    changes = [s + d for s in table.starts[: MAX_POINTS + 1] for d in (-1, 0) if s + d in steps]
    few = changes if len(changes) <= MAX_POINTS // 2 else []
    spread = np.linspace(steps.start, steps.stop - 1, MAX_POINTS - len(few)).round().astype(np.int64)
    return np.unique(np.concatenate([spread, np.array(few, dtype=np.int64)]))
