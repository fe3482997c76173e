"""What a result says of itself, once for the shell, for `print` and `repr`, and for notebooks.

Upstream: plans, estimates, fits and what else makes tables of `zephon.cli.common`. Downstream: commands, the
REPL and Jupyter. Names are made visible everywhere and escaped in HTML; the same result gives the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from rich.console import Console
from rich.table import Table
from rich.text import Text

from zephon.cli.common import (
    PLAIN_WIDTH,
    add_row,
    cut,
    needed_width,
    new_table,
    output_width,
    visible,
    visible_lines,
    write,
)

BRIEF_ROWS = 5
"""Rows of the table in a `repr`, that which says how many more there are included."""
BRIEF_NOTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A result as lines and tables."""

    head: str
    tables: Sequence[Table] = ()
    """The first is what a `repr` shows."""
    notes: Sequence[str] = ()
    """Lines below the tables, warnings for instance."""

    def write(self) -> None:
        """Writes all of it to standard output, as wide as the terminal."""
        write(self.text(output_width()))

    def text(self, width: int = PLAIN_WIDTH) -> str:
        """Returns all of it as text; tables are wider where their names and numbers need it."""
        tables = [_drawn(table, width) for table in self.tables]
        notes = ["\n".join(map(visible_lines, self.notes))] if self.notes else []
        return "\n\n".join([visible_lines(self.head), *tables, *notes])

    def brief(self) -> str:
        """Returns ten lines or fewer: the head, some rows of the first table, the first notes."""
        lines = [cut(self.head, PLAIN_WIDTH)]
        if self.tables:
            lines.append(_drawn(_first_rows(self.tables[0])))
        few = self.notes if len(self.notes) <= BRIEF_NOTES else self.notes[: BRIEF_NOTES - 1]
        lines += [cut(note, PLAIN_WIDTH) for note in few]
        if len(few) < len(self.notes):
            lines.append(f"... and {len(self.notes) - len(few):,} more notes")
        return "\n".join(lines)

    def html(self) -> str:
        """Returns all of it as HTML tables; what has a title has it as its caption."""
        tables = map(_html, self.tables)
        notes = "<br>\n".join(escape(visible_lines(note)) for note in self.notes)
        parts = (f"<p>{escape(visible_lines(self.head))}</p>", *tables, f"<p>{notes}</p>" if notes else "")
        return "\n".join(part for part in parts if part)


def warned(warnings: Iterable[str]) -> tuple[str, ...]:
    """Returns warnings as notes."""
    return tuple(f"warning: {warning}" for warning in warnings)


class Readable:
    """A result that a REPL shows in brief, and `print` and notebooks in full; `@dataclass(repr=False)`."""

    __slots__ = ()

    def shown(self) -> Shown:
        """Returns the result as lines and tables."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self.shown().brief()}"

    def __str__(self) -> str:
        return self.shown().text()

    def _repr_html_(self) -> str:
        return self.shown().html()


def _html(table: Table) -> str:
    """Returns a table of which the first cell of each row is its header."""
    caption = f"<caption>{escape(_plain(table.title))}</caption>\n" if table.title else ""
    headers, rows = _cells(table)
    head = "".join(f'<th scope="col">{escape(header)}</th>' for header in headers)
    body = "\n".join(
        f'<tr><th scope="row">{escape(visible(first))}</th>'
        + "".join(f"<td>{escape(visible(cell))}</td>" for cell in cells)
        + "</tr>"
        for first, *cells in rows
    )
    return f"<table>\n{caption}<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _drawn(table: Table, width: int = PLAIN_WIDTH) -> str:
    text = io.StringIO()
    width = max(width, needed_width(table))
    Console(file=text, width=width, highlight=False, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _cells(table: Table) -> tuple[list[str], list[list[str]]]:
    """Returns the headers and the rows of a table."""
    columns = [list(map(_plain, column.cells)) for column in table.columns]
    headers = [_plain(column.header) for column in table.columns]
    return headers, [list(row) for row in zip(*columns, strict=True)]


def _plain(cell: object) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell or "")


def _first_rows(table: Table) -> Table:
    """Returns a table with the same headers and the first rows, or with how many more there are."""
    headers, rows = _cells(table)
    numbers = ["#" if column.justify == "right" else "" for column in table.columns]
    made = new_table(*map("".join, zip(numbers, headers, strict=True)))
    few = rows if len(rows) <= BRIEF_ROWS else rows[: BRIEF_ROWS - 1]
    for row in few:
        add_row(made, *row)
    if len(few) < len(rows):
        add_row(made, f"... and {len(rows) - len(few):,} more", *[""] * (len(headers) - 1))
    return made
