"""The batch logs of a run folder: the digests of every row that was delivered, written by their owners.

Upstream: `loader.py`, by way of `replay.py`. Downstream: people and tools that compare runs. No
communication: every rank appends to its own file, and readers merge them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from zephon.batch import Batch, RowDigest, digest
from zephon.changes import changed_recipe, list_changes
from zephon.errors import StateError, ZephonError
from zephon.lock import lock_hashes
from zephon.opened import Opened
from zephon.recipe import Recipe, hash_json
from zephon.runfolder import BATCHES, LOCK, RECIPE, read_lock, read_recipe, write_description, write_table
from zephon.schedule import ScheduleTable
from zephon.state import first_datasets

LOG_NAME = re.compile(r"rank_\d{5,}_\d{5,}\.jsonl")
ALL_STEPS = range(sys.maxsize)
TAIL_BYTES = 64 << 10
"""What is read first of the end of a log, to find its last line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Whose rows a log has."""

    dp_rank: int
    dp_world_size: int
    lanes: range


class BatchLog:
    """The digests of one rank's rows: a file for each attempt, a JSON line for each batch."""

    def __init__(self, folder: Path, ranks: Ranks, opened: Opened) -> None:
        """Writes below `folder`, from the first batch on, so a restore that is refused leaves it as it is."""
        self.folder, self.ranks, self._opened = folder, ranks, opened
        self._folder = folder / BATCHES
        self._stream: IO[str] | None = None
        self._table: ScheduleTable | None = None
        self.attempt = 0
        """The number of the file that is written."""

    @classmethod
    def open(cls, opened: Opened, folder: Path | None, ranks: Ranks) -> BatchLog | None:
        """Returns the log of a rank in `folder`, or None without one; rank 0 describes a run that is new.

        Refuses a folder with batches of another phase, or whose lock holds out other documents.
        """
        if folder is None:
            return None
        _refuse_other_held_out(opened, folder)
        _refuse_other_phase(opened.recipe, folder)
        if ranks.dp_rank == 0 and not (folder / RECIPE).exists():
            try:
                write_description(opened, folder)
            except OSError as error:
                raise StateError.explained(
                    f"run folder {str(folder)!r} cannot be made",
                    got=str(error),
                    rule="it is a folder, or there is none yet, and this user may write in it",
                    cure="give another `run_folder`, or take away what is in its place",
                ) from error
        return cls(folder, ranks, opened)

    def _start(self, restores: int, table: ScheduleTable) -> IO[str]:
        """Returns the file of this attempt, numbered after all of this rank and all with one of its lanes.

        Refuses a folder with batches of another recipe.
        """
        _refuse_other_recipe(self._opened.recipe, self.folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        ranks, attempt = self.ranks, restores
        if ranks.dp_rank == 0:
            write_description(self._opened, self.folder)
        for path in reversed(log_files(self._folder)):  # of thousands, the heads of the newest are read
            if _attempt(path) < attempt:
                break
            is_ours = path.name.startswith(f"rank_{ranks.dp_rank:05d}_")
            first, last = (0, 0) if is_ours else _read_head(path).get("lanes", (0, 0))
            if is_ours or (first < ranks.lanes.stop and ranks.lanes.start < last):
                attempt = 1 + _attempt(path)
                break
        stream = self._stream = (self._folder / f"rank_{ranks.dp_rank:05d}_{attempt:05d}.jsonl").open(
            "x", encoding="utf-8", buffering=1
        )
        self.attempt = attempt
        head = {
            "attempt": attempt,
            "rank": ranks.dp_rank,
            "dp_world_size": ranks.dp_world_size,
            "lanes": [ranks.lanes.start, ranks.lanes.stop],
            "recipe": self._opened.recipe.fingerprint(),
            "schedule": self._take_table(table),
            "lock": hash_json(lock_hashes(self._opened.lock)),
        }
        if (start := self._opened.recipe.continues) is not None:
            head["continues"] = {"hash": start.hash, "step": start.shared.steps}
        stream.write(json.dumps(head) + "\n")
        return stream

    def _take_table(self, table: ScheduleTable) -> str:
        """Returns the hash of `table`, which rank 0 writes down."""
        self._table = table
        if self.ranks.dp_rank == 0:
            write_table(table, self.folder)
        return table.hash()

    def write(self, batch: Batch, restores: int, table: ScheduleTable) -> None:
        """Appends the digests and tokens of a batch, and the hash of `table`, in force at its step, if new.

        `restores` counts the times that the run went on.
        """
        try:
            self._append(batch, restores, table)
        except OSError as error:
            stream, self._stream = self._stream, None
            with contextlib.suppress(OSError):  # it holds what could not be written, and tries again
                if stream is not None:
                    stream.close()
            raise StateError.explained(
                f"run folder {str(self.folder)!r} cannot be written",
                got=str(error),
                rule="every batch is logged there before it is delivered",
                cure="make room there, or let this user write in it, and go on from the last checkpoint",
            ) from error

    def _append(self, batch: Batch, restores: int, table: ScheduleTable) -> None:
        stream = self._stream or self._start(restores, table)
        tokens = {name: int(column.sum()) for name, column in batch.tokens_by_dataset.items()}
        line: dict[str, Any] = {"step": batch.step, "rows": digest(batch), "tokens": tokens}
        if table is not self._table:
            line["schedule"] = self._take_table(table)
        stream.write(json.dumps(line, separators=(",", ":")) + "\n")

    def close(self) -> None:
        """Closes the file."""
        if self._stream is not None:
            self._stream.close()


def _refuse_other_held_out(opened: Opened, folder: Path) -> None:
    """Refuses to write over a lock whose list of documents held out is not that which is open here."""
    saved, ours = ((lock or {}).get("held_out", {}) for lock in (read_lock(folder), opened.lock))
    if saved and saved != ours:
        name = next(name for name in sorted({*saved, *ours}) if saved.get(name) != ours.get(name))
        raise StateError.explained(
            f"`run_folder` {str(folder)!r}: its lock has other documents held out of {name}",
            got="data that were opened without that lock, or another holdout",
            rule="a run folder keeps its list of documents held out",
            cure=f"open with that lock: open_recipe(recipe, lock=...), JSON of {LOCK}; or give another "
            "`run_folder`",
        )


def _refuse_other_phase(recipe: Recipe, folder: Path) -> None:
    """Refuses to log a phase among the batches of another, whose steps have the same numbers.

    The logs say it, of whichever ranks they are: only rank 0 describes the run, and maybe elsewhere.
    """
    head = _newest_head(folder)
    if not head:
        return
    ours = None if recipe.continues is None else recipe.continues.hash
    found = head.get("continues", {}).get("hash")
    if found != ours:
        raise StateError.explained(
            f"`run_folder` {str(folder)!r} holds another phase of the run",
            got=f"batches of a phase that continues {found or 'none'}; this one continues {ours or 'none'}",
            rule="each phase counts its steps from 0 and has a run folder of its own",
            cure="give another `run_folder`",
        )


def _refuse_other_recipe(recipe: Recipe, folder: Path) -> None:
    """Refuses to log a recipe among the batches of another; one may have more datasets, at the end.

    It is asked at the first batch, when a state that does not fit has been refused in its own words. The logs
    say it, since anybody may edit the copy of the recipe; that only names what differs.
    """
    found = _newest_head(folder).get("recipe")
    if found is None or found == recipe.fingerprint() or _is_of_one_run(recipe, folder, found):
        return
    raise StateError.explained(
        f"`run_folder` {str(folder)!r} holds the batches of another recipe",
        got=_differing(recipe, folder, found),
        rule="a run goes on in its folder with its recipe; another run has a folder of its own",
        cure="give another `run_folder`, or take this one away to begin anew in its place",
    )


def _is_of_one_run(recipe: Recipe, folder: Path, found: str) -> bool:
    """Returns whether datasets were added since the recipe `found`, or the run goes back to before that."""
    shorter = (first_datasets(recipe, number) for number in range(1, len(recipe.datasets)))
    if found in (known.fingerprint() for known in shorter):
        return True
    ours = recipe.fingerprint()
    return any(_read_head(path).get("recipe") == ours for path in log_files(folder / BATCHES))


def _differing(recipe: Recipe, folder: Path, found: str) -> str:
    """Returns the fields that differ, or only the fingerprints where the folder does not tell that recipe."""
    saved = None
    with contextlib.suppress(ZephonError, ValueError, TypeError, LookupError, OSError):
        saved = read_recipe(folder)
    if saved is None or saved.fingerprint() != found:
        edited = "" if saved is None else f"; {RECIPE} in there was edited and is not that of the run"
        return f"fingerprint: the run has {found}, here it is {recipe.fingerprint()}{edited}"
    return f"what differs:\n{list_changes(changed_recipe(saved, recipe))}"


def _newest_head(folder: Path) -> dict[str, Any]:
    """Returns what the newest log that has a head says of itself; empty where there is none."""
    heads = (_read_head(path) for path in reversed(log_files(folder / BATCHES)))
    return next(filter(None, heads), {})


def log_files(folder: Path) -> list[Path]:
    """Returns the batch logs in the folder `batches`, by attempt, then rank; other files are let be."""
    found = sorted(path for path in folder.glob("rank_*_*.jsonl") if LOG_NAME.fullmatch(path.name))
    return sorted(found, key=_attempt)


def _attempt(path: Path) -> int:
    return int(path.stem.rpartition("_")[2])


def _read_head(path: Path) -> dict[str, Any]:
    """Returns the first line; empty where it is none, as a crash of the machine may leave it."""
    with path.open(encoding="utf-8") as stream, contextlib.suppress(ValueError):
        head = json.loads(stream.readline())
        return head if isinstance(head, dict) else {}
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """What one rank delivered in one attempt, as the first two lines of its batch log say."""

    path: Path
    attempt: int
    ranks: Ranks
    first_step: int
    first_row: int
    """Row of the first lane logged; lanes before it have one row more."""
    first_lane: int
    micro_batch_size: int
    schedule: str
    """Hash of the table in force at the first batch; empty where it is not logged."""
    lock: str
    """Hash of the lock's hashes; empty where it is not logged."""

    @property
    def label(self) -> str:
        """Returns who wrote the file."""
        return f"attempt {self.attempt}, rank {self.ranks.dp_rank} of {self.ranks.dp_world_size}"


def find_log_files(folder: Path, role: str, steps: range = ALL_STEPS) -> list[LogFile]:
    """Returns what `read_log_files` does of logs that begin before `steps` end; refuses a folder of none."""
    files = [file for file in read_log_files(folder) if file.first_step < steps.stop]
    if not files:
        raise no_batches(folder, role, steps)
    return files


def no_batches(folder: Path, role: str, steps: range = ALL_STEPS) -> StateError:
    """Returns the error of a folder, given as `role`, that holds no batches of `steps`."""
    bounds = "" if steps.stop == ALL_STEPS.stop else f" in steps [{steps.start}, {steps.stop})"
    got = "a file, no folder" if folder.exists() else "no such folder"
    return StateError.explained(
        f"{role} {str(folder)!r} holds no batches{bounds}",
        got="no batch log with such a row" if folder.is_dir() else got,
        rule="it is the folder that a run had as its `run_folder`",
        cure="give that folder" + (", or other steps" if bounds else ""),
    )


def read_log_files(folder: Path) -> list[LogFile]:
    """Returns the batch logs of a run folder that hold a batch, by attempt, then rank."""
    found = []
    for path in log_files(folder / BATCHES):
        try:
            file = _read_log_file(path)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StateError.explained(
                f"the batch log {str(path)!r} cannot be read",
                got=f"{type(error).__name__}: {error}",
                rule="its first line says whose rows it has, and every other has a step and its rows",
                cure="take the file out of the folder to compare what the others have",
            ) from None
        if file is not None:
            found.append(file)
    return found


def _read_log_file(path: Path) -> LogFile | None:
    head, first = _read_head(path), next(read_lines(path), None)
    if first is None or not first.get("rows"):
        return None
    lane, row, _ = first["rows"][0]
    ranks = Ranks(dp_rank=head["rank"], dp_world_size=head["dp_world_size"], lanes=range(*head["lanes"]))
    return LogFile(
        path=path,
        attempt=_attempt(path),
        ranks=ranks,
        first_step=first["step"],
        first_row=row,
        first_lane=lane,
        micro_batch_size=len(first["rows"]),
        schedule=str(head.get("schedule", "")),
        lock=str(head.get("lock", "")),
    )


def last_steps(files: Iterable[LogFile]) -> dict[int, int]:
    """Returns for each lane the last step of its newest file, of files by attempt; reads their ends only."""
    return {lane: step for file in files for step in [_last_step(file)] for lane in file.ranks.lanes}


def _last_step(file: LogFile) -> int:
    """Returns the step of the last whole line."""
    with file.path.open("rb") as stream:
        end, size = stream.seek(0, os.SEEK_END), TAIL_BYTES
        while True:
            stream.seek(max(0, end - size))
            lines = stream.read().splitlines()[size < end :]  # of the first there may be only a part
            for line in reversed(lines):
                with contextlib.suppress(json.JSONDecodeError, KeyError):
                    return int(json.loads(line)["step"])
            if size >= end:
                return file.first_step
            size *= 8


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the batches of a log; a line that was cut off by a kill is left out."""
    with path.open("rb") as stream:
        next(stream, None)  # what the attempt is
        for line in stream:
            with contextlib.suppress(ValueError):
                yield json.loads(line)


def read_batches(folder: Path, num_steps: int | None = None) -> dict[int, list[RowDigest]]:
    """Returns the digests of each step, or of the first `num_steps`, merged over ranks and attempts.

    A lane's rows count as the newest attempt has them, from the first row on that it logged; what older
    attempts logged from there on is left out.
    """
    rows: dict[int, dict[int, tuple[int, str]]] = {}  # by lane and row: step and digest
    for path in log_files(folder / BATCHES):
        begun: set[int] = set()
        for entry in read_lines(path):
            if num_steps is not None and entry["step"] >= num_steps:
                break
            for lane, row, value in entry["rows"]:
                of_lane = rows.setdefault(lane, {})
                if lane not in begun:
                    begun.add(lane)
                    rows[lane] = of_lane = {old: found for old, found in of_lane.items() if old < row}
                of_lane[row] = (entry["step"], value)
    steps: dict[int, list[RowDigest]] = {}
    for lane in sorted(rows):
        for row in sorted(rows[lane]):
            step, value = rows[lane][row]
            steps.setdefault(step, []).append((lane, row, value))
    return {step: sorted(steps[step]) for step in sorted(steps)}
