"""From what was counted of a dataset, or is known or said of it, to its estimate.

Upstream: `counting.py` and the user's `Pinned` values. Downstream: `measure.py`. Where no interval can be
given the estimate says why, and what would help; it never shows one that means nothing.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np

from zephon_curriculum.estimation.counting import Counted, Frame
from zephon_curriculum.estimation.estimates import CENSUS, COUNTED, PINNED, SAMPLED, DatasetEstimate
from zephon_curriculum.estimation.intervals import (
    Float64,
    Sample,
    Spread,
    bootstrap,
    half_width,
    rate_spread,
    spread,
)
from zephon_curriculum.quantity import Quantity

_ENOUGH_CHUNKS = 32
_STREAM_REASON = (
    "the records of a stream are not counted, and only the first of some files are looked at; "
    "leave out `stream` to count them, or pin the tokens"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """What the user says of a dataset in place of a measurement: exactly one of these."""

    tokens: float | None = None
    """In an epoch."""
    tokens_per_document: float | None = None
    """With BOS and EOS, empty documents as 0."""
    tokens_per_byte: float | None = None
    """Of UTF-8; the bytes are still sampled, the tokenizer is not asked."""

    def __post_init__(self) -> None:
        given = [value for value in self.values().values() if value is not None]
        if len(given) != 1 or not 0 < given[0] < math.inf:
            raise ValueError(
                "a pinned dataset must have one of `tokens`, `tokens_per_document` and `tokens_per_byte`, "
                f"finite and > 0, got {self.values()}"
            )

    def values(self) -> dict[str, float | None]:
        """Returns the fields."""
        return asdict(self)


def from_pinned(frame: Frame, says: Pinned) -> DatasetEstimate:
    """Returns what the user says of tokens in all, or of each document."""
    documents, each, total = frame.num_documents, says.tokens_per_document, says.tokens
    if documents and total is not None:
        each = total / documents
    if documents and each is not None and total is None:
        total = each * documents
    return DatasetEstimate(
        name=frame.name,
        how=PINNED,
        documents=documents,
        bytes=None,
        tokens_per_byte=None,
        tokens_per_document=None if each is None else Quantity.exactly(each),
        tokens=None if total is None else Quantity.exactly(total),
        num_chunks=None if frame.is_stream else len(frame.chunks),
        note="pinned by the user",
    )


def from_tables(frame: Frame, tokens: int) -> DatasetEstimate:
    """Returns what the tables of files of token ids say."""
    return DatasetEstimate(
        name=frame.name,
        how=COUNTED,
        documents=frame.num_documents,
        bytes=Quantity.exactly(float(frame.sizes.sum(dtype=np.int64))),
        tokens_per_byte=Quantity.exactly(tokens / max(1, int(frame.sizes.sum(dtype=np.int64)))),
        tokens_per_document=Quantity.exactly(tokens / int(frame.counts.sum(dtype=np.int64))),
        tokens=Quantity.exactly(float(tokens)),
        num_chunks=len(frame.chunks),
        note="from the files' own tables; ids that the tokenizer lacks are not looked for",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Weigher:
    """Makes the estimate of a dataset of what was counted of it."""

    frame: Frame
    counted: Counted
    bootstrap: str
    """The name of its random numbers; empty: intervals by Student's t."""

    def estimate(self, rate: float | None = None) -> DatasetEstimate:
        """Returns the estimate; `rate` are the tokens per byte, where the user says them."""
        frame, counted, sample = self.frame, self.counted, self.counted.sample
        tokens = counted.tokens if rate is None else sample.bytes * rate
        slope = _slope(sample, tokens)
        total = self._total(tokens, slope)
        is_census = sample.is_census and not frame.is_stream
        return DatasetEstimate(
            name=frame.name,
            how=(CENSUS if is_census else SAMPLED) if rate is None else PINNED,
            documents=frame.num_documents,
            bytes=None if frame.is_stream else self._total(sample.bytes, 1.0),
            tokens_per_byte=self._rate(slope) if rate is None else Quantity.exactly(rate),
            tokens_per_document=self._per_document(tokens, total),
            tokens=None if frame.is_stream else total,
            num_chunks=None if frame.is_stream else len(frame.chunks),
            sampled_chunks=len(sample.counted),
            sampled_documents=len(tokens),
            sampled_bytes=int(sample.bytes.sum()),
            empty=int((tokens == 0).sum()),
            faulty=counted.faulty,
            note=self._note(rate),
        )

    def _total(self, values: Float64, slope: float) -> Quantity:
        sample = self.counted.sample
        found, expanded = spread(sample, values, slope), sample.expanded(values, slope)
        return self._quantity(float(expanded.sum()), found, expanded, None)

    def _rate(self, slope: float) -> Quantity | None:
        """Returns the tokens per byte; None of a dataset without text."""
        sample, tokens = self.counted.sample, self.counted.tokens
        if not sample.looked_bytes.any():
            return None
        value, found = rate_spread(sample, tokens, slope)
        return self._quantity(
            value, found, sample.expanded(tokens, slope), sample.expanded(sample.bytes, 1.0)
        )

    def _per_document(self, tokens: Float64, total: Quantity) -> Quantity:
        if self.frame.num_documents:
            return total.over(self.frame.num_documents)
        sample = self.counted.sample
        documents = float(sample.expanded(np.ones(len(tokens))).sum())
        return Quantity(value=float(sample.expanded(tokens).sum()) / documents, reason=_STREAM_REASON)

    def _quantity(self, value: float, found: Spread | None, top: Float64, bottom: Float64 | None) -> Quantity:
        """Returns a value with its interval; `top` and `bottom` are what the chunks stand for in it."""
        sample = self.counted.sample
        if self.frame.is_stream:
            return Quantity(value=value, reason=_STREAM_REASON)
        if sample.is_census:
            return Quantity.exactly(value)
        if found is None:
            return Quantity(value=value, reason=self._too_few())
        half, ends = half_width(found), None
        if self.bootstrap:
            ends = bootstrap(sample, top, bottom, stream=self.bootstrap)
        low, high = ends or (max(0.0, value - half), value + half)
        freedom = None if math.isinf(found.freedom) else found.freedom
        return Quantity(
            value=value, low=low, high=high, std_error=math.sqrt(found.variance), freedom=freedom
        )  # fmt: skip

    def _too_few(self) -> str:
        drawn = int((self.counted.sample.inclusion < 1).sum())
        others = len(self.frame.chunks) - len(self.counted.sample.inclusion) + drawn
        return (
            f"{drawn} of {others} chunks was drawn, and one does not tell how chunks differ; "
            f"sample at least 2 by `chunks`, better {_ENOUGH_CHUNKS}"
        )

    def _note(self, rate: float | None) -> str:
        sample, notes = self.counted.sample, []
        if rate is not None:
            notes.append("tokens per byte pinned by the user")
        if self.frame.is_stream:
            notes.append(_STREAM_REASON)
        elif self.bootstrap and not sample.is_census:
            serves = len(sample.inclusion) >= 2 and not (sample.inclusion >= 1).any()
            notes.append(
                "intervals by the bootstrap over chunks (BCa)"
                if serves
                else "intervals by Student's t: the bootstrap needs at least 2 chunks, all drawn by chance"
            )
        return "; ".join(notes)


def _slope(sample: Sample, tokens: Float64) -> float:
    """Returns the tokens per byte of the counted documents, by which totals are set right; 0 for a census."""
    size = float(sample.expanded(sample.bytes).sum())
    return float(sample.expanded(tokens).sum()) / size if size and not sample.is_census else 0.0
