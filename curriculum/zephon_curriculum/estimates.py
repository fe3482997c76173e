"""What is known of the lengths of datasets: values with intervals, or with the reason why there is none.

Upstream: `estimate.py` measures them, or a file holds them. Downstream: the plan, previews and the command
line. Everything here is data and arithmetic; nothing is read but the file that is asked for.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from zephon_curriculum.statistics import CONFIDENCE, Spread, half_width

FORMAT = 1
COUNTED, CENSUS, SAMPLED, PINNED = "counted", "census", "sampled", "pinned"
"""Known from the files' own tables; every document tokenized; some of them; said by the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A number that is known, or estimated."""

    value: float
    low: float | None = None
    high: float | None = None
    """Ends of the interval; both are `value` where it is exact, None where there is no interval."""
    std_error: float | None = None
    """Of `value`; None where nobody can say."""
    freedom: float | None = None
    """Degrees of freedom of `std_error`; None where it is exact, or not from chunks."""
    reason: str = ""
    """Why there is no interval, and the cure; empty where there is one."""

    @classmethod
    def exactly(cls, value: float) -> Quantity:
        """Returns a value that is known."""
        return cls(value=value, low=value, high=value, std_error=0.0)

    @classmethod
    def estimated(cls, value: float, found: Spread, confidence: float) -> Quantity:
        """Returns a value with the t interval of its spread."""
        half = half_width(found, confidence)
        freedom = None if math.isinf(found.freedom) else found.freedom
        error = math.sqrt(found.variance)
        low, high = max(0.0, value - half), value + half
        return cls(value=value, low=low, high=high, std_error=error, freedom=freedom)

    @property
    def exact(self) -> bool:
        """Returns whether the value is known."""
        return self.std_error == 0

    def over(self, count: float) -> Quantity:
        """Returns the quantity of each of `count`."""
        low, high, error = (
            None if number is None else number / count for number in (self.low, self.high, self.std_error)
        )
        return replace(self, value=self.value / count, low=low, high=high, std_error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetEstimate:
    """What one pass over a dataset has, as a run draws it."""

    name: str
    how: str
    """`counted`, `census`, `sampled` or `pinned`."""
    documents: int | None
    """In an epoch, empty and faulty ones too; None of a stream, which nobody counted."""
    bytes: Quantity | None
    """UTF-8 of the texts, or 4 a token id; None where unknown."""
    tokens_per_byte: Quantity | None
    tokens_per_document: Quantity | None
    tokens: Quantity | None
    """In an epoch; None of a stream."""
    num_chunks: int | None
    sampled_chunks: int = 0
    sampled_documents: int = 0
    sampled_bytes: int = 0
    empty: int = 0
    """Sampled documents without tokens, faulty ones too."""
    faulty: int = 0
    """Sampled documents that cannot be used; a run stops at them, or skips them, as `on_error` says."""
    chunk_cv: float | None = None
    """How much the chunks' tokens for their size differ, standard deviation over mean, as far as sampled;
    None where no two were drawn by chance."""
    note: str = ""
    """What else is to be known of how it was made."""

    @property
    def exact(self) -> bool:
        """Returns whether the tokens are known, not estimated."""
        return self.tokens is not None and self.tokens.exact

    def to_json(self) -> dict[str, Any]:
        """Returns the estimate as JSON data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DatasetEstimate:
        """Returns the estimate of `to_json`; refuses other data with a ValueError."""
        quantities = ("bytes", "tokens_per_byte", "tokens_per_document", "tokens")
        made = dict(data)
        try:
            for name in quantities:
                made[name] = None if data[name] is None else Quantity(**data[name])
            return cls(**made)
        except (TypeError, KeyError) as error:
            raise ValueError(f"an estimate must have the fields of `to_json`, got {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates(Mapping[str, DatasetEstimate]):
    """The estimates of the datasets of a recipe, by name, in the recipe's order."""

    datasets: tuple[DatasetEstimate, ...]
    confidence: float = CONFIDENCE
    tokenizer: str = ""
    """Hash of the tokenizer's file and of the ids of probe texts; empty where all are pinned."""

    def __getitem__(self, name: str) -> DatasetEstimate:
        for dataset in self.datasets:
            if dataset.name == name:
                return dataset
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dataset.name for dataset in self.datasets)

    def __len__(self) -> int:
        return len(self.datasets)

    def to_json(self) -> dict[str, Any]:
        """Returns the estimates as JSON data."""
        return {
            "format": FORMAT,
            "confidence": self.confidence,
            "tokenizer": self.tokenizer,
            "datasets": [dataset.to_json() for dataset in self.datasets],
        }

    @classmethod
    def from_json(cls, data: Any) -> Estimates:
        """Returns the estimates of `to_json`; refuses other data with a ValueError."""
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            got = data.get("format") if isinstance(data, Mapping) else type(data).__name__
            raise ValueError(f"estimates must have format {FORMAT}, got {got!r}; measure them again")
        try:
            return cls(
                datasets=tuple(map(DatasetEstimate.from_json, data["datasets"])),
                confidence=float(data["confidence"]),
                tokenizer=str(data["tokenizer"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"estimates must have the fields of `to_json`, got {error!r}") from None

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the estimates to a file, as JSON."""
        write_whole(Path(path), json.dumps(self.to_json(), indent=1) + "\n")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Estimates:
        """Returns the estimates of a file that `write` wrote."""
        try:
            return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
        except ValueError as error:  # of JSON, of UTF-8 and of what is no estimate
            raise ValueError(f"{os.fspath(path)} holds no estimates: {error}") from None

    def sample_size(self, name: str, precision: float = 0.01) -> SampleSize:
        """Returns what to sample so that the tokens in total are known to +- `precision` of themselves.

        From how the sampled chunks differ, so as good as they are; one that is exact needs nothing.
        """
        if not 0 < precision < 1:
            raise ValueError(f"`precision` must be in (0, 1), such as 0.01 for +-1 %, got {precision!r}")
        return _sample_size(self[name], precision, self.confidence)


@dataclass(frozen=True, slots=True)
class SampleSize:
    """What to ask of `TokenEstimation`."""

    chunks: int
    bytes: int


def _sample_size(dataset: DatasetEstimate, precision: float, confidence: float) -> SampleSize:
    """Returns chunks and bytes, each of which leaves half of the variance that is allowed.

    That of k of K chunks is cv^2 (1/k - 1/K); that of their documents falls with the bytes of each chunk.
    """
    total, size = dataset.tokens, dataset.bytes
    number, all_chunks = dataset.sampled_chunks, dataset.num_chunks
    now = SampleSize(number, dataset.sampled_bytes)
    if dataset.exact or not number:
        return now
    if total is None or total.low is None or total.high is None or total.std_error is None or not all_chunks:
        reason = "nobody counted its documents" if total is None else total.reason
        raise ValueError(f"dataset {dataset.name!r}: no sample size can be given: {reason}")
    if total.high - total.low <= 2 * precision * total.value:
        return now
    cv = dataset.chunk_cv or 0.0
    rest = max(0.0, (total.std_error / total.value) ** 2 - cv**2 * (1 / number - 1 / all_chunks))
    chunks, most = min(number, all_chunks), all_chunks
    while chunks < most:
        middle = (chunks + most) // 2
        if _half(cv**2 * (1 / middle - 1 / all_chunks), middle, confidence) <= precision / math.sqrt(2):
            most = middle
        else:
            chunks = middle + 1
    more = max(1.0, 2 * (_half(rest, chunks, confidence) / precision) ** 2)
    wanted = math.ceil(now.bytes / number * chunks * more)
    return SampleSize(chunks, wanted if size is None else min(wanted, math.ceil(size.value)))


def _half(variance: float, chunks: int, confidence: float) -> float:
    return half_width(
        Spread(variance=variance, freedom=max(1.0, chunks - 1.0), chunk_variance=0.0), confidence
    )


def token_shares(
    weights: Mapping[str, float], estimates: Mapping[str, DatasetEstimate]
) -> dict[str, Quantity]:
    """Returns the shares of tokens, in sum 1, that weights by documents stand for, with intervals.

    With n documents and c tokens per document share_i = n_i c_i / S, S = sum_j n_j c_j. To first order (the
    delta method) its variance is sum_j (n_j / S)^2 (1[i = j] - share_i)^2 var(c_j), as samples are apart.
    """
    lengths = {name: _length(estimates[name]) for name in weights}
    total = sum(weight * lengths[name].value for name, weight in weights.items())
    if not total > 0 or min(weights.values()) < 0:
        raise ValueError(f"`weights` must be >= 0, and of some dataset with tokens > 0, got {dict(weights)}")
    per_token = {name: weight / total for name, weight in weights.items()}
    unknown = [name for name in weights if weights[name] and lengths[name].std_error is None]
    found = {}
    for name in weights:
        share = per_token[name] * lengths[name].value
        if unknown:
            reason = f"dataset {unknown[0]!r} has no interval: {lengths[unknown[0]].reason}"
            found[name] = Quantity(value=share, reason=reason)
            continue
        parts = [
            ((per_token[other] * ((other == name) - share) * (length.std_error or 0)) ** 2, length.freedom)
            for other, length in lengths.items()
        ]
        found[name] = _share(share, parts)
    return found


def _length(dataset: DatasetEstimate) -> Quantity:
    if dataset.tokens_per_document is None:
        raise ValueError(f"dataset {dataset.name!r}: its tokens per document are unknown; {dataset.note}")
    return dataset.tokens_per_document


def _share(share: float, parts: Sequence[tuple[float, float | None]]) -> Quantity:
    """Returns a share with its interval, of (variance, degrees of freedom) from each dataset."""
    variance = sum(part for part, _ in parts)
    below = sum((part / variance) ** 2 / freedom for part, freedom in parts if freedom and variance)
    found = Spread(variance=variance, freedom=1 / below if below else math.inf, chunk_variance=0.0)
    made = Quantity.estimated(share, found, CONFIDENCE)
    return replace(made, high=min(1.0, made.high or 0.0))


def write_whole(path: Path, text: str) -> None:
    """Makes `path` hold `text`, or leaves it as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
