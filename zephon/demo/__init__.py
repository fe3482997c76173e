"""The demo: the same batches on 1, 2, 4 and 8 ranks, and through two kills, on this machine, offline.

Upstream: `demo/corpora.py` makes data and recipe, `demo/ranks.py` runs the ranks as processes,
`demo/report.py` compares. Downstream: `zephon demo` and `make demo`. If one row differs, it exits with 1.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from zephon.demo.amended import AmendedPlan, run_amended
from zephon.demo.corpora import CorporaPlan, build_corpora, write_recipe
from zephon.demo.ranks import RankJob, merged_path, newest_state, run_ranks
from zephon.demo.report import Findings, Restore, compare, realised_shares, tell, tell_next, tell_verdict
from zephon.errors import ZephonError
from zephon.readers import Report
from zephon.recipe import Recipe
from zephon.statefile import write_state_file

RESUMED = "killed"
"""The column of the run that is killed and resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """How the ranks of one data-parallel size run; other for each size, as none of it may change a row."""

    micro_batch_size: int
    executor: str
    workers: int

    def __str__(self) -> str:
        return f"micro-batches of {self.micro_batch_size}, {self.workers} x {self.executor}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """Ranks that go on from the newest state; rank r is killed when `holds[r]` steps are complete."""

    world_size: int
    holds: tuple[int, ...] = ()
    """Empty: they go on to the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """The shape of the demo."""

    corpora: CorporaPlan
    num_steps: int
    change_at: int
    """The step from which the mixture is another."""
    save_every: int
    attempts: tuple[Attempt, ...]
    amended: AmendedPlan
    seq_len: int
    global_batch_size: int = 16
    lanes: int = 8
    timeout_s: float
    """How long the ranks of one run may take."""


FULL = DemoPlan(
    corpora=CorporaPlan(),
    num_steps=40,
    change_at=20,
    save_every=5,
    attempts=(Attempt(4, (17, 18, 19, 21)), Attempt(2, (27, 28)), Attempt(8)),
    amended=AmendedPlan(proposed_at=5, at_step=10, num_steps=16),
    seq_len=512,
    timeout_s=120.0,
)
QUICK = DemoPlan(
    corpora=CorporaPlan(
        code_bytes=400_000,
        prose_bytes=400_000,
        reference_bytes=200_000,
        training_bytes=400_000,
        vocab_size=2048,
    ),
    num_steps=16,
    change_at=10,
    save_every=4,
    attempts=(Attempt(4, (9, 10, 11, 13)), Attempt(2, (13, 14)), Attempt(8)),
    amended=AmendedPlan(proposed_at=2, at_step=6, num_steps=8),
    seq_len=128,
    timeout_s=120.0,
)
KNOBS = {
    1: Knobs(micro_batch_size=16, executor="threads", workers=2),
    2: Knobs(micro_batch_size=4, executor="processes", workers=1),
    4: Knobs(micro_batch_size=2, executor="inline", workers=1),
    8: Knobs(micro_batch_size=1, executor="threads", workers=1),
}


# Running --------------------------------------------------------------------------------------------------


def run_demo(folder: Path, *, quick: bool = False) -> int:
    """Returns 0 where all runs gave the same batches, else 1; leaves data, recipe and runs in `folder`.

    Offline, without torch; about a minute on two cores. `folder` must be empty, absent or an earlier demo's.
    """
    console, plan = Console(highlight=False), QUICK if quick else FULL
    start = time.monotonic()
    console.print(f"[bold]zephon demo[/bold] in {folder}", soft_wrap=True)
    try:
        with _bars(console) as bar:
            is_new = build_corpora(folder, plan.corpora, bar)
            jobs = Jobs(folder, plan)
            jobs.write_recipe()
            speed = jobs.run_sizes(bar)
            restores = jobs.run_killed(bar)
            jobs.run_control(bar)
            amended = run_amended(
                jobs.recipe_path, folder / "runs" / "amended", folder / "cache", plan.amended, bar
            )
    except ZephonError as error:
        console.print(str(error), markup=False, soft_wrap=True)
        console.print("[bold red]FAILED[/bold red]: a part of the demo did not get to its end")
        return 1
    if not is_new:
        console.print("corpora and tokenizer are those of an earlier demo")
    findings = jobs.findings(speed, restores)
    tell(console, findings)
    if amended is not None:
        console.print(str(amended), markup=False, soft_wrap=True)
    tell_next(console, jobs.recipe_path, plan.change_at)
    console.print()
    if amended is not None and not amended.is_equal:
        console.print("[bold red]FAILED[/bold red]: the amended run cannot be made again")
        return 1
    tell_verdict(console, findings, time.monotonic() - start)
    return 0 if findings.is_good else 1


