"""Why a lane drew what it drew: the weights, the credits and the choice ahead of every draw of its rows.

Upstream: a recipe or a run folder with its curriculum log. Downstream: notebooks, `zephon explain`. The rows
are made by the real loader, of which each choice is watched; nothing here chooses anything.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zephon import PARTS, DescribedPiece, DescribedRow, Ledger, Loader, Opened, describe_rows
from zephon.cli.common import LateProgress
from zephon_curriculum.log.entries import Entry, body_json
from zephon_curriculum.log.folder import log_of
from zephon_curriculum.log.history import History
from zephon_curriculum.opening import PLAIN, Named, Opening, StateLike, opened, state_before
from zephon_curriculum.preview import piece_json, wanted_of
from zephon_curriculum.preview_cost import PreviewCost, cost_of


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
    where the packer keeps a pool. None: before the state that the rows were made from; or not known, as the
    packer cannot say what it holds."""

    def begin_of(self, draw: Draw) -> int:
        """Returns the first token in the row that was drawn by `draw`, where the packer keeps no pool."""
        return len(self.row.tokens) - draw.rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
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
    """Of the curriculum log, those that set them: of recipe or controller, then the amendments on it."""
    pool: bool
    """Whether pieces may have been drawn for earlier rows than theirs."""
    rows: tuple[ExplainedRow, ...]
    cost: PreviewCost

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
            "rows": [self._row_json(row) for row in self.rows],
        }

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
            | ({} if self.pool else {"begin": found.begin_of(draw)})
            for draw in found.draws
        ]
        pieces = [
            piece_json(piece, text) | {"drawn_for_row": row}
            for (piece, text), row in zip(pairs, found.drawn_for, strict=True)
        ]
        return {"row": found.row.row, "digest": found.row.digest, "draws": draws, "pieces": pieces}


class _Watch:
    """Keeps the choices made for some rows of one lane."""

    def __init__(self, names: tuple[str, ...], rows: range) -> None:
        self._names, self._rows = names, rows
        self._last: tuple[Ledger, int, Draw] | None = None
        self.draws: list[Draw] = []

    def __call__(self, ledger: Ledger, dataset: int, at_least: int) -> None:
        """Takes a choice, ahead of what is drawn by it."""
        self.finish()
        if ledger.rows in self._rows:
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


class _Streams:
    """How far a lane's streams were drawn after each row, to say for which row a piece was drawn."""

    def __init__(self, lane: int, first_row: int) -> None:
        self._key, self._first_row = f"lane_{lane:05d}", first_row
        self._cursors: list[tuple[int | None, list[Any]]] = []

    def begin(self, state: Mapping[str, Any]) -> None:
        """Takes the state that rows are made from."""
        self._cursors = [(None, json.loads(state[self._key])["cursors"])]

    def keep(self, loader: Loader, row: int) -> None:
        """Takes the state after a row, where that is not the state of an earlier flush."""
        if row >= self._first_row and loader.opened.flush_every is None:
            self._cursors.append((row, json.loads(loader.state_dict()[self._key])["cursors"]))

    def drawn_for(self, dataset: int, piece: DescribedPiece) -> int | None:
        """Returns the row that was being filled when a piece was drawn; None for one of before."""
        place = [piece.position, 0, piece.offset]
        found = (row for row, cursors in self._cursors if cursors[dataset] and cursors[dataset] > place)
        return next(found, None)


