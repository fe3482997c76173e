"""Composition: the base schedule and what the log accepted, as one table. Pure.

Upstream: `entries.py`. Downstream: `history.py`, which feeds it entry by entry. Two layers: what recipes and
controllers say, replaced from a step on; on it the amendments, in the order in which they were accepted,
each a rule on the shares of the steps in its window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import lcm

from zephon import PARTS, Drop, ScheduleTable
from zephon_curriculum.log.ops import (
    Add,
    Numbers,
    Op,
    Points,
    Replace,
    Retire,
    Scale,
    SkipDocuments,
    SkipSteps,
    Weights,
    exact,
)
from zephon_curriculum.log.steps import AmendError, Rule, Shares, Steps, in_parts, merged

Document = tuple[str, str, int]
FOR_EVER = 1 << 62
"""A step after all others."""


@dataclass(frozen=True, slots=True)
class Blobs:
    """The big things that entries name by hash."""

    tables: Mapping[str, ScheduleTable] = field(default_factory=dict)
    documents: Mapping[str, tuple[Document, ...]] = field(default_factory=dict)

    def __or__(self, other: Blobs) -> Blobs:
        return Blobs({**self.tables, **other.tables}, {**self.documents, **other.documents})


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment:
    """An accepted proposal: its ops in steps [at_step, until)."""

    number: int
    """That of the proposal."""
    at_step: int
    until: int | None
    ops: tuple[Op, ...]


class UnsupportedError(AmendError):
    """An amendment of the log leaves no mixture on what is below it."""

    def __init__(self, amendment: Amendment, error: AmendError) -> None:
        super().__init__(f"amendment {amendment.number}, {error}", error.step)
        self.number = amendment.number


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What a recipe (named by hash) or a controller (by its weights) says from a step on."""

    number: int
    from_step: int
    table: str = ""
    weights: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """The schedule that a log says, as far as its entries are read."""

    names: tuple[str, ...]
    base: Steps
    """What recipes and controllers say."""
    steps: Steps
    """With the amendments on it."""
    layers: tuple[Layer, ...]
    amendments: tuple[Amendment, ...] = ()
    blobs: Blobs = field(repr=False)

    def with_layer(self, layer: Layer) -> Composed:
        """Returns the schedule with `layer` in place of the base from its step on; amendments stay."""
        base = _laid(self.base, layer, self.names, self.blobs)
        found = replace(self, base=base, layers=(*self.layers, layer))
        return found._again_from(layer.from_step)

    def with_amendment(self, amendment: Amendment) -> Composed:
        """Returns the schedule with one more amendment; AmendError where it leaves no mixture."""
        wide = self.with_names(self.names + _added(amendment, self.names))
        found = replace(wide, amendments=(*wide.amendments, amendment))
        steps = _amended(wide.steps, amendment, wide.names, wide.blobs)
        skips_of(found.amendments)
        return replace(found, steps=steps)

    def without(self, number: int) -> Composed:
        """Returns the schedule without the amendment or layer of entry `number`."""
        gone = [a.at_step for a in self.amendments if a.number == number]
        gone += [layer.from_step for layer in self.layers if layer.number == number]
        layers = tuple(layer for layer in self.layers if layer.number != number)
        amendments = tuple(a for a in self.amendments if a.number != number)
        base = self.base if layers == self.layers else laid_out(layers, self.names, self.blobs)
        found = replace(self, base=base, layers=layers, amendments=amendments)
        return found._again_from(min(gone)) if gone else found

    def effective(self, step: int) -> int:
        """Returns the first step whose rows the shares of `step` reach: a, where steps [a, b) around it are
        skipped, since the rows skipped are drawn before step a by the shares of all of them."""
        return next((a for a, b in skips_of(self.amendments) if a < step < b), step)

    def first_free(self, step: int) -> int:
        """Returns the first step from `step` on whose shares reach no row before `step`."""
        return next((b for a, b in skips_of(self.amendments) if a < step < b), step)

    def before(self, step: int) -> Composed:
        """Returns the schedule of only what begins before `step`; up to there it is the same.

        An amendment that stood on the rest ends where it leaves no mixture without it.
        """
        layers = tuple(x for x in self.layers if self.effective(x.from_step) < step or not x.number)
        kept = {a.number: a for a in self.amendments if self.effective(a.at_step) < step}
        base = laid_out(layers, self.names, self.blobs)
        while True:
            found = replace(self, base=base, layers=layers, amendments=tuple(kept.values()))
            try:
                return found._again_from(0)
            except UnsupportedError as error:
                kept[error.number] = replace(kept[error.number], until=error.step)

    def with_names(self, names: tuple[str, ...]) -> Composed:
        """Returns the schedule of more datasets at the end, their shares zero."""
        if names == self.names:
            return self
        if names[: len(self.names)] != self.names or len(set(names)) != len(names):
            raise AmendError(f"datasets are added at the end, each once; {names} do not follow {self.names}")
        number = len(names)
        return replace(self, names=names, base=self.base.widened(number), steps=self.steps.widened(number))

    def with_blobs(self, blobs: Blobs) -> Composed:
        """Returns the schedule with more big things known."""
        return replace(self, blobs=self.blobs | blobs)

    def recipe(self) -> Steps:
        """Returns what recipes alone say."""
        return laid_out([layer for layer in self.layers if layer.table], self.names, self.blobs)

    def table(self) -> ScheduleTable:
        """Returns the table in force."""
        return ScheduleTable(
            self.names,
            self.steps.starts,
            self.steps.shares,
            skips=skips_of(self.amendments),
            drops=_drops_of(self.amendments, self.blobs),
        )

    def _again_from(self, step: int) -> Composed:
        """Returns the schedule with its amendments put anew on the base, in steps from `step` on."""
        tail = self.base.since(step)
        for place, amendment in enumerate(self.amendments):
            for part in _parts_that_count(amendment, self.amendments[place + 1 :]):
                try:
                    tail = _amended(tail, part, self.names, self.blobs)
                except AmendError as error:
                    raise UnsupportedError(amendment, error) from None
        return replace(self, steps=self.steps.spliced(step, None, tail))


