"""`zephon fit`: a mixing law of small runs, the mixture that it foretells to be best, and how sure that is.

Upstream: the shell; `zephon design` writes the ratios. Downstream: `zephon_curriculum.laws`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from zephon.cli.common import JsonOption, LateProgress, as_usage, visible, write, write_json
from zephon_curriculum.cli.pairs import parse_pairs
from zephon_curriculum.laws.fit import LAW_KINDS, LOGLINEAR, LawFit, fit_law
from zephon_curriculum.laws.optimum import NUM_BOOTSTRAP, Optimum, find_optimum
from zephon_curriculum.laws.swarm import read_swarm

MaxShareOption = Annotated[
    list[str] | None, typer.Option("--max-share", metavar="NAME=SHARE", help="At most this share: web=0.6.")
]
MinShareOption = Annotated[
    list[str] | None, typer.Option("--min-share", metavar="NAME=SHARE", help="At least this share.")
]
SHARE_OPTIONS = {"max_shares": "--max-share", "min_shares": "--min-share"}
"""The options by the arguments that they give."""

RatiosArgument = Annotated[
    Path, typer.Argument(metavar="RATIOS.csv", help="run,DATASET,...: ratios of each run.")
]
LossesArgument = Annotated[
    Path, typer.Argument(metavar="LOSSES.csv", help="run,TARGET,...: losses of each run.")
]
LawOption = Annotated[str, typer.Option("--law", help=f"{' or '.join(LAW_KINDS)}.")]
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
    max_share: MaxShareOption = None,
    min_share: MinShareOption = None,
    bootstrap: BootstrapOption = NUM_BOOTSTRAP,
    seed: SeedOption = 0,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fit a mixing law to small runs and find the mixture of the lowest loss, beside a baseline.

    Says how well the law foretells runs left out, and whether the gain is more than the noise of the runs.
    """
    compared = parse_pairs([baseline], option="--baseline") if baseline else None
    most = parse_pairs(max_share or (), option="--max-share")
    least = parse_pairs(min_share or (), option="--min-share")
    names = {"kind": "--law", "targets": "--target", "baseline": "--baseline"}
    with as_usage(**names, **SHARE_OPTIONS), LateProgress() as progress:
        swarm = read_swarm(ratios, losses, target or ())
        fitted = fit_law(swarm, law)
        found = find_optimum(
            fitted, baseline=compared, max_shares=most, min_shares=least, num_bootstrap=bootstrap, seed=seed,
            report=progress,
        )  # fmt: skip
    if out is not None:
        out.write_text(found.to_toml(), encoding="utf-8")
    if as_json:
        write_json(_as_json(fitted, found))
    else:
        law_of = fitted.shown()
        head = f"{law_of.head}; baseline: {baseline or 'the mean of the runs'}"
        replace(law_of, head=head, notes=()).write()  # the optimum has its warnings
        write("")
        found.shown().write()
        if out is not None:
            write(f"wrote {visible(str(out))}")


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
