"""What readers keep open: as many descriptors as the process may have, shared by all its datasets.

Upstream: views of chunks and readers of files, which can open again what they let go of. Downstream: the
operating system. Where the process has too many, those opened first go, whosever they are.
"""

from __future__ import annotations

import errno
import itertools
import os
import resource
import weakref
from collections import OrderedDict
from typing import Protocol

from zephon.errors import DataError

MAX_OPEN = 1 << 14
"""However many the process may have: a map takes one too, and Linux gives a process 65,530 maps."""
_SHARE = 2
"""Readers take one in so many of the descriptors that the process may have: others need them too."""
_numbers = itertools.count()
_open: OrderedDict[int, weakref.ref[Held]] = OrderedDict()  # of the whole process; each call on it is atomic


class Owner(Protocol):
    """Who has something open."""

    def release(self, held: Held) -> None:
        """Lets go of what was opened; called from any thread, which holds no lock of an owner."""
        ...


class Held:
    """One descriptor, or `count` of them, open for as long as this lives.

    To be made where no lock of an owner is held: to make room, others are told to let go. Without `__del__`,
    during which a weak reference still leads to what goes: that of another thread would find it closed.
    """

    __slots__ = ("__weakref__", "_keys", "_owner")

    def __init__(self, count: int = 1) -> None:
        self._owner: weakref.ref[Owner] | None = None
        self._keys: list[int] = []
        weakref.finalize(self, _forget, self._keys).atexit = False
        self.count(count)

    def count(self, more: int) -> None:
        """Counts so many more that are open as long as this is."""
        keys = list(itertools.islice(_numbers, more))
        self._keys += keys
        for key in keys:
            _open[key] = weakref.ref(self)
        _make_room()

    def owned_by(self, owner: Owner) -> None:
        """Says who lets go of it when there is no room; to be called again whenever he keeps it anew."""
        self._owner = weakref.ref(owner)
        for key in self._keys:  # that are not counted where he was told to let go meanwhile
            _open.setdefault(key, weakref.ref(self))

    def let_go(self) -> bool:
        """Tells the owner to let go; returns whether there is one."""
        owner = None if self._owner is None else self._owner()
        if owner is not None:
            owner.release(self)
        return owner is not None


class Descriptor(Held):
    """An open file that is closed when its last user goes."""

    __slots__ = ("_closing", "number")

    def __init__(self, number: int, count: int = 1) -> None:
        """`count`: with the maps of files that live as long."""
        self.number = number
        self._closing = weakref.finalize(self, os.close, number)
        self._closing.atexit = False
        super().__init__(count)

    def close(self) -> None:
        """Closes the file, of which a map takes the place: that holds a descriptor of its own."""
        self._closing()


def max_open() -> int:
    """Returns how many descriptors readers of this process may hold."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_OPEN if soft == resource.RLIM_INFINITY else max(8, min(MAX_OPEN, soft // _SHARE))


def _forget(keys: list[int]) -> None:
    for key in keys:
        _open.pop(key, None)


def _make_room() -> None:
    for _ in range(len(_open) - max_open()):
        try:
            key, reference = _open.popitem(last=False)
        except KeyError:  # others went meanwhile
            return
        held = reference()
        if held is not None and not held.let_go():
            _open[key] = reference  # nobody has it yet


def are_exhausted(error: OSError) -> bool:
    """Returns whether a file could not be opened because too many are open."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def exhausted(subject: str, error: OSError) -> DataError:
    """Returns the error of what could not be opened because too many files are open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return DataError.explained(
        f"{subject} cannot be opened",
        got=error.strerror or str(error),
        rule=f"the process may have {soft:,} files open, of which data take half",
        cure="raise the limit in the shell that starts the run: ulimit -n 65536",
    )
