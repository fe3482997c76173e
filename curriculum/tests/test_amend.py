"""Composition: what each op does to the shares, in which order; piecemeal gives the same as the whole."""

from __future__ import annotations

import time
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon import PARTS, Constant, ScheduleContext, ScheduleTable, compile_schedule
from zephon_curriculum.log.amend import Amendment, Blobs, Composed, Layer, begin, removed_stages
from zephon_curriculum.log.ops import (
    Add,
    Op,
    Points,
    Replace,
    Retire,
    Scale,
    SkipDocuments,
    SkipSteps,
    Weights,
    numbers,
    op_json,
    read_op,
)
from zephon_curriculum.log.steps import AmendError, Steps, in_parts, merged

NAMES = ("web", "code", "math")
OTHER = ScheduleTable(NAMES, (0, 6), ((0, 0, PARTS), (PARTS, 0, 0)))


def parts(*weights: float) -> tuple[int, ...]:
    named = dict(zip("abcdefgh", weights, strict=False))
    context = ScheduleContext(names=tuple(named), total_steps=None, tokens_per_step=1)
    return compile_schedule(Constant(named), context).shares[0]


TABLE = ScheduleTable(NAMES, (0, 10, 20), (parts(2, 1, 1), parts(1, 1, 2), parts(1, 0, 0)))
BLOBS = Blobs({"base": TABLE, "other": OTHER}, {"list": (("web", "f", 1),), "more": (("web", "e", 0),)})


def start() -> Composed:
    return begin(0, TABLE, "base", BLOBS)


def amend(*ops: Op, at: int = 5, until: int | None = None, on: Composed | None = None) -> Composed:
    composed = on or start()
    number = 1 + len(composed.amendments)
    return composed.with_amendment(Amendment(number=number, at_step=at, until=until, ops=ops))


def w(**given: object) -> Weights:
    return Weights(numbers(given, "weights"))


def test_weights_hold_from_their_step_for_ever() -> None:
    assert amend(w(web=6, code=4, math=0)).steps == Steps((0, 5), (parts(2, 1, 1), parts(6, 4, 0)))


def test_weights_hold_until_their_end() -> None:
    found = amend(w(web=1, code=1, math=0), until=12).steps
    assert found == Steps((0, 5, 12, 20), (parts(2, 1, 1), parts(1, 1, 0), parts(1, 1, 2), parts(1, 0, 0)))


def test_weights_are_exact_fractions() -> None:
    assert amend(w(web="1/3", code="0.333", math="1")).steps.at(9) == in_parts([1000, 999, 3000])


def test_scale_acts_on_what_the_schedule_says_at_each_step() -> None:
    found = amend(Scale((("code", "3"),))).steps
    assert [found.at(s) for s in (4, 5, 10, 20)] == [
        parts(2, 1, 1),
        parts(2, 3, 1),
        parts(1, 3, 2),
        parts(1, 0, 0),
    ]


def test_points_are_added_exactly_and_taken_from_the_others_in_proportion() -> None:
    found = amend(Points((("code", "+10"),)), until=20).steps
    assert found.at(5) == parts(0.65 * 2 / 3, 0.35, 0.65 / 3)
    assert abs(found.at(10)[1] - Fraction(35, 100) * PARTS) < 1


def test_a_retired_dataset_leaves_its_share_to_the_others() -> None:
    assert amend(Retire("code")).steps.at(10) == parts(1, 0, 2)


def test_another_schedule_takes_the_place_of_what_is_there_by_its_own_steps() -> None:
    found = amend(Replace("other"), until=8).steps
    assert [found.at(s) for s in (4, 5, 6, 7, 8)] == [
        parts(2, 1, 1), (0, 0, PARTS), (PARTS, 0, 0), (PARTS, 0, 0), parts(2, 1, 1)
    ]  # fmt: skip


