"""The experiment: does the number of data-parallel processes change what a model learns?

Every run has the same model, seed checkpoint, documents, learning rates and global batch; only the number of
processes, the loader and the data seed differ. `python -m experiment.series --folder F` goes on where it was
interrupted. Upstream: `jobs.py`, `data.py`. Downstream: `results.py`, `figures.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from experiment import data, jobs, results
from experiment.config_registry import GLOBAL_BATCH_SIZE, LEARNING_RATE
from experiment.results import LOADERS, Result

HELD_OUT_SEED = 2024


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is the same in all runs."""

    steps: int = 120
    warmup_steps: int = 12
    learning_rate: float = LEARNING_RATE
    held_out: int = 100
    """Documents."""
    max_chars: int = 4000
    """Longer documents are cut: a few licences would be most of the text."""

    def settings(self) -> str:
        """Returns the fingerprint of the plan."""
        return _sha(asdict(self))

    def arguments(self, size: int) -> list[str]:
        """Returns TorchTitan's arguments for `size` data-parallel processes that replicate the model."""
        return [
            f"--training.steps={self.steps}",
            f"--training.local-batch-size={GLOBAL_BATCH_SIZE // size}",
            f"--lr-scheduler.warmup-steps={self.warmup_steps}",
            f"--optimizer.param-groups.0.optimizer-kwargs.lr={self.learning_rate}",
            f"--parallelism.data-parallel-replicate-degree={size}",
            "--parallelism.data-parallel-shard-degree=1",
            f"--validator.freq={max(1, self.steps // 3)}",
            f"--checkpoint.interval={jobs.NEVER}",
        ]


@dataclass(frozen=True, slots=True)
class Series:
    """All runs, below one folder."""

    folder: Path
    plan: Plan

    @property
    def lines(self) -> Path:
        """Returns the file of results."""
        return self.folder / "results.jsonl"

    def prepare(self, seeds: range, report: Callable[[str, int, int], None]) -> dict[int, data.Texts]:
        """Returns the data of every seed; writes the held-out documents and the seed checkpoint."""
        texts = data.read_texts(data.build(self.folder, report))
        documents = [text[: self.plan.max_chars] for corpus in texts.values() for text in corpus]
        documents = data.permuted(documents, HELD_OUT_SEED)
        held_out, training = documents[: self.plan.held_out], documents[self.plan.held_out :]
        data.write_lines(self.folder / "held_out.jsonl", held_out)
        recipe = self.folder / "held_out.toml"
        data.write_recipe(recipe, self.folder / "assets", 0, {"held_out": self.folder / "held_out.jsonl"})
        found = {seed: data.write_seed(self.folder, training, seed) for seed in seeds}
        jobs.start_server(
            {"HF_DATASETS_CACHE": str(self.folder / "hf"), "ZEPHON_CACHE": str(self.folder / "cache")}
        )
        self._make_checkpoint(found[seeds[0]])
        return found

    def _base(self) -> list[str]:
        return ["--module=experiment", f"--hf-assets-path={self.folder / 'assets'}"]

    def _make_checkpoint(self, texts: data.Texts) -> None:
        folder = self.folder / "seed_checkpoint"
        if (folder / "checkpoint" / "step-0" / ".metadata").exists():
            return
        arguments = [*self._base(), "--config=stock", f"--dataloader.dataset-path={texts.stock}"]
        ended = jobs.run(
            jobs.Job(
                folder=folder,
                processes=1,
                arguments=[*arguments, "--checkpoint.create-seed-checkpoint", "--debug.seed=0"],
            )
        )
        if not ended.ok:
            sys.exit(f"the seed checkpoint was not made\n{ended.tail()}")

    def run(
        self, loader: str, size: int, seed: int, texts: data.Texts, report: Callable[[int], None]
    ) -> Result:
        """Returns the result of one run; what it leaves but for the logs is removed."""
        folder = self.folder / "runs" / f"{loader}_dp{size}_seed{seed}"
        shutil.rmtree(folder, ignore_errors=True)
        reads = {
            "stock": f"--dataloader.dataset-path={texts.stock}",
            "zephon": f"--dataloader.recipe={texts.recipe}",
        }
        arguments = [*self._base(), f"--config={loader}", reads[loader], *self.plan.arguments(size)]
        arguments += ["--validator.enable", f"--validator.dataloader.recipe={self.folder / 'held_out.toml'}"]
        start = self.folder / "seed_checkpoint" / "checkpoint" / "step-0"
        arguments += [f"--checkpoint.initial-load-path={start}"]
        ended = jobs.run(jobs.Job(folder=folder, processes=size, arguments=arguments, timeout_s=600), report)
        if not ended.ok or len(ended.losses) != self.plan.steps:
            sys.exit(f"{folder.name} failed with {ended.codes}\n{ended.tail()}")
        shutil.rmtree(folder / "checkpoint", ignore_errors=True)
        return Result(
            loader=loader,
            dp=size,
            seed=seed,
            settings=self.plan.settings(),
            losses=ended.losses,
            held_out=ended.scalars[jobs.HELD_OUT],
            batches=_sha(ended.digests) if ended.digests else "",
            seconds=round(ended.seconds, 1),
        )


def _sha(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def main() -> None:
    """Runs what is missing of the series, then shows the table and makes the plots."""
    parser = argparse.ArgumentParser(prog="python -m experiment.series", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where data, runs and results go")
    parser.add_argument("--steps", type=int, default=Plan().steps)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sizes", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2, 4, 8])
    given, console = parser.parse_args(), Console(highlight=False)
    series = Series(given.folder.resolve(), Plan(steps=given.steps))
    series.folder.mkdir(parents=True, exist_ok=True)
    done = {(r.loader, r.dp, r.seed) for r in results.read(series.lines, series.plan.settings())}
    wanted = list(itertools.product(range(given.seeds), given.sizes, LOADERS))
    with _bar(console, len(wanted), series.plan.steps) as bar:
        texts = series.prepare(range(given.seeds), lambda what, i, n: bar(what, 0))
        for seed, size, loader in wanted:
            name = f"{loader}, {size} process{'es' if size > 1 else ''}, seed {seed}"
            if (loader, size, seed) not in done:
                result = series.run(loader, size, seed, texts[seed], partial(bar, name))
                results.append(series.lines, result)
            bar(name, series.plan.steps, ended=True)
    found = results.rows(results.read(series.lines, series.plan.settings()), given.sizes)
    console.print(results.table(found, given.sizes))
    console.print(f"all results are in {series.lines}", soft_wrap=True)
    console.print(f"plots: python -m experiment.figures --folder {given.folder}", soft_wrap=True)
    if any(row.equal is False for row in found):
        sys.exit(1)


@contextmanager
def _bar(console: Console, runs: int, steps: int) -> Iterator[Callable[..., None]]:
    """Yields a function (what, step, ended) that moves a bar over all runs and one over the steps of this."""
    columns = (TextColumn("{task.description:<28}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        total = progress.add_task("runs", total=runs)
        one = progress.add_task("", total=steps)

        def bar(what: str, step: int, *, ended: bool = False) -> None:
            progress.update(one, description=what, completed=step)
            if ended:
                progress.advance(total)

        yield bar


if __name__ == "__main__":
    main()
