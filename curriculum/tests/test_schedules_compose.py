"""Parts one after the other, cycles, and bounds by water-filling, compared with simpler ways."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon import Constant, ScheduleContext, compile_schedule
from zephon_curriculum import Bounds, Ramp, Repeat, Then
from zephon_curriculum.schedules.bounds import fill
from zephon_curriculum.schedules.nested import EveryStep, build

CONTEXT = ScheduleContext(names=("web", "code", "math"), total_steps=100, tokens_per_step=1000)
OPEN = ScheduleContext(names=("web", "code", "math"), total_steps=None, tokens_per_step=1000)
WEB, CODE, MATH = {"web": 1}, {"code": 1}, {"math": 1}
THIRDS = {"web": 1, "code": 1, "math": 1}


def constant(weights: Mapping[str, float], **more: Any) -> dict[str, Any]:
    return {"kind": "constant", "weights": weights, **more}


def shares(config: dict[str, Any], step: int, context: ScheduleContext = CONTEXT) -> list[Fraction]:
    weights = build(config, context).weights(step)
    total = sum(map(Fraction, weights.values()))
    return [Fraction(weights.get(name, 0)) / total for name in context.names]


# Then and repeat --------------------------------------------------------------------------------------------


def test_parts_follow_each_other_and_count_their_own_steps() -> None:
    ramp = {"kind": "linear", "from": WEB, "to": CODE, "length": "10K tokens"}
    config = {"kind": "then", "parts": [constant(MATH, length=5), ramp, constant(THIRDS)]}
    expected = [[0, 0, 1]] * 5 + [[Fraction(9 - k, 9), Fraction(k, 9), 0] for k in range(10)]
    assert [shares(config, step) for step in range(15)] == expected
    assert shares(config, 15) == shares(config, 10**6) == [Fraction(1, 3)] * 3
    assert list(compile_schedule(build(config, CONTEXT), CONTEXT).starts) == [0, *range(5, 16)]


def test_a_part_is_the_run_of_what_is_in_it() -> None:
    inner = {"kind": "wsd", "from": WEB, "to": CODE, "last": "50%", "blend": 0, "length": 10}
    config = {
        "kind": "then",
        "parts": [inner, {"kind": "wsd", "from": WEB, "to": CODE, "last": "50%", "blend": 0}],
    }
    found = [shares(config, step)[1] for step in (4, 5, 9, 10, 54, 55, 99)]
    assert found == [0, 1, 1, 0, 0, 1, 1]


def test_the_last_part_may_end_and_its_last_step_holds() -> None:
    schedule = Then(((Ramp(from_=WEB, to=CODE, end=10), 4), (Ramp(from_=WEB, to=CODE, end=10), 3)))
    table = compile_schedule(
        schedule, ScheduleContext(names=("web", "code"), total_steps=None, tokens_per_step=1)
    )
    assert table.starts == tuple(range(7))
    assert table.at(6) == table.at(2) == table.at(99)
    assert schedule.weights(99) == schedule.weights(6)


def test_cycles_repeat_and_the_last_step_holds() -> None:
    config = {
        "kind": "repeat",
        "period": 4,
        "times": 2,
        "schedule": {"kind": "linear", "from": WEB, "to": CODE},
    }
    found = [
        shares(config, step, ScheduleContext(names=("web", "code"), total_steps=9, tokens_per_step=1))[1]
        for step in range(10)
    ]
    assert [3 * share for share in found] == [0, 1, 2, 3, 0, 1, 2, 3, 3, 3]


def test_cycles_fill_the_run_where_they_are_not_counted() -> None:
    built = build({"kind": "repeat", "period": "30%", "schedule": constant(THIRDS)}, CONTEXT)
    assert isinstance(built, Repeat)
    assert (built.period, built.end) == (30, 100)
    assert list(built.changes()) == [0, 30, 60, 90]


def test_cycles_may_be_cut() -> None:
    ramp = Ramp(from_=WEB, to=CODE, end=3)
    cut = Repeat(schedule=ramp, period=4, end=6)
    assert list(cut.changes()) == [0, 1, 2, 3, 4, 5]
    assert cut.weights(5) == cut.weights(99) == ramp.weights(1)
    with pytest.raises(ValueError, match="give either `times` or `end`"):
        build({"kind": "repeat", "schedule": constant(WEB), "period": 3, "times": 2, "end": 5}, CONTEXT)


def test_schedules_nest() -> None:
    parts = [constant(WEB, length=2), constant(CODE, length=3)]
    config = {"kind": "repeat", "period": 5, "schedule": {"kind": "then", "parts": parts}}
    bounded = {"kind": "bounds", "floors": {"math": "10%"}, "schedule": config}
    assert [shares(bounded, step)[1] for step in range(7)] == [0, 0, *[Fraction(9, 10)] * 3, 0, 0]


class Growing:
    """A stranger's schedule, without `changes()`."""

    def weights(self, step: int) -> dict[str, float]:
        return {"web": 1, "code": step, "math": 0}


