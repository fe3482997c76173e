"""Documents of token ids that lie in files as they are, with their boundaries in another file beside each.

Upstream: a `Layout`, which knows one such format: `flat.py`, `megatron.py`. Downstream: the loader, which
reads local files in place by position, and the spool for what is remote, of several types or scattered.
Nothing is held of a file but a place for each chunk; boundaries are read a chunk at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from zephon.descriptors import Descriptor
from zephon.errors import DataError, Fault
from zephon.files import changed, check_file, check_unchanged, open_unchanged, read_range, sample
from zephon.paths import DataFile
from zephon.readers.arrays import MAX_TOKEN, column_of_ids
from zephon.readers.base import TOKEN, Column, Origin, RandomReader, Reader, Texts, Tokens
from zephon.readers.kept import Remade, Shared
from zephon.readers.table import (
    DAMAGED,
    Advance,
    ChunkTable,
    Scan,
    TableReader,
    file_key,
    open_table,
    with_stamps,
)
from zephon.views import View, Views

CHUNK_TOKENS = 1 << 18
"""A chunk is the documents that start in so many tokens of a file: 1 MiB of `TOKEN`s, whatever its type."""
CHUNK_DOCUMENTS = 1 << 13
"""No chunk reaches beyond a document whose number is a multiple of this."""
SCAN_DOCUMENTS = 1 << 20
"""Boundaries looked at together by a scan."""
DTYPES = ("uint16", "uint32", "int16", "int32", "int64")
"""Types of token ids, little-endian; the place of a chunk holds the number of its file's."""
_SCATTERED = 8
_PLACE_BITS = 4
_DAMAGED_FAULT = Fault(
    "damaged", "a file that its boundaries do not fit", "the boundaries of a file's documents fit its tokens"
)

Int64 = NDArray[np.int64]


class Spans(NamedTuple):
    """Where the tokens of consecutive documents lie in their file."""

    starts: Int64
    """(s,) the byte at which each span begins."""
    sizes: Int64
    """(s,) in bytes."""
    documents: Int64
    """(n + 1,) the first span of each document, and s."""


class Layout(Protocol):
    """A format of token ids. Thread-safe and picklable."""

    kind: str

    def scan(self, file: DataFile) -> Scan:
        """Returns the chunks of a file, made by `Cuts`; raises `Misfit` for boundaries that do not fit it."""
        ...

    def spans(self, file: DataFile, first: int, num_documents: int) -> Spans:
        """Returns where the documents [first, first + num_documents) of a file lie."""
        ...

    def beside(self, file: DataFile) -> DataFile:
        """Returns the file of boundaries, as it stood when it was first asked for."""
        ...


class Misfit(Exception):
    """The boundaries of a file do not fit it, or cannot be read: the text says what was found."""


class Cuts:
    """Cuts the documents of a file into chunks, given where they start, some at a time."""

    def __init__(self) -> None:
        self._firsts: list[Int64] = []
        self._tokens: list[Int64] = []
        self._window = -1

    def add(self, first: int, starts: Int64) -> Int64:
        """Takes the tokens at which documents start, from number `first` on; returns which begin chunks."""
        windows = starts // CHUNK_TOKENS
        begins = windows != np.append(self._window, windows[:-1])
        begins[-first % CHUNK_DOCUMENTS :: CHUNK_DOCUMENTS] = True
        found = np.flatnonzero(begins)
        self._window = int(windows[-1])
        self._firsts.append(found + first)
        self._tokens.append(starts[found])
        return found

    def scan(
        self, num_documents: int, num_tokens: int, dtype: np.dtype[Any], scattered: Int64 | None = None
    ) -> Scan:
        """Returns the chunks, without a sample; `scattered` is (c,), 1 where they are no run of bytes."""
        firsts = np.concatenate([*self._firsts, [num_documents]]).astype(np.int64)
        tokens = np.concatenate([*self._tokens, [num_tokens]]).astype(np.int64)
        places = firsts[:-1] << _PLACE_BITS | DTYPES.index(dtype.name)
        if scattered is not None:
            places |= scattered * _SCATTERED
        return Scan(
            places=places,
            num_documents=np.diff(firsts),
            num_bytes=np.diff(tokens) * TOKEN.itemsize,
            sample="",
        )


