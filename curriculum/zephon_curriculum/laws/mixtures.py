"""Mixtures as ratios, the limits of their shares, and whether a set of them tells datasets apart.

Upstream: weights and shares that users give. Downstream: the other modules of this folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from zephon import shares_of
from zephon.cli.common import add_row, new_table

RANK_TOLERANCE = 1e-3
"""Mixtures that differ by less than this part of the largest singular value differ by nothing."""

Floats = NDArray[np.float64]


def ratios_of(weights: Mapping[str, float], names: Sequence[str], where: str) -> Floats:
    """Returns weights of any sum as ratios in the order of `names`; refuses what is no mixture of these."""
    shares_of(weights, names, where)
    values = np.array([weights[name] for name in names], np.float64)
    return np.asarray(values / values.sum())


def parts_of(ratios: Floats, names: Sequence[str], least: float) -> tuple[int, ...]:
    """Returns ratios as whole parts of 2^20, those below `least` as 0."""
    kept = np.where(ratios < least, 0.0, ratios)
    return shares_of(dict(zip(names, kept.tolist(), strict=True)), names, "ratios")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLimits:
    """What a mixture must keep: low <= ratios <= high."""

    low: Floats
    high: Floats

    def project(self, ratios: Floats) -> Floats:
        """Returns the nearest mixture that keeps the limits."""
        below, above = float((ratios - self.high).min()) - 1, float((ratios - self.low).max()) + 1
        for _ in range(100):
            middle = (below + above) / 2
            if np.clip(ratios - middle, self.low, self.high).sum() > 1:
                below = middle
            else:
                above = middle
        return np.clip(ratios - (below + above) / 2, self.low, self.high)


def make_limits(
    names: Sequence[str], max_shares: Mapping[str, float], min_shares: Mapping[str, float]
) -> ShareLimits:
    """Returns the limits of the shares; refuses those that no mixture keeps, and says by how much."""
    for what, given in (("`max_shares`", max_shares), ("`min_shares`", min_shares)):
        for name, value in given.items():
            if name not in names:
                raise ValueError(f"{what} names {name!r}, which is no dataset of {', '.join(names)}")
            if not 0 <= value <= 1:
                raise ValueError(f"{what} of {name!r} must be in [0, 1], got {value!r}")
    low = np.array([min_shares.get(name, 0.0) for name in names])
    high = np.array([max_shares.get(name, 1.0) for name in names])
    for name, least, most in zip(names, low, high, strict=True):
        if least > most:
            raise ValueError(f"`min_shares` of {name!r} must be <= its max share, {most:g}, got {least:g}")
    least, most = low.sum(), high.sum()
    if most < 1 - 1e-12:
        raise ValueError(f"`max_shares` must sum to 1 or more, got {most:g}: {1 - most:g} short")
    if least > 1 + 1e-12:
        raise ValueError(f"`min_shares` must sum to 1 or less, got {least:g}: {least - 1:g} too much")
    return ShareLimits(low=low, high=high)


def unmixed(ratios: Floats, names: Sequence[str]) -> str:
    """Returns why mixtures cannot tell the datasets apart, or nothing where they can."""
    singular = np.linalg.svd(ratios, compute_uv=False)
    rank = int((singular > RANK_TOLERANCE * singular[0]).sum())
    if rank >= len(names):
        return ""
    still = [name for name, column in zip(names, ratios.T, strict=True) if np.ptp(column) <= RANK_TOLERANCE]
    if still:
        return f"all have the same share of {', '.join(still)}"
    return f"their mixtures vary in {rank - 1} ways, and {len(names)} datasets take {len(names) - 1}"


def spread_table(names: Sequence[str], ratios: Floats) -> Table:
    """Returns a table of how the shares of mixtures spread."""
    table = new_table("dataset", "#least", "#mean", "#greatest", "#runs without")
    for name, column in zip(names, ratios.T, strict=True):
        ends = (f"{share:.1%}" for share in (column.min(), column.mean(), column.max()))
        add_row(table, name, *ends, int((column == 0).sum()))
    return table
