"""Skipped records are told one by one at first, then at powers of ten, with where they stand."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.helpers import faulty, make_recipe, open_small
from zephon.errors import Fault
from zephon.order import Addresses
from zephon.prepare import SkippedLog

NULL = Fault("null", "null", "a text is a string")
PLACES = Addresses(np.zeros(8, np.int64), np.arange(8))


def numbers_told(caplog: pytest.LogCaptureFixture) -> list[int]:
    """Returns how the records told were numbered, in ascending order."""
    return sorted(int(record.getMessage().split("number ")[1].split(" ")[0]) for record in caplog.records)


def test_the_first_are_told_and_then_every_power_of_ten(caplog: pytest.LogCaptureFixture) -> None:
    """Each dataset counts for itself, over all threads of the process."""
    opened = open_small(make_recipe(datasets=(faulty("web", ["good"] + [None] * 7),)))
    (reader,) = opened.readers
    log = SkippedLog()
    log.add("code", reader, PLACES, [(1, NULL)])
    with ThreadPoolExecutor(4) as pool:
        for _ in range(25):
            pool.submit(log.add, "web", reader, PLACES, [(3, NULL), (5, NULL)])
    assert numbers_told(caplog) == [1, 1, 2, 3, 4, 5, 10]
    assert caplog.records[0].getMessage() == (
        "dataset 'code', file 'web', record 1: skipped (null), got null; number 1 here"
    )
    last = max(caplog.records, key=lambda record: len(record.getMessage())).getMessage()
    assert last.endswith("; number 10 here, the next told is 100")


def test_another_process_counts_for_itself(caplog: pytest.LogCaptureFixture) -> None:
    opened = open_small(make_recipe(datasets=(faulty("web", ["good"] + [None] * 7),)))
    log = SkippedLog()
    log.add("web", opened.readers[0], PLACES, [(1, NULL)] * 50)
    caplog.clear()
    pickle.loads(pickle.dumps(log)).add("web", opened.readers[0], PLACES, [(1, NULL)])
    assert numbers_told(caplog) == [1]