def test_a_schedule_without_changes_is_named_where_it_is_put_inside() -> None:
    with pytest.raises(ValueError, match="schedule Growing has no `changes"):
        Then(((Growing(), 3), (Constant(THIRDS), None))).changes()


def test_a_schedule_without_changes_is_not_asked_at_more_steps_than_a_table_holds() -> None:
    assert len(EveryStep(Growing(), 9).changes()) == 9
    with pytest.raises(ValueError, match=r"^schedule Growing: changes at 1,099,511,627,776 steps"):
        EveryStep(Growing(), 1 << 40).changes()


# Bounds -----------------------------------------------------------------------------------------------------


def test_a_floor_takes_from_the_others_in_proportion() -> None:
    bounds = {
        "kind": "bounds",
        "floors": {"math": 0.4},
        "schedule": constant({"web": 6, "code": 3, "math": 1}),
    }
    assert shares(bounds, 0) == [Fraction(4, 10), Fraction(2, 10), Fraction(4, 10)]


def test_a_ceiling_gives_to_the_others_in_proportion() -> None:
    bounds = {
        "kind": "bounds",
        "ceilings": {"web": "1%"},
        "schedule": constant({"web": 6, "code": 3, "math": 1}),
    }
    assert shares(bounds, 0) == [Fraction(1, 100), 3 * Fraction(99, 400), Fraction(99, 400)]


def test_a_floor_holds_where_the_schedule_gives_nothing() -> None:
    ramp = {"kind": "linear", "from": WEB, "to": CODE, "end": 10}
    bounds = {"kind": "bounds", "floors": {"web": "20%"}, "schedule": ramp}
    names = ScheduleContext(names=("web", "code"), total_steps=10, tokens_per_step=1)
    assert [shares(bounds, step, names)[0] for step in (0, 5, 8, 9, 10, 99)] == [
        1,
        Fraction(1, 2),
        *[Fraction(1, 5)] * 4,
    ]


def test_within_the_bounds_nothing_changes() -> None:
    ramp = {"kind": "cosine", "from": WEB, "to": THIRDS}
    bounds = {"kind": "bounds", "floors": {"web": 0.3}, "ceilings": {"math": 0.4}, "schedule": ramp}
    inside, outside = (compile_schedule(build(c | {}, CONTEXT), CONTEXT) for c in (bounds, constant(THIRDS)))
    assert inside.at(100) == outside.at(0)


def water(weights: list[int], low: list[int], high: list[int], whole: int) -> list[Fraction] | None:
    """Returns the shares by trying every way in which datasets may lie at a bound."""
    names = range(len(weights))
    for sides in itertools.product("lfh", repeat=len(weights)):
        free = sum(weights[i] for i in names if sides[i] == "f")
        rest = whole - sum({"l": low, "h": high, "f": [0] * len(weights)}[sides[i]][i] for i in names)
        if not free:
            continue
        scale = Fraction(rest, free)
        fits = all(
            {
                "l": weights[i] * scale <= low[i],
                "h": weights[i] * scale >= high[i],
                "f": low[i] <= weights[i] * scale <= high[i],
            }[sides[i]]
            for i in names
        )
        if fits and rest >= 0:
            parts = [
                {"l": Fraction(low[i]), "h": Fraction(high[i]), "f": weights[i] * scale}[sides[i]]
                for i in names
            ]
            return [part / whole for part in parts]
    return None


@given(st.data(), st.integers(1, 4))
def test_water_filling_is_what_every_way_to_fill_says(data: Any, num: int) -> None:
    whole = 12
    weights = data.draw(st.lists(st.integers(0, 9), min_size=num, max_size=num).filter(any))
    low = data.draw(st.lists(st.integers(0, 5), min_size=num, max_size=num).filter(lambda a: sum(a) <= whole))
    high = [data.draw(st.integers(least, whole)) for least in low]
    names = [f"d{i}" for i in range(num)]
    sides = [dict(zip(names, values, strict=True)) for values in (weights, low, high)]
    expected = water(weights, low, high, whole)
    if sum(h if w else x for w, x, h in zip(weights, low, high, strict=True)) < whole:
        with pytest.raises(ValueError, match="cannot be met"):
            fill(sides[0], sides[1], sides[2], whole, "here")
        return
    found = fill(sides[0], sides[1], sides[2], whole, "here")
    total = sum(found.values())
    filled = [Fraction(found[name], total) for name in names]
    assert all(
        Fraction(a, whole) <= f <= Fraction(b, whole) for a, f, b in zip(low, filled, high, strict=True)
    )
    if expected is not None:
        assert filled == expected


