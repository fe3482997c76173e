"""C9: a state says what it was taken with, and is refused, field by field, by what differs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import digest_of, digests, loaders, make_recipe, open_small, take_steps, union, words
from zephon.errors import StateError
from zephon.lanestate import CarriedPiece, LaneState
from zephon.loader import Loader
from zephon.lock import ALLOWANCES
from zephon.opened import Opened
from zephon.options import LoaderOptions
from zephon.schedule import BLOCK_STEPS, ScheduleTable
from zephon.stages import Constant, Stages
from zephon.state import check_shared, lane_key, read_lane, write_state
from zephon.stream import Cursor

State = dict[str, Any]
DOCUMENTS = {"web": words("web", 20), "code": words("code", 5, (9,))}
EVEN, WEB = {"web": 1, "code": 1}, {"web": 1, "code": 0}


def small(documents: Mapping[str, Sequence[str]] = DOCUMENTS, schedule: Any = None, **fields: Any) -> Opened:
    return open_small(make_recipe(documents, schedule, **fields))


def state_after(opened: Opened, num_steps: int) -> State:
    with loaders(opened) as ranks:
        take_steps(ranks, num_steps)
        return union(ranks)


def restore(opened: Opened, state: Mapping[str, Any], allow: Sequence[str] = ()) -> list[str]:
    """Returns the notes of a loader that goes on from `state` for a step."""
    with loaders(opened) as (loader,):
        loader.load_state_dict(state, allow=allow)
        next(loader)
        return loader.notes


# What is written ----------------------------------------------------------------------------------


def test_the_keys_are_four_and_one_for_each_lane() -> None:
    state = state_after(small(), 2)
    lanes = [f"lane_0000{lane}" for lane in range(4)]
    assert list(state) == ["version", "recipe", "lock", "schedule", *lanes]
    assert lane_key(12345) == "lane_12345"


def test_a_state_is_text_and_one_number() -> None:
    """No pickles: what is no number is JSON, of plain values."""
    state = state_after(small(kind="best_fit"), 2)
    assert state["version"] == 1
    for key, value in state.items():
        if key != "version":
            assert isinstance(value, str | bytes)
            assert isinstance(json.loads(value), dict)


def test_a_state_survives_json() -> None:
    opened = small(kind="best_fit")
    state = state_after(opened, 3)
    text = json.dumps({key: v.decode() if isinstance(v, bytes) else v for key, v in state.items()})
    with loaders(opened) as (loader,):
        loader.load_state_dict(json.loads(text))
        assert [batch.step for (batch,) in take_steps([loader], 2)] == [3, 4]


def test_a_state_is_the_same_text_however_often_it_is_taken() -> None:
    opened = small()
    assert state_after(opened, 3) == state_after(opened, 3) == state_after(small(), 3)


def test_hashes_stand_for_what_the_lock_names() -> None:
    state = state_after(small(), 1)
    hashes = json.loads(state["lock"])
    assert sorted(hashes) == ["data.code", "data.web", "tokenizer.file", "tokenizer.probe"]
    assert all(isinstance(value, str) for value in hashes.values())


PIECES = st.tuples(st.integers(0, 1), *[st.integers(0, 2**40)] * 3, st.integers(1, 2**40)).map(
    lambda numbers: CarriedPiece(*numbers)
)
CURSORS = st.none() | st.tuples(*[st.integers(0, 2**40)] * 3).map(lambda numbers: Cursor(*numbers))


@st.composite
def lane_states(draw: st.DrawFn, num_datasets: int = 2) -> LaneState:
    def column(values: st.SearchStrategy[Any]) -> tuple[Any, ...]:
        return tuple(draw(st.lists(values, min_size=num_datasets, max_size=num_datasets)))

    credits = column(st.integers(-(2**50), 2**50))[1:]
    kinds = st.dictionaries(st.sampled_from(["bad", "empty", "replaced"]), st.integers(0, 99))
    return LaneState(
        rows=draw(st.integers(0, 2**50)),
        tokens=column(st.integers(0, 2**60)),
        documents=column(st.integers(0, 2**50)),
        credits=(-sum(credits), *credits),
        cursors=column(CURSORS),
        counts=column(kinds.map(lambda kinds: tuple(sorted(kinds.items())))),
        carry=tuple(draw(st.lists(PIECES, max_size=4))),
        replay_rows=draw(st.integers(0, 99)),
    )


@given(lane_states(), st.none() | st.tuples(st.integers(1, 99), st.integers(1, 99)))
def test_a_lane_is_read_as_it_was_written(state: LaneState, inside: tuple[int, int] | None) -> None:
    opened = small()
    lanes = {3: state._replace(rows=(rows := state.rows % 1000))}
    written = write_state(opened, lanes, table=opened.table, attempt=0, inside=inside)
    assert read_lane(written["lane_00003"], 3, 2) == (state._replace(rows=rows), inside)


# What is refused ----------------------------------------------------------------------------------


FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": 43}, "seed: state has 42, this run has 43"),
    "lanes": ({"lanes": 2}, "lanes: state has 4, this run has 2"),
    "global_batch_size": (
        {"global_batch_size": 8, "lanes": 4},
        "global_batch_size: state has 4, this run has 8",
    ),
    "seq_len": ({"seq_len": 32}, "packing.seq_len: state has 16, this run has 32"),
    "packer": ({"kind": "best_fit"}, "packing.kind: state has 'wrap', this run has 'best_fit'"),
    "mask": (
        {"mask_document_ends": False},
        "packing.mask_document_ends: state has True, this run has False",
    ),
    "bos": ({"bos": "<s>"}, "tokenize.bos: state has False, this run has '<s>'"),
    "eos": ({"eos": False}, "tokenize.eos: state has '</s>', this run has False"),
    "datasets": (
        {"documents": {"code": DOCUMENTS["code"], "web": DOCUMENTS["web"]}},
        "datasets: state has ['web', 'code'], this run has ['code', 'web']",
    ),
}


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_of_the_recipe_is_refused_by_name(name: str) -> None:
    fields, message = FIELDS[name]
    state = state_after(small(), 2)
    with pytest.raises(StateError) as caught:
        restore(small(**fields), state, allow=ALLOWANCES)
    assert message in str(caught.value)
    assert "begin a new run" in str(caught.value)


def test_all_fields_that_differ_are_named_at_once() -> None:
    with pytest.raises(StateError, match="2 fields differ") as caught:
        restore(small(seed=1, seq_len=8), state_after(small(), 2))
    assert "seed" in str(caught.value)
    assert "packing.seq_len" in str(caught.value)


def test_data_that_changed_are_refused_and_may_be_accepted() -> None:
    state = state_after(small(), 2)
    other = small(DOCUMENTS | {"code": words("changed", 5, (9,))})
    with pytest.raises(StateError) as caught:
        restore(other, state)
    assert "dataset code: state has" in str(caught.value)
    assert "web" not in str(caught.value)
    assert "allow=['data']" in str(caught.value)
    for wrong in (["tokenizer"], ["schedule", "plugins"]):
        with pytest.raises(StateError, match="dataset code"):
            restore(other, state, allow=wrong)
    (note,) = restore(other, state, allow=["data"])
    assert note.startswith("accepted: dataset code: state has")
    assert "still stops the run if it changed: then begin a new run" in note


@pytest.mark.parametrize("what", ["file", "probe"])
def test_a_tokenizer_that_changed_is_refused_and_may_be_accepted(what: str) -> None:
    opened = small()
    state = state_after(opened, 2)
    lock = json.loads(json.dumps(opened.lock))
    lock["tokenizer"][what] = "0" * 64
    other = replace(opened, lock=lock)
    with pytest.raises(StateError, match=f"tokenizer {what}: state has") as caught:
        restore(other, state)
    assert "allow=['tokenizer']" in str(caught.value)
    assert restore(other, state, allow=["tokenizer"])[0].startswith(f"accepted: tokenizer {what}")


def test_a_plugin_that_changed_is_refused_and_may_be_accepted() -> None:
    opened = small()
    entry = {"packers.tides": {"distribution": "tide", "version": "1.0", "target": "tide:Tide"}}
    old = replace(opened, lock=opened.lock | {"plugins": entry})
    newer = {"packers.tides": entry["packers.tides"] | {"version": "1.1"}}
    state = state_after(old, 2)
    for now, message in (
        (newer, "plugin packers.tides: state has"),
        ({}, "plugin packers.tides: only in the"),
    ):
        other = replace(opened, lock=opened.lock | {"plugins": now})
        with pytest.raises(StateError, match=re.escape(message)) as caught:
            restore(other, state)
        assert "allow=['plugins']" in str(caught.value)
        assert len(restore(other, state, allow=["plugins"])) == 1


def test_what_is_named_by_none_of_the_allowances_is_an_error() -> None:
    state = state_after(small(), 2)
    for unknown in (["seed"], ["data", "everything"], "data"):
        with pytest.raises(ValueError, match="`allow` takes data, held_out, tokenizer, plugins, schedule"):
            restore(small(), state, allow=unknown)


# The schedule -------------------------------------------------------------------------------------


def test_the_future_of_the_schedule_may_change_and_that_is_said() -> None:
    state = state_after(small(schedule=Constant(EVEN)), 3)
    amended = small(schedule=Stages({0: EVEN, 3: WEB}))
    assert restore(amended, state) == ["the schedule differs from the state's at steps from 3 on: accepted"]
    with loaders(amended) as (loader,):
        loader.load_state_dict(state)
        (batch,) = take_steps([loader], 1)[0]
    assert batch.tokens_by_dataset["code"].sum() == 0


def test_the_same_schedule_in_other_words_is_the_same() -> None:
    state = state_after(small(schedule=Constant(EVEN)), 3)
    assert restore(small(schedule=Stages({0: {"web": 7, "code": 7}, 2: EVEN})), state) == []


@pytest.mark.parametrize("step", [0, 1, 2])
def test_the_past_of_the_schedule_may_not_change(step: int) -> None:
    state = state_after(small(schedule=Constant(EVEN)), 3)
    other = small(schedule=Stages({0: EVEN} | {step: WEB} | ({3: EVEN} if step else {1: EVEN})))
    with pytest.raises(StateError, match=r"in steps that are done, first in \[0, 3\)") as caught:
        restore(other, state, allow=["data", "tokenizer"])
    assert 'allow=["schedule"]' in str(caught.value)
    assert restore(other, state, allow=["schedule"]) == [
        "accepted: the schedule differs from the state's in steps [0, 3)"
    ]


@pytest.mark.parametrize("step", [0, BLOCK_STEPS - 1, BLOCK_STEPS, 2 * BLOCK_STEPS + 5])
def test_the_block_of_the_first_step_that_differs_is_named(step: int) -> None:
    opened = small(schedule=Constant(EVEN))
    done = 2 * BLOCK_STEPS + 10
    state = _state_at(opened, done)
    changed = Stages({0: EVEN} | {step: WEB, step + 1: EVEN})
    block = step // BLOCK_STEPS * BLOCK_STEPS
    where = f"[{block}, {min(block + BLOCK_STEPS, done)})"
    with pytest.raises(StateError, match=re.escape(f"first in {where}")):
        restore(small(schedule=changed), state)


def _state_at(opened: Opened, step: int) -> State:
    """Returns a state of lanes that never drew, after `step` steps."""
    zeros = (0, 0)
    rows = step * opened.recipe.rows_per_step
    lane = LaneState(rows, zeros, zeros, zeros, (None, None), ((), ()))
    return write_state(opened, dict.fromkeys(range(4), lane), table=opened.table, attempt=0, inside=None)


def test_a_hash_for_each_block_and_no_more() -> None:
    """The size of what a state says of a schedule does not depend on how often it changes."""
    restless = ScheduleTable(("web", "code"), tuple(range(5000)), tuple((s, 2**20 - s) for s in range(5000)))
    opened = replace(small(), table=restless)
    entry = json.loads(_state_at(opened, 5000)["schedule"])
    assert [len(block) for block in entry["blocks"]] == [16] * 5
    assert len(json.dumps(entry)) < 400


# What is no state ---------------------------------------------------------------------------------


def test_an_empty_state_is_refused_with_the_cure() -> None:
    with pytest.raises(StateError, match="the state has no 'version' entry") as caught:
        restore(small(), {})
    assert "an empty state" in str(caught.value)
    assert "some save the model alone" in str(caught.value)


@pytest.mark.parametrize("key", ["version", "recipe", "lock", "schedule"])
def test_each_missing_entry_is_named(key: str) -> None:
    state = state_after(small(), 2)
    del state[key]
    with pytest.raises(StateError, match=f"the state has no '{key}' entry"):
        restore(small(), state)


@pytest.mark.parametrize("version", [0, 2, "1", None, [1]])
def test_another_version_is_refused(version: object) -> None:
    state = state_after(small(), 2) | {"version": version}
    with pytest.raises(StateError, match="the state has another version") as caught:
        restore(small(), state)
    assert f"version {version!r}" in str(caught.value)


GARBAGE: list[object] = [b"", b"\xff\xfe", "{", "[]", "null", "3", "{}", None, 7, b"\x80\x04}."]


@pytest.mark.parametrize("garbage", GARBAGE, ids=repr)
@pytest.mark.parametrize("key", ["recipe", "lock", "schedule", "lane_00002"])
def test_an_entry_that_cannot_be_read_is_refused(key: str, garbage: object) -> None:
    state = state_after(small(), 2) | {key: garbage}
    with pytest.raises(StateError):
        restore(small(), state)


@pytest.mark.parametrize("key", ["attempt", "blocks", "hash", "past", "steps"])
def test_a_schedule_entry_without_a_field_is_refused(key: str) -> None:
    state = state_after(small(), 2)
    entry = json.loads(state["schedule"])
    del entry[key]
    with pytest.raises(StateError):
        restore(small(), state | {"schedule": json.dumps(entry)})


@pytest.mark.parametrize("entry", [{"future.thing": "x"}, {"thing": "x"}, {"data.web": 7}], ids=str)
def test_a_lock_with_what_is_none_of_its_hashes_is_refused(entry: dict[str, Any]) -> None:
    state = state_after(small(), 2)
    lock = json.dumps(json.loads(state["lock"]) | entry)
    with pytest.raises(StateError, match="shared entries cannot be read"):
        restore(small(), state | {"lock": lock}, allow=ALLOWANCES)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": -1},
        {"rows": 2.0},
        {"rows": True},
        {"tokens": [1]},
        {"tokens": "ab"},
        {"credits": [0.5, -0.5]},
        {"credits": [5 << 20, 0]},
        {"credits": [2**61, -(2**61)]},
        {"rows": 2**61},
        {"cursors": [None]},
        {"cursors": [[1, 0], None]},
        {"cursors": [[2**61, 0, 0], None]},
        {"counts": [{}, {}, {}]},
        {"counts": [[], []]},
        {"carry": [[0, 0, 0, 0]]},
        {"carry": [[2, 0, 0, 0, 1]]},
        {"carry": [[0, 2**61, 0, 0, 1]]},
        {"carry": [[0, 0, 0, 0, 0]]},
        {"held": [[0, 0, 0, 0, 0]]},
        {"replay_rows": -1},
        {"inside": [1]},
        {"inside": "ab"},
    ],
    ids=str,
)
def test_a_lane_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    state = state_after(small(), 2)
    entry = json.loads(state["lane_00001"]) | change
    with pytest.raises(StateError, match="lane 1: its entry cannot be read"):
        restore(small(), state | {"lane_00001": json.dumps(entry).encode()})


@pytest.mark.parametrize("key", ["rows", "tokens", "documents", "credits", "cursors", "counts"])
def test_a_lane_without_a_field_is_refused(key: str) -> None:
    state = state_after(small(), 2)
    entry = json.loads(state["lane_00001"])
    del entry[key]
    with pytest.raises(StateError, match="lane 1: its entry cannot be read"):
        restore(small(), state | {"lane_00001": json.dumps(entry).encode()})


@given(st.sampled_from(["recipe", "lock", "schedule", "lane_00000"]), st.data())
def test_a_state_that_was_cut_off_is_refused(key: str, data: st.DataObject) -> None:
    state = CUT_FROM
    value = state[key]
    cut = value[: data.draw(st.integers(0, len(value) - 1))]
    with pytest.raises(StateError):
        restore(small(), state | {key: cut})


CUT_FROM = state_after(small(), 2)


def test_unknown_keys_are_other_people_s() -> None:
    """A checkpoint may hold more beside; lanes of other ranks are such keys, too."""
    opened = small()
    state = state_after(opened, 2) | {"lane_00099": b"", "model": 3}
    assert restore(opened, state) == []


def test_check_shared_gives_the_attempt() -> None:
    opened = small()
    state = state_after(opened, 2)
    shared, notes = check_shared(state, opened, opened.table, ())
    assert (shared.attempt, notes) == (0, [])


def test_what_may_change_changes_freely() -> None:
    opened = small(global_batch_size=8)
    state = state_after(opened, 2)
    expected = digests(opened, 3)[2]
    for changes in ({"prefetch": 4, "workers": 3, "executor": "threads"}, {"micro_batch_size": 2}):
        with loaders(opened, 1, **changes) as ranks:
            ranks[0].load_state_dict(state)
            assert digest_of(take_steps(ranks, 1)[0]) == expected
            assert ranks[0].notes == []


def test_entries_of_lanes_that_were_swapped_are_refused() -> None:
    opened, options = open_small(make_recipe()), LoaderOptions(executor="inline")
    with Loader(opened, options) as loader:
        next(loader)
        state = loader.state_dict()
    state["lane_00000"], state["lane_00001"] = state["lane_00001"], state["lane_00000"]
    with Loader(opened, options) as other, pytest.raises(StateError, match="lane 1"):
        other.load_state_dict(state)
