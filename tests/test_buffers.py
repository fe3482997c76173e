"""Buffers: used again only when nobody holds them."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

from zephon.batch import MAX_FREE, MAX_LENT, BufferPool


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_a_buffer_is_used_again_when_the_last_view_is_gone() -> None:
    pool = BufferPool()
    first = pool((2, 3))
    where, row = address(first), first[1, :2]
    del first
    other = pool((2, 3))
    assert address(other) != where  # `row` still holds the first
    del row
    assert address(pool((2, 3))) == where


def test_what_is_kept_never_changes() -> None:
    pool = BufferPool()
    kept = []
    for i in range(20):
        array = pool((4, 8))
        array[:] = i
        kept.append(array[i % 4])
    assert [int(row[0]) for row in kept] == list(range(20))
    assert len({address(row) - row.nbytes * (i % 4) for i, row in enumerate(kept)}) == 20


def test_another_shape_of_the_same_size_fits_and_another_size_does_not() -> None:
    pool = BufferPool()
    where = address(pool((2, 6)))
    assert address(pool((3, 4))) == where
    larger = pool((5, 5))
    larger[:] = 7
    assert larger.shape == (5, 5)


def test_a_pool_keeps_few() -> None:
    pool = BufferPool()
    arrays = [pool((8,)) for _ in range(3 * MAX_LENT)]
    assert len(pool._lent) <= MAX_LENT + 1
    del arrays
    pool((8,))
    assert len(pool._free) == MAX_FREE - 1
    assert len(pool._lent) == 1


def test_no_code_runs_where_a_buffer_ends() -> None:
    """Python swallows what is raised in a `__del__` or a callback: a Ctrl-C would be lost there."""
    code: list[str] = []
    array = BufferPool()((8,))
    sys.setprofile(lambda frame, event, _: code.append(frame.f_code.co_name) if event == "call" else None)
    del array
    sys.setprofile(None)
    assert code == []


def test_a_tensor_holds_its_buffer() -> None:
    torch = pytest.importorskip("torch")
    pool = BufferPool()
    array = pool((4,))
    array[:] = 5
    where = address(array)
    tensor = torch.from_numpy(array)
    assert tensor.data_ptr() == where
    del array
    other = pool((4,))
    other[:] = 6
    assert tensor.tolist() == [5, 5, 5, 5]
    del tensor
    gc.collect()
    assert address(pool((4,))) == where
