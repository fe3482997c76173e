"""Megatron's indexed datasets: `X.bin` with token ids, and `X.idx` that says where its documents lie.

Upstream: `files.py`. Downstream: `token_files.py`, which reads them. An index is a header, the tokens of each
sequence (int32), the byte at which each begins (int64) and the first sequence of each document (int64).
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.files import read_range
from zephon.paths import DataFile
from zephon.readers.base import Origin, RandomReader, Reader
from zephon.readers.beside import INDEX, file_beside, path_beside
from zephon.readers.table import Scan
from zephon.readers.token_files import (
    DTYPES,
    SCAN_DOCUMENTS,
    Cuts,
    Misfit,
    Spans,
    open_token_files,
)

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
CODES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"
}  # fmt: skip
_HEADER = struct.Struct("<9sQBQQ")

Int64 = NDArray[np.int64]


def open_megatron(origin: Origin) -> Reader | RandomReader:
    """Returns the reader of indexed datasets: in place where they are local, else behind the spool."""
    return open_token_files(origin, MegatronFiles(origin.dataset))


class Index(NamedTuple):
    """What the header of an index says."""

    dtype: np.dtype[Any]
    num_sequences: int
    num_documents: int


class MegatronFiles:
    """The layout of `X.bin` with `X.idx`."""

    kind = "megatron"

    def __init__(self, dataset: Dataset) -> None:
        self._name, self._dtype = dataset.name, dataset.dtype
        self._beside: dict[str, DataFile] = {}
        self._indexes: dict[str, Index] = {}

    def beside(self, file: DataFile) -> DataFile:
        """Returns the file of the index."""
        found = self._beside.get(file.path)
        if found is None:
            if not file.name.lower().endswith(".bin"):
                raise self._no_pair(file, f"{file.name}, whose tokens are not listed", "give the .bin files")
            found = file_beside(self._name, file, INDEX)
            if found is None:
                got = f"no file {path_beside(file.name, INDEX).rpartition('/')[2]}"
                raise self._no_pair(file, got, "copy the .idx file there; a .bin alone is of kind flat")
            self._beside[file.path] = found
        return found

    def _no_pair(self, file: DataFile, got: str, cure: str) -> DataError:
        return DataError.explained(
            f"dataset {self._name!r}: {file.shown} is half an indexed dataset",
            got=got,
            rule="an indexed dataset is X.bin with X.idx beside it",
            cure=cure,
        )

    def _index(self, file: DataFile) -> Index:
        found = self._indexes.get(file.path)
        if found is None:
            found = self._indexes[file.path] = self._read_header(self.beside(file))
        return found

    def _read_header(self, beside: DataFile) -> Index:
        head = read_range(self._name, beside, 0, _HEADER.size)
        if len(head) < _HEADER.size or not head.startswith(MAGIC):
            raise Misfit(f"{beside.size_bytes:,} bytes that begin with {head[: len(MAGIC)]!r}, not {MAGIC!r}")
        _, version, code, num_sequences, num_edges = _HEADER.unpack(head)
        if version != VERSION or code not in CODES or num_edges < 1:
            raise Misfit(f"version {version}, type {code}, {num_edges} document edges")
        expected = _HEADER.size + 12 * num_sequences + 8 * num_edges
        if num_sequences and beside.size_bytes == expected + num_sequences:
            raise self._other_kind(beside, "modes of the sequences", "multimodal datasets are not read")
        if beside.size_bytes != expected:
            got = f"{beside.size_bytes:,} bytes for {num_sequences:,} sequences and {num_edges:,} edges"
            raise Misfit(f"{got}, which take {expected:,}")
        if CODES[code] not in DTYPES:
            raise self._other_kind(beside, f"the type {CODES[code]}", f"token ids are {', '.join(DTYPES)}")
        dtype = np.dtype(CODES[code]).newbyteorder("<")
        if self._dtype not in ("", dtype.name):
            rule = f"the file holds what `dtype` says, {self._dtype}; leave it out: the index says it itself"
            raise self._other_kind(beside, f"the type {dtype.name}", rule)
        return Index(dtype, num_sequences, num_edges - 1)

    def _other_kind(self, beside: DataFile, got: str, rule: str) -> DataError:
        return DataError.explained(
            f"dataset {self._name!r}: {beside.shown} describes what cannot be read",
            got=got,
            rule=rule,
            cure="write the dataset again with token ids as uint16 or int32",
        )

    def scan(self, file: DataFile) -> Scan:
        """Returns the chunks of a file; reads all of its index."""
        index = self._index(file)
        walk = _Walk(index, file.size_bytes)
        for first in range(0, index.num_documents, SCAN_DOCUMENTS):
            count = min(SCAN_DOCUMENTS, index.num_documents - first)
            walk.add(first, *self._read(file, first, count))
        return walk.end()

    def _read(self, file: DataFile, first: int, num_documents: int) -> tuple[Int64, Int64, Int64]:
        """Returns (edges (n + 1,), sizes in bytes, pointers) of documents and their sequences."""
        index, beside = self._index(file), self.beside(file)

        def numbers(start: int, width: int, begin: int, end: int) -> Int64:
            data = read_range(self._name, beside, start + width * begin, width * (end - begin))
            return np.frombuffer(data, f"<i{width}").astype(np.int64, copy=False)

        sizes_at = _HEADER.size
        pointers_at = sizes_at + 4 * index.num_sequences
        edges_at = pointers_at + 8 * index.num_sequences
        edges = numbers(edges_at, 8, first, first + num_documents + 1)
        begin, end = int(edges[0]), int(edges[-1])
        if not 0 <= begin <= end <= index.num_sequences or int(np.diff(edges).min()) < 0:
            got = f"{beside.name}: documents from sequence {begin} to {end} of {index.num_sequences:,}"
            raise Misfit(f"{got}, they ascend")
        sizes = numbers(sizes_at, 4, begin, end) * index.dtype.itemsize
        return edges, sizes, numbers(pointers_at, 8, begin, end)

    def spans(self, file: DataFile, first: int, num_documents: int) -> Spans:
        """Returns where documents lie, by three reads of the index."""
        edges, sizes, pointers = self._read(file, first, num_documents)
        return Spans(pointers, sizes, edges - edges[0])


class _Walk:
    """Goes through the documents of an index once: checks them and cuts them into chunks."""

    def __init__(self, index: Index, size_bytes: int) -> None:
        self._index, self._size_bytes = index, size_bytes
        self._cuts = Cuts()
        self._sequences = self._tokens = self._breaks = 0
        self._end = 0  # the byte at which the last sequence ended
        self._upto: list[Int64] = []
        self._before: list[Int64] = []

    def add(self, first: int, edges: Int64, sizes: Int64, pointers: Int64) -> None:
        """Takes the documents from `first` on, as `MegatronFiles._read` gives them."""
        if int(edges[0]) != self._sequences:
            raise Misfit(f"documents begin with sequence {edges[0]}, they begin with {self._sequences}")
        ends = pointers + sizes
        if len(sizes) and (min(int(sizes.min()), int(pointers.min())) < 0 or ends.max() > self._size_bytes):
            raise Misfit(f"a sequence outside of the {self._size_bytes:,} bytes of tokens")
        breaks = pointers != np.append(self._end, ends[:-1])[: len(pointers)]
        upto = np.append(np.cumsum(breaks), int(breaks.sum())) + self._breaks  # breaks up to each sequence
        width = self._index.dtype.itemsize
        starts = np.append(0, np.cumsum(sizes // width)) + self._tokens
        local = edges - edges[0]
        begins = local[:-1][self._cuts.add(first, starts[local[:-1]])]
        self._upto.append(upto[begins])
        self._before.append(upto[begins] - np.append(breaks, False)[begins])
        self._sequences, self._tokens = int(edges[-1]), int(starts[-1])
        self._breaks = int(upto[-1])
        self._end = int(ends[-1]) if len(ends) else self._end

    def end(self) -> Scan:
        """Returns the chunks; those with a break inside are scattered."""
        index, width = self._index, self._index.dtype.itemsize
        if self._sequences != index.num_sequences:
            raise Misfit(f"documents end with sequence {self._sequences:,} of {index.num_sequences:,}")
        if not self._breaks and self._tokens * width != self._size_bytes:
            got = f"sequences of {self._tokens:,} tokens of {index.dtype}"
            raise Misfit(f"{got} for {self._size_bytes:,} bytes")
        upto = np.concatenate([np.empty(0, np.int64), *self._upto])
        ends = np.concatenate([np.empty(0, np.int64), *self._before, [self._breaks]])[1:]
        scattered = (ends > upto).astype(np.int64)
        return self._cuts.scan(index.num_documents, self._tokens, index.dtype, scattered[: len(upto)])
