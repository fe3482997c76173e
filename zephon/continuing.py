"""Phases: a recipe that goes on with the data of an earlier one where that stood, in rows of another shape.

Upstream: a state of the earlier phase. Downstream: `recipe.py` has it in its fingerprint, `loader.py` begins
with its lanes. Where the readers stand does not depend on rows: a position is a document and an offset.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zephon.errors import StateError
from zephon.lanestate import CarriedPiece, LaneState
from zephon.lock import ALLOWANCES, check_configuration, check_lock
from zephon.opened import Opened
from zephon.paths import expand
from zephon.prepare import DROP, REFUSE, SPLIT, TRUNCATE, LengthRule
from zephon.recipe import Recipe, hash_json, listed
from zephon.state import (
    Shared,
    check_allowances,
    check_together,
    describe_added,
    first_datasets,
    known_lock,
    lane_key,
    read_lane,
    read_shared,
)
from zephon.statefile import LANE, find_state
from zephon.stream import SKIPPED

MAY_DIFFER = ("packing.", "global_batch_size", "flush_every", "when_exhausted", "continues")
"""The fields, or how their names begin, that a phase may have otherwise than the one it continues."""
OWN_PLUGINS = "plugins.packers."
"""What a lock names of such fields."""
SHORT = 12
"""Characters of a fingerprint in a note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The state of an earlier phase that a phase begins with: of all lanes, at the end of a step."""

    hash: str
    """SHA-256 over its lanes, its fingerprint and which datasets had a share; part of the fingerprint."""
    state: Mapping[str, Any] = field(compare=False, repr=False)
    shared: Shared = field(compare=False, repr=False)
    lanes: tuple[LaneState, ...] = field(compare=False, repr=False)
    allow: tuple[str, ...] = ()
    """What is accepted although the lock differs, of `ALLOWANCES`."""
    path: str = ""
    """The file that it was read from, as it was written; empty for a state in memory."""

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of the datasets of the earlier phase."""
        return tuple(self.shared.configuration["datasets"])

    @property
    def begun(self) -> frozenset[int]:
        """Returns the datasets that had a share in an earlier phase and get no first credits again."""
        return frozenset(i for i, name in enumerate(self.names) if name not in self.shared.waiting)

    def __str__(self) -> str:
        return f"step {self.shared.steps} of {hash_json(self.shared.configuration)[:SHORT]}"


def read_start(
    state: Mapping[str, Any] | str | os.PathLike[str], base: Path, allow: Collection[str] = ()
) -> Start:
    """Returns a state, or that of a file, as the start of a phase; refuses one from which none can begin."""
    check_allowances(allow)
    path = ""
    if not isinstance(state, Mapping):
        path = os.fspath(state)
        state = find_state(os.path.join(base, expand(path, "state file")))
    shared = read_shared(state)
    lanes = _read_lanes(state, shared)
    entries = [json.loads(state[lane_key(lane)]) for lane in range(len(lanes))]
    fingerprint = hash_json(shared.configuration)
    content = {"fingerprint": fingerprint, "waiting": sorted(shared.waiting), "lanes": entries}
    return Start(
        hash=hash_json(content),
        state=dict(state),
        shared=shared,
        lanes=lanes,
        allow=tuple(sorted(allow)),
        path=path,
    )


def _read_lanes(state: Mapping[str, Any], shared: Shared) -> tuple[LaneState, ...]:
    saved = shared.configuration
    try:
        num_lanes, size, num_datasets = saved["lanes"], saved["global_batch_size"], len(saved["datasets"])
        if type(num_lanes) is not int or type(size) is not int or not 0 < num_lanes <= size:
            raise ValueError(f"{num_lanes!r} lanes in batches of {size!r} rows")
        rows_per_step = size // num_lanes
    except (KeyError, TypeError, ValueError) as error:
        raise StateError.explained(
            "the state's configuration cannot be read",
            got=f"{type(error).__name__}: {error}",
            rule="it is the JSON that state_dict() wrote",
            cure="continue from another checkpoint",
        ) from None
    there = sum(1 for name in state if str(name).startswith(LANE))
    missing = next((lane for lane in range(num_lanes) if lane_key(lane) not in state), None)
    if missing is not None:
        raise StateError.explained(
            f"the state lacks {max(1, num_lanes - there)} of {num_lanes} lanes, first {lane_key(missing)}",
            got=f"a state with {there} lanes",
            rule="a phase begins with all lanes of the one that it continues",
            cure="give it the union of all ranks' states",
        )
    read = [read_lane(state[lane_key(lane)], lane, num_datasets) for lane in range(num_lanes)]
    lanes, insides = {lane: found for lane, (found, _) in enumerate(read)}, {inside for _, inside in read}
    if insides != {None}:
        raise StateError.explained(
            "the state was taken inside a step",
            got=f"lanes with between {min(s.delivered_rows for s in lanes.values())} and "
            f"{max(s.delivered_rows for s in lanes.values())} rows, {rows_per_step} to a step",
            rule="a phase begins where a step of the earlier one ends",
            cure="take the state after the last batch of a step, or go on with the earlier recipe to there",
        )
    check_together(lanes, {None}, shared.steps, rows_per_step, (0, 0))
    for lane, found in lanes.items():
        if found.replay_rows:
            raise _cannot_begin(lane, found.replay_rows, saved.get("flush_every"))
    return tuple(lanes.values())


