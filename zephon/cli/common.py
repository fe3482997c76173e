"""What the commands share: options, the recipe they work on, exit codes, errors and output.

Upstream: the shell. Downstream: the commands of this folder. Standard output carries results only, so it can
be compared or parsed; progress and errors go to standard error.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sys
import time
import traceback
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from zephon.errors import CheckError, DataError, PluginError, StateError, WorkerError
from zephon.logged import newest_table
from zephon.opened import Opened, open_recipe
from zephon.plugins import find
from zephon.recipe import Recipe
from zephon.runfolder import read_lock
from zephon.tokenizer import BACKENDS
from zephon.toml import missing_recipe, parse_setting
from zephon.updating import fit

RECIPE_FILE = "recipe.toml"
RECIPE_RULE = f"RECIPE is a TOML file, a run folder that holds {RECIPE_FILE}, or module:function"
PLAIN_WIDTH = 120
"""Width of tables where standard output is no terminal."""
WIDEST = 1000
MIN_COLUMN = 10
"""Characters that a column of text keeps, however narrow the terminal is."""
DELAY_S = 2.0
"""Work that takes longer shows its progress."""
LINE_S = 30.0
"""Where standard error is no terminal, such as a log, progress is a line after each so many seconds."""


class Exit(IntEnum):
    """The exit codes; scripts may rely on them."""

    OK = 0
    DIFFERENT = 1
    USAGE = 2
    RECIPE = 3
    DATA = 4
    STATE = 5
    WORKER = 6
    UNEXPECTED = 70
    INTERRUPTED = 130
    PIPE_CLOSED = 141


EXIT_TEXT = (
    "Exit codes: 0 ok; 1 check failed or digests differ; 2 wrong usage; 3 recipe refused; 4 data error; "
    "5 state error; 6 worker error; 70 unexpected error; 130 interrupted."
)
MEANING = {
    Exit.USAGE: "usage",
    Exit.RECIPE: "recipe",
    Exit.DATA: "data",
    Exit.STATE: "state",
    Exit.WORKER: "worker",
    Exit.UNEXPECTED: "unexpected",
    Exit.INTERRUPTED: "interrupted",
}
BY_CLASS: Sequence[tuple[type[BaseException] | tuple[type[BaseException], ...], Exit]] = (
    (StateError, Exit.STATE),
    (WorkerError, Exit.WORKER),
    ((DataError, OSError), Exit.DATA),
    ((CheckError, PluginError, ValueError, TypeError, LookupError), Exit.RECIPE),
)


def _refusing(check: Callable[[str], object]) -> Callable[[Any], Any]:
    """Returns the callback of an option of which each value that `check` refuses is wrong usage."""

    def callback(value: Any) -> Any:
        with as_usage():
            for each in value if isinstance(value, list) else () if value is None else (value,):
                check(each)
        return value

    return callback


def _check_backend(name: str) -> None:
    if name not in BACKENDS:
        raise ValueError(f"must be one of {', '.join(BACKENDS)}, got {name!r}")


@contextlib.contextmanager
def as_usage(**options: str) -> Iterator[None]:
    """Makes the refusal of an argument wrong usage of the option that gave it: of `lanes`, say, --lane.

    What a recipe refuses of its own fields of these names belongs ahead of it. Without names: all refusals.
    """
    try:
        yield
    except (ValueError, LookupError) as error:
        message = str(error)
        name = next((name for name in options if message.startswith(f"`{name}`")), None)
        if (options and name is None) or isinstance(error, KeyError | IndexError):
            raise
        for each, option in options.items():
            message = message.replace(f"`{each}`", option)
        raise typer.BadParameter(message) from None


RecipeArgument = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="A recipe.toml, a run folder that holds one, or module:function."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Put a value over the recipe's: datasets.web.path=data/web",
        callback=_refusing(parse_setting),
    ),
]
CacheOption = Annotated[
    Path | None,
    typer.Option("--cache", help="Folder for indexes and expanded chunks.", show_default="$ZEPHON_CACHE"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, errors too.")]
BackendOption = Annotated[
    str,
    typer.Option(
        "--backend",
        help="auto, tokenizers or fastokens; the ids are the same.",
        callback=_refusing(_check_backend),
    ),
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, help="Workers; default the cores but one, at most 4.")
]
ExecutorOption = Annotated[
    str,
    typer.Option(
        "--executor",
        help="inline, threads, processes, or a plugin's.",
        callback=_refusing(functools.partial(find, "executors")),
    ),
]
MicroBatchOption = Annotated[int | None, typer.Option(min=1, help="Rows of a batch of a rank.")]
PrefetchOption = Annotated[int, typer.Option("--prefetch", min=0, help="Batches made ahead.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What the options shared by all commands say: the recipe and how to open it."""

    recipe: str
    settings: Sequence[str] | None
    cache: Path | None
    backend: str

    def load(self) -> Recipe:
        """Returns the recipe, with the settings over it."""
        path = Path(self.recipe)
        if path.is_dir():
            path = path / RECIPE_FILE
            if not path.exists():
                raise missing_recipe(path, RECIPE_RULE)
        elif ":" in self.recipe and not path.exists():
            sys.path.insert(0, os.getcwd())  # a script's own folder is on the path, the caller's is not
        elif not path.exists():
            raise missing_recipe(path, RECIPE_RULE)
        try:
            return Recipe.from_toml(path, settings=dict(map(parse_setting, self.settings or ())))
        except (ImportError, AttributeError) as error:
            raise CheckError.explained(
                f"recipe {self.recipe!r} cannot be imported",
                got=f"{type(error).__name__}: {error}",
                rule="module:function names a function without arguments that returns a zephon.Recipe",
                cure="correct the name, or run in the folder of the module",
            ) from error

    def open(self, progress: LateProgress) -> Opened:
        """Returns the opened recipe; of a run folder, with the table by which it delivered its last batch.

        And with the documents held out that its lock names. A schedule among the settings comes first.
        """
        recipe, folder = self.load(), Path(self.recipe)
        lock = read_lock(folder) if recipe.follows_lock and folder.is_dir() else None
        opened = open_recipe(recipe, cache=self.cache, backend=self.backend, report=progress, lock=lock)
        is_own = not folder.is_dir() or any(name.startswith("schedule") for name in self.settings or ())
        table = None if is_own else newest_table(folder)
        return opened if table is None else replace(opened, table=fit(table, recipe))


