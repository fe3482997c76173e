"""What is known of the lengths of datasets: values with intervals, or with the reason why there is none.

Upstream: `estimate.py` measures them, or a file holds them. Downstream: the plan, previews and the command
line. Everything here is data and arithmetic; nothing is read but the file that is asked for.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from zephon_curriculum.intervals import CONFIDENCE, Spread, half_width

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
