"""The share of a step that TorchTitan's trainer waits for data, on 1, 2 and 4 processes of this machine.

    python benchmarks/titan_wait.py --folder FOLDER [--json out.json]

TorchTitan measures it itself: `time_metrics/data_loading(%)`, here the mean of the steps from the third on.
The debug model (6.2 M parameters, 8 rows of 128 tokens a step) on CPUs, all processes on the same cores:
steps are slow, and so is everything that shares the cores with them. Needs the plugin, no network.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plugins" / "torchtitan"))

from experiment import data, jobs

SIZES = (1, 2, 4)
FIRST = 3
"""The trainer's step from which on steps count; the first ones fill what is read ahead."""
LOADERS = {
    "zephon, 1 worker": ("debug_zephon", ("--dataloader.executor=threads", "--dataloader.workers=1")),
    "zephon, prefetch 2": (
        "debug_zephon",
        ("--dataloader.executor=threads", "--dataloader.workers=1", "--dataloader.prefetch=2"),
    ),
    "zephon, inline": ("debug_zephon", ()),
    "TorchTitan's": ("debug_stock", ()),
}


def measure(folder: Path, steps: int, console: Console) -> dict[str, list[dict[str, list[float]]]]:
    """Returns what TorchTitan logged of each step, by loader and then for each of `SIZES`."""
    texts = data.read_texts(data.build(folder, lambda what, done, total: None))
    written = data.write_seed(folder, [text for corpus in texts.values() for text in corpus], 0)
    jobs.start_server({"HF_DATASETS_CACHE": str(folder / "hf"), "ZEPHON_CACHE": str(folder / "cache")})
    found: dict[str, list[dict[str, list[float]]]] = {name: [] for name in LOADERS}
    wanted = [(name, size) for name in LOADERS for size in SIZES]
    for i, (name, size) in enumerate(track(wanted, console=console, description="runs")):
        config, more = LOADERS[name]
        reads = f"recipe={written.recipe}" if config == "debug_zephon" else f"dataset-path={written.stock}"
        arguments = [
            "--module=experiment",
            f"--config={config}",
            f"--hf-assets-path={folder / 'assets'}",
            f"--training.steps={steps}",
            f"--training.local-batch-size={8 // size}",
            f"--dataloader.{reads}",
            "--checkpoint.no-enable",
            *more,
        ]
        place = folder / "runs" / str(i)
        shutil.rmtree(place, ignore_errors=True)
        ended = jobs.run(jobs.Job(folder=place, processes=size, arguments=arguments))
        if not ended.ok:
            sys.exit(f"{name} on {size} failed\n{ended.tail()}")
        tags = {"share_percent": jobs.WAIT_SHARE, "step_s": jobs.STEP_S}
        found[name].append(
            {key: [v for step, v in ended.scalars[tag].items() if step >= FIRST] for key, tag in tags.items()}
        )
    return found


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where data and runs go")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--json", type=Path, help="where the raw numbers go")
    given, console, load = parser.parse_args(), Console(highlight=False), os.getloadavg()[0]
    found = measure(given.folder.resolve(), given.steps, console)
    table = Table(title="waiting for data: share of the step, and a step", box=box.SIMPLE_HEAD)
    for name in ("loader", *(f"{size} process{'es' if size > 1 else ''}" for size in SIZES)):
        table.add_column(name, justify="left" if name == "loader" else "right")
    for name, by_size in found.items():
        cells = [(statistics.mean(one["share_percent"]), statistics.mean(one["step_s"])) for one in by_size]
        table.add_row(name, *(f"{share:.2f} % of {step:.2f} s" for share, step in cells))
    console.print(table)
    console.print(f"{os.cpu_count()} cores, load {load:.1f} at the start")
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
