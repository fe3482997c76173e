"""States: what a loader writes into a checkpoint, and what it refuses to go on from.

Upstream: the delivered `LaneState`s. Downstream: any checkpoint that stores a flat dict. One key for each
lane, shared keys that are equal on all ranks, JSON inside, no tokens: any set of ranks can read what any
other wrote.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from zephon.errors import StateError
from zephon.lane import CarriedPiece, LaneState
from zephon.lock import ALLOWANCES, describe_difference, lock_hashes
from zephon.opened import Opened
from zephon.recipe import diff_configuration, hash_json
from zephon.schedule import BLOCK_STEPS, ScheduleTable
from zephon.stream import Cursor

VERSION = 1
SHARED_KEYS = ("version", "recipe", "lock", "schedule")


def lane_key(lane: int) -> str:
    """Returns the key of a lane's entry."""
    return f"lane_{lane:05d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a state says of the run besides its lanes; equal on all ranks."""

    table: ScheduleTable
    attempt: int
    """Restores before this one."""
    inside: tuple[int, int] | None
    """(dp_world_size, micro_batch_size) where the state is taken inside a step, else None."""


def write_state(opened: Opened, progress: Progress, lanes: Mapping[int, LaneState]) -> dict[str, Any]:
    """Returns the flat state of the given lanes; the step is that of the lane with the fewest rows."""
    step = min(state.delivered_rows for state in lanes.values()) // opened.recipe.rows_per_step
    table, configuration = progress.table, opened.recipe.configuration()
    rolling, blocks = table.past(step)
    state: dict[str, Any] = {
        "version": VERSION,
        "recipe": _dump({"fingerprint": hash_json(configuration), "configuration": configuration}),
        "lock": _dump(lock_hashes(opened.lock)),
        "schedule": _dump(
            {
                "hash": table.hash(),
                "steps": step,
                "past": rolling,
                "blocks": blocks,
                "head": "",
                "attempt": progress.attempt,
            }
        ),
    }
    for lane in sorted(lanes):
        state[lane_key(lane)] = _dump_lane(lane, lanes[lane], progress.inside).encode()
    return state


