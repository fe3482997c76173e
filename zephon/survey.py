"""What a dataset looks like: files, sizes, lengths, columns, and some documents to read.

Upstream: an opened dataset. Downstream: `zephon data`. The documents looked at are chosen by the seed and the
dataset's name, so two looks at one recipe see the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from zephon.bits import bits, key, permutation
from zephon.dataset import Dataset
from zephon.errors import Fault
from zephon.readers import RandomReader, Report, TokenReader, is_tokenized
from zephon.selection import values_of
from zephon.stream_order import FILE_SHIFT
from zephon.streaming import StreamReader
from zephon.tokenizer import Encoder

VISIT_DOCUMENTS = 16
"""Documents looked at in one chunk, where there are more chunks than that asks for."""
MAX_BYTES = 256 << 20
"""What is read of one chunk at most."""
STREAM_FILES = 16
"""Files of a stream of which the first window is looked at."""

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One document that was looked at."""

    file: str
    record: int
    text: str
    """Empty where faulty; of a tokenized dataset what its ids stand for."""
    num_bytes: int
    """UTF-8 of the text, or 4 a token id."""
    num_tokens: int | None
    """None without a tokenizer; BOS and EOS count where the recipe adds them."""
    fault: Fault | None
    columns: dict[str, Any]


@dataclass(slots=True)
class Survey:
    """What was found of one dataset."""

    name: str
    num_seen: int = 0
    bytes: list[int] = field(default_factory=list)
    """One per document without a fault."""
    tokens: list[int] = field(default_factory=list)
    """One per document without a fault; empty without a tokenizer."""
    faults: Counter[str] = field(default_factory=Counter)
    num_empty: int = 0
    columns: dict[str, Counter[str]] = field(default_factory=dict)
    """By column, how often each value was seen."""

    def add(self, seen: Seen) -> None:
        """Counts a document."""
        self.num_seen += 1
        for name, value in seen.columns.items():
            self.columns.setdefault(name, Counter())[str(value)] += 1
        if seen.fault is not None:
            self.faults[seen.fault.kind] += 1
            return
        self.num_empty += not seen.num_bytes
        self.bytes.append(seen.num_bytes)
        if seen.num_tokens is not None:
            self.tokens.append(seen.num_tokens)


def look(
    dataset: Dataset,
    reader: RandomReader,
    *,
    seed: int,
    num_documents: int | None,
    encoder: Encoder | None = None,
    decode: Callable[[Sequence[int]], str] | None = None,
    report: Report | None = None,
) -> Iterator[Seen]:
    """Yields documents of `reader`, chunk by chunk: `num_documents` spread over it, or all for None.

    `encoder` counts tokens, `decode` shows what token ids stand for. Of a stream only the first windows of
    some files are looked at. `report` gets documents for progress.
    """
    places = list(_places(reader, key("survey", seed, dataset.name), num_documents))
    total, done = sum(len(records) for _, records in places), 0
    for chunk, records in places:
        seen = _read(dataset, reader, chunk, records, encoder, decode)
        done += len(records)
        if report is not None:
            report(f"look at {dataset.name}", done, total)
        yield from seen


def _places(reader: RandomReader, sample_key: int, num_documents: int | None) -> Iterator[tuple[int, Int64]]:
    """Yields (chunk, its records to look at, ascending), the chunks in their order."""
    if isinstance(reader, StreamReader):
        files = permutation(sample_key, 0, len(reader.files))[:STREAM_FILES].tolist()
        chunks = [file << FILE_SHIFT for file in sorted(files)]
        counts = [reader.window_records(file, 0) for file in sorted(files)]
    else:
        counts = reader.chunks().num_documents.tolist()
        chunks = list(range(len(counts)))
    if num_documents is None:
        for chunk, count in zip(chunks, counts, strict=True):
            yield chunk, np.arange(count)
        return
    most = max(1, -(-num_documents // VISIT_DOCUMENTS))
    picked = sorted(permutation(sample_key, 1, len(chunks))[:most].tolist())
    left = num_documents
    for number, index in enumerate(picked):
        wanted = -(-left // (len(picked) - number))
        records = _some(key("survey records", sample_key, chunks[index]), counts[index], wanted)
        left -= len(records)
        yield chunks[index], records


def _some(sample_key: int, count: int, wanted: int) -> Int64:
    """Returns `wanted` of `count` records, or all where there are no more, ascending."""
    if count <= wanted:
        return np.arange(count)
    order = np.argsort(bits(sample_key, np.arange(count)), kind="stable")
    return np.sort(order[:wanted])


def _read(
    dataset: Dataset,
    reader: RandomReader,
    chunk: int,
    records: Int64,
    encoder: Encoder | None,
    decode: Callable[[Sequence[int]], str] | None,
) -> list[Seen]:
    chunks = np.full(len(records), chunk, np.int64)
    lengths: list[int] | None = None
    if not len(records):
        return []
    if is_tokenized(reader):
        found = cast(TokenReader, reader).tokens(chunks, records, MAX_BYTES)
        lengths = found.lengths.tolist()
        parts = np.split(found.tokens, np.cumsum(found.lengths)[:-1])
        texts = [decode(part.tolist()) if decode else "" for part in parts]
        sizes = [4 * length for length in lengths]
        faults = dict(found.faults)
    else:
        read = reader.texts(chunks, records, MAX_BYTES)
        texts, faults = read.texts, dict(read.faults)
        sizes = [len(text.encode()) for text in texts]
        if encoder is not None:
            lengths = np.diff(encoder.encode(texts)[1]).tolist()
    rows = _columns(dataset, reader, chunk, records[: len(texts)])
    return [
        Seen(
            file=reader.where(chunk, record)[0],
            record=reader.where(chunk, record)[1],
            text=text,
            num_bytes=size,
            num_tokens=None if lengths is None else lengths[i],
            fault=faults.get(i),
            columns=rows[i],
        )
        for i, (record, text, size) in enumerate(zip(records.tolist(), texts, sizes, strict=False))
    ]


def _columns(dataset: Dataset, reader: RandomReader, chunk: int, records: Int64) -> list[dict[str, Any]]:
    """Returns the dataset's other columns of some records of a chunk."""
    if not dataset.columns or isinstance(reader, StreamReader):
        return [{} for _ in records]
    table = values_of(dataset.name, reader, chunk, dataset.columns).take(records)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def histogram(values: Sequence[int]) -> list[tuple[int, int, int]]:
    """Returns (first, last, how many) for each power of two from the least of `values` to the greatest.

    Half-open: a value v is in the bin with first <= v < last; 0 has a bin of its own.
    """
    numbers = Counter(int(value).bit_length() for value in values)
    if not numbers:
        return []
    span = range(min(numbers), max(numbers) + 1)
    return [(1 << n >> 1, max(1, 1 << n), numbers.get(n, 0)) for n in span]
