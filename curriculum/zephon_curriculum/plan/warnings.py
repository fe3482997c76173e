"""What a plan has to say about itself: repeats, caps that cannot be met, shares too small to be drawn.

Upstream: a finished `Plan`. Downstream: whoever prints it. Each warning is one line: subject, what, cure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from zephon import Recipe, ScheduleTable
from zephon.cli.common import past_run
from zephon_curriculum.estimation.estimates import DatasetEstimate
from zephon_curriculum.figures import ranged, ranged_step, short
from zephon_curriculum.plan.curve import Curve, undecided
from zephon_curriculum.plan.exact_ends import ExactEnds
from zephon_curriculum.plan.planned import Plan, PlannedDataset

MANY_EPOCHS = 4
"""Up to about so many epochs repeated data are worth nearly what new data are: Muennighoff et al. 2023,
arXiv 2305.16264."""
WORTH_SAYING = 0.01
"""What stays unread is said where it is at least this part."""
MAX_LOOKED_AT = 1000
"""Changes of the schedule whose weights are compared with their shares."""


def warn(
    plan: Plan,
    recipe: Recipe,
    estimates: Mapping[str, DatasetEstimate],
    asked: Curve,
    *,
    is_own: bool,
    is_exact: bool,
) -> Iterator[str]:
    """Yields the warnings of a plan, those of the run first, then by dataset.

    `asked` is the curve of the schedule that is asked for; `is_own` says whether that is the recipe's own,
    `is_exact` whether what is drawn was counted.
    """
    if recipe.total_steps is None:
        yield f"the recipe has no total_steps; planned are {plan.num_steps:,} steps"
    if plan.ends_after is not None and plan.ends_after.value < plan.asked_steps:
        yield _run_ends(plan)
    if plan.table.starts[-1] >= plan.asked_steps:
        late = next(s for s in plan.table.starts if s >= plan.asked_steps)
        yield f"the shares change at step {late:,}, but the run has {plan.asked_steps:,} steps"
    if recipe.packing.kind != "wrap" and not is_exact:
        kind = recipe.packing.kind
        yield f"packing {kind!r} pads rows, by how much is unknown: tokens are at most these"
    if recipe.continues is not None:
        yield "the phase continues an earlier one: epochs and ends count what that has drawn"
    for index, dataset in enumerate(plan.datasets):
        texts = _of_dataset(plan, index, asked, recipe.lanes, is_measured=dataset.name in estimates)
        yield from (f"{dataset.name}: {text}" for text in texts)
    if is_own:
        yield from _rounded_away(plan.asked_table, recipe, plan.asked_steps)


def tell(recipe: Recipe, asked: Curve, steps: int, exact: ExactEnds | None) -> Iterator[str]:
    """Yields what else a plan of so many steps has to say: what it rests on, and what it leaves out."""
    if exact is not None:
        yield "exact: every document was counted, and the loader was run on their lengths"
        yield from exact.notes()
    if past := past_run(recipe.total_steps, steps):
        yield past + _not_stretched(recipe, asked.table.starts[-1], steps)
    yield from undecided(recipe)


def _not_stretched(recipe: Recipe, last: int, steps: int) -> str:
    """Returns what to add where a schedule would be another one in a run of so many steps."""
    try:
        stretched = replace(recipe, total_steps=steps).compile_schedule()
    except ValueError:  # of so many steps there is none: more changes than a table holds
        return ""
    if stretched.first_difference(recipe.compile_schedule(), steps) is None:
        return ""
    return (
        f"; positions that are parts of the run are parts of that, and the shares of step {last:,} go on to "
        f"the end: --set total_steps={steps} stretches them"
    )


def _run_ends(plan: Plan) -> str:
    after = plan.ends_after
    assert after is not None
    ended = [d for d in plan.datasets if d.end is not None and d.end.after == after]
    about = "" if after.exact else "about "
    text = f"the data end after {about}{ranged_step(after)} steps, of {plan.asked_steps:,} asked for"
    if ended:
        text += f": {ended[0].name} has max_epochs = {ended[0].max_epochs}"
    cure = "give it less weight or more epochs"
    if plan.when_exhausted == "stop":
        cure += ', or set when_exhausted = "redistribute"'
    return f"{text}; {cure}" if ended else text


def _of_dataset(plan: Plan, index: int, asked: Curve, lanes: int, *, is_measured: bool) -> Iterator[str]:
    dataset = plan.datasets[index]
    if not dataset.drawn_tokens and not any(phase.drawn_tokens[index] for phase in plan.phases):
        if not any(shares[index] for shares in plan.table.shares):
            yield "is never drawn: its share is 0 at every step; give it a weight, or remove it"
        else:
            yield f"is not drawn in these {plan.num_steps:,} steps"
        return
    begun = dataset.documents
    if begun is not None and begun.value < 1:
        yield (
            f"its share is too small to be drawn: {dataset.drawn_tokens:,} tokens in the whole run are "
            f"{begun.value:.2g} documents; give it more weight"
        )
    elif begun is not None and begun.value < lanes:
        yield f"about {begun.value:,.0f} documents in the run for {lanes:,} lanes: some never draw it"
    epochs = dataset.epochs
    if epochs is not None and (epochs.value if epochs.low is None else epochs.low) > MANY_EPOCHS:
        yield (
            f"{ranged(epochs)} epochs are over {MANY_EPOCHS}: repeats are then worth less than new "
            "data (arXiv 2305.16264); give it less weight, or cap it"
        )
    if dataset.size_tokens is None:
        cure = "" if is_measured else "; measure them"
        yield f"its tokens are unknown, and so are its epochs and its end{cure}"
    elif dataset.size_tokens.low is None:
        yield "its estimate has no interval: sample more chunks"
    if dataset.max_epochs is not None and dataset.size_tokens is not None:
        wanted = asked.tokens(asked.drawn(index, plan.asked_steps))
        yield from _of_end(plan, dataset, wanted, dataset.size_tokens.value * dataset.max_epochs)


def _of_end(plan: Plan, dataset: PlannedDataset, wanted: int, there: float) -> Iterator[str]:
    if wanted > there:
        is_exact = dataset.size_tokens is not None and dataset.size_tokens.exact
        about = "" if is_exact else "about "
        yield (
            f"max_epochs = {dataset.max_epochs} cannot be met: the schedule asks for {wanted:,} tokens and "
            f"there are {about}{there:,.0f}: {about}{wanted - there:,.0f} short"
        )
    unread = dataset.unread_tokens
    has_end = dataset.end is not None and dataset.end.after is not None
    if not has_end and unread is not None and unread.value and unread.low == 0:
        yield (
            "may end in this run: the interval of its tokens begins below what is drawn; sample more chunks, "
            "or plan --exact"
        )
    is_over = plan.ends_after is not None and plan.ends_after.value <= plan.asked_steps
    if is_over and unread is not None and unread.value >= WORTH_SAYING * there:
        part = f"{unread.value / there:.0%}"
        yield f"{ranged(unread)} of its {short(there)} tokens ({part}) stay unread when the run ends"


def _rounded_away(table: ScheduleTable, recipe: Recipe, steps: int) -> Iterator[str]:
    """Yields where a weight > 0 has a share of zero."""
    known = recipe if recipe.total_steps is not None else replace(recipe, total_steps=steps)
    schedule, seen = known.build_schedule(), set[str]()
    for start, shares in zip(table.starts[:MAX_LOOKED_AT], table.shares, strict=False):
        weights = {} if all(shares) or start >= steps else schedule.weights(start)
        for name, share in zip(table.names, shares, strict=True):
            if not share and weights.get(name, 0) > 0 and name not in seen:
                seen.add(name)
                yield f"{name}: its weight {float(weights[name]):g} at step {start} rounds to a share of 0"
