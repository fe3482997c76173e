"""J1, J3: a worker that dies or hangs is an error in seconds, and no end of a run leaves anything behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.helpers import Letters, loaders, make_recipe, open_small, take_steps, words
from tests.waiting import (
    SLACK_S,
    own_threads,
    session,
    wait_for_none_of,
    wait_until,
    workers_of_this_process,
)
from zephon import feed
from zephon.errors import WorkerError, ZephonError
from zephon.loader import Loader
from zephon.options import LoaderOptions

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from tests.helpers import make_recipe, open_small, words
from zephon.loader import Loader
from zephon.options import LoaderOptions

if __name__ == "__main__":
    recipe = make_recipe({"web": words("web", 2000)}, lanes=4, global_batch_size=8)
    loader = Loader(open_small(recipe), LoaderOptions(executor=sys.argv[1], workers=2, prefetch=2))
    try:
        for batch in loader:
            print(batch.step, flush=True)
    except KeyboardInterrupt:
        if sys.argv[2] == "close":
            loader.close()
        raise
"""


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MIN_BLOCK_BYTES", 64)
    monkeypatch.setattr(feed, "MAX_BLOCK_BYTES", 64)


@pytest.fixture
def processes(small_blocks: None) -> Iterator[Loader]:
    """Returns a loader with two worker processes that has given a step."""
    opened = open_small(make_recipe({"web": words("web", 200)}))
    with loaders(opened, 1, LoaderOptions(executor="processes", workers=2, prefetch=2)) as (loader,):
        next(loader)
        yield loader


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=lambda how: how.name)
def test_a_worker_that_is_killed_is_an_error_in_seconds(processes: Loader, how: signal.Signals) -> None:
    pids = workers_of_this_process()
    os.kill(pids[0], how)
    start = time.monotonic()
    with pytest.raises(WorkerError, match="a worker process ended") as caught:  # noqa: PT012
        for _ in range(100_000):
            next(processes)
    assert time.monotonic() - start < 3 + SLACK_S
    if how == signal.SIGKILL:
        assert "signal 9" in str(caught.value)
    processes.close()
    assert wait_for_none_of(pids, 3 + SLACK_S) == []


@pytest.mark.slow
def test_closing_ends_the_worker_processes(processes: Loader) -> None:
    pids = workers_of_this_process()
    assert pids
    start = time.monotonic()
    processes.close()
    assert time.monotonic() - start < 2 + SLACK_S
    assert wait_for_none_of(pids, SLACK_S) == []


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_closing_ends_the_threads(prefetch: int) -> None:
    opened = open_small(make_recipe())
    with loaders(opened, 1, LoaderOptions(workers=3, prefetch=prefetch)) as ranks:
        take_steps(ranks, 2)
        assert own_threads()
    wait_until(lambda: not own_threads())


class Hanging(Letters):
    """An encoder that hangs until it is let go."""

    def __init__(self, go: threading.Event) -> None:
        super().__init__(eos=True)
        self.go = go

    def encode(self, texts: list[str]):  # type: ignore[no-untyped-def]
        assert self.go.wait(60)
        return super().encode(texts)


def test_a_worker_that_sleeps_is_an_error_after_the_time_given() -> None:
    from dataclasses import replace

    go = threading.Event()
    opened = replace(open_small(make_recipe()), encoder=Hanging(go))
    loader = Loader(opened, LoaderOptions(workers=1, worker_timeout_s=0.3))
    start = time.monotonic()
    with pytest.raises(WorkerError, match=r"no block within 0\.3 s"):
        next(loader)
    assert time.monotonic() - start < 0.3 + SLACK_S
    go.set()
    loader.close()


@contextmanager
def started(tmp_path: Path, executor: str, ending: str) -> Iterator[subprocess.Popen[str]]:
    """Gives the running program, three steps of which were read, in a session of its own that ends here."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "ZEPHON_PLUGINS": "none"}
    running = subprocess.Popen(
        [sys.executable, str(script), executor, ending],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert running.stdout is not None
        assert [running.stdout.readline() for _ in range(3)] == ["0\n", "1\n", "2\n"]
        yield running
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.communicate(timeout=20)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.parametrize("ending", ["close", "leave"])
def test_an_interrupt_ends_the_run_in_two_seconds(tmp_path: Path, executor: str, ending: str) -> None:
    """Ctrl-C reaches the whole group, as in a terminal; `leave`: the script does not close its loader."""
    with started(tmp_path, executor, ending) as running:
        pids = session(running.pid)
        begun = time.monotonic()
        os.killpg(running.pid, signal.SIGINT)
        _, errors = running.communicate(timeout=20)
        assert time.monotonic() - begun < 2 + SLACK_S
        assert running.returncode == -signal.SIGINT
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert errors.count("Traceback") == 1
        assert wait_for_none_of(pids, SLACK_S) == []


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_run_that_is_killed_leaves_no_process(tmp_path: Path, executor: str) -> None:
    before = set(os.listdir("/dev/shm"))
    with started(tmp_path, executor, "close") as running:
        pids = session(running.pid)
        assert len(pids) >= (3 if executor == "processes" else 1)
        running.kill()
        running.communicate(timeout=20)
        assert wait_for_none_of(pids, 5 + SLACK_S) == []
    assert set(os.listdir("/dev/shm")) <= before
    with started(tmp_path, executor, "close"):
        pass


def test_a_loader_begun_before_a_fork_is_refused_in_the_child() -> None:
    with Loader(open_small(make_recipe()), LoaderOptions(prefetch=1)) as loader:
        next(loader)
        child = os.fork()
        if child == 0:
            try:
                next(loader)
            except ZephonError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        next(loader)
