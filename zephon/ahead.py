"""Runs an iterator in a thread of its own, some items ahead of who takes them.

Upstream: what `loader.py` makes. Downstream: `loader.py`, where batches are made before they are asked for.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

from zephon.feed import CLOSE_S

T = TypeVar("T")
_POLL_S = 0.1


def run_ahead(make: Callable[[], Iterator[T]], depth: int) -> Generator[T, None, None]:
    """Yields what `make()` does, made by a thread that is at most `depth` items ahead; ends with an error."""
    ready: queue.Queue[tuple[T] | BaseException] = queue.Queue(depth)
    stop = threading.Event()

    def put(item: tuple[T] | BaseException) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=_POLL_S)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for made in make():
                if not put((made,)):
                    return
        except BaseException as error:  # handed to the consumer, who raises it
            put(error)

    thread = threading.Thread(target=work, name="zephon-rows", daemon=True)
    thread.start()
    try:
        while True:
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            yield item[0]
    finally:
        stop.set()
        with contextlib.suppress(queue.Empty):  # wakes the thread where it waits for room
            while True:
                ready.get_nowait()
        thread.join(CLOSE_S)
