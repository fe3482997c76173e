"""`zephon verify`: a run's steps made here once more, and compared with the digests that it logged.

Upstream: the shell. Downstream: `zephon.verify`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from zephon import plugins
from zephon.batchlog import ALL_STEPS, LogFile, find_log_files, no_batches
from zephon.changes import Change, compare_descriptions
from zephon.cli.common import (
    BackendOption,
    CacheOption,
    ExecutorOption,
    JsonOption,
    MicroBatchOption,
    PrefetchOption,
    SetOption,
    Source,
    WorkersOption,
    parse_range,
)
from zephon.cli.exits import Exit
from zephon.cli.output import LateProgress, write, write_json
from zephon.continuing import accepting_changes
from zephon.errors import CheckError, PluginError
from zephon.logged import Difference
from zephon.opened import open_recipe
from zephon.options import LoaderOptions
from zephon.recipe import Recipe, hash_json
from zephon.runfolder import LOCK, NO_TOML, RECIPE, read_lock, read_table
from zephon.state import known_lock
from zephon.verify import Outcome, Plan, replay_run, verify_run

ROLE = "run folder"
LOG = "curriculum"
"""The folder of the log that a run follows; a plugin of the role `updates` reads it."""

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="The run folder: what the run had as `run_folder`.")
]
RecipeOption = Annotated[
    str,
    typer.Option("--recipe", metavar="RECIPE", help="The recipe; default that of the run folder."),
]
StepsOption = Annotated[
    str, typer.Option("--steps", metavar="A:B", help="Steps to compare, half-open; default all logged.")
]
DpOption = Annotated[int | None, typer.Option("--dp", min=1, help="Ranks to make the steps on; default 1.")]
ReplayOption = Annotated[
    bool, typer.Option("--replay", help="Go through the run as it went: each attempt on its own ranks.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Go on after the first difference.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked for."""

    run: Path
    source: Source
    wanted: range
    options: LoaderOptions
    is_replay: bool
    every: bool
    as_json: bool


