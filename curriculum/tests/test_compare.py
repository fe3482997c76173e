"""Comparisons of recipes and runs: what differs is named, what does not is not, exit codes say which."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.helpers import loaders, make_recipe, open_small, take_steps, words, write_tokenizer
from zephon import Constant, Dataset, LoggedRows, Opened, Recipe, Stages, read_log_files
from zephon_curriculum.cli.diff import diff as diff_command
from zephon_curriculum.compare import compare
from zephon_curriculum.log.entries import Proposal
from zephon_curriculum.log.folder import CurriculumLog
from zephon_curriculum.log.follow import open_updates
from zephon_curriculum.log.ops import Weights, numbers

pytestmark = pytest.mark.usefixtures("probed_once")

STAGES = Stages({0: {"web": 3, "code": 1}, 5: {"web": 1, "code": 1}})


def on_disk(folder: Path, schedule: Any = STAGES, **fields: Any) -> Recipe:
    """Returns a recipe over files in `folder`, which are written once."""
    if not (folder / "letters").exists():
        write_tokenizer(folder / "letters")
        for name, count in (("web", 60), ("code", 20)):
            lines = [json.dumps({"text": text}) + "\n" for text in words(name, count)]
            (folder / f"{name}.jsonl").write_text("".join(lines))
    datasets = tuple(Dataset.from_path(name, str(folder / f"{name}.jsonl")) for name in ("web", "code"))
    given: dict[str, Any] = {"datasets": datasets, "base": folder}
    return make_recipe(None, schedule, tokenizer=str(folder / "letters"), **given | fields)


def make_run(opened: Opened, folder: Path, num_steps: int, world: int = 1, **options: Any) -> None:
    with loaders(opened, world, run_folder=folder, **options) as ranks:
        take_steps(ranks, num_steps)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder of runs: `one` and `two` are the same, `other` has another seed, `amended` a log."""
    folder = tmp_path_factory.mktemp("place")
    recipe = on_disk(folder)
    opened = open_small(recipe)
    make_run(opened, folder / "one", 8, world=1)
    make_run(opened, folder / "two", 6, world=4)
    make_run(open_small(replace(recipe, seed=43)), folder / "other", 4)
    updates = open_updates(opened, folder / "amended" / "curriculum", lead_steps=1)
    ops = (Weights(numbers({"web": 1, "code": 9}, "weights")),)
    change = Proposal(at_step=4, until=None, ops=ops, reason="more code", author="ann")
    CurriculumLog(folder / "amended" / "curriculum").append(change, 1, updates.head)
    make_run(opened, folder / "amended", 8, updates=updates)
    return folder


def test_a_recipe_is_equal_to_itself() -> None:
    found = compare(make_recipe(), make_recipe())
    assert found.is_equal
    assert found.to_json()["equal"]
    assert (found.fields, found.mixture, found.num_rows, found.entries) == ((), None, None, ())


def test_fields_paths_and_run_length_are_named() -> None:
    ours, theirs = make_recipe(), make_recipe(seq_len=32, seed=43, total_steps=9)
    found = compare(ours, theirs)
    assert {each.name: (each.a, each.b) for each in found.fields} == {
        "packing.seq_len": (16, 32),
        "seed": (42, 43),
        "total_steps": (None, 9),
    }
    assert not found.is_equal
    assert found.num_steps == 9
    moved = replace(ours, tokenize=replace(ours.tokenize, tokenizer="elsewhere"))
    found = compare(ours, moved)
    assert [each.name for each in found.places] == ["tokenize.tokenizer"]
    assert not found.is_equal


def test_the_first_step_of_other_shares_and_the_tokens_planned() -> None:
    ours = make_recipe(schedule=STAGES)
    theirs = make_recipe(schedule=Stages({0: {"web": 3, "code": 1}, 7: {"web": 1, "code": 1}}))
    found = compare(ours, theirs, steps=10)
    assert found.mixture is not None
    assert found.mixture.step == 5
    assert (found.mixture.a, found.mixture.b) == ({"web": 0.5, "code": 0.5}, {"web": 0.75, "code": 0.25})
    step = 4 * 16
    assert found.tokens == {
        "web": (step * (5 * 0.75 + 5 * 0.5), step * (7 * 0.75 + 3 * 0.5)),
        "code": (step * (5 * 0.25 + 5 * 0.5), step * (7 * 0.25 + 3 * 0.5)),
    }


