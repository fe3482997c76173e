"""Previews and explanations of runs on disk, by Python and by the shell: snapshots, amendments, commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.helpers import words, write_tokenizer
from zephon import Recipe, StateError, digest, find_snapshot, open_recipe, write_state_file
from zephon_curriculum.cli.explain import explain as explain_command
from zephon_curriculum.cli.preview import preview as preview_command
from zephon_curriculum.explain import entries_in_force, explain
from zephon_curriculum.log.entries import Proposal
from zephon_curriculum.log.folder import CurriculumLog
from zephon_curriculum.log.follow import open_updates
from zephon_curriculum.log.ops import Weights, numbers
from zephon_curriculum.opening import Opening
from zephon_curriculum.preview import preview, preview_cost
from zephon_curriculum.preview_estimated import preview_estimated
from zephon_curriculum.run import Run

pytestmark = pytest.mark.usefixtures("probed_once")

RECIPE = """
seed = 7
global_batch_size = 8
lanes = 4

[tokenize]
tokenizer = "letters"
eos = true

[packing]
seq_len = 32

[schedule]
kind = "constant"
weights = { web = 3, code = 1 }

[[datasets]]
name = "web"
path = "data/web.jsonl"

[[datasets]]
name = "code"
path = "data/code.jsonl"
"""
Rows = dict[tuple[int, int], str]
ENDS = ("--set", "datasets.web.max_epochs=1")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    write_tokenizer(folder / "letters")
    (folder / "data").mkdir()
    for name, texts in (("web", words("web", 300, (1, 3, 20))), ("code", words("code", 90, (2, 5)))):
        lines = [json.dumps({"text": text}) + "\n" for text in texts]
        (folder / "data" / f"{name}.jsonl").write_text("".join(lines))
    (folder / "recipe.toml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def amended(place: Path) -> Rows:
    """Makes the run `run` of 12 steps, amended at step 6, with snapshots every 5; returns its digests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zephon.replay.SNAPSHOT_STEPS", 5)
        recipe = Recipe.from_toml(place / "recipe.toml")
        opened = open_recipe(recipe, cache=place / "cache", backend="tokenizers")
        updates = open_updates(opened, place / "run" / "curriculum", lead_steps=1)
        ops = (Weights(numbers({"web": 1, "code": 9}, "weights")),)
        change = Proposal(at_step=6, until=9, ops=ops, reason="more code", author="ann")
        CurriculumLog(place / "run" / "curriculum").append(change, 1, updates.head)
        rows: Rows = {}
        with recipe.loader(
            executor="inline", run_folder=place / "run", updates=updates, cache=place / "cache",
            backend="tokenizers",
        ) as loader:  # fmt: skip
            for batch in loader:
                rows |= {(lane, row): value for lane, row, value in digest(batch)}
                if batch.step == 11:
                    break
        opened.close()
    return rows


