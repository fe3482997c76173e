"""`zephon verify` on runs of files: what it prints, its JSON, its exit codes."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.helpers import make_recipe, open_small, take_steps, union, words, write_tokenizer
from tests.test_verify import edit, flip, train
from zephon.batchlog import read_log_files
from zephon.cli import build_app
from zephon.cli.verify import missing_ranks
from zephon.dataset import Dataset
from zephon.indexing import index_recipe
from zephon.recipe import Recipe
from zephon.stages import Stages
from zephon_curriculum import Run

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
weights = { web = 1, code = 1 }

[[datasets]]
name = "web"
path = "data/web.jsonl"

[[datasets]]
name = "code"
path = "data/code.jsonl"
"""
CHAIN = ((4, 0, 4), (2, 3, 6), (1, 5, 7))


def write_jsonl(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with data, recipe and the run `run`, of attempts on 4, 2 and 1 ranks."""
    folder = tmp_path_factory.mktemp("trained")
    write_tokenizer(folder / "letters")
    (folder / "data").mkdir()
    write_jsonl(folder / "data" / "web.jsonl", words("web", 3000, (1, 3, 20)))
    write_jsonl(folder / "data" / "code.jsonl", words("code", 400, (2, 5)))
    (folder / "recipe.toml").write_text(RECIPE)
    recipe, states = Recipe.from_toml(folder / "recipe.toml"), {}
    for world, begin, end in CHAIN:
        ranks = [
            recipe.loader(
                dp_rank=rank, dp_world_size=world, executor="inline", run_folder=folder / "run",
                cache=folder / "cache", backend="tokenizers",
            )
            for rank in range(world)
        ]  # fmt: skip
        for loader in ranks:
            if begin:
                loader.load_state_dict(states[begin])
        for step in range(begin, end):
            take_steps(ranks, 1)
            states[step + 1] = union(ranks)
        for loader in ranks:
            loader.close()
    return folder


@pytest.fixture
def place(trained: Path, tmp_path: Path) -> Path:
    """Returns a copy of `trained` to spoil; the recipe of its run names the copy's data."""
    folder = tmp_path / "place"
    shutil.copytree(trained, folder)
    recipe = folder / "run" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace(str(trained), str(folder)))
    return folder


