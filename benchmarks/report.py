"""What a section found, and how it is shown: tables, targets, a progress bar.

Upstream: `speed.py`, `runs.py` and `plans.py`. Downstream: the terminal, and the file of `--json`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any

from children import Spread
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table to be shown; the first column is text, the others are numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def table(self) -> Table:
        """Returns the table as rich shows it."""
        table = Table(title=self.title, title_justify="left", title_style="bold")
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="right" if i else "left")
        for row in self.rows:
            table.add_row(*row)
        return table


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A number with what it should be."""

    name: str
    wanted: str
    measured: str
    met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a section found."""

    grids: Sequence[Grid]
    targets: Sequence[Target]
    data: dict[str, Any] = field(default_factory=dict)
    """The raw numbers, for `--json`."""

    def to_json(self) -> dict[str, Any]:
        """Returns targets and raw numbers as JSON data."""
        return {"targets": [asdict(target) for target in self.targets], **self.data}


class Meter:
    """A progress bar for a section at a time; a context manager."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._task: TaskID | None = None
        self._section = ""
        self._begun = 0

    def begin(self, section: str, total: int) -> None:
        """Begins a section that ticks `total` times."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._section, self._begun = section, 0
        self._task = self._progress.add_task(section, total=total)

    def tick(self, what: str) -> None:
        """Shows what is done next; what was shown before is done."""
        assert self._task is not None
        self._progress.update(self._task, description=f"{self._section}: {what}", completed=self._begun)
        self._begun += 1

    def __enter__(self) -> Meter:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


Section = Callable[[bool, Meter], Result]
"""(quick, meter) -> what a section found."""


def below(name: str, num_bytes: float, limit: int) -> Target:
    """Returns the target of a size."""
    wanted = f"< {format_mib(limit)}"
    return Target(name=name, wanted=wanted, measured=format_mib(num_bytes), met=num_bytes < limit)


def within(name: str, seconds: float, limit_s: float) -> Target:
    """Returns the target of a time."""
    wanted = f"< {limit_s:g} s"
    return Target(name=name, wanted=wanted, measured=f"{seconds:.3f} s", met=seconds < limit_s)


def summary(results: Sequence[Result]) -> Table:
    """Returns the table of all targets."""
    table = Table(title="Targets", title_justify="left", title_style="bold")
    for column in ("target", "wanted", "measured", ""):
        table.add_column(column)
    for target in (target for result in results for target in result.targets):
        met = "[green]met[/]" if target.met else "[red]not met[/]"
        table.add_row(target.name, target.wanted, target.measured, met)
    return table


def format_spread(spread: Spread, digits: int = 2) -> str:
    """Returns a spread as `median (least..most)`."""
    return f"{spread.median:.{digits}f} ({spread.low:.{digits}f}..{spread.high:.{digits}f})"


def format_mib(num_bytes: float) -> str:
    """Returns bytes as MiB."""
    return f"{num_bytes / MIB:,.1f} MiB"
