"""Why a lane drew what it drew: the weights, the credits and the choice ahead of every draw of its rows.

Upstream: a recipe or a run folder with its curriculum log. Downstream: notebooks, `zephon explain`. The rows
are made by the real loader, of which each choice is watched; nothing here chooses anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from zephon import PARTS, DescribedRow, Ledger, Loader, Opened, Packer, describe_rows
from zephon.cli.common import LateProgress
from zephon_curriculum.log.amend import Composed, rule_of
from zephon_curriculum.log.entries import Entry, body_json
from zephon_curriculum.log.folder import log_of
from zephon_curriculum.log.history import History
from zephon_curriculum.log.ops import Op, Replace, Weights
from zephon_curriculum.log.steps import Shares
from zephon_curriculum.opening import PLAIN, Found, Named, Opening, StateLike, opened, state_before
from zephon_curriculum.plan.curve import undecided
from zephon_curriculum.preview import Wanted, notes_of, piece_json, wanted_of
from zephon_curriculum.preview_cost import PreviewCost, cost_of
from zephon_curriculum.preview_text import WIDTH, shown_explanation
from zephon_curriculum.results import Readable, Shown

MAX_WAITING = 1 << 20
"""Pieces of which it is known for which row they were drawn: more than a pool holds."""
Place = tuple[int, int, int]
"""Of a piece: its dataset, the position of its document and the tokens before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One choice of the work source, and what was drawn by it."""

    row: int
    """Number of the row in the lane that was being filled."""
    dataset: str
    at_least: int
    """For so many tokens the dataset stays the choice; the last document, or the row's end, may be later."""
    num_tokens: int
    """Tokens drawn by it."""
    shares: tuple[int, ...]
    """The shares in force, parts of 2^20: the schedule's, without datasets that have ended in the lane."""
    credits: tuple[int, ...]
    """What the lane owed each dataset ahead of the draw, in tokens times 2^20."""
    rest: int
    """Tokens that the packer had room for."""

    def owed_tokens(self) -> tuple[float, ...]:
        """Returns the credits in tokens."""
        return tuple(credit / PARTS for credit in self.credits)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRow:
    """A row and the draws made while it was filled."""

    row: DescribedRow
    texts: tuple[str, ...]
    """Of each piece."""
    draws: tuple[Draw, ...]
    """Where the packer keeps a pool they fill it, and the pieces may have been drawn for earlier rows; of the
    first row after skipped steps, those of the rows dropped come first."""
    drawn_for: tuple[int | None, ...]
    """For each piece, the number of the row that was being filled when it was drawn: that of this row but
    where the packer keeps a pool. None: before the state that the rows were made from."""

    def num_dropped(self) -> int:
        """Returns how many draws, the first, were for rows of skipped steps; of a packer without a pool."""
        pairs = enumerate(pairwise(self.draws), 1)  # a row begins where the last one did not leave the room
        return max((i for i, (a, b) in pairs if b.rest != a.rest - a.num_tokens), default=0)

    def begin_of(self, draw: Draw) -> int:
        """Returns the first token in the row that was drawn by `draw`, where the packer keeps no pool."""
        return len(self.row.tokens) - draw.rest


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Explanation(Readable):
    """Why the rows of one step in one lane hold what they hold."""

    names: tuple[str, ...]
    step: int
    lane: int
    work_source: str
    """Its kind; `mixture` chooses the largest credit among the shares > 0, the first of equals."""
    planned: tuple[int, ...]
    """What the schedule says of the step, parts of 2^20."""
    in_force_since: int
    """The first step with these shares."""
    entries: tuple[Entry, ...]
    """Of the curriculum log, those that set them: of recipe or controller, then the amendments on it; see
    `entries_in_force`."""
    pool: bool
    """Whether pieces may have been drawn for earlier rows than theirs."""
    rows: tuple[ExplainedRow, ...]
    cost: PreviewCost
    notes: tuple[str, ...]
    """What to know of the step as a step of the run."""

    def to_json(self) -> dict[str, Any]:
        """Returns the explanation as JSON data."""
        return {
            "step": self.step,
            "trainer_step": self.step + 1,
            "lane": self.lane,
            "work_source": self.work_source,
            "planned": self._by_name(self.planned),
            "in_force_since": self.in_force_since,
            "entries": [{"number": e.number, "hash": e.hash} | body_json(e.body) for e in self.entries],
            "packer_has_pool": self.pool,
            "notes": list(self.notes),
            "rows": [self._row_json(row) for row in self.rows],
        }

    def shown(self) -> Shown:
        """Returns draws, pieces and weights as lines and tables."""
        return shown_explanation(self, WIDTH)

    def _by_name(self, parts: tuple[int, ...]) -> dict[str, float]:
        return {name: part / PARTS for name, part in zip(self.names, parts, strict=True)}

    def _row_json(self, found: ExplainedRow) -> dict[str, Any]:
        pairs = zip(found.row.pieces, found.texts, strict=True)
        draws = [
            {
                "dataset": draw.dataset,
                "at_least": draw.at_least,
                "num_tokens": draw.num_tokens,
                "shares": self._by_name(draw.shares),
                "credits_in_tokens": self._by_name(draw.credits),
            }
            | ({} if self.pool else {"begin": found.begin_of(draw), "is_dropped": i < found.num_dropped()})
            for i, draw in enumerate(found.draws)
        ]
        pieces = [
            piece_json(piece, text) | {"drawn_for_row": row}
            for (piece, text), row in zip(pairs, found.drawn_for, strict=True)
        ]
        return {"row": found.row.row, "digest": found.row.digest, "draws": draws, "pieces": pieces}


