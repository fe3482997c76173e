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
    assert unmeasured == data  # what is counted needs no estimate


def test_an_exact_plan_estimates_nothing(recipe: Path) -> None:
    data = json.loads(run(recipe, "--json", "--exact").stdout)
    exact = data["exact"]
    assert (data["num_steps"], data["ends_after"]["value"]) == (exact["num_steps"], exact["num_steps"])
    assert data["phases"][-1]["stop"] == exact["num_steps"]
    (end,) = exact["datasets"]
    code = data["datasets"][1]
    assert code["unread_tokens"]["value"] == end["unread_tokens"]
    assert code["drawn_tokens"] == end["drawn_tokens"]
    assert code["drawn_tokens"] + end["unread_tokens"] == 2 * code["size_tokens"]["value"]
    for dataset in data["datasets"]:
        for name in ("size_tokens", "epochs", "trained_tokens", "first_repeat", "unread_tokens"):
            quantity = dataset[name]
            assert quantity is None or quantity["low"] == quantity["value"] == quantity["high"], name
    assert "about" not in str(data["warnings"])
    endless = run(recipe, "--exact", "--set", "datasets.code.max_epochs=99")
    assert endless.exit_code == 0, endless.output
    assert " to " not in endless.stdout
    assert "code does not end in 60 steps" in endless.stdout


def test_estimates_beside_an_exact_plan_are_refused(recipe: Path) -> None:
    found = run(recipe, "--exact", "--estimates", str(recipe.with_name("estimates.json")))
    assert found.exit_code == 2
    assert "--exact counts every document" in found.output


def test_an_exact_plan_says_why_a_dataset_does_not_end(recipe: Path) -> None:
    shown = run(recipe, "--exact").stdout
    data = json.loads(run(recipe, "--exact", "--json").stdout)
    (end,) = data["exact"]["datasets"]
    whose = "code" if end["first"] is None else "the last lane of code"
    assert end["last"] is None
    assert f"the run stops before the step in which {whose} would end" in shown
    assert f"the data end after {data['num_steps']} steps, of 60 asked for: code has max_epochs = 2" in shown


def test_bounds_hold_in_an_exact_plan(recipe: Path) -> None:
    data = json.loads(run(recipe, "--exact", "--cap", "code=1", "--json").stdout)
    assert data["num_steps"] == data["asked_steps"] == 60
    assert data["datasets"][1]["epochs"]["value"] == pytest.approx(1, abs=0.1)
    without = json.loads(run(recipe, "--exact", "--json").stdout)
    code, drawn = (
        data["comparison"]["datasets"][1],
        [d["datasets"][1]["drawn_tokens"] for d in (without, data)],
    )
    assert [code["before"]["tokens"], code["after"]["tokens"]] == drawn
    assert data["comparison"]["num_steps"] == [without["num_steps"], 60]


def test_steps_past_the_run_are_said(recipe: Path) -> None:
    ramp = recipe.with_name("linear.toml")
    before, _, after = recipe.read_text().partition("[schedule]")
    ramp.write_text(
        f'{before}[schedule]\nkind = "linear"\nfrom = {{ web = 1, code = 0 }}\nto = {{ web = 1, code = 1 }}\n'
        f'begin = "50%"\n[[datasets]]{after.partition("[[datasets]]")[2]}'
    )
    for option in (["--steps", "90"], ["--epochs", "1.5"]):
        steps = json.loads(run(recipe, *option, "--json").stdout)["asked_steps"]
        assert steps > 60
        text = run(recipe, *option).stdout
        assert "steps from 60 on are past the recipe's `total_steps` of 60\n" in text  # its stages are steps
        text = run(ramp, *option).stdout
        assert "of 60; positions that are parts of the run are parts of that" in text
        assert f"--set total_steps={steps} stretches them" in text
    assert "past the recipe" not in run(ramp, "--steps", "60").stdout
    text = run(ramp, "--steps", "9000000").stdout
    assert "of 60\n" in text  # the ramp of so many steps is one that no table holds


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