def _cannot_begin(lane: int, num_rows: int, flush_every: object) -> StateError:
    """Returns the error of a lane whose last rows only the earlier phase can make again."""
    if flush_every is None:
        return StateError.explained(
            f"lane {lane} of the state has ended",
            got=f"{num_rows} rows since the last of its documents was drawn",
            rule="a phase goes on with what is left of the data in every lane",
            cure="continue from an earlier step, at which no lane's entry has `replay_rows`; or begin a new "
            "run",
        )
    return StateError.explained(
        f"lane {lane} of the state: what its packer holds has no address",
        got=f"{num_rows} rows since the packer was last empty",
        rule=f"a packer without `carry()` is empty only once it gave what it held, every {flush_every} rows "
        "or more",
        cure="continue from a step at which no lane's entry has `replay_rows`, with flush_every = 1 in the "
        "steps before it; or use a packer that can say what it holds (wrap, best_fit)",
    )


def check_start(recipe: Recipe, start: Start) -> None:
    """Refuses a recipe that cannot go on from `start`, field by field; what its lock says comes later."""
    saved = start.shared.configuration
    if recipe.lanes != saved["lanes"]:
        raise _other_lanes(recipe, saved["lanes"])
    known = first_datasets(recipe, start.shared.num_datasets(recipe.names))
    check_configuration(saved, known, MAY_DIFFER)
    if not _is_same_packing(recipe, start):
        _check_lengths(recipe.build_packer_plan().length, start)


def _other_lanes(recipe: Recipe, lanes: int) -> StateError:
    size = recipe.global_batch_size
    cure = f"set lanes = {lanes}"
    if size % lanes:
        below = size // lanes * lanes
        sizes = [batch for batch in (below, below + lanes) if batch]
        cure += f" and global_batch_size = {listed(sizes, 'or')}"
    return StateError.explained(
        "a phase keeps the lanes of the one that it continues",
        got=f"lanes: state has {lanes}, this run has {recipe.lanes} (global_batch_size = {size})",
        rule=f"{lanes} lanes stand somewhere in the data, and they divide the global batch",
        cure=cure,
    )


def _packing_of(configuration: Mapping[str, Any]) -> dict[str, Any]:
    fields = ("packing.", "flush_every")
    return {name: value for name, value in configuration.items() if name.startswith(fields)}


def _is_same_packing(recipe: Recipe, start: Start) -> bool:
    """Returns whether the packers of the phase are those of the earlier one, to be restored as they were."""
    ours = json.loads(json.dumps(recipe.configuration()))
    return _packing_of(ours) == _packing_of(start.shared.configuration)


def _check_lengths(rule: LengthRule, start: Start) -> None:
    """Refuses a rule for long documents that may take away what the state has begun, or holds."""
    if rule.overlong == SPLIT:
        return
    for lane, state in enumerate(start.lanes):
        is_begun = any(cursor is not None and cursor.offset for cursor in state.cursors)
        if is_begun or not all(_is_kept(piece, rule, start) for piece in state.carry + state.held):
            raise StateError.explained(
                f"lane {lane} of the state has begun a document that this phase may not give",
                got=f"overlong = {rule.overlong!r} of documents over {rule.max_tokens} tokens",
                rule="a document that was begun is given to its end, whatever its length",
                cure='set overlong = "split" in the [packing] of this phase',
            )


def _is_kept(piece: CarriedPiece, rule: LengthRule, start: Start) -> bool:
    """Returns whether `rule` is sure to leave a piece that a packer holds in its document."""
    if rule.overlong == TRUNCATE:
        return piece.offset + piece.num_tokens <= rule.max_tokens
    saved = start.shared.configuration
    were_short = saved.get("packing.overlong") in (DROP, REFUSE)
    return were_short and saved["packing.seq_len"] <= rule.max_tokens


def begin_phase(opened: Opened, start: Start) -> tuple[list[LaneState], list[str]]:
    """Returns the lanes of the first step, all of them, and notes; refuses a start that does not fit.

    Rows, tokens and documents count from 0. Cursors, credits and counts stay. What the packers hold is theirs
    again where they are the same; else it goes first through the new ones.
    """
    recipe, number = opened.recipe, len(start.names)
    check_start(recipe, start)
    saved, found = (
        {name: value for name, value in lock.items() if not name.startswith(OWN_PLUGINS)}
        for lock in (start.shared.lock, known_lock(opened, number))
    )
    notes = [f"continues from {start}"]
    notes += check_lock(
        saved, found, start.allow, "accept other rows from here on: continue_from with `allow = [{}]`"
    )
    notes += describe_added(opened.table, number)
    notes += [
        f"dataset {name!r}: documents that amendments of the earlier phase dropped come again; drop them anew"
        for name in _with_drops(start)
    ]
    is_same, num_added = _is_same_packing(recipe, start), len(recipe.datasets) - number
    return [_begin(state, num_added, is_same=is_same) for state in start.lanes], notes


def _with_drops(start: Start) -> list[str]:
    """Returns the datasets of which a lane passed over a document that an amendment drops."""
    lanes = start.lanes
    return [n for i, n in enumerate(start.names) if any(SKIPPED in dict(lane.counts[i]) for lane in lanes)]


def _begin(state: LaneState, num_added: int, *, is_same: bool) -> LaneState:
    zeros = (0,) * (len(state.tokens) + num_added)
    return LaneState(
        tokens=zeros,
        documents=zeros,
        credits=state.credits + (0,) * num_added,
        cursors=state.cursors + (None,) * num_added,
        counts=state.counts + ((),) * num_added,
        carry=state.carry if is_same else (),
        held=state.held if is_same else state.carry + state.held,
    )


def accepting_changes(recipe: Recipe) -> Recipe:
    """Returns the recipe for those who say themselves what has changed since its phase began."""
    start = recipe.continues
    return recipe if start is None else replace(recipe, continues=replace(start, allow=ALLOWANCES))
