"""Files that are written whole or not at all, by any number of processes at once: of the cache and elsewhere.

Upstream of indexes, spool, catalogues, states and run folders. Downstream: the file system. What lies in the
cache can be made again from the data, so losing it costs time only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from zephon.descriptors import are_exhausted, exhausted
from zephon.errors import DataError

TEMPORARY_SUFFIX = ".tmp"
_FULL = (errno.ENOSPC, errno.EDQUOT)


def replace_file(path: Path, write: Callable[[BinaryIO], object], *, sync: bool = True) -> None:
    """Makes `path` hold what `write` writes, atomically; a process that dies leaves only a temporary file.

    With `sync` the bytes are on disk before the name is, so a name never stands for a hole after a power
    cut; without, whoever reads the file must be able to tell.
    An `OSError` of the cache folder becomes a `DataError`; errors that `write` raises itself pass through.
    """
    try:
        replace_any_file(path, write, sync=sync)
    except OSError as error:
        if are_exhausted(error):
            raise exhausted(f"cache file {path}", error) from error
        full = error.errno in _FULL
        raise DataError.explained(
            f"cache file {path} cannot be written",
            got=error.strerror or str(error),
            rule="indexes and expanded chunks are kept in the cache folder, on a local disk with room",
            cure=("free space there, lower the spool's limit" if full else "make the folder writable")
            + ", or set ZEPHON_CACHE to another folder",
        ) from error


def replace_any_file(path: Path, write: Callable[[BinaryIO], object], *, sync: bool = True) -> None:
    """Does what `replace_file` does for a file of whatever folder, whose `OSError`s it raises as they are.

    Others may read the file as the umask says.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("x+b") as file:
            write(file)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_atomically(path: Path, text: str, *, sync: bool = False) -> None:
    """Writes a text file, in UTF-8, so that a reader sees all of it or none; raises `OSError`."""
    replace_any_file(path, lambda target: target.write(text.encode()), sync=sync)
