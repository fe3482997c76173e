"""Totals and ratios of a sample in two stages, with intervals: pure functions of arrays.

Upstream: what was counted of the documents of a `SampleDesign`. Downstream: `weighing.py`. Documents of one
chunk are like each other, so that the chunks, not the documents, are what the interval rests on. The total
is that of Horvitz and Thompson; its variance that of two stages (Saerndal, Swensson and Wretman 1992, result
4.3.1) with Hajek's approximation, which for chunks of one size is Cochran's (1 - k/K) s^2 / k; the degrees
of freedom are Satterthwaite's, k - 1 where chunks matter most. A ratio goes by its residuals t - r b
(Cochran 1977, section 6). Where neighbours are alike, systematic draws do better than that, and the interval
is wider than it needs to be; where a few chunks are unlike all others it is too narrow, and more chunks
help.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from zephon_curriculum.chance import generator
from zephon_curriculum.quantity import CONFIDENCE

RESAMPLES = 2000
ALIKE = 1e-12
"""Chunks that differ by no more than rounding, as parts of the greatest."""

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Documents of sampled chunks: of many of them the bytes are known, of some the tokens.

    The total of a chunk is `slope` for each byte of the documents looked at, and what those counted have
    besides, weighed by how likely they were: double sampling with a difference estimator (Saerndal, Swensson
    and Wretman 1992, chapter 9).
    """

    inclusion: Float64
    """(k,) the probability with which each chunk is sampled."""
    population: Int64
    """(k,) documents in each."""
    looked_at: Int64
    """(k,) documents of each of which the bytes are known, drawn with equal chances."""
    looked_bytes: Float64
    """(k,) their bytes together."""
    looked_variance: Float64
    """(k,) of the bytes of one of them."""
    counted: Int64
    """(k,) documents of each that were counted, at least one; columns hold them chunk by chunk."""
    chance: Float64
    """(d,) the probability with which each counted document is one, being looked at."""
    bytes: Float64
    """(d,) of each counted document."""

    @classmethod
    def joined(cls, samples: Sequence[Sample]) -> Sample:
        """Returns the sample of all their chunks, in order."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: np.concatenate([getattr(one, name) for one in samples]) for name in names})

    @property
    def is_census(self) -> bool:
        """Returns whether every document of the dataset was counted."""
        return bool((self.inclusion >= 1).all() and (self.counted == self.population).all())

    def expanded(self, values: Float64, slope: float = 0.0) -> Float64:
        """Returns what each chunk stands for in the total of a (d,) column: (k,)."""
        looked = slope * self.looked_bytes + self._sums((values - slope * self.bytes) / self.chance)
        return np.asarray(self.population / self.looked_at * looked / self.inclusion, np.float64)

    def within(self, values: Float64, slope: float) -> tuple[Float64, Float64]:
        """Returns the variance that sampling inside each chunk adds to the total, (k,), and its freedom."""
        rests = values - slope * self.bytes
        parts, others = rests / self.chance, 1 - self.chance
        drawn = self._sums((others > 0).astype(np.float64))
        centers = self._sums(others * parts) / np.maximum(self._sums(others), 1e-300)
        squares = self._sums(others * (parts - np.repeat(centers, self.counted)) ** 2)
        counted = (self.population / self.looked_at) ** 2 * drawn / np.maximum(drawn - 1, 1) * squares
        means = self._means(rests)
        one = slope**2 * self.looked_variance + self._means((rests - np.repeat(means, self.counted)) ** 2)
        looked = self.population**2.0 * (1 / self.looked_at - 1 / self.population) * one
        return np.asarray((counted + looked) / self.inclusion, np.float64), np.maximum(self.counted - 1.0, 0)

    def _sums(self, values: Float64) -> Float64:
        return np.asarray(np.add.reduceat(values, np.cumsum(self.counted) - self.counted), np.float64)

    def _means(self, values: Float64) -> Float64:
        """Returns the mean of the documents looked at, by those counted."""
        return np.asarray(self._sums(values / self.chance) / self._sums(1 / self.chance), np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How far a total may be from the truth."""

    variance: float
    freedom: float
    """Degrees of freedom of `variance`; infinite where it is 0."""


def spread(sample: Sample, values: Float64, slope: float = 0.0) -> Spread | None:
    """Returns the spread of the total of `values`; None where one chunk stands for others: nobody knows."""
    drawn = sample.inclusion < 1
    parts, freedoms = sample.within(values, slope)
    between, between_freedom = 0.0, math.inf
    if drawn.any():
        number = int(drawn.sum())
        if number < 2:
            return None
        expanded, chance = sample.expanded(values, slope)[drawn], sample.inclusion[drawn]
        center = float(((1 - chance) * expanded).sum() / (1 - chance).sum())
        squares = number / (number - 1) * (expanded - center) ** 2
        between, between_freedom = float(((1 - chance) * squares).sum()), number - 1.0
    variance = between + float(parts.sum())
    if variance <= 0:
        return Spread(variance=0.0, freedom=math.inf)
    below = (between / variance) ** 2 / between_freedom
    counted = freedoms > 0
    below += float((((parts / variance) ** 2)[counted] / freedoms[counted]).sum())
    return Spread(variance=variance, freedom=1 / below if below else math.inf)


def rate_spread(sample: Sample, tokens: Float64, slope: float) -> tuple[float, Spread | None]:
    """Returns the tokens per byte and their spread; `slope` is that with which the total is made."""
    total = float(sample.expanded(sample.bytes, 1.0).sum())
    rate = float(sample.expanded(tokens, slope).sum()) / total
    found = spread(sample, tokens - rate * sample.bytes)
    return rate, found and Spread(variance=found.variance / total**2, freedom=found.freedom)


def half_width(found: Spread) -> float:
    """Returns how far the t interval reaches to each side."""
    if found.variance <= 0:
        return 0.0
    from scipy import stats

    law = stats.norm if math.isinf(found.freedom) else stats.t(found.freedom)
    return float(law.ppf(0.5 + CONFIDENCE / 2)) * math.sqrt(found.variance)


def bootstrap(
    sample: Sample, top: Float64, bottom: Float64 | None, *, stream: str
) -> tuple[float, float] | None:
    """Returns the bootstrap interval (BCa) of the sum of `top`, or of its ratio to that of `bottom`.

    Both are (k,), what each chunk stands for. Chunks are drawn again, so at least two must have been drawn,
    all of them by chance: else None. Brought nearer by sqrt(1 - k/K), as no chunk is sampled twice. `stream`
    names the random numbers.
    """
    from scipy import stats

    if len(sample.inclusion) < 2 or (sample.inclusion >= 1).any():
        return None
    columns = [top] if bottom is None else [top, bottom]

    def statistic(*parts: Float64, axis: int = -1) -> Float64:
        means = [part.mean(axis=axis) for part in parts]
        return np.asarray(means[0] * len(sample.inclusion) if bottom is None else means[0] / means[1])

    value = float(statistic(*columns))
    rests = top - (value / len(top) if bottom is None else value * bottom)
    if np.abs(rests).max() <= ALIKE * np.abs(top).max():  # whichever are drawn
        return value, value
    found = stats.bootstrap(
        columns, statistic, n_resamples=RESAMPLES, vectorized=True, paired=True, method="BCa",
        confidence_level=CONFIDENCE, rng=generator(stream),
    ).confidence_interval  # fmt: skip
    nearer = math.sqrt(1 - float(sample.inclusion.mean()))
    return max(0.0, value - (value - float(found.low)) * nearer), value + (float(found.high) - value) * nearer
