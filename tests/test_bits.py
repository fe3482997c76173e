"""Random bits are a pure function of names and counters, and the published generator's."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon.bits import GOLDEN, bits, key, permutation, permutations

MASK = (1 << 64) - 1


def splitmix(state: int) -> int:
    """Returns what SplitMix64 gives in this state, in plain integers."""
    z = (state + GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_the_bits_are_those_of_the_published_test_vector() -> None:
    assert bits(1234567, np.arange(5)).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(st.integers(0, MASK), st.integers(0, (1 << 63) - 1))
def test_any_counter_can_be_had_without_those_before(subkey: int, counter: int) -> None:
    expected = splitmix((subkey + counter * GOLDEN) & MASK)
    assert int(bits(subkey, np.array([counter]))[0]) == expected


def test_keys_and_counters_broadcast() -> None:
    keys = np.array([[1], [2]], dtype=np.uint64)
    both = bits(keys, np.arange(3)[None, :])
    assert both.shape == (2, 3)
    assert both[1].tolist() == bits(2, np.arange(3)).tolist()


def test_a_key_is_the_same_everywhere() -> None:
    """Edit only when you mean to break resume."""
    assert key() == 1449310910991872227
    assert key("order", 42, "web", 0) == 10532608376053395679
    code = "from zephon.bits import key; print(key('order', 42, 'web', 0))"
    for seed in "12":
        found = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        )
        assert int(found.stdout) == key("order", 42, "web", 0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        (("1",), (1,)),
        (("a",), ("a", "")),
        ((1, 11), (11, 1)),
        (("a:1:b",), ("a", "b")),
        ((), ("",)),
    ],
)
def test_parts_divided_otherwise_give_another_key(
    one: tuple[str | int, ...], other: tuple[str | int, ...]
) -> None:
    assert key(*one) != key(*other)


def test_a_name_may_hold_any_character() -> None:
    assert len({key("\u00e9"), key("e\u0301"), key("\ud800"), key("\x00"), key("")}) == 5


@given(st.integers(0, MASK), st.integers(0, 1 << 40), st.integers(0, 300))
def test_a_permutation_holds_every_index_once(subkey: int, counter: int, size: int) -> None:
    found = permutation(subkey, counter, size)
    assert found.dtype == np.int64
    assert sorted(found.tolist()) == list(range(size))


@given(st.integers(0, MASK), st.lists(st.integers(0, 1 << 40), min_size=1, max_size=5), st.integers(1, 40))
def test_many_permutations_are_the_single_ones(subkey: int, counters: list[int], size: int) -> None:
    many = permutations(subkey, np.array(counters, dtype=np.int64), size)
    assert many.tolist() == [permutation(subkey, counter, size).tolist() for counter in counters]


@pytest.mark.parametrize("size", [(1 << 15) + 1, 100_000])
def test_a_large_permutation_is_made_as_small_ones_are(size: int) -> None:
    assert (permutation(3, 5, size) == permutations(3, np.array([5]), size)[0]).all()


def test_permutations_are_golden() -> None:
    """Edit only when you mean to break resume."""
    assert permutation(42, 0, 8).tolist() == [3, 5, 6, 0, 2, 4, 7, 1]
    assert permutation(42, 1, 8).tolist() == [1, 5, 7, 2, 4, 3, 6, 0]


def test_a_permutation_is_the_order_of_the_bits() -> None:
    subkey = splitmix((42 + 7 * GOLDEN) & MASK)
    low = (1 << 5) - 1
    order = sorted(range(20), key=lambda i: (splitmix((subkey + i * GOLDEN) & MASK) & ~low) | i)
    assert permutation(42, 7, 20).tolist() == order


def test_every_place_is_as_likely_as_any() -> None:
    found = permutations(key("uniform"), np.arange(6000), 6)
    counts = np.array([np.bincount(found[:, place], minlength=6) for place in range(6)])
    assert np.abs(counts - 1000).max() < 150  # 5 standard deviations
    assert len({tuple(p) for p in found.tolist()}) == 720
