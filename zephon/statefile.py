"""A state as one file: plain JSON, so that a recipe can name the state that it continues.

Upstream: `Loader.state_dict()`. Downstream: `continue_from` of a recipe, and run folders, which keep a copy.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zephon import plugins
from zephon.cachefiles import write_atomically
from zephon.errors import StateError

FILE_VERSION = 1
KIND = "zephon state"
LANE = "lane_"


def write_state_file(state: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes a state, as `state_dict()` returned it or the union of all ranks' states, so that a reader sees
    all of the file or none; the same state gives the same bytes."""
    entries = {str(name): _text(name, value) for name, value in state.items()}
    data = {"kind": KIND, "version": FILE_VERSION, "state": entries}
    write_atomically(Path(path), json.dumps(data, indent=1, sort_keys=True) + "\n", sync=True)


def _text(name: object, value: object) -> str | int:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode()
    if isinstance(value, str) or type(value) is int:
        return value
    raise TypeError(
        f"`state` must be what state_dict() returned, got {type(value).__name__} for {name!r}; "
        "give the loader's own entries"
    )


def find_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the state in a file of `write_state_file`, or in a trainer's checkpoint folder.

    Plugins of the role `zephon.states` read folders: functions of the path that raise `StateError` where it
    is none of theirs.
    """
    path = Path(path)
    if not path.is_dir():
        return read_state_file(path)
    refusals: list[StateError] = []
    readers = plugins.load_all("states")
    for read in readers.values():
        try:
            found: dict[str, Any] = read(path)
        except StateError as error:
            refusals.append(error)
        else:
            return found
    if len(refusals) == 1:
        raise refusals[0]
    raise StateError.explained(
        f"the folder {str(path)!r} holds no state that can be read",
        got=f"a folder, and readers of checkpoints by {', '.join(readers) or 'no plugin'}",
        rule="a state is a file of zephon.write_state_file, or a checkpoint that a plugin reads",
        cure="install the plugin of the trainer, such as zephon-torchtitan; or name a state file",
    )


def read_state_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the state that `write_state_file` wrote."""
    path = Path(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["kind"] != KIND or data["version"] != FILE_VERSION:
            raise ValueError(f"kind {data['kind']!r}, version {data['version']!r}")
        entries = {str(name): value for name, value in data["state"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = "it does not exist" if isinstance(error, FileNotFoundError) else str(error)
        raise StateError.explained(
            f"the state file {str(path)!r} cannot be read",
            got=f"{type(error).__name__}: {reason}",
            rule=f"it is what zephon.write_state_file(state, path) wrote, version {FILE_VERSION}",
            cure="name the right file, or write one from a checkpoint of the run, with all lanes in it",
        ) from None
    return {n: v.encode() if n.startswith(LANE) and isinstance(v, str) else v for n, v in entries.items()}
