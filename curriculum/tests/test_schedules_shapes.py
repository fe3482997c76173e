"""Each shape says what holds at which step: ramps, the decay of a WSD run, fades, cycles and tables."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from zephon import PARTS, Schedule, ScheduleContext, compile_schedule
from zephon_curriculum import CrossFade, Easing, Ramp, Sawtooth, Wsd, to_steps
from zephon_curriculum.schedules.nested import build

CONTEXT = ScheduleContext(names=("web", "code"), total_steps=200, tokens_per_step=1000)
OPEN = ScheduleContext(names=("web", "code"), total_steps=None, tokens_per_step=1000)
WEB, CODE, HALF = {"web": 1, "code": 0}, {"web": 0, "code": 1}, {"web": 1, "code": 1}


def code(schedule: Schedule, step: int) -> Fraction:
    """Returns the exact share of code at a step."""
    weights = schedule.weights(step)
    return Fraction(weights["code"]) / Fraction(sum(map(Fraction, weights.values())))


def codes(
    config: dict[str, Any], steps: range | list[int], context: ScheduleContext = CONTEXT
) -> list[Fraction]:
    schedule = build(config, context)
    return [code(schedule, step) for step in steps]


# Units ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "steps"),
    [
        (0, 0), (7, 7), ("7 steps", 7), ("1 step", 1), ("1K steps", 1000), ("0.5K steps", 500),
        ("1_000 steps", 1000), ("80%", 160), ("0%", 0), ("100%", 200), ("0.25%", 1), ("0.24%", 0),
        ("4/5", 160), ("1/3", 67),
        ("2499 tokens", 2), ("2500 tokens", 3), ("2.5K tokens", 3), ("1M tokens", 1000),
        ("0.02B tokens", 20_000), ("1 token", 0), (" 3 % ", 6),
    ],
)  # fmt: skip
def test_a_position_is_the_nearest_step(position: int | str, steps: int) -> None:
    assert to_steps(position, CONTEXT) == steps


@pytest.mark.parametrize(
    "position", [-1, 1.5, True, None, "7", "7 days", "1.5 steps", "-3%", "101%", "3/2", "1/0", ""]
)
def test_what_is_no_position_is_refused(position: Any) -> None:
    with pytest.raises(ValueError, match="`end`"):
        to_steps(position, CONTEXT, "`end`")


def test_a_part_of_a_run_without_length_is_refused() -> None:
    with pytest.raises(
        ValueError, match="'80%' is a part of the run, whose length is not known; set the recipe's"
    ):
        to_steps("80%", OPEN)


# Ramps ------------------------------------------------------------------------------------------------------


def test_a_ramp_holds_blends_and_holds() -> None:
    config = {"kind": "linear", "from": WEB, "to": CODE, "begin": 10, "end": 20}
    expected = [Fraction(0)] * 11 + [Fraction(k, 10) for k in range(1, 11)] + [Fraction(1)] * 5
    assert codes(config, range(26)) == expected


def test_mixtures_are_brought_to_one_sum_before_they_are_blended() -> None:
    config = {"kind": "linear", "from": {"web": 9, "code": 1}, "to": {"web": 500, "code": 500}, "end": 2}
    assert codes(config, [0, 1, 2]) == [Fraction(1, 10), Fraction(3, 10), Fraction(1, 2)]


def test_a_ramp_ends_in_the_last_step_where_its_end_is_left_out() -> None:
    assert codes({"kind": "linear", "from": WEB, "to": CODE}, [0, 50, 199, 999]) == [
        0,
        Fraction(50, 199),
        1,
        1,
    ]
    with pytest.raises(ValueError, match="`end` is missing, and the recipe does not say `total_steps`"):
        build({"kind": "linear", "from": WEB, "to": CODE}, OPEN)


def test_every_makes_stairs() -> None:
    schedule = Ramp(from_=WEB, to=CODE, end=10, every=4)
    assert [code(schedule, step) for step in range(11)] == [
        Fraction(k, 10) for k in [0] * 4 + [4] * 4 + [8] * 2 + [10]
    ]
    assert list(schedule.changes()) == [0, 4, 8, 10]


def test_kinds_of_ramps_are_easings() -> None:
    for kind in ("linear", "cosine", "smoothstep", "exponential"):
        config = {"kind": kind, "from": WEB, "to": CODE, "begin": 10, "end": 20}
        easing = Easing(kind=kind)
        assert codes(config, range(10, 21)) == [Fraction(*easing.at(k, 10)) for k in range(11)]
    fast = {"kind": "exponential", "from": WEB, "to": CODE, "end": 10, "rate": 20}
    assert codes(fast, [1])[0] > Fraction(4, 5)


# WSD --------------------------------------------------------------------------------------------------------


def test_wsd_holds_then_blends_over_the_last_part() -> None:
    config = {"kind": "wsd", "from": WEB, "to": CODE, "last": "10%"}
    found = codes(config, range(170, 210))
    assert found == [Fraction(0)] * 11 + [Fraction(k, 19) for k in range(1, 20)] + [Fraction(1)] * 10


def test_wsd_may_blend_in_part_of_the_decay_or_not_at_all() -> None:
    config = {"kind": "wsd", "from": WEB, "to": CODE, "last": "10%", "blend": 4}
    assert codes(config, range(179, 186)) == [0, 0, Fraction(1, 4), Fraction(1, 2), Fraction(3, 4), 1, 1]
    assert codes(config | {"blend": 0}, range(178, 182)) == [0, 0, 1, 1]


def test_the_whole_run_may_be_the_decay() -> None:
    at_once = Wsd(from_={"web": 1, "old": 2}, to=CODE, last=10, end=10, blend=0)
    assert list(at_once.changes()) == [0]
    assert at_once.weights(0) == at_once.weights(99) == {"web": 0, "old": 0} | dict(CODE)


# Crossfade and tables ---------------------------------------------------------------------------------------

KNOTS = [{"at": 0, "weights": WEB}, {"at": 4, "weights": CODE}, {"at": 8, "weights": HALF}]


def test_a_crossfade_goes_from_knot_to_knot() -> None:
    quarters = [0, 1, 2, 3, 4, 3.5, 3, 2.5, 2, 2]
    assert codes({"kind": "crossfade", "knots": KNOTS}, range(10)) == [Fraction(q) / 4 for q in quarters]


def test_a_crossfade_may_hold_its_knots() -> None:
    fade = {"kind": "crossfade", "knots": KNOTS, "fade": 2}
    assert codes(fade, range(10)) == [
        0,
        0,
        0,
        Fraction(1, 2),
        1,
        1,
        1,
        Fraction(3, 4),
        Fraction(1, 2),
        Fraction(1, 2),
    ]
    at_once = build({"kind": "crossfade", "knots": KNOTS, "fade": 0}, CONTEXT)
    assert [float(code(at_once, step)) for step in range(10)] == [0] * 4 + [1] * 4 + [0.5] * 2
    assert list(compile_schedule(at_once, CONTEXT).starts) == [0, 4, 8]


CSV = "step,web,code\n0,1,0\n\n 4 , 0, 1.0 \n50%,0.5,0.5\n"


def test_lines_of_a_table_hold_until_the_next() -> None:
    assert codes({"kind": "table", "csv": CSV}, [0, 3, 4, 99, 100, 500]) == [
        0,
        0,
        1,
        1,
        Fraction(1, 2),
        Fraction(1, 2),
    ]


def test_a_table_with_an_easing_goes_from_line_to_line() -> None:
    assert codes({"kind": "table", "csv": CSV, "easing": "linear"}, [1, 52]) == [
        Fraction(1, 4),
        Fraction(3, 4),
    ]


def test_a_file_says_the_same_and_what_is_built_holds_its_text(tmp_path: Path) -> None:
    (tmp_path / "mix.csv").write_text(CSV)
    from_file = build({"kind": "table", "file": str(tmp_path / "mix.csv")}, CONTEXT)
    (tmp_path / "mix.csv").unlink()
    assert from_file == build({"kind": "table", "csv": CSV}, CONTEXT)
    assert isinstance(from_file, CrossFade)
    assert build(from_file.to_config(), CONTEXT) == from_file


def test_a_long_table_is_read_quickly_and_exactly() -> None:
    lines = [f"{step},{step % 7}.25,{1 + step % 11}.5" for step in range(2000)]
    table = compile_schedule(
        build({"kind": "table", "csv": "\n".join(["step,web,code", *lines])}, CONTEXT), CONTEXT
    )
    assert table.at(1234)[0] == round(PARTS * Fraction(225, 225 + 350))


# Sawtooth ---------------------------------------------------------------------------------------------------


def test_a_tooth_rises_to_its_floor_and_falls_back() -> None:
    config = {
        "kind": "sawtooth",
        "old": WEB,
        "new": CODE,
        "period": 5,
        "times": 2,
        "floor": "20%",
        "begin": 3,
    }
    tooth = [Fraction(k, 5) for k in range(5)]
    assert codes(config, range(18)) == [Fraction(0)] * 3 + tooth + tooth + [Fraction(4, 5)] * 5


def test_teeth_fill_the_run_where_they_are_not_counted() -> None:
    built = build({"kind": "sawtooth", "old": WEB, "new": CODE, "period": 60}, CONTEXT)
    assert isinstance(built, Sawtooth)
    assert built.end == 200


# Refusals ---------------------------------------------------------------------------------------------------

TOOTH = {"kind": "sawtooth", "old": WEB, "new": CODE}
RAMP = {"kind": "linear", "from": WEB, "to": CODE, "end": 9}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({**RAMP, "too": 1}, "schedule linear: unknown field 'too'; did you mean 'to'"),
    ({**RAMP, "rate": 1}, "unknown field 'rate'"),
    ({"kind": "linear", "from": WEB, "end": 9}, "field 'to' is missing"),
    ({**RAMP, "begin": 9}, "`begin` must be before `end`, got 9 .step 9. and 9 .step 9."),
    ({**RAMP, "begin": "3%", "end": "2%"}, "got '3%' .step 6. and '2%' .step 4."),
    ({**RAMP, "end": 0}, "`begin` must be before `end`"),
    ({**RAMP, "end": "soon"}, "`end` must be given in steps"),
    ({**RAMP, "every": 0}, "`every` must be at least one step"),
    ({**RAMP, "to": {"wbe": 1}}, "schedule linear, `to`: no dataset is named 'wbe'; the datasets are web"),
    ({**RAMP, "to": {"web": -1}}, "the weight of 'web' must be finite and >= 0, got -1"),
    ({**RAMP, "to": {"web": 0}}, "at least one weight must be > 0"),
    ({**RAMP, "to": 3}, "weights must map every dataset to a number, got 3"),
    ({**RAMP, "kind": "wsd"}, "field 'last' is missing"),
    ({**RAMP, "kind": "wsd", "last": 10}, "`last` must be at most `end`"),
    ({**RAMP, "kind": "wsd", "last": 4, "blend": 5}, "`blend` at most `last`"),
    ({**RAMP, "kind": "wsd", "last": "1 token"}, "at least one step, got '1 token', which is 0 steps"),
    ({"kind": "crossfade", "knots": []}, "`knots` must be a list of tables"),
    ({"kind": "crossfade", "knots": KNOTS[1:]}, r"must ascend from step 0, got steps \[4, 8\]"),
    ({"kind": "crossfade", "knots": [*KNOTS, KNOTS[1]]}, "must ascend"),
    ({"kind": "crossfade", "knots": KNOTS, "fade": 5}, "got 5 steps for the 4 from step 0 to 4"),
    ({"kind": "crossfade", "knots": [{"at": 0, "weight": WEB}]}, "knot 1: unknown field 'weight'; did you"),
    (TOOTH | {"period": 1}, "`period` must be a whole number of steps >= 2"),
    (TOOTH | {"period": 5, "floor": 1.5}, r"`floor` must be a part of the tokens in \[0, 1\]"),
    (TOOTH | {"period": 5, "times": 0}, "`times` must be a whole number >= 1"),
    (TOOTH | {"period": 5, "floor": "1e999999999"}, "`floor` must be a number, or a percentage"),
    ({"kind": "table"}, "give either `file`"),
    ({"kind": "table", "csv": CSV, "file": "a"}, "give either `file`"),
    ({"kind": "table", "file": "missing.csv"}, "cannot read `file` '/.*missing.csv'"),
    ({"kind": "table", "csv": "web,code\n1,2\n"}, "must begin with a line"),
    ({"kind": "table", "csv": "step,web\n"}, "must begin with a line"),
    ({"kind": "table", "csv": "step,web,books\n0,1,1\n"}, "no dataset is named 'books'"),
    ({"kind": "table", "csv": "step,web,web\n0,1,1\n"}, "column 'web' is given twice"),
    ({"kind": "table", "csv": "step,web,code\n0,1\n"}, "line 2: has 2 cells for 3 columns"),
    ({"kind": "table", "csv": "step,web,code\n0,1,x\n"}, "the weight of 'code' must be a number, got 'x'"),
    ({"kind": "table", "csv": "step,web,code\n0,1,nan\n"}, "must be finite"),
    ({"kind": "table", "csv": "step,web\n\n\n0,1\n5,x\n"}, "line 5: the weight of 'web'"),
    ({"kind": "table", "csv": "step,web\n0," + "9" * 200_000}, "line 2: is not CSV: field larger"),
    ({"kind": "table", "csv": "step,web\n0,1\n" + "9" * 5000 + ",1"}, "must be given in steps"),
    ({"kind": "table", "csv": "step,web,code\n5,1,1\n"}, "must ascend from step 0"),
    ({"kind": "linaer"}, "no schedules named 'linaer'"),
    ({"from": WEB}, "must be a table with its `kind`"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "message"), WRONG)
def test_what_is_wrong_is_refused_by_name_in_a_line(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        build(config, CONTEXT)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Ramp(from_=WEB, to=CODE, end="80%"),  # type: ignore[arg-type]
        lambda: Ramp(from_=WEB, to=CODE, begin=5, end=5),
        lambda: Wsd(from_=WEB, to=CODE, last=0, end=5),
        lambda: CrossFade(knots=((1, WEB),)),
        lambda: CrossFade(knots=()),
        lambda: Sawtooth(old=WEB, new=CODE, period=5, end=0),
    ],
)
def test_python_is_checked_as_well(make: Any) -> None:
    with pytest.raises(ValueError, match="schedule"):
        make()


@pytest.mark.parametrize(
    "endless",
    [
        Ramp(from_=WEB, to=CODE, end=10**30),
        CrossFade(knots=((0, WEB), (10**30, CODE))),
        Sawtooth(old=WEB, new=CODE, period=5, end=10**30),
    ],
)
def test_a_table_that_would_fill_the_memory_is_refused(endless: Any) -> None:
    with pytest.raises(ValueError, match="a table holds at most 4,194,304; set `every`, or shorten it"):
        endless.changes()
    every = Ramp(from_=WEB, to=CODE, end=10**12, every=10**9)
    assert len(every.changes()) == 1001
