"""Plans as people read them: a line, tables and warnings.

Upstream: `planned.py`. Downstream: `zephon plan`, `print(plan)`, notebooks. Steps count from
0; a trainer that counts from 1 logs step s as s + 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from zephon import PARTS
from zephon.cli.common import add_row, new_table
from zephon_curriculum.figures import plural, short, shown, shown_steps
from zephon_curriculum.plan.curve import Phase
from zephon_curriculum.plan.planned import Effect, Plan, PlannedDataset
from zephon_curriculum.quantity import Quantity
from zephon_curriculum.results import Shown, warned

MANY_DATASETS = 6
"""With more datasets the phases are the columns."""


def shown_plan(plan: Plan) -> Shown:
    """Returns the plan as people read it, its warnings last."""
    return Shown(head=head(plan), tables=tuple(tables(plan)), notes=warned(plan.warnings))


def shown_effect(found: Effect) -> Shown:
    """Returns two plans side by side."""
    first = found.first_step
    differs = "no share differs" if first is None else f"the shares differ from step {first:,} on"
    before, after = found.num_steps
    if before != after:
        differs += f"; tokens are of {plural(before, 'step')} before and {after:,} after"
    return Shown(head=differs, tables=(comparison_table(found),))


def head(plan: Plan) -> str:
    """Returns what the run is, in one line."""
    total = short(plan.total_tokens)
    text = f"{plural(plan.num_steps, 'step')} of {plan.tokens_per_step:,} tokens: {total} tokens"
    if plan.hours is not None:
        text += f", {short(plan.hours, 3)} hours at {plan.rate:,.0f} tokens/s"
    if plan.ends_after is not None:
        text += f"; the data end after {shown_steps(plan.ends_after)} steps"
    return text


def tables(plan: Plan) -> Iterator[Table]:
    """Yields the tables: datasets, phases and, where some end, ends."""
    yield _datasets(plan)
    yield _phases(plan)
    if any(d.max_epochs is not None or d.first_repeat is not None for d in plan.datasets):
        yield _ends(plan)


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
        add_row(table, d.name, shown_steps(d.first_repeat), d.max_epochs or "-", *_end_cells(d))
    return table


def _end_cells(dataset: PlannedDataset) -> tuple[str, str, str]:
    if dataset.end is None:
        return "-", "-", "-"
    return shown_steps(dataset.end.first), shown_steps(dataset.end.last), _or_unknown(dataset.unread_tokens)


def _or_unknown(interval: Quantity | None, digits: int = 3) -> str:
    return "unknown" if interval is None else shown(interval, digits)


def comparison_table(found: Effect) -> Table:
    """Returns two plans side by side."""
    headers = ("dataset", "#share before", "#after", "#tokens before", "#after", "#epochs before", "#after")
    table = new_table(*headers)
    for change in found.datasets:
        cells: list[str] = []
        for show in ("share", "tokens", "epochs"):
            for part in (change.before, change.after):
                value = None if part is None else getattr(part, show)
                if value is None:
                    cells.append("-")
                else:
                    cells.append(f"{value:.2%}" if show == "share" else short(value))
        add_row(table, change.name, *cells)
    return table
