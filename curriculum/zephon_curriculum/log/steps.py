"""Shares over steps: piecewise constant, cut, spliced and changed by rules on whole numbers.

Upstream: compiled tables. Downstream: `amend.py`, which composes what the log accepted. Nothing here is a
float; equal functions of the step have equal `Steps`, since entries with equal shares are merged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from zephon import PARTS

Shares = tuple[int, ...]
Rule = Callable[[Shares], Shares]


class AmendError(ValueError):
    """An amendment asks for what no mixture can be."""

    def __init__(self, what: str, step: int | None = None) -> None:
        """`step` is the first step of which that is so, where it is known."""
        super().__init__(what)
        self.step = step


def in_parts(values: Sequence[int]) -> Shares:
    """Returns whole numbers that sum to PARTS, in proportion to `values` >= 0; they may not all be zero.

    Largest remainder, ties to the one named first.
    """
    total = sum(values)
    shares = [value * PARTS // total for value in values]
    if missing := PARTS - sum(shares):
        by_remainder = sorted(range(len(values)), key=lambda i: (-(values[i] * PARTS % total), i))
        for i in by_remainder[:missing]:
            shares[i] += 1
    return tuple(shares)


@dataclass(frozen=True, slots=True)
class Steps:
    """Shares[k] hold from starts[k] until the next start, the last for ever."""

    starts: tuple[int, ...]
    shares: tuple[Shares, ...]

    def at(self, step: int) -> Shares:
        """Returns the shares of `step`, one that is not before the first start."""
        return self.shares[bisect_right(self.starts, step) - 1]

    def since(self, first: int) -> Steps:
        """Returns the shares from step `first` on."""
        place = bisect_right(self.starts, first)
        return Steps((first, *self.starts[place:]), self.shares[place - 1 :])

    def spliced(self, first: int, last: int | None, inside: Steps) -> Steps:
        """Returns these shares with those of `inside`, which begins at `first`, in steps [first, last)."""
        begin = bisect_left(self.starts, first)
        head = self.starts[:begin], self.shares[:begin]
        if last is None:
            return _joined(head, (inside.starts, inside.shares))
        end, rest = bisect_left(inside.starts, last), self.since(last)
        return _joined(head, (inside.starts[:end], inside.shares[:end]), (rest.starts, rest.shares))

    def ruled(self, first: int, last: int | None, rule: Rule) -> Steps:
        """Returns these shares, changed by `rule` in steps [first, last); names the step that it refuses."""
        first = max(first, self.starts[0])
        if last is not None and last <= first:
            return self
        inside = self.since(first)
        end = len(inside.starts) if last is None else bisect_left(inside.starts, last)
        known: dict[Shares, Shares] = {}
        found = []
        for start, shares in zip(inside.starts[:end], inside.shares[:end], strict=True):
            if shares not in known:
                try:
                    known[shares] = rule(shares)
                except AmendError as error:
                    raise AmendError(f"at step {start}: {error}", start) from None
            found.append(known[shares])
        return self.spliced(first, last, merged(inside.starts[:end], found))

    def widened(self, number: int) -> Steps:
        """Returns the shares of `number` datasets, those added at the end zero."""
        more = (0,) * (number - len(self.shares[0]))
        return Steps(self.starts, tuple(shares + more for shares in self.shares)) if more else self

    def first_difference(self, other: Steps, end: int) -> int | None:
        """Returns the first step before `end` whose shares differ, or None; steps that both have."""
        starts = sorted({*self.starts, *other.starts})
        return next((step for step in starts if step < end and self.at(step) != other.at(step)), None)


def merged(starts: Iterable[int], shares: Iterable[Shares]) -> Steps:
    """Returns the shares as `Steps`, entries that equal the one before left out."""
    kept_starts: list[int] = []
    kept: list[Shares] = []
    for start, entry in zip(starts, shares, strict=True):
        if not kept or entry != kept[-1]:
            kept_starts.append(start)
            kept.append(entry)
    return Steps(tuple(kept_starts), tuple(kept))


def _joined(*parts: tuple[tuple[int, ...], tuple[Shares, ...]]) -> Steps:
    """Returns parts in order, each merged in itself, as one."""
    starts: tuple[int, ...] = ()
    shares: tuple[Shares, ...] = ()
    for more_starts, more in parts:
        same = int(bool(shares) and bool(more) and more[0] == shares[-1])
        starts, shares = starts + more_starts[same:], shares + more[same:]
    return Steps(starts, shares)
