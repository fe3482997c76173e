"""The exact preview: the very rows of a run, made on a CPU by the real loader, a lane at a time.

Upstream: a recipe, a run folder or a state. Downstream: notebooks, `zephon preview`. The digests are those
that the run logs. A lane reads its own text only, so one lane of a run on many ranks costs no more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon import PARTS, DescribedPiece, DescribedRow, Loader, LoaderOptions, Opened, Recipe, describe_rows
from zephon.cli.common import LateProgress, past_run
from zephon_curriculum.figures import plural
from zephon_curriculum.opening import (
    PLAIN,
    Named,
    Opening,
    StateLike,
    folder_of,
    opened,
    recipe_of,
    state_before,
    table_of,
)
from zephon_curriculum.plan.curve import undecided
from zephon_curriculum.preview_cost import PreviewCost, cost_of
from zephon_curriculum.preview_text import MAX_ROWS, WIDTH, share_tables, shown_preview
from zephon_curriculum.results import Readable, Shown

STEPS = range(20)
MAX_STEPS = 1 << 20
Floats = NDArray[np.float64]
Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Shares(Readable):
    """Planned and realised shares of tokens by step; n steps, D datasets."""

    names: tuple[str, ...]
    steps: Int64
    """(n,)"""
    planned: Floats
    """(n, D); each row sums to 1."""
    realised: Floats
    """(n, D) of the tokens in the rows; zeros where these are all padding."""
    tokens: Int64
    """(n, D) in the rows."""
    padding_tokens: Int64
    """(n,)"""

    def total(self) -> dict[str, tuple[int, float, float]]:
        """Returns, for each dataset, (tokens, planned share, realised share) over all steps."""
        drawn = self.tokens.sum(axis=0)
        planned = self.planned.sum(axis=0) / max(1, len(self.steps))
        return {
            name: (int(drawn[i]), float(planned[i]), float(drawn[i] / max(1, drawn.sum())))
            for i, name in enumerate(self.names)
        }

    def shown(self) -> Shown:
        """Returns the shares in total and by step as tables."""
        return Shown(head=plural(len(self.steps), "step"), tables=share_tables(self))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Preview(Readable):
    """The rows of some steps and lanes."""

    names: tuple[str, ...]
    """The datasets, in order."""
    steps: tuple[int, ...]
    """The steps made, of those wanted; fewer where the data end."""
    lanes: tuple[int, ...]
    rows: tuple[DescribedRow, ...]
    """In the order of (step, lane, row)."""
    planned: Int64
    """(num_steps, D) integer shares, parts of 2^20."""
    cost: PreviewCost
    """What was made to get here."""
    ends: int | None
    """The step before which the data end, where that is at or before the last step wanted; else None."""
    notes: tuple[str, ...]
    """What to know of the steps as steps of the run."""
    decode: Callable[[NDArray[np.uint32]], str]

    def find(self, step: int, lane: int, row: int | None = None) -> DescribedRow:
        """Returns a row by its number in the lane, or the first of the step in the lane."""
        for found in self.rows:
            if (found.step, found.lane) == (step, lane) and row in (None, found.row):
                return found
        wanted = f"step {step}, lane {lane}" + ("" if row is None else f", row {row}")
        raise LookupError(
            f"the preview has no {wanted}; it has steps {_listed(self.steps)} of lanes {_listed(self.lanes)}"
        )

    def text(self, step: int, lane: int, row: int | None = None) -> str:
        """Returns the text of a row, decoded when asked for; padding is left out."""
        found = self.find(step, lane, row)
        return self.decode(found.tokens[: found.num_tokens])

    def texts(self, row: DescribedRow) -> list[str]:
        """Returns the text of each piece of a row."""
        return [self.decode(row.tokens_of(piece)) for piece in row.pieces]

    def digests(self) -> list[tuple[int, int, str]]:
        """Returns (lane, row, SHA-256) of every row, as `zephon.digest` does."""
        return [(row.lane, row.row, row.digest) for row in self.rows]

    def shares(self, lane: int | None = None) -> Shares:
        """Returns the shares by step, of all lanes of the preview or of one."""
        at, names = {step: i for i, step in enumerate(self.steps)}, {n: i for i, n in enumerate(self.names)}
        tokens = np.zeros((len(self.steps), len(self.names)), dtype=np.int64)
        padding = np.zeros(len(self.steps), dtype=np.int64)
        for row in self.rows:
            if lane in (None, row.lane):
                padding[at[row.step]] += row.padding_tokens
                for piece in row.pieces:
                    tokens[at[row.step], names[piece.dataset]] += piece.num_tokens
        return Shares(
            names=self.names,
            steps=np.array(self.steps, dtype=np.int64),
            planned=self.planned / PARTS,
            realised=tokens / np.maximum(1, tokens.sum(axis=1, keepdims=True)),
            tokens=tokens,
            padding_tokens=padding,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the preview as JSON data."""
        shares = self.shares()
        return {
            "cost": self.cost.to_json(),
            "data_end_before_step": self.ends,
            "notes": list(self.notes),
            "lanes": list(self.lanes),
            "shares": [
                {
                    "step": step,
                    "trainer_step": step + 1,
                    "padding_tokens": int(shares.padding_tokens[i]),
                    "datasets": _by_dataset(shares, i),
                }
                for i, step in enumerate(self.steps)
            ],
            "total": {
                name: {"tokens": tokens, "planned": planned, "realised": realised}
                for name, (tokens, planned, realised) in shares.total().items()
            },
            "rows": [self._row_json(row) for row in self.rows],
        }

    def _row_json(self, row: DescribedRow) -> dict[str, Any]:
        pairs = zip(row.pieces, self.texts(row), strict=True)
        return {
            "step": row.step,
            "lane": row.lane,
            "row": row.row,
            "digest": row.digest,
            "padding_tokens": row.padding_tokens,
            "pieces": [piece_json(piece, text) for piece, text in pairs],
        }

    def shown(self) -> Shown:
        """Returns shares in total and by step and the first rows as lines and tables."""
        return shown_preview(self, MAX_ROWS, WIDTH)