def without_types(options: list[Any]) -> list[Any]:
    """Returns `options`, of which the help shows flags without the type of their value."""
    for option in options:
        if getattr(option, "is_flag", False):
            option.metavar = ""
    return options


class Command(TyperCommand):
    """A command, of a plugin too."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the parameters, that of `--help` too."""
        return without_types(super().get_params(ctx))


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


def chosen_step(step: int | None, trainer_step: int | None) -> int:
    """Returns the step that is asked for, from 0; refuses both ways to say it at once."""
    if step is not None and trainer_step is not None:
        raise typer.BadParameter("give --step, from 0, or --trainer-step, from 1; not both")
    return (step or 0) if trainer_step is None else trainer_step - 1


def past_run(total_steps: int | None, end: int) -> str:
    """Returns in a line which steps before `end` are past a recipe's `total_steps`; empty where none is."""
    if total_steps is None or end <= total_steps:
        return ""
    return f"steps from {total_steps} on are past the recipe's `total_steps` of {total_steps}"


def parse_range(text: str, *, option: str, first: int = 0) -> range:
    """Returns the half-open range of `A:B`, or of `B` alone, counted from `first`; as steps from 0."""
    found = re.fullmatch(r"(?:(\d+):)?(\d+)", text.strip())
    if found is None:
        raise typer.BadParameter(f"{option} takes A:B, half-open, or B alone; got {text!r}")
    start = first if found[1] is None else int(found[1])
    end = int(found[2])
    if not first <= start < end:
        raise typer.BadParameter(f"{option} takes {first} <= A < B, got {text!r}")
    return range(start - first, end - first)


def exit_code(error: BaseException) -> Exit:
    """Returns the exit code of an error: of one that a library made of a Ctrl-C that of the Ctrl-C."""
    origin: BaseException | None = error
    while origin is not None:
        if isinstance(origin, KeyboardInterrupt):
            return Exit.INTERRUPTED
        origin = origin.__cause__ or origin.__context__
    return next((code for classes, code in BY_CLASS if isinstance(error, classes)), Exit.UNEXPECTED)


def report_error(error: BaseException, *, as_json: bool) -> Exit:
    """Writes an error with its exit code and returns the code; says nothing where output was closed."""
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.PIPE_CLOSED
    code = exit_code(error)
    message = "interrupted" if code is Exit.INTERRUPTED else str(error)
    if code is Exit.UNEXPECTED or isinstance(error, KeyError) or not message:
        message = f"{type(error).__name__}: {message}"
    if os.environ.get("ZEPHON_TRACEBACK") == "1":
        sys.stderr.write("".join(traceback.format_exception(error)))
    is_said = False
    if as_json:
        with contextlib.suppress(OSError):  # a full disk, say: then to standard error
            write_json(error_json(MEANING[code], message, code))
            is_said = True
    if not is_said:
        hint = "" if code is Exit.INTERRUPTED else "; ZEPHON_TRACEBACK=1 shows where it was raised"
        sys.stderr.write(f"{visible_lines(message)}\n  exit: {int(code)}, {MEANING[code]} error{hint}\n")
    return code


def error_json(kind: str, message: str, code: int) -> Mapping[str, Any]:
    """Returns an error as JSON data."""
    return {"error": {"kind": kind, "message": message, "exit_code": int(code)}}
