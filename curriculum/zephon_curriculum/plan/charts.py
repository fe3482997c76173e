"""Charts of mixtures: stacked areas over the steps, as PNG or SVG.

Upstream: a plan or a compiled table. Downstream: `zephon plan --png`, notebooks. The same input gives the
same bytes with the same matplotlib. Colours are those of Okabe and Ito (2008), which colour-blind people tell
apart; beyond eight datasets hatches are added, and every area is named, so colour is never alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zephon import PARTS, ScheduleTable
from zephon_curriculum.figures import short
from zephon_curriculum.plan.planned import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OKABE_ITO = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#000000")
DARK = ("#0072B2", "#000000")
"""Of these, the colours on which white text is read better than black."""
HATCHES = ("", "//", "..", "xx", "\\\\", "++")
MAX_POINTS = 2000
"""Entries drawn of a table; of a longer one, these many of equal distance."""
WIDTH_IN, HEIGHT_IN = 9.0, 4.6
LETTER = 0.0155
LINE = 0.062
"""A letter's width and a line's height, as parts of the axes."""
FORMATS = ("png", "svg")
Floats = NDArray[np.float64]


def mixture_chart(
    mixture: Plan | ScheduleTable,
    path: str | os.PathLike[str] | None = None,
    *,
    num_steps: int | None = None,
    tokens_per_step: int | None = None,
    title: str = "",
) -> Figure:
    """Returns the chart of the shares of each step, stacked, and writes it to `path` (.png or .svg).

    `num_steps` is needed of a table that ends in a constant; `tokens_per_step` adds the tokens as a second
    axis; both are a plan's own.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    table, steps, per_step = _parts_of(mixture, num_steps, tokens_per_step)
    name = None if path is None else Path(path)
    if name is not None and name.suffix.removeprefix(".") not in FORMATS:
        raise ValueError(f"`path` must end in .png or .svg, got {os.fspath(name)!r}")
    with rc_context(
        {"svg.hashsalt": "zephon", "svg.fonttype": "none", "font.size": 9, "hatch.linewidth": 0.5}
    ):
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        axes = figure.add_subplot()
        areas = _draw_areas(axes, table, steps)
        _name_areas(axes, table.names, areas, steps)
        _draw_scales(axes, steps, per_step, title)
        axes.set_xlabel("step (from 0)")
        if name is not None:
            _save(figure, name)
    return figure


def _parts_of(
    mixture: Plan | ScheduleTable, num_steps: int | None, tokens_per_step: int | None
) -> tuple[ScheduleTable, int, int | None]:
    if isinstance(mixture, Plan):
        num_steps = mixture.num_steps if num_steps is None else num_steps
        tokens_per_step, mixture = tokens_per_step or mixture.tokens_per_step, mixture.table
    if num_steps is None:
        raise ValueError("`num_steps` is needed to draw a table: its last entry holds for ever")
    if num_steps < 1:
        raise ValueError(f"`num_steps` must be >= 1, got {num_steps}; there is no mixture to draw")
    return mixture, num_steps, tokens_per_step


class _Areas(NamedTuple):
    """The stacked areas at the points drawn."""

    steps: NDArray[np.int64]
    """(P + 1,), where the shares change, and the end."""
    edges: Floats
    """(m + 1, P + 1), the lower edge of each area and the upper one of the last, as parts of 1."""


def _draw_areas(axes: Axes, table: ScheduleTable, num_steps: int) -> _Areas:
    starts = np.array([s for s in table.starts if s < num_steps], dtype=np.int64)
    chosen = np.arange(len(starts))
    if len(starts) > MAX_POINTS:
        chosen = np.unique(np.linspace(0, len(starts) - 1, MAX_POINTS).astype(np.int64))
    shares = np.array([table.shares[i] for i in chosen], dtype=np.float64).T / PARTS
    shares = np.concatenate([shares, shares[:, -1:]], axis=1)
    steps = np.append(starts[chosen], num_steps)
    edges = np.concatenate([np.zeros((1, len(steps))), np.cumsum(shares, axis=0)])
    for i in range(len(table.names)):
        axes.fill_between(
            steps, edges[i], edges[i + 1], step="post", facecolor=OKABE_ITO[i % 8], edgecolor=_ink(i),
            hatch=_hatch(i) * 2 or None, linewidth=0.3,
        )  # fmt: skip
    return _Areas(steps, edges)


