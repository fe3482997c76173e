"""The documents of a dataset that may be drawn, and the tokens of some of them, counted as a run counts.

Upstream: an opened recipe and `sampling.py`. Downstream: `measure.py`. As in a run BOS and EOS count, an
empty or faulty document has no tokens, `where`, `limit` and `holdout` leave out what they leave out, and the
packing's `overlong` truncates or drops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon import DataError, Fault, Opened, Texts, Tokens
from zephon_curriculum.estimation.intervals import Sample
from zephon_curriculum.estimation.sampling import (
    LEAST_DOCUMENTS,
    LOOKED_AT,
    SampleDesign,
    choose,
    draw,
    draw_documents,
)
from zephon_curriculum.figures import Report

NUM_THREADS = 4
READ_BYTES = 32 << 20
"""Texts held by a thread at once, about."""
TOKEN_BYTES = 4
EXACT_KINDS = ("flat", "megatron")
"""Files of token ids, of which the weight of a chunk is 4 bytes for each of its tokens."""
STREAM_MEAN_BYTES = 4096
"""What a document of a stream is taken to have, as nobody counted any."""
_FILE_SHIFT = 32

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What may be drawn of a dataset."""

    index: int
    """The dataset's number in the recipe."""
    name: str
    chunks: Int64
    """(C,) numbers of the chunks with documents that may be drawn; files, of a stream."""
    counts: Int64
    """(C,) such documents in each; 1 for each file of a stream."""
    sizes: Int64
    """(C,) bytes: how likely a chunk is sampled."""
    held: Int64
    """(h,) documents held out, ascending, numbered through all chunks."""
    firsts: Int64
    """(all chunks,) documents ahead of each."""
    is_stream: bool

    @property
    def num_documents(self) -> int | None:
        """Returns how many may be drawn; None where nobody counted."""
        return None if self.is_stream else int(self.counts.sum(dtype=np.int64))


def frame_of(opened: Opened, index: int) -> Frame:
    """Returns what may be drawn of a dataset; reads nothing."""
    dataset, found = opened.recipe.datasets[index], opened.readers[index].chunks()
    counts, sizes = (np.asarray(c).astype(np.int64) for c in (found.num_documents, found.num_bytes))
    firsts = np.cumsum(counts) - counts
    held_out = opened.held_out[index] if opened.held_out else None
    is_train = dataset.held_out is not None and dataset.held_out.part == "train"
    held = held_out.documents if held_out is not None and is_train else np.empty(0, np.int64)
    away = np.bincount(np.searchsorted(firsts, held, side="right") - 1, minlength=len(counts))
    kept = np.flatnonzero(counts > away)
    left = counts[kept] - away[kept]
    weighed = (sizes[kept] * (left / counts[kept])).astype(np.int64)
    return Frame(
        index=index, name=dataset.name, chunks=kept, counts=left, sizes=weighed, held=held, firsts=firsts,
        is_stream=dataset.stream,
    )  # fmt: skip


def exact_tokens(opened: Opened, frame: Frame) -> int | None:
    """Returns the tokens of an epoch, where the files' own tables say them; None where they do not."""
    dataset = opened.recipe.datasets[frame.index]
    is_part = dataset.where or dataset.limit or dataset.held_out or frame.is_stream
    if is_part or opened.packer.length.overlong in ("truncate", "drop"):
        return None
    kind = opened.readers[frame.index].identity().get("kind")
    if kind not in EXACT_KINDS or (frame.sizes % TOKEN_BYTES).any():
        return None
    return int(frame.sizes.sum(dtype=np.int64)) // TOKEN_BYTES


