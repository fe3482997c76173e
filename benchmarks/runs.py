"""Long runs: memory along 10^8 tokens, and what it costs to go on from an early and from a late state.

Upstream: `bench.py`. Downstream: `children.py` runs the loads, `report.py` shows what they found.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from children import Child, Spread, loader_spec
from report import Grid, Meter, Result, Target, format_mib, format_spread, within

NUM_SAMPLES = 10
FLAT = 1.05
RESTORE_TURNS = 3
RESTORE_S = 5
RESTORE_GROWTH = 1.5
RESTORE_SLACK_S = 0.1
"""Differences below this are noise of the machine."""


def measure_memory(quick: bool, meter: Meter) -> Result:
    """Returns resident memory along a run of 10^8 tokens."""
    tokens = 1_000_000 if quick else 10_000_000
    meter.begin("memory", NUM_SAMPLES + 1)
    meter.tick("start")
    found = []
    with Child(loader_spec(8)) as child:
        child.ask("begin")
        for turn in range(NUM_SAMPLES):
            meter.tick(f"{turn * tokens:,} tokens")
            child.run(tokens)
            found.append(child.ask("memory"))
    third = NUM_SAMPLES // 3
    sizes = [answer["rss_bytes"] for answer in found]
    growth = fmean(sizes[-third:]) / fmean(sizes[third:-third])
    rows = [
        [f"{turn * tokens:,}", format_mib(answer["rss_bytes"]), format_mib(answer["anon_bytes"])]
        for turn, answer in enumerate(found, start=1)
    ]
    columns = ("tokens", "resident", "without mapped files")
    grid = Grid(title="Memory along a run, 8 lanes", columns=columns, rows=rows)
    target = Target(
        name="memory is flat: last third / middle third",
        wanted=f"<= {FLAT}",
        measured=f"{growth:.3f}",
        met=growth <= FLAT,
    )
    return Result(grids=[grid], targets=[target], data={"memory": found})


def measure_restore(quick: bool, meter: Meter) -> Result:
    """Returns size and cost of a state early and late in a run."""
    steps = (10, 200 if quick else 1000)
    meter.begin("restore", len(steps) + 1 + RESTORE_TURNS)
    with tempfile.TemporaryDirectory(prefix="zephon-bench-") as folder:
        paths = {step: str(Path(folder) / f"{step}.json") for step in steps}
        states = _write_states(paths, meter)
        begun = _restore(paths, meter)
    rows = []
    totals = []
    for step in steps:
        load_s, batch_s = (
            Spread.of([answer[name] for answer in begun[step]]) for name in ("load_s", "batch_s")
        )
        totals.append(load_s.median + batch_s.median)
        costs = [f"{1000 * states[step]['state_s']:.1f}", format_spread(load_s, 3), format_spread(batch_s, 3)]
        rows.append([f"{step:,}", f"{states[step]['json_bytes']:,}", *costs])
    columns = ("step", "bytes of JSON", "state_dict ms", "load s", "first batch s")
    grid = Grid(title=f"Restore, 8 lanes, {RESTORE_TURNS} turns", columns=columns, rows=rows)
    early, late = totals
    flat = Target(
        name=f"restore and first batch, step {steps[1]:,} against step {steps[0]}",
        wanted=f"<= {RESTORE_GROWTH} times, or < {RESTORE_SLACK_S} s more",
        measured=f"{late:.3f} s, {early:.3f} s",
        met=late <= max(RESTORE_GROWTH * early, early + RESTORE_SLACK_S),
    )
    soon = within(f"restore and first batch at step {steps[1]:,}, 8 lanes", late, RESTORE_S)
    return Result(grids=[grid], targets=[flat, soon], data={"states": states, "begin": begun})


def _write_states(paths: dict[int, str], meter: Meter) -> dict[int, dict[str, Any]]:
    """Writes the state at each step, ascending, and returns what the states cost."""
    states = {}
    with Child(loader_spec(8)) as child:
        child.ask("begin")
        done = 1  # to begin is to take the first step
        for step, path in paths.items():
            meter.tick(f"go to step {step:,}")
            child.ask("steps", step - done)
            done, states[step] = step, child.ask("state", path)
    return states


def _restore(paths: dict[int, str], meter: Meter) -> dict[int, list[dict[str, Any]]]:
    """Goes on from each state in turns, in a process that has read nothing yet."""
    begun: dict[int, list[dict[str, Any]]] = {step: [] for step in paths}
    meter.tick("start anew")
    with Child(loader_spec(8)) as child:
        for turn in range(RESTORE_TURNS):
            meter.tick(f"turn {turn + 1}")
            for step, path in paths.items():
                begun[step].append(child.ask("begin", path))
    return begun
