"""`zephon estimate`: how many tokens the datasets of a recipe have, with intervals, from a small sample.

Upstream: the shell. Downstream: `zephon_curriculum.estimate`. A file that `--out` writes serves the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
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
    add_row,
    new_table,
    visible,
    write,
    write_json,
    write_table,
)
from zephon_curriculum.estimate import CHUNKS, SAMPLE_BYTES, Cost, TokenEstimation
from zephon_curriculum.estimates import DatasetEstimate, Estimates, Quantity
from zephon_curriculum.weighing import Pinned

PINNED_RULE = "--pin takes NAME=TOKENS, NAME=N/byte or NAME=N/document"
UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


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
PrecisionOption = Annotated[
    float | None,
    typer.Option("--precision", min=1e-6, max=0.99, help="Say, too, what to sample for +- this part: 0.01"),
]
OutOption = Annotated[Path | None, typer.Option("--out", help="Write the estimates to this file, too.")]


def estimate(
    recipe: RecipeArgument,
    chunks: ChunksOption = CHUNKS,
    sample_bytes: BytesOption = SAMPLE_BYTES,
    seed: SeedOption = 0,
    bootstrap: BootstrapOption = False,
    pins: PinOption = None,
    precision: PrecisionOption = None,
    out: OutOption = None,
    settings: SetOption = None,
    cache: CacheOption = None,
    backend: BackendOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Estimate tokens per byte, per document and in total of each dataset, with 95 % intervals.

    Documents and tokens are those of one epoch, as a run draws them: BOS and EOS count. What was measured is
    kept in the cache, so a second time nothing is read. JSON: what --out writes.
    """
    asked = TokenEstimation(
        chunks=chunks,
        sample_bytes=sample_bytes,
        seed=seed,
        bootstrap=bootstrap,
        pinned=dict(map(parse_pin, pins or ())),
        cache=cache,
        backend=backend,
    )
    source = Source(recipe=recipe, settings=settings, cache=cache, backend=backend)
    with LateProgress() as progress, closing(source.open(progress)) as opened:
        typer.echo(describe_cost(asked.cost(opened)), err=True)
        found = asked.measure(opened, report=progress)
    if out is not None:
        found.write(out)
    if as_json:
        write_json(found.to_json() | _sizes_json(found, precision))
    else:
        draw(found, precision)
        if out is not None:
            write(f"\nwritten to {visible(str(out))}")


def parse_pin(text: str) -> tuple[str, Pinned]:
    """Returns the dataset and what is said of it."""
    name, _, said = text.rpartition("=")
    number, _, unit = said.partition("/")
    fields = {"": "tokens", "byte": "tokens_per_byte", "document": "tokens_per_document"}
    try:
        return name, Pinned(**{fields[unit]: float(number)})
    except (KeyError, ValueError):
        raise typer.BadParameter(f"{PINNED_RULE}, the number > 0; got {text!r}") from None


def describe_cost(costs: Sequence[Cost]) -> str:
    """Returns what is going to be read, in one line."""
    read = [cost for cost in costs if not cost.is_kept]
    if not read:
        return "nothing is read: all is known, or was measured before"
    chunks, size = sum(cost.num_chunks for cost in read), sum(cost.chunk_bytes for cost in read)
    text = short(sum(cost.sample_bytes for cost in read))
    return (
        f"tokenizes {text}B of text of {len(read)} of {len(costs)} datasets, from {chunks:,} chunks of "
        f"{short(size)}B in all, which are expanded where compressed or remote"
    )


def draw(found: Estimates, precision: float | None) -> None:
    """Draws the estimates as a table, then what is to be said of them."""
    headers = ["dataset", "#documents", "#bytes", "#tokens/byte", "#tokens/document", "#tokens in an epoch"]
    table = new_table(*headers, "how")
    for one in found.values():
        add_row(
            table,
            one.name,
            "unknown" if one.documents is None else f"{one.documents:,}",
            _shown(one.bytes),
            _shown(one.tokens_per_byte),
            _shown(one.tokens_per_document),
            _shown(one.tokens),
            _how(one),
        )
    write_table(table)
    notes = [(one.name, note) for one in found.values() for note in _notes(one, found, precision)]
    if notes:
        write("")
    for name, note in notes:
        write(f"{visible(name)}: {note}")


def _notes(one: DatasetEstimate, found: Estimates, precision: float | None) -> list[str]:
    quantities = (one.tokens, one.tokens_per_document, one.tokens_per_byte)
    reasons = {quantity.reason: None for quantity in quantities if quantity is not None and quantity.reason}
    notes = [f"no interval: {reason}" for reason in reasons if reason != one.note]
    notes += [one.note] if one.note else []
    if one.faulty:
        notes.append(f"{one.faulty:,} of {one.sampled_documents:,} documents looked at cannot be used")
    if precision is not None and one.tokens is not None and one.tokens.low is not None and not one.exact:
        size = found.sample_size(one.name, precision)
        notes.append(f"for +-{precision:.2%} of its tokens: --chunks {size.chunks} --bytes {size.bytes}")
    return notes


def _sizes_json(found: Estimates, precision: float | None) -> dict[str, dict[str, dict[str, int]]]:
    """Returns, where asked for, what to sample of each dataset whose tokens have an interval."""
    if precision is None:
        return {}
    known = [one for one in found.values() if one.tokens is not None and one.tokens.low is not None]
    return {"sample_sizes": {one.name: asdict(found.sample_size(one.name, precision)) for one in known}}


def _how(one: DatasetEstimate) -> str:
    if one.how != "sampled":
        return one.how
    chunks = f"{one.sampled_chunks:,}" + ("" if one.num_chunks is None else f"/{one.num_chunks:,}")
    return f"{one.sampled_documents:,} documents, {chunks} chunks"


def _shown(quantity: Quantity | None) -> str:
    """Returns a quantity as people read it, the half of its interval beside it as a part of it."""
    if quantity is None:
        return "unknown"
    value = short(quantity.value)
    if quantity.exact:
        return value
    if quantity.low is None or quantity.high is None or not quantity.value:
        return f"{value} +- ?"
    below, above = (abs(end / quantity.value - 1) for end in (quantity.low, quantity.high))
    if abs(below - above) < 0.0005:
        return f"{value} +-{above:.1%}"
    return f"{value} -{below:.1%} +{above:.1%}"


def short(number: float) -> str:
    """Returns a number with four digits, such as 12.35G; whole numbers below 10,000 as they are."""
    if abs(number) < 10_000:
        return f"{number:,.0f}" if number == int(number) else f"{number:.4g}"
    size, unit = next((size, unit) for size, unit in UNITS if abs(number) >= size)
    return f"{number / size:.4g}{unit}"
