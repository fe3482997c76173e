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
    STRENGTH,
    Design,
    dirichlet_design,
    repetition_warnings,
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
StrengthOption = Annotated[
    str,
    typer.Option(
        "--strength", metavar="A:B", help="dirichlet: weakest and strongest pull towards the middle."
    ),
]
UniqueOption = Annotated[
    str,
    typer.Option("--unique", metavar="NAME=TOKENS,...", help="Tokens of the datasets, with --target-tokens."),
]
TargetOption = Annotated[
    float,
    typer.Option(
        "--target-tokens", min=0, help="Tokens of the run to come: warns where it repeats and runs do not."
    ),
]


def design(
    recipe: RecipeArgument,
    runs: RunsOption,
    out: OutOption,
    kind: KindOption = DIRICHLET,
    prior: PriorOption = "",
    strength: StrengthOption = f"{STRENGTH[0]:g}:{STRENGTH[1]:g}",
    cap: CapOption = None,
    floor: FloorOption = None,
    seed: SeedOption = 0,
    unique: UniqueOption = "",
    target_tokens: TargetOption = 0.0,
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
        pulls = _parse_strength(strength)
        made = dirichlet_design(middle, runs, strength=pulls, caps=caps, floors=floors, seed=seed)
    elif kind == SOBOL:
        names = [name for name, weight in middle.items() if weight]
        made = sobol_design(names, runs, caps=caps, floors=floors, seed=seed)
    else:
        raise typer.BadParameter(f"--kind must be one of {', '.join(KINDS)}, got {kind!r}")
    warnings = [*made.warnings(), *_repetition(made, base, unique, target_tokens)]
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


def _parse_strength(text: str) -> tuple[float, float]:
    low, colon, high = text.partition(":")
    try:
        return float(low), float(high if colon else low)
    except ValueError:
        raise typer.BadParameter(f"--strength takes A:B, or one number, got {text!r}") from None


def _repetition(made: Design, base: Recipe, unique: str, target_tokens: float) -> list[str]:
    """Returns the warnings about data that recur in the target and not in the runs."""
    if bool(unique) != bool(target_tokens):
        raise typer.BadParameter("--unique and --target-tokens go together")
    if not unique:
        return []
    if base.total_steps is None:
        raise typer.BadParameter(
            "with --target-tokens the recipe must say `total_steps`, the length of a run"
        )
    tokens = parse_pairs([unique], option="--unique")
    if any(count <= 0 for count in tokens.values()):
        raise typer.BadParameter(f"--unique takes tokens above 0, got {unique!r}")
    run_tokens = base.total_steps * base.tokens_per_step
    return repetition_warnings(made, tokens, run_tokens=run_tokens, target_tokens=target_tokens)


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
