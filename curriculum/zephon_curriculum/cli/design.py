"""`zephon design`: the recipes of a swarm of small runs, to which `zephon fit` fits a mixing law.

Upstream: the shell. Downstream: `zephon_curriculum.designs`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from zephon import PARTS, Recipe
from zephon.cli.common import (
    JsonOption,
    RecipeArgument,
    SetOption,
    Source,
    add_row,
    new_table,
    visible_lines,
    write,
    write_json,
    write_table,
)
from zephon_curriculum.cli.fit import CapOption, FloorOption, SeedOption
from zephon_curriculum.cli.pairs import parse_pairs
from zephon_curriculum.designs import (
    DIRICHLET,
    KINDS,
    RATIOS,
    SOBOL,
    Design,
    dirichlet_design,
    sobol_design,
    write_design,
)

RunsOption = Annotated[int, typer.Option("--runs", min=1, help="How many runs.")]
OutOption = Annotated[Path, typer.Option("--out", help="A new folder for the recipes and ratios.csv.")]
KindOption = Annotated[str, typer.Option("--kind", help=f"{' or '.join(KINDS)}.")]
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
    cap: CapOption = None,
    floor: FloorOption = None,
    seed: SeedOption = 0,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the recipes of small runs of other mixtures than RECIPE's, for `zephon fit`.

    Weights of 0 in the prior leave a dataset out of all runs.
    """
    base = Source(recipe=recipe, settings=settings, cache=None, backend="auto").load()
    middle = parse_pairs([prior], option="--prior") if prior else _first_weights(base)
    if unknown := [name for name in middle if name not in base.names]:
        raise typer.BadParameter(f"--prior: no dataset is named {unknown[0]!r}; got {', '.join(base.names)}")
    caps, floors = parse_pairs(cap or (), option="--cap"), parse_pairs(floor or (), option="--floor")
    if kind == DIRICHLET:
        made = dirichlet_design(middle, runs, caps=caps, floors=floors, seed=seed)
    elif kind == SOBOL:
        names = [name for name, weight in middle.items() if weight]
        made = sobol_design(names, runs, caps=caps, floors=floors, seed=seed)
    else:
        raise typer.BadParameter(f"--kind must be one of {', '.join(KINDS)}, got {kind!r}")
    warnings = made.warnings()
    files = write_design(made, base, out)
    if as_json:
        write_json(_as_json(made, files, warnings))
    else:
        _draw(made, out, warnings)


def _as_json(made: Design, files: list[Path], warnings: list[str]) -> dict[str, Any]:
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
        "warnings": warnings,
    }


def _first_weights(recipe: Recipe) -> dict[str, float]:
    return dict(zip(recipe.names, map(float, recipe.compile_schedule().at(0)), strict=True))


def _draw(made: Design, out: Path, warnings: list[str]) -> None:
    table = new_table("dataset", "#least", "#mean", "#greatest", "#runs without")
    for name, column in zip(made.names, zip(*made.shares, strict=True), strict=True):
        ends = (min(column) / PARTS, sum(column) / len(column) / PARTS, max(column) / PARTS)
        add_row(table, name, *(f"{share:.1%}" for share in ends), column.count(0))
    write(f"{len(made.shares)} runs, {made.kind}, seed {made.seed}\n")
    write_table(table)
    for warning in warnings:
        write(visible_lines(f"warning: {warning}"))
    last = made.runs[-1]
    write(visible_lines(f"\nwrote {out}: {made.runs[0]}.toml to {last}.toml, and {RATIOS} for `zephon fit`"))
