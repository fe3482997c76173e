"""The work of a worker: positions of one (lane, dataset) -> a block of tokenized documents.

Upstream: `order.py` says which documents, `readers/` read them, `tokenizer/` encodes them. Downstream:
`feed.py` runs this in parallel and `stream.py` draws from the blocks in order. Pure: the same request
gives the same block in any thread, process or machine.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from zephon.errors import DataError, Fault
from zephon.holdout import HeldOutDocuments
from zephon.order import ENDLESS, Addresses, Order
from zephon.readers import RandomReader, Texts, TokenReader, Tokens, is_tokenized
from zephon.stream_order import StreamOrder
from zephon.streaming import StreamReader
from zephon.tokenizer import Encoder

MAX_BLOCK_DOCUMENTS = 4096
SPLIT, TRUNCATE, DROP, REFUSE = "split", "truncate", "drop", "refuse"
CURES = {
    "": 'mend the record, or set on_error = "skip" for this dataset to count it and go on',
    "missing": "set `text` to the field that holds the text, or mend the record, or set "
    'on_error = "skip" for this dataset to count it and go on',
    "too_long": 'shorten the document, or set overlong = "split", "truncate" or "drop" in [packing]',
}
"""By kind of fault; the empty one for all others."""

NUM_FIRST = 5
"""Skipped records of a dataset that are each told; then those at every power of ten."""

Int64 = NDArray[np.int64]
_log = logging.getLogger("zephon")


class Request(NamedTuple):
    """What a stream asks for next."""

    dataset: int
    lane: int
    start: int
    """The first position wanted."""
    target_bytes: int
    """Text after which the block ends; at least one document is read."""
    positions: tuple[int, ...] = ()
    """Exactly these positions, ascending, in place of those from `start` on."""


class Event(NamedTuple):
    """Documents of a block that are counted apart, ahead of its document `before` or at it."""

    before: int
    kind: str
    number: int


@dataclass(slots=True)
class Block:
    """Consecutive documents of one stream, as columns; documents without tokens are left out."""

    tokens: NDArray[np.uint32]
    """(T,), BOS and EOS included as asked."""
    lengths: Int64
    """(n,), tokens of each document, all >= 1."""
    positions: Int64
    """(n,), where each stands in the lane's order."""
    end: int
    """The position after the last one that was looked at."""
    events: list[Event]
    """Ascending by `before`, in [0, n]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRules:
    """How the documents of one dataset are treated."""

    name: str
    on_error: str
    mean_bytes: int
    held_out: HeldOutDocuments | None = None
    """Documents that are passed over and not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRule:
    """What becomes of documents over `max_tokens`; `split` leaves them whole for the packer to cut."""

    overlong: str = SPLIT
    max_tokens: int = 0