def test_a_dataset_is_added_at_the_end_without_a_share() -> None:
    found = amend(Add("prose", {"path": "x"}), Points((("prose", "+50"),)), at=12)
    assert found.names == (*NAMES, "prose")
    assert [found.steps.at(s) for s in (5, 12)] == [(*parts(2, 1, 1), 0), parts(1, 1, 2, 4)]


def test_skips_and_drops_go_into_the_table() -> None:
    found = amend(SkipSteps(5, 8), SkipDocuments("list", 1))
    found = amend(SkipDocuments("more", 1), on=amend(SkipSteps(2, 4), at=2, on=found))
    table = found.table()
    assert table.skips == ((2, 4), (5, 8))
    assert [(drop.step, drop.documents) for drop in table.drops] == [(5, (("web", "e", 0), ("web", "f", 1)))]


@pytest.mark.parametrize(
    ("op", "says"),
    [
        (
            Points((("code", "+90"),)),
            r"at step 5: the share of code leaves \[0, 1\]: 25.00% \+90 points = 115.00%",
        ),
        (Points((("code", "-30"),)), r"at step 5: the share of code leaves \[0, 1\]"),
        (Points((("web", "-20"),)), r"at step 20: the shares do not sum to 1"),
        (Scale((("web", "0"),)), "at step 20: no dataset is left: only web had a share"),
        (Retire("web"), "at step 20: no dataset is left"),
        (Scale((("wbe", "2"),)), "no dataset is named 'wbe'; the datasets are web, code, math"),
        (w(web=0, code=0, math=0), "all weights are zero"),
    ],
)
def test_what_leaves_no_mixture_is_refused_with_the_step(op: Op, says: str) -> None:
    with pytest.raises(AmendError, match=says):
        amend(op)


def test_skips_that_overlap_are_refused() -> None:
    with pytest.raises(AmendError, match=r"\[5, 8\) and \[7, 9\) overlap"):
        amend(SkipSteps(7, 9), at=7, on=amend(SkipSteps(5, 8)))


def test_stages_that_weights_hide_are_named() -> None:
    assert removed_stages(start(), 5, None) == [10, 20]
    assert removed_stages(start(), 5, 20) == [10]


def test_later_amendments_act_on_earlier_ones() -> None:
    twice = amend(w(web=1, code=1, math=0), at=7, on=amend(Scale((("code", "3"),))))
    scaled = amend(Scale((("code", "3"),)), on=amend(w(web=1, code=1, math=0), at=7))
    assert (twice.steps.at(7), scaled.steps.at(7)) == (parts(1, 1, 0), parts(1, 3, 0))


def test_a_recipe_edited_later_keeps_the_amendments_on_it() -> None:
    found = amend(Scale((("code", "3"),))).with_layer(Layer(number=2, from_step=8, table="other"))
    assert [found.steps.at(s) for s in (7, 8)] == [parts(2, 3, 1), (PARTS, 0, 0)]
    assert found.recipe() == Steps((0, 8), (parts(2, 1, 1), (PARTS, 0, 0)))


def test_rounding_is_that_of_the_core() -> None:
    for weights in ([1, 1, 1], [1, 2, 4], [7, 0, 5], [1, 1, 1, 1, 1, 1, 1]):
        assert in_parts(weights) == parts(*weights)


# Properties -------------------------------------------------------------------------------------------------

number = st.integers(0, 9).map(str) | st.sampled_from(["1/3", "0.05", "1.1"])
named = st.sampled_from(NAMES)
ops: st.SearchStrategy[Op] = st.one_of(
    st.fixed_dictionaries(dict.fromkeys(NAMES, number))
    .filter(lambda d: set(d.values()) != {"0"})
    .map(lambda d: Weights(tuple(d.items()))),
    st.dictionaries(named, number, min_size=1, max_size=2).map(lambda d: Scale(tuple(d.items()))),
    st.dictionaries(named, st.integers(-20, 20).map(str), min_size=1, max_size=2).map(
        lambda d: Points(tuple(d.items()))
    ),
    st.just(Replace("other")),
    named.map(Retire),
)
layers = st.builds(
    lambda at, weights: {"from_step": at, "weights": tuple(zip(NAMES, in_parts(weights), strict=True))},
    st.integers(1, 25),
    st.lists(st.integers(0, 5), min_size=3, max_size=3).filter(any),
) | st.integers(1, 25).map(lambda at: {"from_step": at, "table": "other"})
amendments = st.builds(
    lambda at, span, op: {"at_step": at, "until": None if span is None else at + span, "ops": (op,)},
    st.integers(0, 25),
    st.none() | st.integers(1, 9),
    ops,
)