def begin(number: int, table: ScheduleTable, sha: str, blobs: Blobs) -> Composed:
    """Returns the schedule of a log with only its entry 0."""
    steps = merged(table.starts, table.shares)
    layers = (Layer(number=number, from_step=0, table=sha),)
    return Composed(names=table.names, base=steps, steps=steps, layers=layers, blobs=blobs)


def laid_out(layers: Sequence[Layer], names: tuple[str, ...], blobs: Blobs) -> Steps:
    """Returns what layers say, the later in place of the earlier from its step on; the first begins at 0."""
    first = blobs.tables[layers[0].table]
    steps = merged(first.starts, first.shares).widened(len(names))
    for layer in layers[1:]:
        steps = _laid(steps, layer, names, blobs)
    return steps


def _laid(base: Steps, layer: Layer, names: tuple[str, ...], blobs: Blobs) -> Steps:
    start = layer.from_step
    if layer.table:
        table = blobs.tables[layer.table]
        said = merged(table.starts, table.shares).widened(len(names)).since(start)
    else:
        weights = dict(layer.weights)
        said = Steps((start,), (in_parts([weights.get(name, 0) for name in names]),))
    return base.spliced(start, None, said)


# Amendments -------------------------------------------------------------------------------------------------


def _window(amendment: Amendment) -> tuple[int, int]:
    return amendment.at_step, FOR_EVER if amendment.until is None else amendment.until


def _parts_that_count(amendment: Amendment, later: Sequence[Amendment]) -> list[Amendment]:
    """Returns an amendment in the steps in which none of the `later` ones says all shares itself."""
    parts = [_window(amendment)]
    for other in later:
        if any(isinstance(op, Weights | Replace) for op in other.ops):
            a, b = _window(other)
            cut = [part for first, last in parts for part in ((first, min(last, a)), (max(first, b), last))]
            parts = [(first, last) for first, last in cut if first < last]
    return [
        replace(amendment, at_step=first, until=None if last == FOR_EVER else last) for first, last in parts
    ]


