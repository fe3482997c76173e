"""The lanes of one rank: they make its batches in order, on the spot or in a thread of their own.

Upstream: `opened.py` and `lane.py`. Downstream: `loader.py` delivers the batches and keeps the state. All
here is of the rows that are mixed, which may be ahead of what is delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field

from zephon import plugins
from zephon.batch import Batch, BatchPlan, assemble
from zephon.feed import Feed
from zephon.lane import Lane, LanePlan, Row
from zephon.lanestate import LaneState
from zephon.mixture import Ledger, WorkSource
from zephon.opened import Opened
from zephon.options import LoaderOptions
from zephon.stream import Stream
from zephon.updating import TableInForce

Watch = Callable[[Ledger, int, int], None]
"""What sees the ledger of a lane and what is chosen by it: a dataset, and for how many tokens at least."""


@dataclass(slots=True)
class MadeBatch:
    """A batch that may not be delivered yet, with the states of its lanes after it."""

    batch: Batch
    rows: list[Row] = field(default_factory=list)


class RankLanes:
    """The lanes that `options.dp_rank` owns, from `begin` on."""

    def __init__(
        self, opened: Opened, options: LoaderOptions, table: TableInForce, watch: Watch | None
    ) -> None:
        recipe = opened.recipe
        per_rank = recipe.lanes // options.dp_world_size
        self.numbers = range(options.dp_rank * per_rank, (options.dp_rank + 1) * per_rank)
        self.micro_batch_size = options.micro_batch_size or per_rank * recipe.rows_per_step
        self._opened, self._options, self._table = opened, options, table
        source = recipe.build_work_source()
        self._work_source = source if watch is None else _Watched(source, watch)
        self._batch_plan = BatchPlan(
            seq_len=recipe.packing.seq_len,
            datasets=recipe.names,
            mask_document_ends=recipe.packing.mask_document_ends,
            pad_id=recipe.packing.pad_id,
            pin_memory=options.pin_memory,
        )
        self._feed: Feed | None = None
        self.lanes: dict[int, Lane] = {}

    def begin(self, states: Mapping[int, LaneState]) -> dict[int, LaneState]:
        """Makes the lanes anew, going on from `states` where given; returns the states of all of them."""
        recipe, options = self._opened.recipe, self._options
        self.close()
        workers = plugins.find("executors", options.executor)(self._opened.prepare(), options.num_workers)
        self._feed = Feed(workers, budget_bytes=options.read_ahead_bytes, timeout_s=options.worker_timeout_s)
        orders = self._opened.orders
        plan = LanePlan(
            num_lanes=recipe.lanes,
            rows_per_step=recipe.rows_per_step,
            seq_len=recipe.packing.seq_len,
            flush_every=self._opened.flush_every,
            work_source=self._work_source,
            make_packer=self._opened.packer.make,
            make_stream=self._make_stream,
            feed=self._feed,
            drops_at=self._table.drops_at,
            ends=(lambda lane: [order.end(lane) for order in orders]) if recipe.is_finite else None,
            when_exhausted=recipe.when_exhausted,
        )
        self.lanes = {
            number: Lane(plan, number, len(recipe.datasets), self._table.mixed) for number in self.numbers
        }
        for number, state in states.items():
            self.lanes[number].restore(state)
        return {number: lane.initial_state for number, lane in self.lanes.items()}

    def _make_stream(self, dataset: int, lane: int) -> Stream:
        assert self._feed is not None
        described, order = self._opened.recipe.datasets[dataset], self._opened.orders[dataset]
        return Stream(
            self._feed,
            dataset,
            lane,
            described.name,
            group=order.group(lane),
            max_bad=described.max_bad,
            end=order.end(lane),
            period=order.period,
        )

    def make(self) -> Generator[MadeBatch, None, None]:
        """Makes batches in order: row k of all lanes, then row k + 1, a step's rows in equal batches."""
        lanes = list(self.lanes.values())
        rows_per_step = self._opened.recipe.rows_per_step
        first = [lane.initial_state.delivered_rows for lane in lanes]
        place = sum(first) - min(first) * len(lanes)  # lanes of this row that are done already
        row_number = min(first)
        rows: list[Row] = []
        if row_number % rows_per_step or place:
            self._open_ahead(row_number // rows_per_step)
        while True:
            step, row_of_step = divmod(row_number, rows_per_step)
            if row_of_step == 0 and place == 0:
                self._begin_step(step)
            for lane in lanes[place:]:
                row = lane.next_row()
                if row is None:
                    return
                rows.append(row)
                if len(rows) == self.micro_batch_size:
                    yield MadeBatch(assemble(rows, step, self._batch_plan), rows)
                    rows = []
            row_number, place = row_number + 1, 0

    def _begin_step(self, step: int) -> None:
        if self._table.begin(step):
            for lane in self.lanes.values():
                lane.table = self._table.mixed
        self._open_ahead(step)

    def _open_ahead(self, step: int) -> None:
        """Asks for the blocks of streams that begin with this step or the next."""
        table = self._table.mixed
        fresh = self._feed is not None and not self._feed.num_streams
        if fresh or table.begins(step) or table.begins(step + 1):
            for lane in self.lanes.values():
                lane.open_ahead(step)
                lane.open_ahead(step + 1)

    def close(self) -> None:
        """Ends the workers at once."""
        if self._feed is not None:
            self._feed.close()


@dataclass(frozen=True, slots=True)
class _Watched:
    """A work source of which somebody sees every choice."""

    source: WorkSource
    watch: Watch

    def choose(self, ledger: Ledger) -> tuple[int, int]:
        """Returns what the work source chooses."""
        dataset, at_least = self.source.choose(ledger)
        self.watch(ledger, dataset, at_least)
        return dataset, at_least
