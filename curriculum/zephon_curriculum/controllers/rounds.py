"""The history of a run as columns: what the controllers compute with.

Upstream: observations. Downstream: `exp3.py` and `ado.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zephon import PARTS
from zephon_curriculum.controllers.protocol import Observation

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Observations without those that hold a NaN or an infinity; T of them, K datasets."""

    steps: NDArray[np.int64]  # (T,)
    losses: Floats  # (T, K), NaN where no label token was seen
    num_tokens: NDArray[np.int64]  # (T, K), since the run began
    shares: Floats  # (T, K), fractions in [0, 1]

    def intervals(self) -> Floats:
        """Returns the steps between the observations, the first counted from step 0."""  # (T,)
        return np.diff(self.steps, prepend=0).astype(np.float64)

    def realised(self) -> Floats:
        """Returns the fraction of the tokens drawn since the observation before; zeros where none was."""
        drawn = np.diff(self.num_tokens, axis=0, prepend=0).astype(np.float64)  # (T, K)
        total = drawn.sum(axis=1, keepdims=True)
        fractions: Floats = np.divide(drawn, total, out=np.zeros_like(drawn), where=total > 0)
        return fractions


def rounds_of(history: Sequence[Observation], names: Sequence[str]) -> Rounds:
    """Returns `history` as columns in the order of `names`, without rounds that have a NaN or an infinity.

    A dataset that an observation does not know yet was not seen in it. About 5 us for 20 datasets, each.
    """
    steps: list[int] = []
    losses: list[list[float]] = []
    num_tokens: list[list[int]] = []
    shares: list[list[int]] = []
    for seen in history:
        values = [seen.losses.get(name) for name in names]
        if all(value is None or math.isfinite(value) for value in values):
            steps.append(seen.step)
            losses.append([math.nan if value is None else value for value in values])
            num_tokens.append([seen.num_tokens.get(name, 0) for name in names])
            shares.append([seen.shares.get(name, 0) for name in names])
    shape = (len(steps), len(names))
    return Rounds(
        steps=np.array(steps, dtype=np.int64),
        losses=np.array(losses, dtype=np.float64).reshape(shape),
        num_tokens=np.array(num_tokens, dtype=np.int64).reshape(shape),
        shares=np.array(shares, dtype=np.float64).reshape(shape) / PARTS,
    )


def forward_filled(values: Floats) -> Floats:
    """Returns `values` (T, K) with each NaN replaced by the last number above it, where there is one."""
    rows = np.where(np.isnan(values), -1, np.arange(len(values))[:, None])
    last = np.maximum.accumulate(rows, axis=0)
    filled = np.take_along_axis(values, np.maximum(last, 0), axis=0)
    result: Floats = np.where(last < 0, np.nan, filled)
    return result


def by_name(names: Sequence[str], active: NDArray[np.int64], shares: Floats) -> dict[str, float]:
    """Returns the weights of all datasets: the shares of those that are active, 0 of the others."""
    decided = dict.fromkeys(names, 0.0)
    return decided | {names[i]: float(share) for i, share in zip(active, shares, strict=True)}


def with_floor(weights: Floats, floor: float) -> Floats:
    """Returns `weights` (K,) scaled to sum 1 with none under `floor`, which is at most 1 / K.

    Those above share the rest in proportion.
    """
    scaled = weights / weights.sum()
    low = np.zeros(len(scaled), dtype=bool)
    while True:
        rest = scaled[~low].sum()
        if rest <= 0:
            return np.full(len(scaled), 1.0 / len(scaled))
        raised = np.where(low, floor, scaled * ((1.0 - floor * low.sum()) / rest))
        below = (raised < floor) & ~low
        if not below.any():
            return raised
        low |= below
