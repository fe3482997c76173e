"""A fork: a run folder whose log is that of another run up to a step, and goes its own way from there.

Upstream: `zephon fork` and `zc.Run.fork`. Downstream: a run that begins there from a state of the parent. The
parent's entries are copied as they are, so its chain can still be proved; one more says what does not count.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from zephon import ScheduleTable, StateError, find_state, saved_steps, write_state_file
from zephon_curriculum.figures import plural
from zephon_curriculum.log.entries import Entry, Fork
from zephon_curriculum.log.folder import FOLDER, CurriculumLog, log_of
from zephon_curriculum.log.history import History
from zephon_curriculum.log.propose import check_at_step
from zephon_curriculum.results import Readable, Shown

COPIED = ("recipe.toml", "lock.json", "start.json")
STATE = "state.json"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Forked(Readable):
    """What a fork made."""

    folder: Path
    entry: Entry
    """That of the fork, the newest of its log."""
    dropped: tuple[int, ...]
    """Proposals and decisions of the parent that do not count, since they begin at the step or later, or
    ask for more than a withdrawal there."""
    waiting: tuple[int, ...]
    """Proposals to the parent without a verdict, which do not count either."""
    ended: tuple[tuple[int, int], ...]
    """(amendment, step) of those that stood on one dropped: without it they end before the step."""
    state: Path | None
    """The state to begin with, where one was given."""

    def shown(self) -> Shown:
        """Returns what was made, what does not count there, and how to go on."""
        fork = self.entry.body
        assert isinstance(fork, Fork)
        step = fork.at_step
        notes = _listed(self.dropped, ("begins", "begin"), "there or later and {} not count")
        notes += _listed(self.waiting, ("has", "have"), "no verdict and {} not count: propose again")
        notes += [
            f"entry {number} ends before step {end}: from there on it stood on what does not count"
            for number, end in self.ended
        ]
        start = f"a checkpoint of at most {plural(step, 'step')}" if self.state is None else str(self.state)
        notes += [
            f"entry {self.entry.number}, head {self.entry.hash[:12]}",
            f"next: go on from {start} with `run_folder` {self.folder}",
        ]
        head = f"{self.folder}: forked from {fork.parent} at step {step} (a trainer logs it as {step + 1})"
        return Shown(head=head, notes=notes)


def _listed(numbers: tuple[int, ...], verbs: tuple[str, str], rest: str) -> list[str]:
    """Returns a line of entries, in the singular or the plural; none without entries."""
    if not numbers:
        return []
    is_one, listed = len(numbers) == 1, ", ".join(map(str, numbers))
    noun, verb, does = ("entry", verbs[0], "does") if is_one else ("entries", verbs[1], "do")
    return [f"{noun} {listed} {verb} {rest.format(does)}"]


def fork_run(
    run: str | os.PathLike[str],
    at_step: int,
    into: str | os.PathLike[str],
    *,
    state: str | os.PathLike[str] | None = None,
) -> Forked:
    """Makes the run folder `into` with recipe, lock and log of `run`, as they were before step `at_step`.

    `state` is a file of `write_state_file`, or a checkpoint that a plugin reads, of at most `at_step` steps;
    it is written beside. Raises StateError for one that the fork cannot go on from, and for a folder in use.
    """
    check_at_step(at_step)
    if "://" in os.fspath(into):
        raise ValueError(f"`into` must be a folder of this machine, got {os.fspath(into)!r}; a run folder is")
    parent, folder = log_of(run), Path(into)
    history = History.read(parent)
    before = history.composed.before(at_step)
    found = None if state is None else _checked(find_state(state), before.table(), at_step)
    _check_empty(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        if (path := Path(run) / name).exists():
            shutil.copyfile(path, folder / name)
    log = CurriculumLog(folder / FOLDER)
    parent.copy_to(log, history.entries)
    origin = os.fspath(run)
    body = Fork(at_step=at_step, parent=origin if "://" in origin else os.path.abspath(origin))
    written = log.append(body, len(history.entries), history.head)[-1]
    if found is not None:
        write_state_file(found, folder / STATE)
    untils = {amendment.number: amendment.until for amendment in history.composed.amendments}
    ended = tuple((a.number, a.until) for a in before.amendments if a.until and a.until != untils[a.number])
    return Forked(
        folder=folder,
        entry=written,
        dropped=tuple(history.not_begun(at_step)),
        waiting=tuple(sorted(history.pending)),
        ended=ended,
        state=folder / STATE if found is not None else None,
    )


def _check_empty(folder: Path) -> None:
    if folder.exists() and (there := sorted(os.listdir(folder))):
        raise StateError.explained(
            f"the folder {os.fspath(folder)!r} is not empty",
            got=f"{there[0]} and {len(there) - 1} more in it",
            rule="a fork is a run folder of its own",
            cure="give a new folder",
        )


def _checked(state: dict[str, object], table: ScheduleTable, at_step: int) -> dict[str, object]:
    """Returns a state from which the fork can go on."""
    steps = saved_steps(state)
    if steps > at_step:
        raise StateError.explained(
            f"the state is behind the fork at step {at_step}",
            got=f"a state of {steps} steps",
            rule="a fork goes on from a state of at most its step",
            cure=f"give an earlier state, or fork at step {steps} or later",
        )
    names = tuple(json.loads(str(state["recipe"]))["configuration"]["datasets"])
    past = json.loads(str(state["schedule"]))["past"]
    if table.with_datasets(names).past(steps)[0] != past:
        raise StateError.explained(
            "the state is not one of this run as its log has it",
            got=f"other shares in its {steps} steps",
            rule="a fork has the log's amendments before its step, as had the run that took its state",
            cure="give a state of the newest attempt of the run",
        )
    return state
