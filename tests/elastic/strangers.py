"""Plugins as a stranger would write them: a packer that cannot say what it carries, an executor that dawdles.

`conftest.py` of this folder registers them as the distribution `strangers`.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from zephon.executors import Workers
from zephon.packing import PackerPlan, Packing
from zephon.prepare import Block, Prepare, Request
from zephon.stream import Run

ROWS_SORTED = 3
LONGEST_DELAY_S = 0.001


class SortedRows:
    """Holds three rows, then gives them by their number of pieces; it has no `carry()`."""

    by_document = True

    def __init__(self, seq_len: int) -> None:
        self._seq_len = seq_len
        self._rows: list[list[Run]] = [[]]
        self._ready: list[list[Run]] = []

    @classmethod
    def plan(cls, packing: Packing) -> PackerPlan:
        """Returns the plan of `kind = "sorted_rows"`."""
        return PackerPlan(make=lambda: cls(packing.seq_len))

    def room(self) -> int:
        """Returns what the row begun still takes; 0 while sorted rows wait."""
        return 0 if self._ready else self._seq_len - sum(run.num_tokens for run in self._rows[-1])

    def add(self, run: Run) -> None:
        """Puts a piece into the row begun."""
        self._rows[-1].append(run)
        if self.room() == 0:
            self._rows.append([])
        if len(self._rows) > ROWS_SORTED:
            self._ready, self._rows = sorted(self._rows[:-1], key=len), [[]]

    def row(self) -> list[Run]:
        """Returns the row with the fewest pieces."""
        return self._ready.pop(0)

    def flush(self) -> list[list[Run]]:
        """Returns what waits, then what is held, the last row perhaps not full."""
        rows = self._ready + sorted((row for row in self._rows if row), key=len)
        self._ready, self._rows = [], [[]]
        return rows


def dawdling(prepare: Prepare, workers: int) -> Workers:
    """Returns threads that sleep before every task, for times that differ from run to run."""
    chance = random.Random(f"{time.monotonic_ns()}")

    def run(requests: Sequence[Request]) -> list[Block | Exception]:
        time.sleep(chance.random() * LONGEST_DELAY_S)
        return prepare(requests)

    return Workers(ThreadPoolExecutor(workers), run, workers)


ENTRY_POINTS = {
    "packers": {"sorted_rows": "SortedRows.plan"},
    "executors": {"dawdling": "dawdling"},
}


def entry_points_text() -> str:
    """Returns the entry_points.txt of the distribution."""
    lines = itertools.chain.from_iterable(
        [f"[zephon.{role}]", *(f"{name} = {__name__}:{target}" for name, target in entries.items()), ""]
        for role, entries in ENTRY_POINTS.items()
    )
    return "\n".join(lines)
