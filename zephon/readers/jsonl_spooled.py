"""JSONL datasets that are remote or compressed: whole chunks, for the spool to expand.

Upstream: `files.py`. Downstream: the spool. Chunks are cut as those of plain local files are, so the same
records in another place or compression are read in the same order. A remote file is read by the byte ranges
of its chunks; a compressed one only from its start, all its chunks in one pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from zephon.errors import DataError, Fault
from zephon.files import check_file, open_file, read_range
from zephon.paths import DataFile
from zephon.readers.base import Chunks, Column, Origin
from zephon.readers.json_records import parse_column, parse_values, split_lines
from zephon.readers.jsonl import sample, scan_of
from zephon.readers.lines import BUFFER_BYTES, BYTE_ORDER_MARK, record_starts
from zephon.readers.table import Advance, Scan, open_table

CODECS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2"}
DAMAGED_RULE = "a file is complete, and as its compression wrote it"

Int64 = NDArray[np.int64]


def compression(file: DataFile) -> str:
    """Returns the suffix of the file's name that says how it is compressed; empty where it is not."""
    return next((suffix for suffix in CODECS if file.name.lower().endswith(suffix)), "")


def is_compressed(file: DataFile) -> bool:
    """Returns whether the file's name says that it is compressed."""
    return bool(compression(file))


@contextmanager
def open_expanded(dataset: str, file: DataFile) -> Iterator[Any]:
    """Gives the file's bytes, expanded, to be read in order: an object with `read(size)`."""
    with open_file(dataset, file) as raw:
        if not is_compressed(file):
            yield raw
            return
        with pa.CompressedInputStream(pa.PythonFile(raw, "r"), CODECS[compression(file)]) as stream:
            yield stream


class Expanding:
    """The expanded bytes of a file in order, up to where it is damaged."""

    def __init__(self, dataset: str, file: DataFile, *, skip: bool) -> None:
        """With `skip` damage ends the bytes and `fault` says what it is; else it is an error."""
        self._dataset, self._file, self._skip = dataset, file, skip
        self.fault: Fault | None = None
        self.ends_in_record = False
        """Whether the last of the bytes is not a line end."""

    def __iter__(self) -> Iterator[bytes]:
        with open_expanded(self._dataset, self._file) as stream:
            while buffer := self._read(stream):
                self.ends_in_record = not buffer.endswith(b"\n")
                yield buffer

    def _read(self, stream: Any) -> bytes:
        try:
            return bytes(stream.read(BUFFER_BYTES))
        except (OSError, pa.ArrowInvalid) as error:
            check_file(self._dataset, self._file)  # a file that has changed is no damaged one
            got = str(error).splitlines()[0][:200]
            if self._skip:
                self.fault = Fault("damaged", got, DAMAGED_RULE)
                return b""
            raise DataError.explained(
                f"dataset {self._dataset!r}: {self._file.shown} is damaged",
                got=got,
                rule=DAMAGED_RULE,
                cure="write or download the file again, leave it out of the dataset's path, or set "
                'on_error = "skip" to read what comes before the damage and count the rest as one bad record',
            ) from None


class RemoteJsonl:
    """Records of plain JSONL files anywhere; a chunk is the records that start in one MiB of a file."""

    def __init__(self, origin: Origin) -> None:
        self.name, self._dataset = origin.dataset.name, origin.dataset
        self.is_tokenized = bool(origin.dataset.tokens)
        self.table = open_table(origin, "jsonl", self._scan, key=["starts", self._dataset.on_error])

    def _scan(self, file: DataFile, advance: Advance) -> Scan:
        expanding = Expanding(self.name, file, skip=self._dataset.on_error == "skip")
        is_plain, total = not is_compressed(file), 0

        def count(num_bytes: int) -> None:
            nonlocal total
            total += num_bytes
            if is_plain:
                advance(num_bytes)

        parts = list(record_starts(expanding, count))
        if not is_plain:
            advance(file.size_bytes)
        starts = np.concatenate([np.empty(0, np.int64), *parts])
        if expanding.fault is not None and not expanding.ends_in_record:
            starts, total = np.append(starts, total), total + 1  # the damage is a record of its own
        return scan_of(np.append(starts, total), total, sample(self.name, file))

    def chunks(self) -> Chunks:
        """Returns the chunks, weighed by the bytes of their records."""
        return self.table.chunks()

    def read(self, chunk: int) -> Column:
        """Returns the documents of a chunk, by one read of its byte range."""
        return self._column(split_lines(self._bytes(chunk)))

    def values(self, chunk: int, columns: tuple[str, ...]) -> pa.Table:
        """Returns other columns of all records of a chunk."""
        return parse_values(split_lines(self._bytes(chunk)), columns, self.name)

    def _bytes(self, chunk: int) -> bytes:
        number = self.table.file_of(chunk)
        file = self.table.current(number, lambda file: sample(self.name, file))
        start, size = int(self.table.places[chunk]), int(self.table.num_bytes[chunk])
        data = read_range(self.name, file, start, size)
        check_file(self.name, file)
        return data

    def _column(self, raws: Iterable[bytes]) -> Column:
        return parse_column(raws, self._dataset.text, self._dataset.tokens)

    def identity(self) -> dict[str, Any]:
        """Returns the kind, the counts and a sample of each file."""
        return self.table.identity


