"""States: what a loader writes into a checkpoint, and what it refuses to go on from.

Upstream: the delivered `LaneState`s. Downstream: any checkpoint that stores a flat dict. One key for each
lane, shared keys that are equal on all ranks, JSON inside, no tokens: any set of ranks can read what any
other wrote.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from zephon.errors import StateError
from zephon.lanestate import CarriedPiece, LaneState
from zephon.lock import ALLOWANCES, NOUNS, OF_SCHEDULES, check_configuration, check_lock, lock_hashes
from zephon.opened import Opened
from zephon.order import ENDLESS
from zephon.recipe import Recipe, hash_json
from zephon.schedule import BLOCK_STEPS, ScheduleTable
from zephon.stream import Cursor

VERSION = 1
SHARED_KEYS = ("version", "recipe", "lock", "schedule")
LIMIT = ENDLESS >> 1
"""Numbers of a state are below it, so that no stream comes to the end of one that has none."""


def lane_key(lane: int) -> str:
    """Returns the key of a lane's entry."""
    return f"lane_{lane:05d}"


def write_state(
    opened: Opened, lanes: Mapping[int, LaneState], *,
    table: ScheduleTable, attempt: int, inside: tuple[int, int] | None, head: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Returns the flat state of the given lanes; the step is that of the lane with the fewest rows.

    The rest is equal on all ranks: `attempt` counts the restores before this run, `inside` is
    (dp_world_size, micro_batch_size) where the state is taken inside a step, and `head` the hash of the
    newest entry of the log that the table comes from.
    """
    step = min(state.delivered_rows for state in lanes.values()) // opened.recipe.rows_per_step
    configuration = opened.recipe.configuration()
    rolling, blocks = table.past(step)
    waiting = table.waiting(step)
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
                "head": head,
                "attempt": attempt,
            }
            | ({"waiting": waiting} if waiting else {})
            | ({"begun": table.past(step + 1)[0]} if inside is not None else {})
        ),
    }
    for lane in sorted(lanes):
        state[lane_key(lane)] = _dump_lane(lane, lanes[lane], inside).encode()
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
    for name in ("carry", "replay_rows", "held", "skipped"):
        if value := getattr(state, name):
            entry[name] = value
    if inside is not None:
        entry["inside"] = inside
    return json.dumps(entry, separators=(",", ":"))


def read_lane(
    data: object, lane: int, num_datasets: int, num_added: int = 0
) -> tuple[LaneState, tuple[int, int] | None]:
    """Returns a lane's state, and (dp_world_size, micro_batch_size) if it was taken inside a step.

    The entry has `num_datasets`; the state has `num_added` more, of which the lane has drawn nothing.
    """
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
            carry=tuple(_piece(piece) for piece in entry.get("carry", ())),
            replay_rows=_whole(entry.get("replay_rows", 0)),
            held=tuple(_piece(piece) for piece in entry.get("held", ())),
            skipped=_wholes(entry["skipped"], num_datasets) if "skipped" in entry else (),
        )
        if (last := max((piece.dataset for piece in state.carry + state.held), default=0)) >= num_datasets:
            raise ValueError(f"a carried piece is of dataset {last}")
        if sum(state.credits):
            raise ValueError(f"credits sum to {sum(state.credits)}, not to zero")
        if not len(state.cursors) == len(state.counts) == num_datasets:
            raise ValueError(f"{len(state.cursors)} cursors for {num_datasets} datasets")
        inside = entry.get("inside")
        state = _with_datasets(state, num_added) if num_added else state
        return state, None if inside is None else (_whole(inside[0]), _whole(inside[1]))
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise StateError.explained(
            f"lane {lane}: its entry cannot be read",
            got=f"{type(error).__name__}: {error}",
            rule="an entry is the JSON that state_dict() wrote",
            cure="restore from another checkpoint",
        ) from None


def _with_datasets(state: LaneState, num_added: int) -> LaneState:
    zeros = (0,) * num_added
    return state._replace(
        tokens=state.tokens + zeros,
        documents=state.documents + zeros,
        credits=state.credits + zeros,
        cursors=state.cursors + (None,) * num_added,
        counts=state.counts + ((),) * num_added,
        skipped=state.skipped + zeros if state.skipped else (),
    )


def _whole(value: object, *, signed: bool = False) -> int:
    if type(value) is not int or (value < 0 and not signed) or abs(value) >= LIMIT:
        raise ValueError(f"{value!r} is not a whole number below 2^61")
    return value


def _piece(values: Sequence[object]) -> CarriedPiece:
    piece = CarriedPiece(*_wholes(values, 5))
    if not piece.num_tokens:
        raise ValueError("a carried piece has no tokens")
    return piece


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The shared entries of a state, read."""

    configuration: dict[str, Any]
    lock: dict[str, str]
    steps: int
    past: str
    """Rolling hash of the shares of the steps done."""
    begun: str
    """The same with the step that is begun; empty where none is."""
    blocks: list[str]
    schedule: str
    """Hash of the table in force."""
    attempt: int
    waiting: tuple[str, ...]
    """Datasets that had no share in a step done."""

    def num_datasets(self, names: Sequence[str]) -> int:
        """Returns how many datasets the state has, where `names` begin with them; else how many `names`."""
        saved = self.configuration.get("datasets")
        is_begin = isinstance(saved, list) and list(names[: len(saved)]) == saved
        return len(saved) if is_begin and saved else len(names)


def read_shared(state: Mapping[str, Any]) -> Shared:
    """Returns the shared entries of a state; refuses what is none of this release."""
    _check_keys(state)
    try:
        recipe, lock, schedule = (json.loads(state[name]) for name in SHARED_KEYS[1:])
        waiting, begun = schedule.get("waiting", []), schedule.get("begun", "")
        texts = [schedule["past"], begun, schedule["hash"], *schedule["blocks"], *waiting, *lock.values()]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("hashes and names are texts")
        if unknown := [name for name in lock if str(name).partition(".")[0] not in NOUNS]:
            raise ValueError(f"{unknown[0]!r} is in no table of a lock")
        return Shared(
            configuration=dict(recipe["configuration"]),
            lock={name: value for name, value in lock.items() if not name.startswith(OF_SCHEDULES)},
            steps=_whole(schedule["steps"]),
            past=schedule["past"],
            begun=begun,
            blocks=list(schedule["blocks"]),
            schedule=schedule["hash"],
            attempt=_whole(schedule["attempt"]),
            waiting=tuple(waiting),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StateError.explained(
            "the state's shared entries cannot be read",
            got=f"{type(error).__name__}: {error}",
            rule="they are the JSON that state_dict() wrote",
            cure="restore from another checkpoint",
        ) from None


def _check_keys(state: Mapping[str, Any]) -> None:
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


def check_shared(
    state: Mapping[str, Any],
    opened: Opened,
    table: ScheduleTable,
    allow: Collection[str],
    earlier: Callable[[], Mapping[str, Any] | None] = lambda: None,
) -> tuple[Shared, list[str]]:
    """Returns the state's shared entries, and notes on what differs and was accepted.

    Compares version, configuration field by field, lock entry by entry, and the shares of the steps done;
    raises `StateError` with a diff for what is not accepted. The recipe may have more datasets, at the end,
    whose shares were zero so far. `earlier` gives the lock that the run wrote down, to name files by.
    """
    check_allowances(allow)
    shared, recipe = read_shared(state), opened.recipe
    num_saved = shared.num_datasets(recipe.names)
    check_configuration(shared.configuration, first_datasets(recipe, num_saved))
    saved, found = shared.lock, known_lock(opened, num_saved)
    cure = "accept other rows from here on with allow=[{}]"
    locks = (None if saved == found else earlier(), opened.lock)
    notes = check_lock(saved, found, allow, cure, locks)
    known = table.with_datasets(recipe.names[:num_saved], table.begun)
    _check_added(table, num_saved, shared.steps + bool(shared.begun), allow)
    notes += _check_schedule(shared, known, allow)
    return shared, notes + describe_added(table, num_saved)


def check_allowances(allow: Collection[str]) -> None:
    """Refuses a name that is none of `ALLOWANCES`."""
    if unknown := sorted(set(allow) - set(ALLOWANCES)):
        raise ValueError(f"`allow` takes {', '.join(ALLOWANCES)}, got {unknown[0]!r}")


def first_datasets(recipe: Recipe, number: int) -> Recipe:
    """Returns the recipe with only the first `number` of its datasets, to compare configurations by."""
    return recipe if number == len(recipe.datasets) else replace(recipe, datasets=recipe.datasets[:number])


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


def known_lock(opened: Opened, number: int) -> dict[str, str]:
    """Returns the hashes of the lock without what only datasets after the first `number` name."""
    hashes, datasets = lock_hashes(opened.lock), opened.recipe.datasets
    kinds = {dataset.kind for dataset in datasets[:number]}
    added = {f"{table}.{dataset.name}" for dataset in datasets[number:] for table in ("data", "held_out")}
    added |= {f"plugins.datasets.{d.kind}" for d in datasets[number:] if d.kind not in kinds}
    return {name: value for name, value in hashes.items() if name not in added}


def describe_added(table: ScheduleTable, number: int) -> list[str]:
    """Returns a note on each dataset after the first `number`."""
    firsts = list(zip(table.names, table.first_active(), strict=True))[number:]
    return [f"added: {n}, {'no share yet' if at is None else f'from step {at} on'}" for n, at in firsts]


def _check_added(table: ScheduleTable, number: int, begun: int, allow: Collection[str]) -> None:
    """Refuses a dataset after the first `number` that has a share before step `begun`."""
    for name, first in list(zip(table.names, table.first_active(), strict=True))[number:]:
        if first is not None and first < begun and "schedule" not in allow:
            raise StateError.explained(
                f"dataset {name!r} is not in the state and has a share at step {first}",
                got=f"a state of which {begun} steps are done or begun",
                rule="the past cannot change; a dataset that is added has share 0 in steps that are begun",
                cure=f"give {name} the weight 0 before step {begun}; or accept a broken history: "
                'allow=["schedule"]',
            )


def _check_schedule(saved: Shared, table: ScheduleTable, allow: Collection[str]) -> list[str]:
    steps, is_inside = saved.steps, saved.begun != ""
    rolling, blocks = table.past(steps)
    if rolling == saved.past and (not is_inside or table.past(steps + 1)[0] == saved.begun):
        same, first = saved.schedule == table.hash(), steps + is_inside
        return [] if same else [f"the schedule differs from the state's at steps from {first} on: accepted"]
    block = next((i for i, (a, b) in enumerate(zip(saved.blocks, blocks, strict=False)) if a != b), 0)
    first, last = block * BLOCK_STEPS, min((block + 1) * BLOCK_STEPS, steps)
    if rolling == saved.past:
        first, last = steps, steps + 1
    if "schedule" in allow:
        return [f"accepted: the schedule differs from the state's in steps [{first}, {last})"]
    raise StateError.explained(
        f"the schedule differs from the state's in steps that are done, first in [{first}, {last})",
        got=f"other weights; {steps} steps are done" + ", and one is begun" * is_inside,
        rule="the past cannot change; only the weights of later steps may",
        cure='restore the weights of the steps done, or accept a broken history: allow=["schedule"]',
    )
