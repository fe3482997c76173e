"""Executors are a speed knob: the same blocks from all of them; and they say how a process ended."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace

import pytest

from tests.helpers import make_recipe, open_small, words
from zephon import executors
from zephon.executors import Workers, exit_report, inline, processes, threads
from zephon.prepare import Block, Prepare, Request


@pytest.fixture
def prepare() -> Prepare:
    return open_small(make_recipe({"web": words("web", 50), "code": words("code", 7)})).prepare()


REQUESTS = [
    Request(0, 0, 0, 64),
    Request(1, 3, 5, 1),
    Request(0, 2, 17, 100),
    Request(0, 0, 3, 1, (3, 9, 40)),
]


def plain(block: Block | Exception) -> tuple[list[int], list[int], list[int], int]:
    assert isinstance(block, Block)
    return block.tokens.tolist(), block.lengths.tolist(), block.positions.tolist(), block.end


def blocks_of(workers: Workers) -> list[tuple[list[int], list[int], list[int], int]]:
    if workers.executor is None:
        return [plain(block) for block in workers.run(REQUESTS)]
    with workers.executor:
        return [plain(block) for block in workers.executor.submit(workers.run, REQUESTS).result(60)]


def test_inline_has_no_executor(prepare: Prepare) -> None:
    workers = inline(prepare, 8)
    assert (workers.executor, workers.count) == (None, 1)
    assert blocks_of(workers) == [plain(block) for block in prepare(REQUESTS)]


def test_threads_give_what_inline_gives(prepare: Prepare) -> None:
    workers = threads(prepare, 3)
    assert workers.count == 3
    assert blocks_of(workers) == blocks_of(inline(prepare, 1))


@pytest.mark.slow
def test_processes_give_what_inline_gives(prepare: Prepare) -> None:
    workers = processes(prepare, 1)
    assert workers.count == 1
    assert blocks_of(workers) == blocks_of(inline(prepare, 1))
    assert executors._worker == []


def test_the_blocks_do_not_depend_on_their_company(prepare: Prepare) -> None:
    alone = [plain(prepare([request])[0]) for request in REQUESTS]
    assert [plain(block) for block in prepare(REQUESTS)] == alone
    assert [plain(block) for block in prepare(REQUESTS[::-1])] == alone[::-1]


def test_a_report_says_how_each_process_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "EXIT_CODES_S", 0.05)  # one never says
    codes = {11: -9, 12: 0, 13: None, 14: -signal.SIGTERM, 15: 3}
    pool = SimpleNamespace(_processes={pid: SimpleNamespace(exitcode=code) for pid, code in codes.items()})
    assert exit_report(pool) == "worker 0: signal 9, worker 4: exit code 3"  # type: ignore[arg-type]


class ReapedElsewhere:
    """A process that another thread reaps: for a while its exit code is unknown here."""

    def __init__(self, code: int, asked: int) -> None:
        self._code, self._asked = code, asked

    @property
    def exitcode(self) -> int | None:
        self._asked -= 1
        return self._code if self._asked < 0 else None


def test_a_report_waits_for_what_another_thread_reaps() -> None:
    pool = SimpleNamespace(_processes={11: ReapedElsewhere(-signal.SIGTERM, 0), 12: ReapedElsewhere(1, 3)})
    assert exit_report(pool) == "worker 1: exit code 1"  # type: ignore[arg-type]


def test_threads_have_no_report(prepare: Prepare) -> None:
    executor = threads(prepare, 1).executor
    assert executor is not None
    assert exit_report(executor) == ""


@pytest.mark.slow
def test_the_report_of_a_pool_with_a_killed_process() -> None:
    """The names of the standard library that the report rests on are still there."""
    pool = ProcessPoolExecutor(1, get_context("spawn"))
    future = pool.submit(time.sleep, 60)
    while not pool._processes:
        time.sleep(0.01)
    time.sleep(0.1)
    os.kill(next(iter(pool._processes)), signal.SIGKILL)
    with pytest.raises(BrokenExecutor):
        future.result(30)
    assert exit_report(pool) == "worker 0: signal 9"
    pool.shutdown()
