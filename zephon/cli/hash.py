"""`zephon hash`: one digest for every step, to be compared between machines, sizes and versions.

Upstream: the shell. Downstream: `zephon.loader` and `zephon.batch`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from zephon.batch import RowDigest, digest, step_digest
from zephon.batchlog import read_batches
from zephon.cli.common import (
    BackendOption,
    CacheOption,
    ExecutorOption,
    JsonOption,
    MicroBatchOption,
    PrefetchOption,
    RecipeArgument,
    SetOption,
    Source,
    WorkersOption,
    as_usage,
    parse_range,
    past_run,
)
from zephon.cli.exits import Exit
from zephon.cli.output import LateProgress, write, write_json
from zephon.dataset import PAD
from zephon.errors import StateError
from zephon.loader import Loader
from zephon.opened import Opened
from zephon.options import LoaderOptions
from zephon.recipe import Recipe

DIGEST_CHARACTERS = 64

StepsOption = Annotated[
    str,
    typer.Option(
        "--steps", metavar="A:B", help="Steps to print, half-open; B alone is 0:B.", show_default="10"
    ),
]
TrainerStepsOption = Annotated[
    str, typer.Option("--trainer-steps", metavar="A:B", help="The same, counted from 1 as trainers log them.")
]
DpOption = Annotated[int, typer.Option("--dp", min=1, help="Run all ranks of this many, and merge them.")]
CompareOption = Annotated[
    Path | None,
    typer.Option(help="Earlier output, or a run folder: exit with 1 if a step differs or is not there."),
]


def hash_steps(
    recipe: RecipeArgument,
    steps: StepsOption = "",
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
    if steps and trainer_steps:
        raise typer.BadParameter("give --steps, from 0, or --trainer-steps, from 1; not both")
    if trainer_steps:
        wanted = parse_range(trainer_steps, option="--trainer-steps", first=1)
    else:
        wanted = parse_range(steps or "10", option="--steps")
    source = Source(recipe=recipe, settings=settings, cache=cache, backend=backend)
    options = LoaderOptions(
        dp_world_size=dp,
        micro_batch_size=micro_batch_size,
        workers=workers,
        executor=executor,
        prefetch=prefetch,
    )
    raise typer.Exit(print_steps(source, options, wanted, compare, as_json=as_json))


def print_steps(
    source: Source,
    options: LoaderOptions,
    wanted: range,
    compare: Path | None,
    *,
    as_json: bool,
) -> Exit:
    """Prints the digests as they come, compares them with those of a path, and returns the exit code."""
    expected = {} if compare is None else read_digests(compare, wanted.stop)
    found: dict[int, str] = {}
    with LateProgress() as progress:
        for step, value in run_steps(source, options, wanted, progress):
            found[step] = value
            if not as_json:
                write(f"{step} {value}")
    if len(found) < len(wanted):
        typer.echo(f"the data end: {len(found)} of the {len(wanted)} steps asked for are there", err=True)
    different, missing = ([], []) if compare is None else differing(found, expected)
    if as_json:
        compared = {} if compare is None else {"different": different, "missing": missing}
        steps = [{"step": s, "trainer_step": s + 1, "digest": value} for s, value in found.items()]
        write_json({"steps": steps} | compared)
    elif compare is not None:
        typer.echo(verdict(len(found), different, missing, compare), err=True)
    return Exit.DIFFERENT if different or missing else Exit.OK


def run_steps(
    source: Source, options: LoaderOptions, wanted: range, progress: LateProgress
) -> Iterator[tuple[int, str]]:
    """Yields (step, digest) for the steps wanted; the ranks run one after the other."""
    recipe = source.load()
    with as_usage(dp_world_size="--dp", micro_batch_size="--micro-batch-size"):
        options.check(recipe.lanes, recipe.rows_per_step)
    if note := past_run(recipe.total_steps, wanted.stop):
        typer.echo(note, err=True)
    world = options.dp_world_size
    with closing(source.open(progress)) as opened:
        if opened.recipe.is_finite and world > 1:
            end = end_of_run(opened, options, wanted, progress)
            wanted = range(min(wanted.start, end), end)
        rows: dict[int, list[RowDigest]] = {}
        for rank in range(world if wanted else 0):
            ranked = replace(options, dp_rank=rank)
            if world > 1:
                ranked = replace(ranked, any_rank=_ends_at(opened.recipe, wanted.stop))
            for step, found in rank_steps(opened, ranked, wanted):
                rows.setdefault(step, []).extend(found)
                progress("steps", rank * wanted.stop + step + 1, wanted.stop * world)
                if rank == world - 1 and step in wanted:
                    yield step, step_digest(rows.pop(step))


def end_of_run(opened: Opened, options: LoaderOptions, wanted: range, progress: LateProgress) -> int:
    """Returns the step before which the ranks end together, at most where the steps wanted end."""
    ends = []
    for rank in range(options.dp_world_size):
        alone = replace(options, dp_rank=rank, any_rank=bool)
        steps = rank_steps(opened, alone, range(wanted.stop, wanted.stop))
        end = 0
        for end, _ in enumerate(steps, start=1):
            progress("find the end", rank * wanted.stop + end, wanted.stop * options.dp_world_size)
        ends.append(end)
    return max(ends) if opened.recipe.when_exhausted == PAD else min(ends)


def _ends_at(recipe: Recipe, end: int) -> Callable[[bool], bool]:
    """Returns the `any_rank` of a run that is known to end before step `end`."""
    steps = itertools.count()
    if recipe.when_exhausted == PAD:
        return lambda _: next(steps) < end
    return lambda _: next(steps) >= end


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
    got, found = "no line `STEP HEX`", {}
    if path.is_dir():
        got = "a folder without batch logs"
        found = {step: step_digest(rows) for step, rows in read_batches(path, num_steps).items()}
    else:
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            got, lines = error.strerror or type(error).__name__, []
        for words in map(str.split, lines):
            if len(words) == 2 and words[0].isdecimal() and len(words[1]) == DIGEST_CHARACTERS:
                found[int(words[0])] = words[1]
    if not found:
        raise StateError.explained(
            f"{str(path)!r} holds no digests",
            got=got,
            rule="--compare takes what `zephon hash` printed, or a run folder",
            cure="give the path of one of these",
        )
    return found


def differing(found: Mapping[int, str], expected: Mapping[int, str]) -> tuple[list[int], list[int]]:
    """Returns (steps of `found` that `expected` has otherwise, steps that it lacks)."""
    different = [step for step, value in found.items() if expected.get(step, value) != value]
    return different, [step for step in found if step not in expected]


def verdict(num_steps: int, different: Sequence[int], missing: Sequence[int], path: Path) -> str:
    """Returns in one line how `num_steps` steps compare with those of `path`."""
    compared = num_steps - len(missing)
    if not different and not missing:
        return f"all {num_steps} steps equal" if num_steps > 1 else "the step is equal"
    first = f", first {different[0]}" if different else ""
    if not missing:
        return f"{len(different)} of {compared} steps differ{first}"
    absent = f"{len(missing)} step{'s are' if len(missing) > 1 else ' is'} not in {str(path)!r}"
    return f"{absent} (first {missing[0]}), {len(different)} of {compared} compared differ{first}"
