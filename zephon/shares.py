"""Shares: weights as whole parts of 2^20, so that equal ratios are equal on every machine.

Upstream: what schedules say. Downstream: `schedule.py` keeps them by step, `mixture.py` draws by them.
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

PARTS = 1 << 20
"""Shares are whole parts of this many."""
MAX_WHOLE = (1 << 62) // PARTS
"""Whole weights up to this are rounded as 64-bit numbers."""

Weights = Mapping[str, float]


def check_weights(weights: object, where: str) -> dict[str, Fraction]:
    """Returns the weights as exact fractions; refuses what is no finite number >= 0, or all zero."""
    if not isinstance(weights, Mapping) or not weights:
        raise ValueError(f"{where}: weights must map every dataset to a number, got {weights!r}")
    exact: dict[str, Fraction] = {}
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, numbers.Real):
            raise ValueError(f"{where}: the weight of {name!r} must be a number, got {weight!r}")
        exactly: Fraction | float
        if isinstance(weight, numbers.Rational):  # numpy's whole numbers too, which would overflow
            exactly = Fraction(int(weight.numerator), int(weight.denominator))
        else:
            exactly = float(weight)
        if (isinstance(exactly, float) and not math.isfinite(exactly)) or exactly < 0:
            raise ValueError(f"{where}: the weight of {name!r} must be finite and >= 0, got {weight!r}")
        exact[str(name)] = Fraction(exactly)
    if not any(exact.values()):
        raise ValueError(f"{where}: at least one weight must be > 0, got {dict(weights)!r}")
    return exact


def shares_of(weights: Weights, names: Sequence[str], where: str) -> tuple[int, ...]:
    """Returns the integer shares of `weights` in the order of `names`; they sum to PARTS.

    Largest remainder, ties to the dataset named first; exact arithmetic, so equal ratios give equal shares.
    """
    given = [weights.get(name) for name in names] if isinstance(weights, dict) else []
    if given and len(given) == len(weights) and any(given) and all(type(w) is int and w >= 0 for w in given):
        return _rounded_whole([int(weight) for weight in given if weight is not None])
    exact = check_weights(weights, where)
    if unknown := [name for name in exact if name not in names]:
        raise ValueError(f"{where}: no dataset is named {unknown[0]!r}; the datasets are {', '.join(names)}")
    if missing := [name for name in names if name not in exact]:
        raise ValueError(
            f"{where}: no weight for dataset {missing[0]!r}; write {missing[0]} = 0 to leave it out"
        )
    total = sum(exact.values(), Fraction(0))
    return _rounded([exact[name] * PARTS / total for name in names])


def shares_of_each(
    mixtures: Sequence[Weights], names: Sequence[str], steps: Sequence[int]
) -> NDArray[np.int64]:
    """Returns what `shares_of` does of the mixture of each of the steps, (mixtures, names).

    Whole weights are rounded together, in a fraction of the time.
    """
    rows = _whole_rows(mixtures, names)
    if rows is None:
        of_steps = zip(mixtures, steps, strict=True)
        return np.array([shares_of(weights, names, f"schedule, step {step}") for weights, step in of_steps])
    totals = rows.sum(axis=1, keepdims=True)
    shares, remainders = np.divmod(rows * PARTS, totals)
    order = np.argsort(-remainders, axis=1, kind="stable")
    places = np.empty_like(order)
    np.put_along_axis(places, order, np.arange(len(names))[None, :], axis=1)
    shares += places < PARTS - shares.sum(axis=1, keepdims=True)
    return shares


def _whole_rows(mixtures: Sequence[Weights], names: Sequence[str]) -> NDArray[np.int64] | None:
    """Returns the weights as an array (mixtures, names); None where some need a closer look."""
    found, wanted = list[object](), list(names)
    for weights in mixtures:
        if not isinstance(weights, dict):
            return None
        if list(weights) != wanted:
            if set(weights) != set(wanted):
                return None
            weights = {name: weights[name] for name in wanted}
        found += weights.values()
    if set(map(type, found)) != {int}:
        return None
    try:
        rows = np.array(found, np.int64).reshape(len(mixtures), len(names))
    except OverflowError:
        return None
    fits = bool((rows >= 0).all()) and bool((rows <= MAX_WHOLE).all()) and bool(rows.any(axis=1).all())
    return rows if fits else None


@functools.lru_cache(maxsize=256)
def shares_without(shares: tuple[int, ...], gone: frozenset[int]) -> tuple[int, ...]:
    """Returns `shares` with those of the datasets `gone` given to the others, in proportion, to sum to PARTS.

    Largest remainder, ties to the dataset named first. All are zero where no other has a share.
    """
    total = sum(share for i, share in enumerate(shares) if i not in gone)
    if total in (0, PARTS):
        return tuple(0 if i in gone else share for i, share in enumerate(shares))
    return _rounded([Fraction(0 if i in gone else s * PARTS, total) for i, s in enumerate(shares)])


def _rounded(quotas: Sequence[Fraction]) -> tuple[int, ...]:
    """Returns whole numbers near `quotas`, which sum to PARTS, with the same sum."""
    shares = [int(quota) for quota in quotas]  # int() of a Fraction >= 0 rounds down
    by_remainder = sorted(range(len(quotas)), key=lambda i: (shares[i] - quotas[i], i))
    for i in by_remainder[: PARTS - sum(shares)]:
        shares[i] += 1
    return tuple(shares)


def _rounded_whole(weights: Sequence[int]) -> tuple[int, ...]:
    """Returns what `_rounded` does of the quotas of whole weights, in a fifteenth of the time."""
    total = sum(weights)
    pairs = [divmod(weight * PARTS, total) for weight in weights]
    shares = [share for share, _ in pairs]
    by_remainder = sorted(range(len(pairs)), key=lambda i: (-pairs[i][1], i))
    for i in by_remainder[: PARTS - sum(shares)]:
        shares[i] += 1
    return tuple(shares)
