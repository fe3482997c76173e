"""Where the work of the workers runs: on the spot, in threads, in processes.

Upstream: `prepare.py` is what runs. Downstream: `feed.py` submits to what is built here. An executor is only
ever a speed knob. Any `concurrent.futures.Executor` fits: a plugin's factory (role `zephon.executors`) takes
(prepare, workers) and returns `Workers`.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

from zephon.prepare import Block, Prepare, Request

EXIT_CODES_S = 2.0
"""The longest wait for the exit codes of a broken pool."""

Run = Callable[[Sequence[Request]], list[Block | Exception]]


@dataclass(frozen=True, slots=True)
class Workers:
    """A place to run `prepare`: `run` is submitted to `executor`, or called where that is None."""

    executor: Executor | None
    run: Run
    count: int


def inline(prepare: Prepare, workers: int) -> Workers:
    """Returns workers that run when their result is asked for, in the caller's thread."""
    return Workers(None, prepare, 1)


def threads(prepare: Prepare, workers: int) -> Workers:
    """Returns `workers` threads; the tokenizer and the readers release the interpreter lock."""
    return Workers(ThreadPoolExecutor(workers, thread_name_prefix="zephon"), prepare, workers)


class _QuietPool(ProcessPoolExecutor):
    """Starts its processes with SIGINT blocked, as Ctrl-C is the parent's to handle from the start."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def processes(prepare: Prepare, workers: int) -> Workers:
    """Returns `workers` spawned processes, each with a `Prepare` of its own; they end with their parent.

    Spawned, not forked: a tokenizer's thread pool does not survive a fork. So a script that starts them needs
    the usual `if __name__ == "__main__":` guard.
    """
    context = multiprocessing.get_context("spawn")
    executor = _QuietPool(workers, context, initializer=_start_worker, initargs=(pickle.dumps(prepare),))
    return Workers(executor, _run_in_worker, workers)


_worker: list[Prepare] = []
"""The `Prepare` of a worker process; empty everywhere else."""


def _start_worker(payload: bytes) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _worker[:] = [pickle.loads(payload)]


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _run_in_worker(requests: Sequence[Request]) -> list[Block | Exception]:
    return _worker[0](requests)


def exit_report(executor: Executor) -> str:
    """Returns how the processes of a broken pool ended, as `worker 1: signal 9`; empty where unknown."""
    pool = getattr(executor, "_processes", None) or {}  # no public way to the exit codes
    processes = list(pool.values())
    deadline = time.monotonic() + EXIT_CODES_S
    # All are ending. One that the pool's own thread reaps has no code here until that thread goes on.
    while any(process.exitcode is None for process in processes) and time.monotonic() < deadline:
        time.sleep(0.005)
    codes = [(number, process.exitcode) for number, process in enumerate(processes)]
    ended = [(number, code) for number, code in codes if code not in (None, 0, -signal.SIGTERM)]
    return ", ".join(f"worker {n}: " + (f"signal {-c}" if c < 0 else f"exit code {c}") for n, c in ended)
