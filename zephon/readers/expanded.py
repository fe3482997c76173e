"""The bytes of a file in order, expanded where its name says it is compressed, up to where it is damaged.

Upstream: `files.py`. Downstream: the readers of lines, CSV and plain text. Gzip of several members, zstd of
several frames and bzip2 of several streams are one text; an empty stream of bzip2 ahead of another is damage
to Arrow. A file that was cut exactly between two of these
cannot be told from a whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, BinaryIO

import pyarrow as pa

from zephon import files
from zephon.errors import DataError, Fault
from zephon.files import changed, check_file
from zephon.paths import DataFile
from zephon.readers.base import first_line

CODECS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2"}
DAMAGED_RULE = "a file is complete, and as its compression wrote it"
BLOCK_BYTES = 256 << 10
DAMAGE = b"\0"
"""Stands in the expanded bytes where the damage begins: no record that holds it can be read."""
_TOO_LONG_A_WINDOW = "too much memory"


def compression(file: DataFile) -> str:
    """Returns the suffix of the file's name that says how it is compressed; empty where it is not."""
    return next((suffix for suffix in CODECS if file.name.lower().endswith(suffix)), "")


def is_compressed(file: DataFile) -> bool:
    """Returns whether the file's name says that it is compressed."""
    return bool(compression(file))


class Expanding:
    """The expanded bytes of a file in order, in blocks; to be iterated once.

    Damage is an error, or with `skip` the end: then the last block is `DAMAGE`, and `fault` says what it is.
    The bytes ahead of it are those that Arrow can expand, however they are cut into blocks: all of a file
    that was cut, and all but the last 64 KiB or less ahead of wrong bytes. Faults of reading are never
    damage, and neither is a file that changed.
    """

    def __init__(
        self, dataset: str, file: DataFile, *, skip: bool, advance: Callable[[int], None] | None = None
    ) -> None:
        """`advance` is told of the bytes of the file that are done with: of a compressed one at its end."""
        self._dataset, self._file, self._skip, self._advance = dataset, file, skip, advance
        self.fault: Fault | None = None
        self.num_bytes = 0
        """Of the blocks so far."""

    def __iter__(self) -> Generator[bytes, None, None]:
        is_plain = not is_compressed(self._file)
        for block in self._plain() if is_plain else self._expanded():
            self.num_bytes += len(block)
            yield block
            if is_plain and self._advance is not None:
                self._advance(len(block))
        if not is_plain and self._advance is not None:
            self._advance(self._file.size_bytes)

    def _expanded(self) -> Iterator[bytes]:
        """Yields the blocks of a compressed file; with `skip` what comes ahead of a damage, and `DAMAGE`."""
        done = 0
        try:
            for block in self._blocks():
                done += len(block)
                yield block
            return
        except _DamageError as damage:
            check_file(self._dataset, self._file)
            if not self._skip:
                raise self._damaged(str(damage)) from None
            self.fault = Fault("damaged", str(damage), DAMAGED_RULE)
        yield self._rest(done) + DAMAGE

    def _plain(self) -> Iterator[bytes]:
        with _open(self._dataset, self._file) as raw:
            while block := raw.read(BLOCK_BYTES):
                yield block

    def _blocks(self) -> Iterator[bytes]:
        if not self._file.size_bytes:
            raise _DamageError("a file of 0 bytes")  # a compressed file has some, even where it holds none
        codec = CODECS[compression(self._file)]
        with _expanded_stream(self._dataset, self._file, codec) as (raw, stream):
            while block := self._read(raw, stream, BLOCK_BYTES):
                yield block

    def _read(self, raw: _Raw, stream: Any, size: int) -> bytes:
        try:
            return bytes(stream.read(size))
        except (OSError, pa.ArrowException) as error:
            if raw.has_failed or isinstance(error, pa.ArrowMemoryError):
                raise
            got = first_line(error)
            if _TOO_LONG_A_WINDOW in got:
                raise self._long_window(got) from None
            raise _DamageError(got) from None

    def _rest(self, done: int) -> bytes:
        """Returns what can be expanded behind the first `done` bytes: a block that fails gives none of it."""
        codec = CODECS[compression(self._file)]
        rest = bytearray()
        if not self._file.size_bytes:
            return b""
        with _expanded_stream(self._dataset, self._file, codec) as (raw, stream):
            try:
                while done:
                    done -= len(self._read(raw, stream, min(done, BLOCK_BYTES)))
                while byte := self._read(raw, stream, 1):
                    rest += byte
            except _DamageError:
                return bytes(rest)
        raise changed(self._dataset, self._file.shown, "no damage where there was some")

    def _damaged(self, got: str) -> DataError:
        return DataError.explained(
            f"dataset {self._dataset!r}: {self._file.shown} is damaged",
            got=got,
            rule=DAMAGED_RULE,
            cure="write or download the file again, leave it out of the dataset's path, or set "
            'on_error = "skip" to read what comes before the damage and count the rest as one bad record',
        )

    def _long_window(self, got: str) -> DataError:
        return DataError.explained(
            f"dataset {self._dataset!r}: {self._file.shown} cannot be expanded",
            got=got,
            rule="a window of zstd is at most 128 MiB (--long=27)",
            cure="compress the file again without --long, or with --long=27 or less",
        )


class _DamageError(Exception):
    """What is compressed cannot be expanded any further: the text says what was found."""


class _Raw:
    """What Arrow reads the compressed bytes from; remembers whether it was the reading that failed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.closed = False
        self.has_failed = False

    def read(self, size: int = -1) -> bytes:
        try:
            return self._file.read(size)
        except BaseException:
            self.has_failed = True
            raise

    def close(self) -> None:
        self.closed = True


def _open(dataset: str, file: DataFile) -> BinaryIO:
    """Returns the file; a local one, of which a stream keeps many open, with a small buffer."""
    return files.open_file(dataset, file, block_bytes=files.BLOCK_BYTES if file.is_remote else BLOCK_BYTES)


@contextmanager
def _expanded_stream(dataset: str, file: DataFile, codec: str) -> Iterator[tuple[_Raw, Any]]:
    with _open(dataset, file) as opened:
        raw = _Raw(opened)
        with pa.CompressedInputStream(pa.PythonFile(raw, "r"), codec) as stream:
            yield raw, stream


def cut(blocks: Iterator[bytes], places: list[int]) -> Iterator[bytes]:
    """Yields the bytes of each chunk of a file: from its place to the next one's, the last to the end."""
    data, at = bytearray(), 0  # `at` is the place of the first of `data`
    for start, end in zip_longest(places, places[1:]):
        while end is None or at + len(data) < end:
            block = next(blocks, b"")
            if not block:
                break
            data += block
        stop = len(data) if end is None else end - at
        yield bytes(data[start - at : stop])
        del data[:stop]
        at += stop
