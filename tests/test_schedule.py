"""Weights become integer shares by exact arithmetic, and a table says what holds at every step."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from zephon.schedule import BLOCK_STEPS, Drop, Schedule, ScheduleContext, ScheduleTable, compile_schedule
from zephon.shares import (
    MAX_WHOLE,
    PARTS,
    Weights,
    check_weights,
    shares_of,
    shares_of_each,
    shares_without,
)
from zephon.stages import Constant, Stages

CONTEXT = ScheduleContext(names=("web", "code"), total_steps=10, tokens_per_step=64)
HALF, QUARTER = PARTS // 2, PARTS // 4
WRONG = [
    {},
    {"web": 0, "code": 0},
    {"web": -1, "code": 2},
    {"web": math.nan, "code": 1},
    {"web": math.inf, "code": 1},
    {"web": -math.inf, "code": 1},
    {"web": "0.5", "code": 0.5},
    {"web": True, "code": 1},
    {"web": None, "code": 1},
    {"web": [1], "code": 1},
    {"web": 1j, "code": 1},
    [1, 2],
    None,
    3,
]


# Shares -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([1], [PARTS]),
        ([1, 1], [HALF, HALF]),
        ([3, 1], [3 * QUARTER, QUARTER]),
        ([1, 0], [PARTS, 0]),
        ([1, 1, 1], [349526, 349525, 349525]),  # the odd part goes to the one named first
        ([0, 1, 1, 1], [0, 349526, 349525, 349525]),
        ([2, 1], [699051, 349525]),
        ([1, 2], [349525, 699051]),  # the odd part goes to the larger remainder
        ([0.25, 0.75], [QUARTER, 3 * QUARTER]),
        ([1e-9, 1], [0, PARTS]),
        ([1e300, 1e300], [HALF, HALF]),
        ([5e-324, 5e-324], [HALF, HALF]),
        ([Fraction(1, 3), Fraction(2, 3)], [349525, 699051]),
    ],
)
def test_shares_by_largest_remainder(weights: list[float], expected: list[int]) -> None:
    names = [f"d{i}" for i in range(len(weights))]
    assert list(shares_of(dict(zip(names, weights, strict=True)), names, "here")) == expected


@given(st.lists(st.one_of(st.integers(0, 10**6), st.floats(0, 1e6)), min_size=1, max_size=12))
def test_shares_are_within_one_part_of_exact_and_sum_up(weights: list[float]) -> None:
    assume(any(weights))
    names = [f"d{i}" for i in range(len(weights))]
    shares = shares_of(dict(zip(names, weights, strict=True)), names, "here")
    total = sum(map(Fraction, weights))
    assert sum(shares) == PARTS
    for weight, share in zip(weights, shares, strict=True):
        assert abs(Fraction(weight) * PARTS / total - share) < 1
        assert weight or share == 0


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=6), st.integers(1, 1000), st.randoms())
def test_only_ratios_count_and_the_mapping_has_no_order(weights: list[int], times: int, random: Any) -> None:
    assume(any(weights))
    names = [f"d{i}" for i in range(len(weights))]
    pairs = list(zip(names, weights, strict=True))
    expected = shares_of(dict(pairs), names, "here")
    random.shuffle(pairs)
    assert shares_of({name: weight * times for name, weight in pairs}, names, "here") == expected


@pytest.mark.parametrize("weights", WRONG)
def test_what_is_no_weight_is_refused_with_its_place(weights: Any) -> None:
    with pytest.raises(ValueError, match=r"^stage 3: "):
        check_weights(weights, "stage 3")
    for build in (Constant, lambda wrong: Stages({0: {"web": 1, "code": 1}, 5: wrong})):
        with pytest.raises(ValueError, match="weight"):
            build(weights)


def test_a_refusal_names_the_dataset_and_the_value() -> None:
    with pytest.raises(ValueError, match=r"^here: the weight of 'code' must be finite and >= 0, got -0.5$"):
        check_weights({"web": 1, "code": -0.5}, "here")


def test_a_weight_may_be_huge() -> None:
    assert shares_of({"web": 10**400, "code": 10**400}, ("web", "code"), "here") == (HALF, HALF)


def test_unknown_and_missing_names_are_refused() -> None:
    with pytest.raises(ValueError, match="no dataset is named 'wbe'; the datasets are web, code"):
        shares_of({"wbe": 1, "web": 1, "code": 1}, CONTEXT.names, "here")
    with pytest.raises(ValueError, match="no weight for dataset 'code'; write code = 0 to leave it out"):
        shares_of({"web": 1}, CONTEXT.names, "here")


NAMES = ("web", "code", "math")
WHOLE = st.one_of(
    st.integers(0, 9), st.integers(0, 1 << 44), st.sampled_from([MAX_WHOLE, MAX_WHOLE + 1, 10**30])
)


@given(
    st.lists(st.tuples(WHOLE, WHOLE, WHOLE, st.permutations(NAMES)).filter(lambda m: any(m[:3])), min_size=1)
)
def test_shares_of_many_mixtures_are_those_of_each(mixtures: list[tuple[int, int, int, list[str]]]) -> None:
    given = [dict(zip(names, weights, strict=True)) for *weights, names in mixtures]
    steps = range(7, 7 + len(given))
    alone = [list(shares_of(weights, NAMES, "here")) for weights in given]
    assert shares_of_each(given, NAMES, steps).tolist() == alone


@pytest.mark.parametrize("number", [0.5, Fraction(1, 3), np.int64(3), 1e300])
def test_shares_of_many_mixtures_take_all_numbers(number: Any) -> None:
    given = [{"web": 1, "code": 2, "math": 3}, {"web": number, "code": 2, "math": 3}]
    alone = [list(shares_of(weights, NAMES, "here")) for weights in given]
    assert shares_of_each(given, NAMES, range(2)).tolist() == alone


@pytest.mark.parametrize(
    "wrong",
    [
        *WRONG,
        {"web": 1, "code": True, "math": 1},
        {"web": 0, "code": 0, "math": 0},
        {"web": 1, "code": -1, "math": 1},
        {"web": 1, "code": 1},
        {"web": 1, "code": 1, "maths": 1},
        {"web": 1, "code": 1, "math": 1, "more": 1},
    ],
)
def test_of_many_mixtures_the_wrong_one_is_named(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^schedule, step 9: "):
        shares_of_each([{"web": 1, "code": 2, "math": 3}, wrong], NAMES, (4, 9))


# Tables -----------------------------------------------------------------------------------------------------


def table(*entries: tuple[int, int]) -> ScheduleTable:
    """Returns the table of (start, share of web)."""
    return ScheduleTable(
        ("web", "code"), tuple(s for s, _ in entries), tuple((w, PARTS - w) for _, w in entries)
    )


TABLES = st.dictionaries(st.integers(1, 5000), st.integers(0, 3), max_size=6).map(
    lambda changes: table((0, 7), *sorted(changes.items()))
)


def test_an_entry_holds_until_the_next_and_the_last_for_ever() -> None:
    three = table((0, 1), (3, 2), (5, 3))
    assert [three.at(step)[0] for step in range(8)] == [1, 1, 1, 2, 2, 3, 3, 3]
    assert [three.phase(step) for step in range(8)] == [0, 0, 0, 1, 1, 2, 2, 2]
    assert [step for step in range(8) if three.begins(step)] == [0, 3, 5]
    assert three.at(10**12) == (3, PARTS - 3)


def test_first_active_is_the_first_step_with_a_share() -> None:
    names = ("a", "b", "c", "d")
    shares = ((PARTS, 0, 0, 0), (HALF, HALF, 0, 0), (0, PARTS, 0, 0), (HALF, QUARTER, QUARTER, 0))
    assert ScheduleTable(names, (0, 4, 6, 9), shares).first_active() == (0, 4, 9, None)


@given(TABLES)
def test_a_table_is_the_same_after_json(one: ScheduleTable) -> None:
    again = ScheduleTable.from_json(json.loads(json.dumps(one.to_json())))
    assert again == one
    assert again.hash() == one.hash()


@given(TABLES, TABLES, st.integers(0, 6000))
def test_the_first_difference_is_found_without_asking_every_step(
    one: ScheduleTable, other: ScheduleTable, num_steps: int
) -> None:
    slow = next((step for step in range(num_steps) if one.at(step) != other.at(step)), None)
    assert one.first_difference(other, num_steps) == slow


@given(TABLES, TABLES, st.integers(0, 6000))
def test_pasts_are_equal_just_where_all_steps_done_are(
    one: ScheduleTable, other: ScheduleTable, num_steps: int
) -> None:
    differs = one.first_difference(other, num_steps)
    (rolling, blocks), (rolling_other, blocks_other) = one.past(num_steps), other.past(num_steps)
    assert len(blocks) == len(blocks_other) == -(-num_steps // BLOCK_STEPS)
    assert (rolling == rolling_other) == (differs is None)
    first = next((i for i, (a, b) in enumerate(zip(blocks, blocks_other, strict=True)) if a != b), None)
    assert first == (None if differs is None else differs // BLOCK_STEPS)


def test_a_past_does_not_tell_how_the_table_is_written() -> None:
    plain, split = table((0, 1), (2000, 2)), table((0, 1), (500, 1), (1024, 1), (2000, 2), (2500, 3))
    assert split.past(2500) == plain.past(2500)
    assert split.past(2501) != plain.past(2501)
    assert split.hash() != plain.hash()


@given(TABLES, st.lists(st.integers(0, 6000), max_size=8))
def test_what_a_table_keeps_of_its_hashes_does_not_change_them(one: ScheduleTable, asked: list[int]) -> None:
    for num_steps in [*asked, *asked[::-1]]:
        again = ScheduleTable(one.names, one.starts, one.shares)
        assert (one.past(num_steps), one.hash()) == (again.past(num_steps), again.hash())


def test_the_hashes_of_a_long_table_are_computed_once() -> None:
    steps = 1 << 15
    ramp = table(*((step, step) for step in range(steps)))
    first, again = (_cpu_seconds(lambda: (ramp.past(steps), ramp.hash())) for _ in range(2))
    assert again < first / 10


def _cpu_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def test_names_are_part_of_a_past() -> None:
    one = table((0, 1))
    assert ScheduleTable(("code", "web"), one.starts, one.shares).past(1) != one.past(1)


# Compiling --------------------------------------------------------------------------------------------------


@dataclass
class Plain:
    """A schedule without `changes()`: web grows by one a step, up to 3."""

    def weights(self, step: int) -> Weights:
        return {"web": min(step, 3), "code": 1}


@dataclass
class Changing:
    """A schedule whose changes are given."""

    steps: Sequence[int]

    def weights(self, step: int) -> Weights:
        return {"web": step, "code": 1}

    def changes(self) -> Sequence[int]:
        return self.steps


@settings(max_examples=20)
@given(st.integers(1, 7), st.lists(st.tuples(WHOLE, st.integers(1, 9)), min_size=1, max_size=5))
def test_a_long_table_is_what_each_step_alone_rounds_to(every: int, weights: list[tuple[int, int]]) -> None:
    class Waves:
        def weights(self, step: int) -> Weights:
            return dict(zip(CONTEXT.names, weights[step // every % len(weights)], strict=True))

    steps = 1200
    compiled = compile_schedule(Waves(), dataclasses.replace(CONTEXT, total_steps=steps))
    alone = [shares_of(Waves().weights(step), CONTEXT.names, "here") for step in range(steps)]
    assert [compiled.at(step) for step in range(steps)] == alone
    assert list(compiled.starts) == [0, *(i for i in range(1, steps) if alone[i] != alone[i - 1])]
    assert {type(number) for entry in (compiled.starts, *compiled.shares) for number in entry} == {int}


def test_a_schedule_without_changes_is_asked_at_every_step() -> None:
    compiled = compile_schedule(Plain(), CONTEXT)
    assert compiled.starts == (0, 1, 2, 3)  # equal ones are merged
    assert compiled.at(10**6) == (3 * QUARTER, QUARTER)


def test_without_changes_the_length_of_the_run_must_be_known() -> None:
    endless = ScheduleContext(names=("web", "code"), total_steps=None, tokens_per_step=64)
    with pytest.raises(ValueError, match="schedule Plain: has no `changes\\(\\)`, so the recipe must say"):
        compile_schedule(Plain(), endless)


def test_without_changes_a_run_may_not_be_too_long_to_ask() -> None:
    long = ScheduleContext(names=("web", "code"), total_steps=1 << 40, tokens_per_step=64)
    with pytest.raises(ValueError, match=r"Plain: has no `changes.* got `total_steps` = 1,099,511,627,776"):
        compile_schedule(Plain(), long)


@pytest.mark.parametrize("wrap", [lambda weights: weights, MappingProxyType])
def test_a_schedule_may_fill_one_mapping_at_every_step(wrap: Any) -> None:
    class Filling:
        def __init__(self) -> None:
            self.filled = {"web": 1, "code": 1}

        def weights(self, step: int) -> Weights:
            self.filled["web"] = step
            return cast(Weights, wrap(self.filled))

    compiled = compile_schedule(Filling(), CONTEXT)
    alone = [shares_of({"web": step, "code": 1}, CONTEXT.names, "here") for step in range(4)]
    assert [compiled.at(step) for step in range(4)] == alone


@pytest.mark.parametrize("steps", [[], [1], [0, 0], [0, 5, 4], [0, 5, 5]])
def test_changes_that_do_not_ascend_from_zero_are_refused(steps: list[int]) -> None:
    with pytest.raises(ValueError, match="schedule Changing: `changes\\(\\)` must ascend from 0"):
        compile_schedule(Changing(steps), CONTEXT)


def test_changes_may_be_an_array() -> None:
    compiled = compile_schedule(Changing(np.array([0, 1, 3])), CONTEXT)  # type: ignore[arg-type]
    assert compiled == compile_schedule(Changing([0, 1, 3]), CONTEXT)
    assert json.loads(json.dumps(compiled.to_json()))["starts"] == [0, 1, 3]


def test_a_wrong_weight_names_its_step() -> None:
    class Sinking:
        def weights(self, step: int) -> Weights:
            return {"web": 2 - step, "code": 1}

    with pytest.raises(ValueError, match=r"^schedule, step 3: the weight of 'web' .* got -1$"):
        compile_schedule(Sinking(), CONTEXT)


def test_a_schedule_is_a_role() -> None:
    assert isinstance(Plain(), Schedule)
    assert not isinstance(object(), Schedule)


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64])
def test_whole_numbers_of_numpy_do_not_overflow(kind: type) -> None:
    assert shares_of({"a": kind(100), "b": kind(50)}, ("a", "b"), "here") == (699051, 349525)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any), st.data())
def test_shares_of_what_is_gone_go_to_the_others_in_proportion(
    weights: list[int], data: st.DataObject
) -> None:
    names = [f"d{i}" for i in range(len(weights))]
    shares = shares_of(dict(zip(names, weights, strict=True)), names, "here")
    gone = data.draw(st.frozensets(st.sampled_from(range(len(weights)))))
    found = shares_without(shares, gone)
    left = [0 if i in gone else share for i, share in enumerate(shares)]
    assert sum(found) == (PARTS if any(left) else 0)
    for share, one in zip(left, found, strict=True):
        assert bool(share) == bool(one)
        assert abs(one - (share * PARTS / sum(left) if any(left) else 0)) < 1
    assert found == shares_of(dict(zip(names, left, strict=True)), names, "here") if any(left) else True


def test_the_rest_of_a_rounding_goes_to_the_dataset_named_first() -> None:
    shares = (1, 1, 1, PARTS - 3)
    assert shares_without(shares, frozenset([3])) == (349526, 349525, 349525, 0)
    assert shares_without(shares, frozenset([0, 1, 2, 3])) == (0, 0, 0, 0)
    assert shares_without(shares, frozenset()) == shares


@given(st.lists(st.integers(0, 1 << 70), min_size=1, max_size=9).filter(any))
def test_whole_weights_give_the_shares_of_the_same_fractions(weights: list[int]) -> None:
    names = [f"d{i}" for i in range(len(weights))]
    quick = shares_of(dict(zip(names, weights, strict=True)), names, "here")
    exact = shares_of({name: Fraction(w) for name, w in zip(names, weights, strict=True)}, names, "here")
    assert quick == exact


def test_drops_are_told_apart_without_a_look_at_their_documents() -> None:
    """Every lane asks at every step which drops are in force, and each may name thousands of documents."""

    class Unread(tuple[tuple[str, str, int], ...]):
        __slots__ = ()

        def __hash__(self) -> int:
            raise AssertionError("every document is read")

        def __eq__(self, other: object) -> bool:
            raise AssertionError("every document is read")

    documents = (("web", "a.jsonl", 1), ("web", "a.jsonl", 4))
    drops = [Drop(7, Unread(documents)), Drop(7, Unread(documents)), Drop(8, Unread(documents))]
    assert drops[0] == drops[1]
    assert len({*drops}) == 2
    assert Drop(7, documents[:1]) not in drops
