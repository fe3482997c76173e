"""The description of a dataset: a named collection of documents that can be mixed.

Upstream of everything; `readers/` opens what is described here. Nothing is read when a dataset is described.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from zephon.errors import check_whole
from zephon.partition import Edge, both, split_by
from zephon.urls import refuse_secret
from zephon.where import parse_where

ON_ERROR = ("raise", "skip")
SHUFFLED, IDENTITY, SORTED = "shuffled", "identity", "sorted:"
DTYPES = ("uint16", "uint32")
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
    """Files, folders, globs or URLs as written; relative ones start at the recipe's folder. Empty: in
    memory."""
    kind: str = ""
    """The reader: a built-in kind, or a plugin's; empty: found from the files' names, of built-in ones."""
    text: str = "text"
    """The field that holds a document's text."""
    tokens: str = ""
    """The column of token ids, where documents are tokenized already; empty: documents are text. Token ids
    are taken as they are: neither BOS nor EOS is added."""
    dtype: str = ""
    """`uint16` or `uint32`: what a flat `.bin` file of token ids holds; other files say so themselves."""
    columns: tuple[str, ...] = ()
    """Other columns that `zephon data` shows; they change no row."""
    where: str = ""
    """A condition on the columns, such as `score >= 3 and lang == "en"`; other documents are left out. Kept
    as written but for outer spaces: another spelling is another recipe."""
    limit: int | None = None
    """Only the first so many documents, in file order, of those that `where` leaves."""
    stream: bool = False
    """Whether files are read from their start on, without counting their records first. A lane takes whole
    files, and only records near each other are shuffled."""
    on_error: str = "raise"
    """`raise` stops at a record that cannot be used; `skip` counts it and goes on."""
    max_bad: int = DEFAULT_MAX_BAD
    """With `skip`: records that one lane may skip before the run stops."""
    documents: tuple[str, ...] | None = None
    """The texts themselves, for a dataset in memory."""
    order: str = SHUFFLED
    """`shuffled`; `identity`: in file order, dealt to the lanes in turn, the same in each epoch; or
    `sorted:COLUMN`, the same in ascending order of a column, `sorted:-COLUMN` in descending."""
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
        if self.order not in (SHUFFLED, IDENTITY) and not self.sorted_by:
            rule = f"{SHUFFLED!r}, {IDENTITY!r} or '{SORTED}COLUMN'"
            raise ValueError(f"dataset {self.name!r}: `order` must be {rule}, got {self.order!r}")
        for field, least in (("max_epochs", 1), ("limit", 1)):
            if getattr(self, field) is not None:
                check_whole(f"dataset {self.name!r}: `{field}`", getattr(self, field), least)
        self._check_columns()
        if self.stream:
            self._check_stream()
        if not isinstance(self.text, str) or not self.text:
            raise ValueError(f"dataset {self.name!r}: `text` must name a field, got {self.text!r}")
        for path in self.paths:
            refuse_secret(f"dataset {self.name!r}: `path`", path)
        if self.documents is not None and (given := self._of_files()):
            raise ValueError(
                f"dataset {self.name!r}: `{given}` is of files, and its documents are in memory; leave it out"
            )
        if (self.documents is None) == (not self.paths):
            raise ValueError(
                f"dataset {self.name!r}: give either paths or documents, got {len(self.paths)} paths"
            )

    def _check_columns(self) -> None:
        columns = self.columns
        if not isinstance(columns, tuple) or not all(isinstance(c, str) and c for c in columns):
            raise ValueError(f"dataset {self.name!r}: `columns` must be a list of names, got {columns!r}")
        for field in ("tokens", "dtype", "where"):
            if not isinstance(getattr(self, field), str):
                got = getattr(self, field)
                raise ValueError(f"dataset {self.name!r}: `{field}` must be a string, got {got!r}")
        if self.dtype and self.dtype not in DTYPES:
            raise ValueError(f"dataset {self.name!r}: `dtype` must be one of {DTYPES}, got {self.dtype!r}")
        object.__setattr__(self, "where", self.where.strip())
        if self.where:
            parse_where(self.where, self.name)

    def _of_files(self) -> str:
        """Returns a field that is given and means nothing for documents in memory, or nothing."""
        fields = ("tokens", "dtype", "columns", "where", "stream", "sorted_by")
        return next((field for field in fields if getattr(self, field)), "")

    def _check_stream(self) -> None:
        given = {
            "limit": self.limit is not None,
            "holdout": self.held_out is not None,
            "order": self.order != SHUFFLED,
            "where": bool(self.where),
            "max_epochs": self.max_epochs is not None,
            "documents": self.documents is not None,
        }
        if not isinstance(self.stream, bool):
            raise ValueError(f"dataset {self.name!r}: `stream` must be true or false, got {self.stream!r}")
        if refused := [field for field, is_given in given.items() if is_given]:
            raise ValueError(
                f"dataset {self.name!r}: `stream` does not go with `{refused[0]}`: a stream's documents are "
                f"not counted; leave out `{refused[0]}`, or `stream`, and the files are counted once"
            )

    @property
    def sorted_by(self) -> str:
        """Returns the column, with its sign, that the documents are sorted by; empty where they are not."""
        is_sorted = isinstance(self.order, str) and self.order.startswith(SORTED)
        return self.order.removeprefix(SORTED) if is_sorted else ""

    @classmethod
    def from_path(
        cls,
        name: str,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        text: str = "text",
        tokens: str = "",
        dtype: str = "",
        columns: Sequence[str] = (),
        where: str = "",
        limit: int | None = None,
        stream: bool = False,
        kind: str = "",
        on_error: str = "raise",
        max_bad: int = DEFAULT_MAX_BAD,
        order: str = SHUFFLED,
        max_epochs: int | None = None,
    ) -> Dataset:
        """Returns the dataset of a file, a folder, a glob, a URL or a list of these.

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
            name=name, paths=paths, kind=kind, text=text, tokens=tokens, dtype=dtype,
            columns=(columns,) if isinstance(columns, str) else tuple(columns), where=where, limit=limit,
            stream=stream, on_error=on_error, max_bad=max_bad, order=order, max_epochs=max_epochs,
        )  # fmt: skip

    @classmethod
    def from_documents(
        cls,
        name: str,
        documents: Iterable[str],
        *,
        limit: int | None = None,
        order: str = SHUFFLED,
        max_epochs: int | None = None,
    ) -> Dataset:
        """Returns a dataset of texts held in memory; it cannot be written to a TOML recipe."""
        if isinstance(documents, str):
            raise ValueError(f"dataset {name!r}: `documents` must be a list of texts, got one text")
        texts = tuple(documents)
        return cls(name=name, kind="memory", documents=texts, limit=limit, order=order, max_epochs=max_epochs)

    def holdout(self, *, documents: int, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Returns (train, valid), of this name: the dataset without `documents` documents, and only these.

        Seed, name and the number of documents there are choose them, once: the lock of a run keeps the list,
        and files added later do not move it. Files with documents held out must stay as they are.
        """
        if self.held_out is not None:
            raise ValueError(f"dataset {self.name!r} is the {self.held_out.part} part of a holdout already")
        train, valid = (HeldOut(documents=documents, seed=seed, part=part) for part in PARTS)
        return replace(self, held_out=train), replace(self, held_out=valid)

    def partition(
        self, *, by: str, edges: Sequence[Edge], nulls: bool = False, names: Sequence[str] | None = None
    ) -> tuple[Dataset, ...]:
        """Returns the datasets that this one is cut into by the values of the column `by`, ascending.

        Below the first edge, from each edge on until short of the next, from the last edge on; with `nulls`
        one more of the records without a value (null or NaN), which otherwise are in none. The names are
        `names`, else made of this one's and the edges: `web_lt2`, `web_2to3`, `web_ge3`, `web_null`.
        """
        refused = {
            "limit": (self.limit, "it counts what `where` leaves, so each part would have its own"),
            "holdout": (self.held_out, "partition first, and hold documents out of each part"),
            "stream": (self.stream or None, "leave out `stream`, and the files are counted once"),
            "documents": (self.documents, "texts in memory have no columns"),
        }
        for field, (value, why) in refused.items():
            if value is not None:
                raise ValueError(f"dataset {self.name!r}: partition does not go with `{field}`: {why}")
        parts = split_by(self.name, by, edges, nulls, names)
        return tuple(replace(self, name=name, where=both(self.where, text)) for name, text in parts)
