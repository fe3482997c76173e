"""Weights from sizes: exact, within their bounds; refusals name what is missing."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_curriculum.plan.allocate import temperature, unimax, water_fill


def test_water_fill_holds_at_the_caps_and_keeps_the_other_ratios() -> None:
    filled = water_fill({"web": 6, "code": 3, "math": 1}, caps={"web": Fraction(1, 2)})
    assert filled == {"web": Fraction(1, 2), "code": Fraction(3, 8), "math": Fraction(1, 8)}
    filled = water_fill({"web": 8, "code": 1, "math": 1}, floors={"math": 0.25})
    assert filled == {"web": Fraction(2, 3), "code": Fraction(1, 12), "math": Fraction(1, 4)}


def test_water_fill_says_how_much_is_missing() -> None:
    with pytest.raises(ValueError, match=r"room for 0\.75 of the whole, 0\.25 short"):
        water_fill({"web": 1, "code": 1}, caps={"web": 0.5, "code": 0.25})
    with pytest.raises(ValueError, match=r"the floors sum to 1\.25 of the whole, 0\.25 too much"):
        water_fill({"web": 1, "code": 1}, floors={"web": 0.5, "code": 0.75})
    with pytest.raises(ValueError, match="names 'math', which is no dataset of web, code"):
        water_fill({"web": 1, "code": 1}, caps={"math": 1})


fractions = st.fractions(0, 1, max_denominator=40)


@given(st.lists(st.tuples(st.integers(0, 50), fractions, fractions), min_size=1, max_size=6))
def test_water_fill_is_the_one_scaling_between_the_bounds(
    lines: list[tuple[int, Fraction, Fraction]],
) -> None:
    target = {f"d{i}": w for i, (w, _, _) in enumerate(lines)}
    floors = {f"d{i}": min(a, b) for i, (_, a, b) in enumerate(lines)}
    caps = {f"d{i}": max(a, b) for i, (_, a, b) in enumerate(lines)}
    try:
        filled = water_fill(target, caps, floors)
    except ValueError:
        can_fill = sum(max(a, b) if w else min(a, b) for w, a, b in lines)
        assert not any(target.values()) or sum(floors.values()) > 1 or can_fill < 1
        return
    assert sum(filled.values()) == 1
    ratios = set()
    for name, value in filled.items():
        assert floors[name] <= value <= caps[name] or not target[name]
        if floors[name] < value < caps[name] and target[name]:
            ratios.add(value / target[name])
    assert len(ratios) <= 1


def test_temperature_goes_from_the_sizes_to_uniform() -> None:
    sizes = {"web": 900, "code": 100}
    assert temperature(sizes, 1) == {"web": Fraction(9, 10), "code": Fraction(1, 10)}
    assert float(temperature(sizes, 2)["web"]) == pytest.approx(0.75, abs=1e-15)
    assert float(temperature(sizes, 10 / 3)["web"]) == pytest.approx(1 / (1 + 9**-0.3), abs=1e-12)
    assert temperature(sizes, float("inf"))["web"] == Fraction(1, 2)
    with pytest.raises(ValueError, match="`temperature` must be > 0"):
        temperature(sizes, 0)


def test_unimax_is_even_as_far_as_the_epochs_allow() -> None:
    sizes = {"web": 1000, "code": 100, "math": 10}
    assert unimax(sizes, 300, 1) == {
        "web": Fraction(190, 300), "code": Fraction(100, 300), "math": Fraction(10, 300)
    }  # fmt: skip
    assert set(unimax(sizes, 30, 1).values()) == {Fraction(1, 3)}
    with pytest.raises(ValueError, match="1 epochs of all data are 890 tokens short of the budget of 2,000"):
        unimax(sizes, 2000, 1)
