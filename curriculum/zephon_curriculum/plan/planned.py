"""A plan: what a run draws of each dataset, by phase and in all, and what differs between two plans.

Upstream: `make.py`. Downstream: people, charts, the command `zephon plan`, and amendments, which show the
plan before and after. Tokens drawn are exact up to a few documents in each lane; what rests on estimates
carries their interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from zephon import PARTS, ScheduleTable
from zephon_curriculum.plan.curve import Phase
from zephon_curriculum.plan.ends import End
from zephon_curriculum.quantity import Quantity
from zephon_curriculum.results import Readable, Shown

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

    def shown(self) -> Shown:
        """Returns the plan as people read it: tables and warnings."""
        from zephon_curriculum.plan.text import shown_plan

        return shown_plan(self)


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
        from zephon_curriculum.plan.text import shown_effect

        return shown_effect(self)


def _part(plan: Plan, name: str) -> Part | None:
    found = next((d for d in plan.datasets if d.name == name), None)
    if found is None:
        return None
    share = found.drawn_tokens / max(1, plan.total_tokens + sum(d.skipped_tokens for d in plan.datasets))
    return Part(share=share, tokens=found.drawn_tokens, epochs=found.epochs.value if found.epochs else None)


def _told(fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in fields if name not in _UNTOLD}
