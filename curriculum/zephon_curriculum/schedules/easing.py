"""Easings: how far a blend has come, e(t) in [0, 1], after the part t of its time.

Upstream: the position of a step in a blend. Downstream: the blends. e(0) = 0, e(1) = 1, never back.
Computed with whole numbers only (sine and exponential by series in fixed point), so alike everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from zephon import unknown_field
from zephon_curriculum.schedules.fields import check_fields, decimal, plain

KINDS = ("linear", "cosine", "smoothstep", "exponential")
MAX_RATE = 64
MIN_RATE = Fraction(1, 1000)
"""A smaller one is a straight line, but for parts of the digits kept."""
DEFAULT_RATE = 5
WORK = 192
"""Bits behind the point of what is computed by series; they are enough for any number of steps."""
KEPT = 64
"""Bits behind the point of what is kept of it."""
PI = 0x3_243F6A88_85A308D3_13198A2E_03707344_A4093822_299F31D0
"""Pi * 2**WORK, rounded down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Easing:
    """A monotone function of time from (0, 0) to (1, 1)."""

    kind: str = "linear"
    """linear: t. cosine: (1 - cos(pi t)) / 2. smoothstep: 3 t^2 - 2 t^3. exponential: (1 - exp(-rate t)) /
    (1 - exp(-rate))."""
    rate: int | float = DEFAULT_RATE
    """Of `exponential`: > 0 begins fast, < 0 begins slowly."""
    _exact_rate: Fraction = field(init=False, repr=False, compare=False)
    _whole_way: int = field(init=False, repr=False, compare=False)
    """1 - exp(-|rate|)."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_field("`easing`", str(self.kind), KINDS)
        rate = decimal("easing exponential: `rate`", self.rate)
        if not MIN_RATE <= abs(rate) <= MAX_RATE:
            raise ValueError(
                f"easing exponential: `rate` must be {float(MIN_RATE)} to {MAX_RATE}, or as far below 0, got "
                f"{self.rate}; near 0 it is `linear`"
            )
        object.__setattr__(self, "_exact_rate", rate)
        object.__setattr__(self, "_whole_way", (1 << WORK) - _exp_minus(abs(rate)))

    @classmethod
    def of(cls, value: object, where: str) -> Easing:
        """Returns the easing that a recipe names: a kind, or a table with `kind` and `rate`."""
        if isinstance(value, Easing):
            return value
        config = {"kind": value} if isinstance(value, str) else value
        if not isinstance(config, Mapping):
            raise ValueError(
                f"{where}: `easing` must be one of {', '.join(KINDS)}, or a table, got {value!r}"
            )
        kind = config.get("kind")
        own = ("rate",) if kind == "exponential" else ()
        check_fields(f"{where}, easing {kind}", config, ("kind",), own)
        if kind not in KINDS:
            raise unknown_field(f"{where}, easing", str(kind), KINDS)
        return cls(kind=str(kind), rate=config.get("rate", DEFAULT_RATE))

    def to_config(self) -> str | dict[str, Any]:
        """Returns what `of` reads back."""
        if self.kind == "exponential":
            return {"kind": self.kind, "rate": plain(self._exact_rate)}
        return self.kind

    def at(self, done: int, length: int) -> tuple[int, int]:
        """Returns e(done / length) as (numerator, denominator), for done in [0, length]."""
        if done in (0, length):
            return (done // length, 1)
        if self.kind == "cosine":
            return _cosine(done, length), 1 << KEPT
        if self.kind == "smoothstep":
            return done * done * (3 * length - 2 * done), length**3
        if self.kind == "exponential":
            return self._exponential(done, length), 1 << KEPT
        return done, length

    def _exponential(self, done: int, length: int) -> int:
        """Returns e in KEPT bits; a rate < 0 mirrors its opposite."""
        is_mirrored = self._exact_rate < 0
        done = length - done if is_mirrored else done
        way = (1 << WORK) - _exp_minus(abs(self._exact_rate) * done / length)
        eased = _kept((way << WORK) // self._whole_way)
        return (1 << KEPT) - eased if is_mirrored else eased


def _cosine(done: int, length: int) -> int:
    """Returns sin(pi/2 * done/length)^2 in KEPT bits; the second half mirrors the first."""
    if 2 * done > length:
        return (1 << KEPT) - _cosine(length - done, length)
    angle = PI * done // (2 * length)
    square = angle * angle >> WORK
    sine, term, n = angle, angle, 1
    while term:
        term = (term * square >> WORK) // ((n + 1) * (n + 2))
        n += 2
        sine += -term if n % 4 == 3 else term
    return _kept(sine * sine >> WORK)


def _exp_minus(x: Fraction) -> int:
    """Returns exp(-x) in WORK bits, for x in [0, MAX_RATE]: the series for x / 2^16, squared 16 times."""
    small = (x.numerator << WORK) // (x.denominator << 16)
    total, term, n = 1 << WORK, 1 << WORK, 0
    while term:
        n += 1
        term = (term * small >> WORK) // n
        total += -term if n % 2 else term
    for _ in range(16):
        total = total * total >> WORK
    return total


def _kept(value: int) -> int:
    """Returns a value of WORK bits in KEPT bits, rounded to the nearest."""
    return (value + (1 << (WORK - KEPT - 1))) >> (WORK - KEPT)


LINEAR = Easing()
