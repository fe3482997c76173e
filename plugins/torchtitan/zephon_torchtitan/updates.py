"""The curriculum log of a run: read and decided on by rank 0, followed by all ranks.

Upstream: what zephon-curriculum registers as `log` of the role `zephon.updates`, which is found by its name.
Downstream: `rank.py` gives it to the loader. Knows torch.distributed and no TorchTitan.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed

from zephon import PARTS, LoaderOptions, Opened, Recipe, ScheduleTable, StateError, find_plugin
from zephon_torchtitan.launch import (
    REFUSALS,
    REFUSED,
    STATE,
    broadcast,
    gather,
    num_ranks,
    refuse_together,
    together,
)

ROLE, LOG, RECIPE = "updates", "log", "recipe"
"""Under which are registered what makes updates of a log, and what adds the log's datasets to a recipe."""
FOLDER = "curriculum"
"""The log's folder in a run folder."""
FRAME_BYTES = 256
"""Of the one message of a step in which there is nothing new, or little."""
LENGTH_BYTES = 8

_log = logging.getLogger("zephon")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """How a run follows its log."""

    open: Callable[..., Any]
    """Returns the updates of an opened recipe; collective."""
    folder: str
    """The run folder of rank 0."""
    recipe: Recipe
    """With the datasets that the log adds."""

    def follow(self, opened: Opened, wait_s: float) -> Any:
        """Returns the updates of this rank, `zephon.ScheduleUpdates` and more. Collective.

        The other ranks wait for rank 0 a minute longer than `wait_s`.
        """
        share = None if num_ranks() == 1 else _share(distributed.group.WORLD, wait_s + 60.0)
        folder = os.path.join(self.folder, FOLDER)
        faults: list[str] = []
        found, code = None, 0
        try:
            found = self.open(opened, folder, is_first=is_first(), share=share)
        except REFUSALS as error:  # on all ranks: what ends rank 0 there is shared
            faults = [] if _is_told(error) else [str(error)]
            code = STATE if isinstance(error, StateError) else REFUSED
        if faults or code:
            opened.close()
        codes = gather(code)
        refuse_together(faults, codes[0] or max(codes))
        return found


class EndsTogether:
    """The updates of a rank as its loader has them: what rank 0 cannot do ends all ranks with one report."""

    def __init__(self, updates: Any) -> None:
        self._updates = updates
        self.lead_steps: int = updates.lead_steps
        self.head: str = updates.head

    def update(self, step: int) -> ScheduleTable | None:
        """Returns the table in force from `step` on, or None where nothing changes."""
        table: ScheduleTable | None = self._updates.update(step)
        return table

    def check_state(self, state: Mapping[str, Any], table: ScheduleTable) -> None:
        """Raises StateError where the updates know why a state does not fit."""
        check = getattr(self._updates, "check_state", None)
        if check is not None:
            check(state, table)

    def close(self) -> None:
        """Lets another run follow the log, as the loader is closed."""
        close = getattr(self._updates, "close", None)
        if close is not None:
            close()

    def exchange(self, step: int) -> None:
        """Agrees with all ranks; where rank 0 cannot, all of them end. Collective."""
        try:
            self._updates.exchange(step)
        except REFUSALS as error:
            if is_first() or _is_told(error):  # else it is of this rank alone
                what = f"the run ends before step {step} (a trainer that counts from 1 logs it as {step + 1})"
                refuse_together([] if _is_told(error) else [str(error)], STATE, what)
            raise
        self.head = self._updates.head


def _is_told(error: BaseException) -> bool:
    """Returns whether it is an error of rank 0 as the other ranks hear of it."""
    return str(error).startswith("rank 0: ")


def find_log(recipe: Recipe, options: LoaderOptions, *, amendments: bool, sees_losses: bool) -> RunLog | None:
    """Returns the log that a run is to follow, the same on all ranks; None where there is none. Collective.

    Evaluation follows none, nor does a run without a run folder. Refuses, on all ranks, a controller that
    nobody would hear, and a log that is there and could not be followed.
    """
    if recipe.when_exhausted == "pad":
        return None
    folder = None if options.run_folder is None else os.fspath(options.run_folder)
    can = amendments and folder is not None
    factory = together(lambda: _find() if can and is_first() else None)
    has_one = bool(broadcast(factory is not None, 0))
    together(lambda: _check(recipe, folder, amendments=amendments, has_one=has_one, sees_losses=sees_losses))
    if not has_one or folder is None:
        return None
    factory = together(lambda: factory or find_plugin(ROLE, LOG))
    return RunLog(open=factory, folder=folder, recipe=_with_added(recipe, folder))


def _find() -> Any:
    try:
        return find_plugin(ROLE, LOG)
    except LookupError:
        return None


