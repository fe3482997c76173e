"""TorchTitan's stock loader and zephon's on other numbers of processes: losses, batches and resumes.

`python -m experiment.compare --folder F` trains on 1, 2 and 4 processes from one seed checkpoint and resumes
a run of 4 on 2; `--all` adds HSDP, every resume, and data that ends. No network, no GPU. Exits with 1 where
zephon's losses or batches differ. Upstream: `jobs.py`, `data.py`. Downstream: `told.py`, `make demo-titan`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from experiment import data, jobs, told
from experiment.config_registry import GLOBAL_BATCH_SIZE
from experiment.jobs import Ended, Job

STEPS, SAVED, CHANGE = 8, 4, 5
"""Trainer's steps; that of the checkpoint; the data's step from which the mixture is another."""
SCHEDULE = f"""kind = "stages"
stages = [
    {{ step = 0, weights = {{ code = 6, prose = 4 }} }},
    {{ step = {CHANGE}, weights = {{ code = 2, prose = 8 }} }},
]"""
NUM_UNEVEN = 7
"""Documents that 2 processes cannot share evenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One run of the comparison."""

    name: str
    loader: str
    processes: int
    resumes: str = ""
    """The run whose checkpoint it goes on from; empty: the seed checkpoint."""
    arguments: tuple[str, ...] = ()
    uneven: bool = False
    """Whether it reads the documents that end, once."""


SIZES = (1, 2, 4)
HSDP = ("--parallelism.data-parallel-replicate-degree=2", "--parallelism.data-parallel-shard-degree=2")
LEFT_OUT = ("--checkpoint.exclude-from-loading", "dataloader")
FRESH = [
    *(Asked(name=f"stock {n}", loader="stock", processes=n) for n in SIZES),
    *(Asked(name=f"zephon {n}", loader="zephon", processes=n) for n in SIZES),
]
RESUMES = [
    Asked(name="stock 4 -> 2", loader="stock", processes=2, resumes="stock 4"),
    Asked(name="zephon 4 -> 2", loader="zephon", processes=2, resumes="zephon 4"),
]
REST = [
    Asked(name="zephon 2x2", loader="zephon", processes=4, arguments=HSDP),
    Asked(name="stock 2 -> 4", loader="stock", processes=4, resumes="stock 2"),
    Asked(name="stock 4 -> 1", loader="stock", processes=1, resumes="stock 4"),
    Asked(
        name="stock 4 -> 2, data left out", loader="stock", processes=2, resumes="stock 4", arguments=LEFT_OUT
    ),
    Asked(
        name="zephon 4 -> 2, data left out",
        loader="zephon",
        processes=2,
        resumes="zephon 4",
        arguments=LEFT_OUT,
    ),
    Asked(name="zephon 2 -> 4", loader="zephon", processes=4, resumes="zephon 2"),
    Asked(name="zephon 4 -> 1", loader="zephon", processes=1, resumes="zephon 4"),
    Asked(
        name="stock, data ends", loader="stock", processes=2, uneven=True, arguments=("--training.steps=40",)
    ),
    Asked(
        name="zephon, data ends",
        loader="zephon",
        processes=2,
        uneven=True,
        arguments=("--training.steps=40",),
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All runs, below one folder."""

    folder: Path
    model: str
    """tiny or debug."""
    ended: dict[str, Ended] = field(default_factory=dict)

    def prepare(self, report: Callable[[str, int, int], None]) -> None:
        """Makes data, recipes and the seed checkpoint."""
        texts = data.read_texts(data.build(self.folder, report))
        both = data.permuted(texts["code"] + texts["prose"], seed=0)
        data.write_lines(self.folder / "stock" / "data.json", both)
        places = {name: self.folder / f"{name}.jsonl" for name in ("code", "prose")}
        for name, place in places.items():
            data.write_lines(place, texts[name])
        data.write_recipe(self.folder / "recipe.toml", self.folder / "assets", 0, places, SCHEDULE)
        uneven = self.folder / "uneven" / "data.json"
        data.write_lines(uneven, [text[:4000] for text in both if len(text) >= 4000][:NUM_UNEVEN])
        once = {"documents": uneven}
        data.write_recipe(
            self.folder / "uneven.toml", self.folder / "assets", 0, once, lanes=2, dataset="max_epochs = 1"
        )
        cache = {"HF_DATASETS_CACHE": str(self.folder / "hf"), "ZEPHON_CACHE": str(self.folder / "cache")}
        jobs.start_server(cache)
        seed = Asked(
            name="seed",
            loader="stock",
            processes=1,
            arguments=("--checkpoint.create-seed-checkpoint", "--debug.seed=0"),
        )
        if not (self._place(seed.name) / "checkpoint" / "step-0" / ".metadata").exists():
            ended = self.run(seed)
            if not ended.ok:
                sys.exit(f"the seed checkpoint was not made\n{ended.tail()}")

    def run(self, asked: Asked, report: Callable[[int], None] = lambda step: None) -> Ended:
        """Returns how the run ended, anew."""
        folder = self._place(asked.name)
        shutil.rmtree(folder, ignore_errors=True)
        arguments = [*self._arguments(asked), *self._reads(asked), *asked.arguments]
        if asked.resumes:
            step = f"checkpoint/step-{SAVED}"
            shutil.copytree(self._place(asked.resumes) / step, folder / step)
        elif asked.name != "seed":
            arguments.append(
                f"--checkpoint.initial-load-path={self._place('seed') / 'checkpoint' / 'step-0'}"
            )
        job = Job(folder=folder, processes=asked.processes, arguments=arguments, timeout_s=300)
        self.ended[asked.name] = ended = jobs.run(job, report)
        return ended

    def _place(self, name: str) -> Path:
        return self.folder / "runs" / name.replace(" -> ", "_to_").replace(",", "").replace(" ", "_")

    def _arguments(self, asked: Asked) -> list[str]:
        config = asked.loader if self.model == "tiny" else f"{self.model}_{asked.loader}"
        return [
            "--module=experiment",
            f"--config={config}",
            f"--hf-assets-path={self.folder / 'assets'}",
            f"--training.steps={STEPS}",
            f"--training.local-batch-size={GLOBAL_BATCH_SIZE // max(SIZES)}",
            f"--checkpoint.interval={SAVED}",
        ]

    def _reads(self, asked: Asked) -> list[str]:
        if asked.loader == "zephon":
            return [f"--dataloader.recipe={self.folder / ('uneven.toml' if asked.uneven else 'recipe.toml')}"]
        place = f"--dataloader.dataset-path={self.folder / ('uneven' if asked.uneven else 'stock')}"
        return [place, *(["--dataloader.no-infinite"] if asked.uneven else [])]


