"""What the steps hold: how near they are to a schedule's shares, and that 64 ranks make them as one does.

Upstream: `bench.py`. Downstream: `shares.py` runs the schedules, the command line makes the digests.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from children import Child
from recipes import CACHE, make_recipe
from report import Grid, Meter, Result, Target
from shares import PLANS, SWITCH, describe

POINTS = 0.5
VARIATION = 2
RANKS = (64, 1)
DIGEST_SHOWN = 24


def measure_share(quick: bool, meter: Meter) -> Result:
    """Returns how near the steps are to the shares of a schedule, at its start and after a switch."""
    meter.begin("share", 1 + len(PLANS))
    meter.tick("start")
    found = {}
    with Child({"load": "share"}) as child:
        for plan in PLANS:
            meter.tick(plan)
            found[plan] = describe(child.ask("tokens", plan)["tokens"], plan)
    rows = []
    for plan, phases in found.items():
        first, second = plan.split(" then ")
        for name, values in zip((f"{first} from step 0", f"{second} after {first}"), phases, strict=True):
            shown = [f"{values[key]:.3f}" for key in ("points", "first", "settled")]
            rows.append([name, *shown, f"{values['ratio']:.2f}"])
    columns = ("phase, short:long", "all steps, points off", "first step", "last 50 steps", "first / last 50")
    title = f"Shares, {SWITCH} steps a phase: total variation from the plan"
    grid = Grid(title=title, columns=columns, rows=rows)
    points = max(values["points"] for phases in found.values() for values in phases)
    targets = [_at_most(f"share of {SWITCH} steps, points off, worst phase", points, POINTS)]
    worst = max(phases[0]["ratio"] for phases in found.values())
    targets.append(_at_most("step 0: total variation / mean of settled steps, worst", worst, VARIATION))
    return Result(grids=[grid], targets=targets, data={"plans": found})


def _at_most(name: str, value: float, limit: float) -> Target:
    return Target(name=name, wanted=f"<= {limit}", measured=f"{value:.3f}", met=value <= limit)


def measure_elastic(quick: bool, meter: Meter) -> Result:
    """Returns whether 64 ranks and one give the same digests, by the command line."""
    meter.begin("elastic", len(RANKS))
    found: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="zephon-bench-") as folder:
        recipe = Path(folder) / "recipe.toml"
        recipe.write_text(make_recipe(max(RANKS), 2048).to_toml(), encoding="utf-8")
        for dp in RANKS:
            meter.tick(f"{dp} ranks")
            command = [sys.executable, "-m", "zephon", "hash", str(recipe), "--steps", "0:4"]
            command += ["--dp", str(dp), "--cache", str(CACHE)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found.append(done.stdout.splitlines())
    rows = []
    for many, one in zip(*found, strict=False):
        step, digest = many.split()
        rows.append([step, digest[:DIGEST_SHOWN], one.split()[1][:DIGEST_SHOWN]])
    columns = ("step", *(f"--dp {dp}, first {DIGEST_SHOWN} digits" for dp in RANKS))
    grid = Grid(title=f"Step digests of {max(RANKS)} lanes", columns=columns, rows=rows)
    same = found[0] == found[1] and bool(rows)
    target = Target(
        name=f"{max(RANKS)} lanes: digests with --dp {RANKS[0]} and --dp {RANKS[1]}",
        wanted="equal",
        measured="equal" if same else "different",
        met=same,
    )
    digests = {str(dp): lines for dp, lines in zip(RANKS, found, strict=True)}
    return Result(grids=[grid], targets=[target], data={"digests": digests})
