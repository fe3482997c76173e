"""What a run folder says of the rows that counted, in memory: 32 bytes a row, to compare batches with.

Upstream: the batch logs of `batchlog.py`. Downstream: `replay.py` and `verify.py`.
"""

from __future__ import annotations

import contextlib
import json
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from zephon.batch import Batch, digest
from zephon.batchlog import LogFile, read_lines, read_log_files
from zephon.errors import StateError
from zephon.runfolder import read_table
from zephon.schedule import ScheduleTable

DIGEST_BYTES = 32
ABSENT = bytes(DIGEST_BYTES)
FORGED = bytes([255]) * DIGEST_BYTES
"""Stands for a logged digest that is `ABSENT`: no row has either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A row that is not what was logged."""

    step: int
    lane: int
    row: int
    logged: str
    found: str
    file: LogFile


@dataclass(slots=True)
class _LaneRows:
    """The digests of one lane's rows [first, first + n), and from which row on which file has them."""

    first: int = 0
    digests: bytearray = field(default_factory=bytearray)
    sources: list[tuple[int, int]] = field(default_factory=list)
    end: int = 0
    """One past the last row that is logged, whether its digest is kept or not."""
    furthest: int = 0
    """The same, with rows that a newer attempt dropped as it went back."""

    def cut(self, row: int) -> None:
        """Drops what is known from `row` on."""
        self.end = min(self.end, row)
        del self.digests[max(0, row - self.first) * DIGEST_BYTES :]
        self.sources = [source for source in self.sources if source[0] < row]

    def put(self, row: int, value: bytes, file: int) -> None:
        if not self.digests:
            self.first = row
        at = (row - self.first) * DIGEST_BYTES
        if at < 0 or len(value) != DIGEST_BYTES:
            raise ValueError(f"row {row} with {len(value)} bytes")
        self.digests += bytes(max(0, at - len(self.digests)))
        self.digests[at : at + DIGEST_BYTES] = FORGED if value == ABSENT else value
        if not self.sources or self.sources[-1][1] != file:
            self.sources.append((row, file))

    def get(self, row: int) -> bytes | None:
        at = (row - self.first) * DIGEST_BYTES
        if not 0 <= at < len(self.digests):
            return None
        value = bytes(self.digests[at : at + DIGEST_BYTES])
        return None if value == ABSENT else value

    def compare_with(self, other: _LaneRows) -> tuple[int, int | None]:
        """Returns (rows that both have, the first of them that differs or None)."""
        first = max(self.first, other.first)
        ours, theirs = (
            np.frombuffer(rows.digests, dtype=f"V{DIGEST_BYTES}")[first - rows.first :]
            for rows in (self, other)
        )
        num = min(len(ours), len(theirs))
        absent = np.void(ABSENT)
        both = (ours[:num] != absent) & (theirs[:num] != absent)
        differ = np.flatnonzero(both & (ours[:num] != theirs[:num]))
        return int(both.sum()), first + int(differ[0]) if len(differ) else None

    def source(self, row: int) -> int:
        return self.sources[bisect_right(self.sources, row, key=lambda source: source[0]) - 1][1]


@dataclass(slots=True)
class _FileTokens:
    """Rows and tokens by dataset that one file has, for each of its steps."""

    first_step: int = -1
    rows: array[int] = field(default_factory=lambda: array("q"))
    tokens: array[int] = field(default_factory=lambda: array("q"))

    def add(self, step: int, num_rows: int, tokens: Sequence[int]) -> None:
        if not self.rows:
            self.first_step = step
        while len(self.rows) <= step - self.first_step:
            self.rows.append(0)
            self.tokens.extend([0] * len(tokens))
        at = step - self.first_step
        self.rows[at] += num_rows
        for i, value in enumerate(tokens, at * len(tokens)):
            self.tokens[i] += value