class _Watch:
    """Keeps the choices made for some rows of a lane, and for which row each piece of it was drawn."""

    def __init__(self, names: tuple[str, ...], lane: int, rows: range) -> None:
        self._names, self._lane, self._rows = names, lane, rows
        self._ledger: Ledger | None = None
        """Of the newest choice, where that was one of the lane."""
        self._last: tuple[Ledger, int, Draw] | None = None
        self.draws: list[Draw] = []
        self.drawn_for: dict[Place, int] = {}
        """Where the packer keeps a pool; the newest MAX_WAITING pieces."""

    def __call__(self, ledger: Ledger, dataset: int, at_least: int) -> None:
        """Takes a choice, ahead of what is drawn by it."""
        self.finish()
        self._ledger = ledger if ledger.lane == self._lane else None
        if self._ledger is not None and ledger.rows in self._rows:
            draw = Draw(
                row=ledger.rows,
                dataset=self._names[dataset],
                at_least=at_least,
                num_tokens=ledger.tokens[dataset],
                shares=ledger.shares,
                credits=ledger.credits,
                rest=ledger.rest,
            )
            self._last = (ledger, dataset, draw)

    def finish(self) -> None:
        """Counts what was drawn by the last choice: its ledger has it once the next one is due."""
        if self._last is not None:
            ledger, dataset, draw = self._last
            self.draws.append(replace(draw, num_tokens=ledger.tokens[dataset] - draw.num_tokens))
            self._last = None

    def add(self, place: Place) -> None:
        """Takes a piece that goes to a packer: one that follows no choice was drawn before the state."""
        if self._ledger is not None:
            self.drawn_for[place] = self._ledger.rows
            if len(self.drawn_for) > MAX_WAITING:
                del self.drawn_for[next(iter(self.drawn_for))]

    def watched(self, opened: Opened) -> Opened:
        """Returns `opened` with its packer, watched where that keeps a pool."""
        make = opened.packer.make
        if not make().by_document:
            return opened
        watched = replace(opened.packer, make=lambda: cast(Packer, _WatchedPacker(make(), self.add)))
        return replace(opened, packer=watched)


class _WatchedPacker:
    """A packer of which somebody sees every piece that it gets."""

    def __init__(self, packer: Packer, add: Callable[[Place], None]) -> None:
        self._packer, self._add = packer, add

    def __getattr__(self, name: str) -> Any:
        return getattr(self._packer, name)

    def add(self, run: Any) -> None:
        """Takes in a piece, as the packer does."""
        self._add((run.dataset, int(run.block.positions[run.first]), run.skip))
        self._packer.add(run)


