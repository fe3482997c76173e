"""What readers share: the roles, the shapes they exchange and what counts as a text.

Upstream: `paths.py`. Downstream: the readers of this folder and of plugins, the spool, the loader.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from zephon.dataset import Dataset
from zephon.errors import Fault, shorten
from zephon.paths import DataFile

if TYPE_CHECKING:
    from zephon.readers.table import ChunkTable

Report = Callable[[str, int, int], None]
"""Called with (what, done, total) while a dataset is opened, from one thread at a time."""

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of an opened dataset, in file order."""

    num_documents: NDArray[np.integer[Any]]
    """(C,) documents of each chunk, all >= 1: chunks without documents are left out."""
    num_bytes: NDArray[np.integer[Any]]
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


@dataclass(slots=True)
class Tokens:
    """Documents of token ids read at random addresses."""

    tokens: NDArray[np.integer[Any]]
    """(T,) of any integer type, one document after the other."""
    lengths: NDArray[np.int64]
    """One per address that was read, a prefix of the addresses asked for; 0 where faulty."""
    faults: list[tuple[int, Fault]] = field(default_factory=list)
    """(index into `lengths`, what is wrong), ascending; usually empty."""


TOKEN = np.dtype("<u4")
"""How a column of token ids holds them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The documents of one chunk as one run of UTF-8 or, of a tokenized dataset, of `TOKEN`s."""

    data: bytes | memoryview
    """The documents, one after the other; a faulty one has no bytes."""
    offsets: NDArray[np.int64]
    """(n + 1,) document i is `data[offsets[i]:offsets[i + 1]]`; starts with 0."""
    faults: tuple[tuple[int, Fault], ...] = ()
    """(document, what is wrong), ascending."""
    replaced: tuple[int, ...] = ()
    """Documents in which lone surrogates were replaced, ascending."""

    @classmethod
    def from_values(cls, values: Iterable[object]) -> Column:
        """Returns the column of Python values; what is not a `str` becomes a fault, a `Fault` itself."""
        parts: list[bytes] = []
        faults: list[tuple[int, Fault]] = []
        replaced: list[int] = []
        for i, value in enumerate(values):
            if not isinstance(value, str):
                faults.append((i, value if isinstance(value, Fault) else not_a_text(value)))
                parts.append(b"")
                continue
            try:
                parts.append(value.encode())
            except UnicodeEncodeError:
                replaced.append(i)
                parts.append(replace_surrogates(value).encode())
        return cls._joined(parts, faults, replaced)

    @classmethod
    def from_texts(cls, found: Texts) -> Column:
        """Returns the column of texts without lone surrogates, as readers give them."""
        return cls._joined([text.encode() for text in found.texts], found.faults, found.num_replaced)

    @classmethod
    def from_token_lists(cls, values: Iterable[object]) -> Column:
        """Returns the column of lists of token ids; what is none becomes a fault."""
        parts: list[bytes] = []
        faults: list[tuple[int, Fault]] = []
        for i, value in enumerate(values):
            tokens = as_tokens(value)
            if tokens is None:
                faults.append((i, not_token_ids(value)))
            parts.append(b"" if tokens is None else tokens.tobytes())
        return cls._joined(parts, faults, [])

    def with_faults(self, faults: Sequence[tuple[int, Fault]]) -> Column:
        """Returns the column with these faults of documents without bytes over those it has."""
        merged = dict(self.faults) | dict(faults)
        return replace(self, faults=tuple(sorted(merged.items())))

    @classmethod
    def all_faulty(cls, num_documents: int, fault: Fault) -> Column:
        """Returns the column of a chunk that cannot be read."""
        return cls._joined([b""] * num_documents, [(i, fault) for i in range(num_documents)], [])

    @classmethod
    def _joined(
        cls, parts: list[bytes], faults: Sequence[tuple[int, Fault]], replaced: Sequence[int]
    ) -> Column:
        offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        return cls(data=b"".join(parts), offsets=offsets, faults=tuple(faults), replaced=tuple(replaced))


class Reader(Protocol):
    """The plugin role `zephon.datasets`: knows its chunks and reads one at a time.

    Thread-safe and picklable. All methods are pure functions of the data; what cannot be read, such as a file
    that changed, is a `DataError`. With `is_tokenized = True` its columns hold token ids. The spool makes it
    random access. What else it may have: `parts.py`.
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
    """What the loader uses: documents at random addresses. Thread-safe and picklable.

    With `is_tokenized = True` it is a `TokenReader`, and `texts` is never called.
    """

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


class TokenReader(RandomReader, Protocol):
    """A reader of documents that are tokenized already."""

    def tokens(self, chunk: NDArray[np.int64], record: NDArray[np.int64], max_bytes: int) -> Tokens:
        """Returns the token ids at (chunk[i], record[i]), in the order asked; stops as `texts` does."""
        ...


def is_tokenized(reader: object) -> bool:
    """Returns whether the documents of a reader are token ids."""
    return bool(getattr(reader, "is_tokenized", False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a reader is built from."""

    dataset: Dataset
    files: Sequence[DataFile]
    """In the dataset's order; empty for a dataset in memory."""
    cache: Path
    report: Report | None = None
    table: ChunkTable | None = None
    """The chunks, where a catalogue has them: then no file is looked at."""


def not_a_text(value: object) -> Fault:
    """Returns the fault of a value that stands where a text should."""
    if value is None:
        return Fault("null", "null", "a text is a string")
    return Fault("not_text", shorten(value), "a text is a string")


def not_utf8(raw: bytes, start: int, what: str) -> Fault:
    """Returns the fault of bytes of which that at `start` is none of UTF-8."""
    return Fault("not_utf8", f"byte 0x{raw[start]:02x} at {start} of {shorten(raw[:80])}", f"{what} is UTF-8")


def first_line(error: object) -> str:
    """Returns the first line of an error's text, for messages."""
    return (str(error).strip() or repr(error)).splitlines()[0][:200]


def as_tokens(value: object) -> NDArray[np.uint32] | None:
    """Returns a list of token ids as an array of `TOKEN`; None for what is no such list."""
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        return None
    try:
        return np.array(value, TOKEN)
    except OverflowError:
        return None


def not_token_ids(value: object) -> Fault:
    """Returns the fault of a value that stands where a list of token ids should."""
    if value is None:
        return Fault("null", "null", "a tokenized document is a list of token ids")
    return Fault("not_tokens", shorten(value), "a tokenized document is a list of whole numbers in [0, 2^32)")


def replace_surrogates(text: str) -> str:
    """Returns `text` with every surrogate code point replaced by U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)


def num_within(sizes_bytes: NDArray[np.int64], max_bytes: int) -> int:
    """Returns how many documents are read before their bytes reach `max_bytes`, that one included."""
    reached = int(np.searchsorted(np.cumsum(sizes_bytes), max_bytes, side="left"))
    return min(reached + 1, len(sizes_bytes))


def labels(files: Sequence[DataFile]) -> list[str]:
    """Returns what to call each file in messages: its name, or where it lies where names repeat."""
    count = Counter(file.name for file in files)
    return [file.name if count[file.name] == 1 else file.shown for file in files]
