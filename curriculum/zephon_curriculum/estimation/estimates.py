"""What is known of the lengths of datasets: values with intervals, or with the reason why there is none.

Upstream: `measure.py` measures them, or a file holds them. Downstream: the plan, previews and the command
line. Everything here is data and arithmetic; nothing is read but the file that is asked for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zephon import write_atomically
from zephon.cli.common import add_row, new_table
from zephon_curriculum.figures import plural, short
from zephon_curriculum.quantity import CONFIDENCE, Quantity
from zephon_curriculum.results import Readable, Shown

FORMAT = 1
COUNTED, CENSUS, SAMPLED, PINNED = "counted", "census", "sampled", "pinned"
"""Known from the files' own tables; every document tokenized; some of them; said by the user."""


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

    def to_json(self) -> dict[str, Any]:
        """Returns the estimate as JSON data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DatasetEstimate:
        """Returns the estimate of `to_json`; of other data raises a TypeError or KeyError."""
        names = ("bytes", "tokens_per_byte", "tokens_per_document", "tokens")
        quantities = {name: None if data[name] is None else Quantity(**data[name]) for name in names}
        return cls(**{**data, **quantities})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Estimates(Readable, Mapping[str, DatasetEstimate]):
    """The estimates of the datasets of a recipe, by name, in the recipe's order."""

    datasets: tuple[DatasetEstimate, ...]
    tokenizer: str = ""
    """Hash of the tokenizer's file and of the ids of probe texts; empty where all are pinned."""

    def __getitem__(self, name: str) -> DatasetEstimate:
        return {dataset.name: dataset for dataset in self.datasets}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dataset.name for dataset in self.datasets)

    def __len__(self) -> int:
        return len(self.datasets)

    def to_json(self) -> dict[str, Any]:
        """Returns the estimates as JSON data."""
        return {
            "format": FORMAT,
            "confidence": CONFIDENCE,
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
                tokenizer=str(data["tokenizer"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"estimates must have the fields of `to_json`, got {error!r}") from None

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the estimates to a file, as JSON."""
        write_atomically(Path(path), json.dumps(self.to_json(), indent=1) + "\n")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Estimates:
        """Returns the estimates of a file that `write` wrote."""
        try:
            return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
        except ValueError as error:  # of JSON, of UTF-8 and of what is no estimate
            raise ValueError(f"{os.fspath(path)} holds no estimates: {error}") from None

    def shown(self) -> Shown:
        """Returns the estimates as a table, then what is to be known of them."""
        counts = ("#documents", "#bytes", "#tokens/byte", "#tokens/document", "#tokens in an epoch")
        table = new_table("dataset", *counts, "how")
        for one in self.datasets:
            documents = "unknown" if one.documents is None else f"{one.documents:,}"
            columns = (one.bytes, one.tokens_per_byte, one.tokens_per_document, one.tokens)
            add_row(table, one.name, documents, *map(_shown, columns), _how(one))
        notes = tuple(f"{one.name}: {note}" for one in self.datasets for note in _notes(one))
        head = f"tokens of {plural(len(self), 'dataset')}, with {100 * CONFIDENCE:g} % intervals"
        return Shown(head=head, tables=(table,), notes=notes)


def _notes(one: DatasetEstimate) -> list[str]:
    quantities = (one.tokens, one.tokens_per_document, one.tokens_per_byte)
    reasons = {quantity.reason: None for quantity in quantities if quantity is not None and quantity.reason}
    notes = [f"no interval: {reason}" for reason in reasons if reason != one.note]
    notes += [one.note] if one.note else []
    if one.faulty:
        notes.append(f"{one.faulty:,} of {one.sampled_documents:,} documents looked at cannot be used")
    return notes


def _how(one: DatasetEstimate) -> str:
    if one.how != "sampled":
        return one.how
    chunks = f"{one.sampled_chunks:,}" + ("" if one.num_chunks is None else f"/{one.num_chunks:,}")
    return f"{one.sampled_documents:,} documents, {chunks} chunks"


def _shown(quantity: Quantity | None) -> str:
    """Returns a quantity as people read it, the half of its interval beside it as a part of it."""
    if quantity is None:
        return "unknown"
    value = short(quantity.value)
    if quantity.exact:
        return value
    if quantity.low is None or quantity.high is None or not quantity.value:
        return f"{value} +- ?"
    below, above = (abs(end / quantity.value - 1) for end in (quantity.low, quantity.high))
    if abs(below - above) < 0.0005:
        return f"{value} +-{100 * above:.2g}%"
    return f"{value} -{100 * below:.2g}% +{100 * above:.2g}%"
