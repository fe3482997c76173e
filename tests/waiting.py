"""How tests wait: for events, never for a while; and for processes and threads that have to end.

A limit tells a hang from a machine that does other things too: it is far above what eight busy processes add
on two cores, and far below the hang that it is there to catch.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

SLACK_S = 10.0
"""What other things that the machine does may add to any time."""
PATIENCE_S = 60.0
"""The longest wait for what has to come."""


def wait_until(is_so: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Returns as soon as something is so; fails where that takes longer."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not so within {seconds:g} s"
        time.sleep(0.005)


def within(seconds: float, function: Callable[[], Any]) -> Any:
    """Returns what `function` returns or raises; fails where that takes longer."""
    outcome: Future[Any] = Future()

    def work() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return outcome.result(seconds)


def workers_of_this_process() -> list[int]:
    """Returns the processes that multiprocessing started here and that live."""
    return [child.pid for child in multiprocessing.active_children() if child.pid]


def own_threads() -> list[str]:
    """Returns the names of the library's threads."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("zephon")]


def session(leader: int) -> list[int]:
    """Returns the processes that live of the session that `leader` began."""
    numbers = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return sorted(pid for pid in numbers if (fields := _status(pid)) and int(fields[3]) == leader)


def is_alive(pid: int) -> bool:
    """Returns whether the process runs; one that ended and waits to be reaped does not."""
    return bool(_status(pid))


def wait_for_none_of(pids: list[int], seconds: float = SLACK_S) -> list[int]:
    """Returns the processes that are alive after `seconds`; comes back when there are none."""
    deadline = time.monotonic() + seconds
    while (alive := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive


def _status(pid: int) -> list[str]:
    """Returns the fields of proc(5)'s stat from the state on; none of a process that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
    return fields if fields[0] not in "ZX" else []
