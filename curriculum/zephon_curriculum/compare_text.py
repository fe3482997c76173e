"""What a comparison says: a line for each thing that differs, and the tokens planned by both.

Upstream: `compare.py`. Downstream: `results.py`, which shows it, and `zephon diff`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.table import Table

from zephon.cli.common import add_row, cut, new_table
from zephon_curriculum.figures import named_step, plural
from zephon_curriculum.log.entries import read_body, summary
from zephon_curriculum.results import Shown

if TYPE_CHECKING:
    from zephon_curriculum.compare import Comparison, FieldDifference

WIDTH = 100
MAX_ENTRIES = 12


def shown_comparison(found: Comparison) -> Shown:
    """Returns the verdict, the tokens planned of each dataset and what differs."""
    verdict = "equal" if found.is_equal else "different"
    counted = (("field", found.fields), ("lock entry", found.lock), ("log entry", found.entries))
    parts = [plural(len(each), noun) for noun, each in counted if each]
    parts += [f"mixture from step {found.mixture.step}"] if found.mixture else []
    parts += [f"rows from step {found.first_row.step}"] if found.first_row else []
    return Shown(
        head=": ".join(filter(None, [verdict, ", ".join(parts)])),
        tables=[_tokens(found)],
        notes=tuple(_describe(found)),
    )


def _tokens(found: Comparison) -> Table:
    """Returns the tokens planned of each dataset; of runs without an end, its share too."""
    is_endless = found.num_steps is None
    steps = "each step" if found.num_steps is None else f"the first {plural(found.num_steps, 'step')}"
    title = f"tokens planned in {steps}, {found.whose_steps}:"
    shares = ("#share of a", "#share of b") if is_endless else ()
    table = new_table("dataset", "#a", "#b", "#b - a", *shares, title=title)
    totals = [sum(planned) for planned in zip(*found.tokens.values(), strict=True)]
    for name, both in found.tokens.items():
        cells = (
            [f"{part / total:.2%}" for part, total in zip(both, totals, strict=True)] if is_endless else []
        )
        add_row(table, name, *(f"{tokens:,.0f}" for tokens in both), f"{both[1] - both[0]:+,.0f}", *cells)
    return table


def _describe(found: Comparison) -> Iterator[str]:
    """Yields a line for each thing that differs."""
    yield from _fields("recipe", found.fields)
    yield from _fields("lock", found.lock)
    yield from _fields("path, which counts by its lock" if found.is_locked else "path", found.places)
    if (mixture := found.mixture) is not None:
        yield f"mixture: first at {named_step(mixture.step)}"
        for side, shares in (("a", mixture.a), ("b", mixture.b)):
            yield f"  {side}: {', '.join(f'{name} {share:.4%}' for name, share in shares.items())}"
        if mixture.a == mixture.b:
            yield "  skipped steps or dropped documents differ there"
    for entry in found.entries[:MAX_ENTRIES]:
        said = cut(summary(read_body(entry.body)), WIDTH)
        yield f"log: only {entry.run} has entry {entry.number} ({entry.body['kind']}): {said}"
    if len(found.entries) > MAX_ENTRIES:
        yield f"log: and {len(found.entries) - MAX_ENTRIES} more entries that only one has"
    if found.num_rows is not None:
        yield f"rows: {found.num_rows:,} logged by both"
    if (row := found.first_row) is not None:
        yield f"rows: first at {named_step(row.step)}, lane {row.lane}, row {row.row}"
        yield f"  a: {row.a}"
        yield f"  b: {row.b}"


def _fields(what: str, differences: tuple[FieldDifference, ...]) -> Iterator[str]:
    for each in differences:
        if each.name == "datasets":
            yield from _lacking(each)
            if _common(each.a, each.b) == _common(each.b, each.a):
                continue
        yield f"{what}: {each.name}: a has {_shown(each.a)}, b has {_shown(each.b)}"


def _lacking(datasets: FieldDifference) -> Iterator[str]:
    """Yields a line for each dataset that only one has."""
    for side, has, lacks in (("b", datasets.a, datasets.b), ("a", datasets.b, datasets.a)):
        yield from (f"dataset {name}: {side} lacks it" for name in has if name not in lacks)


def _common(names: list[str], others: list[str]) -> list[str]:
    return [name for name in names if name in others]


def _shown(value: Any) -> str:
    return cut(value if isinstance(value, str) else json.dumps(value), WIDTH)