def _by_dataset(shares: Shares, i: int) -> dict[str, dict[str, float | int]]:
    return {
        name: {
            "tokens": int(shares.tokens[i, j]),
            "planned": float(shares.planned[i, j]),
            "realised": float(shares.realised[i, j]),
        }
        for j, name in enumerate(shares.names)
    }


def piece_json(piece: DescribedPiece, text: str) -> dict[str, Any]:
    """Returns a piece as JSON data."""
    found = {name: getattr(piece, name) for name in ("dataset", "file", "record", "position", "offset")}
    return found | {"begin": piece.begin, "num_tokens": piece.num_tokens, "text": text}


def _listed(numbers: Sequence[int]) -> str:
    """Returns ascending numbers as `[first, last + 1)` where they are a range, else one by one."""
    if not numbers:
        return "none"
    if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"[{numbers[0]}, {numbers[-1] + 1})"
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")


# Making -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to make."""

    steps: tuple[int, ...]
    lanes: tuple[int, ...]
    check_end: bool
    """Whether, of a recipe that ends, all lanes are made, to know that the run has not ended before."""

    @property
    def end(self) -> int:
        """Returns one past the last step wanted."""
        return self.steps[-1] + 1

    def made_lanes(self, recipe: Recipe) -> range:
        """Returns the lanes made, and those between."""
        is_all = recipe.is_finite and self.check_end
        return range(recipe.lanes) if is_all else range(self.lanes[0], self.lanes[-1] + 1)

    def parts(self, recipe: Recipe) -> list[LoaderOptions]:
        """Returns the loaders to make: one of all lanes, or one for each lane."""
        if (recipe.is_finite and self.check_end) or len(self.lanes) == recipe.lanes:
            return [LoaderOptions()]
        going_on = replace(LoaderOptions(), dp_world_size=recipe.lanes, any_rank=_any_rank(recipe))
        return [replace(going_on, dp_rank=lane) for lane in self.lanes]


def _any_rank(recipe: Recipe) -> Callable[[bool], bool] | None:
    """Returns the agreement of a lane alone: it ends where it has no row, padded lanes never."""
    if not recipe.is_finite:
        return None
    return (lambda _: True) if recipe.when_exhausted == "pad" else bool


def wanted_of(recipe: Recipe, steps: Iterable[int], lanes: Iterable[int] | None, check_end: bool) -> Wanted:
    """Returns what to make; refuses steps and lanes that no run of the recipe has."""
    numbers = sorted(set(islice(steps, MAX_STEPS + 1)))
    if not numbers or numbers[0] < 0:
        raise ValueError(f"`steps` must be numbers >= 0, at least one, got {numbers[:8]}; steps count from 0")
    if len(numbers) > MAX_STEPS:
        raise ValueError(
            f"`steps` must be at most {MAX_STEPS:,}, as a preview holds their rows, got more; "
            "`zephon plan` and preview_estimated tell of a whole run"
        )
    chosen = sorted(set(range(recipe.lanes) if lanes is None else lanes))
    if not chosen:
        raise ValueError("`lanes` must name at least one lane, got none; leave it out for all")
    if wrong := [lane for lane in chosen if not 0 <= lane < recipe.lanes]:
        raise ValueError(
            f"`lanes` must be of 0 to {recipe.lanes - 1}, the lanes of the recipe, got {wrong[0]}"
        )
    return Wanted(steps=tuple(numbers), lanes=tuple(chosen), check_end=check_end)


