"""When datasets really end: the loader itself, run on lengths alone.

Upstream: an opened recipe and the length of every document, counted once (`census`). Downstream: `zephon plan
--exact` and tests of the estimated ends. Streams, mixture, packer and the agreement on the end are the
loader's own code; only the tokens are all zero and cost no memory, so the steps are exact.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from zephon import (
    DataError,
    Fault,
    Loader,
    LoaderOptions,
    Opened,
    PartReader,
    RandomReader,
    Tokens,
    find_documents,
)
from zephon.cli.common import add_row, new_table
from zephon_curriculum.estimation.counting import TOKEN_BYTES, Int64, as_packed, read_lengths
from zephon_curriculum.figures import Report
from zephon_curriculum.opening import PLAIN, Named, Opening, opened, recipe_of
from zephon_curriculum.results import Readable, Shown

BLOCK_DOCUMENTS = 1 << 16
"""Of which the addresses are held at once."""


class LengthReader(PartReader):
    """A reader of documents that are known by their lengths only; every token of theirs is 0."""

    def __init__(self, reader: RandomReader, lengths: Int64) -> None:
        """`lengths` is (N,), all documents of `reader` in file order; BOS and EOS count."""
        super().__init__(reader, reader.chunks())
        self.is_tokenized, self._lengths = True, lengths
        counts = np.asarray(reader.chunks().num_documents, dtype=np.int64)
        self._firsts = np.cumsum(counts) - counts

    def numbers(self, chunk: Int64, record: Int64) -> Int64:
        """Returns the numbers of the documents at these addresses, in file order."""
        return np.asarray(self._firsts[chunk] + record)

    def lengths(self, chunk: Int64, record: Int64) -> Int64:
        """Returns the tokens of the documents at these addresses."""
        return np.asarray(self._lengths[self.numbers(chunk, record)])

    def tokens(self, chunk: Int64, record: Int64, max_bytes: int) -> Tokens:
        """Returns documents of zeros, without memory of their own."""
        lengths = self.lengths(chunk, record)
        ends = np.cumsum(lengths)
        num_read = 1 + int(np.searchsorted(ends[:-1], max(1, max_bytes // TOKEN_BYTES)))
        return Tokens(np.broadcast_to(np.uint32(0), int(ends[num_read - 1])), lengths[:num_read])

    def close(self) -> None:
        """Leaves the dataset's own reader open; whoever opened it closes it."""


def census(named: Named, report: Report | None = None, *, how: Opening = PLAIN) -> tuple[Int64, ...]:
    """Returns, for each dataset, the tokens of every document in file order, (N,); BOS and EOS count.

    Cost: all data are read and tokenized once. Documents without text, and such as cannot be used where
    `on_error` is `skip`, have 0. Streams are refused: nobody counted their documents.
    """
    with opened(named, how) as found:
        return _census(found.opened, report)


def _census(opened: Opened, report: Report | None) -> tuple[Int64, ...]:
    if streams := [dataset.name for dataset in opened.recipe.datasets if dataset.stream]:
        raise ValueError(
            f"dataset {streams[0]!r} is a stream: nobody counted its documents, and their lengths too decide "
            "when the other datasets are drawn; leave out `stream`, and they are counted once"
        )
    return tuple(_count(opened, index, report) for index in range(len(opened.readers)))


def _count(opened: Opened, index: int, report: Report | None) -> Int64:
    reader, dataset = opened.readers[index], opened.recipe.datasets[index]
    counts = np.asarray(reader.chunks().num_documents, dtype=np.int64)
    ends = np.cumsum(counts)
    total, done, found = int(ends[-1]), 0, list[Int64]()
    while done < total:
        numbers = np.arange(done, min(done + BLOCK_DOCUMENTS, total), dtype=np.int64)
        chunk = np.searchsorted(ends, numbers, side="right")
        record = numbers - (ends[chunk] - counts[chunk])
        for part in read_lengths(opened, index, chunk, record):
            if part.faults and dataset.on_error == "raise":
                place, fault = min(part.faults.items(), key=lambda item: item[0])
                place += done - int(numbers[0])
                raise _fault(dataset.name, reader, int(chunk[place]), int(record[place]), fault)
            found.append(part.tokens)
            done += len(part.tokens)
            if report is not None:
                report(f"tokens of {dataset.name}", done, total)
    return np.concatenate(found)


