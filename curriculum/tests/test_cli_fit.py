"""`zephon design` and `zephon fit` as the shell sees them: from a recipe to runs, losses and weights."""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from zephon import PARTS
from zephon.cli import Commands
from zephon.cli.common import Exit
from zephon_curriculum.chance import generator
from zephon_curriculum.cli.design import design
from zephon_curriculum.cli.fit import fit

RECIPE = """
global_batch_size = 8
total_steps = 10

[tokenize]
tokenizer = "letters"

[packing]
kind = "wrap"
seq_len = 128

[schedule]
kind = "constant"
weights = { web = 6, code = 3, math = 1 }

[[datasets]]
name = "web"
path = "data/web.jsonl"

[[datasets]]
name = "code"
path = "data/code.jsonl"

[[datasets]]
name = "math"
path = "data/math.jsonl"
"""


def zephon(*args: object) -> Any:
    """Returns the outcome of a command, with the errors and exit codes of the command line."""
    app = typer.Typer(cls=Commands, pretty_exceptions_enable=False)
    app.command("design")(design)
    app.command("fit")(fit)
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Returns a folder with a recipe, a design of 16 runs of it and their losses."""
    (tmp_path / "recipe.toml").write_text(RECIPE)
    done = zephon("design", tmp_path / "recipe.toml", "--runs", 16, "--out", tmp_path / "swarm")
    assert done.exit_code == Exit.OK, done.output
    with (tmp_path / "swarm" / "ratios.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    noise = generator("test_cli_fit").normal(0, 0.002, (16, 2))
    slopes = {"val": {"web": 0.1, "code": -0.4, "math": 0.2}, "aime": {"web": 0.4, "code": 0.2, "math": -0.5}}
    lines = ["run,val,aime"]
    for row, errors in zip(rows, noise, strict=True):
        slope = [sum(float(row[name]) * t for name, t in slopes[target].items()) for target in slopes]
        losses = 2 + np.exp(slope) + errors
        lines.append(f"{row['run']},{losses[0]:.5f},{losses[1]:.5f}")
    (tmp_path / "losses.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_a_design_is_written_and_summed_up(place: Path) -> None:
    done = zephon(
        "design", place / "recipe.toml", "--runs", 12, "--out", place / "other", "--kind", "sobol",
        "--max-share", "web=0.5", "--json",
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert done.exit_code == Exit.OK
    assert len(found["runs"]) == 12
    assert all(run["web"] <= PARTS // 2 for run in found["runs"].values())
    assert len(sorted((place / "other").iterdir())) == 13


def test_fit_shows_the_law_and_the_optimum_beside_the_baseline(place: Path) -> None:
    done = zephon(
        "fit", place / "swarm" / "ratios.csv", place / "losses.csv", "--baseline", "web=6,code=3,math=1",
        "--max-share", "code=0.4", "--bootstrap", 20, "--out", place / "weights.toml",
    )  # fmt: skip
    assert done.exit_code == Exit.OK, done.output
    for words in ("loglinear law of 16 runs; baseline: web=6,code=3,math=1", "rank correlation", "40.00%"):
        assert words in done.stdout
    assert "within the noise" not in done.stdout
    schedule = tomllib.loads((place / "weights.toml").read_text())["schedule"]
    assert sum(schedule["weights"].values()) == PARTS
    assert schedule["weights"]["code"] == pytest.approx(0.4 * PARTS, abs=1)
    assert schedule["weights"]["web"] == 0


def test_fit_prints_json_of_one_target(place: Path) -> None:
    ratios, losses = place / "swarm" / "ratios.csv", place / "losses.csv"
    args = ("fit", ratios, losses, "--target", "aime", "--law", "quadratic", "--bootstrap", 10, "--json")
    found = json.loads(zephon(*args).stdout)
    assert list(found["targets"]) == ["aime"]
    assert found["targets"]["aime"]["foretells"] is True
    assert found["ratios"]["math"] > 0.9
    assert found["gain_interval"][0] <= found["gain"]
    assert json.loads(zephon(*args).stdout) == found


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("--max-share", "web=0.1", "--max-share", "code=0.1,math=0.1"), Exit.USAGE, "--max-share must sum"),
        (("--max-share", "web=0.1", "--max-share", "code=0.1,math=0.1"), Exit.USAGE, "0.7 short"),
        (("--max-share", "web"), Exit.USAGE, "--max-share takes NAME=NUMBER"),
        (("--law", "cubic"), Exit.USAGE, "--law must be one of loglinear, quadratic"),
        (("--target", "mmlu"), Exit.USAGE, "--target names 'mmlu'"),
        (("--min-share", "pdf=0.1"), Exit.USAGE, "--min-share names 'pdf'"),
        (("--baseline", "web=1"), Exit.USAGE, "--baseline: no weight for dataset 'code'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(place: Path, args: tuple[str, ...], code: Exit, message: str) -> None:
    done = zephon("fit", place / "swarm" / "ratios.csv", place / "losses.csv", "--bootstrap", 0, *args)
    assert done.exit_code == code
    assert message in done.output


def test_a_missing_file_is_a_data_error(place: Path) -> None:
    assert zephon("fit", place / "none.csv", place / "losses.csv").exit_code == Exit.DATA
    done = zephon("design", place / "recipe.toml", "--runs", 3, "--out", place / "swarm")
    assert done.exit_code == Exit.RECIPE
    assert "must be empty or new" in done.output


def test_files_in_the_wrong_order_are_named_with_the_cure(place: Path) -> None:
    ratios, losses = place / "swarm" / "ratios.csv", place / "losses.csv"
    done = zephon("fit", losses, ratios)
    assert done.exit_code == Exit.RECIPE
    assert "losses.csv, line 2, run 'run_000': the ratios must sum to 1, got" in done.output
    assert "ratios.csv do: give the file of ratios first, then that of losses" in done.output
