"""Flat files of token ids, `X.bin` or `X.npy`, with the documents' offsets beside them in `X.offsets.npy`.

Upstream: `files.py`. Downstream: `token_files.py`, which reads them. Boundaries are never taken from token
ids: whatever id ends a document may stand inside another.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib import format as npy

from zephon.dataset import Dataset
from zephon.errors import DataError, shorten
from zephon.files import read_range
from zephon.paths import DataFile
from zephon.readers.base import Origin, RandomReader, Reader, first_line
from zephon.readers.beside import INDEX, OFFSETS, file_beside, path_beside
from zephon.readers.table import Scan
from zephon.readers.token_files import (
    DTYPES,
    SCAN_DOCUMENTS,
    Cuts,
    Misfit,
    Spans,
    open_token_files,
)

HEADER_BYTES = 8 << 10
"""More than the header of an array with one dimension takes."""
TOKEN_TYPES = tuple(np.dtype(name).newbyteorder("<") for name in DTYPES if name != "int16")
OFFSET_TYPES = (np.dtype("<i8"), np.dtype("<u8"))
_DESCR = re.compile(rb"""['"]descr['"]\s*:\s*['"]([<>=|]?[biufcmMOSUV]\d{0,9})['"]""")
_SHAPE = re.compile(rb"""['"]shape['"]\s*:\s*\(([\d\s,]{0,99})\)""")
"""The fields of a header; that of structures has another `descr`."""


def open_flat(origin: Origin) -> Reader | RandomReader:
    """Returns the reader of flat files: in place where they are local, else behind the spool."""
    files = origin.files if origin.table is None else origin.table.files
    untyped = next((file for file in files if not _is_npy(file)), None)
    if untyped is not None and not origin.dataset.dtype:
        raise _no_dtype(origin.dataset.name, untyped)
    return open_token_files(origin, FlatFiles(origin.dataset, is_npy=untyped is None))


def _is_npy(file: DataFile) -> bool:
    return file.name.lower().endswith(".npy")


def _no_dtype(dataset: str, file: DataFile) -> DataError:
    return DataError.explained(
        f"dataset {dataset!r}: {file.shown} does not say what it holds",
        got=f"no `dtype`, and no {path_beside(file.name, INDEX).rpartition('/')[2]} beside it",
        rule="a flat .bin file is token ids and nothing else, so the recipe says of which type",
        cure='set dtype = "uint16" (vocabularies up to 65,536) or dtype = "uint32"',
    )


@dataclass(frozen=True, slots=True)
class Numbers:
    """An array of one dimension in a file."""

    dtype: np.dtype[Any]
    start: int
    """Its first byte."""
    count: int


class FlatFiles:
    """The layout of `X.bin` and `X.npy` with `X.offsets.npy`."""

    kind = "flat"

    def __init__(self, dataset: Dataset, *, is_npy: bool = False) -> None:
        """With `is_npy` there is no .bin file that `dtype` could be about."""
        self._name, self._dtype, self._is_npy = dataset.name, dataset.dtype, is_npy
        self._beside: dict[str, DataFile] = {}
        self._numbers: dict[str, Numbers] = {}

    def beside(self, file: DataFile) -> DataFile:
        """Returns the file of offsets."""
        found = self._beside.get(file.path)
        if found is None:
            found = file_beside(self._name, file, OFFSETS)
            if found is None:
                raise self._no_offsets(file)
            self._beside[file.path] = found
        return found

    def _no_offsets(self, file: DataFile) -> DataError:
        name = path_beside(file.name, OFFSETS).rpartition("/")[2]
        return DataError.explained(
            f"dataset {self._name!r}: {file.shown} has no offsets of its documents beside it",
            got=f"no file {name}",
            rule="boundaries are given, never guessed from an id such as EOS: where a text itself holds that "
            "id, its document would be cut in two",
            cure="write them with numpy, (n + 1,) int64 in tokens, as the documents were written:\n"
            "    lengths = [len(document) for document in documents]\n"
            f'    np.save("{name}", np.append(0, np.cumsum(lengths, dtype=np.int64)))',
        )

    def _tokens(self, file: DataFile) -> Numbers:
        """Returns the array of token ids."""
        found = self._numbers.get(file.path)
        if found is None:
            found = self._npy(file) if _is_npy(file) else self._bin(file)
            self._numbers[file.path] = found
        return found

    def _bin(self, file: DataFile) -> Numbers:
        dtype = np.dtype(self._dtype).newbyteorder("<")
        if file.size_bytes % dtype.itemsize:
            raise Misfit(f"{file.size_bytes:,} bytes of tokens, no multiple of {dtype.itemsize}")
        return Numbers(dtype, 0, file.size_bytes // dtype.itemsize)

    def _npy(self, file: DataFile) -> Numbers:
        found = self._header(file)
        if found.dtype not in TOKEN_TYPES:
            types = ", ".join(dtype.name for dtype in TOKEN_TYPES)
            raise self._other_type(file, found.dtype, f"token ids are {types}, little-endian")
        if self._is_npy and self._dtype not in ("", found.dtype.name):
            rule = f"the file holds what `dtype` says, {self._dtype}"
            raise self._other_type(file, found.dtype, rule, "leave `dtype` out: a .npy file says it itself")
        return found

    def _other_type(self, file: DataFile, dtype: np.dtype[Any], rule: str, cure: str = "") -> DataError:
        return DataError.explained(
            f"dataset {self._name!r}: {file.shown} holds other numbers",
            got=f"the type {dtype.name if dtype.isnative else dtype.str}",
            rule=rule,
            cure=cure or "save it again: np.save(name, array.astype('uint32'))",
        )

    def _offsets(self, file: DataFile) -> Numbers:
        """Returns the array of offsets."""
        beside = self.beside(file)
        found = self._numbers.get(beside.path)
        if found is None:
            found = self._header(beside)
            if found.dtype not in OFFSET_TYPES:
                rule = "offsets are int64 or uint64, little-endian"
                cure = "save them again: np.save(name, offsets.astype('int64'))"
                raise self._other_type(beside, found.dtype, rule, cure)
            self._numbers[beside.path] = found
        return found

    def _header(self, file: DataFile) -> Numbers:
        """Returns the array that a .npy file holds by its header, which is a Python literal; never unpickles.

        Its fields are looked for as writers write them: parsers of literals raise what they like, in several
        threads at once too.
        """
        stream = io.BytesIO(read_range(self._name, file, 0, HEADER_BYTES))
        try:
            version = npy.read_magic(stream)
        except ValueError as error:
            raise Misfit(f"{file.name}: {first_line(error)}") from None
        if version not in ((1, 0), (2, 0)):
            raise Misfit(f"{file.name}: version {version} of .npy, 1.0 and 2.0 are known")
        header = stream.read(int.from_bytes(stream.read(2 if version == (1, 0) else 4), "little"))
        descr, shape = _DESCR.search(header), _SHAPE.search(header)
        dtype = None if descr is None else _dtype(descr[1].decode())
        if dtype is None or shape is None:
            raise Misfit(f"{file.name}: the header {shorten(header)}")
        numbers = [int(number) for number in re.findall(rb"\d+", shape[1])]
        if len(numbers) != 1:
            raise Misfit(f"{file.name}: an array of shape {tuple(numbers)}, it has one dimension")
        [count], start = numbers, stream.tell()
        if start + count * dtype.itemsize != file.size_bytes:
            raise Misfit(f"{file.name}: {file.size_bytes:,} bytes for {count:,} x {dtype} behind {start}")
        return Numbers(dtype, start, count)

    def scan(self, file: DataFile) -> Scan:
        """Returns the chunks of a file; reads all offsets."""
        tokens, offsets = self._tokens(file), self._offsets(file)
        num_documents = offsets.count - 1
        cuts, last = Cuts(), 0
        if num_documents < 0:
            raise Misfit("no offsets at all, there is one more than documents")
        for first in range(0, max(1, num_documents), SCAN_DOCUMENTS):
            part = self._read_offsets(file, first, min(SCAN_DOCUMENTS, num_documents - first))
            if first == 0 and part[0]:
                raise Misfit(f"offsets that begin with {part[0]}, they begin with 0")
            if len(part) > 1 and int(np.diff(part).min()) < 0:
                at = first + int(np.argmin(np.diff(part) >= 0))
                raise Misfit(f"offset {at + 1} is below offset {at}, they ascend")
            if len(part) > 1:
                cuts.add(first, part[:-1])
            last = int(part[-1])
        if last != tokens.count:
            raise Misfit(f"offsets that end with {last:,}, for {tokens.count:,} tokens of {tokens.dtype}")
        return cuts.scan(num_documents, last, tokens.dtype)

    def _read_offsets(self, file: DataFile, first: int, num_documents: int) -> Any:
        offsets = self._offsets(file)
        place = offsets.start + 8 * first
        data = read_range(self._name, self.beside(file), place, 8 * (num_documents + 1))
        return np.frombuffer(data, "<i8")

    def spans(self, file: DataFile, first: int, num_documents: int) -> Spans:
        """Returns where documents lie, by one read of their offsets."""
        tokens = self._tokens(file)
        places = tokens.start + self._read_offsets(file, first, num_documents) * tokens.dtype.itemsize
        return Spans(places[:-1], np.diff(places), np.arange(num_documents + 1))


def _dtype(name: str) -> np.dtype[Any] | None:
    try:
        return np.dtype(name)
    except TypeError:
        return None
