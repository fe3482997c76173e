"""Datasets in memory: the texts are in the description itself.

Upstream: `Dataset.from_documents`. Downstream: the loader. For notebooks, tests and small evaluations.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon.errors import Fault
from zephon.readers.base import Chunks, Origin, Texts, not_a_text, num_within, replace_surrogates

CHUNK_DOCUMENTS = 1000


class MemoryReader:
    """Documents of a tuple, in chunks of 1,000."""

    def __init__(self, origin: Origin) -> None:
        self.name = origin.dataset.name
        self._texts: list[str] = []
        self._faults: dict[int, Fault] = {}
        self._replaced: set[int] = set()
        sizes: list[int] = []
        digest = hashlib.sha256()
        for i, document in enumerate(origin.dataset.documents or ()):
            text = self._take(i, document)
            raw = text.encode()
            self._texts.append(text)
            sizes.append(len(raw))
            mark = self._faults[i].kind if i in self._faults else ""
            digest.update(f"{len(raw)} {mark}\n".encode() + raw)
        self._sizes = np.array(sizes, np.int64)  # (num_documents,) int64
        self._sha256 = digest.hexdigest()

    def _take(self, i: int, document: object) -> str:
        """Returns the text that stands for document `i`, noting what is wrong with it."""
        if not isinstance(document, str):
            self._faults[i] = not_a_text(document)
            return ""
        text = replace_surrogates(document)
        if text != document:
            self._replaced.add(i)
        return text

    def chunks(self) -> Chunks:
        """Returns the chunks, weighed by UTF-8 length."""
        firsts = np.arange(0, len(self._texts), CHUNK_DOCUMENTS)
        counts = np.diff(np.append(firsts, len(self._texts))).astype(np.int64)
        sums = np.add.reduceat(self._sizes, firsts) if len(firsts) else self._sizes
        return Chunks(counts, sums.astype(np.int64))

    def texts(self, chunk: NDArray[np.int64], record: NDArray[np.int64], max_bytes: int) -> Texts:
        """Returns the documents at (chunk[i], record[i]), in the order asked."""
        documents = chunk * CHUNK_DOCUMENTS + record
        read = documents[: num_within(self._sizes[documents], max_bytes)].tolist()
        texts = Texts([self._texts[i] for i in read])
        if self._faults or self._replaced:
            texts.faults = [(k, self._faults[i]) for k, i in enumerate(read) if i in self._faults]
            texts.num_replaced = [k for k, i in enumerate(read) if i in self._replaced]
        return texts

    def where(self, chunk: int, record: int) -> tuple[str, int]:
        """Returns the dataset's name and the document's index."""
        return self.name, chunk * CHUNK_DOCUMENTS + record

    def identity(self) -> dict[str, Any]:
        """Returns the kind, the count and the hash of all texts."""
        return {"kind": "memory", "num_documents": len(self._texts), "files": [], "sha256": self._sha256}

    def close(self) -> None:
        """Does nothing: there is nothing to close."""
