"""The window of work: right answers in any order, few tasks at a time, and an end to every wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import PATIENCE_S, SLACK_S, within
from zephon import feed
from zephon.errors import DataError, WorkerError, ZephonError
from zephon.executors import Run, Workers
from zephon.feed import Feed
from zephon.prepare import Block, Request

KIB = 1 << 10


def block_of(request: Request) -> Block:
    """Returns a block of one token, the position where it starts."""
    return Block(
        np.array([request.start], np.uint32),
        np.ones(1, np.int64),
        np.array([request.start], np.int64),
        request.start + 1,
        [],
    )


def run(requests: Sequence[Request]) -> list[Block | Exception]:
    return [block_of(request) for request in requests]


def ask(start: int, target_bytes: int = 64 * KIB) -> Request:
    return Request(0, 0, start, target_bytes)


@contextmanager
def fed(
    run: Run = run, workers: int = 2, executor: Executor | None = None, timeout_s: float = 10.0
) -> Iterator[Feed]:
    """Gives a feed over threads, and closes it."""
    made = Feed(
        Workers(executor or ThreadPoolExecutor(workers), run, workers),
        budget_bytes=1 << 20,
        timeout_s=timeout_s,
    )
    try:
        yield made
    finally:
        made.close()


@given(st.lists(st.integers(0, 400 * KIB), min_size=1, max_size=12), st.integers(1, 3), st.randoms())
def test_each_ticket_gives_the_block_of_its_request(sizes: list[int], workers: int, chance: Any) -> None:
    with fed(workers=workers) as made:
        tickets = [made.request(ask(i, size)) for i, size in enumerate(sizes)]
        order = list(range(len(tickets)))
        chance.shuffle(order)
        for i in order:
            assert made.result(tickets[i]).tokens.tolist() == [i]


def test_inline_runs_when_the_block_is_wanted() -> None:
    asked: list[int] = []

    def noting(requests: Sequence[Request]) -> list[Block | Exception]:
        asked.extend(request.start for request in requests)
        return run(requests)

    made = Feed(Workers(None, noting, 1), budget_bytes=1 << 20, timeout_s=10.0)
    tickets = [made.request(ask(i)) for i in range(3)]
    assert asked == []
    assert made.result(tickets[2]).end == 3
    assert asked == [2]


@pytest.mark.parametrize(
    ("budget", "streams", "size"),
    [
        (1 << 30, 1, 256),
        (1 << 20, 0, 256),
        (1 << 20, 4, 128),
        (1 << 20, 5, 102.4),
        (1 << 20, 30, 64),
        (1 << 20, 1000, 4),
    ],
)
def test_the_budget_is_shared_by_two_blocks_of_each_stream(budget: int, streams: int, size: float) -> None:
    made = Feed(Workers(None, run, 1), budget_bytes=budget, timeout_s=10.0)
    made.num_streams = streams
    assert made.block_bytes() == int(size * KIB)


def test_small_requests_travel_together() -> None:
    groups: list[int] = []

    def noting(requests: Sequence[Request]) -> list[Block | Exception]:
        groups.append(len(requests))
        return run(requests)

    with fed(noting, workers=1) as made:
        tickets = [made.request(ask(i, 32 * KIB)) for i in range(16)]
        assert [made.result(ticket).end for ticket in tickets] == list(range(1, 17))
    assert groups == [8, 8]


def test_few_requests_start_when_the_first_is_waited_for() -> None:
    started = threading.Event()

    def noting(requests: Sequence[Request]) -> list[Block | Exception]:
        started.set()
        return run(requests)

    with fed(noting) as made:
        ticket = made.request(ask(7, 1))
        assert not started.wait(0.05)
        assert made.result(ticket).end == 8


def test_at_most_two_tasks_for_each_worker_are_under_way() -> None:
    class Counting(ThreadPoolExecutor):
        under_way = most = 0
        lock = threading.Lock()

        def count(self, more: int) -> None:
            with self.lock:
                Counting.under_way += more
                Counting.most = max(Counting.most, Counting.under_way)

        def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
            self.count(1)
            future = super().submit(*args, **kwargs)
            future.add_done_callback(lambda _: self.count(-1))
            return future

    gate = threading.Event()

    def held(requests: Sequence[Request]) -> list[Block | Exception]:
        assert gate.wait(30)
        time.sleep(0.002)
        return run(requests)

    with fed(held, 2, Counting(2)) as made:
        tickets = [made.request(ask(i, 256 * KIB)) for i in range(30)]
        assert Counting.under_way == 4
        gate.set()
        assert [made.result(ticket).end for ticket in tickets] == list(range(1, 31))
    assert Counting.most <= 5  # the last of four may still be telling that it is done


def test_threads_that_ask_at_once_start_no_more_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(Executor):
        def __init__(self) -> None:
            self.futures: list[Future[Any]] = []

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            self.futures.append(Future())
            time.sleep(0.002)  # meanwhile others find that there is room
            return self.futures[-1]

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            for future in self.futures:
                future.cancel()

    together = threading.Barrier(8)

    def work(first: int) -> None:
        together.wait(PATIENCE_S)
        for i in range(first, first + 10):
            made.request(ask(i, 256 * KIB))

    monkeypatch.setattr(feed, "CLOSE_S", 0.1)
    for _ in range(5):
        executor = Counting()
        with fed(workers=2, executor=executor) as made:
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(work, range(0, 80, 10)))
            assert len(executor.futures) == 4


def test_an_error_is_raised_where_its_block_is_wanted_and_nowhere_else() -> None:
    def failing(requests: Sequence[Request]) -> list[Block | Exception]:
        return [DataError("record 1") if r.start == 1 else block_of(r) for r in requests]

    with fed(failing) as made:
        tickets = [made.request(ask(i)) for i in range(3)]
        assert made.result(tickets[2]).end == 3
        with pytest.raises(DataError, match="record 1"):
            made.result(tickets[1])
        assert made.result(tickets[0]).end == 1


def test_what_the_work_itself_raises_comes_through() -> None:
    def broken(requests: Sequence[Request]) -> list[Block | Exception]:
        raise MemoryError("no room")

    with fed(broken) as made, pytest.raises(MemoryError, match="no room"):
        made.result(made.request(ask(0)))


def test_silence_has_an_end() -> None:
    release = threading.Event()

    def silent(requests: Sequence[Request]) -> list[Block | Exception]:
        release.wait(60)
        return run(requests)

    with fed(silent, timeout_s=0.2) as made:
        with pytest.raises(WorkerError, match=r"no block within 0\.2 s") as caught:
            made.result(made.request(ask(0)))
        release.set()
    assert "raise worker_timeout_s" in str(caught.value)


def test_closing_does_not_wait_for_a_worker_that_hangs() -> None:
    """A read of a file system that hangs must not keep a run from ending."""
    release = threading.Event()

    def silent(requests: Sequence[Request]) -> list[Block | Exception]:
        release.wait(60)
        return run(requests)

    made = Feed(Workers(ThreadPoolExecutor(1), silent, 1), budget_bytes=1 << 20, timeout_s=0.1)
    try:
        with pytest.raises(WorkerError):
            made.result(made.request(ask(0)))
        within(feed.CLOSE_S + SLACK_S, made.close)
    finally:
        release.set()


def test_a_closed_feed_gives_no_blocks() -> None:
    for executor in (None, ThreadPoolExecutor(1)):
        made = Feed(Workers(executor, run, 1), budget_bytes=1 << 20, timeout_s=10.0)
        ticket = made.request(ask(0, 1))
        made.close()
        for late in (ticket, made.request(ask(1, 1))):
            with pytest.raises(ZephonError, match="the loader is closed"):
                within(PATIENCE_S, partial(made.result, late))


def test_closing_waits_for_what_runs_and_not_for_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two tasks for one worker one runs, for 0.2 s, and the other is dropped."""
    monkeypatch.setattr(feed, "CLOSE_S", PATIENCE_S)
    begun, done = threading.Event(), list[int]()

    def slow(requests: Sequence[Request]) -> list[Block | Exception]:
        begun.set()
        time.sleep(0.2)
        done.extend(request.start for request in requests)
        return run(requests)

    made = Feed(Workers(ThreadPoolExecutor(1), slow, 1), budget_bytes=1 << 20, timeout_s=10.0)
    for i in range(2):
        made.request(ask(i, 256 * KIB))
    assert begun.wait(PATIENCE_S)
    start = time.monotonic()
    made.close()
    assert time.monotonic() - start < PATIENCE_S / 2
    assert done == [0]