class CompressedJsonl(RemoteJsonl):
    """Records of JSONL files of which some are compressed; a chunk is one MiB of them, expanded."""

    def read(self, chunk: int) -> Column:
        """Returns the documents of a chunk; reads its file up to it."""
        file = self.table.file_of(chunk)
        first = int(self.table.first_chunks[file])
        return next(column for number, column in enumerate(self.read_file(file), first) if number == chunk)

    def read_file(self, number: int) -> Iterator[Column]:
        """Yields the columns of all chunks of a file, in order."""
        for raws, fault in self._raws(number):
            column = self._column(raws)
            yield column if fault is None else column.with_last(fault)

    def values(self, chunk: int, columns: tuple[str, ...]) -> pa.Table:
        """Returns other columns of all records of a chunk; reads its file up to it."""
        file = self.table.file_of(chunk)
        first = int(self.table.first_chunks[file])
        tables = enumerate(self.file_values(file, columns), first)
        return next(table for number, table in tables if number == chunk)

    def file_values(self, number: int, columns: tuple[str, ...]) -> Iterator[pa.Table]:
        """Yields other columns of all records of each chunk of a file, in order."""
        for raws, fault in self._raws(number):
            yield parse_values(raws if fault is None else [*raws, b"null"], columns, self.name)

    def _raws(self, number: int) -> Iterator[tuple[list[bytes], Fault | None]]:
        """Yields the raw records of each chunk of a file, and with the last the damage that ends the file."""
        file = self.table.current(number, lambda file: sample(self.name, file))
        first, last = self.table.first_chunks[number : number + 2].tolist()
        places = self.table.places[first:last].tolist()
        expanding = Expanding(self.name, file, skip=self._dataset.on_error == "skip")
        cuts = zip(places, [*places[1:], None], strict=False)
        data, at = bytearray(), 0  # `at` is the place of the first of `data`
        buffers = iter(expanding)
        for start, end in cuts:
            while end is None or at + len(data) < end:
                buffer = next(buffers, b"")
                if not buffer:
                    break
                data += buffer
            chunk = bytes(data[start - at : None if end is None else end - at])
            del data[: None if end is None else end - at]
            at = start if end is None else end
            raws = split_lines(chunk)
            is_cut = end is None and expanding.fault is not None
            if is_cut and expanding.ends_in_record:
                raws.pop()  # what is left of the record at the damage
            yield raws, expanding.fault if is_cut else None


class JsonlStream:
    """Records of JSONL files, plain or compressed, read in order and never counted."""

    kind = "jsonl"

    def __init__(self, origin: Origin) -> None:
        self.name, self._dataset = origin.dataset.name, origin.dataset
        self.is_tokenized = bool(origin.dataset.tokens)

    def records(self, file: DataFile) -> Iterator[Sequence[bytes | Fault]]:
        """Yields the raw records of a file, those of a buffer at a time; the damage of a file is its last."""
        expanding = Expanding(self.name, file, skip=self._dataset.on_error == "skip")
        data, is_first = b"", True
        for buffer in expanding:
            data += buffer
            if is_first and len(data) > len(BYTE_ORDER_MARK):
                data, is_first = data.removeprefix(BYTE_ORDER_MARK), False
            whole = data.rfind(b"\n") + 1
            yield split_lines(data[:whole])
            data = data[whole:]
        if expanding.fault is not None:
            yield [expanding.fault]
        else:
            yield split_lines(data.removeprefix(BYTE_ORDER_MARK) if is_first else data)

    def column(self, raws: Sequence[bytes | Fault]) -> Column:
        """Returns the documents of raw records."""
        faults = [(i, raw) for i, raw in enumerate(raws) if isinstance(raw, Fault)]
        column = parse_column(
            (b"null" if isinstance(raw, Fault) else raw for raw in raws),
            self._dataset.text,
            self._dataset.tokens,
        )
        return column.with_faults(faults) if faults else column

    def sample(self, file: DataFile) -> str:
        """Returns the hash of the first, middle and last 4 KiB of a file."""
        return sample(self.name, file)
