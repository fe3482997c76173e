"""Loads from the outside: started, asked in turns, ended; and the ratios of what they answer.

Upstream: `speed.py`, `runs.py` and `plans.py`. Downstream: `loads.py`, in a process for each load.
Everything that is compared runs in turns (A B A B A B), so that a busy machine is busy for both.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

LOADS = Path(__file__).resolve().parent / "loads.py"
THREADS_VARIABLE = "FASTOKENS_BPE_THREADS"
END_S = 10

Tick = Callable[[str], None]
"""Called with what is done next, once for every part of a section's work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one turn of a load measured."""

    tokens: int
    wall_s: float
    cpu_s: float
    system_s: float
    """The part of `cpu_s` that the system used: page faults, reads."""

    @property
    def per_cpu_s(self) -> float:
        """Returns tokens for each second of CPU time, user and system."""
        return self.tokens / self.cpu_s

    @property
    def per_s(self) -> float:
        """Returns tokens for each second of the clock."""
        return self.tokens / self.wall_s


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some turns, with the least and the most."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Returns the spread of `values`."""
        return cls(statistics.median(values), min(values), max(values))


def ratio(ours: Sequence[Sample], theirs: Sequence[Sample]) -> Spread:
    """Returns the spread over the turns of our tokens per CPU second by theirs."""
    return Spread.of([a.per_cpu_s / b.per_cpu_s for a, b in zip(ours, theirs, strict=True)])


def loader_spec(
    lanes: int, seq_len: int = 2048, *, backend: str = "auto", micro_batch_size: int | None = None
) -> dict[str, Any]:
    """Returns what `loads.py` needs to know of a loader; a batch is a whole step unless it is told."""
    return {
        "load": "loader",
        "lanes": lanes,
        "seq_len": seq_len,
        "backend": backend,
        "micro_batch_size": micro_batch_size,
    }


class Child:
    """A process that runs one load; a context manager that ends it."""

    def __init__(self, spec: Mapping[str, Any], *, bpe_threads: int | None = None) -> None:
        """Starts the load and waits until it is open; `bpe_threads` None leaves `fastokens` its default."""
        environment = {name: value for name, value in os.environ.items() if name != THREADS_VARIABLE}
        if bpe_threads is not None:
            environment[THREADS_VARIABLE] = str(bpe_threads)
        self._process = subprocess.Popen(
            [sys.executable, str(LOADS), json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.spec = spec
        self.open_s = float(self._answer()["open_s"])

    def ask(self, command: str, argument: object = None) -> dict[str, Any]:
        """Returns the answer of the load to a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, argument]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def run(self, num_tokens: int) -> Sample:
        """Returns what making at least `num_tokens` took."""
        return Sample(**self.ask("run", num_tokens))

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"load {self.spec} ended with {self._process.wait()}; see its message above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(END_S if kind is None else 0)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()


def take_turns(
    children: Mapping[str, Child], *, tokens: int, warm_tokens: int, turns: int, tick: Tick
) -> dict[str, list[Sample]]:
    """Returns the samples of every child, all of which make `tokens` a turn; the warm-up is not in them."""
    for name, child in children.items():
        tick(f"warm up {name}")
        child.run(warm_tokens)
    samples: dict[str, list[Sample]] = {name: [] for name in children}
    for turn in range(turns):
        for name, child in children.items():
            tick(f"turn {turn + 1} of {name}")
            samples[name].append(child.run(tokens))
    return samples