def test_closing_wakes_who_waits() -> None:
    release = threading.Event()

    def slow(requests: Sequence[Request]) -> list[Block | Exception]:
        release.wait(60)
        return run(requests)

    made = Feed(Workers(ThreadPoolExecutor(1), slow, 1), budget_bytes=1 << 20, timeout_s=10.0)
    tickets = [made.request(ask(i, 256 * KIB)) for i in range(3)]
    outcome: list[object] = []

    def wait() -> None:
        try:
            outcome.append(made.result(tickets[2]))
        except ZephonError as error:
            outcome.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    threading.Timer(0.1, release.set).start()
    made.close()
    waiter.join(PATIENCE_S)
    assert isinstance(outcome[0], ZephonError)


def test_closing_twice_is_closing_once() -> None:
    with fed() as made:
        made.result(made.request(ask(0)))
        made.close()


class Breaking(Executor):
    """An executor that runs `good` tasks on the spot or in a thread, and is broken from then on."""

    def __init__(self, good: int) -> None:
        self.good = good
        self.gate = threading.Event()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.good -= 1
        if self.good < 0:
            raise BrokenExecutor("a process in the pool ended")
        future: Future[Any] = Future()

        def work() -> None:
            self.gate.wait(60)
            future.set_result(fn(*args, **kwargs))

        threading.Thread(target=work, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.gate.set()


def test_a_pool_found_broken_when_work_is_handed_over_is_a_worker_error() -> None:
    with fed(executor=Breaking(0)) as made, pytest.raises(WorkerError, match="a worker process ended"):
        within(PATIENCE_S, lambda: made.result(made.request(ask(0, 1 << 20))))


def test_a_pool_that_breaks_between_two_tasks_does_not_leave_a_waiter_behind() -> None:
    """The second task is handed over by the callback of the first, where nobody sees the error."""
    executor = Breaking(2)
    with fed(executor=executor, workers=1) as made:
        tickets = [made.request(ask(i, 256 * KIB)) for i in range(4)]
        executor.gate.set()
        assert [made.result(ticket).end for ticket in tickets[:2]] == [1, 2]
        with pytest.raises(WorkerError, match="a worker process ended"):
            within(PATIENCE_S, lambda: made.result(tickets[2]))


def test_closing_with_much_waiting_does_not_leave_a_spinning_thread() -> None:
    """What asks a closed feed for more, as the thread that makes rows ahead does, gets on."""
    release = threading.Event()

    def slow(requests: Sequence[Request]) -> list[Block | Exception]:
        release.wait(60)
        return run(requests)

    made = Feed(Workers(ThreadPoolExecutor(1), slow, 1), budget_bytes=1 << 20, timeout_s=10.0)
    for i in range(9):
        made.request(ask(i, 256 * KIB))
    threading.Timer(0.1, release.set).start()
    made.close()
    ticket = within(PATIENCE_S, lambda: made.request(ask(9, 256 * KIB)))
    with pytest.raises(ZephonError, match="the loader is closed"):
        within(PATIENCE_S, lambda: made.result(ticket))
