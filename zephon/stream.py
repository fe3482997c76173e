"""One ordered stream of documents per (lane, dataset), from which runs of pieces are drawn.

Upstream: blocks by way of `feed.py`. Downstream: `lane.py`. The cursor, three integers, is all that cannot be
recomputed; it does not depend on how documents were gathered into blocks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zephon.errors import DataError, StateError
from zephon.feed import Feed, Ticket
from zephon.order import ENDLESS
from zephon.prepare import Block, Event, Request, keep_documents

if TYPE_CHECKING:
    from zephon.dropped import IsDropped

MANY_TOKENLESS = 1000
"""After so many documents in a row without tokens, an epoch of the group is searched for any with tokens."""
MANY_EPOCHS = 64
"""After so many epochs of which the amendments drop every document, there is none left for the lane."""
SKIPPED = "skipped"
"""The kind of event of a document that an amendment drops."""
FIRST_BLOCK = 8
"""The first block of a stream has this part of the usual size, so that the first step comes soon. Each one
after has twice the size of the one before, up to the usual: streams seldom drawn from cost little."""


_BEFORE = itemgetter(0)
Counts = tuple[tuple[str, int], ...]
"""(kind, number) pairs, by kind."""


class Cursor(NamedTuple):
    """Where a stream goes on."""

    position: int = 0
    output: int = 0
    """Which record made from the document at `position`; 0 as long as operators make one of one."""
    offset: int = 0
    """Tokens of that record already drawn; > 0 only in the middle of one."""


class Run(NamedTuple):
    """Consecutive pieces of one stream: documents [first, last) of a block, the ends perhaps cut."""

    dataset: int
    block: Block
    first: int
    last: int
    skip: int
    """Tokens of the first document that belong to an earlier piece."""
    cut: int
    """Tokens of the last document that are left for a later piece."""
    begin: int
    """Where the run begins in the block's tokens."""
    num_tokens: int


new_tuple = tuple.__new__
"""Makes a named tuple in half the time of its own constructor; for what is made for every row."""


