"""What an amendment may ask for: one frozen value for each kind of change, with its JSON.

Upstream: the command line and `zc.Run`. Downstream: `entries.py` writes them down, `amend.py` composes them.
Numbers are kept as the text that was given, so that a share is an exact fraction everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar, get_args

Numbers = tuple[tuple[str, str], ...]
"""(dataset, number as text), in the order given."""
NUMBER = re.compile(r"[+-]?(\d+/\d+|(\d+\.?\d*|\.\d+)(e[+-]?\d{1,2})?)", re.ASCII | re.IGNORECASE)
MAX_LETTERS = 40
MAX_NUMBER = 10**15


def exact(text: str) -> Fraction:
    """Returns the number that a text such as `1.1`, `+10` or `1/3` says; ValueError for another text.

    Nor a number too long to reckon with: the run would stand still over 1e999999999.
    """
    try:
        number = Fraction(text) if len(text) <= MAX_LETTERS and NUMBER.fullmatch(text) else None
    except ZeroDivisionError:
        number = None
    if number is None or abs(number) > MAX_NUMBER:
        raise ValueError(f"{text!r:.60} is no number up to 10^15; write 6, 1.1 or 1/3")
    return number


def split_pairs(text: str, what: str) -> dict[str, str]:
    """Returns name -> number, as text, of `web=6,code=4`; refuses a name given twice."""
    found: dict[str, str] = {}
    for pair in text.split(","):
        name, _, number = (part.strip() for part in pair.rpartition("="))
        if not name or not number:
            raise ValueError(f"{what} takes NAME=NUMBER,..., got {text!r}; for instance web=6,code=4")
        if name in found:
            raise ValueError(f"{what} gives {name!r} twice, got {text!r}")
        found[name] = number
    return found


def numbers(given: Mapping[str, object] | str, what: str, *, signed: bool = False) -> Numbers:
    """Returns given numbers as texts; refuses what is no number, or below zero unless `signed`."""
    given = split_pairs(given, what) if isinstance(given, str) else given
    if not given:
        raise ValueError(f"{what}: at least one dataset must be named, as web=6")
    found = tuple((name, value if isinstance(value, str) else str(value)) for name, value in given.items())
    for name, text in found:
        if exact(text) < 0 and not signed:
            raise ValueError(f"{what}: the number of {name!r} must be >= 0, got {text}")
    return found


def _numbers(value: object) -> Numbers:
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError(f"it must map datasets to numbers as text, got {value!r}")
    return numbers(value, "numbers", signed=True)


def whole(value: object) -> int:
    """Returns `value` if it is a whole number >= 0."""
    if type(value) is not int or value < 0:
        raise ValueError(f"it must be a whole number >= 0, got {value!r}")
    return value


def text(value: object) -> str:
    """Returns `value` if it is a text."""
    if not isinstance(value, str):
        raise ValueError(f"it must be a text, got {value!r}")
    return value


def table(value: object) -> dict[str, Any]:
    """Returns `value` if it is a JSON object."""
    if not isinstance(value, Mapping):
        raise ValueError(f"it must be a table, got {value!r}")
    return dict(value)


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of all datasets, in the whole window."""

    weights: Numbers
    kind: ClassVar[str] = "weights"


@dataclass(frozen=True, slots=True)
class Scale:
    """Shares times a factor, and all brought back to a whole."""

    factors: Numbers
    kind: ClassVar[str] = "scale"


@dataclass(frozen=True, slots=True)
class Points:
    """Percentage points more, or less; the other datasets give or take them in proportion."""

    points: Numbers
    kind: ClassVar[str] = "points"


@dataclass(frozen=True, slots=True)
class Replace:
    """Another schedule, compiled, in place of what is there."""

    schedule: str
    """Hash of the table, a file of the log."""
    kind: ClassVar[str] = "schedule"


@dataclass(frozen=True, slots=True)
class Retire:
    """No share for a dataset; the others take it over in proportion."""

    dataset: str
    kind: ClassVar[str] = "retire"


