"""A phase that continues another: what it may change, what is refused and with which cure, and its files."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import zephon
from tests.helpers import (
    digest_of,
    digests,
    loaders,
    make_recipe,
    open_small,
    sized,
    take_steps,
    union,
    words,
    write_tokenizer,
)
from zephon.batchlog import log_files, read_lines
from zephon.check.plan import check_shape
from zephon.cli import build_app
from zephon.continuing import SHORT
from zephon.dataset import Dataset
from zephon.errors import StateError
from zephon.loader import Loader
from zephon.lock import ALLOWANCES
from zephon.mixture import MixtureWorkSource
from zephon.opened import Opened
from zephon.options import LoaderOptions
from zephon.pipeline import Pipeline
from zephon.recipe import Recipe
from zephon.runfolder import START
from zephon.schedule import Drop, ScheduleTable
from zephon.stages import Constant, Stages
from zephon.statefile import read_state_file, write_state_file
from zephon.toml import recipe_from_table

State = dict[str, Any]
DOCUMENTS = {"web": words("web", 20), "code": words("code", 5, (9,))}
EVEN, WEB = {"web": 1, "code": 1}, {"web": 1, "code": 0}


def small(documents: Mapping[str, Any] = DOCUMENTS, schedule: Any = None, **fields: Any) -> Recipe:
    return make_recipe(documents, schedule, **{"lanes": 4, "global_batch_size": 4} | fields)


def state_after(recipe: Recipe, num_steps: int, world: int = 1) -> State:
    with loaders(open_small(recipe), world) as ranks:
        take_steps(ranks, num_steps)
        return union(ranks)


def begin(opened: Opened) -> list[str]:
    """Returns the notes of a loader that gives its first step."""
    with loaders(opened) as (loader,):
        next(loader)
        return loader.notes


def refused(recipe: Recipe, state: State, **more: Any) -> str:
    with pytest.raises(StateError) as caught:
        recipe.continue_from(state, **more)
    return str(caught.value)


# What may be otherwise --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"seq_len": 32},
        {"seq_len": 8},
        {"kind": "best_fit", "options": {"pool_documents": 3}},
        {"mask_document_ends": False},
        {"schedule": Constant(WEB)},
        {"total_steps": 7},
        {"global_batch_size": 12},
        {"flush_every": 3},
    ],
    ids=str,
)
def test_a_phase_may_have_other_rows_and_weights(fields: dict[str, Any]) -> None:
    first = small()
    second = small(**fields).continue_from(state_after(first, 3))
    assert begin(open_small(second)) == [f"continues from step 3 of {first.fingerprint()[:SHORT]}"]
    assert second.fingerprint() != small(**fields).fingerprint()


def test_what_a_phase_continues_is_in_its_fingerprint() -> None:
    """And how the state was made is not: ranks, restores, text or bytes."""
    first = small()
    state = state_after(first, 3)
    second = small().continue_from(state)
    assert small().continue_from(state_after(first, 2)).fingerprint() != second.fingerprint()
    assert small().continue_from(state_after(small(seed=42), 3, 4)).fingerprint() == second.fingerprint()
    as_text = {key: v.decode() if isinstance(v, bytes) else v for key, v in state.items()}
    assert small().continue_from(as_text).fingerprint() == second.fingerprint()
    entry = json.loads(state["schedule"])
    waiting = state | {"schedule": json.dumps(entry | {"waiting": ["code"]})}
    assert small().continue_from(waiting).fingerprint() != second.fingerprint()
    with loaders(open_small(first)) as (loader,):
        loader.load_state_dict(state)
        assert small().continue_from(loader.state_dict()).fingerprint() == second.fingerprint()


def test_rows_tokens_and_steps_count_from_0_and_the_rest_stays() -> None:
    bad = {"web": [*words("web", 5), "", ""], "code": DOCUMENTS["code"]}
    state = state_after(small(bad), 9)
    with loaders(open_small(small(bad, seq_len=32).continue_from(state))) as (loader,):
        begun = loader.state_dict()
        assert loader.num_steps == 0
        assert json.loads(begun["schedule"])["steps"] == json.loads(begun["schedule"])["attempt"] == 0
        for lane in range(4):
            old, new = (json.loads(s[f"lane_0000{lane}"]) for s in (state, begun))
            assert (new["rows"], new["tokens"], new["documents"]) == (0, [0, 0], [0, 0])
            for name in ("cursors", "credits", "counts"):
                assert new[name] == old[name]
        assert any(json.loads(state[f"lane_0000{lane}"])["counts"][0] for lane in range(4))
        assert next(loader).step == 0


def test_a_state_of_no_step_begins_a_run() -> None:
    assert digests(open_small(small().continue_from(state_after(small(), 0))), 3) == digests(
        open_small(small()), 3
    )


def test_evaluation_of_a_phase_continues_nothing() -> None:
    second = small().continue_from(state_after(small(), 2))
    assert second.evaluation().fingerprint() == small().evaluation().fingerprint()


def test_a_pipeline_continues_too() -> None:
    datasets = [Dataset.from_documents(name, texts) for name, texts in DOCUMENTS.items()]
    pipe = Pipeline(MixtureWorkSource(datasets, EVEN), global_batch_size=4, seed=42)
    pipe = pipe.tokenize("letters", eos="</s>").pack(16)
    state = state_after(pipe.recipe(), 2)
    recipe = pipe.pack(32).continue_from(state).recipe()
    assert recipe.fingerprint() == replace(pipe.pack(32).recipe(), continues=recipe.continues).fingerprint()
    assert begin(open_small(recipe))[0].startswith("continues from step 2 of ")


# What is refused --------------------------------------------------------------------------------------------

OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": 43}, "seed: state has 42, this run has 43"),
    "eos": ({"eos": False}, "tokenize.eos: state has '</s>', this run has False"),
    "order": (
        {"documents": {"code": DOCUMENTS["code"], "web": DOCUMENTS["web"]}},
        "datasets keep their order, weight 0 retires one, and others are added at the end",
    ),
    "fewer": (
        {"documents": {"web": DOCUMENTS["web"]}},
        "datasets: state has ['web', 'code'], this run has ['web']",
    ),
    "work source": (
        {"work_source": {"kind": "mixture", "x": 1}},
        "work_source.x: state has None, this run has 1",
    ),
    "max_epochs": (
        {"datasets": tuple(Dataset.from_documents(n, d, max_epochs=2) for n, d in DOCUMENTS.items())},
        "datasets.code.max_epochs: state has None, this run has 2",
    ),
}


@pytest.mark.parametrize("name", OTHER)
def test_each_field_that_is_the_data_s_is_refused_by_name(name: str) -> None:
    fields, message = OTHER[name]
    found = refused(small(**fields), state_after(small(), 2), allow=ALLOWANCES)
    assert message in found
    assert "a phase reads on where the state stands" in found


@pytest.mark.parametrize(
    ("size", "lanes", "cure"),
    [
        (6, 6, "set lanes = 4 and global_batch_size = 4 or 8"),
        (2, 2, "set lanes = 4 and global_batch_size = 4"),
        (8, 8, "set lanes = 4"),
        (8, 2, "set lanes = 4"),
    ],
)
def test_the_lanes_stay(size: int, lanes: int, cure: str) -> None:
    message = refused(small(global_batch_size=size, lanes=lanes), state_after(small(), 2))
    assert f"lanes: state has 4, this run has {lanes}" in message
    assert message.endswith(f"cure: {cure}")


def test_lanes_that_do_not_divide_the_global_batch_name_its_multiples() -> None:
    with pytest.raises(ValueError, match="keeps its 4 lanes takes a multiple of 4 rows"):
        small(global_batch_size=6)


def test_a_recipe_that_was_changed_after_it_was_continued_is_refused_when_it_begins() -> None:
    second = small().continue_from(state_after(small(), 2))
    begin(open_small(replace(second, global_batch_size=8)))
    for changed in (replace(second, seed=43), replace(second, lanes=2)):
        with pytest.raises(StateError, match=r"(seed|lanes): state has"):
            begin(open_small(changed))


def test_all_lanes_are_needed() -> None:
    with loaders(open_small(small()), 4) as ranks:
        take_steps(ranks, 2)
        some = ranks[0].state_dict() | ranks[2].state_dict()
    message = refused(small(), some)
    assert "lacks 2 of 4 lanes, first lane_00001" in message
    assert "the union of all ranks' states" in message


def test_a_state_inside_a_step_is_refused() -> None:
    with loaders(open_small(small(global_batch_size=8)), micro_batch_size=2) as (loader,):
        for _ in range(5):
            next(loader)
        message = refused(small(), loader.state_dict())
    assert "inside a step" in message
    assert "take the state after the last batch of a step" in message


def test_lanes_of_two_steps_are_refused() -> None:
    early, late = state_after(small(), 2), state_after(small(), 3)
    assert "do not belong together" in refused(small(), late | {"lane_00001": early["lane_00001"]})


def test_a_lane_that_has_ended_is_refused() -> None:
    once = tuple(Dataset.from_documents(n, d, max_epochs=1) for n, d in DOCUMENTS.items())
    recipe = small(datasets=once, when_exhausted="pad")
    with loaders(open_small(recipe)) as (loader,):
        list(loader)
        message = refused(recipe, loader.state_dict())
    assert "of the state has ended" in message
    assert "continue from an earlier step" in message


def test_a_run_that_ended_before_its_lanes_did_may_be_continued() -> None:
    """`stop` ends the run with the first lane; what others have left is for the next phase."""
    once = tuple(Dataset.from_documents(n, d, max_epochs=1) for n, d in DOCUMENTS.items())
    with loaders(open_small(small(datasets=once))) as (loader,):
        assert len(list(loader)) > 2
        state = loader.state_dict()
    second = small(datasets=once, when_exhausted="pad", schedule=Constant(EVEN)).continue_from(state)
    with loaders(open_small(second)) as (loader,):
        assert len(list(loader)) > 0


@pytest.mark.parametrize("garbage", [b"", "{}", "[]", "null", None, 7])
@pytest.mark.parametrize("key", ["recipe", "lock", "schedule", "lane_00002", "version"])
def test_what_is_no_state_is_refused(key: str, garbage: object) -> None:
    state = state_after(small(), 2) | {key: garbage}
    with pytest.raises(StateError):
        begin(open_small(small().continue_from(state)))


def test_a_configuration_without_lanes_is_refused() -> None:
    state = state_after(small(), 2)
    entry = json.loads(state["recipe"])
    for name in ("lanes", "datasets", "global_batch_size"):
        other = entry | {"configuration": {k: v for k, v in entry["configuration"].items() if k != name}}
        assert "cannot be read" in refused(small(), state | {"recipe": json.dumps(other)})


@pytest.mark.parametrize("change", [{"lanes": -4}, {"lanes": 0}, {"lanes": 2.0}, {"global_batch_size": 3}])
def test_a_configuration_of_lanes_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    state = state_after(small(), 2)
    entry = json.loads(state["recipe"])
    entry["configuration"] |= change
    assert "cannot be read" in refused(small(), state | {"recipe": json.dumps(entry)})


def test_lanes_without_number_are_not_counted_one_by_one() -> None:
    state = state_after(small(), 2)
    entry = json.loads(state["recipe"])
    entry["configuration"] |= {"lanes": 10**15, "global_batch_size": 10**15}
    assert "first lane_00004" in refused(small(), state | {"recipe": json.dumps(entry)})


def test_data_that_changed_are_refused_and_may_be_accepted() -> None:
    state = state_after(small(), 2)
    changed = DOCUMENTS | {"code": words("changed", 5, (9,))}
    with pytest.raises(StateError, match="dataset code: state has") as caught:
        begin(open_small(small(changed).continue_from(state)))
    assert "continue_from with `allow = ['data']`" in str(caught.value)
    accepted = small(changed).continue_from(state, allow=["data"])
    _, note = begin(open_small(accepted))
    assert note.startswith("accepted: dataset code: state has")
    assert accepted.fingerprint() == small(changed).continue_from(state).fingerprint()
    with pytest.raises(ValueError, match="`allow` takes data, held_out"):
        small().continue_from(state, allow=["seed"])


def test_plugins_of_rows_and_weights_may_change_and_those_of_data_not() -> None:
    opened = open_small(small())
    entry = {"distribution": "tide", "version": "1.0", "target": "tide:Tide"}
    for role, is_free in (("packers.tides", True), ("schedules.tides", True), ("datasets.tides", False)):
        old = replace(opened, lock=opened.lock | {"plugins": {role: entry}})
        with loaders(old) as ranks:
            take_steps(ranks, 1)
            second = open_small(small().continue_from(union(ranks)))
        if is_free:
            assert len(begin(second)) == 1
            continue
        with pytest.raises(StateError, match=r"plugin datasets.tides: only in the state"):
            begin(second)


@pytest.mark.parametrize("overlong", ["truncate", "drop", "refuse"])
def test_a_document_that_was_begun_is_not_taken_away(overlong: str) -> None:
    long = {"web": sized(40, (3, 100))}
    options = {"pool_documents": 4, "overlong": overlong}
    cut = small(long, kind="best_fit", seq_len=32, options=options)
    message = refused(cut, state_after(small(long), 3))
    assert f"overlong = '{overlong}' of documents over 32 tokens" in message
    assert 'set overlong = "split"' in message
    held = small(long, kind="best_fit", seq_len=128, options={"pool_documents": 4})
    assert "has begun a document" in refused(cut, state_after(held, 2))
    state = state_after(small({"web": sized(40, (3, 31))}, kind="best_fit", seq_len=32, options=options), 3)
    longer = small({"web": sized(40, (3, 31))}, kind="best_fit", seq_len=64, options=options)
    begin(open_small(longer.continue_from(state)))


def test_a_state_of_another_phase_is_refused_both_ways() -> None:
    state = state_after(small(), 2)
    second = small().continue_from(state)
    with loaders(open_small(second)) as (loader,):
        with pytest.raises(StateError, match="continues: state has None") as caught:
            loader.load_state_dict(state)
        assert "the state that the recipe was given by continue_from" in str(caught.value)
        next(loader)
        late = loader.state_dict()
    for other in (small(), small().continue_from(state_after(small(), 1))):
        with loaders(open_small(other)) as (loader,), pytest.raises(StateError, match="continues: state has"):
            loader.load_state_dict(late)


def test_a_restore_in_a_phase_says_both(caplog: pytest.LogCaptureFixture) -> None:
    second = small(schedule=Constant(EVEN)).continue_from(state_after(small(), 2))
    state = state_after(second, 2)
    amended = replace(second, schedule=Stages({0: EVEN, 2: WEB}))
    with caplog.at_level(logging.INFO, logger="zephon"), loaders(open_small(amended)) as (loader,):
        loader.load_state_dict(state)
        assert len(loader.notes) == 2
        assert loader.notes[0].startswith("continues from step 2")
        assert loader.notes[1] == "the schedule differs from the state's at steps from 2 on: accepted"
    assert any(record.message.startswith("begin: continues from step 2") for record in caplog.records)


def test_documents_that_the_earlier_phase_dropped_come_again_and_that_is_a_note() -> None:
    opened = open_small(small())
    drop = Drop(1, (("web", "web", 3), ("web", "web", 5)))
    with loaders(replace(opened, table=replace(opened.table, drops=(drop,)))) as (loader,):
        take_steps([loader], 20)
        state = loader.state_dict()
    notes = begin(open_small(small().continue_from(state)))
    assert notes[1:] == [
        "dataset 'web': documents that amendments of the earlier phase dropped come again; drop them anew"
    ]


# Datasets added later ---------------------------------------------------------------------------------------

THREE = DOCUMENTS | {"books": words("books", 6)}


def with_books(schedule: Any, documents: Mapping[str, Any] = THREE, **fields: Any) -> Recipe:
    return small(documents, schedule, **fields)


def restored(recipe: Recipe, state: State, allow: tuple[str, ...] = ()) -> list[str]:
    with loaders(open_small(recipe)) as (loader,):
        loader.load_state_dict(state, allow=allow)
        next(loader)
        return loader.notes


def test_a_dataset_added_at_the_end_is_a_note() -> None:
    state = state_after(small(schedule=Constant(EVEN)), 3)
    future = "the schedule differs from the state's at steps from 3 on: accepted"
    later = Stages({0: EVEN | {"books": 0}, 5: EVEN | {"books": 1}})
    assert restored(with_books(later), state) == [future, "added: books, from step 5 on"]
    at_once = Stages({0: EVEN | {"books": 0}, 3: EVEN | {"books": 1}})
    assert restored(with_books(at_once), state) == [future, "added: books, from step 3 on"]
    never = Constant(EVEN | {"books": 0})
    assert restored(with_books(never), state) == ["added: books, no share yet"]


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_dataset_added_with_a_share_in_the_past_is_refused(step: int) -> None:
    state = state_after(small(schedule=Constant(EVEN)), 3)
    schedule = Stages({0: EVEN | {"books": 0}} | {step: EVEN | {"books": 1}})
    with pytest.raises(StateError) as caught:
        restored(with_books(schedule), state, allow=("data",))
    assert f"dataset 'books' is not in the state and has a share at step {step}" in str(caught.value)
    assert "give books the weight 0 before step 3" in str(caught.value)
    assert (
        restored(with_books(schedule), state, allow=("schedule",))[-1] == f"added: books, from step {step} on"
    )


def test_inside_a_step_that_step_has_begun() -> None:
    recipe = small(schedule=Constant(EVEN), global_batch_size=8)
    with loaders(open_small(recipe), micro_batch_size=2) as (loader,):
        for _ in range(9):
            next(loader)
        state = loader.state_dict()
    for step in (2, 3):
        schedule = Stages({0: EVEN | {"books": 0}, step: EVEN | {"books": 1}})
        opened = open_small(with_books(schedule, global_batch_size=8))
        with loaders(opened, micro_batch_size=2) as (loader,):
            if step == 2:
                with pytest.raises(StateError, match="before step 3"):
                    loader.load_state_dict(state)
            else:
                loader.load_state_dict(state)


def test_the_past_of_the_others_may_not_change_with_it() -> None:
    state = state_after(small(schedule=Constant(EVEN)), 3)
    changed = Stages({0: {"web": 2, "code": 1, "books": 0}, 3: EVEN | {"books": 1}})
    with pytest.raises(StateError, match=r"in steps that are done, first in \[0, 3\)"):
        restored(with_books(changed), state)


@pytest.mark.parametrize(
    "names", [("code", "web", "books"), ("books", "web", "code"), ("web", "books", "code")]
)
def test_datasets_are_added_at_the_end_only(names: tuple[str, ...]) -> None:
    state = state_after(small(), 2)
    with pytest.raises(StateError, match="datasets: state has") as caught:
        restored(with_books(None, {name: THREE[name] for name in names}), state)
    assert "weight 0 retires one, and others are added at the end" in str(caught.value)


def test_a_dataset_taken_away_is_refused_with_the_cure() -> None:
    with pytest.raises(StateError, match="weight 0 retires one"):
        restored(small(), state_after(with_books(None), 2))


def test_a_dataset_that_ends_may_be_added_to_ones_that_do_not() -> None:
    state = state_after(small(schedule=Constant(EVEN)), 2)
    books = Dataset.from_documents("books", THREE["books"], max_epochs=1)
    given = tuple(Dataset.from_documents(n, d) for n, d in DOCUMENTS.items())
    schedule = Stages({0: EVEN | {"books": 0}, 4: EVEN | {"books": 1}})
    recipe = small(datasets=(*given, books), schedule=schedule, when_exhausted="redistribute")
    assert restored(recipe, state)[-1] == "added: books, from step 4 on"


def test_a_table_serves_more_datasets_or_fewer() -> None:
    table = ScheduleTable(("a", "b"), (0, 2), ((4, 0), (1, 3)))
    more = table.with_datasets(("a", "b", "c"), frozenset({0}))
    assert more.shares == ((4, 0, 0), (1, 3, 0))
    assert more.fresh == {2: (1,)}
    assert more.first_active() == (0, 2, None)
    assert [more.waiting(step) for step in (0, 2, 3)] == [("b", "c"), ("b", "c"), ("c",)]
    assert more.with_datasets(("a", "b")) == table
    assert table.with_datasets(("a", "b")) is table


# Files ------------------------------------------------------------------------------------------------------


def test_a_state_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    state = state_after(small(), 3)
    path = tmp_path / "new" / "phase1.json"
    zephon.write_state_file(state, path)
    assert zephon.read_state_file(path) == state
    first = path.read_bytes()
    write_state_file(dict(reversed(state.items())), path)
    assert path.read_bytes() == first
    assert [entry.name for entry in path.parent.iterdir()] == ["phase1.json"]
    assert json.loads(first)["kind"] == "zephon state"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"kind": "zephon state", "version": 2, "state": {}}'])
def test_what_is_no_state_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "phase1.json"
    path.write_text(text)
    with pytest.raises(StateError, match=r"phase1.json' cannot be read"):
        read_state_file(path)
    with pytest.raises(StateError, match="it does not exist"):
        read_state_file(tmp_path / "other.json")
    with pytest.raises(TypeError, match="got object for 'lane_00000'"):
        write_state_file({"lane_00000": object()}, path)


def write_phases(folder: Path, more: str = "", **settings: Any) -> tuple[Recipe, State]:
    """Writes data, tokenizer, phase1.toml, phase1.json and phase2.toml; returns phase 1 and its state."""
    write_tokenizer(folder / "letters")
    for name, texts in {"web": words("web", 300, (1, 3, 20)), "code": words("code", 60, (2, 5))}.items():
        lines = [json.dumps({"text": text}) + "\n" for text in texts]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    text = 'seed = 7\nlanes = 4\nglobal_batch_size = {size}\n{more}\n[tokenize]\ntokenizer = "letters"\n'
    text += 'eos = true\n[packing]\nseq_len = {seq_len}\n[schedule]\nkind = "constant"\n'
    text += "weights = {{ web = 2, code = 1 }}\n"
    text += "".join(f'[[datasets]]\nname = "{n}"\npath = "{n}.jsonl"\n' for n in ("web", "code"))
    (folder / "phase1.toml").write_text(text.format(size=8, seq_len=16, more=""))
    (folder / "phase2.toml").write_text(text.format(size=4, seq_len=64, more=more))
    recipe = Recipe.from_toml(folder / "phase1.toml")
    with recipe.loader(executor="inline", cache=folder / "cache") as loader:
        take_steps([loader], 5)
        state = loader.state_dict()
    write_state_file(state, folder / "phase1.json")
    return recipe, state


@pytest.mark.usefixtures("probed_once")
def test_a_recipe_names_the_file_of_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, state = write_phases(tmp_path, 'continue_from = "phase1.json"\n')
    recipe = Recipe.from_toml(tmp_path / "phase2.toml")
    assert recipe.continues is not None
    assert str(recipe.continues) == f"step 5 of {first.fingerprint()[:SHORT]}"
    text = recipe.to_toml()
    assert 'continue_from = "phase1.json"' in text
    again = tmp_path / "again.toml"
    again.write_text(text)
    assert Recipe.from_toml(again).fingerprint() == recipe.fingerprint()
    assert replace(recipe, continues=None).continue_from(state).fingerprint() == recipe.fingerprint()
    monkeypatch.setenv("PHASES", str(tmp_path))
    moved = Recipe.from_toml(again, settings={"continue_from": "${PHASES}/phase1.json"})
    assert moved.fingerprint() == recipe.fingerprint()
    loose = Recipe.from_toml(again, settings={"continue_from": {"path": "phase1.json", "allow": ["data"]}})
    assert loose.continues is not None
    assert loose.continues.allow == ("data",)
    assert 'continue_from = { path = "phase1.json", allow = ["data"] }' in loose.to_toml()
    with pytest.raises(StateError, match="it does not exist"):
        Recipe.from_toml(again, settings={"continue_from": "phase0.json"})


def test_a_wrong_continue_from_is_refused() -> None:
    table = {"global_batch_size": 4, "tokenize": {"tokenizer": "x"}, "packing": {"seq_len": 4}}
    table |= {
        "schedule": {"kind": "constant", "weights": {"web": 1}},
        "datasets": [{"name": "web", "path": "x"}],
    }
    for given, message in (
        (3, "must be the path of a state file"),
        ({"path": "x", "allow": "data"}, "must be the path of a state file"),
        ({"file": "x"}, "continue_from: unknown field 'file'"),
    ):
        with pytest.raises(ValueError, match=message):
            recipe_from_table(table | {"continue_from": given}, Path())


def test_a_state_in_memory_has_no_toml_form() -> None:
    web = Dataset.from_path("web", "web.jsonl")
    recipe = make_recipe(datasets=(web,))
    start = small().continue_from(state_after(small(), 1)).continues
    with pytest.raises(ValueError, match=r"zephon.write_state_file\(state, path\)"):
        replace(recipe, continues=start).to_toml()


@pytest.mark.usefixtures("probed_once")
def test_a_run_folder_of_a_phase_is_verified_hashed_and_shown(tmp_path: Path) -> None:
    """On 4 ranks, resumed in its middle on 2; the folder needs neither the file nor the run of phase 1."""
    write_phases(tmp_path, 'continue_from = "phase1.json"\n')
    run, state = tmp_path / "run", {}
    recipe = Recipe.from_toml(tmp_path / "phase2.toml")
    found = []
    for world, num_steps in ((4, 3), (2, 4)):
        ranks = [
            recipe.loader(
                dp_rank=rank, dp_world_size=world, executor="inline", run_folder=run, cache=tmp_path / "cache"
            )
            for rank in range(world)
        ]
        for loader in ranks:
            if state:
                loader.load_state_dict(state)
        found += [digest_of(step) for step in take_steps(ranks, num_steps)]
        state = union(ranks)
        for loader in ranks:
            loader.close()
    (tmp_path / "phase1.json").unlink()
    assert Recipe.from_toml(run / "recipe.toml").fingerprint() == recipe.fingerprint()
    head = json.loads(log_files(run / "batches")[0].read_text().splitlines()[0])
    assert recipe.continues is not None
    assert head["continues"] == {"hash": recipe.continues.hash, "step": 5}
    for arguments in (
        ["verify", str(run)],
        ["verify", str(run), "--replay"],
        ["hash", str(run), "--steps", "7", "--compare", str(run), "--dp", "2"],
        ["show", str(run), "--step", "6"],
    ):
        outcome = CliRunner().invoke(build_app(), [*arguments, "--cache", str(tmp_path / "cache")])
        assert outcome.exit_code == 0, (arguments, outcome.output)
        if arguments[0] == "hash":
            assert [line.split()[1] for line in outcome.stdout.splitlines()] == found


@pytest.mark.usefixtures("probed_once")
def test_verify_says_what_changed_in_the_data_since_a_phase_began(tmp_path: Path) -> None:
    write_phases(tmp_path, 'continue_from = "phase1.json"\n')
    run = tmp_path / "run"
    recipe = Recipe.from_toml(tmp_path / "phase2.toml")
    with recipe.loader(executor="inline", run_folder=run, cache=tmp_path / "cache") as loader:
        take_steps([loader], 3)
    web = tmp_path / "web.jsonl"
    web.write_text(web.read_text().replace("web1", "wob1"))
    outcome = CliRunner().invoke(build_app(), ["verify", str(run), "--cache", str(tmp_path / "cache")])
    assert outcome.exit_code == 1
    assert "data.web" in outcome.stderr


def test_the_phases_have_run_folders_of_their_own(tmp_path: Path) -> None:
    first = open_small(small())
    with loaders(first, run_folder=tmp_path / "one") as ranks:
        take_steps(ranks, 2)
        state = union(ranks)
    second = open_small(small().continue_from(state))
    with loaders(second, run_folder=tmp_path / "two") as ranks:
        take_steps(ranks, 2)
    assert read_state_file(tmp_path / "two" / START) == state
    other = open_small(small().continue_from(state_after(small(), 1)))
    for opened, folder in ((second, "one"), (first, "two"), (other, "two")):
        with (
            pytest.raises(StateError, match="holds another phase of the run"),
            loaders(opened, run_folder=tmp_path / folder),
        ):
            pass
    with loaders(second, run_folder=tmp_path / "two") as ranks:
        take_steps(ranks, 1)
    assert len(log_files(tmp_path / "two" / "batches")) == 2
    assert [line["step"] for line in read_lines(log_files(tmp_path / "two" / "batches")[1])] == [0]


@pytest.mark.usefixtures("probed_once")
@pytest.mark.parametrize("ranks", [(1,), (1, 0)], ids=["alone", "first"])
def test_a_rank_that_logs_before_rank_0_opens_the_folder_is_of_the_phase(
    tmp_path: Path, ranks: tuple[int, ...]
) -> None:
    """The folder may be one machine's own, where no rank 0 writes; or rank 0 is later."""
    second = open_small(small().continue_from(state_after(small(), 2)))
    for rank in (*ranks, 1):
        options = LoaderOptions(executor="inline", dp_rank=rank, dp_world_size=2, run_folder=tmp_path)
        with Loader(second, options) as loader:
            next(loader)
    assert (tmp_path / START).exists() == (0 in ranks)
    with (
        pytest.raises(StateError, match="holds another phase of the run"),
        loaders(open_small(small()), run_folder=tmp_path),
    ):
        pass