class Stream:
    """The documents of one dataset in one lane, in order, to its end or for ever."""

    __slots__ = (
        "_at", "_block", "_document", "_end", "_ends", "_feed", "_group", "_has_text", "_is_dropped",
        "_is_open", "_lane", "_max_bad", "_name", "_offset", "_pending", "_period", "_positions", "_size",
        "_trailing", "counts", "cursor", "dataset",
    )  # fmt: skip

    def __init__(
        self, feed: Feed, dataset: int, lane: int, name: str, *,
        group: tuple[range, int], max_bad: int, end: int = ENDLESS, period: int = ENDLESS,
    ) -> None:  # fmt: skip
        self._feed, self.dataset, self._lane, self._name = feed, dataset, lane, name
        self._group, self._max_bad, self._end, self._period = group, max_bad, end, period
        self._is_open = False
        self._is_dropped: IsDropped | None = None
        self._pending: Ticket | None = None
        self._block: Block | None = None
        self._ends: list[int] = []
        self._positions: list[int] = []
        self._document = self._offset = self._at = self._size = 0
        self._has_text = False
        self._trailing: list[Event] = []
        self.cursor = Cursor()
        self.counts: Counts = ()
        """Documents passed so far that were empty, bad, dropped, truncated, held out, skipped by an amendment
        or had surrogates replaced."""

    def restore(self, cursor: Cursor, counts: Mapping[str, int]) -> None:
        """Goes to where `cursor` and `counts` were taken; before the first draw."""
        self.cursor, self.counts = cursor, tuple(sorted(counts.items()))

    def drop(self, is_dropped: IsDropped | None) -> None:
        """Passes over the documents of which `is_dropped` says so, of those that are not begun."""
        self._is_dropped = is_dropped
        block, first = self._block, self._document
        if is_dropped is None or block is None or first >= len(self._ends):
            return
        rest = Block(
            block.tokens[self._at - self._offset :],
            block.lengths[first:],
            block.positions[first:],
            block.end,
            [Event(e.before - first, e.kind, e.number) for e in block.events if e.before >= first],
        )
        if self._pass_over(rest, is_begun=self._offset > 0):
            self._use(rest)
            self._at = self._offset

    def open(self) -> None:
        """Asks for the first block, so that it is there at the first draw; does nothing when open."""
        if not self._is_open and self.cursor.position < self._end:
            self._is_open = True
            self._feed.num_streams += 1
            self._size = max(1, self._feed.block_bytes() // FIRST_BLOCK)
            self._ask(self.cursor.position, self._size)

    def _ask(self, position: int, size: int) -> None:
        """Asks for the block from `position` on, where there is one."""
        request = Request(self.dataset, self._lane, position, size)
        self._pending = self._feed.request(request) if position < self._end else None

    def close(self) -> None:
        """Lets go of what was read; the next draw asks for it again, from the cursor."""
        if self._is_open:
            self._feed.num_streams -= 1
        self._is_open = False
        self._pending = self._block = None
        self._ends, self._positions, self._trailing = [], [], []
        self._document = self._offset = self._at = 0

    def take(self, at_least: int, at_most: int) -> Run | None:
        """Returns the next run: whole documents until `at_least` tokens, cut at `at_most`.

        It ends with the block, too, and has at least one token; both bounds are >= 1. None where no document
        with tokens is left: then the cursor is at the end.
        """
        if self._document >= len(self._ends) and not self._advance():
            return None
        ends, first, begin, skip = self._ends, self._document, self._at, self._offset
        last = bisect_left(ends, begin + at_least, first)
        if last == len(ends):
            last -= 1
        end = ends[last]
        if end - begin > at_most:
            end = begin + at_most
            last = bisect_left(ends, end, first)
        cut = ends[last] - end
        block = self._block
        assert block is not None
        if block.events:
            self._count(block, first + (skip > 0), last + 1)
        position = self._positions[last]
        if cut:
            self._document, self._offset = last, end - (ends[last - 1] if last else 0)
            self.cursor = new_tuple(Cursor, (position, 0, self._offset))
        else:
            self._document, self._offset = last + 1, 0
            self.cursor = new_tuple(Cursor, (position + 1, 0, 0))
        self._at = end
        return new_tuple(Run, (self.dataset, block, first, last + 1, skip, cut, begin, end - begin))

    def _advance(self) -> bool:
        """Puts the next block that has documents in place of the used one, and asks for the one after.

        Returns False at the end of the stream.
        """
        self.open()
        while self._pending is not None:
            block = self._feed.result(self._pending)
            self._size = min(2 * self._size, self._feed.block_bytes())
            self._ask(block.end, self._size)
            if self._trailing:
                block.events = [Event(0, e.kind, e.number) for e in self._trailing] + block.events
            if self._is_dropped is not None:
                self._pass_over(block, is_begun=self.cursor.offset > 0)
            if len(block.lengths):
                self._use(block)
                if self.cursor.offset:
                    self._skip_drawn(int(block.positions[0]), int(block.lengths[0]))
                return True
            self._trailing = _summed(block.events)
            passed = block.end - self.cursor.position
            passed -= sum(event.number for event in self._trailing if event.kind in ("held_out", SKIPPED))
            if not self._has_text and passed >= MANY_TOKENLESS:
                self._find_text()
            if self._is_dropped is not None:
                self._refuse_none_left(block.end - self.cursor.position)
            if block.end - self.cursor.position >= self._period:
                self._refuse_period()
            self._refuse_bad(dict(self.counts), self._trailing)
        self._finish()
        return False

    def _pass_over(self, block: Block, *, is_begun: bool) -> bool:
        """Takes the dropped documents out of `block`, not the first if it `is_begun`; returns whether any."""
        assert self._is_dropped is not None
        if not len(block.lengths):
            return False
        dropped = self._is_dropped(block.positions)
        dropped[:1] &= not is_begun
        if not dropped.any():
            return False
        events = [Event(i, SKIPPED, 1) for i in np.flatnonzero(dropped).tolist()]
        block.events = sorted(block.events + events)
        keep_documents(block, ~dropped, block.lengths)
        return True

    def _use(self, block: Block) -> None:
        """Makes `block`, which has documents, the one that is drawn from."""
        self._trailing = [event for event in block.events if event.before >= len(block.lengths)]
        self._block, self._positions = block, block.positions.tolist()
        self._ends = block.lengths.cumsum().tolist()
        self._document = self._at = 0

    def _finish(self) -> None:
        """Goes to the end, past documents without tokens, which are counted."""
        if self.cursor.offset:
            self._skip_drawn(self.cursor.position, 0)
        if self.cursor == Cursor() and self._end and not self._has_text:
            self._find_text()  # nothing was drawn in all epochs of this lane
        counts = _added(self.counts, self._trailing)
        self._trailing = []
        self.counts, self.cursor = tuple(sorted(counts.items())), Cursor(self._end)
        self._refuse_bad(counts, ())

    def _skip_drawn(self, position: int, num_tokens: int) -> None:
        """Goes past the tokens that are drawn already of the document that stands first."""
        wanted, offset = self.cursor.position, self.cursor.offset
        if position != wanted or offset >= num_tokens:
            raise StateError.explained(
                f"dataset {self._name!r}, lane {self._lane}, position {wanted}: the document changed",
                got=f"{num_tokens} tokens at position {position}",
                rule=f"the state was taken after {offset} tokens of this document",
                cure="restore with the data and the tokenizer of the state",
            )
        self._offset = self._at = offset

    def _count(self, block: Block, first: int, last: int) -> None:
        """Counts the events ahead of, and at, documents [first, last) of the block."""
        events = block.events  # ascending by what they are before
        begin = bisect_left(events, first, key=_BEFORE)
        end = bisect_left(events, last, begin, key=_BEFORE)
        if begin == end:
            return
        counts = _added(self.counts, events[begin:end])
        self.counts = tuple(sorted(counts.items()))
        self._refuse_bad(counts, ())

    def _refuse_bad(self, counts: Mapping[str, int], to_come: Iterable[Event]) -> None:
        """Refuses more bad records than the lane may skip, in `counts` and in events not counted yet."""
        bad = counts.get("bad", 0) + sum(event.number for event in to_come if event.kind == "bad")
        if bad > self._max_bad:
            raise DataError.explained(
                f"dataset {self._name!r}, lane {self._lane}: too many records that cannot be used",
                got=f"{bad} skipped",
                rule=f"a lane may skip at most max_bad = {self._max_bad}",
                cure="mend the data, or raise max_bad for this dataset",
            )

    def _refuse_none_left(self, num_positions: int) -> None:
        """Refuses a lane of which the amendments drop every document of many epochs."""
        lanes, num_documents = self._group
        if num_positions >= MANY_TOKENLESS + MANY_EPOCHS * (1 + num_documents // len(lanes)):
            raise DataError.explained(
                f"dataset {self._name!r}, lane {self._lane}: the amendments drop all documents of the lane",
                got=f"{num_positions:,} documents in turn that are dropped or have no tokens",
                rule="a dataset with a share has documents",
                cure=f"retire {self._name}, or drop fewer of its documents",
            )

    def _refuse_period(self) -> None:
        """Refuses a lane that reads the same documents for ever, none of which has tokens."""
        raise DataError.explained(
            f"dataset {self._name!r}, lane {self._lane}: no document of this lane has text",
            got=f"{self._period} documents in file order, read in turn for ever, without tokens",
            rule="every lane of a dataset with a share reads a document with text",
            cure='set order = "shuffled" or max_epochs, or another number of lanes',
        )

    def _find_text(self) -> None:
        """Looks through one epoch of the group, in all its lanes; refuses it if no document has tokens."""
        lanes, num_documents = self._group
        for slot, lane in enumerate(lanes):
            position, last = 0, -((slot - num_documents) // len(lanes))
            while position < last:
                request = Request(self.dataset, lane, position, self._feed.block_bytes())
                block = self._feed.result(self._feed.request(request))
                if len(block.lengths):
                    self._has_text = True
                    return
                position = block.end
        raise DataError.explained(
            f"dataset {self._name!r}: no document has text",
            got=f"an epoch of documents without tokens in lanes {lanes.start} to {lanes.stop - 1}",
            rule="a dataset with a share has documents with text",
            cure=f"look at its `text` field and its documents, or give {self._name} the weight 0",
        )


def _added(counts: Counts, events: Iterable[Event]) -> dict[str, int]:
    """Returns `counts`, by kind, with those of `events`."""
    found = dict(counts)
    for _, kind, number in events:
        found[kind] = found.get(kind, 0) + number
    return found


def _summed(events: Iterable[Event]) -> list[Event]:
    """Returns one event for each kind, ahead of the next document."""
    return [Event(0, kind, number) for kind, number in sorted(_added((), events).items())]