class LoggedRows:
    """The rows of some lanes and steps as the newest attempts have them; files are added oldest first."""

    def __init__(
        self, lanes: range, steps: range, *, rows_per_step: int, names: Sequence[str] | None = None
    ) -> None:
        """Takes rows of `lanes` in `steps`, half-open; tokens are kept for the datasets of `names`."""
        self.lanes, self.steps = lanes, steps
        self.files: list[LogFile] = []
        self.schedule = ""
        """Hash of the table of the newest batch; it has the shares of all batches before it."""
        self._newest = (-1, -1)
        self._rows_per_step = rows_per_step
        self._names = names
        self._rows: dict[int, _LaneRows] = {lane: _LaneRows() for lane in lanes}
        self._tokens: list[_FileTokens] = []

    def add(self, file: LogFile) -> None:
        """Adds what a file has; from its first row of a lane on it takes the place of older files."""
        index = len(self.files)
        self.files.append(file)
        self._tokens.append(_FileTokens())
        schedule, step, begun = file.schedule, -1, set[int]()
        for entry in read_lines(file.path):
            try:
                if entry["step"] >= self.steps.stop:
                    break
                step, schedule = entry["step"], entry.get("schedule", schedule)
                self._put(index, entry, begun)
            except (KeyError, ValueError, TypeError) as error:
                raise StateError.explained(
                    f"the batch log {str(file.path)!r} cannot be read",
                    got=f"{type(error).__name__}: {error}",
                    rule="a line has a step and (lane, row, SHA-256) of its rows",
                    cure="take the file out of the folder to compare what the others have",
                ) from None
        if (file.attempt, step) >= self._newest:
            self._newest, self.schedule = (file.attempt, step), schedule

    def _put(self, index: int, entry: Mapping[str, Any], begun: set[int]) -> None:
        step, rows = entry["step"], entry["rows"]
        if rows and rows[0][1] // self._rows_per_step != step:
            raise StateError.explained(
                f"the run of {str(self.files[index].path)!r} has steps of another size",
                got=f"row {rows[0][1]} of lane {rows[0][0]} in step {step}",
                rule=f"this recipe has {self._rows_per_step} rows of every lane in a step",
                cure="give the recipe of the run",
            )
        for lane, row, value in rows:
            of_lane = self._rows.get(lane)
            if of_lane is None:
                continue
            if lane not in begun:
                begun.add(lane)
                of_lane.cut(row)
            of_lane.end = row + 1
            of_lane.furthest = max(of_lane.furthest, of_lane.end)
            if step >= self.steps.start:
                of_lane.put(row, bytes.fromhex(value), index)
        if self._names is not None:
            counts = [int(entry["tokens"].get(name, 0)) for name in self._names]
            self._tokens[index].add(step, len(rows), counts)

    @property
    def end_step(self) -> int:
        """Returns one past the last step of which a row counts, those before `steps` included."""
        return -(-max((rows.end for rows in self._rows.values()), default=0) // self._rows_per_step)

    @property
    def dropped(self) -> range:
        """Returns the steps behind the newest attempt, which only those have that it went back from."""
        furthest = max((rows.furthest for rows in self._rows.values()), default=0)
        return range(max(self.end_step, self.steps.start), -(-furthest // self._rows_per_step))

    def compare(self, batch: Batch) -> tuple[int, list[Difference]]:
        """Returns the rows of the batch that the log has, and those of them that differ; digests cost."""
        places = list(zip(batch.lanes.tolist(), batch.rows.tolist(), strict=True))
        logged = [self._rows[lane].get(row) if lane in self.lanes else None for lane, row in places]
        num_rows = sum(value is not None for value in logged)
        if not num_rows:
            return 0, []
        return num_rows, [
            Difference(
                step=batch.step,
                lane=lane,
                row=row,
                logged=value.hex(),
                found=found,
                file=self.files[self._rows[lane].source(row)],
            )
            for (lane, row, found), value in zip(digest(batch), logged, strict=True)
            if value is not None and found != value.hex()
        ]

    def digest(self, lane: int, row: int) -> str | None:
        """Returns the digest of a row, as hex; None where the log has none."""
        value = self._rows[lane].get(row) if lane in self.lanes else None
        return None if value is None else value.hex()

    def compare_with(self, other: LoggedRows) -> tuple[int, tuple[int, int] | None]:
        """Returns (rows that both have, (lane, row) of the first of them that differs or None).

        The first in the order of (step, lane, row); of lanes that both were made for.
        """
        num_rows, found = 0, []
        for lane in sorted({*self.lanes} & {*other.lanes}):
            count, row = self._rows[lane].compare_with(other._rows[lane])
            num_rows += count
            if row is not None:
                found.append((row // self._rows_per_step, lane, row))
        first = min(found, default=None)
        return num_rows, None if first is None else first[1:]

    def tokens(self, step: int) -> list[int] | None:
        """Returns the tokens by dataset of a step; None where rows are missing, or count only in part."""
        sources: Counter[int] = Counter()
        for lane in self.lanes:
            for row in range(step * self._rows_per_step, (step + 1) * self._rows_per_step):
                if self._rows[lane].get(row) is None:
                    return None
                sources[self._rows[lane].source(row)] += 1
        totals = [0] * len(self._names or ())
        for index, num_rows in sources.items():
            found = self._tokens[index]
            at = step - found.first_step
            if found.rows[at] != num_rows:
                return None
            for i in range(len(totals)):
                totals[i] += found.tokens[at * len(totals) + i]
        return totals


def newest_table(folder: Path) -> ScheduleTable | None:
    """Returns the table by which the newest attempt of a run delivered its last batch.

    None where the folder has no batches, or not the table. Cost: one pass over a batch log.
    """
    files = read_log_files(folder)
    if not files:
        return None
    schedule = files[-1].schedule
    with files[-1].path.open(encoding="utf-8") as stream:
        for line in stream:
            if '"schedule"' in line:
                with contextlib.suppress(json.JSONDecodeError):  # a line that was cut off by a kill
                    schedule = str(json.loads(line).get("schedule", schedule))  # a dataset may have that name
    return read_table(folder, schedule)
