"""Snapshots: the states of a rank's lanes that a run folder keeps every so many steps, for far previews.

Upstream: `replay.py`, when a step is delivered. Downstream: who wants to make a step far into a run again.
Files are written by their owner; a missing one only makes the way longer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zephon.batchlog import LogFile, read_log_files
from zephon.errors import StateError
from zephon.state import lane_key
from zephon.statefile import read_state_file, write_state_file

SNAPSHOTS = "snapshots"
SNAPSHOT_STEPS = 500
"""A snapshot is taken after each of so many steps."""
_NAME = re.compile(r"rank_(\d{5,})_(\d{5,})\.json")
_FOLDER = re.compile(r"step_(\d{9,})")


def snapshot_path(folder: Path, num_steps: int, dp_rank: int, attempt: int) -> Path:
    """Returns where the snapshot after `num_steps` steps of a rank lies in a run folder."""
    return folder / SNAPSHOTS / f"step_{num_steps:09d}" / f"rank_{dp_rank:05d}_{attempt:05d}.json"


def write_snapshot(folder: Path, state: Mapping[str, Any], dp_rank: int, attempt: int) -> None:
    """Writes the state of a rank after a step."""
    num_steps = json.loads(state["schedule"])["steps"]
    write_state_file(state, snapshot_path(folder, num_steps, dp_rank, attempt))


def find_snapshot(folder: Path, num_steps: int, lanes: range | None = None) -> dict[str, Any] | None:
    """Returns the newest state of a run folder after at most `num_steps` steps that has all of `lanes`.

    Of lanes that several attempts wrote the newest one's counts, and none of a step that a later attempt made
    again. None where there is no such; a file that cannot be read counts as none. `lanes` None: those of the
    recipe, as far as the logs tell.
    """
    files = read_log_files(folder)
    end = max((file.ranks.lanes.stop for file in files), default=0)
    wanted = {lane_key(lane) for lane in (range(end) if lanes is None else lanes)}
    for (steps,), path in reversed(_named(folder / SNAPSHOTS, _FOLDER)):
        if steps <= num_steps:
            state = _merged(path, steps, files)
            if wanted and wanted <= set(state):
                return state
    return None


def _named(folder: Path, pattern: re.Pattern[str]) -> list[tuple[tuple[int, ...], Path]]:
    """Returns, ascending, the paths in a folder of which the name fits, by the numbers in it."""
    matches = ((pattern.fullmatch(path.name), path) for path in sorted(folder.glob("*")))
    return sorted((tuple(map(int, match.groups())), path) for match, path in matches if match)


def _merged(folder: Path, steps: int, files: list[LogFile]) -> dict[str, Any]:
    """Returns the union of the states of ranks after one step that no later attempt made again."""
    state: dict[str, Any] = {}
    for (_, attempt), path in sorted(_named(folder, _NAME), key=lambda named: named[0][1]):
        again = (file for file in files if file.attempt > attempt and file.first_step < steps)
        stale = {lane_key(lane) for file in again for lane in file.ranks.lanes}
        try:
            entries = read_state_file(path)
        except StateError:
            continue
        state |= {name: value for name, value in entries.items() if name not in stale}
    return state
