"""`zephon bench`: how fast a recipe's data comes on this machine, and what a checkpoint costs.

Upstream: the shell. Downstream: `zephon.loader`. One rank that owns all lanes; a rank of many does less.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from zephon.check.report import format_bytes
from zephon.cli.common import (
    BackendOption,
    CacheOption,
    ExecutorOption,
    JsonOption,
    PrefetchOption,
    RecipeArgument,
    SetOption,
    Source,
    WorkersOption,
)
from zephon.cli.output import LateProgress, add_row, new_table, write_json, write_table
from zephon.loader import Loader
from zephon.opened import Opened
from zephon.options import LoaderOptions

MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024
"""What `ru_maxrss` counts in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one run measured."""

    executor: str
    workers: int
    backend: str
    open_s: float
    first_batch_s: float
    wall_s: float
    cpu_s: float
    steps: int
    tokens: int
    state_bytes: int
    state_s: float
    restore_s: float
    peak_bytes: int
    peak_worker_bytes: int

    @property
    def tokens_per_s(self) -> float:
        """Returns tokens for each second of the clock."""
        return self.tokens / max(self.wall_s, 1e-9)

    @property
    def tokens_per_cpu_s(self) -> float:
        """Returns tokens for each second of a core."""
        return self.tokens / max(self.cpu_s, 1e-9)


def bench(
    recipe: RecipeArgument,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Time to measure for.")] = 10.0,
    workers: WorkersOption = None,
    executor: ExecutorOption = "threads",
    prefetch: PrefetchOption = 0,
    settings: SetOption = None,
    cache: CacheOption = None,
    backend: BackendOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Measure speed, first batch, checkpoint, restore and memory on your own recipe."""
    source = Source(recipe=recipe, settings=settings, cache=cache, backend=backend)
    options = LoaderOptions(workers=workers, executor=executor, prefetch=prefetch)
    with LateProgress() as progress:
        measured = measure(source, options, seconds, progress)
    if as_json:
        rates = {"tokens_per_s": measured.tokens_per_s, "tokens_per_cpu_s": measured.tokens_per_cpu_s}
        write_json(asdict(measured) | rates)
    else:
        draw(measured)


def measure(source: Source, options: LoaderOptions, seconds: float, progress: LateProgress) -> Measured:
    """Returns what a run of `seconds` measures, at least one step of it."""
    recipe = source.load()
    options.check(recipe.lanes, recipe.rows_per_step)
    started = time.monotonic()
    with closing(source.open(progress)) as opened:
        open_s = time.monotonic() - started
        began = time.monotonic()
        cpu_before = cpu_s()
        with Loader(opened, options) as loader:
            if next(loader, None) is None:
                raise ValueError("the data end before the first step: nothing can be measured")
            first_batch_s = time.monotonic() - began
            after_first = cpu_s()
            wall_s, steps = run_for(loader, seconds, progress)
            used_s = cpu_s() - after_first
            began = time.monotonic()
            state = loader.state_dict()
            state_s = time.monotonic() - began
        children_s = cpu_s() - cpu_before if options.executor == "processes" else used_s
        return Measured(
            executor=options.executor,
            workers=1 if options.executor == "inline" else options.num_workers,
            backend=opened.tokenizer.backend,
            open_s=open_s,
            first_batch_s=first_batch_s,
            wall_s=wall_s,
            cpu_s=max(used_s, children_s),
            steps=steps,
            tokens=steps * opened.recipe.tokens_per_step,
            state_bytes=sum(len(value) if isinstance(value, bytes | str) else 8 for value in state.values()),
            state_s=state_s,
            restore_s=_restore_s(opened, options, state),
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_BYTES,
            peak_worker_bytes=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * MAXRSS_BYTES,
        )


def run_for(loader: Loader, seconds: float, progress: LateProgress) -> tuple[float, int]:
    """Returns (time, steps) of taking batches for `seconds`, at least one; fewer where the data end."""
    began, steps = time.monotonic(), 0
    spent = 0.0
    while spent < seconds and loader.has_next():
        next(loader)
        steps += 1
        spent = time.monotonic() - began
        progress("measure", round(min(spent, seconds) * 1000), round(seconds * 1000))
    return spent, steps


def _restore_s(opened: Opened, options: LoaderOptions, state: dict[str, object]) -> float:
    """Returns the time from a state to the first batch after it."""
    began = time.monotonic()
    with Loader(opened, options) as loader:
        loader.load_state_dict(state)
        next(loader, None)
        return time.monotonic() - began


def cpu_s() -> float:
    """Returns the seconds of cores used by this process and by its children that have ended."""
    return sum(os.times()[:4])


def draw(measured: Measured) -> None:
    """Draws what was measured, each with what it means."""
    m = measured
    table = new_table("what", "#value", "meaning")
    where = "in the caller" if m.executor == "inline" else f"{m.workers} {m.executor}"
    started = ", start of the workers included" if m.executor == "processes" else ""
    lines = [
        (
            "speed",
            f"{m.tokens_per_s / 1e6:.2f} Mtok/s",
            f"tokens delivered a second, all lanes on this rank, {where}",
        ),
        (
            "speed per core",
            f"{m.tokens_per_cpu_s / 1e6:.2f} Mtok/CPU-s",
            "tokens for each second of a core used" + started,
        ),
        (
            "measured",
            f"{m.wall_s:.1f} s",
            f"{m.steps:,} steps, {m.tokens:,} tokens; tokenizer back end {m.backend}",
        ),
        ("open", f"{m.open_s:.2f} s", "indexes, footers, tokenizer; the first time more"),
        (
            "first batch",
            f"{m.first_batch_s:.2f} s",
            "from an opened recipe; the first time, chunks are expanded",
        ),
        (
            "checkpoint",
            format_bytes(m.state_bytes),
            f"the state of all lanes, made in {m.state_s * 1000:.1f} ms",
        ),
        ("restore", f"{m.restore_s:.2f} s", "from that state to the next batch"),
        ("peak memory", format_bytes(m.peak_bytes), "of this process, mapped files included"),
    ]
    if m.executor == "processes":
        lines.append(("peak of a worker", format_bytes(m.peak_worker_bytes), "the largest worker process"))
    for line in lines:
        add_row(table, *line)
    write_table(table)
