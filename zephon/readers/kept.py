"""What readers make at first need: headers, a decoded batch, open files.

Downstream: the readers of this folder, the spool and streams. None of it is pickled.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class Remade:
    """An object that is pickled without what `_make` gives it: locks, open files, what was found by them."""

    _made: ClassVar[tuple[str, ...]]
    """The names of these."""

    def _make(self) -> None:
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self._made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make()


class Kept:
    """The last few of what is made at first need; safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        self._limit, self._lock = limit, threading.Lock()
        self._values: OrderedDict[Hashable, Any] = OrderedDict()

    def __reduce__(self) -> tuple[type[Kept], tuple[int]]:
        """Keeps the limit alone when it is pickled."""
        return Kept, (self._limit,)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns what is kept for `key`, made now if there is none."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]  # type: ignore[no-any-return]
        made = make()
        with self._lock:
            value: T = self._values.setdefault(key, made)
            while len(self._values) > self._limit:
                self._values.popitem(last=False)
        return value


class Shared:
    """What is made at first need, for as long as anybody has it; safe to use from several threads."""

    def __init__(self) -> None:
        self._values: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()

    def __reduce__(self) -> tuple[type[Shared], tuple[()]]:
        """Keeps nothing when it is pickled."""
        return Shared, ()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns what somebody has for `key`, made now if nobody has any."""
        found: T | None = self._values.get(key)
        return self._values.setdefault(key, make()) if found is None else found
