"""A fork: a run folder whose log is that of another run up to a step, and goes its own way from there.

Upstream: `zephon fork` and `zc.Run.fork`. Downstream: a run that begins there from a state of the parent. The
parent's entries are copied as they are, so its chain can still be proved; one more says what does not count.
All is written in a hidden folder beside and then renamed: a fork that is killed leaves no run folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zephon import Recipe, ScheduleTable, StateError, find_state, saved_steps, write_state_file
from zephon_curriculum.figures import plural
from zephon_curriculum.log.amend import Composed
from zephon_curriculum.log.entries import Entry, Fork
from zephon_curriculum.log.folder import FOLDER, CurriculumLog, log_of
from zephon_curriculum.log.history import History
from zephon_curriculum.log.propose import RECIPE, check_at_step
from zephon_curriculum.log.store import LocalStore, explaining
from zephon_curriculum.results import Readable, Shown

COPIED = (RECIPE, "lock.json", "start.json")
STATE = "state.json"
UNFINISHED = ".fork"
"""How the name of a hidden folder ends in which a fork is made."""


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
    has_recipe: bool
    """Whether the parent had a recipe beside its log to take along."""
    left: tuple[Path, ...]
    """Hidden folders beside it of forks that were killed, or are being made."""

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
        notes += [
            f"{path} is of a fork that was killed: remove it, unless one is being made" for path in self.left
        ]
        start = f"a checkpoint of at most {plural(step, 'step')}" if self.state is None else str(self.state)
        recipe = ""
        if not self.has_recipe:
            notes.append(
                f"no {RECIPE} is in {self.folder}, as none lies beside the log; the first start writes it"
            )
            recipe = f" and the run's recipe: zc.Run({os.fspath(self.folder)!r}, recipe).loader(...)"
        notes += [
            f"entry {self.entry.number}, head {self.entry.hash[:12]}",
            f"next: go on from {start} with `run_folder` {self.folder}{recipe}",
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
    place = Path(os.path.realpath(folder))
    with _writing(place):
        _check_free(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = [place.parent / name for name in sorted(os.listdir(place.parent))]
    with _writing(place), _whole(place) as made:
        written = _write(made, run, history, at_step)
        if found is not None:
            write_state_file(found, made / STATE)
        has_recipe = (made / RECIPE).exists()
    return Forked(
        folder=folder,
        entry=written,
        dropped=tuple(history.not_begun(at_step)),
        waiting=tuple(sorted(history.pending)),
        ended=_ended(history.composed, before),
        state=folder / STATE if found is not None else None,
        has_recipe=has_recipe,
        left=tuple(p for p in beside if p.name.startswith(f".{place.name}.") and p.suffix == UNFINISHED),
    )


def _writing(place: Path) -> AbstractContextManager[None]:
    """Gives a part of the program in which a write that the storage refuses is explained to people."""
    return explaining(
        f"no fork can be made at {os.fspath(place)!r}",
        rule="a fork is written whole in a hidden folder beside and then renamed; nothing of it is left",
        cure="make room there, or let this user create folders, or give another folder",
    )


@contextlib.contextmanager
def _whole(place: Path) -> Iterator[Path]:
    """Gives an empty folder, hidden beside `place`, which is renamed to it once all is written."""
    with tempfile.TemporaryDirectory(
        prefix=f".{place.name}.", suffix=UNFINISHED, dir=place.parent, ignore_cleanup_errors=True
    ) as hidden:
        made = Path(hidden) / "run"
        made.mkdir()
        yield made
        try:
            os.rename(made, place)
        except OSError as error:  # a file is there, or what came since, or what is mounted
            raise _taken(place, str(error)) from None


def _ended(composed: Composed, before: Composed) -> tuple[tuple[int, int], ...]:
    untils = {amendment.number: amendment.until for amendment in composed.amendments}
    return tuple((a.number, a.until) for a in before.amendments if a.until and a.until != untils[a.number])


def _write(folder: Path, run: str | os.PathLike[str], history: History, at_step: int) -> Entry:
    """Writes what a fork has into an empty folder; returns its entry."""
    store, origin = LocalStore(os.fspath(folder)), os.fspath(run)
    for name in COPIED:
        if (path := Path(run) / name).exists():
            store.create(name, path.read_bytes())
    log = CurriculumLog(folder / FOLDER)
    log_of(run).copy_to(log, history.entries)
    body = Fork(at_step=at_step, parent=origin if "://" in origin else os.path.abspath(origin))
    return log.append(body, len(history.entries), history.head)[-1]


def _check_free(folder: Path) -> None:
    if folder == Path.cwd():  # another takes its place, which who is in it would not see
        raise _taken(folder, "it is the folder in which this runs")
    around = next(path for path in folder.parents if path.exists())
    if CurriculumLog(around).exists:
        raise _taken(folder, f"it is in the curriculum log {around}, which has entries only")
    if folder.is_dir() and (there := sorted(os.listdir(folder))):
        raise _taken(folder, f"it is not empty: {there[0]} and {len(there) - 1} more in it")


def _taken(folder: Path, got: str) -> StateError:
    return StateError.explained(
        f"no fork can be made at {os.fspath(folder)!r}",
        got=got,
        rule="a fork is a run folder of its own, which is there at once by a rename",
        cure="give a folder that is not there",
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


def check_state_of(history: History, recipe: Recipe, state: Mapping[str, Any], table: ScheduleTable) -> None:
    """Raises StateError where a log is that of a fork, and `state` one of its parent behind the fork.

    Unless its steps had the shares of `table`. What is no state, or of another recipe, is left to the loader.
    """
    forks = [entry for entry in history.entries if isinstance(entry.body, Fork)]
    if not forks:
        return
    fork, own = forks[-1].body, {entry.hash for entry in history.entries[forks[-1].number :]}
    assert isinstance(fork, Fork)
    try:
        fingerprint, steps = json.loads(state["recipe"])["fingerprint"], saved_steps(state)
        saved = json.loads(state["schedule"])
        head, past = saved["head"], saved["past"]
    except (KeyError, ValueError, TypeError):
        return
    is_of_run = fingerprint in (recipe.fingerprint(), history.base.fingerprint)
    if steps <= fork.at_step or head in own or not is_of_run:
        return
    if table.past(steps)[0] != past:
        raise StateError.explained(
            f"the state is behind the fork: this run folder goes its own way from step {fork.at_step} on",
            got=f"a state after {plural(steps, 'step')}, of {fork.parent}, with other shares in them",
            rule="a fork goes on from a state of at most its step",
            cure=f"give a checkpoint of at most {plural(fork.at_step, 'step')}, or fork at step {steps} or "
            "later",
        )
