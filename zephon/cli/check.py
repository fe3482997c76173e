"""`zephon check`: the launch check as tables and one line of verdict.

Upstream: the shell. Downstream: `zephon.check`.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from zephon.check import PROBE_S, check_recipe
from zephon.check.report import ERROR, OK, WARNING, CheckReport, DatasetFacts, format_bytes
from zephon.cli.common import BackendOption, CacheOption, JsonOption, RecipeArgument, SetOption, Source
from zephon.cli.exits import Exit
from zephon.cli.output import LateProgress, add_row, new_table, visible, write, write_json, write_table

STYLES = {OK: "green", WARNING: "yellow", ERROR: "bold red"}


def check(
    recipe: RecipeArgument,
    dp: Annotated[str, typer.Option("--dp", metavar="D,D,...", help="Data-parallel sizes to run at.")] = "1",
    micro_batch_size: Annotated[int | None, typer.Option(min=1, help="Rows of a micro-batch.")] = None,
    probe_s: Annotated[
        float, typer.Option("--probe-seconds", min=0, help="Time for reading samples.")
    ] = PROBE_S,
    settings: SetOption = None,
    cache: CacheOption = None,
    backend: BackendOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Look for everything that would stop or spoil a run, before its first step, in one report.

    Opens every dataset, reads a sample of each, loads the tokenizer, and looks whether lanes, ranks and batch
    fit together. Exits with 1 when something must be put right first.
    """
    sizes = parse_sizes(dp)
    source = Source(recipe=recipe, settings=settings, cache=cache, backend=backend)
    with LateProgress() as progress:
        report = check_recipe(
            source.load(),
            dp_world_sizes=sizes,
            micro_batch_size=micro_batch_size,
            cache=cache,
            backend=backend,
            probe_s=probe_s,
            report=progress,
        )
    write_json(report.to_json()) if as_json else draw(report)
    raise typer.Exit(Exit.OK if report.ok else Exit.DIFFERENT)


def parse_sizes(text: str) -> list[int]:
    """Returns the sizes of `8,16,32`."""
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise typer.BadParameter(f"--dp takes whole numbers >= 1, such as 8,16,32; got {text!r}")
    return sizes


def draw(report: CheckReport) -> None:
    """Draws the report: findings, datasets, memory, verdict."""
    findings = new_table("", "what", "found")
    for severity in (ERROR, WARNING, OK):
        for finding in report.by_severity(severity):
            message = "\n".join(visible(line) for line in finding.message.splitlines())
            cure = f"\n  cure: {visible(finding.cure)}" if finding.cure else ""
            add_row(findings, Text(severity, STYLES[severity]), finding.subject, message + cure)
    write_table(findings)
    if report.datasets:
        write("")
        _draw_datasets(report.datasets)
    memory = new_table(
        "#ranks", "#streams", "#read ahead", "#batches", "#orders", "#tokenizer", "#memory per rank"
    )
    for rank in report.memory:
        parts = (
            rank.blocks_bytes,
            rank.batches_bytes,
            rank.orders_bytes,
            rank.tokenizer_bytes,
            rank.total_bytes,
        )
        add_row(memory, rank.dp_world_size, f"{rank.num_streams:,}", *map(format_bytes, parts))
    if report.memory:
        write("")
        write_table(memory)
    write(f"\n{report.tokens_per_step:,} tokens a step; recipe {report.recipe[:12] or 'incomplete'}")
    write(report.verdict())


def _draw_datasets(datasets: tuple[DatasetFacts, ...]) -> None:
    table = new_table(
        "dataset",
        "kind",
        "#files",
        "#size",
        "#documents",
        "#sampled",
        "#about tokens",
        "#share",
        "#epochs/1,000 steps",
    )
    for facts in datasets:
        add_row(
            table,
            facts.name,
            facts.kind,
            f"{facts.num_files:,}",
            format_bytes(facts.num_bytes),
            "not counted" if facts.num_documents is None else f"{facts.num_documents:,}",
            f"{facts.sampled_documents:,}",
            "?" if facts.num_tokens is None else f"{facts.num_tokens:,}",
            "?" if facts.share is None else f"{facts.share:.1%}",
            "?" if facts.epochs_per_1000_steps is None else f"{facts.epochs_per_1000_steps:.3g}",
        )
    write_table(table)
