"""The plots of the series, as SVG; needs matplotlib (the extra `experiment`).

`python -m experiment.figures --folder F --out docs/experiments`. Upstream: the results of `series.py`.
Colours are of the palette of Okabe and Ito, which colour-blind people can tell apart.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from rich.console import Console

from experiment import results
from experiment.jobs import Ended
from experiment.results import LOADERS, Result
from experiment.series import Plan, Series

BLUE, VERMILLION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
PURPLE, SKY, BLACK = "#CC79A7", "#56B4E9", "#000000"
COLOURS = {"stock": VERMILLION, "zephon": BLUE}
MARKERS = "osD^v"
SMALLEST = 1e-7


def new_axes(columns: int = 1, width: float = 7.0, height: float = 3.2, **shared: Any) -> tuple[Any, Any]:
    """Returns a figure and its axes, without a display."""
    mpl.use("Agg")
    mpl.rcParams.update({"font.size": 9, "svg.hashsalt": "zephon", "axes.spines.top": False})
    mpl.rcParams.update({"axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25})
    from matplotlib import pyplot

    return pyplot.subplots(1, columns, figsize=(width, height), layout="constrained", **shared)


def save(figure: Any, path: Path) -> None:
    """Writes the figure, the same bytes for the same data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def plot_finals(found: Sequence[results.Row], sizes: Sequence[int], path: Path) -> None:
    """Draws the final held-out loss over the number of processes, a panel for each loader."""
    figure, axes = new_axes(2, sharey=True)
    for axis, (loader, name) in zip(axes, LOADERS.items(), strict=True):
        for row in (row for row in found if row.loader == loader):
            marker = MARKERS[row.seed % len(MARKERS)]
            places = range(len(sizes))
            axis.plot(
                places, row.finals, marker=marker, color=COLOURS[loader], lw=1, label=f"seed {row.seed}"
            )
        axis.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        axis.set_title(f"{name}'s loader")
        axis.set_xlabel("data-parallel processes")
    axes[0].set_ylabel("held-out loss after the last step")
    axes[1].legend(fontsize=8, frameon=False)
    save(figure, path)


def plot_distances(runs: Sequence[Result], sizes: Sequence[int], path: Path) -> None:
    """Draws how far the training loss is from that of one process, step by step, as mean over seeds."""
    figure, axis = new_axes()
    lines = ("-", "--", ":")
    for loader, name in LOADERS.items():
        by_key = {(r.seed, r.dp): r for r in runs if r.loader == loader}
        for size, line in zip(sizes[1:], lines, strict=False):
            seeds = [seed for seed, dp in by_key if dp == size and (seed, sizes[0]) in by_key]
            if not seeds:
                continue
            steps = sorted(by_key[seeds[0], size].losses)
            means = [
                statistics.mean(
                    abs(by_key[seed, size].losses[step] - by_key[seed, sizes[0]].losses[step])
                    for seed in seeds
                )
                for step in steps
            ]
            shown = [max(value, SMALLEST) for value in means]
            axis.plot(steps, shown, line, color=COLOURS[loader], lw=1.2, label=f"{name}, {size}")
    axis.set_yscale("log")
    axis.set_xlabel("step")
    axis.set_ylabel(f"training loss: distance from D = {sizes[0]}")
    axis.legend(fontsize=8, frameon=False, ncols=2)
    save(figure, path)


def plot_losses(ended: Mapping[str, Ended], path: Path) -> None:
    """Draws the training losses of `compare.py`, a panel for each loader."""
    figure, axes = new_axes(2, sharey=True)
    for axis, (loader, name) in zip(axes, LOADERS.items(), strict=True):
        runs = {n: e for n, e in ended.items() if n.startswith(loader) and e.losses and "ends" not in n}
        for i, (run, job) in enumerate(runs.items()):
            fresh = "->" not in run
            colour = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY, BLACK)[i % 7]
            style = {
                "marker": "osD^vP*"[i % 7],
                "ms": 7 - i,
                "mfc": "none",
                "lw": 1,
                "ls": "-" if fresh else ":",
            }
            axis.plot(
                list(job.losses),
                list(job.losses.values()),
                color=colour,
                label=run.partition(" ")[2],
                **style,
            )
        axis.set_title(f"{name}'s loader")
        axis.set_xlabel("step")
        axis.legend(fontsize=7, frameon=False, title="processes", title_fontsize=7)
    axes[0].set_ylabel("training loss")
    save(figure, path)


def main() -> None:
    """Makes the plots, and prints the table for the page."""
    parser = argparse.ArgumentParser(prog="python -m experiment.figures", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="the folder of the series")
    parser.add_argument("--out", type=Path, help="where the plots go; default: the folder of the series")
    parser.add_argument("--steps", type=int, default=Plan().steps)
    given = parser.parse_args()
    series, out = Series(given.folder.resolve(), Plan(steps=given.steps)), given.out or given.folder
    runs = results.read(series.lines, series.plan.settings())
    sizes = sorted({run.dp for run in runs})
    found = results.rows(runs, sizes)
    plot_finals(found, sizes, out / "elastic-heldout.svg")
    plot_distances(runs, sizes, out / "elastic-distance.svg")
    Console(highlight=False).print(results.markdown(found, sizes), soft_wrap=True, markup=False)


if __name__ == "__main__":
    main()
