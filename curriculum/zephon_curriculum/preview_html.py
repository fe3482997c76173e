"""A preview as plain HTML tables with captions: what a notebook shows without a widget.

Upstream: `preview.py`. Downstream: Jupyter, GitHub and anything else that shows HTML. The same preview gives
the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from zephon.cli.common import cut, visible

if TYPE_CHECKING:
    from zephon_curriculum.preview import Preview, Shares

MAX_STEPS = 40
MAX_ROWS = 8
MAX_PIECES = 12
WIDTH = 80


def preview_html(preview: Preview) -> str:
    """Returns the shares by step and in total and the first rows, as HTML tables."""
    shares = preview.shares()
    parts = [f"<p>{escape(repr(preview))}. It {escape(str(preview.cost))}.</p>"]
    if preview.ends is not None:
        parts.append(f"<p>The data end before step {preview.ends}.</p>")
    parts += [_totals(shares), _steps(shares), _rows(preview)]
    return "\n".join(parts)


def html_table(caption: str, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table of which the first cell of each row is its header."""
    head = "".join(f'<th scope="col">{escape(header)}</th>' for header in headers)
    body = "\n".join(
        f'<tr><th scope="row">{escape(visible(str(first)))}</th>'
        + "".join(f"<td>{escape(visible(str(cell)))}</td>" for cell in cells)
        + "</tr>"
        for first, *cells in rows
    )
    return (
        f"<table>\n<caption>{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody>\n</table>"
    )


def _totals(shares: Shares) -> str:
    rows = (
        (name, f"{tokens:,}", f"{planned:.2%}", f"{realised:.2%}")
        for name, (tokens, planned, realised) in shares.total().items()
    )
    return html_table("Tokens of all steps", ("dataset", "tokens", "planned", "realised"), rows)


def _steps(shares: Shares) -> str:
    num, more = len(shares.steps), len(shares.steps) > MAX_STEPS
    caption = "Realised (planned) share of tokens by step; steps count from 0"
    caption += f"; the first {MAX_STEPS} of {num:,} steps" if more else ""
    rows = (
        (
            step,
            *(f"{r:.1%} ({p:.1%})" for r, p in zip(shares.realised[i], shares.planned[i], strict=True)),
            f"{shares.padding_tokens[i]:,}",
        )
        for i, step in enumerate(shares.steps[:MAX_STEPS].tolist())
    )
    return html_table(caption, ("step", *shares.names, "padding"), rows)


def _rows(preview: Preview) -> str:
    shown = preview.rows[:MAX_ROWS]
    caption = f"Pieces of the first {len(shown)} of {len(preview.rows):,} rows"
    rows = []
    for row in shown:
        for number, (piece, text) in enumerate(zip(row.pieces, preview.texts(row), strict=True)):
            if number == MAX_PIECES:
                rows.append((f"{len(row.pieces) - MAX_PIECES} more pieces", *[""] * 7))
                break
            place = (row.step, row.lane, row.row) if not number else ("", "", "")
            where = f"[{piece.begin}, {piece.end})"
            rows.append(
                (*map(str, place), where, piece.dataset, piece.file, str(piece.record), cut(text, WIDTH))
            )
        if row.padding_tokens:
            place = ("", "", "") if row.pieces else (row.step, row.lane, row.row)
            rows.append((*map(str, place), f"[{row.num_tokens}, {len(row.tokens)})", "padding", "", "", ""))
    headers = ("step", "lane", "row", "tokens", "dataset", "file", "record", "text")
    return html_table(caption, headers, rows)