def _hatch(index: int) -> str:
    return HATCHES[index // len(OKABE_ITO) % len(HATCHES)]


def _ink(index: int) -> str:
    """Returns the colour of what is drawn on an area."""
    return "white" if OKABE_ITO[index % len(OKABE_ITO)] in DARK else "black"


def _name_areas(axes: Axes, names: Sequence[str], areas: _Areas, num_steps: int) -> None:
    """Writes each name into its area where there is room, else beside the chart with a line to it."""
    grid = (np.arange(400) + 0.5) / 400 * num_steps
    at = np.clip(np.searchsorted(areas.steps, grid, side="right") - 1, 0, areas.edges.shape[1] - 1)
    edges = areas.edges[:, at]
    outside: list[tuple[float, float, int]] = []
    for i, name in enumerate(names):
        place = _room(edges[i], edges[i + 1], len(name))
        if place is not None:
            x, y = place
            box = {"facecolor": OKABE_ITO[i % 8], "edgecolor": "none", "pad": 1.5} if _hatch(i) else None
            axes.text(x * num_steps, y, name, color=_ink(i), ha="center", va="center", bbox=box)
        elif (edges[i + 1] > edges[i]).any():
            heights = edges[i + 1] - edges[i]
            best = len(grid) - 1 if heights[-1] > 0 else int(heights.argmax())
            outside.append(((edges[i][best] + edges[i + 1][best]) / 2, grid[best] / num_steps, i))
    for (middle, x, i), y in zip(sorted(outside), _spaced([m for m, _, _ in sorted(outside)]), strict=True):
        axes.annotate(
            names[i], xy=(x * num_steps, middle), xytext=(1.03, y), textcoords=axes.transAxes, va="center",
            arrowprops={"arrowstyle": "-", "linewidth": 0.6, "color": "black", "shrinkA": 1, "shrinkB": 0},
            annotation_clip=False,
        )  # fmt: skip


def _room(low: Floats, high: Floats, num_letters: int) -> tuple[float, float] | None:
    """Returns the middle of the highest place where a name fits into an area, in parts of the axes."""
    count = len(low)
    width = min(count, max(1, int(num_letters * LETTER * count) + 2))
    places: list[tuple[float, float, float]] = []
    for first in range(0, count - width + 1, 4):
        bottom, top = low[first : first + width].max(), high[first : first + width].min()
        if top - bottom >= LINE:
            places.append((top - bottom, (first + width / 2) / count, (top + bottom) / 2))
    good = [place for place in places if place[0] >= 0.97 * max(places)[0]]
    return good[len(good) // 2][1:] if good else None


def _spaced(wanted: Sequence[float]) -> list[float]:
    """Returns heights near `wanted`, ascending, a line apart and inside the axes as far as they can be."""
    placed: list[float] = []
    for y in wanted:
        placed.append(max(y, placed[-1] + LINE) if placed else max(y, 0.0))
    top = 1.0
    for index in range(len(placed) - 1, -1, -1):
        placed[index] = min(placed[index], top)
        top = placed[index] - LINE
    return placed


def _draw_scales(axes: Axes, num_steps: int, tokens_per_step: int | None, title: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

    axes.set_xlim(0, num_steps)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel("share of tokens")
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    if title:
        axes.set_title(title, loc="left")
    if tokens_per_step is None:
        return
    per_step = float(tokens_per_step)
    both_ways = (lambda steps: steps * per_step, lambda tokens: tokens / per_step)
    above = axes.secondary_xaxis("top", functions=both_ways)
    above.xaxis.set_major_locator(MaxNLocator(7))
    above.xaxis.set_major_formatter(FuncFormatter(lambda tokens, _: short(tokens)))
    above.set_xlabel("tokens")


def _save(figure: Figure, path: Path) -> None:
    """Writes the figure without date and version, so that the same chart has the same bytes."""
    kind = path.suffix.removeprefix(".")
    metadata: dict[str, Any] = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
    figure.savefig(path, format=kind, dpi=150, metadata=metadata)
