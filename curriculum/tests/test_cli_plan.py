"""`zephon plan`: tables, JSON, bounds, pictures, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.helpers import write_tokenizer
from zephon import ScheduleContext, compile_schedule
from zephon_curriculum.cli.plan import plan
from zephon_curriculum.schedules.csv_table import table

pytestmark = pytest.mark.usefixtures("probed_once")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a recipe of two datasets, one of which is read at most twice."""
    folder = tmp_path_factory.mktemp("plan")
    write_tokenizer(folder / "tokenizer")
    for name, count, letters in (("web", 300, 60), ("code", 40, 25)):
        lines = [json.dumps({"text": f"{i:03} " * (letters // 4 + i % 3)}) for i in range(count)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "recipe.toml").write_text(
        "seed = 1\nglobal_batch_size = 4\ntotal_steps = 60\n"
        '[tokenize]\ntokenizer = "tokenizer"\neos = true\n'
        '[packing]\nkind = "wrap"\nseq_len = 64\n'
        '[schedule]\nkind = "stages"\nstages = [\n'
        "{ step = 0, weights = { web = 9, code = 1 } },\n{ step = 30, weights = { web = 7, code = 3 } },\n]\n"
        '[[datasets]]\nname = "web"\npath = "web.jsonl"\n'
        '[[datasets]]\nname = "code"\npath = "code.jsonl"\nmax_epochs = 2\n'
    )
    return folder / "recipe.toml"


def run(recipe: Path, *options: str) -> Any:
    app = typer.Typer()
    app.command("plan")(plan)
    return CliRunner().invoke(app, [str(recipe), "--cache", str(recipe.parent / "cache"), *options])


def test_the_plan_is_measured_and_drawn(recipe: Path) -> None:
    found = run(recipe, "--rate", "1000")
    assert found.exit_code == 0, found.output
    assert "60 steps of 256 tokens" not in found.stdout.splitlines()[0]  # code ends before
    assert "the data end after" in found.stdout
    assert "code: max_epochs = 2 cannot be met" in found.stdout
    assert "first lane ends" in found.stdout


def test_json_holds_exact_ends_beside_the_planned(recipe: Path) -> None:
    found = run(recipe, "--json", "--exact")
    assert found.exit_code == 0, found.output
    data = json.loads(found.stdout)
    assert data["asked_steps"] == 60
    after = data["ends_after"]
    assert after["low"] <= data["exact"]["num_steps"] <= after["high"]
    assert data["exact"]["is_over"] is True
    unmeasured = json.loads(run(recipe, "--json", "--exact", "--no-estimate", "--steps", "60").stdout)
    assert unmeasured["exact"] == data["exact"]
    assert [dataset["epochs"] for dataset in unmeasured["datasets"]] == [None, None]


def test_bounds_make_another_schedule_that_a_recipe_can_take(recipe: Path) -> None:
    files = [recipe.parent / name for name in ("capped.csv", "plan.svg", "plan.png")]
    pictures = ("--svg", str(files[1]), "--png", str(files[2]))
    found = run(recipe, "--cap", "code=1", "--csv", str(files[0]), *pictures)
    assert found.exit_code == 0, found.output
    assert "the recipe's schedule and the one within the bounds" in found.stdout
    assert "60 steps of 256 tokens" in found.stdout
    assert all(path.stat().st_size > 20 for path in files)
    text = files[0].read_text()
    context = ScheduleContext(names=("web", "code"), total_steps=60, tokens_per_step=256)
    taken = compile_schedule(table({"csv": text}, context), context)
    lines = [",".join(map(str, (s, *e))) for s, e in zip(taken.starts, taken.shares, strict=True)]
    assert lines == text.splitlines()[1:]


def test_epochs_are_a_budget(recipe: Path) -> None:
    data = json.loads(run(recipe, "--epochs", "0.5", "--json").stdout)
    sizes = [dataset["size_tokens"]["value"] for dataset in data["datasets"]]
    assert data["asked_steps"] == -(-int(0.5 * sum(sizes)) // 256)


def test_nothing_is_read_where_nothing_shall_be(recipe: Path) -> None:
    data = json.loads(run(recipe, "--no-estimate", "--steps", "7", "--json").stdout)
    assert [dataset["epochs"] for dataset in data["datasets"]] == [None, None]
    assert data["num_steps"] == 7


@pytest.mark.parametrize(
    "options",
    [
        ["--cap", "code"],
        ["--epochs", "x"],
        ["--epochs", "pdf=2"],
        ["--epochs", "2", "--steps", "3"],
        ["--cap", "code=1", "--cap", "code=2"],
        ["--cap", "pdf=1"],
        ["--floor", "code=3", "--cap", "code=2"],
        ["--rate", "inf"],
        ["--cap", "code=-1"],
        ["--png", "plan.pdf"],
    ],
)
def test_wrong_options_are_usage_errors(recipe: Path, options: list[str]) -> None:
    assert run(recipe, *options).exit_code == 2


def test_bounds_without_sizes_name_the_option_that_gives_them(recipe: Path) -> None:
    found = run(recipe, "--cap", "code=1", "--no-estimate")
    assert found.exit_code == 2
    words = found.output.replace("\u2502", "").split()
    assert "--estimates must have the tokens of 'code'" in " ".join(words)
