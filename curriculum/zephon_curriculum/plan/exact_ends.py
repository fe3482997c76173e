"""When datasets really end: the loader itself, run on lengths alone.

Upstream: an opened recipe and the length of every document, counted once (`census`). Downstream: `zephon plan
--exact` and tests of the estimated ends. Streams, mixture, packer and the agreement on the end are the
loader's own code; only the tokens are all zero and cost no memory, so the steps are exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

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
from zephon_curriculum.figures import Report, plural
from zephon_curriculum.opening import PLAIN, Named, Opening, opened, recipe_of
from zephon_curriculum.plan.drawn import Drawn, Tally, counted
from zephon_curriculum.plan.ends import End, KnownEnd, earlier_tokens
from zephon_curriculum.quantity import Quantity
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
    drawn: Drawn = field(compare=False)
    """What the steps draw, for `plan(..., exact=...)`."""

    def __getitem__(self, name: str) -> ExactEnd:
        return {end.name: end for end in self.datasets}[name]

    def to_json(self) -> dict[str, Any]:
        """Returns the ends as JSON data."""
        ends = [asdict(end) for end in self.datasets]
        return {"num_steps": self.num_steps, "is_over": self.is_over, "datasets": ends}

    def known(self) -> dict[str, KnownEnd]:
        """Returns the ends for a plan, by name; the run stops with the dataset of which a lane ends first.

        Where none does in a whole step, with the only one that can end.
        """
        firsts = {end.name: end.first for end in self.datasets if end.first is not None}
        alone = self.datasets[0].name if len(self.datasets) == 1 else None
        cause = min(firsts, key=lambda name: firsts[name], default=alone) if self.is_over else None
        found = {}
        for end in self.datasets:
            first, last = (None if step is None else Quantity.exactly(step) for step in (end.first, end.last))
            middle = None if end.first is None or end.last is None else (end.first + end.last) // 2
            after = Quantity.exactly(self.num_steps) if end.name == cause else None
            found[end.name] = KnownEnd(End(first=first, last=last, middle=middle, after=after))
        return found

    def notes(self) -> tuple[str, ...]:
        """Returns, a line each, why a dataset does not end, or not in all lanes."""
        over = "the run stops before the step in which {} would end"
        short = f"{{}} does not end in {plural(self.num_steps, 'step')}"
        found = []
        for end in self.datasets:
            if end.last is None:
                whose = end.name if end.first is None else f"the last lane of {end.name}"
                found.append((over if self.is_over else short).format(whose))
        return tuple(found)

    def shown(self) -> Shown:
        """Returns the ends as a table."""
        head = f"the run has {self.num_steps:,} steps" + (", then the data end" if self.is_over else "")
        headers = ("dataset", "#first lane ends", "#last lane ends", "#unread tokens")
        table = new_table(*headers, title="exact ends")
        for end in self.datasets:
            steps = ("-" if step is None else f"{step:,}" for step in (end.first, end.last))
            add_row(table, end.name, *steps, f"{end.unread_tokens:,}")
        return Shown(head=head, tables=(table,) if self.datasets else (), notes=self.notes())


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
        _check(found.opened)
        known = _census(found.opened, report) if lengths is None else lengths
        return _run_on_lengths(found.opened, known, max_steps, report)


def _check(opened: Opened) -> None:
    """Refuses what no state tells of: what was skipped or dropped since a packer was flushed."""
    if opened.flush_every is not None and (opened.table.skips or opened.table.drops):
        raise ValueError(
            "skipped steps and dropped documents are counted row by row, and the packing is flushed every "
            f"{opened.flush_every} rows; leave out `flush_every` where the packing goes without, or --exact"
        )


def _check_end(opened: Opened, lanes: Sequence[Mapping[str, Any]]) -> None:
    """Refuses a run that has come to its last mixture and that this one does not end."""
    if opened.flush_every is None and all(lane.get("replay_rows") for lane in lanes):
        return  # all lanes have ended and give what their packers held
    recipe, table = opened.recipe, opened.table
    last = [d for d, share in zip(recipe.datasets, table.shares[-1], strict=True) if share]
    is_endless = [dataset.max_epochs is None for dataset in last]
    if (all if recipe.when_exhausted == "stop" else any)(is_endless):
        raise ValueError(
            f"the data never end: dataset {last[is_endless.index(True)].name!r}, which has no `max_epochs`, "
            f"has a share for ever from step {table.starts[-1]:,} on; give `max_steps`"
        )


def _run_on_lengths(
    opened: Opened, lengths: Sequence[Int64], max_steps: int | None, report: Report | None
) -> ExactEnds:
    readers = tuple(LengthReader(reader, of) for reader, of in zip(opened.readers, lengths, strict=True))
    recipe, is_over, skipped = opened.recipe, True, np.zeros((len(readers), opened.recipe.lanes), np.int64)
    tally = Tally(*skipped.shape, masks=recipe.packing.mask_document_ends)
    with Loader(replace(opened, readers=cast(Any, readers)), LoaderOptions(executor="inline")) as loader:
        held = _held_tokens(_lane_states(loader), len(readers))
        for batch in loader:
            if opened.table.skip_end(batch.step) > batch.step:
                lanes = _lane_states(loader)
                skipped = np.array([lane.get("skipped", [0] * len(readers)) for lane in lanes]).T
            tally.add(batch, skipped)
            if report is not None and max_steps is not None:
                report("steps", tally.num_steps, max_steps)
            if max_steps is None and batch.step == opened.table.starts[-1]:
                _check_end(opened, _lane_states(loader))
            if tally.num_steps == max_steps:
                is_over = False
                break
        lanes, rest = _lane_states(loader), _Rest(opened, readers, tally.num_steps)
    known = rest.tokens(lanes) + held
    for number, step, has_share in _ended_in_skips(opened, lanes):
        tally.add_late(number, step, known[:, number], has_share)
    ends = (
        _end(dataset.name, tally.last_drawn[i], tally.drawn[i], known[i])
        for i, dataset in enumerate(recipe.datasets)
        if dataset.max_epochs is not None
    )
    return ExactEnds(
        num_steps=tally.num_steps, is_over=is_over, datasets=tuple(ends),
        drawn=tally.found(counted(opened, lengths), _earlier(opened, held)),
    )  # fmt: skip


def _earlier(opened: Opened, held: Int64) -> Int64:
    """Returns the tokens that earlier phases delivered, (D,), where the lanes began with `held`, (D, L)."""
    drawn = [earlier_tokens(opened.recipe, index) for index in range(len(held))]
    return np.asarray(np.array(drawn, np.int64) - held.sum(axis=1))


def _lane_states(loader: Loader) -> list[Any]:
    """Returns what the loader's state says of each lane."""
    entries = (json.loads(entry) for name, entry in loader.state_dict().items() if name.startswith("lane_"))
    return sorted(entries, key=lambda lane: int(lane["lane"]))


