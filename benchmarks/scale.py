"""What very many chunks, lanes and datasets cost the serial part: `python benchmarks/scale.py [--quick]`.

Chunks and blocks are made up, so nothing is read and nothing lies on disk. Every line is a process of its
own, so its memory is its own. To compare two versions, run it with each of them in PYTHONPATH, in turns.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from report import MIB, Grid
from rich.console import Console

from zephon.executors import Workers
from zephon.feed import Feed
from zephon.lane import Lane, LanePlan
from zephon.mixture import MixtureWorkSource
from zephon.order import Order
from zephon.packing import Wrap
from zephon.prepare import Block, Request
from zephon.schedule import ScheduleContext, compile_schedule
from zephon.stages import Constant
from zephon.stream import Stream

SEQ_LEN = 2048
BLOCK_DOCUMENTS = 40
LENGTHS = (40, 200, 700, 3000)
"""Tokens of the made-up documents, drawn alike."""
FIRST_POSITIONS = 64
TURNS = 6
"""Times that a lane asks for so many positions."""
STEADY_AFTER = 2
"""Steps that are not counted."""
ORDERS = ((10**5, 1024, 8), (10**6, 1024, 8), (10**7, 1024, 64), (10**7, 1024, 8), (10**7, 1024, 1))
MIXES = ((1, 64, 60), (3, 64, 60), (8, 64, 60), (300, 64, 20), (300, 1024, 5))
WIDTH = 140


def measure_order(num_chunks: int, num_lanes: int, num_ranks: int) -> dict[str, Any]:
    """Returns what the order of so many chunks takes one rank, from columns to its lanes' first positions."""
    made = np.random.default_rng(0)
    num_documents = made.integers(200, 2000, num_chunks).astype(np.int32)
    num_bytes = num_documents.astype(np.int64) * made.integers(2000, 6000, num_chunks)
    before_bytes, start = peak_bytes(), time.perf_counter()
    order = Order(
        seed=1, name="web", num_lanes=num_lanes, num_documents=num_documents, num_bytes=num_bytes
    )  # fmt: skip
    built = time.perf_counter()
    own = range(num_lanes // num_ranks)
    for lane in own:
        order.locate(lane, 0, FIRST_POSITIONS)
    located, after_bytes = time.perf_counter(), peak_bytes()
    turns = []
    for turn in range(1, TURNS):
        begun = time.perf_counter()
        for lane in own:
            order.locate(lane, turn * FIRST_POSITIONS, FIRST_POSITIONS)
        turns.append(time.perf_counter() - begun)
    return {
        "groups": order.num_groups,
        "build_s": built - start,
        "first_s": located - built,
        "again_us": 1e6 * min(turns) / len(own),
        "bytes": after_bytes - before_bytes,
    }


def peak_bytes() -> int:
    """Returns the most memory that this process has had."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure_mix(num_datasets: int, num_lanes: int, num_steps: int) -> dict[str, Any]:
    """Returns what rows take the serial part: choosing, drawing, packing and states, of made-up blocks."""
    names = tuple(f"d{i}" for i in range(num_datasets))
    weights = {name: 1 / (i + 1) for i, name in enumerate(names)}
    context = ScheduleContext(names=names, total_steps=None, tokens_per_step=num_lanes * SEQ_LEN)
    table = compile_schedule(Constant(weights), context)
    feed = Feed(Workers(None, make_blocks(), 1), budget_bytes=1 << 30, timeout_s=60)

    def make_stream(dataset: int, lane: int) -> Stream:
        return Stream(feed, dataset, lane, names[dataset], group=(range(num_lanes), 1 << 40), max_bad=0)

    plan = LanePlan(
        num_lanes=num_lanes,
        rows_per_step=1,
        seq_len=SEQ_LEN,
        flush_every=None,
        work_source=MixtureWorkSource([], weights),
        make_packer=lambda: Wrap(SEQ_LEN),
        make_stream=make_stream,
        feed=feed,
    )
    times = [time.perf_counter()]
    lanes = [Lane(plan, lane, num_datasets, table) for lane in range(num_lanes)]
    for lane in lanes:
        lane.open_ahead(0)
        lane.open_ahead(1)
    num_runs = 0
    for _ in range(num_steps):
        rows = [lane.next_row() for lane in lanes]
        num_runs += sum(len(row.runs) for row in rows if row is not None)
        times.append(time.perf_counter())
    took = np.diff(times)
    return {
        "first_s": float(took[0]),
        "row_us": 1e6 * float(np.min(took[STEADY_AFTER:])) / num_lanes,
        "runs": num_runs / (num_steps * num_lanes),
        "bytes": peak_bytes(),
    }


def make_blocks() -> Callable[[Sequence[Request]], list[Block | Exception]]:
    """Returns workers' work that reads nothing: every block has the same few documents."""
    lengths = np.random.default_rng(0).choice(LENGTHS, BLOCK_DOCUMENTS)
    tokens = np.zeros(int(lengths.sum()), dtype=np.uint32)
    index = np.arange(BLOCK_DOCUMENTS)

    def run(requests: Sequence[Request]) -> list[Block | Exception]:
        return [
            Block(tokens, lengths, request.start + index, request.start + BLOCK_DOCUMENTS, [])
            for request in requests
        ]

    return run


CASES: dict[str, Callable[[int, int, int], dict[str, Any]]] = {"order": measure_order, "mix": measure_mix}


def measure(case: str, *numbers: int) -> dict[str, Any]:
    """Returns the measurement of a case, made in a process of its own."""
    command = [sys.executable, str(Path(__file__).resolve()), "--case", case, *map(str, numbers)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def show_orders(console: Console, limit: int) -> None:
    """Measures and prints the orders of at most `limit` chunks."""
    rows = []
    for chunks, lanes, ranks in (case for case in ORDERS if case[0] <= limit):
        found = measure("order", chunks, lanes, ranks)
        build_s, first_s = found["build_s"], found["first_s"]
        case = [f"{chunks:,}", f"{lanes:,}", str(ranks), str(found["groups"])]
        took = [f"{build_s:.2f} s", f"{first_s:.2f} s", f"{build_s + first_s:.2f} s"]
        rows.append([*case, *took, f"{found['bytes'] / MIB:.0f} MB", f"{found['again_us']:.0f} us"])
    named = ("chunks", "lanes", "ranks", "groups")
    columns = (*named, "order", "first positions", "both", "memory", "then a lane")
    console.print(Grid(title="the order, one rank", columns=columns, rows=rows).table())


def show_mixes(console: Console, limit: int) -> None:
    """Measures and prints the serial part with at most `limit` lanes."""
    rows = []
    for datasets, lanes, steps in (case for case in MIXES if case[1] <= limit):
        found = measure("mix", datasets, lanes, steps)
        case = [f"{datasets:,}", f"{lanes:,}", f"{found['first_s']:.2f} s", f"{found['runs']:.1f}"]
        speed = f"{SEQ_LEN / found['row_us']:.0f} Mtok/s"
        rows.append([*case, f"{found['row_us']:.0f} us", speed, f"{found['bytes'] / MIB:.0f} MB"])
    columns = ("datasets", "lanes", "first step", "runs a row", "a row", "at most", "memory")
    title = f"the serial part, one rank, rows of {SEQ_LEN:,}, weights 1, 1/2, 1/3, ..."
    console.print(Grid(title=title, columns=columns, rows=rows).table())


def main() -> None:
    """Prints both tables, or the JSON of one case."""
    parser = argparse.ArgumentParser(prog="scale.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="at most 10^6 chunks and 64 lanes")
    parser.add_argument("--case", nargs=4, metavar=("NAME", "N", "N", "N"), help="print one case as JSON")
    options = parser.parse_args()
    if options.case:
        name, *numbers = options.case
        print(json.dumps(CASES[name](*map(int, numbers))))
        return
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    show_orders(console, 10**6 if options.quick else 10**7)
    show_mixes(console, 64 if options.quick else 1024)


if __name__ == "__main__":
    main()
