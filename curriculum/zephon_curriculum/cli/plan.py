"""`zephon plan`: what a run draws of each dataset, how often it is read and when it ends, before it runs.

Upstream: the shell. Downstream: `zephon_curriculum.plan` and `.estimation`. Without a
file of estimates the lengths are measured, as `zephon estimate` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from zephon import Constant, Opened, Recipe, ScheduleTable
from zephon.cli.common import (
    BackendOption,
    CacheOption,
    JsonOption,
    LateProgress,
    RecipeArgument,
    SetOption,
    as_usage,
    visible,
    write,
    write_json,
)
from zephon_curriculum.cli.pairs import parse_pairs
from zephon_curriculum.estimation import Estimates, TokenEstimation
from zephon_curriculum.opening import Named, Opening, folder_of, opened, recipe_of, table_of
from zephon_curriculum.plan.capping import cap_schedule
from zephon_curriculum.plan.charts import mixture_chart
from zephon_curriculum.plan.drawn import counted
from zephon_curriculum.plan.exact_ends import ExactEnds, census, exact_ends
from zephon_curriculum.plan.make import Sizes
from zephon_curriculum.plan.make import plan as make_plan
from zephon_curriculum.plan.planned import Effect, Plan

StepsOption = Annotated[int | None, typer.Option("--steps", min=1, help="Plan so many steps.")]
EpochsOption = Annotated[
    str | None,
    typer.Option("--epochs", metavar="N", help="As many steps as N epochs of all data, or web=N of one."),
]
EstimatesOption = Annotated[
    Path | None, typer.Option("--estimates", help="What `zephon estimate --out` wrote.")
]
NoEstimateOption = Annotated[
    bool,
    typer.Option(
        "--no-estimate", help="Measure nothing: epochs stay unknown, but with --exact or --estimates."
    ),
]
RateOption = Annotated[
    float | None, typer.Option("--rate", min=1e-9, max=1e18, help="Tokens a second, for the hours.")
]
CapOption = Annotated[
    list[str] | None,
    typer.Option("--cap", metavar="NAME=N", help="At most N epochs of a dataset: web=4."),
]
FloorOption = Annotated[
    list[str] | None,
    typer.Option("--floor", metavar="NAME=N", help="At least N epochs of a dataset."),
]
ExactOption = Annotated[
    bool,
    typer.Option("--exact", help="Count every document and run the loader on lengths: reads all data once."),
]
PngOption = Annotated[Path | None, typer.Option("--png", help="Draw the mixture to this file.")]
SvgOption = Annotated[Path | None, typer.Option("--svg", help="Draw the mixture to this file.")]
CsvOption = Annotated[
    Path | None, typer.Option("--csv", help="Write the shares, for a schedule of kind `table`.")
]


def plan(
    recipe: RecipeArgument,
    steps: StepsOption = None,
    epochs: EpochsOption = None,
    estimates: EstimatesOption = None,
    no_estimate: NoEstimateOption = False,
    rate: RateOption = None,
    caps: CapOption = None,
    floors: FloorOption = None,
    exact: ExactOption = False,
    png: PngOption = None,
    svg: SvgOption = None,
    csv: CsvOption = None,
    settings: SetOption = None,
    cache: CacheOption = None,
    backend: BackendOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Plan a run: tokens drawn and trained by phase, epochs, first repeats, ends, hours, warnings.

    Without --estimates a small sample is measured, or taken from the cache. --cap and --floor find the
    schedule nearest to the recipe's that keeps the epochs in bounds, those of max_epochs too; both plans are
    shown.
    """
    asked = _Asked(
        named=recipe,
        how=Opening(settings=tuple(settings or ()), cache=cache, backend=backend),
        steps=steps,
        rate=rate,
        epochs=None if epochs is None else parse_epochs(epochs),
        caps=parse_pairs(caps or (), option="--cap"),
        floors=parse_pairs(floors or (), option="--floor"),
    )
    if exact and estimates is not None:
        raise typer.BadParameter("--exact counts every document; leave --estimates out, or --exact")
    given = None if estimates is None else Estimates.read(estimates)
    with LateProgress() as progress:
        found = _work(asked, given, measures=not no_estimate, exact=exact, progress=progress)
    written = _write_files(found.plan, [path for path in (png, svg) if path is not None], csv)
    if as_json:
        write_json(_as_json(found))
    else:
        _draw(found, written)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What the options say."""

    named: str
    how: Opening
    steps: int | None
    epochs: float | Mapping[str, float] | None
    rate: float | None
    caps: Mapping[str, float]
    floors: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What was planned."""

    plan: Plan
    own: Plan | None
    """That of the recipe's own schedule, where bounds made another."""
    exact: ExactEnds | None

    @property
    def comparison(self) -> Effect | None:
        """Returns what the bounds change."""
        return None if self.own is None else self.own.compare(self.plan)


