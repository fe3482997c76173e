"""The run folder: recipe, lock, schedule tables and the digests of every row, written by their owners.

Upstream: `loader.py`. Downstream: people and tools that compare runs. No communication: every rank appends to
its own file, and readers merge them.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from zephon.batch import Batch, RowDigest, digest
from zephon.opened import Opened
from zephon.recipe import Recipe

BATCHES = "batches"


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that a reader sees all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


class BatchLog:
    """The digests of one rank's rows: a JSON line for each batch, after one for each attempt."""

    def __init__(self, path: Path, rank: int, world_size: int) -> None:
        """Appends to the file at `path`, from the first batch on."""
        path.parent.mkdir(parents=True, exist_ok=True)
        cut = _last_byte(path) not in (b"", b"\n")
        self._stream: IO[str] = path.open("a", encoding="utf-8", buffering=1)
        if cut:  # a kill in the middle of a line; the next must not run into it
            self._stream.write("\n")
        self._rank, self._world_size = rank, world_size
        self._attempt = -1

    @classmethod
    def open(cls, opened: Opened, folder: Path | None, rank: int, world_size: int) -> BatchLog | None:
        """Returns the log of a rank in `folder`, or None without a folder; rank 0 writes recipe and lock."""
        if folder is None:
            return None
        if rank == 0:
            _write_description(opened, folder)
        return cls(folder / BATCHES / f"rank_{rank:05d}.jsonl", rank, world_size)

    def write(self, batch: Batch, attempt: int) -> None:
        """Appends digests and tokens by dataset of a batch; `attempt` counts the restores before it."""
        if attempt != self._attempt:
            self._attempt = attempt
            start = {
                "attempt": attempt,
                "start": batch.step,
                "rank": self._rank,
                "dp_world_size": self._world_size,
            }
            self._stream.write(json.dumps(start) + "\n")
        tokens = {name: int(column.sum()) for name, column in batch.tokens_by_dataset.items()}
        line = {"attempt": attempt, "step": batch.step, "rows": digest(batch), "tokens": tokens}
        self._stream.write(json.dumps(line, separators=(",", ":")) + "\n")

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()


def _last_byte(path: Path) -> bytes:
    if not path.exists() or not path.stat().st_size:
        return b""
    with path.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read(1)


def _write_description(opened: Opened, folder: Path) -> None:
    try:
        recipe = _anchored(opened.recipe).to_toml()
    except (ValueError, TypeError) as error:
        recipe = f"# this recipe has no TOML form: {error}\n"
    write_atomically(folder / "recipe.toml", recipe)
    write_atomically(folder / "lock.json", json.dumps(opened.lock, indent=1, sort_keys=True) + "\n")
    table = opened.table.to_json()
    write_atomically(folder / "schedules" / f"{opened.table.hash()}.json", json.dumps(table) + "\n")


def _anchored(recipe: Recipe) -> Recipe:
    """Returns the recipe with relative paths made absolute, since the copy lies in another folder."""
    datasets = [
        replace(dataset, paths=tuple(_anchor(path, recipe.base) for path in dataset.paths))
        for dataset in recipe.datasets
    ]
    tokenize = replace(recipe.tokenize, tokenizer=_anchor(recipe.tokenize.tokenizer, recipe.base))
    return replace(recipe, datasets=tuple(datasets), tokenize=tokenize)


def _anchor(path: str, base: Path) -> str:
    return (
        path if path.startswith(("~", "${")) else os.path.normpath(os.path.join(os.path.abspath(base), path))
    )


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the lines of a log; a line that was cut off by a kill is left out."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            with contextlib.suppress(json.JSONDecodeError):
                yield json.loads(line)


def read_batches(folder: Path) -> dict[int, list[RowDigest]]:
    """Returns the digests of each step, merged over ranks.

    The newest attempt counts from its first step on; what older ones logged of those steps is left out.
    """
    entries = [e for path in sorted((folder / BATCHES).glob("rank_*.jsonl")) for e in read_lines(path)]
    starts: dict[int, int] = {}
    for entry in entries:
        if "start" in entry:
            starts[entry["attempt"]] = min(entry["start"], starts.get(entry["attempt"], entry["start"]))
    rows: dict[tuple[int, int, int], tuple[int, str]] = {}
    for entry in entries:
        attempt, step = entry["attempt"], entry.get("step", -1)
        if any(later > attempt and start <= step for later, start in starts.items()):
            continue
        for lane, row, value in entry.get("rows", ()):
            if rows.get((step, lane, row), (-1, ""))[0] <= attempt:
                rows[step, lane, row] = (attempt, value)
    steps: dict[int, list[RowDigest]] = {}
    for (step, lane, row), (_, value) in sorted(rows.items()):
        steps.setdefault(step, []).append((lane, row, value))
    return steps
