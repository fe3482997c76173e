"""One run at a time: real processes that start, stop and are killed on one log."""

from __future__ import annotations

import errno
import gc
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import digests, open_small
from tests.log_cases import INLINE, Bus, propose, recipe, run, verdict
from zephon import Loader, StateError
from zephon_curriculum.log import held
from zephon_curriculum.log.entries import Accepted
from zephon_curriculum.log.follow import open_updates

OPENED = open_small(recipe())
WORLD = 4
WAIT_S = 60
IN_USE = "another run follows this curriculum log"
SPAWN = get_context("spawn")


def lives(folder: Path, pipe: Connection) -> None:
    """A run of four ranks in a process of its own, which does as it is told."""
    options = replace(INLINE, run_folder=folder)
    with run(open_small(recipe()), folder / "curriculum", world=WORLD, options=options) as ranks:
        pipe.send("begun")
        while (ask := pipe.recv()) is not None:
            if ask == "fork":
                child = os.fork()
                if not child:
                    time.sleep(WAIT_S)
                    os._exit(0)
                pipe.send(child)
            else:
                pipe.send(ranks.steps(ask))


def starts(log: str, pipe: Connection) -> None:
    """A start in a process of its own, which says what it was told."""
    try:
        open_updates(open_small(recipe()), log)
        pipe.send("")
    except StateError as error:
        pipe.send(str(error))


@dataclass
class Other:
    """Another process, and what to tell it."""

    process: BaseProcess
    pipe: Connection

    def told(self) -> Any:
        assert self.pipe.poll(WAIT_S)
        return self.pipe.recv()

    def does(self, ask: object) -> Any:
        self.pipe.send(ask)
        return self.told()

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)


@contextmanager
def process(work: Callable[..., None], folder: object) -> Iterator[Other]:
    ours, theirs = SPAWN.Pipe()
    other = Other(SPAWN.Process(target=work, args=(folder, theirs)), ours)
    other.process.start()
    try:
        yield other
    finally:
        other.process.kill()
        other.process.join()


def start_elsewhere(log: Path) -> str:
    """Returns what a start in another process is told; empty where it begins."""
    with process(starts, str(log)) as other:
        return str(other.told())


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_second_start_is_refused_on_all_ranks_and_writes_nothing_while_the_first_lives(
    tmp_path: Path,
) -> None:
    """Be it in a long step, or stopped: it holds the lock as long as it lives."""
    log, bus = tmp_path / "curriculum", Bus()
    with process(lives, tmp_path) as first:
        assert first.told() == "begun"
        found = first.does(2)
        for stops in (False, True):
            if stops:
                first.signal(signal.SIGSTOP)
            before = files(tmp_path)
            assert any("batches" in path.parts for path in before)
            for rank in range(WORLD):
                with pytest.raises(StateError, match=IN_USE) as refused:
                    open_updates(OPENED, log, is_first=rank == 0, share=bus.share(rank))
            assert files(tmp_path) == before
        first.signal(signal.SIGCONT)
        entry = propose(log, at_step=9, retire=("web",))
        found += first.does(2)
    assert f"\n  got:  it is held by process {first.process.pid} of " in str(refused.value)
    assert f"gone for good, remove {log / '.lock'}" in str(refused.value)
    assert found == digests(OPENED, 4)
    assert isinstance(verdict(log, entry), Accepted)


def test_a_start_goes_on_at_once_after_a_kill_whatever_child_lives_on(tmp_path: Path) -> None:
    log = tmp_path / "curriculum"
    with process(lives, tmp_path) as first:
        assert first.told() == "begun"
        first.does(2)
        child = int(first.does("fork"))
        first.signal(signal.SIGKILL)
        first.process.join()  # with a time it would wait for the child, which has the pipe that tells the end
        try:
            with run(OPENED, log, world=WORLD) as ranks:
                assert ranks.steps(3) == digests(OPENED, 3)
                os.kill(child, 0)  # it lives
                assert f"held by process {os.getpid()} of " in start_elsewhere(log)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_second_loader_of_the_same_process_keeps_the_lock_when_the_first_is_gone(tmp_path: Path) -> None:
    """A notebook makes its loader again: the system frees a process' locks with the first file closed."""
    first = open_updates(OPENED, tmp_path)
    second = open_updates(OPENED, tmp_path)
    del first
    gc.collect()
    assert IN_USE in start_elsewhere(tmp_path)
    second.exchange(0)
    del second
    gc.collect()
    assert start_elsewhere(tmp_path) == ""


def test_a_loader_that_is_closed_holds_nothing_and_another_with_its_updates_does(tmp_path: Path) -> None:
    with run(OPENED, tmp_path, world=2) as ranks:
        ranks.steps(1)
        assert IN_USE in start_elsewhere(tmp_path)
    assert start_elsewhere(tmp_path) == ""
    with Loader(OPENED, replace(INLINE, updates=open_updates(OPENED, tmp_path))) as loader:
        updates = loader.options.updates
    with Loader(OPENED, replace(INLINE, updates=updates)) as loader:
        next(loader)
        assert IN_USE in start_elsewhere(tmp_path)


def test_a_launch_that_is_refused_holds_nothing(tmp_path: Path) -> None:
    assert start_elsewhere(tmp_path) == ""
    with pytest.raises(StateError, match="the curriculum log is that of another recipe") as kept:
        open_updates(open_small(recipe(seed=7)), tmp_path)
    gc.collect()
    assert start_elsewhere(tmp_path) == ""
    assert kept.tb is not None


def test_a_file_system_without_locks_and_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOLCK if not given else errno.EIO, "it says")

    given = list[str]()
    monkeypatch.setattr(held.fcntl, "lockf", fails)
    assert held.hold(tmp_path) is None
    open_updates(OPENED, tmp_path).exchange(0)
    given.append("fails")
    with pytest.raises(StateError, match=re.escape("cannot be written\n  got:  [Errno 5] it says")):
        open_updates(OPENED, tmp_path)
    monkeypatch.setattr(held, "fcntl", None)
    open_updates(OPENED, tmp_path).exchange(0)