def _dump(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _dump_lane(lane: int, state: LaneState, inside: tuple[int, int] | None) -> str:
    entry: dict[str, Any] = {
        "lane": lane,
        "rows": state.rows,
        "tokens": state.tokens,
        "documents": state.documents,
        "credits": state.credits,
        "cursors": state.cursors,
        "counts": [dict(counts) for counts in state.counts],
    }
    if state.carry:
        entry["carry"] = state.carry
    if state.replay_rows:
        entry["replay_rows"] = state.replay_rows
    if inside is not None:
        entry["inside"] = inside
    return json.dumps(entry, separators=(",", ":"))


def read_lane(data: object, lane: int, num_datasets: int) -> tuple[LaneState, tuple[int, int] | None]:
    """Returns a lane's state, and (dp_world_size, micro_batch_size) if it was taken inside a step."""
    try:
        entry = json.loads(data)  # type: ignore[arg-type]
        if entry["lane"] != lane:
            raise ValueError(f"it is the entry of lane {entry['lane']}")
        state = LaneState(
            rows=_whole(entry["rows"]),
            tokens=_wholes(entry["tokens"], num_datasets),
            documents=_wholes(entry["documents"], num_datasets),
            credits=_wholes(entry["credits"], num_datasets, signed=True),
            cursors=tuple(None if c is None else Cursor(*_wholes(c, 3)) for c in entry["cursors"]),
            counts=tuple(tuple(sorted((str(k), _whole(v)) for k, v in c.items())) for c in entry["counts"]),
            carry=tuple(CarriedPiece(*_wholes(piece, 5)) for piece in entry.get("carry", ())),
            replay_rows=_whole(entry.get("replay_rows", 0)),
        )
        if any(piece.dataset >= num_datasets for piece in state.carry):
            raise ValueError(f"a carried piece is of dataset {max(p.dataset for p in state.carry)}")
        if not len(state.cursors) == len(state.counts) == num_datasets:
            raise ValueError(f"{len(state.cursors)} cursors for {num_datasets} datasets")
        inside = entry.get("inside")
        return state, None if inside is None else (_whole(inside[0]), _whole(inside[1]))
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise StateError.explained(
            f"lane {lane}: its entry cannot be read",
            got=f"{type(error).__name__}: {error}",
            rule="an entry is the JSON that state_dict() wrote",
            cure="restore from another checkpoint",
        ) from None


def _whole(value: object, *, signed: bool = False) -> int:
    if type(value) is not int or (value < 0 and not signed):
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _wholes(values: Sequence[object], count: int, *, signed: bool = False) -> tuple[int, ...]:
    if len(values) != count:
        raise ValueError(f"{len(values)} numbers in place of {count}")
    return tuple(_whole(value, signed=signed) for value in values)


def saved_steps(state: Mapping[str, Any]) -> int:
    """Returns the steps that are done in a state; 0 for one that `check_shared` will refuse."""
    try:
        return _whole(json.loads(state["schedule"])["steps"])
    except (KeyError, ValueError, TypeError):
        return 0


def check_shared(
    state: Mapping[str, Any], opened: Opened, table: ScheduleTable, allow: Collection[str]
) -> tuple[int, list[str]]:
    """Returns the state's attempt, and notes on what differs and was accepted.

    Compares version, configuration field by field, lock entry by entry, and the shares of the steps done;
    raises `StateError` with a diff for what is not accepted.
    """
    if unknown := sorted(set(allow) - set(ALLOWANCES)):
        raise ValueError(f"`allow` takes {', '.join(ALLOWANCES)}, got {unknown[0]!r}")
    if missing := [name for name in SHARED_KEYS if name not in state]:
        raise StateError.explained(
            f"the state has no {missing[0]!r} entry",
            got=", ".join(sorted(map(str, state))[:6]) or "an empty state",
            rule="a state is what state_dict() returned, or the union of several ranks' states",
            cure="check that the checkpoint holds the loader's state (some save the model alone)",
        )
    if state["version"] != VERSION:
        raise StateError.explained(
            "the state has another version",
            got=f"version {state['version']!r}",
            rule=f"this release reads version {VERSION}",
            cure="restore with the release that wrote it",
        )
    try:
        recipe, saved_lock, schedule = (json.loads(state[name]) for name in SHARED_KEYS[1:])
        configuration, attempt = dict(recipe["configuration"]), _whole(schedule["attempt"])
        _check_shapes(saved_lock, schedule)
    except (ValueError, TypeError, KeyError) as error:
        raise StateError.explained(
            "the state's shared entries cannot be read",
            got=f"{type(error).__name__}: {error}",
            rule="they are the JSON that state_dict() wrote",
            cure="restore from another checkpoint",
        ) from None
    _check_configuration(configuration, opened)
    return attempt, _check_lock(saved_lock, opened, allow) + _check_schedule(schedule, table, allow)


def check_together(
    states: Mapping[int, LaneState],
    insides: set[tuple[int, int] | None],
    steps: int,
    rows_per_step: int,
    here: tuple[int, int],
) -> None:
    """Refuses lanes that do not stand at one place of the batches of a rank.

    `insides` is what the lanes say of where they were taken, `here` this run's ranks and micro-batch size.
    """
    rows = [state.delivered_rows for state in states.values()]
    stairs = all(0 <= a - b <= 1 for a, b in pairwise(rows)) and rows[0] - rows[-1] <= 1
    at_step_end = len(set(rows)) == 1 and rows[0] % rows_per_step == 0
    if len(insides) == 1 and insides not in ({None}, {here}):
        ranks, size = insides.pop() or here
        raise StateError.explained(
            "the state was taken inside a step",
            got=f"{here[0]} ranks and batches of {here[1]} rows",
            rule=f"inside a step it restores only on {ranks} ranks and batches of {size} rows",
            cure="restore on these, or take states at the end of a step: those restore on any ranks",
        )
    torn = len(insides) > 1 or not stairs or min(rows) // rows_per_step != steps
    if torn or (insides == {None} and not at_step_end):
        raise StateError.explained(
            "the lanes of the state do not belong together",
            got=f"between {min(rows)} and {max(rows)} rows",
            rule="all lanes of a state were taken after the same batch",
            cure="merge the states that the ranks took at one step",
        )


def lanes_missing(lanes: range, state: Mapping[str, Any]) -> StateError:
    """Returns the error of a state without all of a rank's lanes."""
    missing = [lane for lane in lanes if lane_key(lane) not in state]
    there = sum(1 for name in state if str(name).startswith("lane_"))
    return StateError.explained(
        f"the state lacks {len(missing)} of this rank's {len(lanes)} lanes, first {lane_key(missing[0])}",
        got=f"a state with {there} lanes",
        rule="a rank restores the lanes it owns, whichever ranks wrote them",
        cure="give it the union of all ranks' states",
    )


def _check_shapes(saved_lock: object, schedule: Mapping[str, Any]) -> None:
    """Raises ValueError or KeyError for entries of which the checks to come could make nothing."""
    _whole(schedule["steps"])
    texts = [schedule["past"], schedule["hash"], *schedule["blocks"]]
    if not isinstance(saved_lock, Mapping) or not all(isinstance(text, str) for text in texts):
        raise ValueError("hashes are texts")


def _check_configuration(saved: Mapping[str, Any], opened: Opened) -> None:
    ours = json.loads(_dump(opened.recipe.configuration()))  # a tuple comes back from JSON as a list
    differences = diff_configuration(saved, ours)
    if differences:
        lines = "\n".join(
            f"    {name}: state has {was!r}, this run has {now!r}" for name, was, now in differences
        )
        raise StateError.explained(
            "the recipe is not the one that the state was taken with",
            got=f"{len(differences)} fields differ:\n{lines}",
            rule="a restore goes on with the same rows, so these fields must be the same",
            cure="restore them as the state has them, or begin a new run",
        )


def _check_lock(saved: Mapping[str, str], opened: Opened, allow: Collection[str]) -> list[str]:
    found = lock_hashes(opened.lock)
    lines: dict[str, list[str]] = {}
    for name in sorted({*saved, *found}):
        if saved.get(name) != found.get(name):
            table = name.partition(".")[0]
            lines.setdefault(table, []).append(describe_difference(name, saved.get(name), found.get(name)))
    refused = [line for table, found_lines in lines.items() if table not in allow for line in found_lines]
    if refused:
        names = ", ".join(repr(table) for table in lines if table not in allow)
        raise StateError.explained(
            "what the recipe names has changed since the state was taken",
            got="; ".join(refused),
            rule="the same files, tokenizer and plugins give the same rows",
            cure=f"bring them back, or accept other rows from here on with allow=[{names}]",
        )
    return [f"accepted: {line}" for found_lines in lines.values() for line in found_lines]


def _check_schedule(saved: Mapping[str, Any], table: ScheduleTable, allow: Collection[str]) -> list[str]:
    steps = saved["steps"]
    rolling, blocks = table.past(steps)
    if rolling == saved["past"]:
        same = saved["hash"] == table.hash()
        return [] if same else [f"the schedule differs from the state's at steps from {steps} on: accepted"]
    block = next((i for i, (a, b) in enumerate(zip(saved["blocks"], blocks, strict=False)) if a != b), 0)
    first, last = block * BLOCK_STEPS, min((block + 1) * BLOCK_STEPS, steps)
    if "schedule" in allow:
        return [f"accepted: the schedule differs from the state's in steps [{first}, {last})"]
    raise StateError.explained(
        f"the schedule differs from the state's in steps that are done, first in [{first}, {last})",
        got=f"other weights; {steps} steps are done",
        rule="the past cannot change; only the weights of later steps may",
        cure='restore the weights of the steps done, or accept a broken history: allow=["schedule"]',
    )
