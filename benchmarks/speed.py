"""Speed: the whole loader against bare loops, and 1,024 lanes against 8.

Upstream: `bench.py`. Downstream: `children.py` runs the loads in turns, `report.py` shows what they found.
Spool and page cache are filled before. All rates are tokens for each second of CPU time, user and system.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from children import Child, Sample, Spread, loader_spec, ratio, take_turns
from recipes import make_recipe
from report import GIB, MIB, Grid, Meter, Result, Target, below, format_mib, format_spread, within

SEQ_LENS = (2048, 8192)
STRICT = "bare fastokens, 1 thread a call"
DEFAULT = "bare fastokens, its default"
IN_ORDER = "bare fastokens, in file order"
REFERENCE = "bare tokenizers"
FAST_LEAST = 0.6
REFERENCE_LEAST = 0.9
MANY, FEW = "1,024 lanes", "8 lanes"
LANES_LEAST = 0.8
START_S = 5
MICRO_BATCH_SIZE = 64

Samples = dict[str, list[Sample]]


@dataclass(frozen=True, slots=True)
class Measured:
    """What loads that took turns measured, by name."""

    samples: Samples
    peaks: dict[str, int]
    """The most memory each ever had, in bytes."""

    def grid(self, title: str) -> Grid:
        """Returns the rates as a table."""
        columns = ("load", "M tokens/CPU s", "M tokens/s", "cores", "M tokens a turn", "peak memory")
        rows = []
        for name, turns in self.samples.items():
            per_cpu_s = Spread.of([sample.per_cpu_s / 1e6 for sample in turns])
            per_s = Spread.of([sample.per_s / 1e6 for sample in turns])
            cores = median(sample.cpu_s / sample.wall_s for sample in turns)
            size = f"{median(sample.tokens for sample in turns) / 1e6:.1f}"
            rates = [format_spread(per_cpu_s), format_spread(per_s), f"{cores:.2f}"]
            rows.append([name, *rates, size, format_mib(self.peaks[name])])
        return Grid(title=title, columns=columns, rows=rows)

    def to_json(self) -> dict[str, Any]:
        """Returns the raw numbers."""
        samples = {name: [asdict(sample) for sample in turns] for name, turns in self.samples.items()}
        return {"samples": samples, "peak_bytes": dict(self.peaks)}


def measure_speed(quick: bool, meter: Meter) -> Result:
    """Returns the whole loader, Parquet to batches, against bare loops, Parquet to ids."""
    turns = 3 if quick else 5
    tokens = 8_000_000 if quick else 24_000_000
    fast = {f"loader {n:,}": loader_spec(8, n) for n in SEQ_LENS}
    fast |= {name: {"load": "bare", "backend": "fastokens"} for name in (STRICT, DEFAULT)}
    fast[IN_ORDER] = {"load": "bare", "backend": "fastokens", "in_file_order": True}
    slow = {
        f"loader {n:,}, tokenizers": loader_spec(8, n, backend="tokenizers") for n in SEQ_LENS[: 2 - quick]
    }
    slow[REFERENCE] = {"load": "bare", "backend": "tokenizers"}
    meter.begin("speed", (len(fast) + len(slow)) * (turns + 2))
    measured = [
        compare(fast, tokens=tokens, turns=turns, meter=meter),
        compare(slow, tokens=tokens // 4, turns=turns, meter=meter),
    ]
    rows, targets = [], []
    for part, others, least in zip(
        measured, ((STRICT, DEFAULT, IN_ORDER), (REFERENCE,)), (FAST_LEAST, REFERENCE_LEAST), strict=True
    ):
        for name in [name for name in part.samples if name not in others]:
            found = {other: ratio(part.samples[name], part.samples[other]) for other in others}
            rows += [[name, other, format_spread(spread)] for other, spread in found.items()]
            found.pop(IN_ORDER, None)  # shown, not a target: other texts, alike with their neighbours
            strictest = min(found, key=lambda other: found[other].median)
            targets.append(_at_least(f"{name} / {strictest}", found[strictest], least))
    whole = Measured(measured[0].samples | measured[1].samples, measured[0].peaks | measured[1].peaks)
    peak = max(size for name, size in whole.peaks.items() if name.startswith("loader"))
    targets.append(below("peak memory of these loaders, 8 lanes", peak, GIB))
    ratios = Grid(title="Tokens per CPU second, ratios", columns=("ours", "theirs", "ratio"), rows=rows)
    grids = [whole.grid(f"Speed, 8 lanes, {turns} turns"), ratios]
    return Result(grids=grids, targets=targets, data=whole.to_json())


def _at_least(name: str, spread: Spread, least: float) -> Target:
    return Target(
        name=f"{name}: tokens per CPU s",
        wanted=f">= {least}",
        measured=format_spread(spread),
        met=spread.median >= least,
    )


def compare(specs: Mapping[str, Mapping[str, Any]], *, tokens: int, turns: int, meter: Meter) -> Measured:
    """Returns what the loads measured in turns of `tokens`, after one turn as a warm-up."""
    with ExitStack() as stack:
        children = {}
        for name, spec in specs.items():
            meter.tick(f"start {name}")
            child = Child(spec, bpe_threads=1 if name in (STRICT, IN_ORDER) else None)
            children[name] = stack.enter_context(child)
            if spec["load"] == "loader":
                child.ask("begin")
        samples = take_turns(children, tokens=tokens, warm_tokens=tokens, turns=turns, tick=meter.tick)
        return Measured(
            samples, {name: child.ask("memory")["peak_bytes"] for name, child in children.items()}
        )


def measure_lanes(quick: bool, meter: Meter) -> Result:
    """Returns 1,024 lanes against 8 in the steady state, and what start, state and restore of them cost."""
    skipped, steps, turns = (4, 4, 2) if quick else (40, 32, 3)
    meter.begin("lanes", 2 * (turns + 1) + 4)
    spec = loader_spec(1024, micro_batch_size=MICRO_BATCH_SIZE)
    tokens_per_step = make_recipe(1024, spec["seq_len"]).tokens_per_step
    with tempfile.TemporaryDirectory(prefix="zephon-bench-") as folder:
        path = str(Path(folder) / "state.json")
        meter.tick("start")
        with Child(spec) as many, Child(loader_spec(8)) as few:
            meter.tick(f"first batch of {MANY}")
            begun, _ = many.ask("begin"), few.ask("begin")
            samples = take_turns(
                {MANY: many, FEW: few},
                tokens=steps * tokens_per_step,
                warm_tokens=skipped * tokens_per_step,
                turns=turns,
                tick=meter.tick,
            )
            meter.tick("state")
            state = many.ask("state", path)
            peaks = {name: child.ask("memory")["peak_bytes"] for name, child in ((MANY, many), (FEW, few))}
        meter.tick("restore")
        with Child(spec) as child:
            restored = child.ask("begin", path)
    measured = Measured(samples, peaks)
    title = f"Lanes, after {skipped} steps of {MANY}, {turns} turns" + (" (not steady yet)" if quick else "")
    costs = {"begin": begun, "state": state, "restore": restored}
    grids = [measured.grid(title), _costs(costs)]
    return Result(grids=grids, targets=_lane_targets(measured, costs), data=measured.to_json() | costs)


def _costs(costs: Mapping[str, Mapping[str, Any]]) -> Grid:
    columns = ("", "load s", "first batch s", "first step s", "state_dict s", "bytes of JSON")
    rows = [
        [name, *(f"{costs[key][part]:.3f}" for part in ("load_s", "batch_s", "step_s")), "", ""]
        for name, key in (("first start", "begin"), ("restore", "restore"))
    ]
    state = costs["state"]
    rows.insert(1, ["state", "", "", "", f"{state['state_s']:.3f}", f"{state['json_bytes']:,}"])
    return Grid(title=f"{MANY}: start, state, restore", columns=columns, rows=rows)


def _lane_targets(measured: Measured, costs: Mapping[str, Mapping[str, Any]]) -> list[Target]:
    begun, state, restored = costs["begin"], costs["state"], costs["restore"]
    return [
        _at_least(f"{MANY} / {FEW}", ratio(measured.samples[MANY], measured.samples[FEW]), LANES_LEAST),
        within(f"{MANY}: first batch", begun["load_s"] + begun["batch_s"], START_S),
        within(f"{MANY}: state_dict", state["state_s"], START_S),
        within(f"{MANY}: restore and first batch", restored["load_s"] + restored["batch_s"], START_S),
        below(f"{MANY}: checkpoint as JSON", state["json_bytes"], 4 * MIB),
        below(f"{MANY}: peak memory", measured.peaks[MANY], 2 * GIB),
        below(f"{FEW}: peak memory of as many tokens", measured.peaks[FEW], GIB),
    ]
