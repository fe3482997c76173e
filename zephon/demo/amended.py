"""The demo's run whose mixture another process changes while it runs, where zephon-curriculum is installed.

Upstream: the demo's recipe. Downstream: `demo/__init__.py`. The run goes on in this process; the proposal is
written by `zephon amend` in another; at the end all steps are made again on other ranks and compared.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from zephon import plugins
from zephon.batchlog import find_log_files
from zephon.errors import ZephonError
from zephon.loader import Loader
from zephon.logged import newest_table
from zephon.opened import open_recipe
from zephon.options import LoaderOptions
from zephon.readers import Report
from zephon.recipe import Recipe
from zephon.schedule import ScheduleTable
from zephon.shares import PARTS
from zephon.verify import Plan, verify_run

LOG = "curriculum"
"""The folder of the log in a run folder."""
WHAT = "amended while it runs"
WORLD = 4
"""Ranks on which the steps are made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AmendedPlan:
    """When what happens."""

    proposed_at: int
    at_step: int
    num_steps: int
    points: str = "prose=+20"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amended:
    """What came of it."""

    plan: AmendedPlan
    before: dict[str, float]
    after: dict[str, float]
    is_equal: bool
    """Whether the steps made again are those delivered, and the shares changed where it was asked for."""

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {self.before[name]:.0%} to {self.after[name]:.0%}" for name in self.before)
        verdict = "all rows equal" if self.is_equal else "rows DIFFER"
        return (
            f"amended: `zephon amend --points {self.plan.points}`, run by another process at step "
            f"{self.plan.proposed_at}, changed the mixture at step {self.plan.at_step}: {shown}; "
            f"made again on {WORLD} ranks: {verdict}"
        )


def run_amended(
    recipe: Path, run_folder: Path, cache: Path, plan: AmendedPlan, bar: Report
) -> Amended | None:
    """Returns what came of the run; None where no plugin brings updates."""
    try:
        open_updates = plugins.find("updates", "log")
    except LookupError:
        return None
    with closing(open_recipe(Recipe.from_toml(recipe), cache=cache)) as opened:
        options = LoaderOptions(run_folder=run_folder, updates=open_updates(opened, run_folder / LOG))
        with Loader(opened, options) as loader:
            for step in range(plan.num_steps):
                if step == plan.proposed_at:
                    _propose(run_folder, plan)
                next(loader)
                bar(WHAT, step + 1, 2 * plan.num_steps)
        table = newest_table(run_folder) or opened.table
        again = Plan(
            folder=run_folder,
            opened=opened,
            files=find_log_files(run_folder, "run folder"),
            steps=range(plan.num_steps),
            options=LoaderOptions(dp_world_size=WORLD),
        )
        outcome = verify_run(again)
        bar(WHAT, 2 * plan.num_steps, 2 * plan.num_steps)
        before, after = _shares(opened.table, plan.at_step), _shares(table, plan.at_step)
        is_new = opened.table.first_difference(table, plan.num_steps) == plan.at_step
        return Amended(
            plan=plan,
            before=before,
            after=after,
            is_equal=outcome.is_equal and outcome.num_rows > 0 and is_new,
        )


def _shares(table: ScheduleTable, step: int) -> dict[str, float]:
    shares = (share / PARTS for share in table.at(step))
    return dict(zip(table.names, shares, strict=True))


def _propose(run_folder: Path, plan: AmendedPlan) -> None:
    command = [sys.executable, "-m", "zephon", "amend", str(run_folder), "--at-step", str(plan.at_step)]
    command += ["--points", plan.points, "--reason", "the demo shows it", "--author", "zephon demo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise ZephonError(f"zephon amend ended with {done.returncode}:\n{done.stdout}{done.stderr}")