# Refusals ---------------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"kind": "then", "parts": []}, "`parts` must be a list of tables"),
    ({"kind": "then", "parts": [constant(WEB), constant(WEB)]}, "part 1: must have a `length`"),
    ({"kind": "then", "parts": [constant(WEB, length=0)]}, "part 1: `length` must be at least one step"),
    (
        {"kind": "then", "parts": [constant(WEB, length=100), constant(WEB)]},
        "part 2: begins at step 100, but the run",
    ),
    (
        {"kind": "then", "parts": [constant(WEB, length=1), {"kind": "linaer"}]},
        "part 2: no schedules named 'linaer'",
    ),
    (
        {"kind": "then", "parts": [{"kind": "linear", "from": WEB, "too": WEB}]},
        "part 1: schedule linear: unknown field",
    ),
    (
        {"kind": "then", "parts": [constant({"wbe": 1})]},
        "part 1: schedule constant: no dataset is named 'wbe'",
    ),
    ({"kind": "then", "parts": [{"weights": WEB}]}, "part 1: must be a table with its `kind`"),
    ({"kind": "repeat", "schedule": constant(WEB)}, "field 'period' is missing"),
    (
        {"kind": "repeat", "schedule": constant(WEB), "period": 3, "times": 0},
        "`times` must be a whole number >= 1",
    ),
    ({"kind": "bounds", "floors": {"web": 0.5}}, "field 'schedule' is missing"),
    ({"kind": "bounds", "schedule": constant(WEB), "floor": {}}, "did you mean 'floors'"),
    ({"kind": "bounds", "schedule": constant(WEB), "floors": 0.5}, "`floors` must be a table"),
    ({"kind": "bounds", "schedule": constant(WEB), "floors": {"wbe": 0.5}}, "no dataset is named 'wbe'"),
    (
        {"kind": "bounds", "schedule": constant(WEB), "floors": {"web": 2}},
        r"a part of the tokens in \[0, 1\], got 2",
    ),
    (
        {"kind": "bounds", "schedule": constant(WEB), "floors": {"web": "half"}},
        "must be a number, or a percentage",
    ),
    (
        {"kind": "bounds", "schedule": constant(WEB), "floors": {"web": 0.5}, "ceilings": {"web": 0.4}},
        "the floor of 'web' must be at most its ceiling, got 50% and 40%",
    ),
    (
        {"kind": "bounds", "schedule": constant(WEB), "floors": {"web": 0.6, "code": "45%"}},
        "the floors must sum to at most 100%, got 105%, 5% too much",
    ),
    (
        {"kind": "bounds", "schedule": constant(WEB), "ceilings": {"web": 0.3, "code": 0.3, "math": 0.3}},
        "the ceilings must sum to at least 100%, got 90%, 10% too little",
    ),
]


@pytest.mark.parametrize(("config", "message"), WRONG)
def test_what_is_wrong_is_refused_by_name_in_a_line(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        build(config, CONTEXT)
    assert "\n" not in str(refused.value)


def test_bounds_that_cannot_be_met_name_the_step_and_the_slack() -> None:
    ramp = Ramp(from_=THIRDS, to=CODE | {"web": 1}, end=4)
    bounds = Bounds(schedule=ramp, ceilings={"web": 0.45, "code": 0.45})
    assert bounds.weights(3)
    with pytest.raises(ValueError, match="step 4: the bounds cannot be met, 10% of the tokens are left over"):
        bounds.weights(4)


def test_what_needs_the_length_of_the_run_says_so() -> None:
    with pytest.raises(ValueError, match="`end` or `times` is missing, and the recipe does not say"):
        build({"kind": "repeat", "schedule": constant(WEB), "period": 3}, OPEN)
    with pytest.raises(ValueError, match="part 1: schedule linear: `end` is missing"):
        build({"kind": "then", "parts": [{"kind": "linear", "from": WEB, "to": CODE}]}, OPEN)