def _fault(name: str, reader: RandomReader, chunk: int, record: int, fault: Fault) -> DataError:
    file, number = reader.where(chunk, record)
    return DataError.explained(
        f"dataset {name!r}, file {file!r}, record {number}: cannot be used ({fault.kind})",
        got=fault.got,
        rule=fault.rule,
        cure='mend the record, or set on_error = "skip"',
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactEnd:
    """When the lanes have read a dataset with `max_epochs`."""

    name: str
    first: int | None
    """The step that delivers the last document of the lane that is first; None: no whole step does."""
    last: int | None
    """The same of the lane that is last; None: some lane never is."""
    drawn_tokens: int
    """Those skipped included."""
    unread_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExactEnds(Readable):
    """How a run ends."""

    num_steps: int
    """Steps that are whole; where the data last, those that were asked for."""
    is_over: bool
    """Whether the data end."""
    datasets: tuple[ExactEnd, ...]
    """Those with `max_epochs`, in the recipe's order."""

    def __getitem__(self, name: str) -> ExactEnd:
        return {end.name: end for end in self.datasets}[name]

    def shown(self) -> Shown:
        """Returns the ends as a table."""
        head = f"the run has {self.num_steps:,} steps" + (", then the data end" if self.is_over else "")
        headers = ("dataset", "#first lane ends", "#last lane ends", "#unread tokens")
        table = new_table(*headers, title="exact ends")
        for end in self.datasets:
            steps = ("-" if step is None else f"{step:,}" for step in (end.first, end.last))
            add_row(table, end.name, *steps, f"{end.unread_tokens:,}")
        return Shown(head=head, tables=(table,) if self.datasets else ())


def exact_ends(
    named: Named,
    lengths: Sequence[Int64] | None = None,
    *,
    max_steps: int | None = None,
    how: Opening = PLAIN,
    report: Report | None = None,
) -> ExactEnds:
    """Returns when every dataset with `max_epochs` ends in its first and its last lane, exactly.

    `lengths` is what `census` returns; None: counted now. Cost: a run of the loader without reading and
    tokenizing, in one process. A recipe without an end needs `max_steps`.
    """
    if max_steps is None and not recipe_of(named, how).is_finite:
        raise ValueError("no dataset has `max_epochs`, so the data never end; give `max_steps`")
    with opened(named, how) as found:
        known = _census(found.opened, report) if lengths is None else lengths
        return _run_on_lengths(found.opened, known, max_steps, report)


def _run_on_lengths(
    opened: Opened, lengths: Sequence[Int64], max_steps: int | None, report: Report | None
) -> ExactEnds:
    readers = tuple(LengthReader(reader, of) for reader, of in zip(opened.readers, lengths, strict=True))
    num_steps, is_over, shape = 0, True, (len(readers), opened.recipe.lanes)
    given, skipped, seen, last_drawn = (np.full(shape, n, dtype=np.int64) for n in (0, 0, -1, -1))
    with Loader(replace(opened, readers=cast(Any, readers)), LoaderOptions(executor="inline")) as loader:
        rest = _Rest(loader, readers)
        for batch in loader:
            for index in range(len(readers)):
                np.add.at(given[index], batch.lanes, batch.tokens[index])
            if opened.table.skip_end(batch.step) > batch.step:
                skipped = np.array([lane["skipped"] for lane in _lane_states(loader)]).T
            last_drawn[given + skipped > seen] = batch.step
            seen, num_steps = given + skipped, batch.step + 1
            rest.drop(num_steps)
            if report is not None and max_steps is not None:
                report("steps", num_steps, max_steps)
            if num_steps == max_steps:
                is_over = False
                break
    drawn = np.maximum(seen, 0)
    return ExactEnds(
        num_steps=num_steps,
        is_over=is_over,
        datasets=tuple(
            _end(opened.recipe.names[i], last_drawn[i], drawn[i], totals) for i, totals in rest.tokens.items()
        ),
    )


def _lane_states(loader: Loader) -> list[Any]:
    """Returns what the loader's state says of each lane."""
    entries = (json.loads(entry) for name, entry in loader.state_dict().items() if name.startswith("lane_"))
    return sorted(entries, key=lambda lane: int(lane["lane"]))


class _Rest:
    """The tokens that a run can draw of each dataset with `max_epochs`, by lane, counted where it begins."""

    def __init__(self, loader: Loader, readers: Sequence[LengthReader]) -> None:
        self._loader, self._readers, self._opened = loader, readers, loader.opened
        self._drops = list(self._opened.table.drops)
        self._dropped = [np.empty(0, np.int64) for _ in readers]
        lanes, datasets = _lane_states(loader), self._opened.recipe.datasets
        ending = [index for index, dataset in enumerate(datasets) if dataset.max_epochs is not None]
        self.tokens = {i: np.array([self._left(i, lane) for lane in lanes], np.int64) for i in ending}
        """Dataset -> (L,)."""
        self.drop(0)

    def drop(self, num_steps: int) -> None:
        """Takes out the documents that are dropped from step `num_steps` on; once so many are delivered."""
        while self._drops and self._drops[0].step <= num_steps:
            lanes = _lane_states(self._loader)
            for name, found in find_documents(self._opened, self._drops.pop(0).documents).items():
                index = self._opened.recipe.names.index(name)
                among = np.setdiff1d(found, self._dropped[index])
                self._dropped[index] = np.union1d(found, self._dropped[index])
                if index in self.tokens:
                    self.tokens[index] -= [self._left(index, lane, among) for lane in lanes]

    def _left(self, index: int, lane: Mapping[str, Any], among: Int64 | None = None) -> int:
        """Returns the tokens that a lane has not delivered, or those among some documents not begun."""
        opened, reader, number = self._opened, self._readers[index], int(lane["lane"])
        position, _, offset = lane["cursors"][index] or (0, 0, 0)
        pieces = [piece for name in ("carry", "held") for piece in lane.get(name, ()) if piece[0] == index]
        left = sum(piece[-1] for piece in pieces) - offset if among is None else 0
        position += among is not None and offset > 0
        positions = np.arange(position, opened.orders[index].end(number), dtype=np.int64)
        if not len(positions):
            return int(left)
        addresses, dataset = opened.locate(index, number, positions), opened.recipe.datasets[index]
        lengths = as_packed(opened, reader.lengths(addresses.chunk, addresses.record))
        held_out = opened.held_out[index] if opened.held_out else None
        if held_out is not None and dataset.held_out is not None and dataset.held_out.part == "train":
            lengths = np.where(held_out.contains(addresses), 0, lengths)
        if among is not None:
            lengths = lengths[np.isin(reader.numbers(addresses.chunk, addresses.record), among)]
        return int(left + lengths.sum())


def _end(name: str, last_drawn: Int64, drawn: Int64, totals: Int64) -> ExactEnd:
    done = last_drawn[(drawn >= totals) & (last_drawn >= 0)]
    return ExactEnd(
        name=name,
        first=int(done.min()) if len(done) else None,
        last=int(done.max()) if len(done) == len(totals) else None,
        drawn_tokens=int(drawn.sum()),
        unread_tokens=int((totals - drawn).sum()),
    )
