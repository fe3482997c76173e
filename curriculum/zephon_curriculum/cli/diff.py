"""`zephon diff`: what two recipes or two runs have otherwise.

Upstream: the shell. Downstream: `zephon_curriculum.compare`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from zephon.cli.common import Exit, JsonOption, add_row, cut, new_table, write, write_json, write_table
from zephon_curriculum.compare import Comparison, FieldDifference, compare
from zephon_curriculum.figures import named_step

WIDTH = 100
MAX_ENTRIES = 12

AArgument = Annotated[str, typer.Argument(metavar="A", help="A recipe.toml, a run folder, module:function.")]
BArgument = Annotated[str, typer.Argument(metavar="B", help="The other one.")]
StepsOption = Annotated[
    int | None,
    typer.Option(
        "--steps",
        min=1,
        help="Steps to plan tokens for.",
        show_default="those that both delivered, or the smaller total_steps",
    ),
]


def diff(a: AArgument, b: BArgument, steps: StepsOption = None, as_json: JsonOption = False) -> None:
    """Say what two recipes or runs have otherwise: fields, data, mixture, tokens, accepted amendments, rows.

    Exit 0: equal in all that can change a row; 1: different. No data is opened: of two runs their locks say
    whether data, tokenizer and plugins are the same, of recipes their paths.
    """
    found = compare(a, b, steps=steps)
    if as_json:
        write_json(found.to_json())
    else:
        for line in describe(found):
            write(line)
        _draw_tokens(found)
    raise typer.Exit(Exit.OK if found.is_equal else Exit.DIFFERENT)


def describe(found: Comparison) -> Iterator[str]:
    """Yields a line for each thing that differs, the verdict first."""
    yield "equal" if found.is_equal else "different"
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
        said = {name: value for name, value in entry.body.items() if name not in ("kind", "inputs")}
        yield f"log: only {entry.run} has entry {entry.number} ({entry.body['kind']}): {_shown(said)}"
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
        yield f"{what}: {each.name}: a has {_shown(each.a)}, b has {_shown(each.b)}"


def _shown(value: Any) -> str:
    return cut(value if isinstance(value, str) else json.dumps(value), WIDTH)


def _draw_tokens(found: Comparison) -> None:
    """Draws the tokens planned of each dataset."""
    write(f"tokens planned in {found.num_steps:,} common steps:")
    table = new_table("dataset", "#a", "#b", "#b - a")
    for name, (a, b) in found.tokens.items():
        add_row(table, name, f"{a:,.0f}", f"{b:,.0f}", f"{b - a:+,.0f}")
    write_table(table)
