"""What the demo says: the comparison of all runs step by step, mixture, speed, restores and the verdict.

Upstream: the run folders that `demo/ranks.py` fills. Downstream: `demo/__init__.py`, whose exit
status is the verdict.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from zephon.batch import RowDigest, step_digest
from zephon.batchlog import read_batches, read_lines
from zephon.runfolder import BATCHES
from zephon.schedule import ScheduleTable
from zephon.shares import PARTS

HEX = 12
"""Hex digits of a digest that are shown; all 64 are compared."""
MISSING = "missing"


# Comparing ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One digest for every run and step."""

    labels: tuple[str, ...]
    digests: tuple[tuple[str, ...], ...]
    """For each step, the digest in each run, or `MISSING` where rows are missing."""

    def is_equal(self, step: int) -> bool:
        """Returns whether every run has the step, and all have the same."""
        return len(set(self.digests[step])) == 1 and MISSING not in self.digests[step]

    @property
    def differing(self) -> list[int]:
        """Returns the steps that are not equal, ascending."""
        return [step for step in range(len(self.digests)) if not self.is_equal(step)]


def compare(runs: Mapping[str, Path], *, num_steps: int, rows_per_step: int) -> Comparison:
    """Returns the comparison of run folders over the steps [0, num_steps), from what their ranks logged."""
    logs = [read_batches(folder) for folder in runs.values()]
    digests = tuple(
        tuple(_digest_of(log.get(step, []), rows_per_step) for log in logs) for step in range(num_steps)
    )
    return Comparison(labels=tuple(runs), digests=digests)


def _digest_of(rows: Sequence[RowDigest], num_rows: int) -> str:
    return step_digest(rows) if len(rows) == num_rows else MISSING


def realised_shares(run_folder: Path, table: ScheduleTable, num_steps: int) -> list[list[float]]:
    """Returns, for each phase of the schedule, the share of the tokens that each dataset had in the run."""
    tokens = [[0] * len(table.names) for _ in table.starts]
    for path in sorted((run_folder / BATCHES).glob("rank_*.jsonl")):
        for entry in read_lines(path):
            if 0 <= entry.get("step", -1) < num_steps:
                phase = tokens[table.phase(entry["step"])]
                for i, name in enumerate(table.names):
                    phase[i] += entry["tokens"][name]
    return [[count / max(1, sum(phase)) for count in phase] for phase in tokens]


