"""A load in a process of its own, told by lines of JSON what to do: `python benchmarks/loads.py SPEC`.

Upstream: `children.py`, which starts it, asks and reads the answers. Memory and CPU time are those of this
process alone, all its threads counted. An answer comes when the process is quiet, so that whoever
measures next has the machine to itself and what was made ahead is paid for by who asked for it.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from bare import WINDOW, BareLoop
from recipes import CACHE, CORPORA, make_recipe, parquet_files
from shares import ShareLoad

from zephon import Loader, LoaderOptions, Opened, open_recipe

QUIET_S = 0.03
QUIET_CPU_S = 0.002
READ_BYTES = 1 << 24

Answer = dict[str, Any]


class Load(Protocol):
    """Something that answers commands."""

    def ask(self, command: str, argument: Any) -> Answer:
        """Returns the answer to one command."""
        ...


def settle() -> float:
    """Returns the time at which the process came to rest, on the clock of `perf_counter`."""
    used, end = time.process_time(), time.perf_counter()
    while True:
        time.sleep(QUIET_S)
        now = time.process_time()
        if now - used < QUIET_CPU_S:
            return end
        used, end = now, time.perf_counter()


def measure(work: Callable[[int], int], num_tokens: int) -> Answer:
    """Returns tokens, wall and CPU seconds of `work` until the process is at rest, and the system's part."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    made = work(num_tokens)
    ended = settle()
    after = resource.getrusage(resource.RUSAGE_SELF)
    system_s = after.ru_stime - before.ru_stime
    cpu_s = system_s + after.ru_utime - before.ru_utime
    return {"tokens": made, "wall_s": ended - started, "cpu_s": cpu_s, "system_s": system_s}


def memory() -> Answer:
    """Returns the resident memory of this process: now, its part that no file backs, and the peak."""
    lines = [line.split() for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines()]
    found = {words[0]: int(words[1]) << 10 for words in lines if words[0] in ("VmRSS:", "RssAnon:", "VmHWM:")}
    return {"rss_bytes": found["VmRSS:"], "anon_bytes": found["RssAnon:"], "peak_bytes": found["VmHWM:"]}


class BareLoad:
    """A bare loop of the named back end."""

    def __init__(self, spec: Answer) -> None:
        self._loop = BareLoop(spec["backend"], 1 if spec.get("in_file_order") else WINDOW)

    def ask(self, command: str, argument: Any) -> Answer:
        """Runs the loop for some tokens, the one command it knows."""
        assert command == "run"
        return measure(self._loop.run, argument)


class LoaderLoad:
    """A loader that owns all lanes of the recipe."""

    def __init__(self, spec: Answer) -> None:
        recipe = make_recipe(spec["lanes"], spec["seq_len"])
        self._opened = open_recipe(recipe, cache=CACHE, backend=spec["backend"])
        self._options = LoaderOptions(executor="threads", micro_batch_size=spec["micro_batch_size"])
        self._loader: Loader | None = None

    def ask(self, command: str, argument: Any) -> Answer:
        """Answers begin, run, steps, state and restore."""
        commands: dict[str, Callable[[Any], Answer]] = {
            "begin": self._begin,
            "run": self._run,
            "steps": self._steps,
            "state": self._state,
        }
        return commands[command](argument)

    def _begin(self, path: str | None) -> Answer:
        """Makes a new loader, from a state file or from the start, and times it up to the first batches."""
        if self._loader is not None:
            self._loader.close()
        settle()
        started = time.perf_counter()
        self._loader = Loader(self._opened, self._options)
        if path is not None:
            self._loader.load_state_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        loaded = time.perf_counter()
        num_rows = len(next(self._loader).rows)
        first = time.perf_counter()
        while num_rows < self._opened.recipe.global_batch_size:
            num_rows += len(next(self._loader).rows)
        ended = time.perf_counter()
        settle()
        return {"load_s": loaded - started, "batch_s": first - loaded, "step_s": ended - loaded}

    def _run(self, num_tokens: int) -> Answer:
        return measure(self._make, num_tokens)

    def _steps(self, num_steps: int) -> Answer:
        return measure(self._make, num_steps * self._opened.recipe.tokens_per_step)

    def _make(self, num_tokens: int) -> int:
        assert self._loader is not None
        made = 0
        while made < num_tokens:
            made += next(self._loader).inputs.size
        return made

    def _state(self, path: str) -> Answer:
        """Writes the state to a file of JSON."""
        assert self._loader is not None
        started = time.perf_counter()
        state = self._loader.state_dict()
        ended = time.perf_counter()
        plain = {name: value.decode() if isinstance(value, bytes) else value for name, value in state.items()}
        text = json.dumps(plain)
        Path(path).write_text(text, encoding="utf-8")
        num_bytes = sum(len(name) + len(str(value)) for name, value in plain.items())
        return {"state_s": ended - started, "state_bytes": num_bytes, "json_bytes": len(text)}


class WarmLoad:
    """Fills the spool and brings all files that are measured into the page cache."""

    def __init__(self, spec: Answer) -> None:
        self._opened: Opened = open_recipe(make_recipe(8, 2048), cache=CACHE)

    def ask(self, command: str, argument: Any) -> Answer:
        """Answers count with the number of chunks, chunk by expanding one, and files by reading all."""
        counts = [len(reader.chunks().num_documents) for reader in self._opened.readers]
        if command == "chunk":
            for reader, count in zip(self._opened.readers, counts, strict=True):
                if 0 <= argument < count:
                    reader.texts(np.array([argument]), np.zeros(1, np.int64), 1)
                argument -= count
        elif command == "files":
            files = [*CACHE.glob("spool/*/*"), *(path for name in CORPORA for path in parquet_files(name))]
            for path in files:
                with path.open("rb") as file:
                    while file.read(READ_BYTES):
                        pass
        return {"chunks": sum(counts)}


LOADS: dict[str, Callable[[Answer], Load]] = {
    "bare": BareLoad,
    "loader": LoaderLoad,
    "share": ShareLoad,
    "warm": WarmLoad,
}


def main() -> None:
    """Builds the load of the first argument and answers one line for each line of standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started this, and ends it
    spec = json.loads(sys.argv[1])
    started = time.perf_counter()
    load = LOADS[spec["load"]](spec)
    print(json.dumps({"open_s": time.perf_counter() - started}), flush=True)
    for line in sys.stdin:
        command, argument = json.loads(line)
        answer = memory() if command == "memory" else load.ask(command, argument)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