def naive(events: list[dict[str, Any]], gone: int | None, step: int) -> tuple[int, ...]:
    """Returns the shares of one step, composed for it alone."""
    kept = [e for number, e in enumerate(events, 1) if number != gone]
    base = TABLE.at(step)
    for event in kept:
        if "from_step" in event and event["from_step"] <= step:
            base = OTHER.at(step) if "table" in event else tuple(p for _, p in event["weights"])
    composed = begin(0, ScheduleTable(NAMES, (0,), (base,)), "one", BLOBS | Blobs({"one": TABLE}))
    there = [e for e in kept if "ops" in e and e["at_step"] <= step < (e["until"] or 10**9)]
    absolute = [i for i, event in enumerate(there) if isinstance(event["ops"][0], Weights | Replace)]
    for number, event in enumerate(
        there[absolute[-1] if absolute else 0 :], 1
    ):  # what is hidden does not count
        op = event["ops"][0]
        now = (
            Weights(tuple(zip(NAMES, map(str, OTHER.at(step)), strict=True)))
            if isinstance(op, Replace)
            else op
        )
        composed = composed.with_amendment(Amendment(number=number, at_step=0, until=None, ops=(now,)))
    return composed.steps.at(0)


@given(st.lists(layers | amendments, max_size=8), st.integers(1, 8))
def test_piecemeal_gives_what_each_step_alone_does(events: list[dict[str, Any]], chosen: int) -> None:
    """Layers, amendments and a withdrawal, in any order: every step is as if composed for itself."""
    composed, done = start(), list[dict[str, Any]]()
    for event in events:
        number = len(done) + 1
        try:
            if "ops" in event:
                composed = composed.with_amendment(Amendment(number=number, **event))
            else:
                composed = composed.with_layer(Layer(number=number, **event))
        except AmendError:
            continue
        done.append(event)
    try:
        without = composed.without(chosen)
    except AmendError:
        return
    for found, gone in ((composed, None), (without, chosen)):
        assert all(sum(shares) == PARTS and min(shares) >= 0 for shares in found.steps.shares)
        assert merged(found.steps.starts, found.steps.shares) == found.steps
        for step in (*range(28), 40):
            assert found.steps.at(step) == naive(done, gone, step)


@given(ops)
def test_ops_read_back_as_they_were_written(op: Op) -> None:
    assert read_op(op_json(op)) == op or isinstance(op, Weights)
    assert dict(op_json(read_op(op_json(op)))) == op_json(op)


def test_a_thousand_decisions_on_a_long_ramp_are_quick() -> None:
    steps = range(100_000)
    ramp = ScheduleTable(NAMES, tuple(steps), tuple((PARTS - s, s, 0) for s in steps))
    composed = begin(0, ramp, "ramp", Blobs({"ramp": ramp}))
    composed = composed.with_amendment(Amendment(number=1, at_step=50, until=None, ops=(Retire("math"),)))
    began = time.process_time()
    for n in range(1000):
        weights = (("web", PARTS - n), ("code", n), ("math", 0))
        composed = composed.with_layer(Layer(number=n + 2, from_step=60_000 + 40 * n, weights=weights))
    assert time.process_time() - began < 10  # 1.1 s on two quiet cores
    assert composed.steps.at(99_960) == (PARTS - 999, 999, 0)