# Telling -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Restore:
    """How one attempt of the killed run went on."""

    attempt: int
    world_size: int
    step: int
    """The first step taken again."""
    state_bytes: int
    restore_s: float
    """`load_state_dict` of the slowest rank."""
    first_step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All that the demo has found."""

    comparison: Comparison
    control: Comparison
    """A run and the control; no step of it may be equal."""
    notes: Mapping[int, str]
    """What is special about a step."""
    table: ScheduleTable
    shares: Sequence[Sequence[float]]
    """Realised shares by phase and dataset."""
    restores: Sequence[Restore]
    num_lanes: int
    knobs: Sequence[str]
    """How the ranks of each run ran, for the first labels of `comparison`."""
    speed: Mapping[str, float]

    @property
    def is_good(self) -> bool:
        """Returns whether all runs agree at every step, and the control at none."""
        return not self.comparison.differing and len(self.control.differing) == len(self.control.digests)


def tell(console: Console, findings: Findings) -> None:
    """Prints everything but the verdict."""
    console.print()
    console.print(_digest_table(findings))
    for step, note in sorted(findings.notes.items()):
        console.print(f"  step {step:>2}: {note}", soft_wrap=True)
    for label, knobs in zip(findings.comparison.labels, findings.knobs, strict=False):
        console.print(f"  {label}: {knobs}", soft_wrap=True)
    console.print()
    console.print(_mixture_table(findings))
    console.print()
    for line in _facts(findings):
        console.print(line, soft_wrap=True)


def _digest_table(findings: Findings) -> Table:
    comparison = findings.comparison
    table = Table(
        box=None,
        padding=(0, 1, 0, 0),
        title="One digest for each step: SHA-256 over all rows, first 12 of 64 digits",
        title_justify="left",
        caption="(s+1): as TorchTitan logs step s. killed: resumed on other ranks.",
        caption_justify="left",
    )
    for header in ("step", *comparison.labels, "equal"):
        table.add_column(header, no_wrap=True)
    before = -1
    for step in _shown(findings):
        if step > before + 1:
            table.add_row("...", style="dim")
        cells = [digest[:HEX] for digest in comparison.digests[step]]
        mark = "yes" if comparison.is_equal(step) else "[bold red]NO[/bold red]"
        table.add_row(f"{step} ({step + 1})", *cells, mark)
        before = step
    return table


def _shown(findings: Findings) -> list[int]:
    """Returns the first and last steps, those around what is special, and the first ones that differ."""
    last = len(findings.comparison.digests) - 1
    around = {near for step in findings.notes for near in (step - 1, step)}
    shown = {0, 1, last, *around, *findings.comparison.differing[:8]}
    return sorted(step for step in shown if 0 <= step <= last)


def _mixture_table(findings: Findings) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), title="Mixture: shares of tokens", title_justify="left")
    table.add_column("steps", no_wrap=True)
    for name in findings.table.names:
        table.add_column(f"{escape(name)}: planned", justify="right")
        table.add_column("realised", justify="right")
    ends = (*findings.table.starts[1:], len(findings.comparison.digests))
    for k, (start, end) in enumerate(zip(findings.table.starts, ends, strict=True)):
        pairs = zip(findings.table.shares[k], findings.shares[k], strict=True)
        cells = [cell for share, real in pairs for cell in (f"{share / PARTS:.2%}", f"{real:.2%}")]
        table.add_row(f"{start} to {end - 1}", *cells)
    return table


def _facts(findings: Findings) -> list[str]:
    lines = []
    for restore in findings.restores:
        size = f"{restore.state_bytes:,} bytes ({restore.state_bytes // findings.num_lanes:,} a lane)"
        lines.append(
            f"restore on {restore.world_size} ranks from step {restore.step}: state {size}, loaded in "
            f"{restore.restore_s * 1000:.1f} ms, first step after {restore.first_step_s * 1000:.0f} ms"
        )
    speed = findings.speed
    lines.append(
        f"speed of one process, all lanes: {speed['tokens_per_s']:,.0f} tokens/s, "
        f"{speed['tokens_per_cpu_s']:,.0f} per CPU-second"
    )
    equal = len(findings.control.digests) - len(findings.control.differing)
    lines.append(f"control with another seed: {equal} of {len(findings.control.digests)} steps equal")
    return lines


def tell_verdict(console: Console, findings: Findings, wall_s: float) -> None:
    """Prints the one line that everything comes to."""
    comparison = findings.comparison
    num_steps, names = len(comparison.digests), ", ".join(comparison.labels)
    if findings.is_good:
        text = (
            f"[bold green]PASSED[/bold green]: all {num_steps} steps equal in {len(comparison.labels)} runs"
        )
        console.print(f"{text} ({names}), {wall_s:.0f} s", soft_wrap=True)
        return
    text = (
        f"[bold red]FAILED[/bold red]: {len(comparison.differing)} of {num_steps} steps differ between runs"
    )
    if comparison.differing:
        text += f", first step {comparison.differing[0]}"
    else:
        text += ", but the control with another seed has equal steps too"
    console.print(text, soft_wrap=True)


def tell_next(console: Console, recipe: Path, change_at: int) -> None:
    """Prints the commands that go on from here, as they can be pasted."""
    name = shlex.quote(str(recipe))
    console.print("\nThe recipe and its data stay there. Next:")
    for command in (
        f"zephon check {name} --dp 1,2,4,8",
        f"zephon hash {name} --steps 0:{change_at} --dp 4",
        f"zephon show {name} --step {change_at} --lane 0",
        f"zephon bench {name}",
        f"zephon log {shlex.quote(str(recipe.parent / 'runs' / 'amended'))}",
    ):
        console.print(f"  {command}", markup=False, soft_wrap=True)
