"""What a launch check can say of a recipe without reading anything: lanes, ranks, batches, weights.

Upstream: a recipe. Downstream: `check/__init__.py`, which adds what lies on disk. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from zephon.check.report import Finding, failure, ok, warning
from zephon.dataset import PAD, STOP, Dataset
from zephon.errors import check_whole
from zephon.recipe import NEAREST, Recipe, cure_shape, divisors, listed, nearest
from zephon.schedule import Schedule, ScheduleTable
from zephon.shares import PARTS

WORTH_SAYING = 100
"""What stays unread of a dataset is said where it is at least this part of it."""
RAMP_STEPS = 10
"""A weight that rounds to zero for fewer steps is the begin or the end of a ramp."""
EVEN = 20
"""With so many documents in each, lanes of a dataset that ends do so at nearly the same step."""


def check_shape(recipe: Recipe, sizes: Sequence[int], micro_batch_size: int | None) -> Iterator[Finding]:
    """Yields what there is to say of lanes, data-parallel sizes and micro-batches."""
    lanes, rows = recipe.lanes, recipe.rows_per_step
    if bad := [size for size in sizes if lanes % size]:
        yield failure(
            "lanes",
            f"{lanes} lanes cannot be divided over {listed(bad)} data-parallel ranks",
            cure_shape(recipe.global_batch_size, recipe.lanes, sizes),
        )
    else:
        message = f"{lanes} lanes, divided by every data-parallel size asked ({listed(sizes)}); "
        message += f"R = {rows} row{'s' * (rows != 1)} of a lane in a step"
        yield ok("lanes", message)
    if rows == 1 and lanes > 1:
        yield warning(
            "lanes",
            f"as many lanes as rows in a global batch ({lanes}): a later phase (continue_from) with "
            f"another global batch must keep {lanes} lanes, so only multiples of {lanes} rows are open to it",
            _cure_fewer_lanes(recipe, sizes),
        )
    if recipe.continues is not None:
        message = f"continues from {recipe.continues}; steps count from 0 again"
        yield ok("phase", message)
    if micro_batch_size is not None:
        yield from _check_micro_batches(recipe, sizes, micro_batch_size)


def _check_micro_batches(recipe: Recipe, sizes: Sequence[int], micro_batch_size: int) -> Iterator[Finding]:
    check_whole("`micro_batch_size`", micro_batch_size, 1)
    for size in sizes:
        rows, rest = divmod(recipe.global_batch_size, size)
        if not rest and rows % micro_batch_size:
            yield failure(
                "micro_batch_size",
                f"{micro_batch_size} does not divide the {rows} rows that each of {size} ranks has",
                f"set one of {listed(nearest(divisors(rows), micro_batch_size))}",
            )


def check_schedule(recipe: Recipe, schedule: Schedule, table: ScheduleTable) -> Iterator[Finding]:
    """Yields what there is to say of the weights of every phase."""
    for name, step, weight in _rounded_away(schedule, table):
        yield warning(
            "schedule",
            f"the share of {name!r} at step {step} rounds to zero: "
            f"weight {weight!r} is too small beside the others (shares are parts of {PARTS:,})",
            "give it more weight, or 0 to say that it is left out",
        )
    for name, first in zip(table.names, table.first_active(), strict=True):
        if first is None:
            yield warning(
                "schedule",
                f"dataset {name!r} is never drawn: its share is 0 at every step",
                "give it a weight, or remove it from the recipe",
            )
    total = recipe.total_steps
    if total is not None and table.starts[-1] >= total:
        late = next(start for start in table.starts if start >= total)
        yield warning(
            "schedule",
            f"the weights change at step {late}, but the run ends at total_steps = {total}",
            "correct the steps or total_steps",
        )
    num = len(table.starts)
    message = f"{num} phase{'s' * (num != 1)}, the last from step {table.starts[-1]} on"
    yield ok("schedule", message)


def few_documents(recipe: Recipe, dataset: Dataset, count: int) -> Finding:
    """Returns what a dataset with fewer documents to read, `count`, than there are lanes means."""
    message = f"{count} documents for {recipe.lanes} lanes: lanes read the same ones in turn"
    if dataset.max_epochs is not None:
        message = f"{count} documents for {recipe.lanes} lanes: {recipe.lanes - count} lanes have none of it"
        if recipe.when_exhausted == STOP:
            message += ", and the run ends when such a lane is to draw from it"
    cure = "give it a small weight, add documents, or use fewer lanes"
    return warning(f"dataset {dataset.name}", message, cure)


def uneven_lanes(recipe: Recipe, dataset: Dataset, count: int) -> Finding | None:
    """Returns what few documents in each lane, `count` in all, mean where they end; None where nothing."""
    if dataset.max_epochs is None or recipe.when_exhausted == PAD or count >= EVEN * recipe.lanes:
        return None
    message = (
        f"{count} documents to read for {recipe.lanes} lanes, {count // recipe.lanes} or one more in each: "
    )
    message += "lanes end at different steps, the run with the first of them, and the rest is left unread"
    cure = "use fewer lanes, or give it more documents or epochs"
    return warning(f"dataset {dataset.name}", message, cure)


def check_ends(recipe: Recipe, table: ScheduleTable, num_tokens: Mapping[int, float]) -> Iterator[Finding]:
    """Yields when datasets with `max_epochs` end and what stays unread then, by estimate.

    `num_tokens` is what each of them has in all epochs.
    """
    ends = {index: _end(recipe, table, index, tokens) for index, tokens in num_tokens.items()}
    for index, end in ends.items():
        if end is not None:
            yield _end_finding(recipe, recipe.datasets[index], end)
    last = min((end for end in ends.values() if end is not None), default=None)
    if last is None or recipe.when_exhausted != STOP:
        return
    if recipe.total_steps is not None:
        last = min(last, recipe.total_steps)
    for index, tokens in num_tokens.items():
        left = tokens - drawn(recipe, table, index, last)
        if left * WORTH_SAYING >= tokens:
            yield ok(
                f"dataset {recipe.datasets[index].name}",
                f"about {left:,.0f} of its {tokens:,.0f} tokens ({left / tokens:.0%}) stay unread: "
                f"the run ends after about {last:,} steps",
            )


def _end_finding(recipe: Recipe, dataset: Dataset, end: int) -> Finding:
    total, subject = recipe.total_steps, f"dataset {dataset.name}"
    message = f"max_epochs = {dataset.max_epochs} ends it after about {end:,} steps"
    if recipe.continues is not None:
        message += ", less what earlier phases have read"
    if recipe.when_exhausted == STOP and total is not None and end < total:
        return warning(
            subject,
            f"{message}, and with it the run, before total_steps = {total:,}",
            'give it less weight or more epochs, or set when_exhausted = "redistribute"',
        )
    return ok(subject, message)


def _end(recipe: Recipe, table: ScheduleTable, index: int, num_tokens: float) -> int | None:
    """Returns the step at which a dataset of so many tokens has been read; None where it never is."""
    left = num_tokens
    for start, until, shares in zip(table.starts, [*table.starts[1:], None], table.shares, strict=True):
        per_step = recipe.tokens_per_step * shares[index] / PARTS
        if per_step and (until is None or left <= per_step * (until - start)):
            return start + int(left / per_step)
        left -= per_step * ((until or start) - start)
    return None


def drawn(recipe: Recipe, table: ScheduleTable, index: int, num_steps: int) -> float:
    """Returns the tokens that steps [0, num_steps) draw of a dataset."""
    untils = [*table.starts[1:], num_steps]
    return sum(
        recipe.tokens_per_step * shares[index] / PARTS * max(0, min(until, num_steps) - start)
        for start, until, shares in zip(table.starts, untils, table.shares, strict=True)
    )


def _rounded_away(schedule: Schedule, table: ScheduleTable) -> Iterator[tuple[str, int, float]]:
    """Yields (dataset, first step, weight) where a weight > 0 has a share of zero for RAMP_STEPS or more."""
    seen: set[str] = set()
    ends = (*table.starts[1:], table.starts[-1] + RAMP_STEPS)
    for start, end, shares in zip(table.starts, ends, table.shares, strict=True):
        if end - start < RAMP_STEPS or all(shares):
            continue
        weights = schedule.weights(start)
        for name, share in zip(table.names, shares, strict=True):
            if share == 0 and weights[name] > 0 and name not in seen:
                seen.add(name)
                yield name, start, weights[name]


def _cure_fewer_lanes(recipe: Recipe, sizes: Sequence[int]) -> str:
    common = math.lcm(*sizes)
    fewer = [d for d in divisors(recipe.global_batch_size) if d % common == 0 and d < recipe.lanes]
    if not fewer:
        return "none needed while the global batch stays a multiple of the lanes"
    fits = listed(fewer[-NEAREST:], "or")
    return f"none needed while it stays so; else set lanes = {fits}, which fit every size asked too"