@contextmanager
def _bars(console: Console) -> Iterator[Report]:
    """Yields a function (what, done, total) that keeps a progress bar for each `what`."""
    columns = (TextColumn("{task.description:<28}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        tasks: dict[str, TaskID] = {}

        def bar(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done)

        yield bar


@dataclass(frozen=True, slots=True)
class Jobs:
    """The runs of one demo, below its folder."""

    folder: Path
    plan: DemoPlan

    @property
    def recipe_path(self) -> Path:
        """Returns the recipe that all runs read."""
        return self.folder / "recipe.toml"

    @property
    def control(self) -> Path:
        """Returns the run folder of the control."""
        return self.folder / "runs" / "other_seed"

    @property
    def runs(self) -> dict[str, Path]:
        """Returns the run folders that must agree, by the name of their column."""
        sizes = {f"dp {size}": self.folder / "runs" / f"dp_{size}" for size in KNOBS}
        return {**sizes, RESUMED: self.folder / "runs" / "killed_and_resumed"}

    def write_recipe(self) -> None:
        """Writes the recipe and drops the runs of an earlier demo."""
        plan = self.plan
        shutil.rmtree(self.folder / "runs", ignore_errors=True)
        write_recipe(
            self.recipe_path,
            num_steps=plan.num_steps,
            change_at=plan.change_at,
            global_batch_size=plan.global_batch_size,
            lanes=plan.lanes,
            seq_len=plan.seq_len,
        )

    def run_sizes(self, bar: Report) -> dict[str, float]:
        """Runs every data-parallel size, and returns the measured speed."""
        results = {}
        for size in KNOBS:
            jobs = self._jobs(self.runs[f"dp {size}"], Attempt(size), measure=size == 1)
            results[size] = self._run(f"dp {size}: {size} process{'es' if size > 1 else ''}", jobs, bar)
        return results[1][0]

    def run_killed(self, bar: Report) -> list[Restore]:
        """Runs what is killed and resumed, and returns how each attempt after the first went on."""
        run_folder, restores = self.runs[RESUMED], []
        for number, attempt in enumerate(self.plan.attempts):
            step, num_bytes = 0, 0
            if number:
                step, state = newest_state(run_folder)
                merged = merged_path(run_folder, number)
                write_state_file(state, merged)
                num_bytes = merged.stat().st_size
            jobs = self._jobs(run_folder, attempt, number=number, first_step=step, saves=True)
            what = f"dp {attempt.world_size}: " + ("resumed" if number else "started")
            results = self._run(what + (", then killed" if attempt.holds else ""), jobs, bar)
            if number:
                restore_s, first_s = (max(r[name] for r in results) for name in ("restore_s", "first_step_s"))
                restores.append(Restore(number, attempt.world_size, step, num_bytes, restore_s, first_s))
        return restores

    def run_control(self, bar: Report) -> None:
        """Runs the same recipe with another seed, of which no step may be equal."""
        self._run("control: another seed", self._jobs(self.control, Attempt(1), seed=1), bar)

    def findings(self, speed: dict[str, float], restores: list[Restore]) -> Findings:
        """Returns what the run folders hold, compared."""
        plan, recipe = self.plan, Recipe.from_toml(self.recipe_path)
        table, one = recipe.compile_schedule(), self.runs["dp 1"]
        shape = {"num_steps": plan.num_steps, "rows_per_step": plan.global_batch_size}
        return Findings(
            comparison=compare(self.runs, **shape),
            control=compare({"dp 1": one, "control": self.control}, **shape),
            notes=self._notes(restores),
            table=table,
            shares=realised_shares(one, table, plan.num_steps),
            restores=restores,
            num_lanes=plan.lanes,
            knobs=tuple(str(knobs) for knobs in KNOBS.values()),
            speed=speed,
        )

    def _notes(self, restores: list[Restore]) -> dict[int, str]:
        notes = {self.plan.change_at: "the mixture changes"}
        for restore in restores:
            killed = self.plan.attempts[restore.attempt - 1]
            steps = ", ".join(map(str, killed.holds))
            note = (
                f"{killed.world_size} ranks were killed (SIGKILL) when {steps} steps were complete; "
                f"{restore.world_size} others went on from here"
            )
            notes[restore.step] = "; ".join(filter(None, [notes.get(restore.step), note]))
        return notes

    def _run(self, what: str, jobs: list[RankJob], bar: Report) -> list[dict[str, float]]:
        total = min(job.hold_after or job.num_steps for job in jobs)
        bar(what, jobs[0].first_step, total)
        results = run_ranks(
            jobs, timeout_s=self.plan.timeout_s, report=lambda step: bar(what, min(step, total), total)
        )
        bar(what, total, total)
        return results

    def _jobs(
        self,
        run_folder: Path,
        attempt: Attempt,
        *,
        number: int = 0,
        first_step: int = 0,
        seed: int = 0,
        saves: bool = False,
        measure: bool = False,
    ) -> list[RankJob]:
        knobs = KNOBS[attempt.world_size]
        return [
            RankJob(
                recipe=str(self.recipe_path.resolve()),
                run_folder=str(run_folder.resolve()),
                cache=str((self.folder / "cache").resolve()),
                dp_rank=rank,
                dp_world_size=attempt.world_size,
                micro_batch_size=knobs.micro_batch_size,
                executor=knobs.executor,
                workers=knobs.workers,
                seed=seed,
                attempt=number,
                first_step=first_step,
                num_steps=self.plan.num_steps,
                save_every=self.plan.save_every if saves else 0,
                hold_after=attempt.holds[rank] if attempt.holds else 0,
                measure=measure,
            )
            for rank in range(attempt.world_size)
        ]
