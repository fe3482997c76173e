"""Packing: pieces of documents -> rows of exactly `seq_len` tokens.

Upstream: `lane.py` feeds what the work source chose. Downstream: `batch.py` turns rows into arrays. A packer
moves references to pieces, never tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from zephon.errors import check_whole, unknown_field
from zephon.prepare import SPLIT, LengthRule
from zephon.stream import Run

FIELDS = ("kind", "seq_len", "mask_document_ends", "pad_id")
"""What [packing] takes whatever the kind."""


class Packer(Protocol):
    """A plugin role: one packer serves one lane; built by `factory(config)`.

    A packer may also have `carry() -> list[Run]`: the pieces that it holds after a row, in order. Feeding
    them to a fresh packer must restore it. A packer without it is flushed every `flush_every` rows, and a
    restore replays the lane from the last flush.
    """

    by_document: bool
    """True: every draw is one piece, a document or at most seq_len tokens of it. False: runs of many."""

    def room(self) -> int:
        """Returns how many tokens the next draw may have; 0 when a row is ready."""
        ...

    def add(self, run: Run) -> None:
        """Takes in a draw of at most `room()` tokens."""
        ...

    def row(self) -> list[Run]:
        """Returns the pieces of the ready row, in order; together they have at most seq_len tokens."""
        ...

    def flush(self) -> list[list[Run]]:
        """Returns everything held, as rows, and holds nothing after it."""
        ...


@runtime_checkable
class Carrying(Protocol):
    """A packer that can say what it holds."""

    def carry(self) -> list[Run]:
        """Returns the pieces held, in the order in which to feed them to a fresh packer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """The [packing] table of a recipe."""

    seq_len: int
    kind: str = "wrap"
    mask_document_ends: bool = True
    """Whether the label at a document's last token is -100 instead of the next document's first token."""
    pad_id: int = 0
    """The input at padding; its label is -100 whatever it is."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What else the packer's kind takes."""

    def __post_init__(self) -> None:
        check_whole("packing: `seq_len`", self.seq_len, 1)
        if not isinstance(self.kind, str) or not self.kind:
            raise ValueError(f"packing: `kind` must name a packer, got {self.kind!r}")
        if type(self.pad_id) is not int or self.pad_id < 0:
            raise ValueError(f"packing: `pad_id` must be a token id >= 0, got {self.pad_id!r}")
        if type(self.mask_document_ends) is not bool:
            raise ValueError(
                f"packing: `mask_document_ends` must be true or false, got {self.mask_document_ends!r}"
            )

    def to_config(self) -> dict[str, Any]:
        """Returns the packing as a table of the recipe, every field spelt out."""
        return {
            "kind": self.kind,
            "seq_len": self.seq_len,
            "mask_document_ends": self.mask_document_ends,
            "pad_id": self.pad_id,
            **dict(self.options),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PackerPlan:
    """What a packer's factory returns: how to make one for a lane, and what it asks of the workers."""

    make: Callable[[], Packer]
    length: LengthRule = field(default_factory=LengthRule)
    """What becomes of documents over seq_len before they reach the packer."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The packer's options with their defaults spelt out; part of the fingerprint."""


class Wrap:
    """Fills each row to its last token; a document goes on in a later row of its dataset."""

    by_document = False

    def __init__(self, seq_len: int) -> None:
        self._seq_len = self._room = seq_len
        self._runs: list[Run] = []

    @classmethod
    def plan(cls, packing: Packing) -> PackerPlan:
        """Returns the plan of a recipe's `kind = "wrap"`, which takes no options."""
        if packing.options:
            raise unknown_field("packing wrap", next(iter(packing.options)), FIELDS)
        return PackerPlan(make=lambda: cls(packing.seq_len), length=LengthRule(overlong=SPLIT))

    def room(self) -> int:
        """Returns the tokens that the row still lacks."""
        return self._room

    def add(self, run: Run) -> None:
        """Puts a run at the end of the row."""
        self._runs.append(run)
        self._room -= run.num_tokens

    def row(self) -> list[Run]:
        """Returns the full row and begins the next."""
        runs, self._runs, self._room = self._runs, [], self._seq_len
        return runs

    def flush(self) -> list[list[Run]]:
        """Returns the row begun, if any."""
        return [self.row()] if self._runs else []

    def carry(self) -> list[Run]:
        """Returns the pieces of the row begun: none after a row."""
        return list(self._runs)