@pytest.mark.parametrize("steps", [0, -5])
def test_steps_to_plan_that_no_run_has_are_refused(place: Path, steps: int) -> None:
    with pytest.raises(ValueError, match=f"`steps` must be a whole number >= 1, got {steps}"):
        compare(on_disk(place), on_disk(place), steps=steps)


def test_of_runs_without_an_end_the_tokens_of_a_step_are_compared() -> None:
    ours = make_recipe(schedule=STAGES)
    theirs = make_recipe(schedule=Stages({0: {"web": 3, "code": 1}, 7: {"web": 3, "code": 5}}))
    found = compare(ours, theirs)
    assert found.num_steps is None
    assert found.tokens == {"web": (32, 24), "code": (32, 40)}
    assert json.loads(json.dumps(found.to_json()))["num_steps"] is None
    text = " ".join(str(found).split())
    assert "in each step, from step 7 on; neither has an end, so there is no total:" in text
    assert "code 32 40 +8 50.00% 62.50%" in text
    assert compare(ours, replace(theirs, total_steps=3)).num_steps == 3


def test_the_rows_of_skipped_steps_are_drawn_ahead_of_the_first() -> None:
    opened = open_small(make_recipe(schedule=STAGES))
    one = replace(opened.table, skips=((4, 9),))
    other = replace(one, starts=(0, 6))
    sides = [replace(opened, table=table) for table in (one, other)]
    found = compare(sides[0], sides[1])
    assert found.mixture is not None
    assert found.mixture.step == 4
    assert found.mixture.a == found.mixture.b


def test_datasets_are_compared_by_name() -> None:
    ours = make_recipe({"web": ["a"], "code": ["b"]}, Constant({"web": 1, "code": 0}))
    theirs = make_recipe({"math": ["c"], "web": ["a"]}, Constant({"math": 0, "web": 1}))
    found = compare(ours, theirs, steps=2)
    assert found.mixture is None
    assert found.tokens == {"web": (128, 128), "code": (0, 0), "math": (0, 0)}
    assert "datasets" in {each.name for each in found.fields}


def test_of_a_dataset_that_one_lacks_nothing_else_is_said(place: Path, tmp_path: Path) -> None:
    documents = {"web": ["a"], "web.x": ["b"], "code": ["c"]}
    flat = Constant(dict.fromkeys(documents, 1))
    whole = make_recipe(documents, flat)
    found = compare(whole, make_recipe({"code": ["c"], "web.x": ["b"]}))
    assert [each.name for each in found.fields] == ["datasets"]
    text = str(found)
    assert "\ndataset web: b lacks it\n" in text
    assert "recipe: datasets: a has" in text  # the order of the others
    found = compare(make_recipe({"web": ["a"], "code": ["c"]}), whole)
    text = str(found)
    assert (found.places, found.is_equal) == ((), False)
    assert "\ndataset web.x: a lacks it\n" in text
    assert "null" not in text
    assert "recipe: datasets" not in text
    one = on_disk(tmp_path, Constant({"web": 1}))
    make_run(open_small(replace(one, datasets=one.datasets[:1])), tmp_path / "run", 1)
    found = compare(place / "one", tmp_path / "run")
    assert [each.name for each in found.lock] == []
    assert [each.name for each in found.places] == ["datasets.web.path", "tokenize.tokenizer"]
    assert str(found).count("dataset code") == 1


@settings(max_examples=40, deadline=None)
@given(
    a=st.dictionaries(st.integers(1, 12), st.integers(0, 3), max_size=4),
    b=st.dictionaries(st.integers(1, 12), st.integers(0, 3), max_size=4),
)
def test_the_first_difference_is_that_of_the_steps_one_by_one(a: dict[int, int], b: dict[int, int]) -> None:
    ours, theirs = (
        make_recipe(
            schedule=Stages({0: {"web": 1, "code": 1}} | {s: {"web": 1, "code": w} for s, w in x.items()})
        )
        for x in (a, b)
    )
    tables = (ours.compile_schedule(), theirs.compile_schedule())
    first = next((step for step in range(20) if tables[0].at(step) != tables[1].at(step)), None)
    found = compare(ours, theirs, steps=20)
    assert (found.mixture and found.mixture.step) == first
    for i, name in enumerate(("web", "code")):
        planned = [sum(table.at(step)[i] for step in range(20)) * 64 / 2**20 for table in tables]
        assert found.tokens[name] == pytest.approx(tuple(planned))