def explain(
    named: Named,
    *,
    step: int,
    lane: int,
    row: int | None = None,
    state: StateLike | None = None,
    check_end: bool = True,
    allow: Collection[str] = (),
    how: Opening = PLAIN,
    progress: LateProgress | None = None,
) -> Explanation:
    """Returns why the rows of a step in a lane, or the one with number `row` in it, hold what they hold.

    Cost and arguments as of `preview`: the lane's rows, of a recipe that ends those of all lanes, as only
    together they say when it does; `check_end=False` makes the lane alone, also past that end.
    """
    with opened(named, how, progress) as found:
        recipe = found.opened.recipe
        rows = range(step * recipe.rows_per_step, (step + 1) * recipe.rows_per_step)
        if row is not None and row not in rows:
            raise ValueError(
                f"`row` must be in [{rows.start}, {rows.stop}), the rows of a lane in step {step}, "
                f"got {row}; row k of a lane belongs to step k // {recipe.rows_per_step}"
            )
        wanted = wanted_of(recipe, [step], [lane], check_end)
        start = state_before(state, step, wanted.made_lanes(recipe), found.folder)
        (options,) = wanted.parts(recipe)
        cost = cost_of(recipe, found.opened.table.skips, [options], step + 1, start)
        watch = _Watch(recipe.names, lane, rows)
        with Loader(watch.watched(found.opened), options, watch=watch) as loader:
            if start is not None:
                loader.load_state_dict(start, allow=allow)
            made = _rows_of(loader, step, lane, progress or LateProgress())
        watch.finish()
        explained = [_explained(found.opened, each, watch) for each in made if row in (None, each.row)]
        return _explanation(found, wanted, explained, cost)


def _rows_of(loader: Loader, step: int, lane: int, progress: LateProgress) -> list[DescribedRow]:
    """Returns the rows of a step in a lane; refuses a step that the data do not have."""
    for batch in loader:
        progress("rows", batch.step + 1, step + 1)
        if batch.step == step:
            return [row for row in describe_rows(loader.opened, batch) if row.lane == lane]
    whose = f"of lane {lane} alone " if len(loader.lanes) == 1 < loader.opened.recipe.lanes else ""
    raise ValueError(
        f"`step` must be a step of the run, got {step}; the data {whose}end before step {loader.num_steps}"
    )


def entries_in_force(folder: Path, step: int) -> tuple[Entry, ...]:
    """Returns the entries of a run's log that act on the shares of `step`; none where the run has no log.

    First that of the recipe or the controller's decision, then the proposals accepted on top, in their order;
    without what later weights or schedules hide, and what changes no share of this step.
    """
    log = log_of(folder)
    if not log.exists:
        return ()
    history = History.read(log)
    return tuple(history.entries[number] for number in _acting(history.composed, step))


def _acting(composed: Composed, step: int) -> list[int]:
    """Returns the numbers of the entries that make the shares of `step`."""
    found = [layer.number for layer in composed.layers if layer.from_step <= step][-1:]
    shares = composed.base.at(step)
    for amendment in composed.amendments:
        if not amendment.at_step <= step < (amendment.until or step + 1):
            continue
        for op in amendment.ops:
            before, shares = shares, _after(op, shares, composed, step)
            if isinstance(op, Weights | Replace):
                found = [amendment.number]
            elif shares != before:
                found.append(amendment.number)
    return list(dict.fromkeys(found))


def _after(op: Op, shares: Shares, composed: Composed, step: int) -> Shares:
    """Returns the shares of `step` that an op makes of those below it."""
    if isinstance(op, Replace):
        said = composed.blobs.tables[op.schedule].at(step)
        return (*said, *[0] * (len(shares) - len(said)))
    rule = rule_of(op, composed.names)
    return shares if rule is None else rule(shares)


def _explained(opened: Opened, row: DescribedRow, watch: _Watch) -> ExplainedRow:
    number = {name: i for i, name in enumerate(opened.recipe.names)}
    has_pool = opened.packer.make().by_document
    return ExplainedRow(
        row=row,
        texts=tuple(opened.encoder.decode(row.tokens_of(piece)) for piece in row.pieces),
        draws=tuple(draw for draw in watch.draws if draw.row == row.row),
        drawn_for=tuple(
            watch.drawn_for.get((number[p.dataset], p.position, p.offset)) if has_pool else row.row
            for p in row.pieces
        ),
    )


def _explanation(
    found: Found, wanted: Wanted, rows: Sequence[ExplainedRow], cost: PreviewCost
) -> Explanation:
    opened, (step,), (lane,) = found.opened, wanted.steps, wanted.lanes
    table, recipe = opened.table, opened.recipe
    entries = () if found.folder is None else entries_in_force(found.folder, step)
    more = undecided(recipe) if found.folder is None else ()  # a run's log has what was decided
    return Explanation(
        names=recipe.names,
        step=step,
        lane=lane,
        work_source=str(recipe.work_source["kind"]),
        planned=table.at(step),
        in_force_since=table.starts[table.phase(step)],
        entries=entries,
        pool=opened.packer.make().by_document,
        rows=tuple(rows),
        cost=cost,
        notes=(*notes_of(recipe, wanted, wanted.end), *more),
    )
