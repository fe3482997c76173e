"""The harness itself: what it starts ends with it, in any case."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from plugins.torchtitan.tests.fixtures import Titan


def test_a_job_over_time_is_ended_and_says_where_it_stood(titan: Titan, tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(AssertionError, match=r"did not end within 1\.0 s") as caught:
        titan.run(2, tmp_path, "--training.steps", "100000", timeout_s=1.0)
    assert time.monotonic() - started < 60
    assert "Fatal Python error: Aborted" in str(caught.value)
    assert not left_over(str(tmp_path))


def test_ranks_that_wait_for_a_dead_one_are_ended(titan: Titan, tmp_path: Path) -> None:
    job = titan.run(2, tmp_path, kill=(0, 2), grace_s=0.2)
    assert job.codes[0] == -9
    assert job.codes[1] != 0
    assert job.wall_s < 60
    assert not left_over(str(tmp_path))


def left_over(dump: str) -> list[int]:
    """Returns the processes that have a file of the dump folder open."""
    found = []
    for process in Path("/proc").iterdir():
        if re.fullmatch(r"\d+", process.name):
            try:
                files = [os.readlink(link) for link in (process / "fd").iterdir()]
            except OSError:
                continue
            if any(name.startswith(dump) for name in files):
                found.append(int(process.name))
    return found
