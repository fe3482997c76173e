"""The mix is exact in tokens at every draw, whatever the shares do and however long the pieces are."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon.bits import key
from zephon.dataset import Dataset
from zephon.mixture import (
    FULL_SPREAD_LANES,
    MANY_DATASETS,
    R2_FIRST,
    R2_SECOND,
    SPREAD_LANES,
    WORD,
    Ledger,
    MixtureWorkSource,
    WideLedger,
    WorkSourceContext,
    begin_step,
    first_credits,
)
from zephon.schedule import ScheduleContext, ScheduleTable, compile_schedule
from zephon.shares import PARTS, shares_of
from zephon.stages import Constant, Stages

SOURCE = MixtureWorkSource([], {"any": 1})
SEQ_LEN = 128


def shares(*weights: int) -> tuple[int, ...]:
    names = [f"d{i}" for i in range(len(weights))]
    return shares_of(dict(zip(names, weights, strict=True)), names, "here")


def ledger(shares: Sequence[int], credits: Sequence[int] | None = None, rest: int = 10**9) -> Ledger:
    made = Ledger.empty(0, len(shares))
    made.shares, made.rest = tuple(shares), rest
    made.credits = tuple(credits or [0] * len(shares))
    return made


# Choosing ---------------------------------------------------------------------------------------------------


def test_the_largest_credit_is_chosen_ties_by_order() -> None:
    assert SOURCE.choose(ledger(shares(1, 1, 1), [0, 5, -5]))[0] == 1
    assert SOURCE.choose(ledger(shares(1, 1, 1), [0, 5, 5]))[0] == 1
    assert SOURCE.choose(ledger(shares(1, 1, 1), [-1, -1, 2]))[0] == 2
    assert SOURCE.choose(ledger(shares(1, 1), [0, 0]))[0] == 0


def test_a_share_of_zero_is_never_chosen_whatever_is_owed() -> None:
    assert SOURCE.choose(ledger((0, PARTS, 0), [10**12, -(10**12), 10**9])) == (1, 10**9)


def test_one_dataset_fills_the_row() -> None:
    assert SOURCE.choose(ledger((PARTS,), rest=77)) == (0, 77)


def test_the_shares_of_the_ledger_count_and_no_other() -> None:
    even = ledger(shares(1, 1), [10, -10])
    assert SOURCE.choose(even)[0] == MixtureWorkSource([], {"d1": 1}).choose(even)[0] == 0


@settings(max_examples=300)
@given(st.data(), st.integers(1, 8))
def test_a_run_is_what_asking_before_every_document_gives(data: st.DataObject, n: int) -> None:
    weights = data.draw(st.lists(st.integers(0, 50), min_size=n, max_size=n).filter(any))
    credits = data.draw(st.lists(st.integers(-100 * PARTS, 100 * PARTS), min_size=n, max_size=n))
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=30))
    mixed = ledger(shares(*weights), credits, rest=data.draw(st.integers(1, 300)))
    dataset, run = SOURCE.choose(mixed)
    assert 0 <= run <= mixed.rest
    drawn = 0
    for length in lengths:
        length = min(length, mixed.rest)
        mixed.charge(dataset, length, 1)
        drawn += length
        mixed.rest -= length
        if mixed.rest == 0:
            return
        stays = SOURCE.choose(mixed)[0] == dataset
        if drawn < run:
            assert stays
        elif drawn > run:
            assert not stays or run == 0
            return


def test_a_choice_leaves_the_ledger_alone() -> None:
    before, mixed = ledger(shares(3, 1), [7, -7]), ledger(shares(3, 1), [7, -7])
    assert SOURCE.choose(mixed) == SOURCE.choose(mixed)
    assert mixed == before


# Charging and the bound -------------------------------------------------------------------------------------


def test_a_draw_is_charged_to_its_dataset_by_the_shares() -> None:
    mixed = ledger((3 * PARTS // 4, PARTS // 4))
    mixed.charge(0, 100, 2)
    assert mixed.credits == (-25 * PARTS, 25 * PARTS)
    assert (mixed.tokens, mixed.documents) == ([100, 0], [2, 0])
    mixed.charge(1, 100, 0)
    assert mixed.credits == (50 * PARTS, -50 * PARTS)
    assert (mixed.tokens, mixed.documents) == ([100, 100], [2, 0])


SHARES = st.one_of(
    st.lists(st.integers(0, 5), min_size=12, max_size=12),  # with zeros: datasets come and go
    st.lists(st.sampled_from([1, 10, 1000, 10**6]), min_size=12, max_size=12),
    st.integers(0, 11).map(lambda i: [int(j == i) for j in range(12)]),  # jumps: one at a time
    st.integers(0, 100).map(lambda t: [t + 1, 101 - t, *[(t * k) % 17 for k in range(10)]]),  # ramps
)


@settings(max_examples=200)
@given(
    st.integers(1, 12),
    st.lists(st.tuples(SHARES, st.integers(1, 20)), min_size=1, max_size=12),
    st.integers(1, 3000),
    st.randoms(use_true_random=False),
    st.sampled_from(["any", "longest", "by dataset", "owed"]),
)
def test_the_mix_is_within_its_bound_at_every_draw(
    n: int, phases: list[tuple[list[int], int]], longest: int, random: Any, lengths: str
) -> None:
    """From credits of zero, as the bound counts first credits apart; rows cut pieces as they do in a lane."""
    mixed = ledger((PARTS,) + (0,) * (n - 1))
    integral = [0] * n
    bound = (2 + sum(Fraction(1, k) for k in range(1, n))) * longest * PARTS
    for weights, num_draws in phases:
        if not any(weights[:n]):
            continue
        mixed.shares = shares(*weights[:n])
        for _ in range(num_draws):
            mixed.rest = random.randint(1, 4 * longest)
            dataset, at_least = SOURCE.choose(mixed)
            while True:
                length = {
                    "any": random.randint(1, longest),
                    "longest": longest,
                    "by dataset": 1 + longest * dataset // n,
                    "owed": longest if mixed.credits[dataset] < PARTS else 1,
                }[lengths]
                length = min(length, mixed.rest)
                integral = [i + s * length for i, s in zip(integral, mixed.shares, strict=True)]
                mixed.charge(dataset, length, 1)
                at_least, mixed.rest = at_least - length, mixed.rest - length
                assert sum(mixed.credits) == 0
                for drawn, wanted, credit in zip(mixed.tokens, integral, mixed.credits, strict=True):
                    assert drawn * PARTS - wanted == -credit
                    assert abs(credit) <= bound
                if at_least <= 0 or mixed.rest == 0:
                    break


def test_at_share_zero_a_credit_is_frozen() -> None:
    mixed = ledger(shares(1, 1), [3 * PARTS, -3 * PARTS])
    mixed.shares = (0, PARTS)
    for _ in range(10):
        dataset, _ = SOURCE.choose(mixed)
        mixed.charge(dataset, 100, 1)
    assert mixed.credits == (3 * PARTS, -3 * PARTS)


def test_documents_of_ten_times_the_length_do_not_get_ten_times_the_share() -> None:
    mixed = ledger(shares(1, 1))
    for _ in range(2000):
        dataset, at_least = SOURCE.choose(mixed)
        while at_least > 0 or not mixed.tokens[dataset]:
            mixed.charge(dataset, (40, 400)[dataset], 1)
            at_least -= (40, 400)[dataset]
    assert abs(mixed.tokens[0] - mixed.tokens[1]) <= 2 * 400
    assert mixed.documents[0] > 9 * mixed.documents[1]


# Many datasets ----------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(st.data(), st.integers(1, 30))
def test_many_datasets_are_chosen_as_few_are(data: st.DataObject, n: int) -> None:
    """The two kinds of ledger go through the same draws, with shares that come, go and change."""
    narrow, wide = Ledger(0), WideLedger(0)
    for made in (narrow, wide):
        made.tokens, made.documents, made.credits = [0] * n, [0] * n, (0,) * n
    weights = st.lists(st.sampled_from([0, 1, 2, 3, 100]), min_size=n, max_size=n).filter(any)
    for _ in range(data.draw(st.integers(1, 4))):
        drawn = shares(*data.draw(weights))
        gains = data.draw(st.lists(st.integers(-3 * PARTS, 3 * PARTS), min_size=n, max_size=n))
        for made in (narrow, wide):
            made.shares = drawn
            made.credits = tuple(c + gain for c, gain in zip(made.credits, gains, strict=True))
        for length in data.draw(st.lists(st.integers(1, 300), max_size=20)):
            narrow.rest = wide.rest = 300
            dataset, run = SOURCE.choose(narrow)
            assert SOURCE.choose(wide) == (dataset, run)
            for made in (narrow, wide):
                made.charge(dataset, length, 1)
                made.charge(dataset, 1, 0)
            assert wide.tokens == narrow.tokens
    assert (wide.credits, wide.documents, wide.shares) == (narrow.credits, narrow.documents, narrow.shares)


@pytest.mark.parametrize("num_datasets", [1, MANY_DATASETS, MANY_DATASETS + 1])
def test_nobody_can_change_credits_in_place(num_datasets: int) -> None:
    ledger = Ledger.empty(0, num_datasets)
    ledger.shares = shares(*range(1, num_datasets + 1))
    before = ledger.credits
    ledger.charge(0, 10, 1)
    assert (type(before), set(before), type(ledger.credits)) == (tuple, {0}, tuple)
    assert pickle.loads(pickle.dumps(ledger)) == ledger == replace(ledger)


def test_a_ledger_of_many_datasets_is_made_and_read_as_any() -> None:
    few, many = Ledger.empty(3, MANY_DATASETS), Ledger.empty(3, MANY_DATASETS + 1)
    assert (type(few), type(many)) == (Ledger, WideLedger)
    many.shares = shares(*range(1, MANY_DATASETS + 2))
    many.charge(2, 10, 1)
    before = replace(many, tokens=[*many.tokens])
    SOURCE.choose(many)
    assert many == before
    assert sum(many.credits) == 0
    assert all(type(credit) is int for credit in many.credits)
    many.charge(2, 1, 0)
    assert many != before


# The first credits ------------------------------------------------------------------------------------------


@given(st.integers(1, 64), st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any), st.data())
def test_first_credits_sum_to_zero_and_are_two_rows_at_most(
    num_lanes: int, weights: list[int], data: st.DataObject
) -> None:
    given_shares = shares(*weights)
    active = [i for i, share in enumerate(given_shares) if share]
    fresh = tuple(sorted(data.draw(st.sets(st.sampled_from(active), min_size=1))))
    for lane in range(num_lanes):
        gains = first_credits(lane, num_lanes, given_shares, fresh, SEQ_LEN)
        assert sum(gains) == 0
        assert max(map(abs, gains)) <= 2 * SEQ_LEN * PARTS
        assert all(not gain for gain, share in zip(gains, given_shares, strict=True) if not share)


def first_credits_plainly(
    lane: int, num_lanes: int, shares: tuple[int, ...], fresh: tuple[int, ...]
) -> tuple[int, ...]:
    """Returns `first_credits` with nothing kept between lanes."""
    salt = key("first credits", *fresh)
    place = ((lane + 1) * R2_FIRST + salt) % WORD * PARTS // WORD
    spread = SEQ_LEN * min(FULL_SPREAD_LANES, num_lanes) // SPREAD_LANES
    held = SEQ_LEN // 2 + ((lane + 1) * R2_SECOND + salt) % WORD * spread // WORD
    for i in fresh:
        if place < shares[i]:
            return tuple(held * PARTS * (j == i) - held * share for j, share in enumerate(shares))
        place -= shares[i]
    mean, fresh_share = (SEQ_LEN + spread) // 2, sum(shares[i] for i in fresh)
    gains = [
        -mean * share if i in fresh else mean * fresh_share * share // (PARTS - fresh_share)
        for i, share in enumerate(shares)
    ]
    gains[next(i for i, share in enumerate(shares) if share and i not in fresh)] -= sum(gains)
    return tuple(gains)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30).filter(any), st.data())
def test_first_credits_of_a_lane_do_not_depend_on_the_lanes_before(
    weights: list[int], data: st.DataObject
) -> None:
    given_shares = shares(*weights)
    active = [i for i, share in enumerate(given_shares) if share]
    fresh = tuple(sorted(data.draw(st.sets(st.sampled_from(active), min_size=1))))
    for lane in range(40):
        expected = first_credits_plainly(lane, 40, given_shares, fresh)
        assert first_credits(lane, 40, given_shares, fresh, SEQ_LEN) == expected


def test_the_lanes_begin_near_the_plan() -> None:
    """Without first credits the first row of all 32 lanes would be of the largest dataset alone."""
    given_shares = shares(5, 3, 2)
    first = [0, 0, 0]
    for lane in range(32):
        mixed = ledger(given_shares, rest=SEQ_LEN)
        mixed.credits = first_credits(lane, 32, given_shares, (0, 1, 2), SEQ_LEN)
        while mixed.rest:
            dataset, at_least = SOURCE.choose(mixed)
            length = min(max(1, at_least), mixed.rest)
            mixed.charge(dataset, length, 1)
            mixed.rest -= length
        first = [a + b for a, b in zip(first, mixed.tokens, strict=True)]
    total = 32 * SEQ_LEN
    distance = sum(abs(f / total - s / PARTS) for f, s in zip(first, given_shares, strict=True)) / 2
    assert distance < 0.1


def table(stages: dict[int, dict[str, float]]) -> ScheduleTable:
    context = ScheduleContext(names=("a", "b", "c"), total_steps=None, tokens_per_step=1)
    return compile_schedule(Stages(stages), context)


def test_first_credits_come_once_for_each_dataset() -> None:
    plan = table(
        {
            0: {"a": 1, "b": 1, "c": 0},
            2: {"a": 1, "b": 0, "c": 0},  # b rests
            4: {"a": 1, "b": 1, "c": 0},  # and is back: it holds what it held
            6: {"a": 1, "b": 1, "c": 1},  # c begins
        }
    )
    mixed, changed = Ledger.empty(3, 3), []
    for step in range(10):
        before = mixed.credits
        begin_step(mixed, plan, step, 8, SEQ_LEN)
        assert mixed.shares == plan.at(step)
        assert sum(mixed.credits) == 0
        if mixed.credits != before:
            changed.append(step)
    assert changed == [0, 6]


def test_a_restored_lane_begins_its_step_alike() -> None:
    plan = table({0: {"a": 1, "b": 1, "c": 0}, 5: {"a": 1, "b": 1, "c": 1}})
    whole = Ledger.empty(1, 3)
    for step in range(6):
        begin_step(whole, plan, step, 4, SEQ_LEN)
    restored = Ledger.empty(1, 3)
    begin_step(restored, plan, 0, 4, SEQ_LEN)
    begin_step(restored, plan, 5, 4, SEQ_LEN)  # the state of the end of step 4, then step 5
    assert restored == whole


# The description --------------------------------------------------------------------------------------------


def test_weights_alone_are_a_constant_schedule() -> None:
    dataset = Dataset.from_documents("web", ["x"])
    assert MixtureWorkSource([dataset], {"web": 2}).schedule == Constant({"web": 2})
    stages = Stages({0: {"web": 1}})
    assert MixtureWorkSource([dataset], stages).schedule is stages
    assert MixtureWorkSource(iter([dataset]), stages).datasets == (dataset,)


def test_the_table_of_a_recipe_takes_no_fields() -> None:
    context = WorkSourceContext(datasets=(), schedule=Constant({"web": 1}))
    assert MixtureWorkSource.from_config({}, context) == MixtureWorkSource([], {"web": 1})
    with pytest.raises(ValueError, match="work_source mixture: unknown field 'by'; it takes none"):
        MixtureWorkSource.from_config({"by": "tokens"}, context)


@given(
    weights=st.lists(st.integers(0, 5), min_size=2, max_size=6).filter(any),
    gone=st.frozensets(st.integers(0, 5)),
    lane=st.integers(0, 63),
)
def test_what_is_gone_from_the_start_gets_no_first_credit(
    weights: list[int], gone: frozenset[int], lane: int
) -> None:
    names = tuple(f"d{i}" for i in range(len(weights)))
    given = dict(zip(names, weights, strict=True))
    table = compile_schedule(
        Constant(given), ScheduleContext(names=names, total_steps=None, tokens_per_step=1)
    )
    made = Ledger.empty(lane, len(weights))
    begin_step(made, table, 0, 64, SEQ_LEN, gone)
    assert sum(made.credits) == 0
    assert all(made.credits[i] == made.shares[i] == 0 for i in range(len(weights)) if i in gone)
    left = {name: 0 if i in gone else weight for i, (name, weight) in enumerate(given.items())}
    if any(left.values()):
        alone = compile_schedule(
            Constant(left), ScheduleContext(names=names, total_steps=None, tokens_per_step=1)
        )
        other = Ledger.empty(lane, len(weights))
        begin_step(other, alone, 0, 64, SEQ_LEN)
        assert sum(abs(a - b) for a, b in zip(made.shares, other.shares, strict=True)) <= 2 * len(weights)
    else:
        assert not any(made.shares)
