"""Jobs of several ranks, each a real process, for tests: `run_job` starts them and says how they ended.

Ranks are forked from one server that has torch and TorchTitan imported, so a job of four starts in a fraction
of a second. As under torchrun, the rendezvous store is here and not in rank 0, and when one rank ends with an
error the others are ended after a grace. Nothing outlives `run_job`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

from torch.distributed import TCPStore

from plugins.torchtitan.tests.rank_process import Rank, run_rank
from zephon import step_digest
from zephon.batchlog import read_batches

ROOT = Path(__file__).resolve().parents[3]
PLUGIN = Path(__file__).resolve().parents[1]
PRELOADED = "plugins.torchtitan.tests.preloaded"
LOSS = "loss_metrics/global_avg_loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """How a job ended."""

    codes: tuple[int, ...]
    """Exit codes by rank; a signal is negative."""
    logs: tuple[str, ...]
    """What each rank wrote to its terminal."""
    wall_s: float
    dump: Path
    scalars: dict[str, dict[int, float]] = field(repr=False)
    """What this job wrote to TensorBoard, by name and trainer's step, as 32 bits hold it."""

    @property
    def log(self) -> str:
        """Returns all logs together."""
        return "\n".join(self.logs)

    @property
    def losses(self) -> dict[int, float]:
        """Returns the loss by the trainer's step, which counts from 1."""
        return self.scalars.get(LOSS, {})

    @property
    def digests(self) -> dict[int, str]:
        """Returns the digest by step, which counts from 0, of all that the dump folder's run logged."""
        return digests_of(self.dump / "data")

    def ok(self) -> Job:
        """Returns itself; fails with the logs where a rank did not end well."""
        assert set(self.codes) == {0}, f"exit codes {self.codes}\n{self.tail()}"
        return self

    def tail(self, num_lines: int = 40) -> str:
        """Returns the last lines of each log."""
        return "\n".join(
            f"--- rank {i}, exit code {code}\n" + "\n".join(log.splitlines()[-num_lines:])
            for i, (code, log) in enumerate(zip(self.codes, self.logs, strict=True))
        )


def digests_of(folder: Path) -> dict[int, str]:
    """Returns the digest of each step of a run folder, merged over ranks and attempts."""
    return {step: step_digest(rows) for step, rows in read_batches(folder).items()}


def run_job(
    world_size: int,
    arguments: Sequence[str],
    dump: Path,
    *,
    environment: Callable[[int], Mapping[str, str]] | None = None,
    kill: tuple[int, int] | None = None,
    call: Callable[[], None] | None = None,
    grace_s: float = 5.0,
    timeout_s: float = 150.0,
) -> Job:
    """Returns how a job of `world_size` ranks ended; `arguments` are TorchTitan's, without the dump folder.

    `environment` gives what a rank has besides. `kill` is (rank, trainer's step): that rank kills itself in
    that step. `call`, which can be pickled, is called in place of the trainer. After `grace_s` from the first
    rank that fails the others are ended. A job that takes longer than `timeout_s` is an AssertionError with
    the logs, in which every rank says where it stood.
    """
    started = time.monotonic()
    dump.mkdir(parents=True, exist_ok=True)
    old_events = set(_event_files(dump))
    logs = [_new_log(dump, rank) for rank in range(world_size)]
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes: list[BaseProcess] = []
    try:
        for rank in range(world_size):
            described = Rank(
                arguments=(*arguments, "--dump-folder", str(dump)),
                environment=_environment(rank, world_size, store.port)
                | dict(environment(rank) if environment else {}),
                log=logs[rank],
                kill_at=kill[1] if kill is not None and kill[0] == rank else None,
                call=call,
            )
            processes.append(_context().Process(target=run_rank, args=(described,)))
            processes[-1].start()
        while not all(map(_can_be_signalled, processes)):
            time.sleep(0.005)
        in_time = _wait(processes, time.monotonic() + timeout_s, grace_s)
    finally:
        for process in processes:
            _signal(process, signal.SIGKILL)
            process.join(5)
    job = Job(
        codes=tuple(-99 if process.exitcode is None else process.exitcode for process in processes),
        logs=tuple(log.read_text(encoding="utf-8", errors="replace") for log in logs),
        wall_s=time.monotonic() - started,
        dump=dump,
        scalars=read_scalars([path for path in _event_files(dump) if path not in old_events]),
    )
    assert in_time, f"the job did not end within {timeout_s} s\n{job.tail(80)}"
    return job


def _context() -> multiprocessing.context.ForkServerContext:
    """Returns the context of the fork server, which is started with its environment by the first process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    return context


def start_server() -> None:
    """Starts the fork server with what must stand in its environment before torch is imported."""
    from multiprocessing import forkserver

    wanted = {
        "OMP_NUM_THREADS": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "PYTHONPATH": os.pathsep.join(
            [*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT), str(PLUGIN)]
        ),
    }
    old = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        _context()
        forkserver.ensure_running()
    finally:
        for name, value in old.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Returns what torchrun gives a process, over what is here."""
    return dict(os.environ) | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "OMP_NUM_THREADS": "1",
        "TORCH_COMPILE_DISABLE": "1",
    }


def _new_log(dump: Path, rank: int) -> Path:
    folder = dump / "logs"
    folder.mkdir(exist_ok=True)
    return folder / f"rank_{rank}_{len(list(folder.glob(f'rank_{rank}_*'))):03d}.log"


def _wait(processes: Sequence[BaseProcess], deadline: float, grace_s: float) -> bool:
    """Returns whether all ended by themselves or after another's failure; ends them at the deadline."""
    failed_at: float | None = None
    while any(process.is_alive() for process in processes):
        now = time.monotonic()
        if failed_at is None and any(process.exitcode not in (None, 0) for process in processes):
            failed_at = now
        if now > deadline:
            for process in processes:
                _signal(process, signal.SIGABRT)
            time.sleep(1)
            return False
        if failed_at is not None and now > failed_at + grace_s:
            for process in processes:
                _signal(process, signal.SIGTERM if now < failed_at + grace_s + 3 else signal.SIGKILL)
        time.sleep(0.02)
    return True


def _can_be_signalled(process: BaseProcess) -> bool:
    """Returns whether a rank has its own group and log, or has ended."""
    assert process.pid is not None
    try:
        return os.getpgid(process.pid) == process.pid
    except ProcessLookupError:
        return True


def _signal(process: BaseProcess, number: int) -> None:
    """Sends a signal to a rank, if it lives, and to what it started and left."""
    if process.pid is not None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def _event_files(dump: Path) -> list[Path]:
    return sorted(dump.glob("tb/**/events.out.tfevents.*"))


def read_scalars(paths: Sequence[Path]) -> dict[str, dict[int, float]]:
    """Returns the scalars of TensorBoard files, by name and step."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    scalars: dict[str, dict[int, float]] = {}
    for path in paths:
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                scalars.setdefault(value.tag, {})[event.step] = value.simple_value
    return scalars
