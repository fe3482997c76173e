"""Jobs of TorchTitan: real processes, started fast, ended in any case, and what they logged.

Upstream: `compare.py`, `series.py`. Ranks are forked from one server that has imported TorchTitan. As under
torchrun the rendezvous store is outside of the ranks, and when one fails the others are ended after a grace.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from multiprocessing.forkserver import ensure_running
from pathlib import Path

from torch.distributed import TCPStore

from zephon import step_digest
from zephon.batchlog import read_batches

LOSS = "loss_metrics/global_avg_loss"
HELD_OUT = "validation_metrics/loss"
WAIT_SHARE = "time_metrics/data_loading(%)"
STEP_S = "time_metrics/end_to_end(s)"
GRACE_S = 8.0
NEVER = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run of TorchTitan."""

    folder: Path
    """Its dump folder; made anew, but for a checkpoint that lies there to go on from."""
    processes: int
    arguments: Sequence[str]
    timeout_s: float = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a job ended."""

    codes: tuple[int, ...]
    """Exit codes by rank; a signal is negative."""
    logs: tuple[str, ...]
    seconds: float
    scalars: dict[str, dict[int, float]] = field(repr=False)
    """By name and trainer's step, which counts from 1."""
    digests: dict[int, str] = field(repr=False)
    """By the trainer's step; nothing from the stock loader."""

    @property
    def losses(self) -> dict[int, float]:
        """Returns the training loss by the trainer's step."""
        return self.scalars.get(LOSS, {})

    @property
    def ok(self) -> bool:
        """Returns whether every rank ended with 0."""
        return not any(self.codes)

    def tail(self, lines: int = 12) -> str:
        """Returns the last lines of each log."""
        return "\n".join(
            f"rank {i}:\n" + "\n".join(log.splitlines()[-lines:]) for i, log in enumerate(self.logs)
        )


def start_server(environment: dict[str, str]) -> None:
    """Starts the process that all ranks are forked from, with what torch reads when it is imported."""
    os.environ.update(
        {"OMP_NUM_THREADS": "1", "TORCH_COMPILE_DISABLE": "1", "HF_HUB_OFFLINE": "1"} | environment
    )
    here = str(Path(__file__).resolve().parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    _context().set_forkserver_preload(["experiment.rank_process"])
    ensure_running()


def _context() -> multiprocessing.context.ForkServerContext:
    return multiprocessing.get_context("forkserver")


def run(job: Job, report: Callable[[int], None] = lambda step: None) -> Ended:
    """Returns how the job ended; `report` gets the last step in rank 0's log. TimeoutError past its time."""
    started = time.monotonic()
    for name in ("tb", "data", "logs"):
        shutil.rmtree(job.folder / name, ignore_errors=True)
    (job.folder / "logs").mkdir(parents=True)
    logs = [job.folder / "logs" / f"rank_{rank}.log" for rank in range(job.processes)]
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [_start(job, rank, store.port, log) for rank, log in enumerate(logs)]
    try:
        _wait(processes, started + job.timeout_s, lambda: report(_last_step(logs[0])))
    finally:
        for process in processes:
            process.kill()
            process.join()
    texts = tuple(log.read_text(errors="replace") if log.exists() else "" for log in logs)
    ended = Ended(
        codes=tuple(-99 if process.exitcode is None else process.exitcode for process in processes),
        logs=texts,
        seconds=time.monotonic() - started,
        scalars=read_scalars(job.folder / "tb"),
        digests=read_digests(job.folder / "data"),
    )
    if ended.seconds > job.timeout_s:
        raise TimeoutError(f"{job.folder.name} took longer than {job.timeout_s:.0f} s\n{ended.tail()}")
    return ended


def _start(job: Job, rank: int, port: int, log: Path) -> ForkServerProcess:
    environment = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(job.processes),
        "LOCAL_WORLD_SIZE": str(job.processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    from experiment.rank_process import run_rank

    arguments = (*job.arguments, "--dump-folder", str(job.folder))
    process = _context().Process(target=run_rank, args=(arguments, environment, log), daemon=True)
    process.start()
    return process


def _wait(processes: Sequence[ForkServerProcess], deadline: float, look: Callable[[], None]) -> None:
    """Waits until all have ended, the deadline is past, or the grace after a failure is."""
    failed_at = None
    while any(process.is_alive() for process in processes):
        now = time.monotonic()
        if failed_at is None and any(process.exitcode for process in processes):
            failed_at = now
        if now > deadline or (failed_at is not None and now > failed_at + GRACE_S):
            return
        look()
        time.sleep(0.1)


def _last_step(log: Path) -> int:
    """Returns the newest step in a log of TorchTitan, 0 before the first."""
    text = log.read_text(errors="replace") if log.exists() else ""
    _, found, rest = text.rpartition("- step:")
    return int(rest.split()[0]) if found and rest.split() else 0


def read_scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Returns all scalars that TorchTitan wrote to TensorBoard below `folder`, as 32 bits hold them."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util

    scalars: dict[str, dict[int, float]] = {}
    for path in sorted(folder.rglob("events.out.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                number = float(tensor_util.make_ndarray(value.tensor))
                scalars.setdefault(value.tag, {})[event.step] = number
    return scalars


def read_digests(folder: Path) -> dict[int, str]:
    """Returns the digest of each step that a run folder has, by the trainer's step."""
    if not folder.is_dir():
        return {}
    return {step + 1: step_digest(rows) for step, rows in read_batches(folder).items()}
