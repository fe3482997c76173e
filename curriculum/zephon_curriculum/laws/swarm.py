"""A swarm: small runs of different mixtures, what each was mixed of and the losses it reached.

Upstream: `designs.py`, which says what the runs read, and two CSV files: `run,web,code,...` with the ratios,
`run,TARGET,...` with the losses. Downstream: `fit.py`, which fits losses to ratios.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from zephon.cli.common import add_row, new_table
from zephon_curriculum.laws.mixtures import Floats, spread_table, unmixed
from zephon_curriculum.results import Readable, Shown

RUN = "run"
"""The column that names the runs."""
SUM_TOLERANCE = 1e-3
"""Ratios of a run may miss 1 by so much, as rounded ones do; they are divided by their sum."""
SUM_CURE = "divide them by their sum, or add the dataset that is missing"
MAX_LOSS = 1e6
"""No law is fitted to greater losses, nor to those below its opposite."""
LIMITS = {
    "ratios": (0.0, np.finfo(np.float64).max, ">= 0 and finite"),
    "losses": (-MAX_LOSS, MAX_LOSS, f"at most {MAX_LOSS:g}"),
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Swarm(Readable):
    """Runs, each with its ratios and losses; refuses what no law can be fitted to."""

    names: tuple[str, ...]
    """The datasets."""
    runs: tuple[str, ...]
    ratios: Floats
    """(runs, datasets); rows sum to 1."""
    targets: tuple[str, ...]
    """What the losses were measured on."""
    losses: Floats
    """(runs, targets); lower is better."""

    def __post_init__(self) -> None:
        ratios, losses = np.asarray(self.ratios, np.float64), np.asarray(self.losses, np.float64)
        num_runs = len(self.runs)
        for what, values, columns in (("ratios", ratios, self.names), ("losses", losses, self.targets)):
            if values.shape != (num_runs, len(columns)) or not columns:
                raise ValueError(
                    f"`{what}` must be (runs, columns) = ({num_runs}, {len(columns)}), got {values.shape}"
                )
            least, most, rule = LIMITS[what]
            for run, column in np.argwhere(~((least <= values) & (values <= most)))[:1].tolist():
                raise ValueError(
                    f"{what} of run {self.runs[run]!r}: {columns[column]!r} must be {rule}, got "
                    f"{values[run, column]:g}; mend it, or leave out the run"
                )
        _refuse_twice(self.runs, "run")
        _refuse_twice(self.names, "dataset")
        _refuse_twice(self.targets, "target")
        object.__setattr__(self, "ratios", _summed(ratios, self.runs))
        object.__setattr__(self, "losses", losses)
        self._refuse_unfit()

    def _refuse_unfit(self) -> None:
        num_datasets = len(self.names)
        if num_datasets < 2:
            raise ValueError(f"a mixing law is of 2 datasets or more, got {self.names}")
        if len(self.runs) < num_datasets + 2:
            raise ValueError(
                f"a law of {num_datasets} datasets has {num_datasets + 1} parameters and takes at least "
                f"{num_datasets + 2} runs, one more to measure its error by, got {len(self.runs)}; "
                f"{advised_runs(num_datasets)} are advised"
            )
        if told := unmixed(self.ratios, self.names):
            raise ValueError(f"the runs cannot tell the datasets apart: {told}; run other mixtures too")

    def only(self, targets: Sequence[str]) -> Swarm:
        """Returns the swarm with these targets alone, in this order."""
        if unknown := [target for target in targets if target not in self.targets]:
            raise ValueError(f"`targets` names {unknown[0]!r}, which is none of {', '.join(self.targets)}")
        columns = [self.targets.index(target) for target in targets]
        return replace(self, targets=tuple(targets), losses=self.losses[:, columns])

    def shown(self) -> Shown:
        """Returns how the shares and the losses of the runs spread."""
        losses = new_table("target", "#lowest", "#mean", "#highest")
        for name, column in zip(self.targets, self.losses.T, strict=True):
            add_row(losses, name, *(f"{loss:.4f}" for loss in (column.min(), column.mean(), column.max())))
        return Shown(head=f"{len(self.runs):,} runs", tables=(spread_table(self.names, self.ratios), losses))


def advised_runs(num_datasets: int) -> int:
    """Returns how many runs a law of so many datasets should have."""
    return 3 * (num_datasets + 1)


def read_swarm(
    ratios: str | os.PathLike[str], losses: str | os.PathLike[str], targets: Sequence[str] = ()
) -> Swarm:
    """Returns the swarm of two CSV files, joined by their column `run`; `targets` are columns, default all.

    Refuses a run that only one of the files has, and an empty cell.
    """
    mixed, reached = _Table.read(Path(ratios)), _Table.read(Path(losses))
    mixed.check_sums(reached)
    for ours, theirs in ((mixed, reached), (reached, mixed)):
        if missing := [run for run in ours.runs if run not in theirs.runs]:
            raise ValueError(
                f"{theirs.path} lacks run {missing[0]!r}, which {ours.path} has ({len(missing)} such); "
                "leave out of both a run that did not end"
            )
    runs = tuple(mixed.runs)
    swarm = Swarm(
        names=mixed.columns,
        runs=runs,
        ratios=np.array([mixed.runs[run] for run in runs], np.float64).reshape(-1, len(mixed.columns)),
        targets=reached.columns,
        losses=np.array([reached.runs[run] for run in runs], np.float64).reshape(-1, len(reached.columns)),
    )
    return swarm.only(targets) if targets else swarm


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """A CSV file: the numbers of each run."""

    path: Path
    columns: tuple[str, ...]
    runs: dict[str, list[float]]
    lines: dict[str, int]
    """Of each run, the number of its line, from 1."""

    @classmethod
    def read(cls, path: Path) -> _Table:
        try:
            with path.open(encoding="utf-8-sig", newline="") as stream:
                lines = [(line, cells) for line, cells in _numbered(stream) if cells]
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path} must be a CSV file in UTF-8: {error}") from None
        header = [cell.strip() for cell in lines[0][1]] if lines else []
        if RUN not in header or len(header) < 2:
            raise ValueError(f"{path} must begin with the line `{RUN},NAME,...`, got {','.join(header)!r}")
        _refuse_twice(header, f"{path}: column")
        at = header.index(RUN)
        found = cls(path=path, columns=tuple(name for name in header if name != RUN), runs={}, lines={})
        for line, cells in lines[1:]:
            if len(cells) != len(header):
                raise ValueError(
                    f"{path}, line {line} has {len(cells)} cells, its header {len(header)}: "
                    f"{','.join(cells)[:60]!r}"
                )
            run = cells[at].strip()
            if run in found.runs:
                raise ValueError(f"{path} has run {run!r} twice, in lines {found.lines[run]} and {line}")
            found.lines[run] = line
            found.runs[run] = [
                _number(cell, f"{path}, line {line}, run {run!r}, column {name!r}")
                for name, cell in zip(header, cells, strict=True)
                if name != RUN
            ]
        return found

    def sums_to_one(self, run: str) -> bool:
        """Returns whether the numbers of a run are ratios of a whole."""
        return abs(sum(self.runs[run]) - 1) <= SUM_TOLERANCE

    def check_sums(self, losses: _Table) -> None:
        """Refuses ratios that do not sum to 1; says so where those of the other file would."""
        wrong = next((run for run in self.runs if not self.sums_to_one(run)), None)
        if wrong is None:
            return
        cure = SUM_CURE
        if losses.runs and all(map(losses.sums_to_one, losses.runs)):
            cure = f"those of {losses.path} do: give the file of ratios first, then that of losses"
        raise ValueError(
            f"{self.path}, line {self.lines[wrong]}, run {wrong!r}: the ratios must sum to 1, got "
            f"{sum(self.runs[wrong]):.6g}; {cure}"
        )


def _numbered(stream: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yields the records of a CSV file, each with the number of the line in which it begins."""
    reader, line = csv.reader(stream), 1
    for cells in reader:
        yield line, cells
        line = reader.line_num + 1


def _number(cell: str, where: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{where} must be a finite number, got {cell[:40]!r}; leave out a run without one")
    return value


def _summed(ratios: Floats, runs: Sequence[str]) -> Floats:
    """Returns ratios that sum to 1; refuses sums that rounding does not explain."""
    sums = ratios.sum(axis=1)
    off = np.flatnonzero(np.abs(sums - 1) > SUM_TOLERANCE)
    if off.size:
        raise ValueError(
            f"run {runs[off[0]]!r}: the ratios must sum to 1, got {sums[off[0]]:.6g}; {SUM_CURE}"
        )
    return np.asarray(ratios / sums[:, None], np.float64)


def _refuse_twice(names: Sequence[str], what: str) -> None:
    if twice := [name for name in names if list(names).count(name) > 1]:
        raise ValueError(f"{what} {twice[0]!r} is given twice")
