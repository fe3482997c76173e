"""A look into one dataset before a run: sampled at pseudo-random places, its faults as findings.

Upstream: `data.py`, which opens it. Downstream: `check/__init__.py`. The places are keyed by the seed, so two
checks of one recipe look at the same documents; how many of them depends on the time allowed.
"""

from __future__ import annotations

from collections import Counter
from typing import cast

import numpy as np
from numpy.typing import NDArray

from zephon.bits import bits, key, permutation
from zephon.check.data import refusal
from zephon.check.report import Finding, failure, ok, warning
from zephon.dataset import Dataset
from zephon.errors import DataError, Fault
from zephon.prepare import check_ids
from zephon.readers import RandomReader, TokenReader, Tokens, is_tokenized
from zephon.stream_order import FILE_SHIFT
from zephon.streaming import StreamReader
from zephon.tokenizer import Encoder

SAMPLE_DOCUMENTS = 512
"""Documents sampled of a dataset at most."""
VISIT_DOCUMENTS = 16
VISIT_BYTES = 4 << 20
"""What one visit reads of a chunk at most; a dataset with few chunks is read more of at each."""
STREAM_FILES = 16
"""Files of a stream of which the first window is sampled; each is read up to there."""
FIRST_TEXTS_BYTES = 64 << 10
CURE_FAULT = 'mend the records, or set on_error = "skip" for this dataset to count them and go on'

Place = tuple[int, int]
"""Chunk and record."""