def verify(
    run: RunArgument,
    recipe: RecipeOption = "",
    replay: ReplayOption = False,
    steps: StepsOption = "",
    every: AllOption = False,
    dp: DpOption = None,
    micro_batch_size: MicroBatchOption = None,
    workers: WorkersOption = None,
    executor: ExecutorOption = "threads",
    prefetch: PrefetchOption = 0,
    settings: SetOption = None,
    cache: CacheOption = None,
    backend: BackendOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Make a run's steps once more on this machine, and name the first row that is not what it logged.

    Exit 0: all rows that the log has are equal; 1: one differs. --dp, workers and the rest are only speed and
    need not be those of the run. Every step from 0 on is made, also where A > 0. With --replay each attempt
    is made on the number of ranks that it had, from the states that the attempts before led to. What has
    changed in data, tokenizer or plugins since the run is said first. A run whose curriculum log is broken
    is refused.
    """
    if replay and not dp == micro_batch_size is None:
        raise typer.BadParameter(
            "--replay takes the ranks and batches of the run; leave --dp and --micro-batch-size out"
        )
    options = LoaderOptions(
        dp_world_size=dp or 1,
        micro_batch_size=micro_batch_size,
        workers=workers,
        executor=executor,
        prefetch=prefetch,
    )
    request = Request(
        run=run,
        source=Source(recipe=recipe or str(run), settings=settings, cache=cache, backend=backend),
        wanted=parse_range(steps, option="--steps") if steps else ALL_STEPS,
        options=options,
        is_replay=replay,
        every=every,
        as_json=as_json,
    )
    raise typer.Exit(run_request(request))


def run_request(request: Request) -> Exit:
    """Compares, prints what was found, and returns the exit code."""
    files = find_log_files(request.run, ROLE, request.wanted)
    recipe, lock, source = load_recipe(request), read_lock(request.run), request.source
    unread = check_log(request.run, recipe)
    with (
        LateProgress() as progress,
        closing(
            open_recipe(recipe, cache=source.cache, backend=source.backend, report=progress, lock=lock)
        ) as opened,
    ):
        plan = Plan(
            folder=request.run,
            opened=opened,
            files=files,
            steps=request.wanted,
            options=request.options,
            every=request.every,
            own_schedule=has_own_schedule(request),
            report=progress,
        )
        changes, notes = compare_folder(plan, lock)
        notes += unread
        if not request.as_json:
            for line in (*map(str, changes), *notes):
                typer.echo(f"warning: {line}", err=True)
        outcome = replay_run(plan) if request.is_replay else verify_run(plan)
    if not outcome.num_rows and outcome.ends is None:
        raise no_batches(request.run, ROLE, request.wanted)
    if request.as_json:
        changed = {"changed": [asdict(change) for change in changes], "notes": notes}
        write_json(to_json(request, plan, outcome) | changed)
    else:
        for line in describe(plan, outcome):
            write(line)
    return Exit.OK if outcome.is_equal else Exit.DIFFERENT


def has_own_schedule(request: Request) -> bool:
    """Returns whether the schedule is given here, so that it counts in place of the one logged."""
    settings = request.source.settings or ()
    return request.source.recipe != str(request.run) or any(name.startswith("schedule") for name in settings)


def load_recipe(request: Request) -> Recipe:
    """Returns the recipe to make the steps with."""
    path = request.run / RECIPE
    if request.source.recipe == str(request.run):
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if not text or text.startswith(NO_TOML):
            raise CheckError.explained(
                f"run folder {str(request.run)!r} holds no recipe that can be read",
                got=text.removeprefix("# ").strip() or f"no {RECIPE}",
                rule="the steps are made from the recipe of the run",
                cure="give it: --recipe RECIPE, a TOML file or module:function",
            )
    return accepting_changes(request.source.load())


def check_log(run: Path, recipe: Recipe) -> list[str]:
    """Returns what is to say of a curriculum log that nobody here can read; refuses one that is broken."""
    if not (run / LOG).is_dir():
        return []
    try:
        recipe_of_run = plugins.find("updates", "recipe")
    except (LookupError, PluginError):
        return [
            "the chain of the curriculum log is not checked, which takes zephon-curriculum: "
            f"`zephon log {run}` checks it"
        ]
    recipe_of_run(recipe, run)
    return []


def compare_folder(plan: Plan, lock: dict[str, Any] | None) -> tuple[list[Change], list[str]]:
    """Returns (what the run folder has otherwise than what is open here, what could not be compared)."""
    changes, _ = compare_descriptions(plan.folder, plan.opened)
    notes = [] if lock is not None else [f"the run folder has no {LOCK}: data and tokenizer are not compared"]
    if lock is not None:
        run = replace(plan.opened, lock=lock)  # an attempt may have had fewer datasets, before one was added
        ours = {hash_json(known_lock(run, 1 + i)) for i in range(len(run.recipe.datasets))}
        others = sorted({file.attempt for file in plan.files if file.lock not in ("", *ours)})
        if others:
            notes.append(
                f"attempt{_plural(others)} {_ranges(others)} had other data, tokenizer or plugins than "
                f"{LOCK} has"
            )
    if plan.own_schedule:
        table = read_table(plan.folder, plan.files[-1].schedule)
        step = None if table is None else plan.opened.table.first_difference(table, plan.steps.stop)
        if step is not None:
            notes.append(
                f"the schedule differs from the run's from step {step} on; that of the recipe counts"
            )
    return changes, notes


# What is printed --------------------------------------------------------------------------------------------


def describe(plan: Plan, outcome: Outcome) -> Iterator[str]:
    """Yields the lines of the result: the verdict, then what was compared and what was not."""
    attempts = sorted({file.attempt for file in plan.files})
    summary = (
        f"{outcome.num_rows:,} rows of {len(outcome.steps):,} steps compared, as {len(attempts):,} "
        f"attempt{_plural(attempts)} logged them"
    )
    yield f"{'equal' if outcome.is_equal else 'different'}: {summary}"
    if outcome.first is not None:
        yield from _describe_first(outcome.first, outcome)
    if outcome.ends is not None:
        yield f"  the data end here before step {outcome.ends}; the run went on"
    for (attempt, step), count in sorted(outcome.different.items()) if plan.every else ():
        yield f"  attempt {attempt}, step {step}: {count:,} row{'s differ' if count > 1 else ' differs'}"
    for tokens in outcome.tokens if plan.every else outcome.tokens[:1]:
        for name, logged in tokens.logged.items():
            if logged != tokens.found[name]:
                found = tokens.found[name]
                yield f"  step {tokens.step}, tokens of {name}: logged {logged:,}, found {found:,}"
    if outcome.lacking:
        count, lacking = outcome.lacking.total(), sorted(outcome.lacking)
        yield f"  not in the log: {count:,} rows of step{_plural(lacking)} {_ranges(lacking)}"
    if dropped := outcome.dropped:
        yield (
            f"  not compared: step{_plural(dropped)} {_ranges(dropped)}, of older attempts only, since the "
            f"newest went back; --replay compares all"
        )
    for attempt, world, ranks in missing_ranks(plan.files):
        yield f"  no log of attempt {attempt}: rank{_plural(ranks)} {_ranges(ranks)} of {world}"
    for file, begin, end in outcome.remade:
        yield f"  no log led to {file.label}: steps {begin} to {end - 1} of its lanes were made, not compared"


def _describe_first(first: Difference, outcome: Outcome) -> Iterator[str]:
    count = outcome.different[first.file.attempt, first.step]
    rows = "1 row of the step differs" if count == 1 else f"{count:,} rows of the step differ"
    yield (
        f"  first at step {first.step} (a trainer that counts from 1 logs it as {first.step + 1}), lane "
        f"{first.lane}, row {first.row}; {rows}"
    )
    yield f"  logged: {first.logged} ({first.file.label}, {first.file.path.name})"
    yield f"  found:  {first.found}"


def missing_ranks(files: Sequence[LogFile]) -> list[tuple[int, int, list[int]]]:
    """Returns (attempt, ranks it had, those of them without a log)."""
    found = []
    keys = [(file.attempt, file.ranks.dp_world_size, file.ranks.dp_rank) for file in files]
    for (attempt, world), members in groupby(sorted(keys), key=lambda key: key[:2]):
        there = {rank for _, _, rank in members}
        if len(there) < world:
            found.append((attempt, world, [rank for rank in range(world) if rank not in there]))
    return found


def _plural(values: Sequence[int]) -> str:
    return "s" if len(values) > 1 else ""


def _ranges(values: Sequence[int]) -> str:
    """Returns ascending numbers as `1, 3 to 7`."""
    groups = groupby(enumerate(values), key=lambda pair: pair[1] - pair[0])
    runs = [[value for _, value in members] for _, members in groups]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def to_json(request: Request, plan: Plan, outcome: Outcome) -> dict[str, Any]:
    """Returns the result as JSON data."""
    first = outcome.first
    return {
        "run": str(request.run),
        "equal": outcome.is_equal,
        "replay": request.is_replay,
        "attempts": len({file.attempt for file in plan.files}),
        "num_rows": outcome.num_rows,
        "num_steps": len(outcome.steps),
        "first_difference": None if first is None else _first_json(first),
        "data_end_before_step": outcome.ends,
        "different": [
            {"attempt": attempt, "step": step, "trainer_step": step + 1, "num_rows": count}
            for (attempt, step), count in sorted(outcome.different.items())
        ],
        "tokens": [asdict(each) for each in outcome.tokens],
        "missing_rows": [{"step": step, "num_rows": n} for step, n in sorted(outcome.lacking.items())],
        "steps_not_compared": [outcome.dropped.start, outcome.dropped.stop] if outcome.dropped else None,
        "missing_ranks": [
            {"attempt": attempt, "dp_world_size": world, "ranks": ranks}
            for attempt, world, ranks in missing_ranks(plan.files)
        ],
        "remade": [
            {"attempt": file.attempt, "rank": file.ranks.dp_rank, "begin": begin, "end": end}
            for file, begin, end in outcome.remade
        ],
    }


def _first_json(first: Difference) -> dict[str, Any]:
    return {
        "step": first.step,
        "trainer_step": first.step + 1,
        "lane": first.lane,
        "row": first.row,
        "logged": first.logged,
        "found": first.found,
        "attempt": first.file.attempt,
        "rank": first.file.ranks.dp_rank,
        "dp_world_size": first.file.ranks.dp_world_size,
        "file": str(first.file.path),
    }