def test_the_start_of_a_phase_without_batches_goes_with_its_folder(tmp_path: Path) -> None:
    first = open_small(small())
    with loaders(open_small(small().continue_from(state_after(small(), 2))), run_folder=tmp_path):
        assert (tmp_path / START).exists()
    for _ in range(2):
        with loaders(first, run_folder=tmp_path) as ranks:
            take_steps(ranks, 1)
    assert not (tmp_path / START).exists()


def test_the_end_counts_what_packers_of_an_earlier_phase_hold(caplog: pytest.LogCaptureFixture) -> None:
    once = (Dataset.from_documents("web", ["word " * 9] * 40, max_epochs=1),)
    fields: dict[str, Any] = {"datasets": once, "schedule": Constant({"web": 1}), "lanes": 1}
    fields |= {"global_batch_size": 1}
    first = small(**fields, seq_len=64, kind="best_fit", options={"pool_documents": 30})
    state = state_after(first, 1)
    held = sum(piece[4] for piece in json.loads(state["lane_00000"])["carry"])
    with (
        caplog.at_level("INFO", logger="zephon"),
        loaders(open_small(small(**fields, seq_len=100_000).continue_from(state))) as (loader,),
    ):
        assert list(loader) == []
    assert held > 0
    assert caplog.messages[-1].endswith(f"in tokens that packers hold: {held:,}")


