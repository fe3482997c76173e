"""Easings go from 0 to 1 and never back, and are near what the formulas say, by whole numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_curriculum import Easing
from zephon_curriculum.schedules.easing import KEPT, KINDS, PI, WORK

FORMULAS: dict[str, Callable[[float], float]] = {
    "linear": lambda t: t,
    "cosine": lambda t: (1 - math.cos(math.pi * t)) / 2,
    "smoothstep": lambda t: 3 * t * t - 2 * t**3,
    "exponential": lambda t: (1 - math.exp(-5 * t)) / (1 - math.exp(-5)),
}
EASINGS = st.one_of(
    st.sampled_from(["linear", "cosine", "smoothstep"]).map(lambda kind: Easing(kind=kind)),
    st.floats(-64, 64)
    .filter(lambda rate: abs(rate) > 1e-3)
    .map(lambda r: Easing(kind="exponential", rate=r)),
)


def value(easing: Easing, done: int, length: int) -> Fraction:
    return Fraction(*easing.at(done, length))


@pytest.mark.parametrize("kind", FORMULAS)
def test_an_easing_is_near_its_formula(kind: str) -> None:
    easing = Easing(kind=kind)
    for done in range(1001):
        expected = FORMULAS[kind](done / 1000)
        assert float(value(easing, done, 1000)) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("rate", [-64, -2.5, 0.001, 1, 64])
def test_an_exponential_is_near_its_formula_at_every_rate(rate: float) -> None:
    easing = Easing(kind="exponential", rate=rate)
    for done in range(101):
        expected = math.expm1(-rate * done / 100) / math.expm1(-rate)
        assert float(value(easing, done, 100)) == pytest.approx(expected, abs=1e-12)


def test_pi_is_pi() -> None:
    digits = 314159265358979323846264338327950288419716939937510582097494459230781640628620899
    assert (digits << WORK) // 10**80 == PI


@given(EASINGS, st.integers(1, 10**7), st.data())
def test_an_easing_goes_from_0_to_1_and_never_back(easing: Easing, length: int, data: Any) -> None:
    first = data.draw(st.integers(0, length))
    steps = sorted({0, first, min(first + 1, length), data.draw(st.integers(0, length)), length})
    values = [value(easing, done, length) for done in steps]
    assert values[0] == 0
    assert values[-1] == 1
    assert all(a <= b for a, b in pairwise(values))


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_never_go_back(kind: str) -> None:
    easing = Easing(kind=kind)
    values = [value(easing, done, 3001) for done in range(3002)]
    assert all(a <= b for a, b in pairwise(values))
    assert len(set(values)) > 2000


@given(st.integers(1, 10**6), st.data())
def test_a_cosine_mirrors_itself(length: int, data: Any) -> None:
    done = data.draw(st.integers(0, length))
    easing = Easing(kind="cosine")
    assert value(easing, done, length) + value(easing, length - done, length) == 1


def test_golden_values() -> None:
    """Edit only when you mean to change the rows of every run that blends."""
    found = [Easing(kind=kind).at(1, 3) for kind in ("linear", "cosine", "smoothstep", "exponential")]
    half = 1 << KEPT
    expected = [(1, 3), (4611686018427387904, half), (7, 27), (15064105309561908917, half)]
    assert found == expected


@given(EASINGS)
def test_a_table_reads_back(easing: Easing) -> None:
    again = Easing.of(easing.to_config(), "here")
    assert [again.at(k, 7) for k in range(8)] == [easing.at(k, 7) for k in range(8)]


WRONG: list[tuple[Any, str]] = [
    ("cosin", "unknown field 'cosin'; did you mean 'cosine'"),
    (7, "`easing` must be one of"),
    ({"kind": "cosine", "rate": 3}, "unknown field 'rate'"),
    ({"kind": "exponential", "rte": 3}, "did you mean 'rate'"),
    ({"kind": "exponential", "rate": 0}, "`rate` must be 0.001 to 64, or as far below 0, got 0; near 0"),
    ({"kind": "exponential", "rate": 1e-300}, "got 1e-300; near 0 it is `linear`"),
    ({"kind": "exponential", "rate": 65}, "got 65"),
    ({"kind": "exponential", "rate": "fast"}, "must be a number"),
]


@pytest.mark.parametrize(("given_easing", "message"), WRONG)
def test_a_wrong_easing_is_refused_in_a_line(given_easing: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        Easing.of(given_easing, "schedule wsd")
    assert "\n" not in str(refused.value)
