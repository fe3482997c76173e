"""Reads the table of a schedule in a recipe: which fields there are, and what mixtures they hold.

Upstream: the `[schedule]` table of a recipe. Downstream: the `from_config` of every kind of schedule. What
is wrong with a table is refused by name here, before anything is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from zephon import ScheduleContext, check_weights, unknown_field

Weights = Mapping[str, float]
Config = Mapping[str, Any]


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
    is_list = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
    if not is_list or not all(isinstance(entry, Mapping) for entry in value):  # type: ignore[attr-defined]
        raise ValueError(f"{where} must be a list of tables, {example}, got {value!r}")
    return list(value)  # type: ignore[call-overload, no-any-return]


def decimal(where: str, value: object) -> Fraction:
    """Returns a number, or a text as "20%", as the exact fraction that its digits say: 0.1 is 1/10."""
    wrong = ValueError(f'{where} must be a number, or a percentage as "20%", got {value!r}')
    if isinstance(value, bool) or not isinstance(value, int | float | str | Fraction):
        raise wrong
    text = str(value).strip()
    percent = isinstance(value, str) and text.endswith("%")
    try:
        number = Fraction(text.removesuffix("%").strip() if percent else text)
    except (ValueError, ZeroDivisionError):
        raise wrong from None
    return number / 100 if percent else number


def plain(number: Fraction) -> int | float | str:
    """Returns a number that `decimal` reads back as `number`: whole, of decimal digits, or a text."""
    if number.denominator == 1:
        return number.numerator
    return float(number) if Fraction(str(float(number))) == number else str(number)