@pytest.fixture
def verify(place: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns what runs `zephon verify` in `place` and gives exit code, output and errors."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("ZEPHON_CACHE", str(place / "cache"))

    def run(*args: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(build_app(), ["verify", *args, "--executor", "inline"])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    return run


@pytest.mark.parametrize("dp", ["1", "2", "4"])
def test_a_run_that_is_as_it_was(verify: Any, dp: str) -> None:
    code, out, err = verify("run", "--dp", dp, "--backend", "tokenizers")
    assert (code, err) == (0, "")
    assert out == "equal: 56 rows of 7 steps compared, as 3 attempts logged them\n"


def test_a_run_gone_through_as_it_went(verify: Any) -> None:
    code, out, err = verify("run", "--replay")
    assert (code, err) == (0, "")
    assert out == "equal: 72 rows of 7 steps compared, as 3 attempts logged them\n"


@pytest.mark.parametrize("replay", [False, True])
def test_a_digest_that_differs_is_printed(verify: Any, place: Path, replay: bool) -> None:
    row, true, false = flip(place / "run", "rank_00000_00001.jsonl", 4, 1)
    code, out, _ = verify("run", *["--replay"] * replay)
    assert code == 1
    lines = out.splitlines()
    assert lines[0].startswith("different: ")
    assert lines[1:] == [
        f"  first at step 4 (a trainer that counts from 1 logs it as 5), lane 1, row {row}; "
        "1 row of the step differs",
        f"  logged: {false} (attempt 1, rank 0 of 2, rank_00000_00001.jsonl)",
        f"  found:  {true}",
    ]


def test_json(verify: Any, place: Path) -> None:
    whole = json.loads(verify("run", "--json")[1])
    assert whole == {
        "run": "run", "equal": True, "replay": False, "attempts": 3, "num_rows": 56, "num_steps": 7,
        "changed": [], "notes": [], "first_difference": None, "data_end_before_step": None, "different": [],
        "tokens": [], "missing_rows": [], "missing_ranks": [], "remade": [], "steps_not_compared": None,
    }  # fmt: skip
    row, true, false = flip(place / "run", "rank_00001_00001.jsonl", 3, 2)
    flip(place / "run", "rank_00001_00001.jsonl", 4, 2)
    code, out, err = verify("run", "--json", "--all")
    assert (code, err) == (1, "")
    found = json.loads(out)
    assert found["first_difference"] == {
        "step": 3, "trainer_step": 4, "lane": 2, "row": row, "logged": false, "found": true,
        "attempt": 1, "rank": 1, "dp_world_size": 2, "file": "run/batches/rank_00001_00001.jsonl",
    }  # fmt: skip
    assert found["different"] == [
        {"attempt": 1, "step": step, "trainer_step": step + 1, "num_rows": 1} for step in (3, 4)
    ]


def test_all_lists_the_steps_that_differ(verify: Any, place: Path) -> None:
    flip(place / "run", "rank_00000_00000.jsonl", 1, 0)
    flip(place / "run", "rank_00000_00002.jsonl", 6, 3)
    _, out, _ = verify("run", "--all")
    assert "\n  attempt 0, step 1: 1 row differs\n  attempt 2, step 6: 1 row differs\n" in out


def test_one_document_edited_without_a_change_of_size(verify: Any, place: Path) -> None:
    """Where no sample of the lock sees it: the digests do, at the row that holds it."""
    path = place / "data" / "web.jsonl"
    text = path.read_bytes()
    unseen = text[8_000 : len(text) // 2 - 8_000]
    read = sorted({word for _, _, row in rows_of(place) for word in re.findall(rb"web\d+ ", row)})
    word = next(word for word in read if b'"' + word in unseen)
    path.write_bytes(text.replace(b'"' + word, b'"W' + word[1:]))
    shutil.rmtree(place / "cache")
    found = json.loads(verify("run", "--json")[1])
    assert found["changed"] == []
    first = found["first_difference"]
    assert (first["step"], first["lane"]) == next(
        (step, lane) for step, lane, row in rows_of(place) if b"W" + word[1:] in row
    )


def rows_of(place: Path) -> list[tuple[int, int, bytes]]:
    """Returns (step, lane, text) of the run's rows, in (step, lane) order, from the data as they are."""
    recipe, found = Recipe.from_toml(place / "recipe.toml"), []
    with recipe.loader(executor="inline", cache=place / "cache", backend="tokenizers") as loader:
        for (batch,) in take_steps([loader], 7):
            for lane, row in zip(batch.lanes.tolist(), batch.inputs.tolist(), strict=True):
                found.append((batch.step, lane, bytes(token & 255 for token in row)))
    return sorted(found, key=lambda row: row[:2])


def test_data_that_changed_are_said_first_and_then_found(verify: Any, place: Path) -> None:
    path = place / "data" / "code.jsonl"
    path.write_text(path.read_text().replace("code", "cOde"))
    code, out, err = verify("run")
    assert code == 1
    assert err.startswith("warning: data.code.files[0]: the run has ['code.jsonl', ")
    first = next(line for line in out.splitlines() if "first at" in line)
    step, lane = next((step, lane) for step, lane, row in rows_of(place) if b"cOde" in row)
    assert f"step {step} (" in first
    assert f"lane {lane}," in first
    changed = json.loads(verify("run", "--json")[1])["changed"]
    assert [change["name"] for change in changed] == ["data.code.files[0]"]


def test_data_in_another_place(verify: Any, place: Path) -> None:
    (place / "data" / "web.jsonl").rename(place / "web.jsonl")
    assert verify("run")[0] == 4
    code, out, _ = verify("run", "--set", "datasets.web.path=../web.jsonl")
    assert (code, out[:6]) == (0, "equal:")


def test_another_recipe_is_said_field_by_field(verify: Any, place: Path) -> None:
    (place / "other.toml").write_text(RECIPE.replace("seed = 7", "seed = 8").replace("web = 1", "web = 3"))
    code, out, err = verify("run", "--recipe", "other.toml")
    assert code == 1
    assert "warning: recipe.seed: the run has 7, here it is 8\n" in err
    assert "warning: the schedule differs from the run's from step 0 on; that of the recipe counts\n" in err
    assert "first at step 0" in out


def test_a_setting_is_said_and_the_schedule_that_was_logged_counts_unless_it_is_set(
    verify: Any, place: Path
) -> None:
    """The recipe of the run folder has another schedule than the log, as after updates of a loader."""
    recipe = place / "run" / "recipe.toml"
    text = recipe.read_text()
    assert "web = 1" in text
    recipe.write_text(text.replace("web = 1", "web = 2"))
    assert verify("run", "--set", "datasets.web.max_bad=5")[0] == 0
    code, _, err = verify("run", "--set", "schedule.weights.web=1")
    assert (code, err) == (0, "")
    code, _, err = verify("run", "--set", "schedule.weights.web=3")
    assert code == 1
    assert "the schedule differs from the run's from step 0 on" in err
    assert "warning: recipe.seed: the run has 7, here it is 8\n" in verify("run", "--set", "seed=8")[2]


def test_logs_that_lack_something_are_compared_for_what_they_have(verify: Any, place: Path) -> None:
    batches = place / "run" / "batches"
    (batches / "rank_00002_00000.jsonl").unlink()
    (batches / "rank_00003_00000.jsonl").unlink()
    last = batches / "rank_00000_00002.jsonl"
    last.write_text(last.read_text()[:-100])
    code, out, _ = verify("run")
    assert code == 0
    assert out.splitlines() == [
        "equal: 36 rows of 6 steps compared, as 3 attempts logged them",
        "  not in the log: 12 rows of steps 0 to 2",
        "  no log of attempt 0: ranks 2 to 3 of 4",
    ]
    code, out, _ = verify("run", "--replay")
    assert code == 0
    assert out.splitlines() == [
        "equal: 48 rows of 6 steps compared, as 3 attempts logged them",
        "  no log of attempt 0: ranks 2 to 3 of 4",
        "  no log led to attempt 1, rank 1 of 2: steps 0 to 2 of its lanes were made, not compared",
    ]


def test_steps_that_the_newest_attempt_went_back_from_are_said(verify: Any, place: Path) -> None:
    """It went back to step 3 and made that one only: nothing takes the place of steps 4 to 6 yet."""
    batches = place / "run" / "batches"
    for rank in range(2):
        head, first, *_ = (batches / f"rank_{rank:05d}_00001.jsonl").read_text().splitlines(keepends=True)
        assert json.loads(first)["step"] == 3
        (batches / f"rank_{rank:05d}_00003.jsonl").write_text(head + first)
    assert verify("run")[:2] == (
        0,
        "equal: 32 rows of 4 steps compared, as 4 attempts logged them\n"
        "  not compared: steps 4 to 6, of older attempts only, since the newest went back; "
        "--replay compares all\n",
    )
    assert json.loads(verify("run", "--json")[1])["steps_not_compared"] == [4, 7]
    assert json.loads(verify("run", "--json", "--steps", "0:5")[1])["steps_not_compared"] == [4, 5]
    assert "not compared" not in verify("run", "--replay")[1]


def test_an_attempt_with_data_accepted_as_changed_is_noted(verify: Any, place: Path) -> None:
    log = place / "run" / "batches" / "rank_00000_00001.jsonl"
    head, *lines = log.read_text().splitlines()
    log.write_text("\n".join([json.dumps(json.loads(head) | {"lock": "0" * 64}), *lines]) + "\n")
    code, _, err = verify("run")
    assert (code, err) == (
        0, "warning: attempt 1 had other data, tokenizer or plugins than lock.json has\n",
    )  # fmt: skip


def test_attempts_with_and_without_a_catalogue_had_the_same_data(verify: Any, place: Path) -> None:
    recipe = Recipe.from_toml(place / "recipe.toml")
    index_recipe(recipe, str(place / "index"), cache=place / "cache")
    state: dict[str, Any] = {}
    for catalogue in (str(place / "index"), ""):
        options: Any = {"executor": "inline", "run_folder": place / "both", "cache": place / "cache"}
        with replace(recipe, catalogue=catalogue).loader(**options, backend="tokenizers") as loader:
            if state:
                loader.load_state_dict(state)
            take_steps([loader], 2)
            state = loader.state_dict()
    code, out, err = verify("both")
    assert (code, err) == (0, "")
    assert out == "equal: 32 rows of 4 steps compared, as 2 attempts logged them\n"


def test_an_attempt_before_a_dataset_was_added_had_the_same_data(verify: Any, place: Path) -> None:
    write_jsonl(place / "data" / "math.jsonl", words("math", 60))
    first = Recipe.from_toml(place / "recipe.toml")
    math = Dataset.from_path("math", "data/math.jsonl")
    weights = Stages({0: {"web": 1, "code": 1, "math": 0}, 3: {"web": 1, "code": 1, "math": 1}})
    options: Any = {"executor": "inline", "run_folder": place / "more", "cache": place / "cache"}
    state: dict[str, Any] = {}
    for recipe in (first, replace(first, datasets=(*first.datasets, math), schedule=weights)):
        with recipe.loader(**options, backend="tokenizers") as loader:
            if state:
                loader.load_state_dict(state)
            take_steps([loader], 2)
            state = loader.state_dict()
    assert verify("more") == (0, "equal: 32 rows of 4 steps compared, as 2 attempts logged them\n", "")


def test_tokens_that_differ_are_printed(verify: Any, place: Path) -> None:
    def change(lines: list[str]) -> list[str]:
        entry = json.loads(lines[1])
        entry["tokens"]["web"] += 1000
        return [lines[0], json.dumps(entry), *lines[2:]]

    edit(place / "run", "rank_00001_00000.jsonl", change)
    code, out, _ = verify("run")
    assert code == 1
    assert "\n  step 1, tokens of web: logged 1," in out


def test_steps(verify: Any, place: Path) -> None:
    flip(place / "run", "rank_00000_00002.jsonl", 6, 3)
    assert verify("run", "--steps", "2:6")[1] == (
        "equal: 32 rows of 4 steps compared, as 3 attempts logged them\n"
    )
    assert verify("run", "--steps", "7")[0] == 1
    code, _, err = verify("run", "--steps", "7:9")
    assert code == 5
    assert "holds no batches in steps [7, 9)" in err


def test_a_folder_without_a_run_is_refused(verify: Any) -> None:
    got_of = {"nowhere": "no such folder", "data": "no batch log", "recipe.toml": "a file, no folder"}
    for name, got in got_of.items():
        code, _, err = verify(name)
        assert code == 5
        assert got in err


def test_ranks_are_those_of_the_run_in_a_replay(verify: Any) -> None:
    for option in ("--dp", "--micro-batch-size"):
        code, _, err = verify("run", "--replay", option, "2")
        assert code == 2
        assert "takes the ranks and" in " ".join(err.split())


def test_a_recipe_without_a_toml_form_is_to_be_given(
    verify: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(open_small(make_recipe()), place / "memory", [(2, 0, 2)])
    code, _, err = verify("memory")
    assert code == 3
    assert "dataset 'web' is in memory" in err
    assert "--recipe RECIPE" in err
    (place / "maker.py").write_text("from tests.helpers import make_recipe\n")
    code, out, err = verify("memory", "--recipe", "maker:make_recipe", "--replay")
    assert code == 0, err
    assert out.startswith("equal: 8 rows of 2 steps compared, as 1 attempt logged them\n")
    assert "warning: tokenizer." in err  # the run had another, which gives the same tokens


@pytest.fixture
def followed(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the curriculum log of the run `amended`, of which entry 1 asked for more code."""
    monkeypatch.setenv("ZEPHON_PLUGINS", "zephon-curriculum")
    run, log = Run(place / "amended", Recipe.from_toml(place / "recipe.toml")), place / "amended/curriculum"
    with run.loader(backend="tokenizers", executor="inline", cache=place / "cache") as loader:
        take_steps([loader], 1)
        run.amend(at_step=4, weights={"web": 1, "code": 3}, reason="more code")
        take_steps([loader], 5)
    return log


@pytest.mark.parametrize("more", [(), ("--replay",), ("--recipe", "recipe.toml")])
def test_a_run_of_which_the_curriculum_log_is_broken_is_refused(
    verify: Any, followed: Path, more: tuple[str, ...]
) -> None:
    assert verify("amended")[0] == 0
    entry = followed / "000001.json"
    text = entry.read_text()
    entry.write_text(text.replace("more code", "less code"))
    code, out, err = verify("amended", *more)
    assert (code, out) == (5, "")
    assert "000001.json breaks the chain" in err
    entry.unlink()
    code, out, err = verify("amended", *more)
    assert (code, out) == (5, "")
    assert "curriculum log" in err


def test_a_log_that_nobody_can_read_here_is_said_to_be_unchecked(
    verify: Any, followed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEPHON_PLUGINS", "none")
    code, out, err = verify("amended")
    assert code == 0
    assert out.startswith("equal: ")
    assert err == (
        "warning: the chain of the curriculum log is not checked, which takes zephon-curriculum: "
        "`zephon log amended` checks it\n"
    )


def test_ranks_without_a_log_are_counted_by_attempt(place: Path) -> None:
    files = read_log_files(place / "run")
    assert missing_ranks(files) == []
    assert missing_ranks([file for file in files if file.ranks.dp_rank != 1]) == [(0, 4, [1]), (1, 2, [1])]