def _held_tokens(lanes: Sequence[Mapping[str, Any]], num_datasets: int) -> Int64:
    """Returns the tokens that lanes hold at the begin of a phase, drawn in the one before, (D, L)."""
    held = np.zeros((num_datasets, len(lanes)), np.int64)
    for number, lane in enumerate(lanes):
        for piece in (*lane.get("carry", ()), *lane.get("held", ())):
            held[piece[0], number] += piece[-1]
    return held


def _ended_in_skips(
    opened: Opened, lanes: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[int, int, NDArray[np.bool_]]]:
    """Yields the lanes that ended in rows that are skipped, of which no state tells.

    Each as (number, step, whether each dataset has a share there): of those it has drawn all that it had.
    """
    table = opened.table
    for number, lane in enumerate(lanes):
        step, inside = divmod(int(lane["rows"]), opened.recipe.rows_per_step)
        end = table.skip_end(step)
        if lane.get("replay_rows") and not inside and end > step:
            shares = table.shares[table.phase(step) : table.phase(end - 1) + 1]
            yield number, step, np.any(shares, axis=0)


class _Rest:
    """What the lanes have drawn and would draw of each dataset with `max_epochs`, after so many steps."""

    def __init__(self, opened: Opened, readers: Sequence[LengthReader], num_steps: int) -> None:
        self._opened, self._readers, self._num_steps = opened, readers, num_steps
        self._drops = [(drop.step, find_documents(opened, drop.documents)) for drop in opened.table.drops]

    def tokens(self, lanes: Sequence[Mapping[str, Any]]) -> Int64:
        """Returns the tokens that each lane has drawn in this phase or can draw, (D, L)."""
        found = np.zeros((len(self._readers), len(lanes)), np.int64)
        for index, dataset in enumerate(self._opened.recipe.datasets):
            if dataset.max_epochs is not None:
                found[index] = [lane["tokens"][index] + self._left(index, lane) for lane in lanes]
        return found

    def _left(self, index: int, lane: Mapping[str, Any]) -> int:
        """Returns the tokens that a lane has not drawn."""
        opened, reader, number = self._opened, self._readers[index], int(lane["lane"])
        position, _, offset = lane["cursors"][index] or (0, 0, 0)
        positions = np.arange(position, opened.orders[index].end(number), dtype=np.int64)
        if not len(positions):
            return 0
        addresses, dataset = opened.locate(index, number, positions), opened.recipe.datasets[index]
        lengths = as_packed(opened, reader.lengths(addresses.chunk, addresses.record))
        held_out = opened.held_out[index] if opened.held_out else None
        if held_out is not None and dataset.held_out is not None and dataset.held_out.part == "train":
            lengths = np.where(held_out.contains(addresses), 0, lengths)
        is_dropped = np.isin(reader.numbers(addresses.chunk, addresses.record), self._dropped(index, lane))
        is_dropped[0] &= not offset  # a document that is begun is read to its end
        return int(lengths[~is_dropped].sum()) - int(offset)

    def _dropped(self, index: int, lane: Mapping[str, Any]) -> Int64:
        """Returns the documents that the lane draws no more, by number."""
        name, step = self._opened.recipe.names[index], self._num_steps
        if lane.get("replay_rows"):  # its entry is of the row before its end
            step = min(step, int(lane["rows"]) // self._opened.recipe.rows_per_step)
        found = (documents.get(name) for at, documents in self._drops if at <= step)
        return np.concatenate([np.empty(0, np.int64), *(each for each in found if each is not None)])


def _end(name: str, last_drawn: Int64, drawn: Int64, totals: Int64) -> ExactEnd:
    done = last_drawn[(drawn >= totals) & (last_drawn >= 0)]
    return ExactEnd(
        name=name,
        first=int(done.min()) if len(done) else None,
        last=int(done.max()) if len(done) == len(totals) else None,
        drawn_tokens=int(drawn.sum()),
        unread_tokens=int((totals - drawn).sum()),
    )
