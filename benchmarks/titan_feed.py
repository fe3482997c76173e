"""How fast TorchTitan is fed: `ZephonDataLoader` alone, through the interface that TorchTitan's trainer uses.

    python benchmarks/titan_feed.py [--seconds 20] [--json out.json]

The recipe is that of `speed.py`: equal parts of three corpora from Parquet, a BPE of 128,000 tokens, 8 lanes.
The stock loader reads a sample of the same documents. Loads are processes of their own and take turns, so
a busy machine is busy for both. Needs the plugin; the corpora are built by `corpora.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from loads import settle
from recipes import CACHE, CORPORA, DATA, TOKENIZER, is_built, parquet_files
from rich import box
from rich.console import Console
from rich.table import Table

RANK_EATS = 60_000
"""Tokens a second that one rank of a large training run takes."""
LEAST = 10
"""How many times as much the loader must give."""
LANES, ROWS = 8, 8
SAMPLE_ROWS = 3_000
"""Documents of each corpus that the stock loader reads."""
WARM_UP_S = 6.0
RECIPE = """\
global_batch_size = {lanes}
lanes = {lanes}
[tokenize]
tokenizer = "{tokenizer}"
bos = true
[packing]
kind = "wrap"
seq_len = {seq_len}
[schedule]
kind = "constant"
weights = {{ {weights} }}
"""


# One load, in a process of its own --------------------------------------------------------------------------


def feed(spec: dict[str, Any]) -> None:
    """Answers each line of the input, a number of seconds, with tokens, wall and CPU seconds of that turn.

    A turn ends when the process is at rest: what is made ahead in one turn was paid for in the one before.
    """
    batches = iter(_build(spec))
    deadline = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < deadline:
        next(batches)
    settle()
    _say({"ready": True})
    for line in sys.stdin:
        tokens, wall, cpu = 0, time.perf_counter(), time.process_time()
        deadline = wall + float(line)
        while time.perf_counter() < deadline:
            inputs, labels = next(batches)
            tokens += labels.numel()
        assert inputs["input"].shape == labels.shape == (ROWS, spec["seq_len"])
        _say({"tokens": tokens, "wall_s": settle() - wall, "cpu_s": time.process_time() - cpu})


def _build(spec: dict[str, Any]) -> Iterator[Any]:
    from torchtitan.components.tokenizer import HuggingFaceTokenizer
    from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader

    from zephon_torchtitan.dataloader import ZephonDataLoader

    tokenizer = HuggingFaceTokenizer(tokenizer_path=str(TOKENIZER.parent))
    runtime = {
        "dp_world_size": 1,
        "dp_rank": 0,
        "tokenizer": tokenizer,
        "seq_len": spec["seq_len"],
        "local_batch_size": ROWS,
    }
    if spec["loader"] == "stock":
        return iter(HuggingFaceTextDataLoader.Config(dataset_path=spec["data"]).build(**runtime))
    config = ZephonDataLoader.Config(recipe=spec["recipe"], workers=spec["workers"], cache=spec["cache"])
    return iter(config.build(**runtime))


def _say(answer: dict[str, Any]) -> None:
    sys.__stdout__.write(json.dumps(answer) + "\n")
    sys.__stdout__.flush()


# The measurement ------------------------------------------------------------------------------------------


class Load:
    """A load, from outside."""

    def __init__(self, spec: dict[str, Any]) -> None:
        command = [sys.executable, __file__, "--load", json.dumps(spec)]
        environment = dict(os.environ) | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": spec["hf"]}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=environment,
        )  # fmt: skip
        self._answer()

    def turn(self, seconds: float) -> dict[str, Any]:
        """Returns what one turn measured."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("a load died; run it alone with --load to see why")
        found: dict[str, Any] = json.loads(line)
        return found


