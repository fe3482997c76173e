"""What the commands show: results on standard output, progress on standard error.

Upstream: the commands. Downstream: a terminal, a file or a pipe. Standard output carries results only, so it
can be compared or parsed; nothing that is shown moves the terminal.
"""

from __future__ import annotations

import json
import os
import sys
import time
import unicodedata

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

PLAIN_WIDTH = 120
"""Width of tables where standard output is no terminal."""
WIDEST = 1000
MIN_COLUMN = 10
"""Characters that a column of text keeps, however narrow the terminal is."""
DELAY_S = 2.0
"""Work that takes longer shows its progress."""
LINE_S = 30.0
"""Where standard error is no terminal, such as a log, progress is a line after each so many seconds."""


# Standard output ------------------------------------------------------------------------------------------


def write(text: str) -> None:
    """Writes a line to standard output, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def write_json(value: object) -> None:
    """Writes JSON to standard output."""
    write(json.dumps(value, indent=1))


def output_width() -> int:
    """Returns the characters of a line of standard output."""
    console = Console()
    return console.width if console.is_terminal or "COLUMNS" in os.environ else PLAIN_WIDTH


def needed_width(table: Table) -> int:
    """Returns the characters that a table needs, and keeps its columns from being narrower: numbers stay
    whole, and of names as much as they have or MIN_COLUMN."""
    for column in table.columns:
        cells = [cell for cell in (column.header, *column.cells) if isinstance(cell, Text)]
        widest = max((measure.cell_len for cell in cells for measure in cell.split()), default=0)
        column.min_width = widest if column.no_wrap else min(widest, MIN_COLUMN)
    wide = Console(width=WIDEST)
    return Measurement.get(wide, wide.options, table).minimum


def write_table(table: Table) -> None:
    """Draws a table on standard output, wider than the terminal where its names and numbers need it."""
    console = Console(highlight=False, width=max(output_width(), needed_width(table)))
    with console.capture() as drawn:
        console.print(table)
    write("\n".join(line.rstrip() for line in drawn.get().splitlines()))


def new_table(*headers: str, title: str = "") -> Table:
    """Returns an empty table; numbers go to the right where the header begins with `#`."""
    heading = Text(title, no_wrap=True, overflow="ignore") if title else None  # it may be wider than the rest
    table = Table(title=heading, title_justify="left", box=None, pad_edge=False)
    for header in headers:
        right = header.startswith("#")
        table.add_column(
            Text(visible(header.removeprefix("#"))),
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=right,
        )
    return table


def add_row(table: Table, *cells: object) -> None:
    """Adds a row; nothing in it is taken for markup, or moves the terminal."""
    table.add_row(*(cell if isinstance(cell, Text) else Text(visible_lines(str(cell))) for cell in cells))


def visible(text: str) -> str:
    r"""Returns `text` with what does not print, or moves the print, as escapes such as `\n`."""
    return "".join(char.encode("unicode_escape").decode() if _moves(char) else char for char in text)


def visible_lines(text: str) -> str:
    """Returns `text` made visible line by line."""
    return "\n".join(map(visible, text.split("\n")))


def _moves(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def cut(text: str, width: int) -> str:
    """Returns `text` made visible and cut to `width` characters; three dots stand for what is missing."""
    shown = visible(text[: width + 1])
    return shown if len(shown) <= width and len(text) <= width else shown[: max(0, width - 3)] + "..."


# Progress -------------------------------------------------------------------------------------------------


class LateProgress:
    """Progress on standard error, shown once the work has taken two seconds: bars on a terminal, else lines.

    A bar goes when its part is done, so that only what is under way is shown.
    """

    def __init__(self, *, delay_s: float = DELAY_S, line_s: float = LINE_S) -> None:
        self._delay_s, self._line_s = delay_s, line_s
        self._started = self._last_line = time.monotonic()
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Shows that `done` of `total` is done; the `Report` of `open_recipe` and `check_recipe`."""
        now = time.monotonic()
        if now - self._started < self._delay_s:
            return
        if self._progress is None:
            console = Console(stderr=True)
            columns = (TextColumn("{task.description}", markup=False), BarColumn())
            left = (TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn())
            is_shown = console.is_terminal
            self._progress = Progress(*columns, *left, console=console, transient=True, disable=not is_shown)
            self._progress.start()
        if self._progress.disable:
            if now - self._last_line >= self._line_s:
                self._last_line = now
                typer.echo(f"{visible(what)}: {done / max(1, total):.0%}", err=True)
            return
        if done >= total:
            if what in self._tasks:
                self._progress.remove_task(self._tasks.pop(what))
            return
        is_new = what not in self._tasks
        if is_new:
            self._tasks[what] = self._progress.add_task(visible(what), total=total)
        self._progress.update(self._tasks[what], completed=done, total=total, refresh=is_new)

    def __enter__(self) -> LateProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
