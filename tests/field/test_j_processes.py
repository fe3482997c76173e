"""J1, J3: a worker that dies or hangs is an error in seconds; a run that is killed is in nobody's way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.elastic.endings import run_leg
from tests.field import dying
from tests.field.corpora import dataset_of, open_here, recipe_of
from tests.helpers import words
from tests.waiting import SLACK_S, session, wait_for_none_of, workers_of_this_process
from zephon import feed, lane
from zephon.dataset import Dataset
from zephon.errors import WorkerError
from zephon.loader import Loader
from zephon.options import LoaderOptions
from zephon.recipe import Recipe

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def _dying(tmp_path_factory: pytest.TempPathFactory, _no_plugins: None) -> Iterator[None]:
    """Lets in the distribution `dying`, and no other, until the module ends."""
    site = tmp_path_factory.mktemp("site")
    info = site / "dying-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dying\nVersion: 1.0\n")
    lines = [f"{way} = {dying.__name__}:{way}\n" for way in dying.WAYS]
    (info / "entry_points.txt").write_text("[zephon.executors]\n" + "".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        patch.setenv("ZEPHON_PLUGINS", "dying")
        yield


def recipe_over_files(folder: Path) -> Recipe:
    """Returns a recipe of JSONL and Parquet; the second needs the spool in the cache."""
    web = dataset_of(folder, "web", words("web", 400), "jsonl")
    code = dataset_of(folder, "code", words("code", 400), "parquet")
    return recipe_of(folder, web, code, lanes=4, global_batch_size=8)


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("killed", r"worker \d: signal 9"),
        ("exits", r"worker \d: exit code 1"),
        ("stopped", r"no block within 2 s"),
    ],
)
def test_a_worker_that_does_not_come_back_is_an_error_in_seconds(
    tmp_path: Path, way: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of the run; it says how the worker ended, and the others are ended."""
    for module in (feed, lane):
        monkeypatch.setattr(module, "MIN_BLOCK_BYTES", 64)
    monkeypatch.setattr(feed, "MAX_BLOCK_BYTES", 64)
    monkeypatch.setattr(feed, "GROUP_BYTES", 1)
    opened = open_here(recipe_over_files(tmp_path))
    timeout_s = 2.0 if "no block" in said else 60.0
    options = LoaderOptions(executor=way, workers=2, prefetch=2, worker_timeout_s=timeout_s)
    loader = Loader(opened, options)
    pids: list[int] = []
    try:
        with pytest.raises(WorkerError, match=said):  # noqa: PT012
            for _ in range(10_000):
                last = time.monotonic()
                next(loader)
                pids = workers_of_this_process() or pids
        pids += workers_of_this_process()
        assert time.monotonic() - last < 3 + SLACK_S
        assert len(set(pids)) in (1, 2)  # the pool starts the second when the first is busy
    finally:
        begun = time.monotonic()
        loader.close()
    assert time.monotonic() - begun < feed.CLOSE_S + SLACK_S
    assert wait_for_none_of(pids, SLACK_S) == []


# Runs that are killed ---------------------------------------------------------------------------------------

PROGRAM = """
import sys
from pathlib import Path
from tests.field.corpora import open_here
from tests.field.test_j_processes import recipe_described
from zephon import Loader, LoaderOptions, digest, step_digest

if __name__ == "__main__":
    opened = open_here(recipe_described(Path(sys.argv[1])))
    with Loader(opened, LoaderOptions(executor=sys.argv[2], workers=2, prefetch=2)) as loader:
        for batch in loader:
            print(step_digest(digest(batch)), flush=True)
            if sys.argv[3] == str(batch.step):
                break
"""


def recipe_described(folder: Path) -> Recipe:
    """Returns the recipe of `recipe_over_files` over files that are there."""
    datasets = [Dataset.from_path(name, folder / name) for name in ("web", "code")]
    return recipe_of(folder, *datasets, lanes=4, global_batch_size=8)


@contextmanager
def started(folder: Path, executor: str, last: str) -> Iterator[subprocess.Popen[str]]:
    """Gives the running program, in a session of its own that ends here."""
    script = folder / "train.py"
    script.write_text(PROGRAM)
    running = subprocess.Popen(
        [sys.executable, str(script), str(folder), executor, last],
        env=os.environ | {"PYTHONPATH": str(ROOT), "ZEPHON_PLUGINS": "none"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.communicate(timeout=60)


def test_a_run_that_is_killed_is_in_nobody_s_way(tmp_path: Path) -> None:
    """Two jobs at once over one cache that is empty: one is killed at step 3, the other goes on.

    Then the first starts again, over what it left. Both give the rows of a run of their own.
    """
    expected = run_leg(open_here(recipe_over_files(tmp_path), "cache of nobody else"), num_steps=12).digests
    before = set(os.listdir("/dev/shm"))
    with started(tmp_path, "processes", "") as first, started(tmp_path, "threads", "11") as other:
        assert first.stdout is not None
        assert [first.stdout.readline().strip() for _ in range(3)] == expected[:3]
        pids = session(first.pid)
        assert len(pids) >= 3
        begun = time.monotonic()
        first.kill()
        first.communicate(timeout=60)
        assert first.returncode == -signal.SIGKILL
        assert wait_for_none_of(pids, 5 + SLACK_S) == []
        assert time.monotonic() - begun < 5 + SLACK_S
        out, errors = other.communicate(timeout=60)
        assert (out.split(), errors, other.returncode) == (expected, "", 0)
    with started(tmp_path, "threads", "11") as again:
        out, errors = again.communicate(timeout=60)
        assert (out.split(), errors, again.returncode) == (expected, "", 0)
    assert set(os.listdir("/dev/shm")) <= before
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.suffix == ".tmp"]
