"""`zephon design`: the recipes of a swarm of small runs, to which `zephon fit` fits a mixing law.

Upstream: the shell. Downstream: `zephon_curriculum.laws`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from zephon.cli.common import (
    JsonOption,
    RecipeArgument,
    SetOption,
    Source,
    as_usage,
    visible,
    write,
    write_json,
)
from zephon_curriculum.cli.fit import SHARE_OPTIONS, MaxShareOption, MinShareOption, SeedOption
from zephon_curriculum.cli.pairs import parse_pairs
from zephon_curriculum.laws.designs import (
    DESIGN_KINDS,
    DIRICHLET,
    RATIOS,
    Design,
    dirichlet_design,
    sobol_design,
    write_design,
)

RunsOption = Annotated[int, typer.Option("--runs", min=1, help="How many runs.")]
OutOption = Annotated[Path, typer.Option("--out", help="A new folder for the recipes and ratios.csv.")]
KindOption = Annotated[str, typer.Option("--kind", help=f"{' or '.join(DESIGN_KINDS)}.")]
PriorOption = Annotated[
    str,
    typer.Option(
        "--prior", metavar="NAME=WEIGHT,...", help="The middle; default the recipe's weights at step 0."
    ),
]


def design(
    recipe: RecipeArgument,
    runs: RunsOption,
    out: OutOption,
    kind: KindOption = DIRICHLET,
    prior: PriorOption = "",
    max_share: MaxShareOption = None,
    min_share: MinShareOption = None,
    seed: SeedOption = 0,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the recipes of small runs of other mixtures than RECIPE's, for `zephon fit`.

    Weights of 0 in the prior leave a dataset out of all runs.
    """
    base = Source(recipe=recipe, settings=settings, cache=None, backend="auto").load()
    middle: Mapping[str, float] = dict(zip(base.names, base.compile_schedule().at(0), strict=True))
    if prior:
        middle = parse_pairs([prior], option="--prior")
    if unknown := [name for name in middle if name not in base.names]:
        raise typer.BadParameter(f"--prior: no dataset is named {unknown[0]!r}; got {', '.join(base.names)}")
    most = parse_pairs(max_share or (), option="--max-share")
    least = parse_pairs(min_share or (), option="--min-share")
    if kind not in DESIGN_KINDS:
        raise typer.BadParameter(f"--kind must be one of {', '.join(DESIGN_KINDS)}, got {kind!r}")
    with as_usage(prior="--prior", **SHARE_OPTIONS):
        if kind == DIRICHLET:
            made = dirichlet_design(middle, runs, max_shares=most, min_shares=least, seed=seed)
        else:
            names = [name for name, weight in middle.items() if weight]
            made = sobol_design(names, runs, max_shares=most, min_shares=least, seed=seed)
    files = write_design(made, base, out)
    if as_json:
        write_json(_as_json(made, files))
    else:
        made.shown().write()
        first, last, where = made.runs[0], made.runs[-1], visible(str(out))
        write(f"\nwrote {where}: {first}.toml to {last}.toml, and {RATIOS} for `zephon fit`")


def _as_json(made: Design, files: list[Path]) -> dict[str, Any]:
    """Returns the design and what was written as JSON data."""
    runs = {
        run: dict(zip(made.names, shares, strict=True))
        for run, shares in zip(made.runs, made.shares, strict=True)
    }
    return {
        "kind": made.kind,
        "seed": made.seed,
        "runs": runs,
        "files": list(map(str, files)),
        "warnings": made.warnings(),
    }
