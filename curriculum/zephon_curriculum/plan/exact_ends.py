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

from zephon import Chunks, DataError, Fault, Loader, LoaderOptions, Opened, RandomReader, Texts, Tokens
from zephon.cli.common import add_row, new_table
from zephon_curriculum.estimation.counting import TOKEN_BYTES, Int64, as_packed, read_lengths
from zephon_curriculum.figures import Report
from zephon_curriculum.results import Readable, Shown

BLOCK_DOCUMENTS = 1 << 16
"""Of which the addresses are held at once."""


class LengthReader:
    """A reader of documents that are known by their lengths only; every token of theirs is 0."""

    is_tokenized = True

    def __init__(self, reader: RandomReader, lengths: Int64) -> None:
        """`lengths` is (N,), all documents of `reader` in file order; BOS and EOS count."""
        self.name, self._reader, self._lengths = reader.name, reader, lengths
        counts = np.asarray(reader.chunks().num_documents, dtype=np.int64)
        self._firsts = np.cumsum(counts) - counts

    def chunks(self) -> Chunks:
        """Returns the chunks of the dataset itself, as the order is dealt by them."""
        return self._reader.chunks()

    def lengths(self, chunk: Int64, record: Int64) -> Int64:
        """Returns the tokens of the documents at these addresses."""
        return np.asarray(self._lengths[self._firsts[chunk] + record])

    def tokens(self, chunk: Int64, record: Int64, max_bytes: int) -> Tokens:
        """Returns documents of zeros, without memory of their own."""
        lengths = self.lengths(chunk, record)
        ends = np.cumsum(lengths)
        num_read = 1 + int(np.searchsorted(ends[:-1], max(1, max_bytes // TOKEN_BYTES)))
        return Tokens(np.broadcast_to(np.uint32(0), int(ends[num_read - 1])), lengths[:num_read])

    def texts(self, chunk: Int64, record: Int64, max_bytes: int) -> Texts:
        """Is never called of documents that are tokenized."""
        raise NotImplementedError

    def where(self, chunk: int, record: int) -> tuple[str, int]:
        """Returns the file of a document and its record in it."""
        return self._reader.where(chunk, record)

    def identity(self) -> dict[str, Any]:
        """Returns what the lock keeps of the dataset itself."""
        return self._reader.identity()

    def close(self) -> None:
        """Leaves the dataset's own reader open; whoever opened it closes it."""


def census(opened: Opened, report: Report | None = None) -> tuple[Int64, ...]:
    """Returns, for each dataset, the tokens of every document in file order, (N,); BOS and EOS count.

    Cost: all data are read and tokenized once. Documents without text, and such as cannot be used where
    `on_error` is `skip`, have 0. Streams are refused: nobody counted their documents.
    """
    if streams := [dataset.name for dataset in opened.recipe.datasets if dataset.stream]:
        raise ValueError(
            f"dataset {streams[0]!r} is a stream, whose documents are not counted; leave out `stream`"
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
    opened: Opened,
    lengths: Sequence[Int64] | None = None,
    *,
    max_steps: int | None = None,
    report: Report | None = None,
) -> ExactEnds:
    """Returns when every dataset with `max_epochs` ends in its first and its last lane, exactly.

    `lengths` is what `census` returns; None: counted now. Cost: a run of the loader without reading and
    tokenizing, in one process. A recipe without an end needs `max_steps`.
    """
    if max_steps is None and not opened.recipe.is_finite:
        raise ValueError("no dataset has `max_epochs`, so the data never end; give `max_steps`")
    if opened.table.drops:
        raise ValueError(
            "exact ends are of schedules that drop no documents; this one does, plan without them"
        )
    known = census(opened, report) if lengths is None else lengths
    readers = tuple(LengthReader(reader, of) for reader, of in zip(opened.readers, known, strict=True))
    lanes = opened.recipe.lanes
    to_read = _to_read(opened, readers)
    given, skipped = np.zeros((2, len(readers), lanes), dtype=np.int64)
    ended = {i: np.full(lanes, -1, dtype=np.int64) for i in to_read}
    num_steps, is_over = 0, True
    with Loader(replace(opened, readers=cast(Any, readers)), LoaderOptions(executor="inline")) as loader:
        for batch in loader:
            for index in range(len(readers)):
                np.add.at(given[index], batch.lanes, batch.tokens[index])
            if opened.table.skip_end(batch.step) > batch.step:
                skipped = _skipped(loader)
            for index, totals in to_read.items():
                is_done = given[index] + skipped[index] >= totals
                ended[index][is_done & (ended[index] < 0)] = batch.step
            num_steps = batch.step + 1
            if report is not None and max_steps is not None:
                report("steps", num_steps, max_steps)
            if num_steps == max_steps:
                is_over = False
                break
    return ExactEnds(
        num_steps=num_steps,
        is_over=is_over,
        datasets=tuple(_end(opened, i, ended[i], given[i] + skipped[i], to_read[i]) for i in to_read),
    )


def _skipped(loader: Loader) -> Int64:
    """Returns the tokens of each dataset in the rows that each lane has dropped, (datasets, lanes)."""
    entries = (json.loads(entry) for name, entry in loader.state_dict().items() if name.startswith("lane_"))
    return np.array([lane["skipped"] for lane in sorted(entries, key=lambda lane: int(lane["lane"]))]).T


def _end(opened: Opened, index: int, steps: Int64, drawn: Int64, totals: Int64) -> ExactEnd:
    done = steps[steps >= 0]
    return ExactEnd(
        name=opened.recipe.names[index],
        first=int(done.min()) if len(done) else None,
        last=int(done.max()) if len(done) == len(steps) else None,
        drawn_tokens=int(drawn.sum()),
        unread_tokens=int((totals - drawn).sum()),
    )


def _to_read(opened: Opened, readers: Sequence[LengthReader]) -> Mapping[int, Int64]:
    """Returns, for each dataset with `max_epochs`, the tokens that each lane can draw of it, (L,)."""
    lanes = range(opened.recipe.lanes)
    return {
        index: np.array([_lane_tokens(opened, readers[index], index, lane) for lane in lanes], np.int64)
        for index, dataset in enumerate(opened.recipe.datasets)
        if dataset.max_epochs is not None
    }


def _lane_tokens(opened: Opened, reader: LengthReader, index: int, lane: int) -> int:
    count = opened.orders[index].end(lane)
    if not count:
        return 0
    addresses = opened.locate(index, lane, np.arange(count, dtype=np.int64))
    lengths = as_packed(opened, reader.lengths(addresses.chunk, addresses.record))
    dataset = opened.recipe.datasets[index]
    held_out = opened.held_out[index] if opened.held_out else None
    if held_out is not None and dataset.held_out is not None and dataset.held_out.part == "train":
        lengths = np.where(held_out.contains(addresses), 0, lengths)
    return int(lengths.sum())
