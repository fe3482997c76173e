"""The demo's ranks: real processes that load, log, save states and are killed, and who looks after them.

Upstream: `demo/__init__.py` plans the jobs. Downstream: each process runs one loader, whose run
folder gets the row digests. Ranks never talk to each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zephon.cachefiles import write_atomically
from zephon.errors import StateError, WorkerError
from zephon.loader import Loader
from zephon.options import LoaderOptions
from zephon.recipe import Recipe
from zephon.runfolder import BATCHES
from zephon.statefile import read_state_file, write_state_file

STATES, RESULTS = "states", "ranks"
POLL_S = 0.05
PROGRAM = "from zephon.demo.ranks import main; main()"
"""`-m zephon.demo.ranks` would load the module twice: the package imports it."""
SPEED_S = 1.5

Report = Callable[[int], None]
"""Gets the steps that the slowest rank has taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankJob:
    """What one process does; plain JSON on its command line."""

    recipe: str
    run_folder: str
    cache: str
    dp_rank: int
    dp_world_size: int
    micro_batch_size: int
    executor: str
    workers: int
    seed: int
    attempt: int
    """Restores before this process."""
    first_step: int
    num_steps: int
    """The process takes the steps [first_step, num_steps)."""
    save_every: int = 0
    """Steps between two states; 0: none are written."""
    hold_after: int = 0
    """Stop when so many steps of the run are complete, and wait to be killed; 0: never."""
    measure: bool = False
    """Whether to measure the speed of loading at the end."""

    @property
    def result_path(self) -> Path:
        """Returns the file that appears when the process has finished or holds."""
        return Path(self.run_folder) / RESULTS / f"attempt_{self.attempt}_rank_{self.dp_rank:05d}.json"

    @property
    def log_path(self) -> Path:
        """Returns the file of what the process prints."""
        return self.result_path.with_suffix(".log")


# The process ----------------------------------------------------------------------------------------------


def run_rank(job: RankJob) -> None:
    """Takes the steps of `job`; later attempts go on from the state that was merged for them."""
    recipe = Recipe.from_toml(job.recipe, settings={"seed": job.seed})
    batches = recipe.global_batch_size // job.dp_world_size // job.micro_batch_size
    with recipe.loader(
        dp_rank=job.dp_rank,
        dp_world_size=job.dp_world_size,
        micro_batch_size=job.micro_batch_size,
        executor=job.executor,
        workers=job.workers,
        run_folder=job.run_folder,
        cache=job.cache,
    ) as loader:
        result: dict[str, float] = {}
        if job.attempt:
            state = read_state_file(merged_path(Path(job.run_folder), job.attempt))
            start = time.perf_counter()
            loader.load_state_dict(state)
            result["restore_s"] = time.perf_counter() - start
        start = time.perf_counter()
        for step in range(job.first_step, job.num_steps):
            _take_step(loader, step, batches)
            result.setdefault("first_step_s", time.perf_counter() - start)
            if job.save_every and (step + 1) % job.save_every == 0:
                save_state(job, step + 1, loader.state_dict())
            if step + 1 == job.hold_after:
                write_atomically(job.result_path, json.dumps(result))
                sys.stdin.read()  # ends when the parent does, so no process is left over
                raise SystemExit("held, but never killed")
        if job.measure:
            result |= _measure(loader)
    write_atomically(job.result_path, json.dumps(result))


def _take_step(loader: Loader, step: int, num_batches: int) -> None:
    for _ in range(num_batches):
        batch = next(loader)
        if batch.step != step:
            raise WorkerError(f"a batch of step {step} was due, got one of step {batch.step}")


def _measure(loader: Loader) -> dict[str, float]:
    """Returns tokens/s of a loader of all lanes that goes on from `loader`, alone on the machine."""
    opened = loader.opened
    with Loader(opened, LoaderOptions(workers=2)) as fast:
        fast.load_state_dict(loader.state_dict())
        next(fast)
        start, cpu, tokens = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - start < SPEED_S:
            tokens += next(fast).inputs.size
        wall_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    return {"tokens_per_s": tokens / wall_s, "tokens_per_cpu_s": tokens / max(cpu_s, 1e-9)}


# States ---------------------------------------------------------------------------------------------------


def save_state(job: RankJob, num_steps: int, state: Mapping[str, Any]) -> None:
    """Writes what one rank knows when `num_steps` steps are complete, all of it or nothing."""
    step = Path(job.run_folder) / STATES / f"step_{num_steps:06d}"
    folder = step / f"attempt_{job.attempt:05d}_of_{job.dp_world_size}"
    write_state_file(state, folder / f"rank_{job.dp_rank:05d}.json")