def test_runs_on_other_ranks_are_equal(place: Path) -> None:
    found = compare(place / "one", place / "two")
    assert found.is_equal
    assert (found.num_rows, found.num_steps, found.is_locked) == (6 * 4, 6, True)


def test_the_first_row_that_differs_is_named(place: Path) -> None:
    found = compare(place / "one", place / "other")
    assert [each.name for each in found.fields] == ["seed"]
    assert found.num_rows == 16
    row = found.first_row
    assert row is not None
    assert (row.step, row.lane, row.row) == (0, 0, 0)
    assert row.a != row.b
    one_changed = LoggedRows(range(4), range(100), rows_per_step=1)
    two = LoggedRows(range(4), range(100), rows_per_step=1)
    for file in read_log_files(place / "one"):
        one_changed.add(file)
        two.add(file)
    for lane, number in ((3, 2), (1, 5)):
        one_changed._rows[lane].digests[number * 32] ^= 1
    assert one_changed.compare_with(two) == (32, (3, 2))
    assert one_changed.compare_with(LoggedRows(range(4), range(9), rows_per_step=1)) == (0, None)


def test_an_amendment_is_named_with_its_first_row(place: Path) -> None:
    found = compare(place / "one", place / "amended")
    assert found.mixture is not None
    assert found.mixture.step == 4
    assert found.first_row is not None
    assert found.first_row.step == 4
    (entry,) = found.entries
    assert (entry.run, entry.number, entry.body["reason"]) == ("b", 1, "more code")
    assert not found.fields
    assert compare(place / "amended", place / "amended").is_equal


def test_a_run_is_compared_with_a_recipe(place: Path) -> None:
    assert compare(place / "one", on_disk(place)).is_equal
    relative = tuple(replace(d, paths=(f"{d.name}.jsonl",)) for d in on_disk(place).datasets)
    assert compare(place / "one", replace(on_disk(place), datasets=relative)).places == ()
    found = compare(place / "one", on_disk(place, Constant({"web": 1, "code": 1})))
    assert found.num_rows is None
    assert found.num_steps == 8
    assert found.mixture is not None
    assert found.mixture.step == 0


def test_data_that_changed_are_named_by_the_locks(place: Path, tmp_path: Path) -> None:
    recipe = on_disk(tmp_path)
    (tmp_path / "code.jsonl").write_text('{"text": "other"}\n' * 20)
    make_run(open_small(recipe), tmp_path / "run", 2)
    found = compare(place / "one", tmp_path / "run")
    assert [each.name.split(".")[:2] for each in found.lock] == [["data", "code"]]
    assert len(found.places) == 3  # which alone would be no difference, of runs that have locks
    assert not found.is_equal


@pytest.fixture
def diff(place: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(place)
    app = typer.Typer()
    app.command()(diff_command)

    def call(*args: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, [*args])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout

    return call


def test_diff_command(diff: Any) -> None:
    code, out = diff("one", "two")
    assert (code, out.splitlines()[0], out.splitlines()[-1]) == (0, "equal", "rows: 24 logged by both")
    code, out = diff("one", "amended")
    assert code == 1
    assert out.startswith("different: 1 log entry, mixture from step 4, rows from step 4\n")
    assert "mixture: first at step 4 (a trainer that counts from 1 logs it as 5)" in out
    assert "rows: first at step 4" in out
    assert "log: only b has entry 1 (proposal): weights web=1, code=9 from step 4 by ann: more code" in out
    assert "tokens planned in the first 8 steps, those that both runs delivered:" in out
    code, out = diff("one", "other", "--json")
    assert code == 1
    assert json.loads(out)["fields"] == [{"name": "seed", "a": 42, "b": 43}]
    assert diff("one/recipe.toml", "two/recipe.toml")[0] == 0


@pytest.mark.parametrize("num_steps", [2 * 10**13, 1 << 62, 10**30])
def test_tokens_of_very_long_runs_do_not_overflow(num_steps: int) -> None:
    late = Stages({0: {"web": 1, "code": 0}, 10**22: {"web": 0, "code": 1}})
    recipes = [make_recipe({"web": ["a"], "code": ["b"]}, schedule) for schedule in (late, None)]
    found = compare(*recipes, steps=num_steps)
    assert found.mixture is not None
    assert found.mixture.step == 0
    slots, before = (steps * recipes[0].tokens_per_step for steps in (num_steps, min(num_steps, 10**22)))
    assert found.tokens["web"] == pytest.approx((before, slots / 2))
    assert found.tokens["code"] == pytest.approx((slots - before, slots / 2))
