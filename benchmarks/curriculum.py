"""What a curriculum costs and how near its plan it comes: ramps as drawn, exchanges, composition, plans.

    python benchmarks/curriculum.py [--only ramp exchange broadcast compose plan]

Data are made up: documents of whole token ids, of which the lengths are known. `broadcast` needs torch.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, models

import zephon_curriculum as zc
from zephon import (
    PARTS,
    Dataset,
    Loader,
    LoaderOptions,
    Packing,
    Recipe,
    Tokenize,
    digest,
    open_recipe,
    step_digest,
)
from zephon_curriculum.log.amend import Amendment, Blobs, begin
from zephon_curriculum.log.ops import Scale

STEPS, LANES, SEQ_LEN = 200, 32, 512
PHASE_STEPS = 50
BROADCASTS = 2000


def make_recipe(folder: Path, lengths: dict[str, Sequence[int]], weights: dict[str, object]) -> Recipe:
    """Returns a recipe of datasets with documents of these lengths in turn, 2 M tokens each."""
    Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(folder / "tokenizer.json"))
    datasets = []
    for name, of in lengths.items():
        number = 2_000_000 // (sum(of) // len(of))
        documents = [np.full(of[i % len(of)], i & 1, np.uint32) for i in range(number)]
        pq.write_table(pa.table({"ids": documents}), folder / f"{name}.parquet", row_group_size=2000)
        datasets.append(Dataset.from_path(name, str(folder / f"{name}.parquet"), tokens="ids"))
    return Recipe(
        seed=0,
        global_batch_size=LANES,
        datasets=tuple(datasets),
        schedule=weights,
        tokenize=Tokenize(tokenizer=str(folder / "tokenizer.json")),
        packing=Packing(seq_len=SEQ_LEN),
        total_steps=STEPS,
    )


def drawn(recipe: Recipe, cache: Path, world: int) -> tuple[list[str], np.ndarray]:
    """Returns the digest of each step, and (steps, datasets) tokens."""
    digests, tokens = [], []
    with closing(open_recipe(recipe, cache=cache)) as opened, ExitStack() as stack:
        ranks = [
            stack.enter_context(Loader(opened, LoaderOptions(dp_rank=r, dp_world_size=world)))
            for r in range(world)
        ]
        for _ in range(STEPS):
            batches = [next(rank) for rank in ranks]
            digests.append(step_digest([row for batch in batches for row in digest(batch)]))
            tokens.append(sum(batch.tokens.sum(axis=1) for batch in batches))
    return digests, np.array(tokens)


def ramp(folder: Path) -> None:
    """Shares of a linear ramp, realised and planned, by step and by phase."""
    schedule = {"kind": "linear", "from": {"short": 9, "long": 1}, "to": {"short": 1, "long": 9}}
    corpora = {
        "40 and 4,000 tokens": {"short": [40], "long": [4000]},
        "20-60 and 2,000-6,000": {"short": range(20, 61, 3), "long": range(2000, 6001, 170)},
    }
    print(
        "| documents | mean TV of a step | median | 95 % | max | worst phase, points | run, points | ranks |"
    )
    for name, lengths in corpora.items():
        recipe = make_recipe(folder, {k: list(v) for k, v in lengths.items()}, schedule)
        table = recipe.compile_schedule()
        planned = np.array([table.at(step) for step in range(STEPS)]) / PARTS
        found = [drawn(recipe, folder / "cache", world) for world in (1, 2, 4, 8)]
        equal = all(digests == found[0][0] for digests, _ in found)
        realised = found[0][1] / found[0][1].sum(axis=1, keepdims=True)
        by_step = np.abs(realised - planned).sum(axis=1) / 2
        off = (realised - planned)[:, 1]
        phases = [abs(off[i : i + PHASE_STEPS].mean()) for i in range(0, STEPS, PHASE_STEPS)]
        print(
            f"| {name} | {by_step.mean():.3f} | {np.median(by_step):.3f} | {np.quantile(by_step, 0.95):.3f} "
            f"| {by_step.max():.3f} | {100 * max(phases):.2f} | {100 * abs(off.mean()):.2f} "
            f"| 1, 2, 4, 8: {'equal' if equal else 'DIFFERENT'} |"
        )


def exchange(folder: Path) -> None:
    """An exchange with nothing new, in one process; and the same steps with and without a log."""
    recipe = make_recipe(folder, {"a": [40], "b": [400]}, {"kind": "constant", "weights": {"a": 1, "b": 1}})
    with closing(open_recipe(recipe, cache=folder / "cache")) as opened:
        updates = zc.open_updates(opened, folder / "curriculum")
        seconds = timed(lambda: [updates.exchange(step) for step in range(2000)]) / 2000
        print(f"exchange with nothing new, one process, local folder: {1e6 * seconds:.0f} us")
        with_log, without = [], []
        for turn in range(9):
            with_log.append(seconds_of(opened, zc.open_updates(opened, folder / f"log{turn}")))
            without.append(seconds_of(opened, None))
        ratio = statistics.median(a / b for a, b in zip(with_log, without, strict=True))
        print(f"200 steps with a log / without, CPU seconds: {ratio:.3f} (median of 9 turns)")


def seconds_of(opened: object, updates: object) -> float:
    options = LoaderOptions(executor="inline", updates=updates)
    with Loader(opened, options) as loader:
        next(loader)
        started = time.process_time()
        for _ in range(STEPS):
            next(loader)
        return time.process_time() - started


BROADCAST = """
import statistics, sys, time
import torch.distributed as dist
from datetime import timedelta
from zephon_torchtitan.updates import Share
dist.init_process_group("gloo", init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=int(sys.argv[3]))
share, seconds = Share(dist.new_group(backend="gloo", timeout=timedelta(seconds=60))), []
for i in range(int(sys.argv[4])):
    started = time.perf_counter()
    share(b"." if dist.get_rank() == 0 else None)
    seconds.append(time.perf_counter() - started)