def _added(amendment: Amendment, names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the datasets that an amendment adds; not those that a recipe has already."""
    return tuple(op.dataset for op in amendment.ops if isinstance(op, Add) and op.dataset not in names)


def _amended(steps: Steps, amendment: Amendment, names: tuple[str, ...], blobs: Blobs) -> Steps:
    """Returns `steps`, which may begin at any step, with the ops of an amendment in its window."""
    first, last = amendment.at_step, amendment.until
    for op in amendment.ops:
        if isinstance(op, Replace):
            table = blobs.tables[op.schedule]
            begin_at = max(first, steps.starts[0])
            if last is None or last > begin_at:
                said = merged(table.starts, table.shares).widened(len(names))
                steps = steps.spliced(begin_at, last, said.since(begin_at))
        elif (rule := rule_of(op, names)) is not None:
            steps = steps.ruled(first, last, rule)
    return steps


def check_schedule(table: ScheduleTable, names: tuple[str, ...]) -> None:
    """Raises AmendError for a table that is no schedule of the run's datasets, or more than shares."""
    if (found := table.names) != names[: len(found)]:
        raise AmendError(f"the schedule is of datasets {found}, the run has {names}")
    if table.skips or table.drops:
        raise AmendError("the schedule skips steps or documents; ask for that by itself")
    starts, numbers = table.starts, (*table.starts, *(part for shares in table.shares for part in shares))
    if any(type(number) is not int or number < 0 for number in numbers):
        raise AmendError("the schedule's steps and shares must be whole numbers >= 0")
    ascend = all(a < b for a, b in pairwise(starts))
    if not starts or starts[0] or len(starts) != len(table.shares) or not ascend:
        raise AmendError(f"the schedule's steps must ascend from 0, each with its shares, got {starts[:8]}")
    if wrong := [shares for shares in table.shares if (len(shares), sum(shares)) != (len(found), PARTS)]:
        raise AmendError(f"the schedule's shares must sum to {PARTS:,} over its datasets, got {wrong[0]}")


def rule_of(op: Op, names: tuple[str, ...]) -> Rule | None:
    """Returns what an op does to the shares of one step; None for one that changes none."""
    if isinstance(op, Weights):
        shares = _absolute(op.weights, names)
        return lambda _: shares
    if isinstance(op, Scale):
        return _scaled(op.factors, names)
    if isinstance(op, Points):
        return _moved(op.points, names)
    if isinstance(op, Retire):
        return _scaled(((op.dataset, "0"),), names)
    return None


def _by_place(numbers: Numbers, names: tuple[str, ...], *, signed: bool = False) -> dict[int, Fraction]:
    places = {name: place for place, name in enumerate(names)}
    if unknown := [name for name, _ in numbers if name not in places]:
        raise AmendError(f"no dataset is named {unknown[0]!r}; the datasets are {', '.join(names)}")
    if below := [name for name, text in numbers if exact(text) < 0 and not signed]:
        raise AmendError(f"the number of {below[0]!r} must be >= 0, got {dict(numbers)[below[0]]}")
    return {places[name]: exact(text) for name, text in numbers}


@lru_cache(maxsize=64)
def _absolute(numbers: Numbers, names: tuple[str, ...]) -> Shares:
    weights = _by_place(numbers, names)
    if not any(weights.values()):
        raise AmendError("all weights are zero; at least one dataset must be drawn")
    scale = lcm(*(weight.denominator for weight in weights.values()))
    return in_parts([int(weights.get(place, Fraction(0)) * scale) for place in range(len(names))])


def _scaled(numbers: Numbers, names: tuple[str, ...]) -> Rule:
    factors = _by_place(numbers, names)
    scale = lcm(*(factor.denominator for factor in factors.values()))
    times = [int(factors.get(place, Fraction(1)) * scale) for place in range(len(names))]

    def rule(shares: Shares) -> Shares:
        values = [share * factor for share, factor in zip(shares, times, strict=True)]
        if not any(values):
            shown = ", ".join(names[i] for i, share in enumerate(shares) if share)
            raise AmendError(f"no dataset is left: only {shown} had a share")
        return in_parts(values)

    return rule


def _moved(numbers: Numbers, names: tuple[str, ...]) -> Rule:
    points = _by_place(numbers, names, signed=True)
    scale = 100 * lcm(*(point.denominator for point in points.values()))
    whole = PARTS * scale
    more = {place: int(point * scale) * PARTS // 100 for place, point in points.items()}

    def rule(shares: Shares) -> Shares:
        named = {place: shares[place] * scale + number for place, number in more.items()}
        for place, value in named.items():
            if not 0 <= value <= whole:
                got = f"{shares[place] / PARTS:.2%} {float(points[place]):+g} points"
                raise AmendError(f"the share of {names[place]} leaves [0, 1]: {got} = {value / whole:.2%}")
        left, others = whole - sum(named.values()), PARTS - sum(shares[place] for place in named)
        if left < 0 or (left and not others):
            got = f"{sum(named.values()) / whole:.2%} for {', '.join(names[place] for place in named)}"
            raise AmendError(f"the shares do not sum to 1: {got}, and {others / PARTS:.2%} were the others'")
        unit = others or 1
        values = [
            named[place] * unit if place in named else share * left for place, share in enumerate(shares)
        ]
        return in_parts(values)

    return rule


def skips_of(amendments: Sequence[Amendment]) -> tuple[tuple[int, int], ...]:
    """Returns the ranges of steps that are skipped, ascending; AmendError where two of them meet."""
    ops = [op for amendment in amendments for op in amendment.ops if isinstance(op, SkipSteps)]
    skips = sorted((op.start, op.stop) for op in ops)
    for (a, b), (c, d) in pairwise(skips):
        if c < b:
            raise AmendError(f"the skipped steps [{a}, {b}) and [{c}, {d}) overlap")
    return tuple(skips)


def _drops_of(amendments: Sequence[Amendment], blobs: Blobs) -> tuple[Drop, ...]:
    found: dict[int, set[Document]] = {}
    for amendment in amendments:
        for op in amendment.ops:
            if isinstance(op, SkipDocuments):
                found.setdefault(amendment.at_step, set()).update(blobs.documents[op.documents])
    return tuple(Drop(step, tuple(sorted(found[step]))) for step in sorted(found))


def removed_stages(composed: Composed, at_step: int, until: int | None) -> list[int]:
    """Returns the steps in (at_step, until) at which the shares in force change: what new weights hide."""
    return [s for s in composed.steps.starts if s > at_step and (until is None or s < until)]
