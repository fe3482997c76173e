"""The description of a dataset: a named collection of documents that can be mixed.

Upstream of everything; `readers/` opens what is described here. Nothing is read when a dataset is described.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from zephon.errors import check_whole

ON_ERROR = ("raise", "skip")
SHUFFLED, IDENTITY = "shuffled", "identity"
ORDERS = (SHUFFLED, IDENTITY)
STOP, REDISTRIBUTE, PAD = "stop", "redistribute", "pad"
WHEN_EXHAUSTED = (STOP, REDISTRIBUTE, PAD)
"""What a lane may do when a dataset has no more documents for it; see `Recipe.when_exhausted`."""
TRAIN, VALID = "train", "valid"
PARTS = (TRAIN, VALID)
DEFAULT_MAX_BAD = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Documents that one part of a dataset leaves out and the other part is; see `Dataset.holdout`."""

    documents: int
    """How many are held out."""
    seed: int = 0
    """Another seed holds out others."""
    part: str = TRAIN
    """`train`: all but these; `valid`: only these."""

    def __post_init__(self) -> None:
        check_whole("holdout: `documents`", self.documents, 1)
        check_whole("holdout: `seed`", self.seed, 0)
        if self.part not in PARTS:
            raise ValueError(f"holdout: `part` must be one of {PARTS}, got {self.part!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A named collection of documents; build it with `from_path` or `from_documents`."""

    name: str
    paths: tuple[str, ...] = ()
    """Files, folders or globs as written; relative ones start at the recipe's folder. Empty: in memory."""
    kind: str = ""
    """The reader (`jsonl`, `parquet`, `memory`, or a plugin's); empty: found from the files' names."""
    text: str = "text"
    """The field that holds a document's text."""
    on_error: str = "raise"
    """`raise` stops at a record that cannot be used; `skip` counts it and goes on."""
    max_bad: int = DEFAULT_MAX_BAD
    """With `skip`: records that one lane may skip before the run stops."""
    documents: tuple[str, ...] | None = None
    """The texts themselves, for a dataset in memory."""
    order: str = SHUFFLED
    """`shuffled`, or `identity`: in file order, dealt to the lanes in turn, the same in each epoch."""
    max_epochs: int | None = None
    """How often each document is read before the dataset ends; None: for ever."""
    held_out: HeldOut | None = None
    """Which part of a split this is; None: the whole dataset."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip() or self.name != self.name.strip():
            raise ValueError(
                f"dataset `name` must be a non-empty string without outer spaces, got {self.name!r}"
            )
        if self.on_error not in ON_ERROR:
            raise ValueError(
                f"dataset {self.name!r}: `on_error` must be one of {ON_ERROR}, got {self.on_error!r}"
            )
        check_whole(f"dataset {self.name!r}: `max_bad`", self.max_bad, 0)
        if self.order not in ORDERS:
            raise ValueError(f"dataset {self.name!r}: `order` must be one of {ORDERS}, got {self.order!r}")
        if self.max_epochs is not None:
            check_whole(f"dataset {self.name!r}: `max_epochs`", self.max_epochs, 1)
        if not isinstance(self.text, str) or not self.text:
            raise ValueError(f"dataset {self.name!r}: `text` must name a field, got {self.text!r}")
        if (self.documents is None) == (not self.paths):
            raise ValueError(
                f"dataset {self.name!r}: give either paths or documents, got {len(self.paths)} paths"
            )

    @classmethod
    def from_path(
        cls,
        name: str,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        text: str = "text",
        kind: str = "",
        on_error: str = "raise",
        max_bad: int = DEFAULT_MAX_BAD,
        order: str = SHUFFLED,
        max_epochs: int | None = None,
    ) -> Dataset:
        """Returns the dataset of a file, a folder, a glob or a list of these.

        Files are ordered by entry, then by POSIX path relative to the entry's wildcard-free folder, in
        UTF-8 byte order, so the order never depends on how a file system lists them.
        """
        entries = path if isinstance(path, Sequence) and not isinstance(path, str) else [path]
        known = all(isinstance(entry, str | os.PathLike) for entry in entries)
        paths = tuple(os.fspath(entry) for entry in entries) if known else ()
        if not paths or not all(isinstance(entry, str) and entry for entry in paths):
            raise ValueError(
                f"dataset {name!r}: `path` must be a path or a non-empty list of paths, got {path!r}"
            )
        return cls(
            name=name,
            paths=paths,
            kind=kind,
            text=text,
            on_error=on_error,
            max_bad=max_bad,
            order=order,
            max_epochs=max_epochs,
        )

    @classmethod
    def from_documents(
        cls,
        name: str,
        documents: Iterable[str],
        *,
        order: str = SHUFFLED,
        max_epochs: int | None = None,
    ) -> Dataset:
        """Returns a dataset of texts held in memory; it cannot be written to a TOML recipe."""
        if isinstance(documents, str):
            raise ValueError(f"dataset {name!r}: `documents` must be a list of texts, got one text")
        return cls(name=name, kind="memory", documents=tuple(documents), order=order, max_epochs=max_epochs)

    def holdout(self, *, documents: int, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Returns (train, valid), of this name: the dataset without `documents` documents, and only these.

        Seed, name and the number of documents there are choose them, once: the lock of a run keeps the list,
        and files added later do not move it. Files with documents held out must stay as they are.
        """
        if self.held_out is not None:
            raise ValueError(f"dataset {self.name!r} is the {self.held_out.part} part of a holdout already")
        train, valid = (HeldOut(documents=documents, seed=seed, part=part) for part in PARTS)
        return replace(self, held_out=train), replace(self, held_out=valid)