def notes_of(recipe: Recipe, wanted: Wanted, end: int) -> tuple[str, ...]:
    """Returns, a line each, what to know of the steps wanted as steps of a run; the data end at `end`."""
    is_alone = recipe.is_finite and not wanted.check_end and len(wanted.lanes) < recipe.lanes
    notes = []
    if end < wanted.end:
        notes.append(f"the data {'of these lanes alone ' * is_alone}end before step {end}")
    if is_alone:
        notes.append("the run may have ended before: the other lanes are not asked")
    return (*notes, *filter(None, [past_run(recipe.total_steps, wanted.end)]))


def preview(
    named: Named,
    steps: Iterable[int] = STEPS,
    lanes: Iterable[int] | None = (0,),
    state: StateLike | None = None,
    *,
    check_end: bool = True,
    allow: Collection[str] = (),
    how: Opening = PLAIN,
    progress: LateProgress | None = None,
) -> Preview:
    """Returns the rows of `steps` in `lanes` (None: all), as a run of `named` on any ranks has them.

    Made from `state`, of the run at or before the first step; without one from the newest snapshot of a run
    folder, else from step 0. What that costs `preview_cost` says. Of a recipe that ends all lanes are made,
    as only together they say when it does; `check_end=False` makes the lanes alone, also past that end.
    `allow` as at restores.
    """
    with opened(named, how, progress) as found:
        recipe = found.opened.recipe
        wanted = wanted_of(recipe, steps, lanes, check_end)
        start = state_before(state, wanted.steps[0], wanted.made_lanes(recipe), found.folder)
        cost = cost_of(recipe, found.opened.table.skips, wanted.parts(recipe), wanted.end, start)
        made = make_preview(found.opened, wanted, start, cost, allow, progress or LateProgress())
        notes = undecided(recipe) if found.folder is None else ()  # a run's log has what was decided
        return replace(made, notes=(*made.notes, *notes))


def preview_cost(
    named: Named,
    steps: Iterable[int] = STEPS,
    lanes: Iterable[int] | None = (0,),
    state: StateLike | None = None,
    *,
    check_end: bool = True,
    how: Opening = PLAIN,
) -> PreviewCost:
    """Returns what `preview` would make for the same arguments; opens no data."""
    recipe = recipe_of(named, how)
    wanted = wanted_of(recipe, steps, lanes, check_end)
    start = state_before(state, wanted.steps[0], wanted.made_lanes(recipe), folder_of(named))
    is_amended = isinstance(named, Opened) or folder_of(named) is not None
    skips = table_of(named, how).skips if is_amended else ()  # to compile a long schedule takes seconds
    return cost_of(recipe, skips, wanted.parts(recipe), wanted.end, start)


def make_preview(
    opened: Opened,
    wanted: Wanted,
    start: Mapping[str, Any] | None,
    cost: PreviewCost,
    allow: Collection[str],
    progress: LateProgress,
) -> Preview:
    """Returns the rows wanted of an opened recipe, made from `start`."""
    parts, rows, end = wanted.parts(opened.recipe), list[DescribedRow](), wanted.end
    steps, lanes = frozenset(wanted.steps), frozenset(wanted.lanes)
    for number, options in enumerate(parts):
        with Loader(opened, options) as loader:
            if start is not None:
                loader.load_state_dict(start, allow=allow)
            for batch in _until(loader, end):
                progress(
                    "rows", number * cost.num_steps + batch.step - cost.begin, len(parts) * cost.num_steps
                )
                if batch.step in steps:
                    rows += [row for row in describe_rows(opened, batch) if row.lane in lanes]
            end = min(end, loader.num_steps)
    made = tuple(step for step in wanted.steps if step < end)
    shares = [opened.table.at(step) for step in made]
    return Preview(
        names=opened.recipe.names,
        steps=made,
        lanes=wanted.lanes,
        rows=tuple(sorted((r for r in rows if r.step < end), key=lambda r: (r.step, r.lane, r.row))),
        planned=np.array(shares, dtype=np.int64).reshape(len(made), len(opened.recipe.names)),
        cost=cost,
        ends=end if end < wanted.end else None,
        notes=notes_of(opened.recipe, wanted, end),
        decode=opened.encoder.decode,
    )


def _until(loader: Loader, end: int) -> Iterator[Any]:
    """Yields the batches of a loader up to the end of step `end - 1`, or of the data."""
    while loader.num_steps < end:
        batch = next(loader, None)
        if batch is None:
            return
        yield batch
