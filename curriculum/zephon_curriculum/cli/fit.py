"""`zephon fit`: a mixing law of small runs, the mixture that it foretells to be best, and how sure that is.

Upstream: the shell; `zephon design` writes the ratios. Downstream: `zephon_curriculum.laws` and `.optimum`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from zephon import PARTS
from zephon.cli.common import (
    JsonOption,
    LateProgress,
    add_row,
    new_table,
    visible_lines,
    write,
    write_json,
    write_table,
)
from zephon_curriculum.cli.pairs import parse_pairs
from zephon_curriculum.laws import KINDS, LOGLINEAR, LawFit, fit_law
from zephon_curriculum.optimum import NUM_BOOTSTRAP, Optimum, find_optimum
from zephon_curriculum.swarm import read_swarm

CapOption = Annotated[
    list[str] | None, typer.Option("--cap", metavar="NAME=SHARE", help="The greatest share of a dataset.")
]
FloorOption = Annotated[
    list[str] | None, typer.Option("--floor", metavar="NAME=SHARE", help="The least share of a dataset.")
]


RatiosArgument = Annotated[
    Path, typer.Argument(metavar="RATIOS.csv", help="run,DATASET,...: ratios of each run.")
]
LossesArgument = Annotated[
    Path, typer.Argument(metavar="LOSSES.csv", help="run,TARGET,...: losses of each run.")
]
LawOption = Annotated[str, typer.Option("--law", help=f"{' or '.join(KINDS)}.")]
TargetOption = Annotated[
    list[str] | None, typer.Option("--target", help="A column of LOSSES.csv; default all, their mean.")
]
BaselineOption = Annotated[
    str,
    typer.Option(
        "--baseline", metavar="NAME=WEIGHT,...", help="What to compare with; default the mean of the runs."
    ),
]
BootstrapOption = Annotated[
    int, typer.Option("--bootstrap", min=0, help="How often the runs' noise is drawn anew; 0: never.")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Another seed draws others.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="Write the optimum as a recipe's [schedule] table.")
]


def fit(
    ratios: RatiosArgument,
    losses: LossesArgument,
    law: LawOption = LOGLINEAR,
    target: TargetOption = None,
    baseline: BaselineOption = "",
    cap: CapOption = None,
    floor: FloorOption = None,
    bootstrap: BootstrapOption = NUM_BOOTSTRAP,
    seed: SeedOption = 0,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fit a mixing law to small runs and find the mixture of the lowest loss, beside a baseline.

    Says how well the law foretells runs left out, and whether the gain is more than the noise of the runs.
    """
    compared = parse_pairs([baseline], option="--baseline") if baseline else None
    caps, floors = parse_pairs(cap or (), option="--cap"), parse_pairs(floor or (), option="--floor")
    swarm = read_swarm(ratios, losses, target or ())
    with LateProgress() as progress:
        fitted = fit_law(swarm, law)
        found = find_optimum(
            fitted, baseline=compared, caps=caps, floors=floors, num_bootstrap=bootstrap, seed=seed,
            report=progress,
        )  # fmt: skip
    if out is not None:
        out.write_text(found.to_toml(), encoding="utf-8")
    if as_json:
        write_json(_as_json(fitted, found))
    else:
        _draw(fitted, found, baseline or "the mean of the runs", out)


def _as_json(fitted: LawFit, found: Optimum) -> dict[str, Any]:
    """Returns the fit and its optimum as JSON data."""
    fits = {
        fit.target: {
            "rmse": fit.rmse,
            "left_out_rmse": fit.loo_rmse,
            "mean_rmse": fit.mean_rmse,
            "rank_correlation": fit.rank_correlation,
            "p_value": fit.p_value,
            "foretells": fit.foretells,
        }
        for fit in fitted.fits
    }
    return {"law": fitted.kind, "num_runs": len(fitted.swarm.runs), "targets": fits} | found.to_json()


def _draw(fitted: LawFit, found: Optimum, baseline: str, out: Path | None) -> None:
    write(f"{fitted.kind} law of {len(fitted.swarm.runs)} runs; baseline: {baseline}\n")
    table = new_table(
        "target", "#error on runs left out", "#of their mean", "#rank correlation", "#at the optimum",
        "#at the baseline",
    )  # fmt: skip
    for fit, best, base in zip(fitted.fits, found.losses, found.baseline_losses, strict=True):
        errors = (f"{fit.loo_rmse:.4g}", f"{fit.mean_rmse:.4g}", f"{fit.rank_correlation:.2f}")
        add_row(table, fit.target, *errors, f"{best:.4f}", f"{base:.4f}")
    write_table(table)
    write("")
    _draw_weights(found)
    gain = f"\ngain over the baseline: {found.gain:.4f}"
    if (spread := found.spread) is not None:
        gain += f", 95% interval [{spread.gain_low:.4f}, {spread.gain_high:.4f}]"
        gain += f" from {spread.num_draws} draws" + (" (within the noise)" if found.is_within_noise else "")
    write(gain)
    for warning in found.warnings:
        write(visible_lines(f"warning: {warning}"))
    if out is not None:
        write(visible_lines(f"wrote {out}"))


def _draw_weights(found: Optimum) -> None:
    spread = found.spread
    table = new_table("dataset", "#optimum", "#sd", "#95% interval", "#baseline")
    for i, (name, share) in enumerate(found.weights.items()):
        moves = ("", "")
        if spread is not None:
            moves = (f"{spread.sd[i]:.2%}", f"{spread.low[i]:.1%} to {spread.high[i]:.1%}")
        add_row(table, name, f"{share / PARTS:.2%}", *moves, f"{found.baseline[i] / PARTS:.2%}")
    write_table(table)
