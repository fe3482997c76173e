"""One run at a time: rank 0 holds a lock of the operating system on a file in the log's folder.

Upstream: `leader.py`, at a start, ahead of all that it writes. Downstream: the kernel, which frees the lock
however the process ends. Object storage has no locks: there the exclusive creation of entries stops a second
run at the first that it writes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import weakref
from pathlib import Path

from zephon import StateError

try:
    import fcntl
except ImportError:  # Windows, which has no such locks
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
"""What a file system says that has no locks."""


class Held:
    """The file on which this process has its lock; closed when nobody in the process needs it any more."""

    def __init__(self, path: Path) -> None:
        """Opens the file, or makes it; a child that is forked has no part in a lock on it."""
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        self.key = _key(os.fstat(self.descriptor))
        weakref.finalize(self, os.close, self.descriptor)


# POSIX locks are those of a process, and it loses its own where it closes any descriptor of the file: all
# loaders of a process share one. Whoever reads the file in it, as to copy the folder, gives the lock up.
_HELD: weakref.WeakValueDictionary[tuple[int, int], Held] = weakref.WeakValueDictionary()


def hold(folder: Path) -> Held | None:
    """Returns the lock on the log in `folder`, held as long as the object lives; None where there are none.

    StateError where another process has it. Those of this process share it.
    """
    if fcntl is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    held = _opened(folder / NAME)
    try:
        fcntl.lockf(held.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in NO_LOCKS:
            return None
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        raise _in_use(folder / NAME, os.pread(held.descriptor, 1000, 0)) from None
    word = f"process {os.getpid()} of {socket.gethostname()}\n".encode()
    os.pwrite(held.descriptor, word, 0)
    os.ftruncate(held.descriptor, len(word))
    return held


def _opened(path: Path) -> Held:
    with contextlib.suppress(FileNotFoundError):
        if (ours := _HELD.get(_key(path.stat()))) is not None:
            return ours
    held = Held(path)
    _HELD[held.key] = held
    return held


def _key(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _in_use(path: Path, word: bytes) -> StateError:
    return StateError.explained(
        "another run follows this curriculum log",
        got=f"it is held by {word.decode(errors='replace').strip() or 'a process that has just begun'}",
        rule="one run at a time follows a log",
        cure="end the other run, or fork: `zephon fork RUN --at-step N --into NEW`; only if its machine is "
        f"gone for good, remove {path}",
    )
