"""A plan: what a run draws of each dataset, by phase and in all, and what differs between two plans.

Upstream: `make.py`. Downstream: people, charts, the command `zephon plan`, and amendments, which show the
plan before and after. Tokens drawn are exact up to a few documents in each lane; what rests on estimates
carries their interval.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.table import Table

from zephon import PARTS, ScheduleTable
from zephon.cli.common import add_row, new_table
from zephon_curriculum.figures import plural, ranged, ranged_step, short
from zephon_curriculum.plan.curve import Phase
from zephon_curriculum.plan.ends import End
from zephon_curriculum.quantity import Quantity
from zephon_curriculum.results import Readable, Shown, warned

MANY_DATASETS = 6
"""With more datasets the phases are the columns."""
_NO_TABLE = ScheduleTable((), (), ())
_UNTOLD = {"std_error", "freedom", "reason"}
"""Of quantities, what estimates say and plans do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDataset:
    """One dataset over the whole run; what depends on unknown lengths is None."""

    name: str
    drawn_tokens: int
    """Those skipped included; at most what `max_epochs` leaves, where no other dataset takes over."""
    skipped_tokens: int
    """Drawn and dropped where steps are skipped."""
    trained_tokens: Quantity | None
    """Labels that count: none at document ends, where these are masked, nor at the last place of a row."""
    documents: Quantity | None
    """Begun."""
    size_tokens: Quantity | None
    """Of one epoch."""
    epochs: Quantity | None
    """Those of earlier phases included."""
    first_repeat: Quantity | None
    """The step in which the dataset has been read once, by its total; lanes differ a little."""
    max_epochs: int | None
    end: End | None
    """Where `max_epochs` ends it; None where nothing does."""
    unread_tokens: Quantity | None
    """Of a dataset with `max_epochs`, what the run leaves of all its epochs."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plan(Readable):
    """What a run draws; see `plan`."""

    num_steps: int
    """The steps that are planned; fewer than asked for where the data end."""
    asked_steps: int
    tokens_per_step: int
    seq_len: int
    table: ScheduleTable
    """As it is planned to happen: where datasets end, others take over their shares."""
    asked_table: ScheduleTable
    """In force, before any dataset ends."""
    phases: tuple[Phase, ...]
    datasets: tuple[PlannedDataset, ...]
    ends_after: Quantity | None
    """Steps after which the data end; None where they last."""
    when_exhausted: str
    rate: float | None
    """Tokens a second."""
    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """What else is to be known, and is no fault."""

    @property
    def total_tokens(self) -> int:
        """Returns the token slots of the planned steps."""
        return self.num_steps * self.tokens_per_step

    @property
    def hours(self) -> float | None:
        """Returns how long the run takes at `rate`."""
        return None if not self.rate else self.total_tokens / self.rate / 3600

    def __getitem__(self, name: str) -> PlannedDataset:
        return {dataset.name: dataset for dataset in self.datasets}[name]

    def compare(self, other: Plan) -> Effect:
        """Returns what differs from this plan to `other`: first step, tokens, mean shares and epochs."""
        steps = max(self.asked_steps, other.asked_steps)
        names = list(dict.fromkeys(d.name for plan in (self, other) for d in plan.datasets))
        lines = tuple(
            DatasetEffect(name=name, before=_part(self, name), after=_part(other, name)) for name in names
        )
        ours, theirs = self.asked_table, other.asked_table
        if set(ours.names) < set(theirs.names):
            ours = ours.with_datasets(theirs.names)
        both = self.num_steps, other.num_steps
        return Effect(num_steps=both, first_step=ours.first_difference(theirs, steps), datasets=lines)

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as JSON data."""
        data = asdict(replace(self, table=_NO_TABLE, asked_table=_NO_TABLE), dict_factory=_told)
        del data["asked_table"]
        data["table"] = {"hash": self.asked_table.hash(), "names": list(self.table.names)}
        return data | {"total_tokens": self.total_tokens, "hours": self.hours, "parts": PARTS}

    def to_csv(self) -> str:
        """Returns the shares that are asked for, for a schedule of kind `table`; ends are not in them."""
        table = self.asked_table
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(["step", *table.names])
        lines.writerows([s, *e] for s, e in zip(table.starts, table.shares, strict=True))
        return text.getvalue()

    def shown(self) -> Shown:
        """Returns the plan as people read it: tables and warnings."""
        text = f"{plural(self.num_steps, 'step')} of {self.tokens_per_step:,} tokens: "
        text += f"{short(self.total_tokens)} tokens"
        if self.hours is not None:
            text += f", {short(self.hours, 3)} hours at {self.rate:,.0f} tokens/s"
        if self.ends_after is not None:
            text += f"; the data end after {ranged_step(self.ends_after)} steps"
        tables = [_datasets(self), _phases(self)]
        if any(d.max_epochs is not None or d.first_repeat is not None for d in self.datasets):
            tables.append(_ends(self))
        return Shown(head=text, tables=tables, notes=(*warned(self.warnings), *self.notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A dataset's part in one of two plans."""

    share: float
    """Of all tokens of the run."""
    tokens: int
    epochs: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetEffect:
    """A dataset in two plans."""

    name: str
    before: Part | None
    after: Part | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Effect(Readable):
    """Two plans side by side."""

    num_steps: tuple[int, int]
    """Planned before and after."""
    first_step: int | None
    """The first step of which the shares differ; None: none does."""
    datasets: tuple[DatasetEffect, ...]

    def shown(self) -> Shown:
        """Returns both side by side."""
        first = self.first_step
        head = "no share differs" if first is None else f"the shares differ from step {first:,} on"
        before, after = self.num_steps
        if before != after:
            head += f"; tokens are of {plural(before, 'step')} before and {after:,} after"
        headers = ("#share before", "#after", "#tokens before", "#after", "#epochs before", "#after")
        table = new_table("dataset", *headers)
        for change in self.datasets:
            pairs = zip(*(_cells(part) for part in (change.before, change.after)), strict=True)
            add_row(table, change.name, *(cell for pair in pairs for cell in pair))
        return Shown(head=head, tables=(table,))


def _part(plan: Plan, name: str) -> Part | None:
    found = next((d for d in plan.datasets if d.name == name), None)
    if found is None:
        return None
    share = found.drawn_tokens / max(1, plan.total_tokens + sum(d.skipped_tokens for d in plan.datasets))
    return Part(share=share, tokens=found.drawn_tokens, epochs=found.epochs.value if found.epochs else None)


def _told(fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in fields if name not in _UNTOLD}


def _cells(part: Part | None) -> tuple[str, str, str]:
    if part is None:
        return "-", "-", "-"
    return f"{part.share:.2%}", short(part.tokens), "-" if part.epochs is None else short(part.epochs)


def _datasets(plan: Plan) -> Table:
    headers = ("dataset", "#share", "#drawn", "#trained", "#one epoch has", "#epochs")
    table = new_table(*headers, title="tokens")
    total = max(1, sum(d.drawn_tokens for d in plan.datasets))
    for d in plan.datasets:
        add_row(
            table, d.name, f"{d.drawn_tokens / total:.2%}", short(d.drawn_tokens),
            _or_unknown(d.trained_tokens, 4), _or_unknown(d.size_tokens), _or_unknown(d.epochs),
        )  # fmt: skip
    return table


def _phases(plan: Plan) -> Table:
    names = [d.name for d in plan.datasets]
    if len(names) > MANY_DATASETS:
        heads = [f"#{_steps_of(phase)}" for phase in plan.phases]
        table = new_table("dataset", *heads, title="shares by phase")
        for i, name in enumerate(names):
            add_row(table, name, *(_shares_of(phase, i) for phase in plan.phases))
        return table
    table = new_table("steps", "#tokens", *(f"#{name}" for name in names), title="phases")
    for phase in plan.phases:
        tokens = short(sum(phase.drawn_tokens))
        add_row(table, _steps_of(phase), tokens, *(_shares_of(phase, i) for i in range(len(names))))
    return table


def _steps_of(phase: Phase) -> str:
    return f"[{phase.start:,}, {phase.stop:,})"


def _shares_of(phase: Phase, index: int) -> str:
    first, last = (shares[index] / PARTS for shares in (phase.first, phase.last))
    return f"{first:.2%}" if phase.first[index] == phase.last[index] else f"{first:.1%} to {last:.1%}"


def _ends(plan: Plan) -> Table:
    headers = ("dataset", "#first repeat", "#max_epochs", "#first lane ends", "#last lane ends", "#unread")
    table = new_table(*headers, title="steps, from 0 (a trainer that counts from 1 logs them as one more)")
    for d in plan.datasets:
        add_row(table, d.name, ranged_step(d.first_repeat), d.max_epochs or "-", *_end_cells(d))
    return table


def _end_cells(dataset: PlannedDataset) -> tuple[str, str, str]:
    if dataset.end is None:
        return "-", "-", "-"
    return ranged_step(dataset.end.first), ranged_step(dataset.end.last), _or_unknown(dataset.unread_tokens)


def _or_unknown(quantity: Quantity | None, digits: int = 3) -> str:
    """Returns a quantity; one that is known with the digits that are told of whole numbers, too."""
    return "unknown" if quantity is None else ranged(quantity, 4 if quantity.exact else digits)