def _check(recipe: Recipe, folder: str | None, *, amendments: bool, has_one: bool, sees_losses: bool) -> None:
    if recipe.controller is not None:
        kind = recipe.controller.get("kind")
        if not has_one:
            why = "zephon-curriculum is not installed, or left out by ZEPHON_PLUGINS; install it"
            if not amendments:
                why = "amendments are switched off; leave --dataloader.no-amendments out"
            elif folder is None:
                why = "there is no run folder to write its decisions to; set --dataloader.run-folder"
            raise ValueError(f"the recipe has a controller, {kind!r}, and {why}")
        if not sees_losses:
            raise ValueError(
                f"the recipe has a controller, {kind!r}, and nobody tells it the losses of datasets; train "
                "with a ZephonTrainer (zephon_torchtitan.with_zephon), or leave [controller] out"
            )
    if has_one or folder is None or not is_first() or not Path(folder, FOLDER).is_dir():
        return
    if not amendments:
        _log.warning("the curriculum log in %s is not followed, as --dataloader.no-amendments says", folder)
    else:
        raise ValueError(
            f"the run folder {folder!r} has a curriculum log, and zephon-curriculum, which follows it, is "
            "not installed, or left out by ZEPHON_PLUGINS; install it, or go on without the log: "
            "--dataloader.no-amendments"
        )


def _with_added(recipe: Recipe, folder: str) -> Recipe:
    """Returns the recipe with the datasets at its end that the log adds, as rank 0 reads it. Collective."""
    extended = together(lambda: find_plugin(ROLE, RECIPE)(recipe, folder) if is_first() else recipe)
    number = len(recipe.datasets)
    added = extended.datasets[number:]
    added, schedule = broadcast((added, extended.schedule if added else None), 0)
    if not added:
        return recipe
    return replace(recipe, datasets=(*recipe.datasets, *added), schedule=schedule)


def tell(updates: Any, num_told: int) -> int:
    """Logs what is new in the log, an entry a line; returns the entries that are told."""
    entries = updates.history.entries
    for entry in entries[num_told:]:
        if said := describe(entry.body):
            _log.info("curriculum log: entry %d, %s", entry.number, said)
    return len(entries)


def describe(body: Any) -> str:
    """Returns what the run has said in an entry; of those of others, which it only reads, nothing."""
    if body.kind == "accepted":
        return f"proposal {body.proposal} is accepted at step {body.step}, from step {body.from_step} on"
    if body.kind == "refused":
        legal = "" if body.first_legal is None else f"; the first legal step is {body.first_legal}"
        return f"proposal {body.proposal} is refused at step {body.step}: {body.why}{legal}"
    if body.kind == "recipe":
        return f"the recipe's schedule replaces the run's from step {body.step} on"
    if body.kind == "decision":
        if body.weights is None:
            return f"the controller changes nothing at step {body.step}"
        shares = ", ".join(f"{name} {share / PARTS:.4f}" for name, share in body.weights.items())
        return f"the controller decides at step {body.step}: from step {body.from_step} on {shares}"
    return ""


def is_first() -> bool:
    """Returns whether this is rank 0 of the job, which alone reads and writes the log."""
    return num_ranks() == 1 or bool(distributed.get_rank() == 0)


@functools.lru_cache(maxsize=1)
def _share(world: Any, timeout_s: float) -> Share:
    """Returns the one of the job: groups are never given back."""
    return Share(distributed.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s)))


class Share:
    """Gives all ranks what rank 0 says: a broadcast of 256 bytes over Gloo, a second for what is longer."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._is_first = distributed.get_rank() == 0
        self._frame = np.zeros(FRAME_BYTES, dtype=np.uint8)
        self._message = torch.from_numpy(self._frame)

    def __call__(self, payload: bytes | None) -> bytes:
        """Returns the payload of rank 0; that of another rank is not looked at. Collective."""
        said = (payload or b"") if self._is_first else b""
        room = FRAME_BYTES - LENGTH_BYTES
        if self._is_first:
            self._frame[:LENGTH_BYTES] = _as_bytes(len(said).to_bytes(LENGTH_BYTES, "little"))
            if len(said) <= room:
                self._frame[LENGTH_BYTES : LENGTH_BYTES + len(said)] = _as_bytes(said)
        distributed.broadcast(self._message, src=0, group=self._group)
        length = int.from_bytes(self._frame[:LENGTH_BYTES].tobytes(), "little")
        if length <= room:
            return self._frame[LENGTH_BYTES : LENGTH_BYTES + length].tobytes()
        rest = _as_bytes(said).copy() if self._is_first else np.empty(length, dtype=np.uint8)
        distributed.broadcast(torch.from_numpy(rest), src=0, group=self._group)
        return rest.tobytes()


def _as_bytes(said: bytes) -> np.ndarray:
    return np.frombuffer(said, dtype=np.uint8)
