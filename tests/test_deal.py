"""Chunks are dealt evenly in bytes, one by one or, when they are very many, in runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon import deal as deal_module
from zephon.bits import permutation
from zephon.deal import Dealt, deal


def chunks_of(dealt: Dealt) -> list[list[int]]:
    return [dealt.chunks(group).tolist() for group in range(len(dealt.cuts) - 1)]


def test_a_chunk_goes_to_the_group_with_the_fewest_bytes() -> None:
    assert permutation(42, 0, 8).tolist() == [3, 5, 6, 0, 2, 4, 7, 1]
    dealt = deal(2, 42, np.array([1, 1, 1, 9, 1, 1, 1, 6]))
    assert chunks_of(dealt) == [[1, 3], [0, 2, 4, 5, 6, 7]]
    assert dealt.num_chunks().tolist() == [2, 6]
    assert dealt.sums(np.arange(8)).tolist() == [4, 24]
    assert chunks_of(deal(1, 42, np.array([1, 2, 3]))) == [[0, 1, 2]]
    assert chunks_of(deal(3, 42, np.zeros(3, np.int64))) == [[0, 1, 2], [], []]  # the order refuses it


def deal_plainly(num_groups: int, deal_key: int, sizes: Sequence[int], run: int) -> list[list[int]]:
    """Deals runs of so many consecutive chunks, the last `num_groups` runs of the order chunk by chunk."""
    firsts = [run * i for i in permutation(deal_key, 0, -(-len(sizes) // run)).tolist()]
    runs = [list(range(first, min(first + run, len(sizes)))) for first in firsts]
    whole = max(0, len(runs) - num_groups) if run > 1 else len(runs)
    groups: list[list[int]] = [[] for _ in range(num_groups)]
    filled = [0] * num_groups
    for dealt in runs[:whole] + [[chunk] for run_of_chunks in runs[whole:] for chunk in run_of_chunks]:
        group = filled.index(min(filled))
        groups[group] += dealt
        filled[group] += sum(sizes[chunk] for chunk in dealt)
    return [sorted(chunks) for chunks in groups]


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=60),
    st.integers(2, 6),
    st.sampled_from([4, 10, 100]),
    st.integers(0, 99),
)
def test_very_many_chunks_are_dealt_in_runs(
    sizes: list[int], num_groups: int, deal_runs: int, deal_key: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deal_module, "DEAL_RUNS", deal_runs)
        dealt = deal(num_groups, deal_key, np.array(sizes, dtype=np.int32))
    found = chunks_of(dealt)
    assert found == deal_plainly(num_groups, deal_key, sizes, -(-len(sizes) // deal_runs))
    assert sorted(chunk for chunks in found for chunk in chunks) == list(range(len(sizes)))
    assert dealt.num_chunks().tolist() == [len(chunks) for chunks in found]
    assert dealt.sums(np.array(sizes)).tolist() == [sum(sizes[c] for c in chunks) for chunks in found]


def test_what_is_dealt_in_runs_is_as_even_as_chunks_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deal_module, "DEAL_RUNS", 1000)
    sizes = 50 + permutation(7, 0, 20_000) % 100
    for count in (2, 16, 100):
        filled = deal(count, 3, sizes).sums(sizes)
        assert filled.max() - filled.min() <= sizes.max()
