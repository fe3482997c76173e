"""Results of the series as JSON lines, and the table of what came out.

Upstream: `series.py` writes a line when a run has ended. Downstream: `figures.py`, and `series.py` at its
end.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.table import Table

LOADERS = {"stock": "TorchTitan", "zephon": "zephon"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run."""

    loader: str
    dp: int
    seed: int
    settings: str
    """Fingerprint of the plan; lines of another plan are not read."""
    losses: dict[int, float]
    """Training loss by the trainer's step."""
    held_out: dict[int, float]
    """Held-out loss by the trainer's step."""
    batches: str
    """Hash of the digests of all steps; empty for the stock loader."""
    seconds: float

    @property
    def final(self) -> float:
        """Returns the held-out loss after the last step."""
        return self.held_out[max(self.held_out)]


def append(path: Path, result: Result) -> None:
    """Adds a line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def read(path: Path, settings: str) -> list[Result]:
    """Returns the runs of this plan that are in the file."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry["settings"] == settings:
            for name in ("losses", "held_out"):
                entry[name] = {int(step): value for step, value in entry[name].items()}
            found.append(Result(**entry))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One loader and seed, over the numbers of processes."""

    loader: str
    seed: int
    finals: tuple[float, ...]
    """In the order of the sizes."""
    equal: bool | None
    """Whether the batches were those of the first size; None where the loader does not say."""

    @property
    def spread(self) -> float:
        """Returns largest less smallest."""
        return max(self.finals) - min(self.finals)

    @property
    def std(self) -> float:
        """Returns the standard deviation over sizes (n - 1)."""
        return statistics.stdev(self.finals) if len(self.finals) > 1 else 0.0


def rows(results: Iterable[Result], sizes: Sequence[int]) -> list[Row]:
    """Returns the complete rows, by loader and seed."""
    by_row: dict[tuple[str, int], dict[int, Result]] = {}
    for result in results:
        by_row.setdefault((result.loader, result.seed), {})[result.dp] = result
    found = []
    for (loader, seed), by_size in sorted(by_row.items()):
        if not set(sizes) <= set(by_size):
            continue
        batches = {by_size[size].batches for size in sizes}
        found.append(
            Row(
                loader=loader,
                seed=seed,
                finals=tuple(by_size[size].final for size in sizes),
                equal=None if batches == {""} else len(batches) == 1,
            )
        )
    return found


def table(found: Sequence[Row], sizes: Sequence[int]) -> Table:
    """Returns the table of final held-out losses; D is the number of data-parallel processes."""
    shown = Table(title="held-out loss after the last step", box=box.SIMPLE_HEAD, padding=0, show_lines=False)
    for name in head(sizes):
        shown.add_column(name, justify="left" if name == "loader" else "right", no_wrap=True)
    for cells in cells_of(found):
        shown.add_row(*cells, end_section=cells[1] == "mean")
    return shown


def head(sizes: Sequence[int]) -> list[str]:
    """Returns the names of the table's columns."""
    return ["loader", "seed", *(f"D = {size}" for size in sizes), "max - min", "std over D", "batches"]


def cells_of(found: Sequence[Row]) -> list[list[str]]:
    """Returns the table's rows as text: every seed, their mean, and how far seeds are apart at one size."""
    lines = []
    for loader, name in LOADERS.items():
        of_loader = [row for row in found if row.loader == loader]
        for row in of_loader:
            said = {None: "-", True: "same", False: "DIFFER"}[row.equal]
            numbers = [format_loss(value) for value in (*row.finals, row.spread, row.std)]
            lines.append([name, str(row.seed), *numbers, said])
        if len(of_loader) > 1:
            by_size = list(zip(*(row.finals for row in of_loader), strict=True))
            lines.append([name, "std", *(format_loss(statistics.stdev(c)) for c in by_size), "", "", ""])
            columns = [*by_size, [row.spread for row in of_loader], [row.std for row in of_loader]]
            lines.append([name, "mean", *(format_loss(statistics.mean(c)) for c in columns), ""])
    return lines


def format_loss(value: float) -> str:
    """Returns five decimals, or the magnitude of what they do not show."""
    return f"{value:.5f}" if value >= 1e-4 else f"{value:.0e}"


def markdown(found: Sequence[Row], sizes: Sequence[int]) -> str:
    """Returns the table for a page of the documentation."""
    names = head(sizes)
    lines = [names, ["---"] * len(names), *cells_of(found)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