@dataclass(frozen=True, slots=True)
class Add:
    """One more dataset, at the end, with share 0 until another change gives it one."""

    dataset: str
    config: Mapping[str, Any]
    """Its table of a recipe, without the name."""
    kind: ClassVar[str] = "add"


@dataclass(frozen=True, slots=True)
class SkipSteps:
    """Rows of steps [start, stop), drawn and dropped by every lane before step `start`."""

    start: int
    stop: int
    kind: ClassVar[str] = "skip_steps"


@dataclass(frozen=True, slots=True)
class SkipDocuments:
    """Documents that are dropped where they would be begun at or after the step."""

    documents: str
    """Hash of the list, a file of the log."""
    num_documents: int
    kind: ClassVar[str] = "skip_documents"


@dataclass(frozen=True, slots=True)
class Withdraw:
    """An accepted entry that has not begun is as if it had not been made."""

    entry: int
    kind: ClassVar[str] = "withdraw"


Op = Weights | Scale | Points | Replace | Retire | Add | SkipSteps | SkipDocuments | Withdraw
KINDS: Mapping[str, type[Op]] = {op.kind: op for op in get_args(Op)}
READ: Mapping[str, Callable[[object], Any]] = {
    "Numbers": _numbers,
    "str": text,
    "int": whole,
    "Mapping[str, Any]": table,
}
"""How a field is read, by its type."""


def op_json(op: Op) -> dict[str, Any]:
    """Returns an op as JSON data."""
    found: dict[str, Any] = {"op": op.kind}
    for field in fields(op):
        value = getattr(op, field.name)
        found[field.name] = dict(value) if isinstance(value, tuple | Mapping) else value
    return found


def spelt_alike(op: Op) -> Op:
    """Returns an op with its numbers in one spelling and order: equal for what asks for the same."""

    def alike(given: Numbers) -> Numbers:
        return tuple(sorted((name, str(exact(number))) for name, number in given))

    match op:
        case Weights(weights=given):
            return Weights(alike(given))
        case Scale(factors=given):
            return Scale(alike(given))
        case Points(points=given):
            return Points(alike(given))
        case _:
            return op


def describe(op: Op) -> str:
    """Returns an op in a few words."""
    match op:
        case Weights(weights=given) | Scale(factors=given) | Points(points=given):
            return f"{op.kind} {', '.join(f'{name}={number}' for name, number in given)}"
        case Replace(schedule=sha):
            return f"schedule {sha[:12]}"
        case Retire(dataset=name) | Add(dataset=name):
            return f"{op.kind} {name}"
        case SkipSteps(start=a, stop=b):
            return f"skip steps {a}:{b}"
        case SkipDocuments(num_documents=number):
            return f"skip {number} documents"
        case Withdraw(entry=number):
            return f"withdraw {number}"


def read_op(data: object) -> Op:
    """Returns the op that `op_json` wrote; ValueError for an unknown kind or field."""
    given = table(data)
    kind = given.pop("op", None)
    if kind not in KINDS:
        raise ValueError(f"op {kind!r} is unknown; known are {', '.join(KINDS)}")
    found: Op = read_fields(KINDS[kind], given, READ, f"op {kind}")
    return found


def read_fields(
    made: type[Any], given: Mapping[str, Any], read: Mapping[str, Callable[[object], Any]], where: str
) -> Any:
    """Returns a dataclass of JSON data, each field read; ValueError for one unknown, missing or wrong."""
    types = {field.name: str(field.type) for field in fields(made)}
    if unknown := sorted(set(given) - set(types)):
        raise ValueError(f"{where}: unknown field {unknown[0]!r}; known are {', '.join(types)}")
    if missing := [name for name in types if name not in given]:
        raise ValueError(f"{where}: field {missing[0]!r} is missing")
    found = {}
    for name, kind in types.items():
        try:
            found[name] = read[kind](given[name])
        except ValueError as error:
            raise ValueError(f"{where}, {name}: {error}") from None
    return made(**found)
