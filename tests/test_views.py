"""Tests of `zephon.views`: what is counted and kept when threads open chunks, or cannot."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from zephon.descriptors import Descriptor
from zephon.errors import DataError
from zephon.views import View, Views


def view_of(path: Path) -> View:
    """Returns the view of a file of 4 bytes, of which each is a document."""
    file = Descriptor(os.open(path, os.O_RDONLY))
    hot = (None, file.number, np.arange(5).data, False)
    return View(hot=hot, file=file, faults={}, replaced=frozenset(), size_bytes=4)


def damaged(_chunk: int) -> DataError:
    return DataError("damaged")


def test_a_chunk_that_two_threads_opened_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abcd")
    both = threading.Barrier(2)

    def slow(chunk: int) -> View:
        if chunk == 0 and not both.broken:
            both.wait(timeout=20)
        return view_of(tmp_path / "a")

    views = Views(slow, damaged)
    threads = [threading.Thread(target=lambda: views._keep(0, slow(0))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    both.abort()
    assert views.texts(np.zeros(4, np.int64), np.arange(4), 100).texts == list("abcd")
    assert views._views_bytes == 4
    views.drop(0)
    assert views._views_bytes == 0


def test_a_chunk_that_cannot_be_opened_leaves_nothing(tmp_path: Path) -> None:
    def fails(chunk: int) -> View:
        raise OSError(5, f"chunk {chunk}")

    views = Views(fails, damaged)
    for chunk in range(10):
        with pytest.raises(OSError, match=f"chunk {chunk}"):
            views.view(chunk)
    assert views._gates == {}


def test_a_mapped_chunk_keeps_no_second_descriptor(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abcd")
    before = len(os.listdir("/proc/self/fd"))
    views = Views(lambda _chunk: view_of(tmp_path / "a"), damaged)
    assert views.view(0).hot[0] is not None
    assert len(os.listdir("/proc/self/fd")) == before + 1
    views.clear()
    assert len(os.listdir("/proc/self/fd")) == before
