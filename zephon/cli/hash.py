"""`zephon hash`: one digest for every step, to be compared between machines, sizes and versions.

Upstream: the shell. Downstream: `zephon.loader` and `zephon.batch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from zephon.batch import RowDigest, digest, step_digest
from zephon.cli.common import (
    BackendOption,
    CacheOption,
    ExecutorOption,
    Exit,
    JsonOption,
    LateProgress,
    PrefetchOption,
    RecipeArgument,
    SetOption,
    Source,
    WorkersOption,
    parse_range,
    write,
    write_json,
)
from zephon.errors import StateError, explain
from zephon.loader import Loader
from zephon.opened import Opened
from zephon.options import LoaderOptions
from zephon.runfolder import read_batches

DIGEST_CHARACTERS = 64


StepsOption = Annotated[
    str, typer.Option("--steps", metavar="A:B", help="Steps to print, half-open; B alone is 0:B.")
]
TrainerStepsOption = Annotated[
    str, typer.Option("--trainer-steps", metavar="A:B", help="The same, counted from 1 as trainers log them.")
]
DpOption = Annotated[int, typer.Option("--dp", min=1, help="Run all ranks of this many, and merge them.")]
MicroBatchOption = Annotated[int | None, typer.Option(min=1, help="Rows of a batch of a rank.")]
CompareOption = Annotated[
    Path | None, typer.Option(help="Earlier output, or a run folder: exit with 1 if a step differs.")
]


def hash_steps(
    recipe: RecipeArgument,
    steps: StepsOption = "10",
    trainer_steps: TrainerStepsOption = "",
    dp: DpOption = 1,
    micro_batch_size: MicroBatchOption = None,
    workers: WorkersOption = None,
    executor: ExecutorOption = "threads",
    prefetch: PrefetchOption = 0,
    compare: CompareOption = None,
    settings: SetOption = None,
    cache: CacheOption = None,
    backend: BackendOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Print `STEP HEX` a line: the SHA-256 of all rows of each step, in (lane, row) order.

    Step s is what TorchTitan logs as s+1. The digests do not depend on --dp, workers or anything else that is
    only speed. What a step holds follows from the steps before it, so every step from 0 on is made, also
    where A > 0; only A to B-1 are printed.
    """
    wanted = parse_range(steps, option="--steps")
    if trainer_steps:
        wanted = parse_range(trainer_steps, option="--trainer-steps", first=1)
    source = Source(recipe=recipe, settings=settings, cache=cache, backend=backend)
    expected = None if compare is None else read_digests(compare, wanted.stop)
    options = LoaderOptions(
        dp_world_size=dp,
        micro_batch_size=micro_batch_size,
        workers=workers,
        executor=executor,
        prefetch=prefetch,
    )
    raise typer.Exit(print_steps(source, options, wanted, expected, as_json=as_json))


def print_steps(
    source: Source,
    options: LoaderOptions,
    wanted: range,
    expected: Mapping[int, str] | None,
    *,
    as_json: bool,
) -> Exit:
    """Prints the digests as they come, compares them with those expected, and returns the exit code."""
    found: dict[int, str] = {}
    with LateProgress() as progress:
        for step, value in run_steps(source, options, wanted, progress):
            found[step] = value
            if not as_json:
                write(f"{step} {value}")
    different = [] if expected is None else differing(found, expected)
    if as_json:
        write_json(_to_json(found, different, compared=expected is not None))
    elif different:
        typer.echo(f"{len(different)} of {len(found)} steps differ, first {different[0]}", err=True)
    return Exit.DIFFERENT if different else Exit.OK


def run_steps(
    source: Source, options: LoaderOptions, wanted: range, progress: LateProgress
) -> Iterator[tuple[int, str]]:
    """Yields (step, digest) for the steps wanted; the ranks run one after the other."""
    recipe = source.load()
    options.check(recipe.lanes, recipe.rows_per_step)
    world, total = options.dp_world_size, wanted.stop * options.dp_world_size
    with closing(source.open(progress)) as opened:
        rows: dict[int, list[RowDigest]] = {}
        for rank in range(world):
            ranked = replace(options, dp_rank=rank)
            for step, found in rank_steps(opened, ranked, wanted):
                rows.setdefault(step, []).extend(found)
                progress("steps", rank * wanted.stop + step + 1, total)
                if rank == world - 1 and step in wanted:
                    yield step, step_digest(rows.pop(step))


def rank_steps(
    opened: Opened, options: LoaderOptions, wanted: range
) -> Iterator[tuple[int, list[RowDigest]]]:
    """Yields (step, row digests of one rank); those of steps before the first wanted are left empty."""
    rows: list[RowDigest] = []
    rows_of_rank = opened.recipe.global_batch_size // options.dp_world_size
    made = 0
    with Loader(opened, options) as loader:
        for batch in loader:
            made += len(batch.rows)
            if batch.step in wanted:
                rows += digest(batch)
            if made % rows_of_rank == 0:
                yield batch.step, rows
                rows = []
                if batch.step + 1 == wanted.stop:
                    return


def read_digests(path: Path, num_steps: int) -> dict[int, str]:
    """Returns the digests of `STEP HEX` lines, or of a run folder's first steps, by step."""
    if path.is_dir():
        found = {step: step_digest(rows) for step, rows in read_batches(path, num_steps).items()}
    else:
        lines = [line.split() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
        found = {
            int(words[0]): words[1]
            for words in lines
            if len(words) == 2 and words[0].isdecimal() and len(words[1]) == DIGEST_CHARACTERS
        }
    if not found:
        raise StateError(
            explain(
                f"{str(path)!r} holds no digests",
                got="a folder without batch logs" if path.is_dir() else "no line `STEP HEX`",
                rule="--compare takes what `zephon hash` printed, or a run folder",
                cure="give the path of one of these",
            )
        )
    return found


def differing(found: Mapping[int, str], expected: Mapping[int, str]) -> list[int]:
    """Returns the steps of `found` that `expected` lacks or has otherwise."""
    return [step for step, value in found.items() if expected.get(step) != value]


def _to_json(found: Mapping[int, str], different: list[int], *, compared: bool) -> dict[str, object]:
    steps = [{"step": step, "trainer_step": step + 1, "digest": value} for step, value in found.items()]
    return {"steps": steps} | ({"different": different} if compared else {})