def parse_epochs(text: str) -> float | dict[str, float]:
    """Returns the number of `3`, or the dataset and number of `math=3`."""
    name, equals, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise typer.BadParameter(f"--epochs takes N or NAME=N, a number > 0; got {text!r}")
    return {name: value} if equals else value


def _work(
    asked: _Asked, given: Estimates | None, *, measures: bool, exact: bool, progress: LateProgress
) -> _Found:
    """Opens what has to be opened, and plans."""
    recipe = recipe_of(asked.named, asked.how)
    if not (exact or (measures and given is None)):
        return _plans(asked, recipe, None, given)
    with _data(asked, recipe, progress) as data:
        if exact:
            return _exactly(asked, recipe, data, progress)
        estimation = TokenEstimation(cache=asked.how.cache, backend=asked.how.backend)
        return _plans(asked, recipe, data, estimation.measure(data, report=progress))


def _exactly(asked: _Asked, recipe: Recipe, data: Opened, progress: LateProgress) -> _Found:
    """Returns the plan of data of which every document is counted, and of runs on their lengths."""
    lengths, is_recipe = census(data, progress), folder_of(asked.named) is None

    def ran(planned: Plan, *, is_own: bool) -> tuple[Plan, ExactEnds]:
        table, steps = planned.asked_table, planned.asked_steps
        of_plan = replace(data, recipe=recipe, table=table)
        ends = exact_ends(of_plan, lengths, max_steps=steps, report=progress)
        given = None if is_own and is_recipe else table
        return make_plan(recipe, steps, rate=asked.rate, table=given, opened=data, exact=ends), ends

    found = _plans(asked, recipe, data, counted(data, lengths))
    planned, ends = ran(found.plan, is_own=found.own is None)
    own = None if found.own is None else ran(found.own, is_own=True)[0]
    return _Found(plan=planned, own=own, exact=ends)


@contextmanager
def _data(asked: _Asked, recipe: Recipe, progress: LateProgress) -> Iterator[Opened]:
    """Gives the opened data; a schedule that cannot be built before the length is known waits."""
    named: Named = asked.named
    if recipe.total_steps is None and (asked.steps or asked.epochs) and folder_of(named) is None:
        named = replace(recipe, schedule=Constant(dict.fromkeys(recipe.names, 1)))
    with opened(named, asked.how, progress) as found:
        yield found.opened


def _plans(asked: _Asked, recipe: Recipe, data: Opened | None, estimates: Estimates | None) -> _Found:
    """Returns the plan; with bounds, that of the schedule they make, and what differs."""
    table = None if folder_of(asked.named) is None else table_of(asked.named, asked.how)
    options = {"max_epochs": "--cap", "min_epochs": "--floor", "sizes": "--estimates"}
    with as_usage(steps="--steps", rate="--rate", epochs="--epochs", **options):
        first = make_plan(
            recipe, asked.steps, estimates, rate=asked.rate, epochs=asked.epochs, table=table, opened=data
        )
        if not (asked.caps or asked.floors):
            return _Found(plan=first, own=None, exact=None)
        capped = _capped(asked, recipe, first, estimates or {})
    second = make_plan(recipe, first.asked_steps, estimates, rate=asked.rate, table=capped, opened=data)
    return _Found(plan=second, own=first, exact=None)


def _capped(asked: _Asked, recipe: Recipe, first: Plan, estimates: Sizes) -> ScheduleTable:
    """Returns the table within the bounds that are asked for, and those of `max_epochs`."""
    sizes = {n: e.tokens.value for n, e in estimates.items() if e.tokens is not None}
    ends = {d.name: d.max_epochs for d in recipe.datasets if d.max_epochs is not None and d.name in sizes}
    caps = ends | {n: min(cap, ends.get(n, cap)) for n, cap in asked.caps.items()}
    return cap_schedule(
        first.asked_table, sizes=sizes, total_steps=first.asked_steps, tokens_per_step=recipe.tokens_per_step,
        max_epochs=caps, min_epochs=asked.floors,
    )  # fmt: skip


def _write_files(planned: Plan, pictures: Sequence[Path], csv: Path | None) -> list[Path]:
    """Returns the files that were asked for, written."""
    for path in pictures:
        with as_usage(path="--png and --svg: the file"):
            mixture_chart(planned, path)
    if csv is None:
        return list(pictures)
    csv.write_text(planned.to_csv(), encoding="utf-8", newline="")
    return [*pictures, csv]


def _as_json(found: _Found) -> dict[str, Any]:
    return found.plan.to_json() | {
        "comparison": None if found.comparison is None else asdict(found.comparison),
        "exact": None if found.exact is None else found.exact.to_json(),
    }


def _draw(found: _Found, written: Sequence[Path]) -> None:
    if found.comparison is not None:
        write("the recipe's schedule and the one within the bounds:")
        found.comparison.shown().write()
        write("")
    found.plan.shown().write()
    for path in written:
        write(f"written to {visible(str(path))}")
