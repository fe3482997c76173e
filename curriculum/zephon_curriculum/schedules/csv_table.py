"""The kind `table`: weights from a CSV file or text, `step,web,code` and a line for each change.

Upstream: a file, or the text in the recipe itself. Downstream: `cycles.py`: a table is a `CrossFade`. What is
read counts as it stood when the schedule was built: the recipe that a built schedule writes holds it.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence

from zephon import ScheduleContext
from zephon_curriculum.schedules.cycles import CrossFade
from zephon_curriculum.schedules.easing import LINEAR, Easing
from zephon_curriculum.schedules.fields import Config, Weights, check_fields, check_names
from zephon_curriculum.schedules.units import to_length, to_steps

STEP = "step"
MAX_DIGITS = 18


def table(config: Config, context: ScheduleContext) -> CrossFade:
    """Returns the schedule of `file` or `csv`, and optionally of `easing` and `every`.

    Each line holds until the next; with `easing` the weights go from line to line. A relative `file` starts
    at the folder of the recipe where the context knows it, else at the working folder.
    """
    where = "schedule table"
    check_fields(where, config, (), ("file", "csv", "easing", "every"))
    if ("file" in config) == ("csv" in config):
        raise ValueError(f"{where}: give either `file`, the path of a CSV file, or `csv`, its text")
    text = config["csv"] if "csv" in config else _read(config["file"], context)
    if not isinstance(text, str):
        raise ValueError(f"{where}: `csv` must be a text, got {text!r}")
    easing = config.get("easing")
    return CrossFade(
        knots=_parse(text, context, where),
        fade=0 if easing is None else None,
        easing=LINEAR if easing is None else Easing.of(easing, where),
        every=to_length(config.get("every", 1), context, f"{where}: `every`"),
    )


def _read(file: object, context: ScheduleContext) -> str:
    if not isinstance(file, str) or not file:
        raise ValueError(f"schedule table: `file` must be the path of a CSV file, got {file!r}")
    path = context.base / os.path.expandvars(os.path.expanduser(file))
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"schedule table: cannot read `file` {str(path.absolute())!r}: {error}") from None


def _parse(text: str, context: ScheduleContext, where: str) -> tuple[tuple[int, Weights], ...]:
    reader = csv.reader(io.StringIO(text))
    try:
        lines = [(reader.line_num, line) for line in reader if any(cell.strip() for cell in line)]
    except csv.Error as error:
        raise ValueError(f"{where}, line {reader.line_num}: is not CSV: {error}") from None
    names = [cell.strip() for cell in lines[0][1]] if lines else []
    if len(names) < 2 or names[0] != STEP or len(lines) < 2:
        raise ValueError(
            f"{where}: must begin with a line `step,NAME,NAME...` and have a line of weights, "
            f"got {text[:60]!r}"
        )
    check_names(where, dict.fromkeys(names[1:]), context)
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{where}: column {twice[0]!r} is given twice")
    return tuple(_knot(line, names, context, f"{where}, line {number}") for number, line in lines[1:])


def _knot(
    line: Sequence[str], names: Sequence[str], context: ScheduleContext, where: str
) -> tuple[int, Weights]:
    if len(line) != len(names):
        raise ValueError(f"{where}: has {len(line)} cells for {len(names)} columns")
    cells = [cell.strip() for cell in line]
    is_number = cells[0].isdecimal() and len(cells[0]) <= MAX_DIGITS
    at = to_steps(int(cells[0]) if is_number else cells[0][:40], context, f"{where}: `step`")
    return at, {name: _number(cell, name, where) for name, cell in zip(names[1:], cells[1:], strict=True)}


def _number(cell: str, name: str, where: str) -> int | float:
    """Returns the weight of a cell; an empty one is 0."""
    try:
        return int(cell or "0") if not cell or cell.isdecimal() else float(cell)
    except ValueError:
        raise ValueError(f"{where}: the weight of {name!r} must be a number, got {cell[:40]!r}") from None
