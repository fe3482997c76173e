"""One rank of a job: a process forked from a server that has imported `preloaded.py`.

Its own process group, its own log file, the environment of torchrun; `ranks.py` starts and ends it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import hashlib
import os
import pickle
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """What one process is to do."""

    arguments: tuple[str, ...]
    """The command line."""
    environment: dict[str, str]
    log: Path
    kill_at: int | None = None
    """The trainer's step inside which the process kills itself, after it took the step's batches."""
    call: Callable[[], None] | None = None
    """What is called in place of the trainer."""


def run_rank(rank: Rank) -> None:
    """Trains as `python -m zephon_torchtitan.cpu` does, or calls; the whole life of the process."""
    ctypes.CDLL(None).prctl(
        PARENT_DEATH_SIGNAL, signal.SIGKILL
    )  # the server ends with the tests, however these end
    output = os.open(rank.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable()  # SIGABRT writes where it stands
    os.setpgid(0, 0)  # from here on it can be signalled
    os.environ.clear()
    os.environ.update(rank.environment)
    sys.argv = ["rank", *rank.arguments]

    from torchtitan import trainer

    from zephon import tokenizer
    from zephon_torchtitan import cpu

    # It sleeps two seconds before rank 0 ends, for the sake of NCCL.
    trainer.time = SimpleNamespace(sleep=lambda _: None, perf_counter=trainer.time.perf_counter)
    cache = Path(rank.environment["ZEPHON_CACHE"])
    tokenizer._build_reference = remember_probes(tokenizer._build_reference, cache)
    if rank.kill_at is not None:
        _kill_at(trainer.Trainer, rank.kill_at)
    (rank.call or cpu.main)()


def _kill_at(trainer: Any, step: int) -> None:
    forward = trainer.forward_backward_step

    def killing(self: Any, **keywords: Any) -> Any:
        if self.step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return forward(self, **keywords)

    trainer.forward_backward_step = killing


def remember_probes(build: Any, cache: Path) -> Any:
    """Returns `zephon.tokenizer._build_reference` with a memory in `cache`, shared by all processes.

    It encodes the texts that probe a tokenizer, which takes a second for one without merges.
    """
    from zephon.tokenizer import Encoder

    def build_once(file: Any, batches: list[list[str]]) -> Any:
        key = repr((file.file_hash, file.bos_token, file.eos_token, file.blueprint, batches))
        path = cache / f"probe_{hashlib.sha256(key.encode()).hexdigest()}.pickle"
        if path.exists():
            return Encoder(file.blueprint, "tokenizers"), pickle.loads(path.read_bytes())
        encoder, expected = build(file, batches)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(pickle.dumps(expected))
        temporary.rename(path)
        return encoder, list(expected)

    return build_once
