"""The schedule tables of a run folder, by their hashes: those that its batch logs name.

Upstream: `runfolder.py` writes them. Downstream: whoever makes steps of the run again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from zephon.errors import StateError
from zephon.schedule import ScheduleTable

SCHEDULES = "schedules"


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that a reader sees all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def write_table(table: ScheduleTable, folder: Path) -> None:
    """Writes a table into a run folder that does not have it."""
    path = folder / SCHEDULES / f"{table.hash()}.json"
    if not path.exists():
        write_atomically(path, json.dumps(table.to_json()) + "\n")


def read_table(folder: Path, schedule: str) -> ScheduleTable | None:
    """Returns the schedule's table that a run folder holds under its hash, or None where it does not."""
    path = folder / SCHEDULES / f"{schedule}.json"
    if not path.exists():
        return None
    try:
        return ScheduleTable.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError) as error:
        raise StateError.explained(
            f"the schedule {str(path)!r} cannot be read",
            got=f"{type(error).__name__}: {error}",
            rule="it is the table that the run wrote",
            cure="bring the file back, or take it away to compare with the recipe's own schedule",
        ) from None
