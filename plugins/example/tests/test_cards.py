"""Tests of the kind `cards`, against the conformance kit and by hand."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest

from zephon import DataError, Dataset
from zephon.testing import check_reader
from zephon_example import CardsReader


def test_the_kit_accepts_it(tmp_path: Path) -> None:
    (tmp_path / "a.cards").write_bytes(b"3\none\n\xff\nthree\n")
    (tmp_path / "b.cards").write_text("0\n")
    (tmp_path / "c.cards").write_text("20\n" + "word\n" * 19 + "\n")
    check_reader(CardsReader, Dataset.from_path("web", tmp_path, on_error="skip"))


def test_it_is_registered() -> None:
    (entry,) = entry_points(group="zephon.datasets", name="cards")
    assert entry.load() is CardsReader


def test_a_file_without_a_count_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.cards").write_text("three\none\n")
    with pytest.raises(DataError, match="the first line is the number of documents"):
        check_reader(CardsReader, Dataset.from_path("web", tmp_path))
