"""Weights from sizes, exactly: water-filling between bounds, temperature, UniMax.

Upstream: sizes in tokens, of `TokenEstimation` for instance. Downstream: the weights of recipes; `capping.py`
does the same over a whole schedule. Everything is fractions and whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from numbers import Real

from zephon import check_whole
from zephon_curriculum.schedules.bounds import fill

Amounts = Mapping[str, int | float | Fraction]

ROOT_BITS = 64
"""Powers of sizes are exact to so many bits of the largest."""
MAX_DENOMINATOR = 1000
"""Exponents are taken as the nearest fraction with at most this denominator."""


def water_fill(
    target: Amounts, caps: Amounts | None = None, floors: Amounts | None = None
) -> dict[str, Fraction]:
    """Returns the fractions nearest to `target`, in its order, with sum 1 and floor <= fraction <= cap.

    Exact. All datasets between their bounds keep the ratios of `target`; the others stand at a bound.
    `target` need not sum to 1; caps and floors are fractions of the whole. A target of 0 gets its floor.
    """
    wished = exact_amounts("target", target)
    upper = {name: min(Fraction(1), cap) for name, cap in exact_amounts("caps", caps or {}, wished).items()}
    lower = exact_amounts("floors", floors or {}, wished)
    if not any(wished.values()):
        raise ValueError(f"`target` must have a weight > 0, got {dict(target)!r}")
    pairs = {n: (lower.get(n, Fraction(0)), upper.get(n, Fraction(1)) if w else lower.get(n, Fraction(0)))
             for n, w in wished.items()}  # fmt: skip
    _refuse_infeasible(pairs)
    part = math.lcm(*(bound.denominator for pair in pairs.values() for bound in pair))
    factor = math.lcm(*(weight.denominator for weight in wished.values()))
    low, high = ({n: int(pair[i] * part) for n, pair in pairs.items()} for i in (0, 1))
    filled = fill({n: int(w * factor) for n, w in wished.items()}, low, high, part, "water_fill")
    return {name: Fraction(share, sum(filled.values())) for name, share in filled.items()}


def exact_amounts(
    what: str, amounts: Amounts, names: Mapping[str, Fraction] | None = None
) -> dict[str, Fraction]:
    """Returns the amounts as fractions; refuses what is no finite number >= 0, or of no dataset."""
    exact: dict[str, Fraction] = {}
    for name, amount in amounts.items():
        if isinstance(amount, bool) or not isinstance(amount, Real):
            raise TypeError(f"`{what}` of {name!r} must be a number, got {type(amount).__name__}")
        if not math.isfinite(amount) or amount < 0:
            raise ValueError(f"`{what}` of {name!r} must be finite and >= 0, got {amount!r}")
        if names is not None and name not in names:
            raise ValueError(f"`{what}` names {name!r}, which is no dataset of {', '.join(names)}")
        exact[name] = Fraction(amount)
    return exact


def _refuse_infeasible(pairs: Mapping[str, tuple[Fraction, Fraction]]) -> None:
    for name, (low, high) in pairs.items():
        if low > high:
            raise ValueError(f"the floor of {name!r}, {float(low):g}, is over its cap, {float(high):g}")
    lows, highs = (sum(pair[i] for pair in pairs.values()) for i in (0, 1))
    if lows > 1:
        raise ValueError(
            f"the floors sum to {float(lows):.6g} of the whole, {float(lows - 1):.3g} too much; lower them"
        )
    if highs < 1:
        raise ValueError(
            f"the caps leave room for {float(highs):.6g} of the whole, {float(1 - highs):.3g} short; raise a "
            "cap, add data or shorten the run"
        )


def temperature(sizes: Amounts, temperature: float | Fraction = 1) -> dict[str, Fraction]:
    """Returns fractions in proportion to size^(1/temperature), with sum 1.

    1 is proportional to size, infinity uniform. Powers are whole roots to 64 bits of the largest, so that
    they are the same on every machine.
    """
    exact = exact_amounts("sizes", sizes)
    if not exact or not all(exact.values()):
        raise ValueError(f"`sizes` must be > 0 for every dataset, got {dict(sizes)!r}")
    if isinstance(temperature, bool) or not temperature > 0:
        raise ValueError(f"`temperature` must be > 0, got {temperature!r}")
    if temperature == math.inf:
        return {name: Fraction(1, len(exact)) for name in exact}
    power = (1 / Fraction(temperature)).limit_denominator(MAX_DENOMINATOR)
    if power == 1:
        return {name: size / sum(exact.values()) for name, size in exact.items()}
    largest = max(exact.values())
    roots = {name: _power(size / largest, power) for name, size in exact.items()}
    total = sum(roots.values())
    return {name: Fraction(root, total) for name, root in roots.items()}


def _power(base: Fraction, power: Fraction) -> int:
    """Returns floor(2^ROOT_BITS * base^power) for 0 < base <= 1, at least 1."""
    p, q = power.numerator, power.denominator
    inside = (base.numerator**p << (ROOT_BITS * q)) // base.denominator**p
    return max(1, _root(inside, q))


def _root(value: int, degree: int) -> int:
    """Returns floor(value^(1/degree)), by Newton's method in whole numbers."""
    if value < 2 or degree == 1:
        return value
    guess = 1 << -(-value.bit_length() // degree)
    while True:
        better = ((degree - 1) * guess + value // guess ** (degree - 1)) // degree
        if better >= guess:
            return guess
        guess = better


def unimax(sizes: Amounts, budget: int, max_epochs: int | float | Fraction) -> dict[str, Fraction]:
    """Returns the fractions of UniMax: as even as `max_epochs` lets them be, of `budget` tokens.

    From the smallest dataset on, each gets an even part of what is left, at most `max_epochs` times its size
    (Chung et al. 2023, openreview kXwdL1cWOAi, algorithm 1). Refused where the data cannot fill the budget.
    """
    exact = exact_amounts("sizes", sizes)
    epochs = exact_amounts("max_epochs", {"all": max_epochs})["all"]
    check_whole("`budget`", budget, 1)
    if not exact or epochs * sum(exact.values()) < budget:
        short = budget - int(epochs * sum(exact.values()))
        raise ValueError(
            f"{float(epochs):g} epochs of all data are {short:,} tokens short of the budget of {budget:,}; "
            "raise `max_epochs`, add data or shorten the run"
        )
    left, given = Fraction(budget), dict[str, Fraction]()
    by_size = sorted(exact, key=lambda name: exact[name])
    for index, name in enumerate(by_size):
        given[name] = min(epochs * exact[name], left / (len(by_size) - index))
        left -= given[name]
    return {name: given[name] / budget for name in exact}
