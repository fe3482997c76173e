"""Which chunks and documents a look at a dataset reads: two stages, drawn by chance that a name decides.

Upstream: the counts and sizes of an opened dataset's chunks. Downstream: `counting.py`, which reads what is
chosen here, and `intervals.py`, which weighs it. Chunks are drawn without replacement, with probability in
proportion to size, systematically in file order, so that they are spread over the whole dataset (Saerndal,
Swensson and Wretman 1992, section 3.6). Of each a fixed number of documents is looked at, drawn at random,
and some of these are tokenized, drawn in proportion to their bytes in the same way, as a few long documents
hold most of many texts. Numbers are fixed beforehand: to read on until so many tokens are found would favour
what comes last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zephon_curriculum.chance import philox

LEAST_DOCUMENTS = 4
"""Documents tokenized of a chunk at least, where it has so many: a spread of two is hardly one."""
LOOKED_AT = 32
"""So many times the text that is tokenized is looked at for its bytes, which costs little."""
SPECIAL_BYTES = 8
"""Counted to the bytes of each document, so that empty ones and those of a BOS and EOS have a chance, too."""
_MOST = 1 << 62

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDesign:
    """What is read of a dataset, and how likely it was."""

    chunks: Int64
    """(k,) the chunks that are read, ascending."""
    inclusion: Float64
    """(k,) the probability with which each is; 1 where every such draw has it."""
    looked_at: Int64
    """(k,) of how many documents of each the bytes are found."""
    counted_bytes: Int64
    """(k,) how much of their text is tokenized, about."""


def draw(counts: Int64, sizes: Int64, *, chunks: int, max_bytes: int, stream: str) -> SampleDesign:
    """Returns the design for a dataset whose chunks have `counts` documents, all >= 1, and `sizes` bytes.

    About `max_bytes` are counted, of at most about `chunks` chunks; everything where there is no more.
    `stream` names the random numbers: the same name draws the same.
    """
    sizes = np.maximum(sizes.astype(np.int64), 1)
    if int(sizes.sum(dtype=np.float64)) <= max_bytes:
        every = np.arange(len(counts))
        most = np.full(len(counts), _MOST)
        return SampleDesign(
            chunks=every, inclusion=np.ones(len(counts)), looked_at=counts, counted_bytes=most
        )
    inclusion = inclusions(sizes, chunks)
    chosen = systematic(sizes, inclusion, stream)
    weighed = sizes[chosen] / inclusion[chosen]
    wanted = max_bytes * weighed / weighed.sum()
    numbers = np.maximum(np.ceil(wanted / (sizes[chosen] / counts[chosen])), LEAST_DOCUMENTS) * LOOKED_AT
    return SampleDesign(
        chunks=chosen,
        inclusion=inclusion[chosen],
        looked_at=np.minimum(numbers.astype(np.int64), counts[chosen]),
        counted_bytes=np.ceil(wanted).astype(np.int64),
    )


def draw_documents(num_bytes: Int64, counted_bytes: int, stream: str) -> tuple[Int64, Float64]:
    """Returns which documents looked at, of `num_bytes` each, are tokenized, and how likely each was.

    About `counted_bytes` of text, and LEAST_DOCUMENTS at least; all where that is more than there is.
    """
    sizes = num_bytes + SPECIAL_BYTES
    total = float(sizes.sum())
    if total <= counted_bytes or len(sizes) <= LEAST_DOCUMENTS:
        return np.arange(len(sizes)), np.ones(len(sizes))
    each = float((sizes.astype(np.float64) ** 2).sum()) / total  # of one drawn by its size
    inclusion = inclusions(sizes, max(LEAST_DOCUMENTS, round(counted_bytes / each)))
    chosen = systematic(sizes, inclusion, stream)
    return chosen, inclusion[chosen]


def inclusions(sizes: Int64, chunks: int) -> Float64:
    """Returns the probability with which each chunk is in a sample of about `chunks` of them: (C,).

    In proportion to size; what is too large for that is in every sample. Where that leaves fewer than two
    to draw, two are, with equal chances, as one tells nothing of a spread; with `chunks` = 1 there is one.
    """
    certain = np.zeros(len(sizes), np.bool_)
    if chunks >= len(sizes):
        return np.ones(len(sizes))
    while True:
        wanted, left = chunks - int(certain.sum()), int((~certain).sum())
        if wanted < min(2, chunks):
            return np.where(certain, 1.0, min(2, left) / left)
        total = int(sizes[~certain].sum(dtype=np.int64))
        found = ~certain & (sizes * float(wanted) >= total)
        if not found.any():
            return np.where(certain, 1.0, sizes * (wanted / total))
        certain |= found


def systematic(sizes: Int64, inclusion: Float64, stream: str) -> Int64:
    """Returns what is certain, and what lies at evenly spaced places along the rest, ascending."""
    others = np.flatnonzero(inclusion < 1)
    certain = np.flatnonzero(inclusion >= 1)
    if not len(others):
        return certain
    number = round(float(inclusion[others].sum()))
    lengths = sizes[others] if np.ptp(inclusion[others]) else np.ones(len(others), np.int64)
    while int(lengths.sum(dtype=np.float64)) * number >= _MOST:
        lengths = np.maximum(lengths >> 1, 1)
    ends = np.cumsum(lengths, dtype=np.int64) * number  # place j, of `number`, lies at start + j * total
    total = int(ends[-1]) // number
    start = int(_words(stream, 1)[0]) % total
    places = start + np.arange(number, dtype=np.int64) * total
    return np.sort(np.append(certain, others[np.searchsorted(ends, places, side="right")]))


def choose(num_documents: int, wanted: int, stream: str) -> Int64:
    """Returns `wanted` of the numbers [0, num_documents), ascending, every set of them equally likely."""
    if wanted >= num_documents:
        return np.arange(num_documents, dtype=np.int64)
    return np.sort(np.argpartition(_words(stream, num_documents), wanted)[:wanted]).astype(np.int64)


def _words(stream: str, count: int) -> NDArray[np.uint64]:
    """Returns `count` random words of 64 bits; numpy promises that they stay the same in all versions."""
    return np.asarray(philox(stream).random_raw(count), np.uint64)
