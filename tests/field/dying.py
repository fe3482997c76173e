"""Executors whose worker processes come to grief in the middle of their work.

`test_j_processes.py` registers them as the distribution `dying`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from zephon.executors import Workers, processes
from zephon.prepare import Block, Prepare, Request

WAYS = ("killed", "exits", "stopped")
LAST_CALL = 25


class Dying:
    """The work of a worker, of which one call does not return."""

    def __init__(self, prepare: Prepare, way: str) -> None:
        self._prepare, self._way, self._calls = prepare, way, 0

    def __call__(self, requests: Sequence[Request]) -> list[Block | Exception]:
        self._calls += 1
        if self._calls == LAST_CALL:
            if self._way == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self._way == "exits":
                os._exit(1)
            if self._way == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
        return self._prepare(requests)


def _workers(prepare: Prepare, workers: int, way: str) -> Workers:
    return processes(Dying(prepare, way), workers)  # type: ignore[arg-type]


def killed(prepare: Prepare, workers: int) -> Workers:
    """Returns processes that send SIGKILL to themselves, as the kernel does when memory ends."""
    return _workers(prepare, workers, "killed")


def exits(prepare: Prepare, workers: int) -> Workers:
    """Returns processes that leave with exit code 1."""
    return _workers(prepare, workers, "exits")


def stopped(prepare: Prepare, workers: int) -> Workers:
    """Returns processes that are stopped, and so do not heed a request to end."""
    return _workers(prepare, workers, "stopped")