def test_a_run_that_was_told_of_a_dataset_later_is_verified(tmp_path: Path) -> None:
    """The first attempt logged a table of two datasets; the recipe of the folder has three."""
    write_phases(tmp_path)
    (tmp_path / "books.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in words("books", 50)))
    text = (tmp_path / "phase1.toml").read_text()
    stages = "stages = [{ step = 0, weights = { web = 2, code = 1, books = 0 } }, "
    stages += "{ step = 6, weights = { web = 1, code = 1, books = 1 } }]\n"
    text = text.replace('"constant"', '"stages"').replace("weights = { web = 2, code = 1 }\n", stages)
    (tmp_path / "more.toml").write_text(text + '[[datasets]]\nname = "books"\npath = "books.jsonl"\n')
    run, state = tmp_path / "run", {}
    for name, world, num_steps in (("phase1", 2, 4), ("more", 1, 6)):
        recipe = Recipe.from_toml(tmp_path / f"{name}.toml")
        options: dict[str, Any] = {"executor": "inline", "run_folder": run, "cache": tmp_path / "cache"}
        ranks = [recipe.loader(dp_rank=r, dp_world_size=world, **options) for r in range(world)]
        for loader in ranks:
            if state:
                loader.load_state_dict(state)
        take_steps(ranks, num_steps)
        state = union(ranks)
        for loader in ranks:
            loader.close()
    for more in ([], ["--replay"]):
        arguments = ["verify", str(run), *more, "--cache", str(tmp_path / "cache")]
        outcome = CliRunner().invoke(build_app(), arguments)
        assert outcome.exit_code == 0, outcome.output


def test_check_says_what_is_continued_and_what_later_phases_keep() -> None:
    second = small().continue_from(state_after(small(), 2))
    found = list(check_shape(second, (1, 2), None))
    assert [f.message for f in found if f.subject == "phase"] == [
        f"continues from step 2 of {small().fingerprint()[:SHORT]}; steps count from 0 again"
    ]
    assert any(
        "a later phase (continue_from) with another global batch must keep 4 lanes" in f.message
        for f in found
    )