def main() -> None:
    """Runs the comparison and says what came out."""
    parser = argparse.ArgumentParser(prog="python -m experiment.compare", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where data and runs go")
    parser.add_argument(
        "--model", choices=("tiny", "debug"), default="tiny", help="debug: TorchTitan's debug model"
    )
    parser.add_argument("--all", action="store_true", help="HSDP, every resume, and data that ends, too")
    parser.add_argument("--plot", type=Path, help="where a plot of the losses goes (.svg); needs matplotlib")
    given, console, started = parser.parse_args(), Console(highlight=False), time.monotonic()
    comparison = Comparison(folder=given.folder.resolve(), model=given.model)
    comparison.folder.mkdir(parents=True, exist_ok=True)
    wanted = FRESH + RESUMES + (REST if given.all else [])
    columns = (TextColumn("{task.description:<28}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("text, tokenizer, checkpoint", total=len(wanted))
        comparison.prepare(lambda what, done, total: progress.refresh())
        for asked in wanted:
            progress.update(bar, description=asked.name)
            comparison.run(asked)
            progress.advance(bar)
    faults = told.tell(console, comparison.ended, STEPS, SAVED)
    if given.plot is not None:
        from experiment.figures import plot_losses

        plot_losses(comparison.ended, given.plot)
    took = f"{time.monotonic() - started:.0f} s; runs and logs are in {comparison.folder}"
    for fault in faults:
        console.print(f"[red]DIFFERENT[/red] {fault}", soft_wrap=True)
    console.print(
        f"[bold red]FAILED[/bold red] in {took}" if faults else f"[bold green]ok[/bold green] in {took}"
    )
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
