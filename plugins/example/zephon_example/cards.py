"""The kind of dataset `cards`: the first line of a file counts its documents, each other line is one.

Upstream: zephon, which lists the files. Downstream: zephon's spool, which makes it random access.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from zephon import Chunks, Column, DataError, DataFile, Origin, check_file, read_range

SAMPLE_BYTES = 4 << 10


class CardsReader:
    """Documents of files of cards; a chunk is a file, and what is not UTF-8 is a bad record."""

    def __init__(self, origin: Origin) -> None:
        self.name = origin.dataset.name
        looks = [(file, *_look(self.name, file)) for file in origin.files]
        self.files: Sequence[tuple[DataFile, int, str]] = [look for look in looks if look[1]]

    def chunks(self) -> Chunks:
        """Returns a chunk for each file that has documents, weighed by its size."""
        counts = np.array([count for _, count, _ in self.files], np.int64)
        return Chunks(counts, np.array([file.size_bytes for file, _, _ in self.files], np.int64))

    def read(self, chunk: int) -> Column:
        """Returns the documents of a file; one that changed since it was listed is refused."""
        file, count, _ = self.files[chunk]
        lines = read_range(self.name, file, 0, file.size_bytes).split(b"\n")[1 : count + 1]
        check_file(self.name, file)
        return Column.from_values(map(_text, lines))

    def identity(self) -> dict[str, Any]:
        """Returns what the lock keeps: no paths and no times, so that data may move."""
        files = [[file.name, file.size_bytes, count, sample] for file, count, sample in self.files]
        num_documents = sum(count for _, count, _ in self.files)
        return {"kind": "cards", "num_documents": num_documents, "files": files}


def _text(line: bytes) -> str | bytes:
    """Returns the text of a line, or the line: what is no `str` becomes a bad record."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line


def _look(dataset: str, file: DataFile) -> tuple[int, str]:
    """Returns the number of a file's documents, and the hash of its ends, to tell it from other content."""
    head = read_range(dataset, file, 0, SAMPLE_BYTES)
    tail = read_range(dataset, file, max(0, file.size_bytes - SAMPLE_BYTES), SAMPLE_BYTES)
    check_file(dataset, file)
    line = head.partition(b"\n")[0]
    if line.isdigit():
        return int(line), hashlib.sha256(head + tail).hexdigest()[:16]
    raise DataError.explained(
        f"dataset {dataset!r}: {file.shown} is no file of cards",
        got=repr(line),
        rule="the first line is the number of documents",
        cure="mend the file, or leave it out of the dataset's path",
    )
