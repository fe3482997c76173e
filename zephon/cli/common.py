"""What commands are made of, a plugin's too: options, the recipe they work on, and by `__all__` the rest.

Upstream: the shell. Downstream: the commands of this folder and of plugins, which import from here alone.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from zephon.cli.exits import Exit, exit_code
from zephon.cli.output import (
    PLAIN_WIDTH,
    LateProgress,
    add_row,
    cut,
    needed_width,
    new_table,
    output_width,
    visible,
    visible_lines,
    write,
    write_json,
    write_table,
)
from zephon.errors import CheckError
from zephon.logged import newest_table
from zephon.opened import Opened, open_recipe
from zephon.plugins import find
from zephon.recipe import Recipe
from zephon.runfolder import read_lock
from zephon.tokenizer import BACKENDS
from zephon.toml import missing_recipe, parse_setting
from zephon.updating import fit

__all__ = [
    "PLAIN_WIDTH",
    "BackendOption",
    "CacheOption",
    "Command",
    "ExecutorOption",
    "Exit",
    "JsonOption",
    "LateProgress",
    "MicroBatchOption",
    "PrefetchOption",
    "RecipeArgument",
    "SetOption",
    "Source",
    "WorkersOption",
    "add_row",
    "as_usage",
    "chosen_step",
    "cut",
    "exit_code",
    "needed_width",
    "new_table",
    "output_width",
    "parse_range",
    "past_run",
    "visible",
    "visible_lines",
    "without_types",
    "write",
    "write_json",
    "write_table",
]

RECIPE_FILE = "recipe.toml"
RECIPE_RULE = f"RECIPE is a TOML file, a run folder that holds {RECIPE_FILE}, or module:function"


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
