"""What the comparison says: losses side by side, how each resume went, and what is not as it must be.

Upstream: the runs of `compare.py`, whose exit status follows from `tell`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from experiment.jobs import Ended

TOLERANCE = 1e-4
"""Losses are sums in another order on other numbers of processes; batches are compared by hash."""
ERROR = re.compile(r"^(?:\[rank\d+\]: ?)?((?:\w+\.)*\w*(?:Error|Exception)\b.*)$")
NOISE = re.compile(r"\x1b\[[0-9;]*m")
REPORT = "the run is refused"
REFUSED = 5
"""Exit code of a resume whose checkpoint has no state of the data."""
SAID = ("Ran out of data", "The data ended", "Training completed")


def tell(console: Console, ended: Mapping[str, Ended], steps: int, saved: int) -> list[str]:
    """Prints the tables and returns what differs and must not."""
    fresh = {n: e for n, e in ended.items() if "->" not in n and "ends" not in n and n != "seed"}
    resumed = {n: e for n, e in ended.items() if "->" in n}
    ending = {n: e for n, e in ended.items() if "ends" in n}
    console.print()
    console.print(_losses("training loss from one seed checkpoint, global batch of 8 rows", fresh, 1, steps))
    console.print(f"largest difference of losses at a step: {_spreads(fresh, steps)}")
    console.print(f"batches of zephon at every step: {_batches(fresh, steps)}\n", soft_wrap=True)
    shown = {n: e for n, e in {**fresh, **resumed}.items() if n in ("stock 4", "zephon 4") or n in resumed}
    console.print(_losses(f"resumed after step {saved}", shown, saved + 1, steps))
    for name, job in (*resumed.items(), *ending.items()):
        for line in _said(name, job):
            console.print(line, markup=False, soft_wrap=True)
    console.print()
    return faults(ended, steps, saved)


def faults(ended: Mapping[str, Ended], steps: int, saved: int) -> list[str]:
    """Returns what must not be: a run of zephon's that failed, or differs from that of one process."""
    one = ended["zephon 1"]
    found = []
    for name, job in ended.items():
        if not name.startswith("zephon"):
            continue
        if "left out" in name:
            if set(job.codes) != {REFUSED}:
                found.append(
                    f"{name}: exit codes {job.codes} where a refusal, {REFUSED}, must be\n{job.tail()}"
                )
            continue
        if not job.ok:
            found.append(f"{name}: exit codes {job.codes}\n{job.tail()}")
            continue
        if "ends" in name:
            continue
        for step in range(saved + 1 if "->" in name else 1, steps + 1):
            if step not in job.digests or job.digests[step] != one.digests.get(step):
                found.append(f"{name}: the batch of step {step} is not that of zephon 1")
            distance = abs(job.losses.get(step, 1e9) - one.losses.get(step, 0.0))
            if distance > TOLERANCE:
                found.append(f"{name}: the loss of step {step} is {distance:.1e} from that of zephon 1")
    return found


def _losses(title: str, ended: Mapping[str, Ended], first: int, last: int) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, collapse_padding=True)
    table.add_column("step", no_wrap=True)
    for step in range(first, last + 1):
        table.add_column(str(step), justify="right", no_wrap=True)
    for name, job in ended.items():
        values = [job.losses.get(step) for step in range(first, last + 1)]
        table.add_row(name, *("-" if value is None else f"{value:.5f}" for value in values))
    return table


def _spreads(fresh: Mapping[str, Ended], steps: int) -> str:
    parts = []
    for loader in ("stock", "zephon"):
        runs = [job.losses for name, job in fresh.items() if name.startswith(loader) and job.losses]
        widest = max(
            max(run.get(step, 0.0) for run in runs) - min(run.get(step, 0.0) for run in runs)
            for step in range(1, steps + 1)
        )
        parts.append(f"{loader} {widest:.1e}")
    return ", ".join(parts)


def _batches(fresh: Mapping[str, Ended], steps: int) -> str:
    found = {
        tuple(job.digests.get(step, name) for step in range(1, steps + 1))
        for name, job in fresh.items()
        if name.startswith("zephon")
    }
    return "the same SHA-256 on all numbers of processes" if len(found) == 1 else "[red]NOT the same[/red]"


def _said(name: str, job: Ended) -> list[str]:
    """Returns what a run that resumes or ends early said of it."""
    if not job.ok:
        lines = [
            f"{name}: exit codes {', '.join(map(str, job.codes))} (those below 0 were ended from outside)"
        ]
        return lines + [f"    {message}" for message in errors(job.logs) + _refusal(job.logs)]
    if "ends" in name:
        steps = max(job.losses, default=0)
        heard = [line for line in _lines(job.logs) if any(words in line for words in SAID)]
        return [f"{name}: all ranks ended with 0 after step {steps}", *(f"    {line}" for line in heard)]
    return [f"{name}: went on" + ("" if job.digests else ", with no word on its data")]


def _refusal(logs: Sequence[str]) -> list[str]:
    """Returns the report with which all ranks end together, of the rank that wrote it."""
    for rank, log in enumerate(logs):
        _, found, rest = log.partition(REPORT)
        if found:
            return [f"rank {rank}: {REPORT}", *(f"    {line}" for line in rest.strip().splitlines()[:5])]
    return []


def errors(logs: Sequence[str]) -> list[str]:
    """Returns the errors in the logs, each once, with the ranks that wrote it."""
    ranks: dict[str, list[int]] = {}
    for rank, log in enumerate(logs):
        found = [match[1] for line in NOISE.sub("", log).splitlines() if (match := ERROR.match(line))]
        for message in dict.fromkeys(found):
            ranks.setdefault(message, []).append(rank)
    return [f"rank {', '.join(map(str, having))}: {message}" for message, having in ranks.items()]


def _lines(logs: Sequence[str]) -> list[str]:
    """Returns the lines of all logs as `rank N: words`, without time and place."""
    return [
        f"rank {rank}: {NOISE.sub('', line).rpartition(' - ')[2]}"
        for rank, log in enumerate(logs)
        for line in log.splitlines()
    ]
