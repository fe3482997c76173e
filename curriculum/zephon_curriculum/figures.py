"""Numbers as people read them: short amounts, intervals, parts in percent, steps.

Upstream: plans, estimates, previews. Downstream: their tables, warnings and charts. Steps count from 0; a
trainer that counts from 1 logs step s as s + 1.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from zephon_curriculum.quantity import Quantity

Report = Callable[[str, int, int], None]
"""Called with (what, done, total), by work that may take long."""
UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def short(number: float, digits: int = 4) -> str:
    """Returns a number of so many digits, such as 12.35G; whole numbers below 10,000 as they are."""
    if abs(number) < 10_000:
        is_whole = number == int(number) or abs(number) >= 1000
        return f"{number:,.0f}" if is_whole else f"{number:.{digits}g}"
    size, unit = next((size, unit) for size, unit in UNITS if abs(number) >= size)
    return f"{number / size:.{max(digits, 4) if unit == 'k' else digits}g}{unit}"


def ranged(quantity: Quantity, digits: int = 3) -> str:
    """Returns a number with its interval, if it has one: `5.21 (4.8 to 5.7)`."""
    return _with_ends(quantity, lambda number: short(number, digits))


def ranged_step(quantity: Quantity | None) -> str:
    """Returns a step with its interval."""
    return "-" if quantity is None else _with_ends(quantity, lambda step: f"{step:,.0f}")


def _with_ends(quantity: Quantity, write: Callable[[float], str]) -> str:
    value = write(quantity.value)
    if quantity.low is None or quantity.high is None:
        return value
    low, high = write(quantity.low), write(quantity.high)
    return value if low == high else f"{value} ({low} to {high})"


def percent(part: Fraction) -> str:
    """Returns a part of the whole in percent: `12.5%`."""
    return f"{float(100 * part):.4g}%"


def plural(number: int, noun: str) -> str:
    """Returns a number with its noun."""
    more = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else more}"


def named_step(step: int) -> str:
    """Returns a step as people and trainers number it."""
    return f"step {step} (a trainer that counts from 1 logs it as {step + 1})"
