"""What rank 0 tells all ranks at an exchange: the entries that are new with their files, or an error.

Upstream and downstream: `follow.py`, on rank 0 and on the others. Where nothing is new it is one byte.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from zephon import StateError
from zephon_curriculum.log.amend import Blobs
from zephon_curriculum.log.entries import Entry, read_entry
from zephon_curriculum.log.folder import read_blobs

NOTHING = b"."


@dataclass(frozen=True, slots=True)
class News:
    """Entries as rank 0 read or wrote them."""

    entries: Sequence[Entry]
    blobs: Blobs
    schedule: str
    """Hash of the schedule that they give: every rank composes its own and compares."""


def pack(entries: Sequence[Entry], raw: dict[str, str], schedule: str) -> bytes:
    """Returns the message of new entries."""
    files = [entry.to_bytes().decode() for entry in entries]
    return json.dumps({"entries": files, "files": raw, "schedule": schedule}).encode()


def pack_error(error: BaseException) -> bytes:
    """Returns the message of an error that ends the run on all ranks."""
    return json.dumps({"error": f"rank 0: {type(error).__name__}: {error}"}).encode()


def unpack(message: bytes, number: int, previous: str) -> News | None:
    """Returns what a message says after entry `number` - 1; None for nothing; raises the error in it."""
    if message == NOTHING:
        return None
    data = json.loads(message)
    if "error" in data:
        raise StateError(str(data["error"]))
    entries = []
    for text in data["entries"]:
        entries.append(read_entry(text.encode(), number, previous, f"entry {number} from rank 0"))
        number, previous = number + 1, entries[-1].hash
    return News(entries, read_blobs(data["files"]), str(data["schedule"]))