def design_of(frame: Frame, *, chunks: int, sample_bytes: int, stream: str) -> SampleDesign:
    """Returns which documents are to be counted; of a stream, which files are looked at."""
    if not frame.is_stream:
        return draw(frame.counts, frame.sizes, chunks=chunks, max_bytes=sample_bytes, stream=stream)
    design = draw(frame.counts, frame.sizes, chunks=chunks, max_bytes=0, stream=stream)
    each = np.full(len(design.chunks), sample_bytes // len(design.chunks))
    looked_at = (each // STREAM_MEAN_BYTES + LEAST_DOCUMENTS) * LOOKED_AT
    return replace(design, looked_at=looked_at, counted_bytes=each)


def text_bytes(frame: Frame, design: SampleDesign, *, encodes: bool = True) -> tuple[int, int]:
    """Returns how many bytes of text a design looks at, and tokenizes, about; reads nothing."""
    sizes = frame.sizes[design.chunks] / frame.counts[design.chunks]
    if frame.is_stream:
        sizes = np.full(len(design.chunks), float(STREAM_MEAN_BYTES))
    looked = sizes * design.looked_at
    return int(looked.sum()), int(np.minimum(looked, design.counted_bytes).sum()) if encodes else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What was found of the documents of a design, chunk by chunk."""

    sample: Sample
    """With the bytes of each document, UTF-8 or 4 a token id."""
    tokens: NDArray[np.float64]
    """(d,) of each counted document."""
    faulty: int
    """Of the documents looked at."""


def count(
    opened: Opened,
    frame: Frame,
    design: SampleDesign,
    *,
    stream: str,
    encodes: bool = True,
    report: Report | None = None,
) -> Counted:
    """Returns the lengths of the documents of a design; with `encodes` false the tokens of texts are 0."""
    counter = _Counter(opened, frame, stream, encodes)
    columns = (design.chunks, design.inclusion, design.looked_at, design.counted_bytes)
    parts: list[Counted | None] = []
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        for part in pool.map(counter, *(column.tolist() for column in columns)):
            parts.append(part)
            if report is not None:
                report(f"estimate {frame.name}", len(parts), len(design.chunks))
    found = [part for part in parts if part is not None]
    if not found:
        raise DataError.explained(
            f"dataset {frame.name!r}: no document was found",
            got="none in any file that was looked at",
            rule="a dataset holds at least one document",
            cure="take the dataset out of the recipe",
        )
    return Counted(
        sample=Sample.joined([part.sample for part in found]),
        tokens=np.concatenate([part.tokens for part in found]),
        faulty=sum(part.faulty for part in found),
    )


@dataclass(frozen=True, slots=True)
class _Counter:
    """Counts documents of one chunk at a time; thread-safe, as reader and encoder are."""

    opened: Opened
    frame: Frame
    stream: str
    encodes: bool

    def __call__(self, place: int, inclusion: float, looked_at: int, counted_bytes: int) -> Counted | None:
        """Returns what is found of the chunk at a place of the frame: bytes of some, tokens of fewer.

        None of a file of a stream that holds nothing.
        """
        chunk, population, records = self._records(place, looked_at)
        if not len(records):
            return None
        num_bytes, tokens, faulty = self._read(chunk, records, encodes=False)
        counted, chance = np.arange(len(records)), np.ones(len(records))
        if self.encodes and not is_tokenized(self.opened, self.frame.index):
            name = f"{self.stream} {chunk} counted"
            counted, chance = draw_documents(num_bytes, counted_bytes, name)
            _, tokens, _ = self._read(chunk, records[counted], encodes=True)
        sample = Sample(
            inclusion=np.array([inclusion]),
            population=np.array([population]),
            looked_at=np.array([len(records)]),
            looked_bytes=np.array([float(num_bytes.sum())]),
            looked_variance=np.array([float(num_bytes.var(ddof=1)) if len(records) > 1 else 0.0]),
            counted=np.array([len(counted)]),
            chance=chance,
            bytes=num_bytes[counted].astype(np.float64),
        )
        return Counted(sample=sample, tokens=as_packed(self.opened, tokens).astype(np.float64), faulty=faulty)

    def _records(self, place: int, wanted: int) -> tuple[int, int, Int64]:
        """Returns the reader's chunk, how many documents may be drawn of it and those that are counted."""
        frame = self.frame
        chunk = int(frame.chunks[place])
        if frame.is_stream:
            reader: Any = self.opened.readers[frame.index]
            chunk, population = chunk << _FILE_SHIFT, int(reader.window_records(chunk, 0))
            return chunk, population, choose(population, wanted, f"{self.stream} {chunk}")
        population = int(frame.counts[place])
        records = choose(population, wanted, f"{self.stream} {chunk}")
        bounds = np.append(frame.firsts[chunk : chunk + 2], np.iinfo(np.int64).max)[:2]
        low, high = np.searchsorted(frame.held, bounds)
        away = frame.held[low:high] - frame.firsts[chunk]
        for gone in away.tolist():  # ascending: each moves those from it on by one
            records = records + (records >= gone)
        return chunk, population, records

    def _read(self, chunk: int, records: Int64, *, encodes: bool) -> tuple[Int64, Int64, int]:
        """Returns bytes and tokens of documents, and how many of them are faulty."""
        chunks, none = np.full(len(records), chunk, np.int64), np.empty(0, np.int64)
        parts = list(read_lengths(self.opened, self.frame.index, chunks, records, encodes=encodes))
        sizes = np.concatenate([none, *(part.num_bytes for part in parts)])
        tokens = np.concatenate([none, *(part.tokens for part in parts)])
        return sizes, tokens, sum(len(part.faults) for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentLengths:
    """Documents that were read in one go."""

    num_bytes: Int64
    """(n,) UTF-8 of each, or 4 for a token id."""
    tokens: Int64
    """(n,) of each, BOS and EOS too; 0 of one that is empty or faulty, or was not tokenized."""
    faults: Mapping[int, Fault]
    """By place among them."""


def read_lengths(
    opened: Opened, index: int, chunk: Int64, record: Int64, *, encodes: bool = True
) -> Iterator[DocumentLengths]:
    """Yields the lengths of documents of a dataset, in order, READ_BYTES of text at a time.

    With `encodes` false texts are not tokenized.
    """
    reader: Any = opened.readers[index]
    encoder, done = opened.encoder, 0
    while done < len(record):
        faults: Mapping[int, Fault]
        if is_tokenized(opened, index):
            ids: Tokens = reader.tokens(chunk[done:], record[done:], READ_BYTES)
            faults = dict(ids.faults) | _unknown_ids(ids, encoder.vocab_size)
            tokens = ids.lengths.astype(np.int64)
            tokens[list(faults)] = 0
            num_bytes = tokens * TOKEN_BYTES
        else:
            found: Texts = reader.texts(chunk[done:], record[done:], READ_BYTES)
            faults = dict(found.faults)
            num_bytes = np.array([len(text.encode()) for text in found.texts], np.int64)
            tokens = np.zeros(len(num_bytes), np.int64)
            if encodes:
                lengths = np.diff(encoder.encode(found.texts)[1])
                tokens = np.where(lengths > encoder.num_special, lengths, 0)
                tokens[list(faults)] = 0
        done += len(tokens)
        yield DocumentLengths(num_bytes=num_bytes, tokens=tokens, faults=faults)


def _unknown_ids(found: Tokens, vocab_size: int) -> dict[int, Fault]:
    """Returns the faults of documents with ids that the tokenizer lacks."""
    ids = found.tokens
    wrong = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    places = np.searchsorted(np.cumsum(found.lengths), wrong, side="right")
    documents, firsts = np.unique(places, return_index=True)
    rule = f"token ids are in [0, {vocab_size}), as the tokenizer has so many"
    return {
        document: Fault("not_tokens", f"the id {ids[wrong[first]]}", rule)
        for document, first in zip(documents.tolist(), firsts.tolist(), strict=True)
    }


def as_packed(opened: Opened, lengths: Int64) -> Int64:
    """Returns the tokens that are drawn of documents: `overlong` truncates or drops the longest."""
    rule = opened.packer.length
    if rule.overlong == "truncate":
        return np.minimum(lengths, rule.max_tokens)
    return np.where(lengths > rule.max_tokens, 0, lengths) if rule.overlong == "drop" else lengths


def is_tokenized(opened: Opened, index: int) -> bool:
    """Returns whether a dataset is of token ids."""
    return bool(getattr(opened.readers[index], "is_tokenized", False))
