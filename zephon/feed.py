"""Bounded windows of work in flight: requests for blocks in, blocks out, whoever asks; batches made ahead.

Upstream: `executors.py`. Downstream: `stream.py`, of which each has one request outstanding, and
`loader.py`. Small requests travel together, so that the cost of a hand-over is paid once for about
GROUP_BYTES of text. Which requests share a task never changes a block.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TypeVar

from zephon import retries
from zephon.errors import WorkerError, ZephonError
from zephon.executors import Workers, exit_report
from zephon.prepare import Block, Request

GROUP_BYTES = 256 << 10
CLOSE_S = 1.5
_POLL_S = 0.1
MIN_BLOCK_BYTES = 64 << 10
MAX_BLOCK_BYTES = 256 << 10
LEAST_BLOCK_BYTES = 4 << 10
OVER_BUDGET = 4
"""Streams have blocks of at least MIN_BLOCK_BYTES as long as all of them stay within so many budgets."""

Answers = list[Block | Exception]
T = TypeVar("T")


class Ticket:
    """A claim to the block of one request."""

    __slots__ = ("future", "index", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.future: Future[Answers] | None = None
        self.index = 0


def block_bytes(budget_bytes: int, num_streams: int) -> int:
    """Returns the text of a block where `num_streams` share the budget: its share, within bounds.

    A stream holds two blocks, and the tokens of a text take about as many bytes as the text.
    """
    share = budget_bytes // (2 * max(1, num_streams))
    least = min(MIN_BLOCK_BYTES, max(LEAST_BLOCK_BYTES, OVER_BUDGET * share))
    return max(least, min(MAX_BLOCK_BYTES, share))


class Feed:
    """Runs requests on workers, at most two tasks for each of them at a time."""

    def __init__(self, workers: Workers, *, budget_bytes: int, timeout_s: float) -> None:
        self._workers = workers
        self._budget_bytes, self._timeout_s = budget_bytes, timeout_s
        self._waiting: deque[Ticket] = deque()
        self._waiting_bytes = 0
        self._running = 0
        self._futures: set[Future[Answers]] = set()
        self._lock = threading.Lock()
        self._closed, self._stop = False, threading.Event()
        # Not `atexit`, which runs after the interpreter has waited for all threads, hanging ones too.
        threading._register_atexit(_close, weakref.ref(self), os.getpid())  # type: ignore[attr-defined]
        self.num_streams = 0
        """Streams that are open; the budget is shared between them."""

    def block_bytes(self) -> int:
        """Returns the text that a stream's next block should have."""
        return block_bytes(self._budget_bytes, self.num_streams)

    def request(self, request: Request) -> Ticket:
        """Returns a ticket for the block of `request`, and starts the work when enough has come together."""
        ticket = Ticket(request)
        if self._workers.executor is not None:
            with self._lock:
                self._waiting.append(ticket)
                self._waiting_bytes += request.target_bytes
            self._fill()
        return ticket

    def result(self, ticket: Ticket) -> Block:
        """Returns the block of `ticket`, waiting for it at most the time-out; raises what the work raised."""
        if self._workers.executor is None:
            self._refuse_closed()
            answer = self._workers.run([ticket.request])[0]
        else:
            answer = self._wait(ticket)[ticket.index]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ZephonError("the loader is closed; make a new one to go on")

    def _wait(self, ticket: Ticket) -> Answers:
        try:
            while ticket.future is None:
                self._refuse_closed()
                self._submit()
            return self._result(ticket.future)
        except CancelledError:
            self._refuse_closed()
            raise
        except BrokenExecutor as error:
            assert self._workers.executor is not None
            how = exit_report(self._workers.executor) or str(error) or type(error).__name__
            raise WorkerError.explained(
                "a worker process ended in the middle of its work",
                got=how,
                rule="workers live as long as their loader (signal 9 is often the kernel, out of memory)",
                cure='use fewer workers or threads; a script needs `if __name__ == "__main__":`',
            ) from None
        except FutureTimeout:
            raise WorkerError.explained(
                f"a worker gave no block within {self._timeout_s:g} s",
                got="silence",
                rule="a block is read and tokenized within worker_timeout_s",
                cure="look for a file system that hangs, or raise worker_timeout_s",
            ) from None

    def _result(self, future: Future[Answers]) -> Answers:
        end = time.monotonic() + self._timeout_s
        while True:
            left = end - time.monotonic()
            try:
                return future.result(max(0.0, min(1.0, left)))
            except FutureTimeout:
                if left <= 1.0:
                    raise
                found = getattr(self._workers.executor, "_processes", None) or {}
                if any(process.exitcode is not None for process in list(found.values())):
                    raise BrokenExecutor from None

    def _fill(self) -> None:
        while self._submit(GROUP_BYTES, 2 * self._workers.count):
            pass

    def _submit(self, least_bytes: int = 0, most: float = math.inf) -> bool:
        """Submits a group from the head of the queue, if enough waits and fewer than `most` run."""
        executor = self._workers.executor
        assert executor is not None
        with self._lock:
            if self._waiting_bytes < least_bytes or self._running >= most:
                return False
            group: list[Ticket] = []
            size = 0
            while self._waiting and size < GROUP_BYTES:
                ticket = self._waiting.popleft()
                size += ticket.request.target_bytes
                group.append(ticket)
            self._waiting_bytes -= size
            if not group or self._closed:
                return False
            self._running += 1
            try:
                run = self._run if isinstance(executor, ThreadPoolExecutor) else self._workers.run
                future = executor.submit(run, [ticket.request for ticket in group])
            except Exception as error:  # broken, shutting down, no process left: told to who waits for these
                future = Future()
                future.set_exception(error)
            self._futures.add(future)
            for index, ticket in enumerate(group):
                ticket.index = index
                ticket.future = future
        future.add_done_callback(self._done)
        return True

    def _run(self, requests: list[Request]) -> Answers:
        """Runs in a thread, where waiting for a server ends when the feed is closed."""
        with retries.stop_on(self._stop):
            return self._workers.run(requests)

    def _done(self, future: Future[Answers]) -> None:
        with self._lock:
            self._running -= 1
            self._futures.discard(future)
        if not (self._closed or future.cancelled() or future.exception()):
            self._fill()

    def close(self) -> None:
        """Ends the workers: what waits is dropped, what runs is finished; a process that hangs is killed."""
        self._stop.set()
        with self._lock:
            self._closed = True
            self._waiting.clear()
            self._waiting_bytes = 0
            running = list(self._futures)
        executor = self._workers.executor
        if executor is None:
            return
        processes = list((getattr(executor, "_processes", None) or {}).values())
        results = getattr(executor, "_result_queue", None)  # shutdown drops it
        executor.shutdown(wait=False, cancel_futures=True)
        patience = time.monotonic() + CLOSE_S
        if not processes:
            # What was cancelled is never reported to `wait`; a thread that hangs cannot be ended.
            wait([future for future in running if not future.cancelled()], CLOSE_S)
        for process in processes:
            # Killed only when it hangs: one that is writing would break the pool's pipe.
            process.join(max(0.0, patience - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join(CLOSE_S)
        if any(process.exitcode == -9 for process in processes) and results is not None:
            results._writer.close()  # the pool's thread may wait for the rest of an answer


def _close(feed: weakref.ref[Feed], process: int) -> None:
    """Closes a feed at the end of the process that made it, where nobody did."""
    found = feed()
    if found is not None and not found._closed and process == os.getpid():
        found.close()


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
