"""Schedules within bounds: nearest to what is wished for; refusals name the tokens missing."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from zephon import PARTS, ScheduleTable
from zephon_curriculum.plan.capping import cap_schedule, steps_for_epochs
from zephon_curriculum.plan.curve import Curve

NAMES = ("web", "code", "math")


def table(*entries: tuple[int, tuple[int, ...]]) -> ScheduleTable:
    """Returns a table of (first step, percents)."""
    shares = []
    for _, percents in entries:
        whole = [p * PARTS // 100 for p in percents]
        whole[0] += PARTS - sum(whole)
        shares.append(tuple(whole))
    return ScheduleTable(NAMES[: len(shares[0])], tuple(s for s, _ in entries), tuple(shares))


def drawn_parts(table: ScheduleTable, num_steps: int) -> list[int]:
    """Returns what is drawn of each dataset by the end of steps [0, num_steps), in parts of a step."""
    return [Curve(table, 1).drawn(index, num_steps) for index in range(len(table.names))]


def test_cap_schedule_scales_a_dataset_evenly_and_gives_the_rest_to_the_others() -> None:
    wished = table((0, (60, 20, 20)), (50, (20, 60, 20)))
    sizes = {"web": 10_000, "code": 500, "math": 10_000}
    fitted = cap_schedule(wished, sizes=sizes, total_steps=100, tokens_per_step=100, max_epochs={"code": 4})
    drawn = [part * 100 / PARTS for part in drawn_parts(fitted, 100)]
    assert drawn[1] == pytest.approx(2000, abs=0.1)
    assert sum(drawn) == 10_000
    before, after = (np.array(entry) / PARTS for entry in fitted.shares)
    assert before[0] / before[2] == pytest.approx(3, abs=1e-3)  # the others keep their ratios in each step
    assert after[0] / after[2] == pytest.approx(1, abs=1e-3)
    odds = [entry[1] / (1 - entry[1]) for entry in (before, after)]
    assert odds[0] / odds[1] == pytest.approx((0.2 / 0.8) / (0.6 / 0.4), abs=1e-3)  # one factor for all steps


def test_cap_schedule_leaves_the_past_alone() -> None:
    wished = table((0, (50, 50)), (60, (20, 80)))
    fitted = cap_schedule(
        wished, sizes={"web": 10**6, "code": 1000}, total_steps=100, tokens_per_step=100,
        max_epochs={"code": 4}, first_step=30,
    )  # fmt: skip
    assert fitted.first_difference(wished, 30) is None
    assert fitted.first_difference(wished, 31) == 30
    assert drawn_parts(fitted, 100)[1] * 100 / PARTS == pytest.approx(4000, abs=0.1)


def test_cap_schedule_names_steps_and_tokens_that_are_short() -> None:
    only_code = table((0, (50, 50)), (60, (0, 100)))
    bounds = {"sizes": {"web": 10**6, "code": 500}, "total_steps": 100, "tokens_per_step": 100}
    with pytest.raises(
        ValueError, match="40 steps draw 4,000 tokens from code alone, and their caps leave 2,000"
    ):
        cap_schedule(only_code, max_epochs={"code": 4}, **bounds)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"the floors of web need 1,000,000 tokens.*give 6,000: 994,000 short"
    ):
        cap_schedule(only_code, max_epochs={}, min_epochs={"web": 1}, **bounds)  # type: ignore[arg-type]


def test_sizes_are_the_tokens_of_what_is_bounded() -> None:
    both, run = table((0, (50, 50))), {"total_steps": 10, "tokens_per_step": 100}
    for bounds in ({"max_epochs": {"code": 1}}, {"max_epochs": {}, "min_epochs": {"code": 1}}):
        with pytest.raises(ValueError, match="`sizes` must have the tokens of 'code'"):
            cap_schedule(both, sizes={"web": 9}, **bounds, **run)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`sizes` of 'code' must be a number, got str"):
        cap_schedule(both, sizes={"web": 9, "code": "9"}, max_epochs={}, **run)  # type: ignore[arg-type, dict-item]


percents = st.tuples(st.integers(1, 50), st.integers(1, 49)).map(lambda p: (100 - sum(p), *p))


@settings(max_examples=60, phases=[Phase.explicit, Phase.generate], deadline=None)
@given(
    st.lists(percents, min_size=1, max_size=5),
    st.tuples(*[st.integers(1, 9)] * 3),
    st.tuples(*[st.integers(0, 3)] * 3),
)
def test_bounds_of_a_schedule_hold_or_cannot(
    entries: list[tuple[int, int, int]], most: tuple[int, ...], least: tuple[int, ...]
) -> None:
    wished = table(*((20 * i, entry) for i, entry in enumerate(entries)))
    total, sizes = 20 * len(entries), dict.fromkeys(NAMES, 500)
    caps = dict(zip(NAMES, (m + f for m, f in zip(most, least, strict=True)), strict=True))
    floors = dict(zip(NAMES, least, strict=True))
    try:
        fitted = cap_schedule(
            wished, sizes=sizes, total_steps=total, tokens_per_step=100, max_epochs=caps, min_epochs=floors
        )
    except ValueError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert "short" in refused
        assert sum(caps.values()) * 5 < total or sum(floors.values()) * 5 > total
        return
    drawn = [part * 100 / PARTS for part in drawn_parts(fitted, total)]
    for name, tokens in zip(NAMES, drawn, strict=True):
        assert floors[name] * 500 - 0.1 <= tokens <= caps[name] * 500 + 0.1
    assert all(sum(entry) == PARTS for entry in fitted.shares)
    if all(w * 100 / PARTS <= c * 500 and w * 100 / PARTS >= f * 500 for w, c, f in zip(
        drawn_parts(wished, total), caps.values(), floors.values(), strict=True)):  # fmt: skip
        assert fitted.first_difference(wished, total) is None


def test_a_long_ramp_is_fitted_in_a_second() -> None:
    steps = np.arange(100_000)
    code = (steps * (PARTS // 4) // 100_000).tolist()
    shares = tuple((PARTS - 2 * c, c, c) for c in code)
    ramp = ScheduleTable(NAMES, tuple(steps.tolist()), shares)
    sizes = {"web": 10**14, "code": 10**9, "math": 10**9}
    began = time.process_time()
    fitted = cap_schedule(
        ramp, sizes=sizes, total_steps=100_000, tokens_per_step=10**6, max_epochs={"code": 4, "math": 6}
    )
    assert time.process_time() - began < 5
    drawn = [p * 10**6 // PARTS for p in drawn_parts(fitted, 100_000)]
    assert drawn[1] == pytest.approx(4e9, rel=1e-4)
    assert drawn[2] == pytest.approx(6e9, rel=1e-4)


def test_epochs_as_a_budget() -> None:
    halves = table((0, (50, 50)), (40, (100, 0)))
    sizes = {"web": 3000, "code": 1000}
    assert steps_for_epochs(halves, sizes, 100, 3) == 120
    assert steps_for_epochs(halves, sizes, 100, 1, ["code"]) == 20
    assert steps_for_epochs(halves, sizes, 100, 2, ["code"]) == 40
    with pytest.raises(ValueError, match=r"3 epochs of code are never reached.*2,000 tokens of 3,000"):
        steps_for_epochs(halves, sizes, 100, 3, ["code"])


def test_a_floor_over_its_cap_is_refused_by_name() -> None:
    halves = table((0, (50, 50)))
    sizes = {"web": 1000, "code": 1000}
    with pytest.raises(ValueError, match="`min_epochs` of 'web' must be <= its max epochs"):
        cap_schedule(
            halves, sizes=sizes, total_steps=100, tokens_per_step=100, max_epochs={"web": 1},
            min_epochs={"web": 2},
        )  # fmt: skip


def test_what_is_skipped_counts_against_the_bounds() -> None:
    wished = table((0, (60, 20, 20)), (50, (20, 60, 20)))
    sizes = {"web": 10_000, "code": 500, "math": 10_000}
    for skips in (((10, 20), (60, 90)), ((40, 60),), ((95, 130),)):
        skipping = replace(wished, skips=skips)
        fitted = cap_schedule(
            skipping, sizes=sizes, total_steps=100, tokens_per_step=100, max_epochs={"code": 4}
        )  # fmt: skip
        assert fitted.skips == skips
        drawn = [part * 100 / PARTS for part in drawn_parts(fitted, 100)]
        assert drawn[1] == pytest.approx(2000, abs=0.1)
        assert sum(drawn) == 100 * (100 + sum(b - a for a, b in skips))
    skipping = replace(wished, skips=((10, 20), (40, 45)))
    late = cap_schedule(
        skipping, sizes=sizes, total_steps=100, tokens_per_step=100, max_epochs={"code": 4}, first_step=30
    )
    assert late.first_difference(skipping, 30) is None
    assert drawn_parts(late, 100)[1] * 100 / PARTS == pytest.approx(2000, abs=0.1)


def test_what_is_skipped_counts_to_a_budget_of_epochs() -> None:
    halves = replace(table((0, (50, 50)), (40, (100, 0))), skips=((10, 20),))
    sizes = {"web": 3000, "code": 1000}
    assert steps_for_epochs(halves, sizes, 100, 3) == 110
    assert steps_for_epochs(halves, sizes, 100, 1, ["code"]) == 11