def open_token_files(origin: Origin, layout: Layout) -> Reader | RandomReader:
    """Returns the reader of files of a layout: in place where they are local and of one type."""
    name, skip = origin.dataset.name, origin.dataset.on_error == "skip"
    if origin.dataset.tokens:
        raise DataError.explained(
            f"dataset {name!r}: `tokens` names a column, and its files have none",
            got=f"tokens = {origin.dataset.tokens!r} for the kind {layout.kind!r}",
            rule="these files hold nothing but token ids",
            cure="leave `tokens` out",
        )

    def scan(file: DataFile, _advance: Advance) -> Scan:
        try:
            found = layout.scan(file)
            if file.is_remote:
                check_file(name, layout.beside(file))
        except Misfit as misfit:
            check_file(name, file)
            if not skip:
                raise _unusable(name, layout.beside(file), file, misfit) from None
            found = Scan.damaged("")
        return replace(found, sample=_sample(name, layout, file))

    def key(file: DataFile) -> Sequence[object]:
        return [*layout_key(origin, layout, file), skip]

    table = open_table(origin, layout.kind, scan, key=key, by_bytes=False)
    marks = np.flatnonzero(np.bincount(table.places[table.places != DAMAGED] & 15, minlength=16))
    is_local = not any(file.is_remote for file in table.files)
    if is_local and len(marks) <= 1 and not (marks & _SCATTERED).any():
        dtype = np.dtype(DTYPES[int(marks[0])]).newbyteorder("<") if len(marks) else TOKEN
        return TokenFiles(origin, layout, table, dtype)
    return SpooledTokens(origin, layout, table)


def layout_key(origin: Origin, layout: Layout, file: DataFile) -> list[object]:
    """Returns what, besides the file itself, decides where its documents lie."""
    return [origin.dataset.dtype, *file_key(with_stamps(origin.dataset.name, layout.beside(file)))]


class _LayoutReader(TableReader):
    """Documents of files of a layout, weighed by 4 bytes a token, whatever a file's type."""

    is_tokenized = True
    _layout: Layout

    def _sample(self, file: DataFile) -> str:
        return _sample(self.name, self._layout, file)


class TokenFiles(_LayoutReader, Remade):
    """Documents of local files of one type of token ids, read in place."""

    _made = ("_files", "_views")

    def __init__(self, origin: Origin, layout: Layout, table: ChunkTable, dtype: np.dtype[Any]) -> None:
        self.name, self.table = origin.dataset.name, table
        self._layout, self._dtype = layout, dtype
        self._make()

    def _make(self) -> None:
        self._files = Shared()
        self._views = Views(self._open, self._shrunk)

    def texts(self, chunk: Int64, record: Int64, max_bytes: int) -> Texts:
        """Refuses: the documents are token ids."""
        raise TypeError(f"dataset {self.name!r} holds token ids, no texts; ask for `tokens`")

    def tokens(self, chunk: Int64, record: Int64, max_bytes: int) -> Tokens:
        """Returns the token ids at (chunk[i], record[i]), as asked; `max_bytes` counts 4 bytes a token."""
        found = self._views.tokens(chunk, record, max_bytes, self._dtype)
        firsts = self.table.first_chunks
        files = np.searchsorted(firsts, chunk[: len(found.lengths)], side="right") - 1
        for number in set(files.tolist()) if len(firsts) > 2 else (int(files[0]),):
            file = self._file(number)
            descriptor = self._descriptor(number, file)  # open as long as it is held
            check_unchanged(self.name, file, descriptor.number)
        return found

    def _open(self, chunk: int) -> View:
        number, file = self._file_of(chunk)
        descriptor = self._descriptor(number, file)
        place, count = int(self.table.places[chunk]), int(self.table.num_documents[chunk])
        if place == DAMAGED:
            hot = (None, descriptor.number, np.zeros(2, np.int64).data, True)
            return View(hot, descriptor, {0: _DAMAGED_FAULT}, frozenset(), 0, may_map=False)
        spans = _spans(self.name, self._layout, file, place >> _PLACE_BITS, count)
        ends = np.append(0, np.cumsum(spans.sizes)) + (spans.starts[0] if len(spans.starts) else 0)
        bounds = ends[spans.documents]
        size = int(bounds[-1] - bounds[0])
        hot = (None, descriptor.number, bounds.data, False)
        return View(hot, descriptor, {}, frozenset(), size, may_map=False)

    def _descriptor(self, number: int, file: DataFile) -> Descriptor:
        """Returns an open file, checked when it was opened; it closes when no view of it is left."""
        return self._files.get(number, lambda: Descriptor(open_unchanged(self.name, file)))

    def _shrunk(self, chunk: int) -> DataError:
        file = self.table.files[self.table.file_of(chunk)]
        return changed(self.name, file.shown, "fewer bytes than when it was opened")

    def close(self) -> None:
        """Closes the files; a later read opens them again."""
        self._views.clear()


