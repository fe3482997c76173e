"""What the table of a schedule holds: fields, numbers, and mixtures as whole numbers that can be blended.

Upstream: the `[schedule]` table of a recipe, or Python. Downstream: every kind of schedule. What is wrong
with a table is refused by name here. A blend is a convex combination of two mixtures after each is brought to
the sum 1: no share is negative, the shares sum to 1, and being exact they are the same on every machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from zephon import ScheduleContext, check_weights, unknown_field

Weights = Mapping[str, float]
Config = Mapping[str, Any]
NUMBER = re.compile(r"[+-]?(\d+/\d+|(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?)", re.ASCII | re.IGNORECASE)
"""Of a greater exponent the digits alone would fill the memory."""


def check_fields(where: str, config: Config, required: Sequence[str], optional: Sequence[str] = ()) -> None:
    """Refuses the first field that is not known, else the first that is missing."""
    known = (*required, *optional)
    for name in config:
        if name not in known:
            raise unknown_field(where, name, known)
    for name in required:
        if name not in config:
            raise ValueError(f"{where}: field {name!r} is missing; the fields are {', '.join(known)}")


def mixture(where: str, weights: object, context: ScheduleContext) -> Weights:
    """Returns `weights` as given; refuses what is no mixture, or names what is no dataset."""
    check_weights(weights, where)
    assert isinstance(weights, Mapping)
    check_names(where, weights, context)
    return weights


def check_names(where: str, named: Mapping[str, object], context: ScheduleContext) -> None:
    """Refuses the first name that is no dataset of the recipe."""
    for name in named:
        if name not in context.names:
            datasets = ", ".join(context.names)
            raise ValueError(f"{where}: no dataset is named {name!r}; the datasets are {datasets}")


def tables(where: str, value: object, example: str) -> list[Mapping[str, Any]]:
    """Returns `value` where it is a list of at least one table."""
    entries = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    if not entries or not all(isinstance(entry, Mapping) for entry in entries):
        raise ValueError(f"{where} must be a list of tables, {example}, got {value!r}")
    return entries


def decimal(where: str, value: object) -> Fraction:
    """Returns a number, or a text as "20%", as the exact fraction that its digits say: 0.1 is 1/10."""
    wrong = ValueError(f'{where} must be a number, or a percentage as "20%", got {value!r:.60}')
    if isinstance(value, bool) or not isinstance(value, int | float | str | Fraction):
        raise wrong
    text = str(value).strip()
    is_percent = isinstance(value, str) and text.endswith("%")
    digits = text.removesuffix("%").strip() if is_percent else text
    if not NUMBER.fullmatch(digits):
        raise wrong
    try:
        number = Fraction(digits)
    except (ValueError, ZeroDivisionError):  # too many digits; a denominator of 0
        raise wrong from None
    return number / 100 if is_percent else number


def part_of_step(where: str, value: object) -> Fraction:
    """Returns what `decimal` does of a part of the tokens; refuses what is not in [0, 1]."""
    number = decimal(where, value)
    if not 0 <= number <= 1:
        raise ValueError(f"{where} must be a part of the tokens in [0, 1], got {value!r}")
    return number


def plain(number: Fraction) -> int | float | str:
    """Returns a number that `decimal` reads back as `number`: whole, of decimal digits, or a text."""
    if number.denominator == 1:
        return number.numerator
    return float(number) if Fraction(str(float(number))) == number else str(number)


@dataclass(frozen=True, slots=True)
class Knots:
    """Mixtures over the same datasets, in whole numbers without a common divisor."""

    names: tuple[str, ...]
    mixtures: tuple[tuple[int, ...], ...]
    sums: tuple[int, ...]

    @classmethod
    def of(cls, mixtures: Sequence[Weights], where: str) -> Knots:
        """Returns the knots of `mixtures`; what only some of them name has weight 0 in the others."""
        exact = [check_weights(weights, where) for weights in mixtures]
        names = tuple(dict.fromkeys(name for weights in exact for name in weights))
        whole = tuple(_whole([weights.get(name, Fraction(0)) for name in names]) for weights in exact)
        return cls(names, whole, tuple(map(sum, whole)))

    def at(self, index: int) -> dict[str, int]:
        """Returns the mixture of one knot."""
        return dict(zip(self.names, self.mixtures[index], strict=True))

    def blend(self, first: int, last: int, eased: tuple[int, int]) -> dict[str, int]:
        """Returns (1 - e) of the mixture `first` and e of the mixture `last`, for e = eased[0] / eased[1]."""
        to_last = eased[0] * self.sums[first]
        to_first = (eased[1] - eased[0]) * self.sums[last]
        named = zip(self.names, self.mixtures[first], self.mixtures[last], strict=True)
        return {name: a * to_first + b * to_last for name, a, b in named}


def written(weights: Weights) -> dict[str, int | float]:
    """Returns a mixture as a recipe can hold it: as given, or in whole numbers where it has fractions."""
    if all(isinstance(weight, int | float) for weight in weights.values()):
        return dict(weights)
    return dict(Knots.of([weights], "schedule").at(0))


def _whole(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Returns the smallest whole numbers with the ratios of `weights`."""
    factor = math.lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * factor) for weight in weights]
    common = math.gcd(*whole)
    return tuple(weight // common for weight in whole)