if dist.get_rank() == 0:
    print(f"{1e3 * statistics.median(seconds[100:]):.3f}")
dist.destroy_process_group()
"""


def broadcast(folder: Path) -> None:
    """The broadcast of an exchange with nothing new, between processes of this machine."""
    for world in (2, 4):
        address = f"file://{folder}/meet_{world}"
        jobs = [
            subprocess.Popen(
                [sys.executable, "-c", BROADCAST, address, str(rank), str(world), str(BROADCASTS)],
                stdout=subprocess.PIPE, text=True,
            )
            for rank in range(world)
        ]  # fmt: skip
        said = [job.communicate()[0] for job in jobs]
        print(f"broadcast, nothing new, {world} processes: median {said[0].strip()} ms")


def compose(folder: Path) -> None:
    """A log of many decisions on a long ramp, composed entry by entry."""
    recipe = make_recipe(
        folder, {"a": [40], "b": [400]}, {"kind": "linear", "from": {"a": 1}, "to": {"b": 1}}
    )
    table = replace(recipe, total_steps=100_000).compile_schedule()
    composed = begin(0, table, "x", Blobs({"x": table}))

    def amend() -> None:
        nonlocal composed
        for i in range(1, 1001):
            op = Scale((("a", f"1.{i % 7}"),))
            composed = composed.with_amendment(
                Amendment(number=i, at_step=50 * i, until=50 * i + 500, ops=(op,))
            )

    print(f"1,000 amendments of 500 steps on a ramp of 100,000: {timed(amend):.2f} s")
    table = composed.table()
    print(f"its table: hash {timed(table.hash):.2f} s, past {timed(lambda: table.past(100_000)):.2f} s")


def plan(folder: Path) -> None:
    """Plans and estimated previews of long runs, from tables alone."""
    names = [f"d{i}" for i in range(20)]
    weights = [{name: 1 + (i * j) % 7 for j, name in enumerate(names)} for i in (1, 3)]
    recipe = make_recipe(
        folder, {name: [100] for name in names}, {"kind": "linear", "from": weights[0], "to": weights[1]}
    )
    recipe = replace(recipe, total_steps=100_000)
    print(f"compile a ramp of 100,000 steps, 20 datasets: {timed(recipe.compile_schedule):.2f} s")
    table = recipe.compile_schedule()
    whole = timed(lambda: zc.preview_estimated(recipe, 100_000))
    alone = timed(lambda: zc.preview_estimated(table, 100_000, tokens_per_step=recipe.tokens_per_step))
    print(f"estimated preview of it, of its table alone: {whole:.2f} s, {alone:.2f} s")
    print(f"plan of it: {timed(lambda: zc.plan(recipe, 100_000, table=table)):.2f} s")


def timed(work: Callable[[], object]) -> float:
    """Returns the seconds that `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Measures what is asked for and prints it."""
    parts = {"ramp": ramp, "exchange": exchange, "broadcast": broadcast, "compose": compose, "plan": plan}
    parser = argparse.ArgumentParser(description="What a curriculum costs and how near its plan it comes.")
    parser.add_argument("--only", nargs="*", choices=list(parts), default=list(parts))
    for name in parser.parse_args().only:
        with tempfile.TemporaryDirectory() as folder:
            print(f"\n{name}")
            parts[name](Path(folder))


if __name__ == "__main__":
    main()
