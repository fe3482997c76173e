"""What a dataset looks like: lengths, columns and faults of some documents, and their texts.

Upstream: an opened dataset. Downstream: `zephon data`. The documents looked at are chosen by the seed and the
dataset's name, so two looks at one recipe see the same; every document is about equally likely to be among
them, however long its neighbours are.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from zephon.bits import bits, key, permutation
from zephon.dataset import Dataset
from zephon.errors import DataError, Fault
from zephon.holdout import HeldOutDocuments
from zephon.order import Addresses
from zephon.prepare import check_ids
from zephon.readers import RandomReader, Report, TokenReader, is_tokenized
from zephon.readers.base import TOKEN
from zephon.selection import values_of
from zephon.stream_order import FILE_SHIFT, WINDOW_RECORDS
from zephon.streaming import StreamReader
from zephon.tokenizer import Encoder

PLACES = 64
"""Places that a few documents are spread over; more documents are looked at in runs."""
MAX_RUN = 16
"""Documents that stand next to each other and are looked at together, at most."""
MAX_BYTES = 256 << 20
"""What is read in one call at most."""
MEASURED_CHUNKS = 64
MEASURED_BYTES = 64 << 20
"""What is read to know the length of all documents, at most; more chunks than these are sampled."""
STREAM_FILES = 16
"""Files of a stream of which the first window is looked at."""
MAX_VALUES = 10_000
"""Different values of a column that are counted each."""

Int64 = NDArray[np.int64]
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One document that was looked at."""

    file: str
    record: int
    """Its number in the file, from 0."""
    text: str
    """Empty where faulty; of a tokenized dataset what its ids stand for."""
    num_bytes: int
    """UTF-8 of the text, or 4 a token id."""
    num_tokens: int | None
    """As a row would get: BOS and EOS count where the recipe adds them, an empty document has none. None
    without a tokenizer."""
    fault: Fault | None
    columns: dict[str, Any]


@dataclass(slots=True)
class Survey:
    """What was found of one dataset."""

    name: str
    num_seen: int = 0
    bytes: array[int] = field(default_factory=lambda: array("q"))
    """One per document without a fault."""
    tokens: array[int] = field(default_factory=lambda: array("q"))
    """One per document without a fault; empty without a tokenizer."""
    faults: Counter[str] = field(default_factory=Counter)
    num_empty: int = 0
    columns: dict[str, Counter[Any]] = field(default_factory=dict)
    """By column, how often each value was seen; what is no number, text or truth value counts as its text."""
    num_others: Counter[str] = field(default_factory=Counter)
    """By column, documents whose values came when MAX_VALUES were counted already."""
    mean_bytes: float | None = None
    """Of all documents of the dataset, those with a fault included; None where nobody measured it."""

    def add(self, seen: Seen) -> None:
        """Counts a document."""
        self.num_seen += 1
        for name, value in seen.columns.items():
            self._count_value(name, value)
        if seen.fault is not None:
            self.faults[seen.fault.kind] += 1
            return
        self.num_empty += not seen.num_bytes
        self.bytes.append(seen.num_bytes)
        if seen.num_tokens is not None:
            self.tokens.append(seen.num_tokens)

    def tokens_of(self, num_documents: int) -> float | None:
        """Returns the tokens of so many documents, by estimate; None where no tokens were counted.

        Documents differ more in length than in tokens per byte, so the lengths of all tell more than those of
        the ones looked at. Exact where these are all.
        """
        if not self.tokens:
            return None
        num_tokens, num_bytes = sum(self.tokens), sum(self.bytes)
        if self.mean_bytes is None or not num_bytes or self.num_seen >= num_documents:
            return num_tokens / self.num_seen * num_documents
        return num_tokens / num_bytes * self.mean_bytes * num_documents

    def _count_value(self, name: str, value: Any) -> None:
        counter = self.columns.setdefault(name, Counter())
        plain = value if value is None or isinstance(value, bool | int | float | str) else str(value)
        if plain in counter or len(counter) < MAX_VALUES:
            counter[plain] += 1
        else:
            self.num_others[name] += 1


class _Place(NamedTuple):
    """Records of a chunk to look at, ascending, and how far the look is with them."""

    chunk: int
    records: Int64
    done: int
    total: int