@pytest.fixture
def run(place: Path, amended: Rows, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns what calls a command in `place` and gives exit code, output and errors."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("ZEPHON_CACHE", str(place / "cache"))
    app = typer.Typer()
    app.command()(preview_command)
    app.command()(explain_command)

    def call(*args: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, [*args, "--backend", "tokenizers"])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    return call


def test_a_run_is_previewed_with_its_amendments_from_its_snapshots(
    place: Path, amended: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEPHON_CACHE", str(place / "cache"))
    shown = preview(place / "run", range(6, 12), None)
    assert (shown.cost.begin, shown.cost.from_state) == (5, True)
    assert {(lane, row): value for lane, row, value in shown.digests()} == {
        at: value for at, value in amended.items() if at[1] >= 12
    }
    assert shown.shares().planned[:4, 1].tolist() == pytest.approx([0.9, 0.9, 0.9, 0.25], abs=1e-6)
    assert preview_cost(place / "run", [4], [1]).begin == 0
    plan = preview_estimated(place / "run", 12)
    assert plan.shares[[5, 6, 8, 9], 1].tolist() == pytest.approx([0.25, 0.9, 0.9, 0.25], abs=1e-6)


def test_the_entry_that_set_the_weights_is_named(
    place: Path, amended: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEPHON_CACHE", str(place / "cache"))
    assert [e.number for e in entries_in_force(place / "run", 5)] == [0]
    assert [e.number for e in entries_in_force(place / "run", 6)] == [1]
    assert [e.number for e in entries_in_force(place / "run", 9)] == [0]
    assert entries_in_force(place / "data", 5) == ()
    found = explain(place / "run", step=7, lane=2)
    assert (found.cost.begin, found.in_force_since) == (5, 6)
    assert [row.row.digest for row in found.rows] == [amended[2, 14], amended[2, 15]]


def test_a_recipe_is_previewed_as_its_file_is(place: Path, amended: Rows) -> None:
    how = Opening(cache=place / "cache", backend="tokenizers")
    recipe = Recipe.from_toml(place / "recipe.toml")
    shown = preview(recipe, range(2), [0, 2], how=how)
    assert shown.rows == preview(place / "recipe.toml", range(2), [0, 2], how=how).rows
    assert shown.rows == preview(Run(place / "run"), range(2), [0, 2], how=how).rows
    assert {(lane, row): value for lane, row, value in shown.digests()}.items() <= amended.items()
    with pytest.raises(StateError, match="the past cannot change"):  # the recipe knows of no amendment
        preview(recipe, [11], [0], place / "run", how=how)


def test_preview_command(run: Any, amended: Rows) -> None:
    code, out, err = run("preview", "run", "--steps", "8:10", "--lane", "3", "--rows", "1", "--width", "12")
    assert code == 0
    assert err.startswith("makes 10 rows of 1 lane of 4 from a state at step 5: 320 tokens")
    assert out.startswith("2 steps of lane 3 from step 8 (a trainer that counts from 1 logs it as 9): 4 rows")
    assert f"step 8, lane 3, row 16, digest {amended[3, 16][:12]}:" in out
    assert "row 17" not in out
    data = json.loads(run("preview", "run", "--steps", "8:10", "--all-lanes", "--json")[1])
    assert {(r["lane"], r["row"]): r["digest"] for r in data["rows"]} == {
        at: value for at, value in amended.items() if 16 <= at[1] < 20
    }
    assert run("preview", "recipe.toml", "--steps", "3", "--cost")[1] == (
        "makes 6 rows of 1 lane of 4 from step 0: 192 tokens\n"
    )
    assert run("preview", "recipe.toml", "--state", "run", "--steps", "5:6")[2].startswith("makes 2 rows")


def test_explain_command(run: Any) -> None:
    code, out, err = run("explain", "run", "--trainer-step", "8", "--lane", "2", "--row", "15")
    assert code == 0
    assert err.startswith("makes 6 rows of 1 lane of 4 from a state at step 5")
    assert out.startswith("step 7 (a trainer that counts from 1 logs it as 8), lane 2")
    assert "weights since step 6" in out
    assert "weights web=1, code=9 from step 6 until 9 by ann: more code" in out
    assert "row 15: " in out
    assert "row 14" not in out
    data = json.loads(run("explain", "run", "--step", "7", "--lane", "2", "--json")[1])
    assert [entry["number"] for entry in data["entries"]] == [1]
    assert len(data["rows"]) == 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("preview", "recipe.toml", "--lane", "4"),
            "--lane must be of 0 to 3, the lanes of the recipe, got 4",
        ),
        (
            ("preview", "recipe.toml", "--steps", "9999999999999999999999"),
            "--steps must be at most 1,048,576",
        ),
        (
            ("preview", "recipe.toml", "--steps", "5:6", "--state", "late.json"),
            "--state must be of a step at",
        ),
        (
            ("explain", "recipe.toml", "--lane", "4"),
            "--lane must be of 0 to 3, the lanes of the recipe, got 4",
        ),
        (("explain", "recipe.toml", "--row", "2"), "--row must be in [0, 2)"),
        (("explain", "recipe.toml", "--step", "99999", *ENDS), "--step must be a step of the run, got 99999"),
        (("explain", "recipe.toml", "--step", "99999", "--alone", *ENDS), "the data of lane 0 alone end"),
    ],
)
def test_a_wrong_value_is_wrong_usage_of_its_option(
    run: Any, place: Path, args: tuple[str, ...], message: str
) -> None:
    snapshot = find_snapshot(place / "run", 12, range(4))
    assert snapshot is not None
    write_state_file(snapshot, place / "late.json")
    code, _, err = run(*args)
    assert code == 2
    assert message in " ".join(err.replace("\u2502", " ").split())


def test_a_wrong_recipe_is_no_wrong_usage(run: Any) -> None:
    for command in ("preview", "explain"):
        with pytest.raises(AssertionError, match="`lanes` must be a whole number >= 0, got -1"):
            run(command, "recipe.toml", "--set", "lanes=-1")


def test_a_run_folder_without_a_state_for_the_step_is_named(place: Path, amended: Rows) -> None:
    how = Opening(cache=place / "cache", backend="tokenizers")
    with pytest.raises(StateError, match="gives no state for step 3"):
        preview(place / "recipe.toml", [3], [0], place / "run", how=how)
    with pytest.raises(StateError, match="gives no state for step 3"):
        explain(place / "recipe.toml", step=3, lane=0, state=place / "run", how=how)


def test_the_cure_of_a_state_file_that_is_not_there_speaks_of_the_run(place: Path) -> None:
    how = Opening(cache=place / "cache", backend="tokenizers")
    with pytest.raises(StateError, match="it does not exist") as refused:
        preview(place / "recipe.toml", [3], [0], place / "nope.json", how=how)
    assert "name the right file, or write one from a checkpoint of the run" in str(refused.value)


def test_of_a_recipe_that_ends_the_command_says_what_it_asked(run: Any) -> None:
    args = ("explain", "recipe.toml", "--step", "4", *ENDS)
    _, out, err = run(*args)
    assert err.startswith("makes 40 rows of 4 lanes of 4")
    assert "may have ended" not in out
    _, out, err = run(*args, "--alone")
    assert err.startswith("makes 10 rows of 1 lane of 4")
    assert "the run may have ended before: the other lanes are not asked" in out


def test_a_schedule_that_is_set_counts_in_place_of_the_runs(run: Any) -> None:
    setting = ("--set", "schedule.weights={ web = 0, code = 1 }", "--steps", "2:4", "--json")
    data = json.loads(run("preview", "run", *setting)[1])
    assert {piece["dataset"] for row in data["rows"] for piece in row["pieces"]} == {"code"}