class Prepare:
    """Reads and tokenizes blocks; picklable, so that worker processes can hold their own."""

    def __init__(
        self,
        readers: Sequence[RandomReader],
        orders: Sequence[Order | StreamOrder],
        encoder: Encoder,
        rules: Sequence[DatasetRules],
        length: LengthRule,
    ) -> None:
        self._readers, self._orders, self._encoder = list(readers), list(orders), encoder
        self._rules, self._length = list(rules), length
        self._skipped = SkippedLog()

    def __call__(self, requests: Sequence[Request]) -> list[Block | Exception]:
        """Returns a block for each request, or the error that stops it; all are encoded in one call."""
        reads: list[_Read | Exception] = []
        for request in requests:
            try:
                reads.append(self._read(request))
            except Exception as error:  # the worker boundary: the error is raised where the block is needed
                name = self._rules[request.dataset].name
                error.add_note(f"dataset {name!r}, lane {request.lane}, from position {request.start} on")
                reads.append(error)
        texts = [text for read in reads if isinstance(read, _Read) for text in read.texts]
        try:
            tokens, offsets = self._encoder.encode(texts)
        except Exception as error:
            if len(requests) > 1:  # the fault of one request is not that of its neighbours
                return [self([request])[0] for request in requests]
            return [reads[0] if isinstance(reads[0], Exception) else error]
        blocks: list[Block | Exception] = []
        first = 0
        for request, read in zip(requests, reads, strict=True):
            if isinstance(read, Exception):
                blocks.append(read)
                continue
            try:
                if read.ids is not None:
                    blocks.append(self._block(request, read, *read.ids, num_special=0))
                    continue
                cut = offsets[first : first + len(read.texts) + 1]
                first += len(read.texts)
                part, special = tokens[int(cut[0]) : int(cut[-1])], self._encoder.num_special
                blocks.append(self._block(request, read, part, np.diff(cut), num_special=special))
            except DataError as error:
                blocks.append(error)
        return blocks

    def _read(self, request: Request) -> _Read:
        reader, rules = self._readers[request.dataset], self._rules[request.dataset]
        positions, addresses, end = self._locate(request)
        target_bytes = ENDLESS if request.positions else request.target_bytes
        events: list[Event] = []
        if rules.held_out is not None:
            positions, addresses, events = _pass_over(rules.held_out, positions, addresses)
        if not len(positions):
            return _Read(positions, [], addresses, events, end)
        found: Texts | Tokens
        if is_tokenized(reader):
            found = cast(TokenReader, reader).tokens(addresses.chunk, addresses.record, target_bytes)
            check_ids(found, self._encoder.vocab_size)
            num_read = len(found.lengths)
        else:
            found = reader.texts(addresses.chunk, addresses.record, target_bytes)
            num_read = len(found.texts)
        if found.faults and rules.on_error == "raise":
            num_read = found.faults[0][0]
            if num_read == 0:
                raise self._fault_error(request.dataset, addresses, *found.faults[0])
        elif found.faults:
            self._skipped.add(rules.name, reader, addresses, found.faults)
        if num_read < len(positions):
            end = int(positions[num_read])
            events = [event for event in events if event.before <= num_read]
        events = sorted(events + _events(found, num_read))
        read = _Read(positions[:num_read], [], addresses, events, end)
        if isinstance(found, Texts):
            read.texts = found.texts[:num_read]
        else:
            lengths = found.lengths[:num_read]
            read.ids = found.tokens[: int(lengths.sum())].astype(np.uint32, copy=False), lengths
        return read

    def _locate(self, request: Request) -> tuple[Int64, Addresses, int]:
        """Returns the positions to read, their addresses and the position to go on from."""
        order, lane = self._orders[request.dataset], request.lane
        count = min(MAX_BLOCK_DOCUMENTS, request.target_bytes // self._rules[request.dataset].mean_bytes + 1)
        if isinstance(order, StreamOrder):
            reader = cast(StreamReader, self._readers[request.dataset])
            if request.positions:
                return order.locate_at(lane, np.array(request.positions, np.int64), reader.window_records)
            return order.locate_from(lane, request.start, count, reader.window_records)
        if request.positions:
            positions = np.array(request.positions, dtype=np.int64)
        else:
            positions = np.arange(request.start, min(request.start + count, order.end(lane)), dtype=np.int64)
        return positions, order.locate_at(lane, positions), int(positions[-1]) + 1

    def _fault_error(self, dataset: int, addresses: Addresses, index: int, fault: Fault) -> DataError:
        """Returns the error of a faulty document: dataset, file, record, got, rule, cure."""
        reader, rules = self._readers[dataset], self._rules[dataset]
        file, record = reader.where(int(addresses.chunk[index]), int(addresses.record[index]))
        return DataError.explained(
            f"dataset {rules.name!r}, file {file!r}, record {record}: cannot be used ({fault.kind})",
            got=fault.got,
            rule=fault.rule,
            cure=CURES.get(fault.kind, CURES[""]),
        )

    def _block(
        self, request: Request, read: _Read, tokens: NDArray[np.uint32], lengths: Int64, *, num_special: int
    ) -> Block:
        block = Block(tokens, lengths, read.positions, read.end, read.events)
        if len(lengths) == 0:
            return block
        rule = self._length
        if rule.overlong == REFUSE and int(lengths.max()) > rule.max_tokens:
            self._apply_length_rule(request, read, block)
        if len(block.lengths) and int(block.lengths.min()) <= num_special:
            _drop_empty(block, num_special)
        if rule.overlong in (TRUNCATE, DROP) and int(block.lengths.max(initial=0)) > rule.max_tokens:
            self._apply_length_rule(request, read, block)
        return block

    def _apply_length_rule(self, request: Request, read: _Read, block: Block) -> None:
        rule = self._length
        over = np.flatnonzero(block.lengths > rule.max_tokens)
        if rule.overlong == REFUSE:
            if over[0] == 0:
                got = f"{int(block.lengths[0])} tokens"
                fault = Fault("too_long", got, f"a document has at most seq_len = {rule.max_tokens} tokens")
                raise self._fault_error(request.dataset, read.addresses, 0, fault)
            block.end = int(block.positions[over[0] - 1]) + 1
            keep_documents(block, np.arange(len(block.lengths)) < over[0], block.lengths)
            return
        kind = "dropped" if rule.overlong == DROP else "truncated"
        block.events = sorted(block.events + [Event(i, kind, 1) for i in over.tolist()])
        kept = np.ones(len(block.lengths), dtype=np.bool_)
        kept[over] = rule.overlong != DROP
        keep_documents(block, kept, np.minimum(block.lengths, rule.max_tokens))


def _drop_empty(block: Block, num_special: int) -> None:
    """Takes out the documents that have no tokens of text, and counts those that are not faulty."""
    kept = block.lengths > num_special
    bad = {event.before for event in block.events if event.kind == "bad"}
    empty = [Event(i, "empty", 1) for i in np.flatnonzero(~kept).tolist() if i not in bad]
    block.events = sorted(block.events + empty)
    keep_documents(block, kept, block.lengths)


def keep_documents(block: Block, kept: NDArray[np.bool_], lengths: Int64) -> None:
    """Leaves in `block` the documents that are `kept`, cut to `lengths`."""
    starts = np.cumsum(block.lengths) - block.lengths
    parts = [block.tokens[starts[i] : starts[i] + lengths[i]] for i in np.flatnonzero(kept).tolist()]
    block.tokens = np.concatenate(parts) if parts else block.tokens[:0]
    before = np.append(np.cumsum(kept) - kept, int(kept.sum())).tolist()  # kept documents ahead of each
    last = len(kept) + 1 if block.end > int(block.positions[-1]) else int(np.flatnonzero(kept)[-1]) + 1
    block.events = [Event(before[e.before], e.kind, e.number) for e in block.events if e.before < last]
    block.lengths, block.positions = lengths[kept], block.positions[kept]


@dataclass(slots=True)
class _Read:
    positions: Int64
    texts: list[str]
    addresses: Addresses
    events: list[Event]
    end: int
    """The position after the last one that was read or passed over."""
    ids: tuple[NDArray[np.uint32], Int64] | None = None
    """Of a tokenized dataset, in place of texts: the token ids and the tokens of each document."""


def check_ids(found: Tokens, vocab_size: int) -> None:
    """Makes documents with ids that the tokenizer does not know faulty, and takes out their tokens."""
    tokens = found.tokens
    if not len(tokens) or (int(tokens.max()) < vocab_size and int(tokens.min()) >= 0):
        return
    wrong = np.flatnonzero((tokens < 0) | (tokens >= vocab_size))
    ends = np.cumsum(found.lengths)
    documents, firsts = np.unique(np.searchsorted(ends, wrong, side="right"), return_index=True)
    ids = found.tokens[wrong[firsts]].tolist()
    rule = f"token ids are in [0, {vocab_size}), as the tokenizer has so many"
    faults = {
        d: Fault("not_tokens", f"the id {i}", rule) for d, i in zip(documents.tolist(), ids, strict=True)
    }
    bad = np.zeros(len(found.lengths), np.bool_)
    bad[documents] = True
    found.tokens = found.tokens[~np.repeat(bad, found.lengths)]
    found.lengths = np.where(bad, 0, found.lengths)
    found.faults = sorted((dict(found.faults) | faults).items())


def _pass_over(
    held_out: HeldOutDocuments, positions: Int64, addresses: Addresses
) -> tuple[Int64, Addresses, list[Event]]:
    """Returns the positions that are not held out, with their addresses, and events for those that are."""
    held = held_out.contains(addresses)
    if not held.any():
        return positions, addresses, []
    kept = ~held
    before, numbers = np.unique(np.cumsum(kept)[held], return_counts=True)
    events = [Event(b, "held_out", n) for b, n in zip(before.tolist(), numbers.tolist(), strict=True)]
    return positions[kept], Addresses(addresses.chunk[kept], addresses.record[kept]), events


def _events(found: Texts | Tokens, num_read: int) -> list[Event]:
    events = [Event(index, "bad", 1) for index, _ in found.faults if index < num_read]
    if isinstance(found, Texts):
        events += [Event(index, "replaced", 1) for index in found.num_replaced if index < num_read]
    return sorted(events)


class SkippedLog:
    """Says which records of each dataset this process has skipped, the first few, then fewer; thread-safe.

    It is no exact count, which a state has: a restore, another epoch or a block that is read again tells
    again. What a worker process says goes to stderr.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: Counter[str] = Counter()

    def __reduce__(self) -> tuple[type[SkippedLog], tuple[()]]:
        return SkippedLog, ()

    def add(
        self, name: str, reader: RandomReader, addresses: Addresses, faults: Sequence[tuple[int, Fault]]
    ) -> None:
        """Counts the faulty documents at some of `addresses` and warns of those whose turn it is."""
        with self._lock:
            first = self._numbers[name] + 1
            self._numbers[name] += len(faults)
        for number, (index, fault) in enumerate(faults, first):
            if number <= NUM_FIRST or number == _power_of_ten(number):
                file, record = reader.where(int(addresses.chunk[index]), int(addresses.record[index]))
                following = "" if number < NUM_FIRST else f", the next told is {10 * _power_of_ten(number):,}"
                _log.warning(
                    "dataset %r, file %r, record %d: skipped (%s), got %s; number %s here%s",
                    name, file, record, fault.kind, fault.got, f"{number:,}", following,
                )  # fmt: skip


def _power_of_ten(number: int) -> int:
    """Returns the largest power of ten that is at most `number`."""
    return int(10 ** (len(str(number)) - 1))