class Probe:
    """Samples one opened dataset, visit by visit."""

    def __init__(self, dataset: Dataset, reader: RandomReader, seed: int) -> None:
        self.dataset, self.reader = dataset, reader
        chunks = reader.chunks()
        counts, self._sizes = chunks.num_documents, chunks.num_bytes
        self._counts = counts
        self._seed = seed
        self._order = permutation(key("check chunks", seed, dataset.name), 0, len(counts))
        self._stream = reader if isinstance(reader, StreamReader) else None
        if self._stream is not None:
            self._order = self._order[:STREAM_FILES]
        self._visit_documents = max(VISIT_DOCUMENTS, -(-SAMPLE_DOCUMENTS // len(self._order)))
        self.sampled_chunks = self.sampled_documents = 0
        self._size = self._num_tokens = 0.0  # of all documents of the chunks that were read and counted
        self._num_filled = self._num_empty = self._num_replaced = 0
        self._faults: list[tuple[Place, Fault]] = []
        self._error: Exception | None = None
        self._waiting = 0.0  # size of the chunks of what was read, and is not counted yet
        self._texts: list[str] = []
        self._weights: list[float] = []  # of each text: how many documents of its chunk it stands for
        self._tokens: list[tuple[int, NDArray[np.int64], Tokens, float]] = []
        self._unmarked = {"begin": 0, "end": 0}
        self._marks: dict[str, int | None] = {"begin": None, "end": None}

    def visit(self) -> bool:
        """Reads the next places; returns whether there are more to read."""
        if self._error is not None or self.sampled_documents >= SAMPLE_DOCUMENTS:
            return False
        if self.sampled_chunks == len(self._order):
            return False
        chunk = int(self._order[self.sampled_chunks])
        try:
            if self._stream is None:
                count = int(self._counts[chunk])
            else:
                count = self._stream.window_records(chunk, 0)
            record = self._places(chunk, count)
            num_read = self._read(chunk if self._stream is None else chunk << FILE_SHIFT, record, count)
        except (DataError, OSError) as error:
            self._error = error
            return False
        self.sampled_chunks += 1
        self.sampled_documents += num_read
        self._waiting += count if self._stream is not None else float(self._sizes[chunk])
        return True

    def _read(self, chunk: int, record: NDArray[np.int64], count: int) -> int:
        """Reads records of a chunk of `count`; returns how many."""
        if not len(record):
            return 0
        if is_tokenized(self.reader):
            reader = cast(TokenReader, self.reader)
            tokens = reader.tokens(np.full_like(record, chunk), record, VISIT_BYTES)
            self._tokens.append((chunk, record, tokens, count / len(tokens.lengths)))
            return len(tokens.lengths)
        found = self.reader.texts(np.full_like(record, chunk), record, VISIT_BYTES)
        faulty = {index for index, _ in found.faults}
        self._faults += [((chunk, int(record[index])), fault) for index, fault in found.faults]
        self._num_replaced += len(found.num_replaced)
        self._num_empty += sum(not t for i, t in enumerate(found.texts) if i not in faulty)
        texts = [text for text in found.texts if text]
        self._texts += texts
        self._weights += [count / len(found.texts)] * len(texts)
        return len(found.texts)

    def _places(self, chunk: int, count: int) -> NDArray[np.int64]:
        """Returns the records of a chunk of `count` to read, ascending."""
        if count <= self._visit_documents:
            return np.arange(count, dtype=np.int64)
        chosen = bits(
            key("check documents", self._seed, self.dataset.name, chunk), np.arange(self._visit_documents)
        )
        return np.unique(chosen % np.uint64(count)).astype(np.int64)

    def first_texts(self) -> list[str]:
        """Returns some of the texts read, for comparing the back ends of the tokenizer; none of token ids."""
        texts, size = [], 0
        for text in self._texts:
            texts.append(text)
            size += len(text)
            if size >= FIRST_TEXTS_BYTES:
                break
        return texts

    def encode(self, encoder: Encoder) -> None:
        """Counts the tokens of what was read since the last call."""
        try:
            offsets = encoder.encode(self._texts)[1] if self._texts else [0]
        except DataError as error:
            self._error = error
        else:
            self._size += self._waiting
            self._num_tokens += float(np.diff(offsets) @ np.array(self._weights))
        for chunk, record, found, weight in self._tokens:
            self._num_tokens += weight * len(found.tokens)
            self._count(chunk, record, found, encoder)
        self._waiting, self._texts, self._weights, self._tokens = 0.0, [], [], []

    def _count(self, chunk: int, record: NDArray[np.int64], found: Tokens, encoder: Encoder) -> None:
        """Counts documents of token ids, their faults, and those that do not begin and end as texts would."""
        check_ids(found, encoder.vocab_size)
        faulty = {index for index, _ in found.faults}
        self._faults += [((chunk, int(record[index])), fault) for index, fault in found.faults]
        filled = found.lengths > 0
        self._num_empty += int((~filled).sum()) - len(faulty)
        self._num_filled += int(filled.sum())
        self._marks = {"begin": encoder.bos_id, "end": encoder.eos_id}
        ends = np.cumsum(found.lengths)[filled]
        places = {"begin": ends - found.lengths[filled], "end": ends - 1}
        for where, mark in self._marks.items():
            if mark is not None:
                self._unmarked[where] += int((found.tokens[places[where]] != mark).sum())

    def _mark_findings(self, subject: str) -> list[Finding]:
        """Returns warnings of BOS and EOS that the recipe asks for and documents of token ids lack."""
        found = []
        for where, name in (("begin", "bos"), ("end", "eos")):
            if count := self._unmarked[where]:
                message = f"{count} of {self._num_filled} documents sampled do not {where} with the recipe's "
                message += f"{name.upper()} (id {self._marks[where]}): token ids are taken as they are"
                cure = f"write the documents with their {name.upper()}, or set {name} = false in [tokenize]"
                found.append(warning(subject, message, cure))
        return found

    @property
    def tokens_per_document(self) -> float | None:
        """Returns the mean, documents without text included; None without any tokens.

        As many documents are read of each chunk, and chunks hold few long ones or many short ones: those read
        of a chunk stand for all of it, and the chunks read for all others by their bytes.
        """
        if not self._num_tokens:
            return None
        if self._stream is not None:
            return self._num_tokens / self._size
        whole = float(self._sizes.sum(dtype=np.int64))
        return self._num_tokens * whole / self._size / int(self._counts.sum(dtype=np.int64))

    def findings(self) -> list[Finding]:
        """Returns what the visits found."""
        subject = f"dataset {self.dataset.name}"
        found = [] if self._error is None else [refusal(subject, self._error)]
        found += self._fault_findings(subject) + self._mark_findings(subject)
        field, what = (
            (self.dataset.tokens, "tokens") if is_tokenized(self.reader) else (self.dataset.text, "text")
        )
        if self.sampled_documents and self._num_empty == self.sampled_documents - len(self._faults):
            message = f"none of the {self.sampled_documents} documents sampled has {what}"
            cure = f"a dataset with a share needs {what}"
            cure = (
                f"look at field {field!r}; {cure}" if field else f"look at the documents' boundaries; {cure}"
            )
            found.append(failure(subject, message, cure))
        elif self._num_empty * 10 > self.sampled_documents:
            message = f"{self._num_empty} of {self.sampled_documents} documents sampled are empty"
            cure = f"see that `{what}` names the right field; empty documents are counted and passed over"
            found.append(warning(subject, message, cure))
        if self._num_replaced:
            message = f"{self._num_replaced} documents sampled hold lone surrogates; each becomes U+FFFD"
            found.append(warning(subject, message, "repair the texts"))
        if not found:
            found.append(ok(subject, self._looked_at()))
        return found

    def _fault_findings(self, subject: str) -> list[Finding]:
        """Returns one finding for each kind of fault, with the first place of it."""
        stops = self.dataset.on_error == "raise"
        kinds = Counter(fault.kind for _, fault in self._faults)
        found = []
        for kind, count in sorted(kinds.items()):
            (chunk, record), fault = next(entry for entry in self._faults if entry[1].kind == kind)
            file, number = self.reader.where(chunk, record)
            message = (
                f"{count} of {self.sampled_documents} records sampled cannot be used ({kind}), "
                f"first record {number} of {file}\n  got:  {fault.got}\n  rule: {fault.rule}"
            )
            skipped = f"they are skipped; a lane stops at more than {self.dataset.max_bad}"
            found.append(
                failure(subject, message, CURE_FAULT) if stops else warning(subject, message, skipped)
            )
        return found

    def _looked_at(self) -> str:
        if self._stream is not None:
            files = f"{self.sampled_chunks:,} of {len(self._counts):,} files"
            read = f"{self.sampled_documents:,} documents read, of the first records of {files}"
            return f"{read}, no fault; the others were not looked at"
        total, chunks = int(self._counts.sum()), len(self._counts)
        if self.sampled_documents == total:
            return f"all {total:,} documents read, no fault"
        sampled = f"{self.sampled_documents:,} of {total:,} documents"
        where = f"{self.sampled_chunks:,} of {chunks:,} chunks"
        return f"{sampled} read, in {where}, no fault; the others were not looked at"
