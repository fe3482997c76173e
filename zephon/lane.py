"""One lane: chooses, draws and packs, row after row, and says how to go on from any row.

Upstream: `mixture.py` chooses, `stream.py` gives the pieces, `packing.py` makes rows. Downstream:
`ranklanes.py` collects the rows of a rank. All decisions are taken here, in order, so no worker changes them.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from zephon.dataset import PAD, STOP
from zephon.dropped import DroppedDocuments
from zephon.feed import MIN_BLOCK_BYTES, Feed, Ticket
from zephon.lanestate import LaneState, address_of, cut_run, find_piece
from zephon.mixture import Ledger, WorkSource, begin_step
from zephon.packing import Carrying, Packer
from zephon.prepare import Request
from zephon.schedule import ScheduleTable
from zephon.shares import shares_without
from zephon.stream import Counts, Cursor, Run, Stream, new_tuple

OPEN_AHEAD = 8
"""Streams that a lane opens before their first draw, those of the largest shares."""
_NONE: frozenset[int] = frozenset()


@dataclass(slots=True)
class Row:
    """One packed training sequence, as references to tokens."""

    lane: int
    index: int
    """Rows of the lane before this one."""
    runs: Sequence[Run]
    state: LaneState
    """The lane after this row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePlan:
    """What all lanes of a loader share."""

    num_lanes: int
    rows_per_step: int
    seq_len: int
    flush_every: int | None
    work_source: WorkSource
    make_packer: Callable[[], Packer]
    make_stream: Callable[[int, int], Stream]
    """(dataset, lane) -> its stream."""
    feed: Feed
    drops_at: Callable[[ScheduleTable, int], DroppedDocuments | None] = lambda table, step: None
    """(table, step) -> the documents that are dropped from the step on."""
    ends: Callable[[int], Sequence[int]] | None = None
    """Lane -> its number of positions in each dataset; None where no dataset ends."""
    when_exhausted: str = STOP


