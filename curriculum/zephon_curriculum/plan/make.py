"""Makes the plan of a run: what is drawn of each dataset, how often it is read, when it ends.

Upstream: a recipe or run, and estimates of its lengths. Downstream: `planned.py`, the result. Reads nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real

from zephon import Opened, Recipe, ScheduleTable
from zephon.cli.common import cut
from zephon_curriculum.estimation.estimates import DatasetEstimate
from zephon_curriculum.opening import Named, folder_of, recipe_of, table_of
from zephon_curriculum.plan.capping import joined, normalised, steps_for_epochs, whole_shares
from zephon_curriculum.plan.curve import MAX_STEPS, Curve, phases
from zephon_curriculum.plan.ends import End, EndModel, KnownEnd, earlier_tokens, size_of
from zephon_curriculum.plan.exact_ends import ExactEnds
from zephon_curriculum.plan.planned import Plan, PlannedDataset
from zephon_curriculum.plan.warnings import tell, warn
from zephon_curriculum.quantity import Quantity

Sizes = Mapping[str, DatasetEstimate]


def plan(
    source: Named,
    steps: int | None = None,
    estimates: Sizes | None = None,
    *,
    rate: float | None = None,
    epochs: float | Mapping[str, float] | None = None,
    table: ScheduleTable | None = None,
    opened: Opened | None = None,
    exact: ExactEnds | None = None,
) -> Plan:
    """Returns the plan of the first `steps` steps of a recipe or run; pure, nothing is read.

    Without `steps` of the recipe's `total_steps`, or of so many that the datasets have `epochs` epochs: all
    of them together, or one, as {"math": 3}. Where the recipe has no `total_steps`, schedules that need one
    are built for `steps`. `estimates` maps names to sizes (`TokenEstimation.measure`); without it epochs and
    ends are unknown. Opened data, as `source` or as `opened`, make the ends of lanes exact in documents.
    `table` is taken in place of the schedule, as an amendment would make it. `rate` is in tokens a second.
    `exact`, of `exact_ends` for the same steps, says all that without it is estimated.
    Cost: under a second for 100,000 steps of 20 datasets, and half a second for each that ends and hands on
    its share.
    """
    recipe = recipe_of(source)
    _check(steps, rate, estimates or {})
    if epochs is not None:
        if steps is not None:
            raise ValueError("`epochs` must be left out where steps are given: each says how long the run is")
        steps = _budget(source, recipe, estimates, epochs, table)
    asked = steps or recipe.total_steps
    if asked is None:
        raise ValueError("`steps` must be given, or epochs with estimates: the recipe has no `total_steps`")
    if asked > MAX_STEPS:
        raise ValueError(f"a plan has at most {MAX_STEPS:,} steps, got {asked:.3g}; give fewer")
    own = table is None and folder_of(source) is None
    if table is None:
        table = _table(source, recipe, asked)
    data, curve = source if isinstance(source, Opened) else opened, Curve(table, recipe.tokens_per_step)
    if exact is not None:
        _check_exact(exact, recipe, asked)
        estimates = exact.drawn.sizes
    found = _Job(recipe, data, estimates or {}, curve, asked, exact).run(rate)
    warnings = warn(found, recipe, estimates or {}, curve, is_own=own, is_exact=exact is not None)
    return replace(found, warnings=tuple(warnings), notes=tuple(tell(recipe, curve, asked, exact)))


def _check(steps: int | None, rate: float | None, estimates: Sizes) -> None:
    if steps is not None and (type(steps) is not int or steps < 1):
        raise ValueError(f"`steps` must be a whole number >= 1, got {cut(repr(steps), 40)}")
    if rate is not None and not 0 < rate < math.inf:
        raise ValueError(f"`rate` must be a number of tokens a second > 0, got {rate!r}")
    for name, estimate in estimates.items():
        if not isinstance(estimate, DatasetEstimate):
            raise TypeError(
                f"`estimates` of {name!r} must be what `TokenEstimation.measure` returns, got {estimate!r}; "
                f"say the tokens yourself by TokenEstimation(pinned={{{name!r}: Pinned(tokens=...)}})"
            )


def _check_exact(exact: ExactEnds, recipe: Recipe, asked: int) -> None:
    if tuple(exact.drawn.sizes) != recipe.names:
        raise ValueError(f"`exact` must be of the datasets {recipe.names}, got {tuple(exact.drawn.sizes)}")
    if exact.num_steps > asked or (exact.num_steps < asked and not exact.is_over):
        raise ValueError(
            f"`exact` must be of the {asked:,} steps that are planned, got one of {exact.num_steps:,}; "
            f"make it with max_steps={asked}"
        )


def _table(source: Named, recipe: Recipe, steps: int) -> ScheduleTable:
    if recipe.total_steps is not None or isinstance(source, Opened):
        return table_of(source)
    return table_of(replace(recipe, total_steps=steps) if isinstance(source, Recipe) else source)


def _budget(
    source: Named,
    recipe: Recipe,
    estimates: Sizes | None,
    epochs: float | Mapping[str, float],
    table: ScheduleTable | None,
) -> int:
    """Returns the steps that `epochs` stands for."""
    wanted = epochs if isinstance(epochs, Mapping) else dict.fromkeys(recipe.names, epochs)
    number = next(iter(wanted.values()), None)
    is_unclear = wanted is epochs and len(wanted) != 1
    if is_unclear or not isinstance(number, Real) or not 0 < number < math.inf:
        raise ValueError(f"`epochs` must be a number > 0, got {epochs!r}; of one dataset a dict of one")
    sizes = {n: e.tokens.value for n, e in (estimates or {}).items() if e.tokens is not None}
    if unknown := [name for name in wanted if name not in recipe.names]:
        raise ValueError(
            f"`epochs` names {unknown[0]!r}, which is no dataset; the datasets are {', '.join(recipe.names)}"
        )
    if missing := [name for name in wanted if name not in sizes]:
        raise ValueError(f"`epochs` needs estimates of the tokens of {missing[0]!r}; measure them first")
    if wanted is epochs:
        return steps_for_epochs(
            table or table_of(source), sizes, recipe.tokens_per_step, float(number), list(wanted)
        )
    total = float(number) * sum(sizes[name] for name in wanted)  # each counts once, and every step is full
    return max(1, -(-int(total) // recipe.tokens_per_step))


@dataclass(slots=True)
class _Job:
    """What one plan works with."""

    recipe: Recipe
    opened: Opened | None
    estimates: Sizes
    curve: Curve
    """Of the schedule that is asked for."""
    asked: int
    exact: ExactEnds | None

    def run(self, rate: float | None) -> Plan:
        recipe, exact = self.recipe, self.exact
        ends, curve, after = self._ends()
        steps = self.asked if after is None else min(self.asked, max(1, int(after.value)))
        if exact is not None:
            steps, after = exact.num_steps, Quantity.exactly(exact.num_steps) if exact.is_over else None
        datasets = tuple(self._dataset(i, curve, steps, ends.get(i)) for i in range(len(recipe.names)))
        parts = phases(curve, steps)
        if exact is not None:
            unread = {end.name: end.unread_tokens for end in exact.datasets}
            datasets = tuple(
                exact.drawn.dataset(i, each, unread.get(each.name)) for i, each in enumerate(datasets)
            )
            parts = tuple(map(exact.drawn.phase, parts))
        return Plan(
            num_steps=steps, asked_steps=self.asked, tokens_per_step=recipe.tokens_per_step,
            seq_len=recipe.packing.seq_len, table=curve.table, asked_table=self.curve.table,
            phases=parts, datasets=datasets, ends_after=after,
            when_exhausted=recipe.when_exhausted, rate=rate, warnings=(),
        )  # fmt: skip

    def _ends(self) -> tuple[dict[int, End], Curve, Quantity | None]:
        """Returns the end of each dataset, the curve with what others take over, and when the run ends."""
        models, curve, ends = self._models(), self.curve, dict[int, End]()
        while models:
            found = {i: model.end(curve, i, self.asked) for i, model in models.items()}
            next_ends = [(end.first.value, i) for i, end in found.items() if end.first is not None]
            if self.recipe.when_exhausted == "stop" or not next_ends:
                ends |= found
                afters = [end.after for end in found.values() if end.after is not None]
                return ends, curve, min(afters, key=lambda after: after.value, default=None)
            _, index = min(next_ends)
            end = ends[index] = found[index]
            del models[index]
            if end.middle is None:  # few lanes end in this run
                continue
            rest = _without(curve, index, end.middle + 1)
            if rest is None:
                is_padded = self.recipe.when_exhausted == "pad"
                last = None if end.last is None else end.last.map(lambda step: step + 1)
                return ends | found, curve, last if is_padded else end.after
            curve = Curve(rest, curve.tokens_per_step)
        return ends, curve, None

    def _models(self) -> dict[int, EndModel | KnownEnd]:
        """Returns what says when each dataset ends that may."""
        known = {} if self.exact is None else self.exact.known()
        found = {
            i: known.get(name) or EndModel.of(self.recipe, i, self.estimates.get(name), self.opened)
            for i, name in enumerate(self.recipe.names)
        }
        return {i: model for i, model in found.items() if model is not None}

    def _dataset(self, index: int, curve: Curve, steps: int, end: End | None) -> PlannedDataset:
        described = self.recipe.datasets[index]
        parts, skipped = curve.drawn(index, steps), curve.skipped(index, steps)
        drawn, estimate = curve.tokens(parts), self.estimates.get(described.name)
        dropped = curve.tokens(skipped)
        per_document = estimate.tokens_per_document if estimate is not None else None
        mean = per_document if per_document is not None and per_document.value else None
        size, earlier = size_of(estimate), earlier_tokens(self.recipe, index)
        num_epochs = described.max_epochs
        total = None if size is None or num_epochs is None else size.map(lambda tokens: tokens * num_epochs)
        if total is not None and self.recipe.when_exhausted != "redistribute":  # lanes that have ended pad
            drawn = min(drawn, max(dropped, round(total.value) - earlier))
        return PlannedDataset(
            name=described.name,
            drawn_tokens=drawn,
            skipped_tokens=dropped,
            trained_tokens=self._trained(drawn - dropped, mean),
            documents=None if mean is None else mean.under(drawn),
            size_tokens=size,
            epochs=None if size is None else size.under(drawn + earlier),
            first_repeat=None if size is None else curve.when(index, size.map(lambda n: n - earlier), steps),
            max_epochs=described.max_epochs,
            end=end,
            unread_tokens=None if total is None else total.map(lambda n: max(0.0, n - drawn - earlier)),
        )

    def _trained(self, tokens: int, mean: Quantity | None) -> Quantity | None:
        """Returns the labels that count among `tokens`; None where that is unknown.

        Each piece has one label that does not, at its end: pieces end with documents and with rows.
        """
        packing, seq_len = self.recipe.packing, self.recipe.packing.seq_len
        if not packing.mask_document_ends:
            return Quantity.exactly(tokens - tokens / seq_len)
        if packing.kind not in ("wrap", "best_fit") or mean is None:
            return None
        cuts = 1 / seq_len if packing.kind == "wrap" else 0.0  # best_fit cuts only what is longer than a row
        return mean.map(lambda each: tokens * max(0.0, (1 - 1 / each) * (1 - cuts)) if each else 0.0)


def _without(curve: Curve, dataset: int, step: int) -> ScheduleTable | None:
    """Returns the table with the share of `dataset` from `step` on given to the others, in proportion.

    None where no other has a share in some of these steps: then the run ends there.
    """
    table, first = curve.table, curve.table.phase(step)
    shares = curve.shares[first:].copy()
    shares[:, dataset] = 0
    if not shares.any(axis=1).all():
        return None
    fitted = whole_shares(normalised(shares, [1.0] * shares.shape[1]))
    return joined(table, step, [step, *table.starts[first + 1 :]], fitted)
