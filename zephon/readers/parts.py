"""What a reader may have besides its role, and the one way to ask whether it has it.

Upstream: the roles of `base.py`. Downstream: the spool, streams and conditions, which do more where they may.
A part counts only where it is whole; but for `WithColumns` and `RecordSource`, only of readers whose `table`
is a `ChunkTable`, so an attribute of a plugin that happens to have such a name means nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from zephon.paths import DataFile
from zephon.readers.base import Column, RandomReader, is_tokenized
from zephon.readers.table import ChunkTable

if TYPE_CHECKING:
    from zephon.views import View
    from zephon.where import Where


class WithColumns(Protocol):
    """Records with columns besides their text: for `where`, sorted orders, `partition` and `zephon data`."""

    def values(self, chunk: int, columns: tuple[str, ...]) -> Any:
        """Returns columns of all records of a chunk, in file order, as a table of Arrow."""
        ...


class RecordSource(Protocol):
    """A format of which files can be read in order; what its reader is where a dataset has `stream`."""

    kind: str

    def records(self, file: DataFile) -> Iterator[Sequence[Any]]:
        """Yields the raw records of a file in order, some at a time; a `Fault` stands for a damaged one."""
        ...

    def column(self, raws: Sequence[Any]) -> Column:
        """Returns the documents of raw records."""
        ...

    def sample(self, file: DataFile) -> str:
        """Returns the hash of some of the file's bytes."""
        ...


class Tabled(Protocol):
    """Chunks by file: messages name files, remote ones are read together, catalogues list them."""

    table: ChunkTable


class ByFile(Tabled, Protocol):
    """Files that can only be read from their start: the spool reads one once for all its chunks."""

    def read_file(self, number: int) -> Iterator[Column]:
        """Yields the columns of all chunks of a file, in order."""
        ...


class ColumnsByFile(Tabled, Protocol):
    """The columns of such files."""

    def file_values(self, number: int, columns: tuple[str, ...]) -> Iterator[Any]:
        """Yields what `WithColumns.values` returns of each chunk of a file, in order."""
        ...


class InPlace(Tabled, Protocol):
    """Chunks of which some can be read where they lie, without a spool file."""

    def view(self, chunk: int) -> View | None:
        """Returns the chunk as it lies in a local file; None for one that has to be expanded."""
        ...

    def check(self, chunks: NDArray[np.int64]) -> None:
        """Raises `DataError` if a file in which one of these chunks is open has changed."""
        ...

    def close(self) -> None:
        """Drops descriptors; a later read opens them again."""
        ...


class Pruning(Tabled, Protocol):
    """Chunks of which metadata tell that no record meets a condition: they are not read for it."""

    def without(self, number: int, where: Where) -> frozenset[int]:
        """Returns the chunks of a file that cannot meet a condition."""
        ...


class SpoolKeyed(Tabled, Protocol):
    """Documents that depend on more than their file: a spool file is made anew where that changes."""

    def spool_key(self, number: int) -> list[object]:
        """Returns what else decides what is read of a file, such as the stamps of one beside it."""
        ...


def table_of(reader: object) -> ChunkTable | None:
    """Returns the table of a reader's chunks; None for one that has none."""
    found = getattr(reader, "table", None)
    return found if isinstance(found, ChunkTable) else None


def random_access(reader: object) -> RandomReader | None:
    """Returns the reader if it reads documents at random addresses by itself."""
    read = "tokens" if is_tokenized(reader) else "texts"
    return cast(RandomReader, reader) if _has(reader, read, "where", "close") else None


def record_source(reader: object) -> RecordSource | None:
    """Returns the reader if its files can be read in order."""
    return cast(RecordSource, reader) if _has(reader, "records", "column", "sample") else None


def with_columns(reader: object) -> WithColumns | None:
    """Returns the reader if it has columns."""
    return cast(WithColumns, reader) if _has(reader, "values") else None


def by_file(reader: object) -> ByFile | None:
    """Returns the reader if it reads a file at once."""
    return cast(ByFile, reader) if _is_tabled(reader, "read_file") else None


def columns_by_file(reader: object) -> ColumnsByFile | None:
    """Returns the reader if it reads the columns of a file at once."""
    return cast(ColumnsByFile, reader) if _is_tabled(reader, "file_values") else None


def in_place(reader: object) -> InPlace | None:
    """Returns the reader if some of its chunks are read where they lie."""
    return cast(InPlace, reader) if _is_tabled(reader, "view", "check", "close") else None


def pruning(reader: object) -> Pruning | None:
    """Returns the reader if it can tell chunks that meet no condition."""
    return cast(Pruning, reader) if _is_tabled(reader, "without") else None


def spool_key(reader: object, number: int) -> list[object]:
    """Returns what, besides a file itself, decides what is read of it; nothing for most readers."""
    return cast(SpoolKeyed, reader).spool_key(number) if _is_tabled(reader, "spool_key") else []


def source_of(reader: object) -> object:
    """Returns the reader of the format, which may be behind a spool."""
    from zephon.spool import Spool  # which asks here for what its reader has

    return reader.reader if isinstance(reader, Spool) else reader


def _is_tabled(reader: object, *names: str) -> bool:
    return table_of(reader) is not None and _has(reader, *names)


def _has(reader: object, *names: str) -> bool:
    return all(callable(getattr(reader, name, None)) for name in names)