class Lane:
    """A fixed logical stream of rows with its own order, mix, packer and state."""

    def __init__(self, plan: LanePlan, lane: int, num_datasets: int, table: ScheduleTable) -> None:
        self._plan = plan
        self.table = table
        self.ledger = Ledger.empty(lane, num_datasets)
        self._streams: list[Stream | None] = [None] * num_datasets
        self._cursors: list[Cursor | None] = [None] * num_datasets
        self._counts: list[Counts] = [()] * num_datasets
        packer = self._packer = plan.make_packer()
        self._carry = packer.carry if isinstance(packer, Carrying) and plan.flush_every is None else None
        self._carried_tickets: dict[int, Ticket] = {}
        self._held: deque[Run] = deque()
        self._queue: deque[list[Run]] = deque()
        self._step = 0
        """The step by whose shares tokens are drawn."""
        self._skipped: tuple[int, ...] = ()
        self._drops: DroppedDocuments | None = None
        self._ends = () if plan.ends is None else plan.ends(lane)
        self._exhausted = self._gone = _NONE
        """The datasets that have ended here, and those of them of which others have the shares."""
        self._take_out(dataset for dataset, end in enumerate(self._ends) if end == 0)
        self._has_ended = False
        self.end: LaneState | None = None
        """Of a lane that is padded, where it ended: all that it drew is given. None before that."""
        zeros = (0,) * num_datasets
        self._base = LaneState(0, zeros, zeros, zeros, (None,) * num_datasets, ((),) * num_datasets)
        self.initial_state = self._base
        """The state before the first row that this object makes."""

    def open_ahead(self, step: int) -> None:
        """Opens the streams that `step` is most likely to draw from first."""
        if self._has_ended:
            return
        for dataset in _largest(self.table.at(step)):
            self._stream(dataset).open()

    def next_row(self) -> Row | None:
        """Returns the next row; waits for workers where their block is not there yet.

        None where the lane has ended and gives no padding.
        """
        if self._carried_tickets:
            self._feed_carry()
        delivered_rows = self.initial_state.delivered_rows
        while self.ledger.rows < delivered_rows:
            if self._make_row() is None:
                return None
            if self._has_ended and not self._queue:  # the rest is padding, which needs no making
                self.ledger.rows = delivered_rows
        return self._make_row()

    def _make_row(self) -> Row | None:
        ledger, plan = self.ledger, self._plan
        if self._has_ended:
            return self._end_row()
        step, row_of_step = divmod(ledger.rows, plan.rows_per_step)
        if row_of_step == 0 and not self._begin_step(step):
            return self._end_row()
        if self._queue:
            runs = self._queue.popleft()
            ledger.rows += 1
            if not self._queue:
                self._base = self._snapshot()
        else:
            drawn = self._draw_row()
            if drawn is None:
                return self._end_row()
            runs = drawn
            ledger.rows += 1
            if plan.flush_every is not None and ledger.rows - self._base.rows >= plan.flush_every:
                self._queue.extend(self._packer.flush())
                if not self._queue:
                    self._base = self._snapshot()
        return Row(ledger.lane, ledger.rows - 1, runs, self._state())

    def _begin_step(self, step: int) -> bool:
        """Takes the shares and amendments of `step`; returns whether the lane has not ended in them."""
        ledger, plan = self.ledger, self._plan
        before, self._step = ledger.shares, step
        begin_step(ledger, self.table, step, plan.num_lanes, plan.seq_len, self._gone)
        if self.table.drops:
            self._take_drops(step)
        if self.table.skips and not self._skip_rows(step):
            return False
        if ledger.shares != before:
            self._close_idle(self.table.at(step + 1))
        return True

    def _take_drops(self, step: int) -> None:
        drops = self._plan.drops_at(self.table, step)
        if drops is not self._drops:
            self._drops = drops
            for dataset, stream in enumerate(self._streams):
                if stream is not None and drops is not None:
                    stream.drop(drops.of(dataset, self.ledger.lane))

    def _skip_rows(self, step: int) -> bool:
        """Draws and drops the rows that an amendment skips ahead of `step`, each by the shares of its step.

        Returns whether the lane got so far. Their datasets get no first credits here. Nothing is flushed, and
        a state is only of before or after: a restore ahead of `step` skips the same rows again.
        """
        ledger, end = self.ledger, self.table.skip_end(step)
        if end == step:
            return True
        dropped = list(self._skipped or (0,) * len(ledger.tokens))
        for skipped in range(step, end):
            self._step = skipped
            ledger.shares = shares_without(self.table.at(skipped), self._gone)
            for _ in range(self._plan.rows_per_step):
                row = self._queue.popleft() if self._queue else self._draw_row()
                if row is None:
                    return False
                for run in row:
                    dropped[run.dataset] += run.num_tokens
                self._skipped = tuple(dropped)
        self._step = step
        ledger.shares = shares_without(self.table.at(step), self._gone)
        return True

    def _end_row(self) -> Row | None:
        """Returns the next row of a lane that has ended: what its packer held, then padding, if any.

        Their states are the last one before the end and how many rows ago that was: from it a restore makes
        them again.
        """
        ledger, is_padded = self.ledger, self._plan.when_exhausted == PAD
        if not self._has_ended:
            self._has_ended = True
            if is_padded:
                self._queue.extend(self._packer.flush())
                self.end = self._snapshot()
        if not is_padded:
            return None
        ledger.rows += 1
        runs = self._queue.popleft() if self._queue else []
        return Row(ledger.lane, ledger.rows - 1, runs, self._state())

    def _draw_row(self) -> list[Run] | None:
        """Returns the runs of the next row; None where the lane ends before it is ready."""
        ledger, packer, choose = self.ledger, self._packer, self._plan.work_source.choose
        ends, exhausted = self._ends, self._exhausted
        if self._held:
            self._feed_held()
        while (room := packer.room()) > 0:
            ledger.rest = room
            if exhausted and not any(ledger.shares):
                return None
            dataset, at_least = choose(ledger)
            if exhausted and dataset in exhausted:
                return None
            if packer.by_document or at_least < 1:
                at_least = 1
            stream = self._streams[dataset] or self._stream(dataset)
            while at_least > 0 and room > 0:
                run = stream.take(at_least, room)
                if run is None:
                    break
                _, _, first, last, skip, _, _, num_tokens = run
                ledger.charge(dataset, num_tokens, last - first - (skip > 0))
                packer.add(run)
                at_least -= num_tokens
                room -= num_tokens
            self._cursors[dataset], self._counts[dataset] = stream.cursor, stream.counts
            if ends and stream.cursor.position >= ends[dataset]:
                exhausted = self._exhaust(dataset, stream)
        return packer.row()

    def _exhaust(self, dataset: int, stream: Stream) -> frozenset[int]:
        """Takes a dataset of which this lane has read every document out of the mix; returns all such."""
        stream.close()
        self._take_out([dataset])
        if self._gone:
            self.ledger.shares = shares_without(self.table.at(self._step), self._gone)
        return self._exhausted

    def _take_out(self, datasets: Iterable[int]) -> None:
        self._exhausted |= frozenset(datasets)
        self._gone = _NONE if self._plan.when_exhausted == STOP else self._exhausted

    def _stream(self, dataset: int) -> Stream:
        stream = self._streams[dataset]
        if stream is None:
            stream = self._streams[dataset] = self._plan.make_stream(dataset, self.ledger.lane)
            if self._drops is not None:
                stream.drop(self._drops.of(dataset, self.ledger.lane))
        return stream

    def _close_idle(self, next_shares: tuple[int, ...]) -> None:
        """Closes the streams without a share in this step and the next: their blocks are in the budget."""
        for dataset in _idle(self.ledger.shares, next_shares):
            stream = self._streams[dataset]
            if stream is not None:
                stream.close()

    def _state(self) -> LaneState:
        if self._plan.flush_every is None and not self._has_ended:
            self._base = self._snapshot()
            return self._base
        return self._base._replace(replay_rows=self.ledger.rows - self._base.rows)

    def _snapshot(self) -> LaneState:
        ledger = self.ledger
        carried = self._carry() if self._carry is not None else ()
        fields = (
            ledger.rows,
            tuple(ledger.tokens),
            tuple(ledger.documents),
            ledger.credits,
            tuple(self._cursors),
            tuple(self._counts),
            tuple([address_of(run) for run in carried]) if carried else (),
            0,
            tuple([address_of(run) for run in self._held]) if self._held else (),
            self._skipped,
        )
        return new_tuple(LaneState, fields)

    def restore(self, state: LaneState) -> None:
        """Goes to `state`, on a lane that has made no row; what the packer held is asked for at once."""
        ledger = self.ledger
        ledger.rows, ledger.tokens, ledger.documents = state.rows, list(state.tokens), list(state.documents)
        ledger.credits, self._skipped = state.credits, state.skipped
        self._step = state.rows // self._plan.rows_per_step
        if self.table.drops:
            self._take_drops(self._step)
        for dataset, cursor in enumerate(state.cursors):
            if cursor is not None:
                self._stream(dataset).restore(cursor, dict(state.counts[dataset]))
                if self._ends and cursor.position >= self._ends[dataset]:
                    self._take_out([dataset])
        ledger.shares = shares_without(self.table.at(self._step), self._gone)
        self._cursors, self._counts = list(state.cursors), list(state.counts)
        self.initial_state, self._base = state, state._replace(replay_rows=0)
        pieces = state.carry + state.held
        for dataset in sorted({piece.dataset for piece in pieces}):
            positions = tuple(sorted({piece.position for piece in pieces if piece.dataset == dataset}))
            size = MIN_BLOCK_BYTES  # what is read is unknown before it is; the order of one block
            request = Request(dataset, ledger.lane, positions[0], size, positions)
            self._carried_tickets[dataset] = self._plan.feed.request(request)

    def _feed_carry(self) -> None:
        blocks = {d: self._plan.feed.result(ticket) for d, ticket in self._carried_tickets.items()}
        for piece in self.initial_state.carry:
            self._packer.add(find_piece(piece, blocks[piece.dataset], self.ledger.lane))
        for piece in self.initial_state.held:
            self._held.append(find_piece(piece, blocks[piece.dataset], self.ledger.lane))
        self._carried_tickets = {}

    def _feed_held(self) -> None:
        """Gives the packer what an earlier phase's held, as far as there is room; it was charged there."""
        packer, held = self._packer, self._held
        while held and (room := packer.room()) > 0:
            run = held.popleft()
            if run.num_tokens > room:
                head, rest = cut_run(run, room)
                held.appendleft(rest)
                run = head
            packer.add(run)


@functools.lru_cache(maxsize=64)
def _largest(shares: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the datasets of the OPEN_AHEAD largest shares > 0, ties by order."""
    active = [i for i, share in enumerate(shares) if share]
    return tuple(sorted(active, key=lambda i: -shares[i])[:OPEN_AHEAD])


@functools.lru_cache(maxsize=64)
def _idle(shares: tuple[int, ...], next_shares: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the datasets without a share in either."""
    return tuple(i for i, both in enumerate(zip(shares, next_shares, strict=True)) if not any(both))