def look(
    dataset: Dataset,
    reader: RandomReader,
    *,
    seed: int,
    num_documents: int | None,
    held_out: HeldOutDocuments | None = None,
    encoder: Encoder | None = None,
    decode: Decode | None = None,
    report: Report | None = None,
) -> Iterator[Seen]:
    """Yields documents of `reader` in file order: `num_documents` spread over it, or all for None.

    Those `held_out` are passed over. `encoder` counts tokens, `decode` shows what token ids stand for. Of a
    stream some documents are from the first windows of some files; it shows no `columns`. `report` gets
    documents for progress, of a whole stream files.
    """
    sample_key = key("survey", seed, dataset.name)
    if isinstance(reader, StreamReader):
        places = _stream_places(reader, sample_key, num_documents)
    else:
        places = _places(reader.chunks().num_documents, sample_key, num_documents)
    columns = _Columns(dataset, reader)
    for place in places:
        records = place.records
        if held_out is not None:
            chunks = np.full(len(records), place.chunk, np.int64)
            records = records[~held_out.contains(Addresses(chunks, records))]
        yield from _read(reader, place.chunk, records, columns, encoder, decode)
        if report is not None:
            report(f"look at {dataset.name}", place.done, place.total)
    columns.refuse_unknown()


def mean_bytes(dataset: Dataset, reader: RandomReader, *, seed: int) -> float | None:
    """Returns the mean length of the documents, as `Seen.num_bytes` counts it, by reading whole chunks.

    Exact where MEASURED_CHUNKS and MEASURED_BYTES are enough for all; else the chunks are chosen by the seed
    and stand for the others by their weights. None of a stream, of which nothing is counted.
    """
    if isinstance(reader, StreamReader):
        return None
    chunks = reader.chunks()
    order = permutation(key("survey bytes", seed, dataset.name), 0, len(chunks.num_documents))
    total, weight, left = 0, 0.0, MEASURED_BYTES
    for chunk in order[:MEASURED_CHUNKS].tolist():
        count = int(chunks.num_documents[chunk])
        lengths = _lengths(reader, chunk, count, max(1, left))
        total += sum(lengths)
        weight += float(chunks.num_bytes[chunk]) * len(lengths) / count
        left -= sum(lengths)
        if left <= 0:
            break
    whole = float(chunks.num_bytes.sum(dtype=np.int64))
    return total * whole / weight / int(chunks.num_documents.sum(dtype=np.int64)) if weight else None


def _lengths(reader: RandomReader, chunk: int, count: int, max_bytes: int) -> list[int]:
    """Returns the bytes of a chunk's first documents, as many as `max_bytes` have."""
    chunks, records = np.full(count, chunk, np.int64), np.arange(count, dtype=np.int64)
    if is_tokenized(reader):
        found = cast(TokenReader, reader).tokens(chunks, records, max_bytes)
        return [TOKEN.itemsize * length for length in found.lengths.tolist()]
    return [len(text.encode()) for text in reader.texts(chunks, records, max_bytes).texts]


def _places(counts: NDArray[np.integer[Any]], sample_key: int, wanted: int | None) -> Iterator[_Place]:
    """Yields the places of a counted dataset: all documents, or runs of them, one in each stratum."""
    total, done = int(counts.sum(dtype=np.int64)), 0
    if wanted is None or wanted >= total:
        for chunk, count in enumerate(counts.tolist()):
            done += count
            yield _Place(chunk, np.arange(count), done, total)
        return
    numbers = _spread(sample_key, total, wanted)
    ends = np.cumsum(counts, dtype=np.int64)
    chunks = np.searchsorted(ends, numbers, side="right")
    records = numbers - (ends - counts)[chunks]
    cuts = np.flatnonzero(np.diff(chunks)) + 1
    for part in np.split(np.arange(len(numbers)), cuts):
        done += len(part)
        yield _Place(int(chunks[part[0]]), records[part], done, wanted)


