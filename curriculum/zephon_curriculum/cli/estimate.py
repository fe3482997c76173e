"""`zephon estimate`: how many tokens the datasets of a recipe have, with intervals, from a small sample.

Upstream: the shell. Downstream: `zephon_curriculum.estimation`. A file that `--out` writes serves the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from zephon.cli.common import (
    BackendOption,
    CacheOption,
    JsonOption,
    LateProgress,
    RecipeArgument,
    SetOption,
    Source,
    as_usage,
    visible,
    write,
    write_json,
)
from zephon_curriculum.estimation.measure import CHUNKS, SAMPLE_BYTES, TokenEstimation
from zephon_curriculum.estimation.weighing import Pinned

PINNED_RULE = "--pin takes NAME=TOKENS, NAME=N/byte or NAME=N/document"


ChunksOption = Annotated[int, typer.Option("--chunks", min=1, help="Chunks opened of each dataset.")]
BytesOption = Annotated[
    int, typer.Option("--bytes", min=1, help="Text tokenized of each dataset, about; at most all of it.")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Another seed draws another sample.")]
BootstrapOption = Annotated[
    bool, typer.Option("--bootstrap", help="Intervals by the bootstrap over chunks, where it serves.")
]
PinOption = Annotated[
    list[str] | None,
    typer.Option(
        "--pin", metavar="NAME=VALUE", help="Say it yourself: web=1e9, code=0.31/byte, books=81234/document"
    ),
]
OutOption = Annotated[Path | None, typer.Option("--out", help="Write the estimates to this file, too.")]


def estimate(
    recipe: RecipeArgument,
    chunks: ChunksOption = CHUNKS,
    sample_bytes: BytesOption = SAMPLE_BYTES,
    seed: SeedOption = 0,
    bootstrap: BootstrapOption = False,
    pins: PinOption = None,
    out: OutOption = None,
    settings: SetOption = None,
    cache: CacheOption = None,
    backend: BackendOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Estimate tokens per byte, per document and in total of each dataset, with 95 % intervals.

    Documents and tokens are those of one epoch, as a run draws them: BOS and EOS count. Says first what it
    reads; what was measured is kept in the cache, so a second time nothing is read. JSON: what --out writes.
    """
    asked = TokenEstimation(
        chunks=chunks,
        sample_bytes=sample_bytes,
        seed=seed,
        bootstrap=bootstrap,
        pinned=parse_pins(pins or ()),
        cache=cache,
        backend=backend,
    )
    source = Source(recipe=recipe, settings=settings, cache=cache, backend=backend)
    with LateProgress() as progress, closing(source.open(progress)) as opened:
        with as_usage(pinned="--pin"):
            cost = asked.cost(opened)
        if not as_json:
            typer.echo(cost, err=True)
        found = asked.measure(opened, report=progress)
    if out is not None:
        found.write(out)
    if as_json:
        write_json(found.to_json())
    else:
        found.shown().write()
        if out is not None:
            write(f"\nwritten to {visible(str(out))}")


def parse_pins(texts: Sequence[str]) -> dict[str, Pinned]:
    """Returns what is said of datasets, each at most once."""
    found = dict(map(parse_pin, texts))
    if len(found) < len(texts):
        raise typer.BadParameter(f"{PINNED_RULE}, once a dataset; got {', '.join(texts)}")
    return found


def parse_pin(text: str) -> tuple[str, Pinned]:
    """Returns the dataset and what is said of it."""
    name, _, said = text.rpartition("=")
    number, _, unit = said.partition("/")
    fields = {"": "tokens", "byte": "tokens_per_byte", "document": "tokens_per_document"}
    try:
        return name, Pinned(**{fields[unit]: float(number)})
    except (KeyError, ValueError):
        raise typer.BadParameter(f"{PINNED_RULE}, the number > 0; got {text!r}") from None