def write_recipe(path: Path, seq_len: int) -> None:
    """Writes the recipe of the three corpora."""
    weights = ", ".join(f"{name} = 1" for name in CORPORA)
    text = RECIPE.format(lanes=LANES, tokenizer=TOKENIZER, seq_len=seq_len, weights=weights)
    for name in CORPORA:
        text += f'[[datasets]]\nname = "{name}"\npath = "{DATA / "parquet" / name}"\n'
    path.write_text(text)


def write_sample(path: Path) -> None:
    """Writes documents of all corpora, in turns, as the stock loader reads them."""
    columns = []
    for corpus in CORPORA:
        table = pq.ParquetFile(parquet_files(corpus)[0])
        texts: list[str] = []
        for group in range(table.num_row_groups):
            if len(texts) < SAMPLE_ROWS:
                texts += table.read_row_group(group, columns=["text"])["text"].to_pylist()
        columns.append(texts[:SAMPLE_ROWS])
    path.parent.mkdir(parents=True)
    with path.open("w") as file:
        for i in range(SAMPLE_ROWS):
            for texts in columns:
                if i < len(texts):
                    file.write(json.dumps({"text": texts[i]}) + "\n")


def measure(seconds: float, turns: int, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns the turns of each load by its name."""
    write_sample(folder / "stock" / "data.json")
    specs: dict[str, dict[str, Any]] = {}
    for seq_len in (2048, 8192):
        recipe = folder / f"{seq_len}.toml"
        write_recipe(recipe, seq_len)
        shared = {"seq_len": seq_len, "hf": str(folder / "hf")}
        ours = shared | {"loader": "zephon", "recipe": str(recipe), "cache": str(CACHE)}
        specs[f"zephon, 4 workers, {seq_len:,}"] = ours | {"workers": 4}
        specs[f"zephon, 1 worker, {seq_len:,}"] = ours | {"workers": 1}
        specs[f"TorchTitan's, {seq_len:,}"] = shared | {
            "loader": "stock",
            "data": str(folder / "stock"),
        }
    loads = {name: Load(spec) for name, spec in specs.items()}
    try:
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in loads}
        for _ in range(turns):
            for name, load in loads.items():
                found[name].append(load.turn(seconds))
        return found
    finally:
        for load in loads.values():
            load.end()


def main() -> None:
    """Measures and prints the table; exits with 0 whether the aim is met or not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a turn")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--json", type=Path, help="where the raw numbers go")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load is not None:
        feed(json.loads(given.load))
        return
    if not is_built():
        sys.exit("the corpora are not there; build them with `python benchmarks/corpora.py`")
    console, load = Console(highlight=False), os.getloadavg()[0]
    console.print(
        f"{os.cpu_count()} cores, load {load:.1f} at the start; median (least..most) of {given.turns} turns"
    )
    with tempfile.TemporaryDirectory() as folder:
        found = measure(given.seconds, given.turns, Path(folder))
    table = Table(title=f"rows of `seq_len` tokens; a rank eats {RANK_EATS:,} tokens/s", box=box.SIMPLE_HEAD)
    for name in ("loader, seq_len", "M tokens/s", "M tokens/CPU s", "x a rank"):
        table.add_column(name, justify="left" if "," in name else "right", no_wrap=True)
    for name, turns in found.items():
        rates = sorted(turn["tokens"] / turn["wall_s"] / 1e6 for turn in turns)
        per_cpu = statistics.median(turn["tokens"] / turn["cpu_s"] / 1e6 for turn in turns)
        middle = statistics.median(rates)
        shown = f"{middle:.3g} ({rates[0]:.3g}..{rates[-1]:.3g})"
        table.add_row(name, shown, f"{per_cpu:.2f}", f"{middle * 1e6 / RANK_EATS:,.1f}")
    console.print(table)
    console.print(f"aim: {LEAST} times for zephon with 4 workers")
    if given.json is not None:
        given.json.write_text(json.dumps({"load_at_start": load, "turns": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