def newest_state(run_folder: Path) -> tuple[int, dict[str, Any]]:
    """Returns (steps complete, union of the ranks' states) of the newest step that all ranks have saved.

    The ranks of one attempt belong together; a step that only some of them saved is passed over.
    """
    for folder in sorted((run_folder / STATES).glob("step_*/attempt_*"), reverse=True):
        paths = sorted(folder.glob("rank_*.json"))
        if len(paths) == int(folder.name.rpartition("_")[2]):
            union = {name: value for path in paths for name, value in read_state_file(path).items()}
            return int(folder.parent.name.removeprefix("step_")), union
    raise StateError.explained(
        f"run folder {str(run_folder)!r} has no whole state",
        got="no step that all ranks of an attempt have saved",
        rule="a restore needs the states of all ranks at one step",
        cure="let the run get to the end of its first save",
    )


def merged_path(run_folder: Path, attempt: int) -> Path:
    """Returns the file with the state that `attempt` goes on from."""
    return run_folder / STATES / f"merged_for_attempt_{attempt}.json"


# Who looks after the processes ----------------------------------------------------------------------------


def run_ranks(jobs: Sequence[RankJob], *, timeout_s: float, report: Report) -> list[dict[str, float]]:
    """Returns the results of `jobs`, which run at the same time; ranks that hold are ended with SIGKILL.

    No process is left behind, however it ends. A rank that fails, and a run that takes longer than
    `timeout_s`, raise `WorkerError` with what the rank printed last.
    """
    with _started(jobs) as processes:
        _wait(jobs, processes, timeout_s, report)
        for job, process in zip(jobs, processes, strict=True):
            if job.hold_after:
                _kill(process)
        for job, process in zip(jobs, processes, strict=True):
            code, wanted = process.wait(timeout=timeout_s), -signal.SIGKILL if job.hold_after else 0
            if code != wanted:
                raise _failed(job, f"exit status {code} in place of {wanted}")
    return [json.loads(job.result_path.read_text(encoding="utf-8")) for job in jobs]


@contextlib.contextmanager
def _started(jobs: Sequence[RankJob]) -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for job in jobs:
            processes.append(_start(job))
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                _kill(process)
        for process in processes:
            process.wait()
            if process.stdin is not None:
                process.stdin.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _start(job: RankJob) -> subprocess.Popen[bytes]:
    """Starts one rank in a process group of its own, each with another seed for Python's hash()."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    seed = str(1 + 100 * job.dp_world_size + job.dp_rank)
    job.log_path.parent.mkdir(parents=True, exist_ok=True)
    with job.log_path.open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(asdict(job))],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
            start_new_session=True,
        )


def _wait(
    jobs: Sequence[RankJob], processes: Sequence[subprocess.Popen[bytes]], timeout_s: float, report: Report
) -> None:
    """Waits until every rank has finished or holds."""
    end = time.monotonic() + timeout_s
    waiting = dict(zip(jobs, processes, strict=True))
    while waiting:
        for job, process in list(waiting.items()):
            code = process.poll()
            if code:
                raise _failed(job, f"exit status {code}")
            if code == 0 or (job.hold_after and job.result_path.exists()):
                del waiting[job]
        report(min(steps_taken(job) for job in jobs))
        if waiting and time.monotonic() > end:
            raise _failed(next(iter(waiting)), f"no end within {timeout_s:.0f} s")
        if waiting:
            time.sleep(POLL_S)


def steps_taken(job: RankJob) -> int:
    """Returns how many steps of the run are complete on the rank of `job`, from its batch log."""
    path = Path(job.run_folder) / BATCHES / f"rank_{job.dp_rank:05d}_{job.attempt:05d}.jsonl"
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return job.first_step
    entry = lines[-1].rpartition(b'"step":')[2] if lines else b""
    number = entry.partition(b",")[0]
    return int(number) if number.isdigit() else job.first_step


def _failed(job: RankJob, got: str) -> WorkerError:
    lines = job.log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-8:]
    printed = "".join(f"\n    {line}" for line in lines) or " nothing"
    return WorkerError.explained(
        f"rank {job.dp_rank} of {job.dp_world_size} failed in attempt {job.attempt}",
        got=f"{got}; it printed:{printed}",
        rule="every rank takes all its steps",
        cure=f"see {job.log_path}",
    )


def main() -> None:
    """Runs the job of the command line."""
    run_rank(RankJob(**json.loads(sys.argv[1])))
