"""Says in the log which records are skipped: the first few of each dataset, then fewer and fewer.

Upstream: `prepare.py`, in the worker that met them. Downstream: the log; in a worker process, stderr. It is
no exact count, which a state has: a restore, another epoch or a block that is read again tells again.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence

from zephon.errors import Fault
from zephon.order import Addresses
from zephon.readers import RandomReader

NUM_FIRST = 5
"""Records of a dataset that are each told; then those at every power of ten."""

_log = logging.getLogger("zephon")


class SkippedLog:
    """Counts the records of each dataset that this process has skipped, for its loader; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: Counter[str] = Counter()

    def __reduce__(self) -> tuple[type[SkippedLog], tuple[()]]:
        return SkippedLog, ()

    def add(
        self, name: str, reader: RandomReader, addresses: Addresses, faults: Sequence[tuple[int, Fault]]
    ) -> None:
        """Counts the faulty documents at some of `addresses` and warns of those whose turn it is."""
        with self._lock:
            first = self._numbers[name] + 1
            self._numbers[name] += len(faults)
        for number, (index, fault) in enumerate(faults, first):
            if number <= NUM_FIRST or number == _power_of_ten(number):
                file, record = reader.where(int(addresses.chunk[index]), int(addresses.record[index]))
                following = "" if number < NUM_FIRST else f", the next told is {10 * _power_of_ten(number):,}"
                _log.warning(
                    "dataset %r, file %r, record %d: skipped (%s), got %s; number %s here%s",
                    name, file, record, fault.kind, fault.got, f"{number:,}", following,
                )  # fmt: skip


def _power_of_ten(number: int) -> int:
    """Returns the largest power of ten that is at most `number`."""
    return int(10 ** (len(str(number)) - 1))
