"""What a preview and an explanation say: shares, draws and pieces as tables, for the shell and for notebooks.

Upstream: `preview.py` and `explain.py`. Downstream: `results.py`, which shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from zephon import PARTS, DescribedRow
from zephon.cli.common import add_row, cut, new_table
from zephon_curriculum.figures import named_step, plural
from zephon_curriculum.log.entries import Base, Entry, summary
from zephon_curriculum.results import Shown

if TYPE_CHECKING:
    from zephon_curriculum.explain import ExplainedRow, Explanation
    from zephon_curriculum.preview import Preview, Shares

WIDE = 8
"""Of more datasets, shares are shown in total only, and credits of those drawn."""
MAX_STEPS = 40
MAX_ROWS = 4
MAX_PIECES = 12
WIDTH = 72
"""Characters of the text of a piece."""


def shown_preview(preview: Preview, num_rows: int, width: int) -> Shown:
    """Returns the shares in total and by step, and the pieces of the first rows."""
    if not preview.steps:
        return Shown(head="no rows", notes=preview.notes)
    shares, lanes = preview.shares(), preview.lanes
    head = (
        f"{plural(len(preview.steps), 'step')} of "
        f"{f'lane {lanes[0]}' if len(lanes) == 1 else plural(len(lanes), 'lane')} from "
        f"{named_step(preview.steps[0])}: {plural(len(preview.rows), 'row')}"
    )
    tables = share_tables(shares)
    tables += [_pieces(row, preview.texts(row), width) for row in preview.rows[:num_rows]]
    padding = int(shares.padding_tokens.sum())
    notes = [*([f"padding: {padding:,} tokens"] if padding else []), *preview.notes]
    return Shown(head=head, tables=tables, notes=notes)


def share_tables(shares: Shares) -> list[Table]:
    """Returns the shares in total and, where the datasets are few, by step."""
    return [_totals(shares), _steps(shares)] if len(shares.names) <= WIDE else [_totals(shares)]


def _totals(shares: Shares) -> Table:
    table = new_table("dataset", "#tokens", "#planned", "#realised", title="tokens of all steps:")
    for name, (tokens, planned, realised) in shares.total().items():
        add_row(table, name, f"{tokens:,}", f"{planned:.2%}", f"{realised:.2%}")
    return table


def _steps(shares: Shares) -> Table:
    """Returns realised and planned shares, a line for each step."""
    num, title = len(shares.steps), "realised (planned) shares of tokens by step"
    title += f"; the first {MAX_STEPS} of {num:,}:" if num > MAX_STEPS else ":"
    table = new_table("#step", *(f"#{name}" for name in shares.names), "#padding", title=title)
    for i, step in enumerate(shares.steps[:MAX_STEPS].tolist()):
        pairs = zip(shares.realised[i], shares.planned[i], strict=True)
        add_row(table, step, *(f"{r:.1%} ({p:.1%})" for r, p in pairs), f"{shares.padding_tokens[i]:,}")
    return table


def _pieces(
    row: DescribedRow, texts: Sequence[str], width: int, drawn_for: Iterable[int | None] | None = None
) -> Table:
    """Returns the pieces of a row: where they lie, where they come from and how their text begins."""
    title = f"step {row.step}, lane {row.lane}, row {row.row}, digest {row.digest[:12]}:"
    more = () if drawn_for is None else ("#drawn for row",)
    table = new_table(
        "#tokens", "dataset", "file", "#record", "#position", "#offset", *more, "text", title=title
    )
    origins = [None] * len(row.pieces) if drawn_for is None else drawn_for
    for number, (piece, text, origin) in enumerate(zip(row.pieces, texts, origins, strict=True)):
        if number == MAX_PIECES:
            add_row(table, f"... and {len(row.pieces) - MAX_PIECES} more", *[""] * (6 + len(more)))
            break
        whose = [("before" if origin is None else origin)] * len(more)
        place = (piece.dataset, piece.file, piece.record, piece.position, piece.offset)
        add_row(table, f"[{piece.begin}, {piece.end})", *place, *whose, cut(text, width))
    if row.padding_tokens:
        add_row(table, f"[{row.num_tokens}, {len(row.tokens)})", "padding", *[""] * (5 + len(more)))
    return table


def shown_explanation(found: Explanation, width: int) -> Shown:
    """Returns the draws and pieces of each row, and the weights in force."""
    head = f"{named_step(found.step)}, lane {found.lane}: the largest of the credits is drawn from"
    weights = new_table("dataset", "#share", title="weights:")
    for name, part in zip(found.names, found.planned, strict=True):
        add_row(weights, name, f"{part / PARTS:.4%}")
    tables = []
    for row in found.rows:
        tables += [_draws(found, row), _pieces(row.row, row.texts, width, row.drawn_for)]
    notes = [f"weights since step {found.in_force_since}"]
    drawn = "the pool takes one document a draw" if found.pool else "a document that is begun may take more"
    notes += [f"set by {_described(entry)}" for entry in found.entries]
    notes.append(f"at least: for so many tokens the dataset stays the one owed most; {drawn}")
    if found.work_source != "mixture":
        notes.append(f"the work source is {found.work_source}, which may choose by other rules")
    return Shown(head=head, tables=[*tables, weights], notes=[*notes, *found.notes])


def _draws(found: Explanation, row: ExplainedRow) -> Table:
    """Returns the draws made while a row was filled, with what was owed ahead of each."""
    drawn = {draw.dataset for draw in row.draws}
    shown = [i for i, name in enumerate(found.names) if len(found.names) <= WIDE or name in drawn]
    num_dropped = 0 if found.pool else row.num_dropped()
    title = f"row {row.row.row}: {plural(len(row.draws) - num_dropped, 'draw')}, "
    title += plural(len(row.row.pieces), "piece")
    title += f"; ahead of them {plural(num_dropped, 'draw')} of rows skipped" if num_dropped else ""
    table = new_table(
        "#draw",
        "drawn from",
        "#room" if found.pool else "#from token",
        "#at least",
        "#drawn",
        *(f"#{found.names[i]} owed" for i in shown),
        title=title,
    )
    for number, draw in enumerate(row.draws):
        owed = draw.owed_tokens()
        cells = (f"{owed[i]:z,.1f}" if draw.shares[i] else "no share" for i in shown)
        at = draw.rest if found.pool else row.begin_of(draw)
        name = f"skipped {number}" if number < num_dropped else number
        add_row(table, name, draw.dataset, f"{at:,}", f"{draw.at_least:,}", f"{draw.num_tokens:,}", *cells)
    return table


def _described(entry: Entry) -> str:
    """Returns in a line what an entry of the log is, who asked for it and why."""
    said = "the schedule of the recipe" if isinstance(entry.body, Base) else summary(entry.body)
    return f"entry {entry.number} ({entry.body.kind}, {entry.hash[:12]}): {said}"
