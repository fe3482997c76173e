"""What readers share: the roles, the shapes they exchange and what counts as a text.

Upstream: `paths.py`. Downstream: the readers of this folder and of plugins, the spool, the loader.
"""

from __future__ import annotations

import re
import resource
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from zephon.dataset import Dataset
from zephon.errors import DataError, Fault, shorten
from zephon.paths import DataFile

Report = Callable[[str, int, int], None]
"""Called with (what, done, total) while a dataset is opened, from one thread at a time."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_DESCRIPTOR_SHARE = 8


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of an opened dataset, in file order."""

    num_documents: NDArray[np.int64]
    """(C,) documents of each chunk, all >= 1: chunks without documents are left out."""
    num_bytes: NDArray[np.int64]
    """(C,) weight of each chunk, the same on every machine."""


@dataclass(slots=True)
class Texts:
    """Documents read at random addresses."""

    texts: list[str]
    """One per address that was read, a prefix of the addresses asked for; "" where faulty."""
    faults: list[tuple[int, Fault]] = field(default_factory=list)
    """(index into `texts`, what is wrong), ascending; usually empty."""
    num_replaced: list[int] = field(default_factory=list)
    """Indexes of the documents in which lone surrogates were replaced by U+FFFD; usually empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The documents of one chunk as one run of UTF-8."""

    data: bytes | memoryview
    """The texts, one after the other; a faulty one has no bytes."""
    offsets: NDArray[np.int64]
    """(n + 1,) document i is `data[offsets[i]:offsets[i + 1]]`; starts with 0."""
    faults: tuple[tuple[int, Fault], ...] = ()
    """(document, what is wrong), ascending."""
    replaced: tuple[int, ...] = ()
    """Documents in which lone surrogates were replaced, ascending."""

    @classmethod
    def from_values(cls, values: Iterable[object]) -> Column:
        """Returns the column of Python values; what is not a `str` becomes a fault."""
        parts: list[bytes] = []
        faults: list[tuple[int, Fault]] = []
        replaced: list[int] = []
        for i, value in enumerate(values):
            if not isinstance(value, str):
                faults.append((i, not_a_text(value)))
                parts.append(b"")
                continue
            try:
                parts.append(value.encode())
            except UnicodeEncodeError:
                replaced.append(i)
                parts.append(replace_surrogates(value).encode())
        offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        return cls(data=b"".join(parts), offsets=offsets, faults=tuple(faults), replaced=tuple(replaced))


class Reader(Protocol):
    """The plugin role `zephon.datasets`: knows its chunks and reads one at a time.

    Thread-safe and picklable. All methods are pure functions of the data.
    """

    def chunks(self) -> Chunks:
        """Returns the chunks from metadata or an index, without reading documents."""
        ...

    def read(self, chunk: int) -> Column:
        """Returns all documents of one chunk, in file order."""
        ...

    def identity(self) -> dict[str, Any]:
        """Returns what the lock keeps: `kind`, `num_documents`, `files` (name, bytes, documents, sample)."""
        ...


class RandomReader(Protocol):
    """What the loader uses: documents at random addresses. Thread-safe and picklable."""

    name: str

    def chunks(self) -> Chunks:
        """Returns the chunks of the dataset."""
        ...

    def texts(self, chunk: NDArray[np.int64], record: NDArray[np.int64], max_bytes: int) -> Texts:
        """Returns the documents at (chunk[i], record[i] within the chunk), in the order asked.

        Stops after the document with which the bytes read reach `max_bytes`, so at least one is read.
        """
        ...

    def where(self, chunk: int, record: int) -> tuple[str, int]:
        """Returns the file as users know it and the record in it, from 0; for messages."""
        ...

    def identity(self) -> dict[str, Any]:
        """Returns what the lock keeps, as `Reader.identity` does."""
        ...

    def close(self) -> None:
        """Drops descriptors and maps; a later read opens them again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a reader is built from."""

    dataset: Dataset
    files: tuple[DataFile, ...]
    """In the dataset's order; empty for a dataset in memory."""
    cache: Path
    report: Report | None = None


def not_a_text(value: object) -> Fault:
    """Returns the fault of a value that stands where a text should."""
    if value is None:
        return Fault("null", "null", "a text is a string")
    return Fault("not_text", shorten(value), "a text is a string")


def replace_surrogates(text: str) -> str:
    """Returns `text` with every surrogate code point replaced by U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)


def num_within(sizes_bytes: NDArray[np.int64], max_bytes: int) -> int:
    """Returns how many documents are read before their bytes reach `max_bytes`, that one included."""
    reached = int(np.searchsorted(np.cumsum(sizes_bytes), max_bytes, side="left"))
    return min(reached + 1, len(sizes_bytes))


def labels(files: Sequence[DataFile]) -> list[str]:
    """Returns what to call each file in messages: its name, or its path where names repeat."""
    count = Counter(file.name for file in files)
    return [file.name if count[file.name] == 1 else file.path for file in files]


def max_open(wanted: int) -> int:
    """Returns `wanted`, or less where the process may open few descriptors: others need them too."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, max(4, soft // _DESCRIPTOR_SHARE))


def changed(dataset: str, place: str, got: str) -> DataError:
    """Returns the error of a file that is not what it was when the dataset was opened."""
    return DataError.explained(
        f"dataset {dataset!r}: {place} changed during the run",
        got=got,
        rule="the files of a dataset stay as they are while it is open",
        cure="restore the file, or start again: the lock check says what differs",
    )
