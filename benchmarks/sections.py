"""The sections of the bench: what each one starts, compares and holds against its target.

Upstream: `bench.py` picks the sections. Downstream: `children.py` runs the loads, `report.py` shows what
they found. Spool and page cache are filled before.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import Any

from children import Child, Sample, Spread, ratio, take_turns
from recipes import CACHE, make_recipe
from report import Grid, Meter, Result, Target, format_mib, format_spread
from shares import PLANS, describe

MIB = 1 << 20
GIB = 1 << 30
SEQ_LEN = 2048
MANY_LANES = 1024
STRICTER = "bare fastokens, one thread a call"
DEFAULT = "bare fastokens, its default"

Section = Callable[[bool, Meter], Result]
"""(quick, meter) -> what was found."""


def loader_spec(
    lanes: int, seq_len: int = SEQ_LEN, *, backend: str = "auto", micro_batch_size: int | None = None
) -> dict[str, Any]:
    """Returns what `loads.py` needs to know of a loader."""
    return {
        "load": "loader",
        "lanes": lanes,
        "seq_len": seq_len,
        "backend": backend,
        "micro_batch_size": micro_batch_size,
    }


def measure_speed(quick: bool, meter: Meter) -> Result:
    """Returns the whole loader against bare loops: Parquet to batches against Parquet to ids."""
    turns = 3 if quick else 5
    meter.begin("speed", 7 * (turns + 2))
    lengths = (2048, 8192)
    tokens = 8_000_000 if quick else 24_000_000
    fast_specs = {f"loader {n:,}": loader_spec(8, n) for n in lengths}
    fast_specs |= {name: {"load": "bare", "backend": "fastokens"} for name in (DEFAULT, STRICTER)}
    fast, fast_peaks = _compare(fast_specs, tokens=tokens, turns=turns, meter=meter)
    bare = "bare tokenizers"
    slow_specs = {
        f"loader {n:,}, tokenizers": loader_spec(8, n, backend="tokenizers") for n in lengths[: 2 - quick]
    }
    slow_specs[bare] = {"load": "bare", "backend": "tokenizers"}
    slow, slow_peaks = _compare(slow_specs, tokens=tokens // 4, turns=turns, meter=meter)
    targets = []
    rows = []
    for name in [name for name in (fast | slow) if name.startswith("loader")]:
        against = (STRICTER, DEFAULT) if name in fast else (bare,)
        samples = fast if name in fast else slow
        found = {other: ratio(samples[name], samples[other]) for other in against}
        rows += [[name, other, format_spread(spread)] for other, spread in found.items()]
        worst = min(found.values(), key=lambda spread: spread.median)
        least = 0.6 if name in fast else 0.9
        targets.append(
            Target(
                name=f"{name} / {against[0]}: tokens per CPU second",
                wanted=f">= {least}",
                measured=format_spread(worst),
                met=worst.median >= least,
            )
        )
    peak = max(value for name, value in (fast_peaks | slow_peaks).items() if name.startswith("loader"))
    targets.append(_below("peak memory, 8 lanes", peak, GIB))
    grids = [
        _rates(f"Speed, 8 lanes, {turns} turns", fast | slow, fast_peaks | slow_peaks),
        Grid(title="Tokens per CPU second, ratios", columns=("ours", "theirs", "ratio"), rows=rows),
    ]
    return Result(grids=grids, targets=targets, data=_raw(fast | slow, fast_peaks | slow_peaks))


def _compare(
    specs: Mapping[str, Mapping[str, Any]], *, tokens: int, turns: int, meter: Meter
) -> tuple[dict[str, list[Sample]], dict[str, int]]:
    """Returns samples and peak memory of loads that take turns."""
    with ExitStack() as stack:
        children = {}
        for name, spec in specs.items():
            meter.tick(f"start {name}")
            child = Child(spec, bpe_threads=1 if name == STRICTER else None)
            children[name] = stack.enter_context(child)
            if spec["load"] == "loader":
                child.ask("begin")
        samples = take_turns(children, tokens=tokens, warm_tokens=tokens, turns=turns, tick=meter.tick)
        return samples, {name: child.ask("memory")["peak_bytes"] for name, child in children.items()}


def _rates(title: str, samples: Mapping[str, Sequence[Sample]], peaks: Mapping[str, int]) -> Grid:
    rows = []
    for name, turns in samples.items():
        per_cpu_s = Spread.of([sample.per_cpu_s / 1e6 for sample in turns])
        per_s = Spread.of([sample.per_s / 1e6 for sample in turns])
        cores = median(sample.cpu_s / sample.wall_s for sample in turns)
        rows.append(
            [
                name,
                format_spread(per_cpu_s),
                format_spread(per_s),
                f"{cores:.2f}",
                f"{turns[0].tokens / 1e6:.1f}",
                format_mib(peaks[name]),
            ]
        )
    columns = ("load", "M tokens/CPU s", "M tokens/s", "cores", "M tokens a turn", "peak memory")
    return Grid(title=title, columns=columns, rows=rows)


def _raw(samples: Mapping[str, Sequence[Sample]], peaks: Mapping[str, int]) -> dict[str, Any]:
    return {
        "samples": {name: [asdict(sample) for sample in turns] for name, turns in samples.items()},
        "peak_bytes": dict(peaks),
    }


def _below(name: str, num_bytes: float, limit: int) -> Target:
    wanted = f"< {format_mib(limit)}"
    return Target(name=name, wanted=wanted, measured=format_mib(num_bytes), met=num_bytes < limit)


def _within(name: str, seconds: float, limit_s: float) -> Target:
    wanted = f"< {limit_s:g} s"
    return Target(name=name, wanted=wanted, measured=f"{seconds:.3f} s", met=seconds < limit_s)


def measure_lanes(quick: bool, meter: Meter) -> Result:
    """Returns 1,024 lanes against 8 in the steady state, and what start, state and restore of them cost."""
    skipped, steps, turns = (4, 4, 2) if quick else (40, 32, 3)
    meter.begin("lanes", 2 * (turns + 1) + 4)
    many, few = f"{MANY_LANES:,} lanes", "8 lanes"
    tokens_per_step = make_recipe(MANY_LANES, SEQ_LEN).tokens_per_step
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="zephon-bench-") as folder:
        path = str(Path(folder) / "state.json")
        meter.tick(f"start {many}")
        spec = loader_spec(MANY_LANES, micro_batch_size=64)
        with Child(spec) as child, Child(loader_spec(8)) as other:
            meter.tick(f"first batch of {many}")
            begun = child.ask("begin")
            other.ask("begin")
            samples = take_turns(
                {many: child, few: other},
                tokens=steps * tokens_per_step,
                warm_tokens=skipped * tokens_per_step,
                turns=turns,
                tick=meter.tick,
            )
            meter.tick("state")
            state = child.ask("state", path)
            peaks = {many: child.ask("memory")["peak_bytes"], few: other.ask("memory")["peak_bytes"]}
        restored_by = stack.enter_context(Child(spec))
        meter.tick("restore")
        restored = restored_by.ask("begin", path)
    spread = ratio(samples[many], samples[few])
    times = [
        ["first start", *(f"{begun[name]:.3f}" for name in ("load_s", "batch_s", "step_s")), "", ""],
        ["state_dict", "", "", "", f"{state['state_s']:.3f}", f"{state['json_bytes']:,}"],
        ["restore", *(f"{restored[name]:.3f}" for name in ("load_s", "batch_s", "step_s")), "", ""],
    ]
    columns = ("", "load s", "first batch s", "first step s", "state_dict s", "bytes of JSON")
    targets = [
        Target(
            name=f"{many} / {few}: tokens per CPU second" + (", not yet steady" if quick else ""),
            wanted=">= 0.8",
            measured=format_spread(spread),
            met=spread.median >= 0.8,
        ),
        _within(f"{many}: first batch", begun["load_s"] + begun["batch_s"], 5),
        _within(f"{many}: state_dict", state["state_s"], 5),
        _within(f"{many}: restore and first batch", restored["load_s"] + restored["batch_s"], 5),
        _below(f"{many}: checkpoint as JSON", state["json_bytes"], 4 * MIB),
        _below(f"{many}: peak memory", peaks[many], 2 * GIB),
        _below(f"{few}: peak memory", peaks[few], GIB),
    ]
    grids = [
        _rates(f"Lanes, after {skipped} steps, {steps} steps a turn", samples, peaks),
        Grid(title=f"{many}: start, state, restore", columns=columns, rows=times),
    ]
    data = _raw(samples, peaks) | {"begin": begun, "state": state, "restore": restored}
    return Result(grids=grids, targets=targets, data=data)


def measure_memory(quick: bool, meter: Meter) -> Result:
    """Returns resident memory along a run of 10^8 tokens."""
    turns, tokens = 10, 1_000_000 if quick else 10_000_000
    meter.begin("memory", turns + 1)
    meter.tick("start")
    found = []
    with Child(loader_spec(8)) as child:
        child.ask("begin")
        for turn in range(turns):
            meter.tick(f"{turn * tokens:,} tokens")
            child.run(tokens)
            found.append(child.ask("memory"))
    sizes = [answer["rss_bytes"] for answer in found]
    middle, last = fmean(sizes[turns // 3 : turns - turns // 3]), fmean(sizes[turns - turns // 3 :])
    rows = [
        [f"{(i + 1) * tokens:,}", format_mib(answer["rss_bytes"]), format_mib(answer["anon_bytes"])]
        for i, answer in enumerate(found)
    ]
    grid = Grid(
        title="Memory along a run, 8 lanes", columns=("tokens", "resident", "without mapped files"), rows=rows
    )
    target = Target(
        name="memory is flat: last third / middle third",
        wanted="<= 1.05",
        measured=f"{last / middle:.3f}",
        met=last <= 1.05 * middle,
    )
    return Result(grids=[grid], targets=[target], data={"memory": found})


def measure_restore(quick: bool, meter: Meter) -> Result:
    """Returns size and cost of a state early and late in a run."""
    steps, turns = (10, 200 if quick else 1000), 3
    meter.begin("restore", 2 + 1 + turns)
    states: dict[int, dict[str, Any]] = {}
    begun: dict[int, list[dict[str, Any]]] = {step: [] for step in steps}
    with tempfile.TemporaryDirectory(prefix="zephon-bench-") as folder:
        paths = {step: str(Path(folder) / f"{step}.json") for step in steps}
        with Child(loader_spec(8)) as child:
            child.ask("begin")
            done = 1
            for step, path in paths.items():
                meter.tick(f"go to step {step:,}")
                child.ask("steps", step - done)
                done, states[step] = step, child.ask("state", path)
        meter.tick("start anew")
        with Child(loader_spec(8)) as child:
            for turn in range(turns):
                meter.tick(f"turn {turn + 1}")
                for step, path in paths.items():
                    begun[step].append(child.ask("begin", path))
    costs = {
        step: {name: Spread.of([answer[name] for answer in begun[step]]) for name in ("load_s", "batch_s")}
        for step in steps
    }
    rows = [
        [
            f"{step:,}",
            f"{states[step]['json_bytes']:,}",
            f"{1000 * states[step]['state_s']:.1f}",
            *(format_spread(costs[step][name], 3) for name in ("load_s", "batch_s")),
        ]
        for step in steps
    ]
    columns = ("step", "bytes of JSON", "state_dict ms", "load s", "first batch s")
    grid = Grid(title=f"Restore, 8 lanes, {turns} turns", columns=columns, rows=rows)
    early, late = (sum(spread.median for spread in costs[step].values()) for step in steps)
    targets = [
        Target(
            name=f"restore at step {steps[1]:,} / at step {steps[0]}",
            wanted="<= 1.5, or < 0.1 s more",
            measured=f"{late:.3f} s / {early:.3f} s",
            met=late <= max(1.5 * early, early + 0.1),
        ),
        _within(f"restore at step {steps[1]:,}, 8 lanes", late, 5),
    ]
    data = {"states": states, "begin": begun}
    return Result(grids=[grid], targets=targets, data=data)


def measure_share(quick: bool, meter: Meter) -> Result:
    """Returns how near the steps are to the shares of a schedule, at its start and after a switch."""
    seeds = range(2 if quick else 5)
    meter.begin("share", 1 + len(PLANS) * len(seeds))
    meter.tick("start")
    found: dict[str, list[list[dict[str, float]]]] = {}
    with Child({"load": "share"}) as child:
        for plan in PLANS:
            found[plan] = []
            for seed in seeds:
                meter.tick(f"{plan}, seed {seed}")
                found[plan].append(describe(child.ask("tokens", [plan, seed])["tokens"], plan))
    rows, phases = [], []
    for plan, runs in found.items():
        for phase, weights in enumerate(plan.split(" then ")):
            values = {name: Spread.of([run[phase][name] for run in runs]) for name in runs[0][phase]}
            phases.append(values)
            name = f"{weights} from step 0" if phase == 0 else f"{weights} after {plan.split(' then ')[0]}"
            shown = [format_spread(values[key], 3) for key in ("points", "first", "settled", "ratio")]
            rows.append([name, *shown])
    columns = ("phase of 100 steps", "off its plan, points", "first step", "last 50 steps", "ratio")
    grid = Grid(
        title=f"Shares: total variation from the plan, {len(seeds)} seeds", columns=columns, rows=rows
    )
    points = max(values["points"].high for values in phases)
    targets = [
        Target(
            name="share of 100 steps off its plan, all runs",
            wanted="<= 0.5 points",
            measured=f"{points:.3f}",
            met=points <= 0.5,
        )
    ]
    for title, numbers in (("step 0", phases[0::2]), ("the switch", phases[1::2])):
        worst = max((values["ratio"] for values in numbers), key=lambda spread: spread.median)
        targets.append(
            Target(
                name=f"total variation of {title} / the settled mean, worst plan, median of seeds",
                wanted="<= 2",
                measured=format_spread(worst),
                met=worst.median <= 2,
            )
        )
    return Result(grids=[grid], targets=targets, data={"plans": found})


def measure_elastic(quick: bool, meter: Meter) -> Result:
    """Returns whether 64 ranks and one give the same digests, by the command line."""
    steps = "0:2" if quick else "0:4"
    ranks = (64, 1)
    meter.begin("elastic", len(ranks))
    printed: dict[int, str] = {}
    with tempfile.TemporaryDirectory(prefix="zephon-bench-") as folder:
        recipe = Path(folder) / "recipe.toml"
        recipe.write_text(make_recipe(64, SEQ_LEN).to_toml(), encoding="utf-8")
        for dp in ranks:
            meter.tick(f"{dp} ranks")
            command = [sys.executable, "-m", "zephon.cli", "hash", str(recipe), "--steps", steps]
            command += ["--dp", str(dp), "--cache", str(CACHE)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            printed[dp] = done.stdout
    lines = [printed[dp].split("\n") for dp in ranks]
    rows = [[a, b] for a, b in zip(*lines, strict=True) if a or b]
    grid = Grid(title="Step digests of 64 lanes", columns=tuple(f"--dp {dp}" for dp in ranks), rows=rows)
    same = printed[64] == printed[1] and bool(rows)
    target = Target(
        name="64 lanes: digests with --dp 64 and --dp 1",
        wanted="equal",
        measured="equal" if same else "different",
        met=same,
    )
    return Result(grids=[grid], targets=[target], data={"digests": printed})


SECTIONS: Mapping[str, Section] = {
    "speed": measure_speed,
    "lanes": measure_lanes,
    "memory": measure_memory,
    "restore": measure_restore,
    "share": measure_share,
    "elastic": measure_elastic,
}