def _spread(sample_key: int, total: int, wanted: int) -> Int64:
    """Returns `wanted` < `total` numbers in [0, total), ascending: a run at a drawn place of each stratum."""
    run = min(MAX_RUN, max(1, wanted // PLACES))
    num_runs = -(-wanted // run)
    lengths, spare = (np.diff(np.arange(num_runs + 1) * n // num_runs) for n in (wanted, total - wanted))
    strata = np.cumsum(lengths + spare) - lengths - spare
    drawn = bits(sample_key, np.arange(num_runs)) % (spare + 1).astype(np.uint64)
    starts = strata + drawn.astype(np.int64)
    firsts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.asarray(np.repeat(starts, lengths) + np.arange(wanted) - firsts, np.int64)


def _stream_places(reader: StreamReader, sample_key: int, wanted: int | None) -> Iterator[_Place]:
    """Yields the places of a stream: all windows, or records of the first one of some files."""
    if wanted is None:
        for file in range(len(reader.files)):
            window, count = 0, WINDOW_RECORDS
            while count == WINDOW_RECORDS:
                count = reader.window_records(file, window)
                yield _Place(file << FILE_SHIFT | window, np.arange(count), file + 1, len(reader.files))
                window += 1
        return
    most = min(STREAM_FILES, wanted)
    files = sorted(permutation(sample_key, 0, len(reader.files))[:most].tolist())
    counts = np.array([reader.window_records(file, 0) for file in files], np.int64)
    for place in _places(counts, sample_key, wanted):
        yield place._replace(chunk=files[place.chunk] << FILE_SHIFT)


def _read(
    reader: RandomReader,
    chunk: int,
    records: Int64,
    columns: _Columns,
    encoder: Encoder | None,
    decode: Decode | None,
) -> Iterator[Seen]:
    rows = columns.rows(chunk, records)
    done = 0
    while done < len(records):
        left = records[done:]
        chunks = np.full(len(left), chunk, np.int64)
        if is_tokenized(reader):
            found = _read_tokens(cast(TokenReader, reader), chunks, left, encoder, decode)
        else:
            found = _read_texts(reader, chunks, left, encoder)
        for record, (text, num_bytes, num_tokens, fault) in zip(left.tolist(), found, strict=False):
            file, number = reader.where(chunk, record)
            yield Seen(
                file=file, record=number, text=text, num_bytes=num_bytes, num_tokens=num_tokens, fault=fault,
                columns=rows[done],
            )  # fmt: skip
            done += 1


_Document = tuple[str, int, int | None, Fault | None]


def _read_texts(
    reader: RandomReader, chunks: Int64, records: Int64, encoder: Encoder | None
) -> list[_Document]:
    found = reader.texts(chunks, records, MAX_BYTES)
    faults = dict(found.faults)
    lengths: list[int | None] = [None] * len(found.texts)
    if encoder is not None:
        counts = np.diff(encoder.encode(found.texts)[1]).tolist()
        lengths = [count if text else 0 for text, count in zip(found.texts, counts, strict=True)]
    return [(text, len(text.encode()), lengths[i], faults.get(i)) for i, text in enumerate(found.texts)]


def _read_tokens(
    reader: TokenReader, chunks: Int64, records: Int64, encoder: Encoder | None, decode: Decode | None
) -> list[_Document]:
    found = reader.tokens(chunks, records, MAX_BYTES)
    if encoder is not None:
        check_ids(found, encoder.vocab_size)
    faults, ends = dict(found.faults), np.cumsum(found.lengths)
    documents: list[_Document] = []
    for i, (end, length) in enumerate(zip(ends.tolist(), found.lengths.tolist(), strict=True)):
        text = "" if decode is None else decode(found.tokens[end - length : end].tolist())
        documents.append((text, 4 * length, length, faults.get(i)))
    return documents


class _Columns:
    """The dataset's other columns of the records looked at; remembers which were never come upon."""

    def __init__(self, dataset: Dataset, reader: RandomReader) -> None:
        self._dataset, self._reader = dataset, reader
        self._names = () if isinstance(reader, StreamReader) else dataset.columns
        self._unknown = set(self._names)
        self._num_documents = 0

    def rows(self, chunk: int, records: Int64) -> list[dict[str, Any]]:
        """Returns the values of some records of a chunk."""
        if not self._names or not len(records):
            return [{} for _ in records]
        table = values_of(self._dataset.name, self._reader, chunk, self._names)
        self._num_documents += len(table)
        self._unknown -= {name for name in self._unknown if not pa.types.is_null(table[name].type)}
        found: list[dict[str, Any]] = table.take(records).to_pylist()
        return found

    def refuse_unknown(self) -> None:
        """Raises `DataError` for a column that has no value anywhere in the chunks that were read."""
        if not self._unknown or not self._num_documents:
            return
        name = next(name for name in self._names if name in self._unknown)
        raise DataError.explained(
            f"dataset {self._dataset.name!r}: no column {name!r} was found",
            got=f"no value in any of {self._num_documents:,} documents",
            rule="`columns` names fields of the records, as the files spell them",
            cure="correct `columns`, or leave the column out",
        )


def quantiles(values: Sequence[int | float]) -> dict[str, int | float] | None:
    """Returns values that are met, by name: least, 5%, median, 95%, greatest; None of no values."""
    if not len(values):
        return None
    points = np.quantile(np.asarray(values), [0, 0.05, 0.5, 0.95, 1], method="lower").tolist()
    return dict(zip(("least", "p5", "median", "p95", "greatest"), points, strict=True))


def histogram(values: Sequence[int]) -> list[tuple[int, int, int]]:
    """Returns (first, last, how many) for each power of two from the least of `values` to the greatest.

    Half-open: a value v is in the bin with first <= v < last; 0 has a bin of its own.
    """
    if not len(values):
        return []
    powers = np.left_shift(np.int64(1), np.arange(62))
    numbers = np.bincount(np.searchsorted(powers, np.asarray(values), side="right"))
    first = int(np.flatnonzero(numbers)[0])
    return [(1 << n >> 1, max(1, 1 << n), number) for n, number in enumerate(numbers.tolist()) if n >= first]
