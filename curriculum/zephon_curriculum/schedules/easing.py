"""Easings: how far a blend has come, e(t) in [0, 1], after the part t of its time.

Upstream: the position of a step in a blend. Downstream: `mixing.py`. e(0) = 0, e(1) = 1, never back.
Computed with whole numbers only (sine and exponential by series in fixed point), so alike everywhere.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

from zephon import unknown_field
from zephon_curriculum.schedules.fields import check_fields, decimal, plain

KINDS = ("linear", "cosine", "smoothstep", "exponential", "pchip")
MAX_RATE = 64
DEFAULT_RATE = 5
WORK = 192
"""Bits behind the point of what is computed by series; they are enough for any number of steps."""
KEPT = 64
"""Bits behind the point of what is kept of it."""
PI = 0x3_243F6A88_85A308D3_13198A2E_03707344_A4093822_299F31D0
"""Pi * 2**WORK, rounded down."""

Cubic = tuple[Fraction, Fraction, Fraction, Fraction, Fraction]
"""Where a piece begins, and its coefficients from the constant one on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Easing:
    """A monotone function of time from (0, 0) to (1, 1)."""

    kind: str = "linear"
    """linear: t. cosine: (1 - cos(pi t)) / 2. smoothstep: 3 t^2 - 2 t^3. exponential: (1 - exp(-rate t)) /
    (1 - exp(-rate)). pchip: the monotone piecewise cubic through `points`."""
    rate: int | float = DEFAULT_RATE
    """Of `exponential`: > 0 begins fast, < 0 begins slowly."""
    points: tuple[tuple[int | float, int | float], ...] = ()
    """Of `pchip`: (t, e), ascending in t, never descending in e, from (0, 0) to (1, 1)."""
    _exact_rate: Fraction = field(init=False, repr=False, compare=False)
    _whole_way: int = field(init=False, repr=False, compare=False)
    """1 - exp(-|rate|)."""
    _pieces: tuple[Cubic, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_field("`easing`", str(self.kind), KINDS)
        rate = decimal("easing exponential: `rate`", self.rate)
        if rate == 0 or abs(rate) > MAX_RATE:
            raise ValueError(
                f"easing exponential: `rate` must be in [-{MAX_RATE}, {MAX_RATE}] and not 0, got {self.rate}"
            )
        object.__setattr__(self, "_exact_rate", rate)
        object.__setattr__(self, "_whole_way", (1 << WORK) - _exp_minus(abs(rate)))
        object.__setattr__(self, "_pieces", _pieces(self.points) if self.kind == "pchip" else ())

    @classmethod
    def of(cls, value: object, where: str) -> Easing:
        """Returns the easing that a recipe names: a kind, or a table with `kind` and `rate` or `points`."""
        if isinstance(value, Easing):
            return value
        config = {"kind": value} if isinstance(value, str) else value
        if not isinstance(config, Mapping):
            raise ValueError(
                f"{where}: `easing` must be one of {', '.join(KINDS)}, or a table, got {value!r}"
            )
        kind = config.get("kind")
        own = {"exponential": ("rate",), "pchip": ("points",)}.get(str(kind), ())
        check_fields(
            f"{where}, easing {kind}", config, ("kind", *own[:1]) if kind == "pchip" else ("kind",), own
        )
        if kind not in KINDS:
            raise unknown_field(f"{where}, easing", str(kind), KINDS)
        if kind == "pchip":
            return cls(kind="pchip", points=_pairs(config["points"]))
        return cls(kind=str(kind), rate=config.get("rate", DEFAULT_RATE))

    def to_config(self) -> str | dict[str, Any]:
        """Returns what `of` reads back."""
        if self.kind == "exponential":
            return {"kind": self.kind, "rate": plain(self._exact_rate)}
        if self.kind == "pchip":
            return {"kind": self.kind, "points": [list(point) for point in self.points]}
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
        if self.kind == "pchip":
            return self._cubic(Fraction(done, length)).as_integer_ratio()
        return done, length

    def _exponential(self, done: int, length: int) -> int:
        """Returns e in KEPT bits; a rate < 0 mirrors its opposite."""
        is_mirrored = self._exact_rate < 0
        done = length - done if is_mirrored else done
        way = (1 << WORK) - _exp_minus(abs(self._exact_rate) * done / length)
        eased = _kept((way << WORK) // self._whole_way)
        return (1 << KEPT) - eased if is_mirrored else eased

    def _cubic(self, t: Fraction) -> Fraction:
        begin, c0, c1, c2, c3 = self._pieces[bisect.bisect_right(self._pieces, t, key=lambda p: p[0]) - 1]
        x = t - begin
        return c0 + x * (c1 + x * (c2 + x * c3))

    def __str__(self) -> str:
        """Returns the kind, with what else it has."""
        if self.kind == "exponential":
            return f"exponential, rate {self.rate}"
        return f"pchip of {len(self.points)} points" if self.kind == "pchip" else self.kind


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


def _pairs(points: object) -> tuple[tuple[int | float, int | float], ...]:
    rule = "easing pchip: `points` must be a list of pairs, as [[0, 0], [0.3, 0.1], [1, 1]]"
    if not isinstance(points, Sequence) or isinstance(points, str):
        raise ValueError(f"{rule}, got {points!r}")
    if not all(isinstance(point, Sequence) and len(point) == 2 for point in points):
        raise ValueError(f"{rule}, got {points!r}")
    return tuple((t, e) for t, e in points)


def _pieces(points: Sequence[tuple[int | float, int | float]]) -> tuple[Cubic, ...]:
    """Returns the cubics of the monotone interpolation of Fritsch and Butland, as SciPy's PCHIP has it."""
    exact = [(decimal("easing pchip: t", t), decimal("easing pchip: e", e)) for t, e in points]
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(exact)]
    whole = len(exact) >= 2 and set(exact[0]) == {0} and set(exact[-1]) == {1}
    if not whole or any(h <= 0 or rise < 0 for h, rise in steps):
        raise ValueError(
            "easing pchip: `points` must go from [0, 0] to [1, 1], ascending in time and never back, "
            f"got {[list(point) for point in points]}"
        )
    widths = [h for h, _ in steps]
    rises = [rise / h for h, rise in steps]
    slopes = _slopes(widths, rises)
    return tuple(
        (t, e, d, (3 * rise - 2 * d - next_d) / h, (d + next_d - 2 * rise) / (h * h))
        for (t, e), h, rise, (d, next_d) in zip(exact, widths, rises, pairwise(slopes), strict=False)
    )


def _slopes(widths: Sequence[Fraction], rises: Sequence[Fraction]) -> list[Fraction]:
    """Returns the slope at every point: a weighted harmonic mean inside, one-sided at the ends."""
    if len(rises) == 1:
        return [rises[0], rises[0]]
    inner = []
    for (h0, h1), (d0, d1) in zip(pairwise(widths), pairwise(rises), strict=True):
        w0, w1 = 2 * h1 + h0, h1 + 2 * h0
        inner.append((w0 + w1) / (w0 / d0 + w1 / d1) if d0 and d1 else Fraction(0))
    return [_end(widths, rises), *inner, _end(widths[::-1], rises[::-1])]


def _end(widths: Sequence[Fraction], rises: Sequence[Fraction]) -> Fraction:
    """Returns the slope at the first point, kept from turning back; no rise is negative."""
    (h0, h1), (d0, d1) = widths[:2], rises[:2]
    return max(Fraction(0), ((2 * h0 + h1) * d0 - h0 * d1) / (h0 + h1))


LINEAR = Easing()