class SpooledTokens(_LayoutReader):
    """Documents of token ids for the spool, a chunk at a time: one range of its file, if it lies in one."""

    def __init__(self, origin: Origin, layout: Layout, table: ChunkTable) -> None:
        self.name, self.table = origin.dataset.name, table
        self._origin, self._layout = replace(origin, report=None), layout

    def read(self, chunk: int) -> Column:
        """Returns the documents of a chunk."""
        _, file = self._file_of(chunk)
        place, count = int(self.table.places[chunk]), int(self.table.num_documents[chunk])
        if place == DAMAGED:
            return Column.all_faulty(1, _DAMAGED_FAULT)
        dtype = np.dtype(DTYPES[place & (_SCATTERED - 1)]).newbyteorder("<")
        spans = _spans(self.name, self._layout, file, place >> _PLACE_BITS, count)
        ends = spans.starts + spans.sizes
        begins = np.flatnonzero(np.append(True, spans.starts[1:] != ends[:-1]))  # each begins a run of bytes
        lasts = np.append(begins[1:], len(ends)) - 1
        parts = [
            read_range(self.name, file, start, end - start)
            for start, end in zip(spans.starts[begins].tolist(), ends[lasts].tolist(), strict=True)
        ] if len(ends) else []  # fmt: skip
        for read in (file, self._layout.beside(file)):
            check_file(self.name, read)
        offsets = np.append(0, np.cumsum(spans.sizes))[spans.documents] // dtype.itemsize
        return token_column(np.frombuffer(b"".join(parts), dtype), offsets)

    def spool_key(self, number: int) -> list[object]:
        """Returns what, besides a file itself, decides what is read of it."""
        return layout_key(self._origin, self._layout, self.table.files[number])


def token_column(ids: NDArray[np.integer[Any]], offsets: Int64) -> Column:
    """Returns the column of the documents `ids[offsets[i]:offsets[i + 1]]`; impossible ids are faults."""
    faults: dict[int, Fault] = {}
    if len(ids) and (ids.min() < 0 or ids.max() > MAX_TOKEN):
        wrong = np.flatnonzero((ids < 0) | (ids > MAX_TOKEN))
        documents, firsts = np.unique(np.searchsorted(offsets[1:], wrong, side="right"), return_index=True)
        for document, first in zip(documents.tolist(), wrong[firsts].tolist(), strict=True):
            faults[document] = Fault("not_tokens", f"the id {ids[first]}", "token ids are in [0, 2^32)")
    return column_of_ids(ids, np.diff(offsets), faults)


def _spans(dataset: str, layout: Layout, file: DataFile, first: int, num_documents: int) -> Spans:
    try:
        return layout.spans(file, first, num_documents)
    except Misfit as misfit:  # the scan found it fit
        raise _unusable(dataset, layout.beside(file), file, misfit) from None


def _sample(dataset: str, layout: Layout, file: DataFile) -> str:
    both = sample(dataset, file) + sample(dataset, layout.beside(file))
    return hashlib.sha256(both.encode()).hexdigest()[:16]


def _unusable(dataset: str, beside: DataFile, file: DataFile, misfit: Misfit) -> DataError:
    return DataError.explained(
        f"dataset {dataset!r}: {beside.shown} does not fit {file.shown}",
        got=str(misfit),
        rule="the boundaries of a file's documents fit its tokens",
        cure="write both again, together; if `dtype` is given, see that it is what the file holds",
    )
