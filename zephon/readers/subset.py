"""Some documents of a dataset as if they were all of it.

Upstream: an opened reader, and `selection.py` or `holdout.py`, which say which documents. Downstream: the
loader.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from zephon.readers.base import Chunks, RandomReader, Texts, TokenReader, Tokens, is_tokenized

Int64 = NDArray[np.int64]


class SubsetReader:
    """The given documents of a reader, in file order; a chunk is what is left of one of the reader's."""

    def __init__(self, reader: RandomReader, documents: Int64) -> None:
        """Takes `documents`, (k,) ascending, k >= 1, numbered through all chunks of `reader`."""
        self.name = reader.name
        self.reader = reader
        self.is_tokenized = is_tokenized(reader)
        chunks = reader.chunks()
        firsts = np.cumsum(chunks.num_documents, dtype=np.int64) - chunks.num_documents
        self._chunk = np.searchsorted(firsts, documents, side="right") - 1  # (k,) int64
        self._record = documents - firsts[self._chunk]  # (k,) int64
        used, self._firsts, counts = np.unique(self._chunk, return_index=True, return_counts=True)
        mean_bytes = chunks.num_bytes[used] // chunks.num_documents[used]
        self._chunks = Chunks(counts, np.maximum(1, mean_bytes) * counts)

    def chunks(self) -> Chunks:
        """Returns the chunks, weighed by the mean of those that they are parts of."""
        return self._chunks

    def inside(self, chunk: int) -> tuple[int, Int64]:
        """Returns the reader's chunk that `chunk` is a part of, and which records of it."""
        first = int(self._firsts[chunk])
        last = first + int(self._chunks.num_documents[chunk])
        return int(self._chunk[first]), self._record[first:last]

    def texts(self, chunk: Int64, record: Int64, max_bytes: int) -> Texts:
        """Returns the documents at (chunk[i], record[i]), in the order asked."""
        place = self._firsts[chunk] + record
        return self.reader.texts(self._chunk[place], self._record[place], max_bytes)

    def tokens(self, chunk: Int64, record: Int64, max_bytes: int) -> Tokens:
        """Returns the token ids at (chunk[i], record[i]), in the order asked."""
        place = self._firsts[chunk] + record
        reader = cast(TokenReader, self.reader)
        return reader.tokens(self._chunk[place], self._record[place], max_bytes)

    def where(self, chunk: int, record: int) -> tuple[str, int]:
        """Returns the file and the record in it, as the reader of the whole dataset does."""
        place = int(self._firsts[chunk]) + record
        return self.reader.where(int(self._chunk[place]), int(self._record[place]))

    def identity(self) -> dict[str, Any]:
        """Returns the identity of the whole dataset: recipe and lock say which documents these are."""
        return self.reader.identity()

    def close(self) -> None:
        """Closes the reader."""
        self.reader.close()


class PrefixReader:
    """The first documents of a reader."""

    def __init__(self, reader: RandomReader, num_documents: int) -> None:
        """Takes at most `num_documents` >= 1."""
        self.name = reader.name
        self.reader = reader
        self.is_tokenized = is_tokenized(reader)
        chunks = reader.chunks()
        ends = np.cumsum(chunks.num_documents, dtype=np.int64)
        count = min(len(ends), int(np.searchsorted(ends, num_documents)) + 1)
        counts, sizes = np.array(chunks.num_documents[:count]), np.array(chunks.num_bytes[:count])
        kept = counts[-1] - max(0, int(ends[count - 1]) - num_documents)
        sizes[-1] = max(1, int(sizes[-1]) * int(kept) // int(counts[-1]))
        counts[-1] = kept
        self._chunks = Chunks(counts, sizes)

    def chunks(self) -> Chunks:
        """Returns the chunks, of which the last may be a part of the reader's."""
        return self._chunks

    def texts(self, chunk: Int64, record: Int64, max_bytes: int) -> Texts:
        """Returns the documents at (chunk[i], record[i]), in the order asked."""
        return self.reader.texts(chunk, record, max_bytes)

    def tokens(self, chunk: Int64, record: Int64, max_bytes: int) -> Tokens:
        """Returns the token ids at (chunk[i], record[i]), in the order asked."""
        return cast(TokenReader, self.reader).tokens(chunk, record, max_bytes)

    def where(self, chunk: int, record: int) -> tuple[str, int]:
        """Returns the file and the record in it."""
        return self.reader.where(chunk, record)

    def identity(self) -> dict[str, Any]:
        """Returns the identity of the whole dataset: the recipe says that only these are read."""
        return self.reader.identity()

    def close(self) -> None:
        """Closes the reader."""
        self.reader.close()