def explain(
    named: Named,
    *,
    step: int,
    lane: int,
    row: int | None = None,
    state: StateLike | None = None,
    allow: Collection[str] = (),
    how: Opening = PLAIN,
    progress: LateProgress | None = None,
) -> Explanation:
    """Returns why the rows of a step in a lane, or the one with number `row` in it, hold what they hold.

    Cost: the lane's rows from `state`, or as `preview` from the newest snapshot or step 0. A recipe that ends
    is not asked whether its other lanes have ended before.
    """
    with opened(named, how, progress) as found:
        recipe = found.opened.recipe
        rows = range(step * recipe.rows_per_step, (step + 1) * recipe.rows_per_step)
        if row is not None and row not in rows:
            raise ValueError(
                f"`row` must be in [{rows.start}, {rows.stop}), the rows of a lane in step {step}, "
                f"got {row}; row k of a lane belongs to step k // {recipe.rows_per_step}"
            )
        wanted = wanted_of(recipe, [step], [lane], check_end=False)
        start = state_before(state, step, wanted.made_lanes(recipe), found.folder)
        (options,) = wanted.parts(recipe)
        cost = cost_of(recipe, found.opened.table, [options], step + 1, start)
        watch = _Watch(recipe.names, rows)
        has_pool = found.opened.packer.make().by_document
        streams = _Streams(lane, _first_row(found.opened, rows)) if has_pool else None
        with Loader(found.opened, replace(options, micro_batch_size=1), watch=watch) as loader:
            if start is not None:
                loader.load_state_dict(start, allow=allow)
            made = _rows_of(loader, step, streams, progress or LateProgress())
        watch.finish()
        entries = () if found.folder is None else entries_in_force(found.folder, step)
        explained = [
            _explained(found.opened, each, watch.draws, streams) for each in made if row in (None, each.row)
        ]
        return _explanation(found.opened, (step, lane), explained, entries, cost)


def _first_row(opened: Opened, rows: range) -> int:
    """Returns the first row for which pieces of `rows` can have been drawn, as far as it is known."""
    waits = opened.packer.options.get("pool_documents") if opened.recipe.packing.kind == "best_fit" else None
    return 0 if waits is None else max(0, rows.start - int(waits) - 1)


def _rows_of(
    loader: Loader, step: int, streams: _Streams | None, progress: LateProgress
) -> list[DescribedRow]:
    """Returns the rows of a step in a lane; refuses a step that the data do not have."""
    if streams is not None and loader.num_steps:
        streams.begin(loader.state_dict())
    made: list[DescribedRow] = []
    for batch in loader:
        progress("rows", batch.step + 1, step + 1)
        if streams is not None:
            streams.keep(loader, int(batch.rows[-1]))
        if batch.step == step:
            made += describe_rows(loader.opened, batch)
        if loader.num_steps > step:
            return made
    raise ValueError(
        f"`step` must be a step of the run, got {step}; the data of lane {loader.lanes[0]} end before step "
        f"{loader.num_steps}"
    )


def entries_in_force(folder: Path, step: int) -> tuple[Entry, ...]:
    """Returns the entries of a run's log that set the mixture of `step`; none where the run has no log.

    First that of the recipe or the controller's decision, then the proposals accepted on top, in their order.
    """
    log = log_of(folder)
    if not log.exists:
        return ()
    history = History.read(log)
    composed = history.composed
    base = [layer.number for layer in composed.layers if layer.from_step <= step][-1:]
    on_top = [a.number for a in composed.amendments if a.at_step <= step and step < (a.until or step + 1)]
    return tuple(history.entries[number] for number in [*base, *on_top])


def _explained(
    opened: Opened, row: DescribedRow, draws: Sequence[Draw], streams: _Streams | None
) -> ExplainedRow:
    number = {name: i for i, name in enumerate(opened.recipe.names)}
    return ExplainedRow(
        row=row,
        texts=tuple(opened.encoder.decode(row.tokens_of(piece)) for piece in row.pieces),
        draws=tuple(draw for draw in draws if draw.row == row.row),
        drawn_for=tuple(
            row.row if streams is None else streams.drawn_for(number[piece.dataset], piece)
            for piece in row.pieces
        ),
    )


def _explanation(
    opened: Opened,
    place: tuple[int, int],
    rows: Sequence[ExplainedRow],
    entries: tuple[Entry, ...],
    cost: PreviewCost,
) -> Explanation:
    table, (step, lane) = opened.table, place
    return Explanation(
        names=opened.recipe.names,
        step=step,
        lane=lane,
        work_source=str(opened.recipe.work_source["kind"]),
        planned=table.at(step),
        in_force_since=table.starts[table.phase(step)],
        entries=entries,
        pool=opened.packer.make().by_document,
        rows=tuple(rows),
        cost=cost,
    )
