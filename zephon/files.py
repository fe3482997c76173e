"""The only door to the bytes of a dataset's files, local or remote: by range, and never from a changed file.

Upstream: `DataFile`s of `paths.py`; `remote.py` for what lies behind a URL. Downstream: readers and spool.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, BinaryIO, cast

from zephon import remote, retries, web
from zephon.descriptors import are_exhausted, exhausted
from zephon.errors import DataError
from zephon.paths import DataFile
from zephon.retries import OtherContentError
from zephon.urls import HTTP, scheme

BLOCK_BYTES = 8 << 20
SAMPLE_BYTES = 4096
SAMPLE = "sample"
"""The kind of `etag` of a file whose server gives neither a hash nor a date."""


def open_unchanged(dataset: str, file: DataFile) -> int:
    """Returns a descriptor of a local `file`; raises `DataError` if it is gone or not what was listed."""
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if are_exhausted(error):
            raise exhausted(f"dataset {dataset!r}: {file.shown}", error) from error
        raise DataError.explained(
            f"dataset {dataset!r}: {file.shown} cannot be opened",
            got=error.strerror or str(error),
            rule="the files of a dataset stay where they are while it is open",
            cure="restore the file or mount its file system again",
        ) from error
    try:
        check_unchanged(dataset, file, descriptor)
    except DataError:
        os.close(descriptor)
        raise
    return descriptor


def check_unchanged(dataset: str, file: DataFile, descriptor: int) -> int:
    """Raises `DataError` if the size or the modification time is not what was listed; returns the ctime."""
    status = os.fstat(descriptor)
    _check_size(dataset, file, status.st_size)
    if status.st_mtime_ns != file.mtime_ns:
        raise changed(dataset, file.shown, "another modification time than when it was opened")
    return status.st_ctime_ns


def touched_ns(file: DataFile) -> int:
    """Returns the ctime that a local file has now; the listed one where it is gone: opening it says so."""
    try:
        return os.stat(file.path).st_ctime_ns
    except OSError:
        return file.ctime_ns


def check_file(dataset: str, file: DataFile) -> None:
    """Raises `DataError` if the file is gone or not what was listed; one request for a remote file.

    What tells a changed file of the same size is its modification time, and the `etag` of a remote one.
    """
    if not file.is_remote:
        os.close(open_unchanged(dataset, file))
        return
    found = _look(dataset, file)
    if web.other(file.etag, found.etag):
        raise changed(dataset, file.shown, "other content than when it was opened, by its ETag or date")


def check_read(dataset: str, file: DataFile) -> None:
    """Does what `check_file` does, after reads of `file`; nothing where each answer was compared."""
    if scheme(file.path) not in HTTP:
        check_file(dataset, file)


def stamped(dataset: str, file: DataFile) -> DataFile:
    """Returns `file` with the stamps that it has at this moment, for files that are listed without.

    Where a server gives none, a hash of the file's `sample` is one. Raises `DataError` if it is gone or its
    size is another than was listed.
    """
    if file.is_remote:
        found = _look(dataset, file)
        return replace(file, etag=found.etag or f"{SAMPLE} {sample(dataset, file)}")
    try:
        status = os.stat(file.path)
    except OSError:
        os.close(open_unchanged(dataset, file))  # says what is wrong
        raise
    _check_size(dataset, file, status.st_size)
    return replace(file, mtime_ns=status.st_mtime_ns, ctime_ns=status.st_ctime_ns)


def sample(dataset: str, file: DataFile) -> str:
    """Returns the hash of the first, middle and last 4 KiB of a file, of a short one in one read."""
    if file.is_remote:
        return sample_of(file.size_bytes, lambda start: read_range(dataset, file, start, SAMPLE_BYTES))
    descriptor = open_unchanged(dataset, file)
    try:
        found = sample_of(file.size_bytes, lambda start: os.pread(descriptor, SAMPLE_BYTES, start))
        check_unchanged(dataset, file, descriptor)
    finally:
        os.close(descriptor)
    return found


def sample_of(size_bytes: int, read: Callable[[int], bytes]) -> str:
    """Returns the sample of a file of which `read(start)` gives SAMPLE_BYTES, asked for each place once."""
    last = max(0, size_bytes - SAMPLE_BYTES)
    starts, digest = (0, last // 2, last), hashlib.sha256()
    parts = {start: read(start) for start in dict.fromkeys(starts)}
    for start in starts:
        digest.update(parts[start])
    return digest.hexdigest()[:16]


def read_range(dataset: str, file: DataFile, start: int, size: int) -> bytes:
    """Returns the bytes in [start, start + size) of `file`, or those that there are of them.

    Raises `DataError` if the file is gone or has another size than was listed. A local file is checked
    before and after; for a remote one call `check_read` once its chunk is read: over HTTP each answer is
    compared with the `etag`, elsewhere that asks. Faults of the network are retried within limits.
    """
    if start < 0 or size < 0:
        raise ValueError(f"`start` and `size` must be >= 0, got {start} and {size}")
    size = max(0, min(size, file.size_bytes - start))
    if file.is_remote:
        return _read_remote(dataset, file, start, size) if size else b""
    descriptor = open_unchanged(dataset, file)
    try:
        data = _read_descriptor(descriptor, start, size)
        check_unchanged(dataset, file, descriptor)
    finally:
        os.close(descriptor)
    if len(data) != size:
        raise changed(dataset, file.shown, f"{len(data):,} of {size:,} bytes at {start:,}")
    return data


def open_file(dataset: str, file: DataFile, *, block_bytes: int = BLOCK_BYTES) -> BinaryIO:
    """Returns `file` as a seekable binary file, read `block_bytes` at a time; `with` closes it.

    The file is checked when it is opened, at its end and when it is closed after reads: these raise
    `DataError` for one that changed. Not for use by several threads at once.
    """
    raw: io.RawIOBase
    if file.is_remote:
        check_file(dataset, file)
        raw = _RemoteFile(dataset, file)
    else:
        raw = _LocalFile(dataset, file)
    return cast(BinaryIO, io.BufferedReader(raw, block_bytes))


def changed(dataset: str, place: str, got: str) -> DataError:
    """Returns the error of a file that is not what it was when the dataset was opened."""
    return DataError.explained(
        f"dataset {dataset!r}: {place} changed during the run",
        got=got,
        rule="the files of a dataset stay as they are while it is open",
        cure="restore the file, or start again: the lock check says what differs",
    )


def rewritten(dataset: str, file: DataFile) -> DataError:
    """Returns the error of a file of which size and modification time are those of other content."""
    return changed(dataset, file.shown, "other content; its size and modification time are as they were")


class _Checked(io.RawIOBase):
    """A file that is checked once more when it is closed after reads."""

    _unchecked = False

    def _check(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        try:
            if not self.closed and self._unchecked:
                self._check()
        finally:
            super().close()


class _LocalFile(_Checked, io.FileIO):
    """A local file, which is checked when it is opened, too, and at its end."""

    def __init__(self, dataset: str, file: DataFile) -> None:
        super().__init__(open_unchanged(dataset, file), "rb")
        self._dataset, self._file = dataset, file

    def readinto(self, buffer: Any) -> int:
        size = super().readinto(buffer) or 0
        self._unchecked = True
        if not size and len(buffer):
            self._check()
        return size

    def readall(self) -> bytes:
        data = super().readall() or b""
        self._check()
        return data

    def _check(self) -> None:
        self._unchecked = False
        check_unchanged(self._dataset, self._file, self.fileno())


class _RemoteFile(_Checked):
    """A remote file; every read is one request, so it belongs behind a buffer."""

    def __init__(self, dataset: str, file: DataFile) -> None:
        super().__init__()
        self._dataset, self._file = dataset, file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.size_bytes}[whence]
        if begin + offset < 0:
            raise ValueError(f"`offset` must not lead before the start of the file, got {begin + offset}")
        self._position = begin + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        data = self._next(max(0, self._file.size_bytes - self._position))
        if self._unchecked:
            self._check()
        return data

    def _next(self, size: int) -> bytes:
        data = read_range(self._dataset, self._file, self._position, size)
        self._position += len(data)
        if data:
            self._unchecked = True
        elif size and self._unchecked:
            self._check()
        return data

    def _check(self) -> None:
        self._unchecked = False
        check_file(self._dataset, self._file)


def _read_descriptor(descriptor: int, start: int, size: int) -> bytes:
    """Returns `size` bytes at `start`, fewer only at the end of the file: a call gives 2 GiB at most."""
    data = os.pread(descriptor, size, start)
    if len(data) == size:
        return data
    parts = [data]
    while data and (done := sum(map(len, parts))) < size:
        data = os.pread(descriptor, size - done, start + done)
        parts.append(data)
    return b"".join(parts)


def _read_remote(dataset: str, file: DataFile, start: int, size: int) -> bytes:
    part = web.Part(start=start, size=size, total=file.size_bytes, etag=file.etag)
    try:
        with retries.hiding(file.hidden):
            return remote.read(_subject(dataset, file), file.path, part)
    except OtherContentError as error:
        raise changed(dataset, file.shown, str(error)) from None


def _look(dataset: str, file: DataFile) -> remote.Look:
    """Returns what the server says of `file`, of which the size is checked."""
    try:
        with retries.hiding(file.hidden):
            found = remote.look(_subject(dataset, file), file.path)
    except OtherContentError as error:
        raise changed(dataset, file.shown, str(error)) from None
    _check_size(dataset, file, found.size_bytes)
    return found


def _check_size(dataset: str, file: DataFile, size_bytes: int) -> None:
    if size_bytes != file.size_bytes:
        got = f"{size_bytes:,} bytes, {file.size_bytes:,} when it was opened"
        raise changed(dataset, file.shown, got)


def _subject(dataset: str, file: DataFile) -> str:
    """Returns what an error of `file` begins with."""
    return f"dataset {dataset!r}: {file.shown}"
