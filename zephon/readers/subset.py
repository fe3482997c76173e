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


class PartReader:
    """Some documents of a reader; base of those that say which."""

    def __init__(self, reader: RandomReader, chunks: Chunks) -> None:
        self.name, self.reader, self.is_tokenized = reader.name, reader, is_tokenized(reader)
        self._chunks = chunks

    def chunks(self) -> Chunks:
        """Returns what is left of each chunk of the reader of which anything is."""
        return self._chunks

    def texts(self, chunk: Int64, record: Int64, max_bytes: int) -> Texts:
        """Returns the documents at (chunk[i], record[i]), in the order asked."""
        return self.reader.texts(chunk, record, max_bytes)

    def tokens(self, chunk: Int64, record: Int64, max_bytes: int) -> Tokens:
        """Returns the token ids at (chunk[i], record[i]), in the order asked."""
        return cast(TokenReader, self.reader).tokens(chunk, record, max_bytes)

    def where(self, chunk: int, record: int) -> tuple[str, int]:
        """Returns the file and the record in it, as the reader of the whole dataset does."""
        return self.reader.where(chunk, record)

    def identity(self) -> dict[str, Any]:
        """Returns the identity of the whole dataset: recipe and lock say which documents these are."""
        return self.reader.identity()

    def close(self) -> None:
        """Closes the reader."""
        self.reader.close()


class PrefixReader(PartReader):
    """The first documents of a reader; its last chunk may be a part of the reader's."""

    def __init__(self, reader: RandomReader, num_documents: int) -> None:
        """Takes at most `num_documents` >= 1."""
        chunks = reader.chunks()
        ends = np.cumsum(chunks.num_documents, dtype=np.int64)
        count = min(len(ends), int(np.searchsorted(ends, num_documents)) + 1)
        counts, sizes = np.array(chunks.num_documents[:count]), np.array(chunks.num_bytes[:count])
        kept = counts[-1] - max(0, int(ends[count - 1]) - num_documents)
        sizes[-1] = max(1, int(sizes[-1]) * int(kept) // int(counts[-1]))
        counts[-1] = kept
        super().__init__(reader, Chunks(counts, sizes))


class SubsetReader(PartReader):
    """The given documents of a reader, in file order; a chunk is what is left of one of the reader's.

    Chunks are weighed by the mean of those that they are parts of.
    """

    def __init__(self, reader: RandomReader, documents: Int64) -> None:
        """Takes `documents`, (k,) ascending, k >= 1, numbered through all chunks of `reader`."""
        self.documents = documents
        chunks = reader.chunks()
        ends = np.cumsum(chunks.num_documents, dtype=np.int64)
        places = np.append(0, np.searchsorted(documents, ends))
        self.parts = np.flatnonzero(np.diff(places))  # (C,) the reader's chunk of each
        self._firsts = places[self.parts]  # (C,) the first of `documents` of each
        self._ahead = (ends - chunks.num_documents)[self.parts]  # (C,) documents ahead of that chunk
        counts = places[self.parts + 1] - self._firsts
        mean_bytes = chunks.num_bytes[self.parts] // chunks.num_documents[self.parts]
        super().__init__(reader, Chunks(counts, np.maximum(1, mean_bytes) * counts))

    def inside(self, chunk: int) -> tuple[int, Int64]:
        """Returns the reader's chunk that `chunk` is a part of, and which records of it."""
        first = int(self._firsts[chunk])
        last = first + int(self._chunks.num_documents[chunk])
        return int(self.parts[chunk]), self.documents[first:last] - self._ahead[chunk]

    def _records(self, chunk: Int64, record: Int64) -> Int64:
        found: Int64 = self.documents[self._firsts[chunk] + record] - self._ahead[chunk]
        return found

    def texts(self, chunk: Int64, record: Int64, max_bytes: int) -> Texts:
        """Returns the documents at (chunk[i], record[i]), in the order asked."""
        return self.reader.texts(self.parts[chunk], self._records(chunk, record), max_bytes)

    def tokens(self, chunk: Int64, record: Int64, max_bytes: int) -> Tokens:
        """Returns the token ids at (chunk[i], record[i]), in the order asked."""
        return super().tokens(self.parts[chunk], self._records(chunk, record), max_bytes)

    def where(self, chunk: int, record: int) -> tuple[str, int]:
        """Returns the file and the record in it, as the reader of the whole dataset does."""
        number = int(self.documents[int(self._firsts[chunk]) + record])
        return self.reader.where(int(self.parts[chunk]), number - int(self._ahead[chunk]))


def whole(reader: RandomReader) -> RandomReader:
    """Returns the reader of all documents, of which `reader` may be a part."""
    while isinstance(reader, PartReader):
        reader = reader.reader
    return reader


def chunks_of_whole(reader: RandomReader) -> Int64:
    """Returns the chunk of the whole dataset that each of the reader's is a part of: (C,) ascending."""
    found = np.arange(len(reader.chunks().num_documents))
    while isinstance(reader, PartReader):
        found = reader.parts[found] if isinstance(reader, SubsetReader) else found
        reader = reader.reader
    return found
