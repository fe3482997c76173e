"""Proposals: what people ask for, checked against the log as it is, and written into it.

Upstream: `zephon amend` and `zc.Run.amend`. Downstream: the log, where the run finds it at its next step.
What can be refused at once is refused here; the run has the last word.
"""

from __future__ import annotations

import getpass
import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from zephon import Recipe, ScheduleTable, ZephonError, last_steps, read_log_files
from zephon_curriculum.log.added import dataset_of
from zephon_curriculum.log.amend import Blobs, Composed, Document, check_schedule
from zephon_curriculum.log.documents import check_documents, document_of
from zephon_curriculum.log.entries import Entry, Proposal, body_json, read_body
from zephon_curriculum.log.folder import CurriculumLog, documents_hash, table_hash
from zephon_curriculum.log.history import History, amended
from zephon_curriculum.log.judge import check_skips, first_legal, first_step, why_begun
from zephon_curriculum.log.ops import (
    Add,
    Op,
    Points,
    Replace,
    Retire,
    Scale,
    SkipDocuments,
    SkipSteps,
    Weights,
    Withdraw,
    numbers,
)
from zephon_curriculum.log.steps import AmendError

RECIPE = "recipe.toml"
Given = Mapping[str, Any] | str
"""Numbers by dataset, or text: `web=6,code=4`."""


class Changes(TypedDict, total=False):
    """The keywords of `Run.amend` and `Run.draft`: the fields of `Request` but for its reason."""

    at_step: int | None
    until: int | None
    weights: Given | None
    scale: Given | None
    points: Given | None
    schedule: ScheduleTable | None
    add: Mapping[str, Mapping[str, Any]]
    retire: tuple[str, ...]
    skip_steps: tuple[int, int] | None
    skip_documents: tuple[Document, ...] | None
    withdraw: tuple[int, ...]
    author: str | None
    again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What somebody asks for, as it was given; the fields that are None ask for nothing."""

    at_step: int | None = None
    """None: that of the steps skipped, or of the entry withdrawn."""
    until: int | None = None
    weights: Given | None = None
    scale: Given | None = None
    points: Given | None = None
    schedule: ScheduleTable | None = None
    add: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Datasets, by name their tables of a recipe."""
    retire: tuple[str, ...] = ()
    skip_steps: tuple[int, int] | None = None
    skip_documents: tuple[Document, ...] | None = None
    withdraw: tuple[int, ...] = ()
    reason: str
    author: str | None = None
    """None: the user's name."""
    again: bool = False
    """Whether it is asked for once more where a proposal that is equal in all counts or waits already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A proposal that can be written, and what it would come to."""

    proposal: Proposal
    blobs: Blobs
    """The big things that it names; they are written with it."""
    newest: Entry
    """The newest entry of the log as it was read."""
    repeats: Entry | None
    """The entry that asks for the very same, and counts or waits: nothing is written then."""
    before: Composed
    after: Composed
    first_step: int
    """The first step that it changes."""
    first_legal: int | None
    """The first step that the run accepts if it goes on after the newest step logged; None where none is, or
    `why_begun` says why. One that goes on from an earlier state accepts earlier ones."""
    why_begun: str
    """Why the run, if it goes on there, cannot withdraw an entry; empty where it can, or need not."""


def make_draft(
    log: CurriculumLog,
    request: Request,
    *,
    newest_step: int | None = None,
    recipe: Recipe | None = None,
    lock: Mapping[str, Any] | None = None,
) -> Draft:
    """Returns the proposal of a request and its effect; AmendError where the log as it is leaves no such.

    Writes nothing. `newest_step` is where the run is, `recipe` says its end and `lock` what documents it has,
    where they are known.
    """
    with log.reading():
        history = History.read(log)
    blobs = _blobs(request, history.composed.names)
    ops = tuple(_ops(request, blobs))
    proposal = as_read(
        Proposal(
            at_step=_at_step(request, history),
            until=request.until,
            ops=ops,
            reason=request.reason,
            author=_user() if request.author is None else request.author,
        )
    )
    check_skips(proposal, recipe)
    if lock is not None:
        check_documents([d for documents in blobs.documents.values() for d in documents], lock)
    before = history.composed
    repeats = None if request.again else history.same(proposal)
    step = None if newest_step is None else newest_step + 1
    history.use(blobs)
    return Draft(
        proposal=proposal,
        blobs=blobs,
        newest=history.entries[-1],
        repeats=repeats,
        before=before,
        after=before if repeats else amended(history, len(history.entries), proposal, is_new=True),
        first_step=first_step(history, proposal),
        first_legal=None if step is None else first_legal(history, proposal, step),
        why_begun="" if step is None else why_begun(history, proposal, step),
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no such user in this container
        return ""


def as_read(proposal: Proposal) -> Proposal:
    """Returns a proposal as all will read it; ValueError where they could not, and the chain would break."""
    try:
        found = read_body(json.loads(json.dumps(body_json(proposal), allow_nan=False)))
    except (ValueError, TypeError) as error:
        raise ValueError(f"this cannot be proposed: {error}") from None
    assert isinstance(found, Proposal)
    return found


def write_proposal(log: CurriculumLog, draft: Draft) -> Entry:
    """Writes a proposal as the newest entry and returns it; or the one that it repeats.

    So what is sent again for want of an answer counts once, whoever wrote in between.
    """
    if draft.repeats is not None:
        return draft.repeats
    with log.writing():
        log.put(draft.blobs)
        return log.append(draft.proposal, draft.newest.number + 1, draft.newest.hash)[-1]


def newest_step(run: str | os.PathLike[str]) -> int | None:
    """Returns the last step that the newest attempt of a run folder logged; None without any."""
    files = read_log_files(Path(run)) if Path(run).is_dir() else []
    newest = max((file.attempt for file in files), default=0)
    return max(last_steps(file for file in files if file.attempt == newest).values(), default=None)


def read_recipe(run: str | os.PathLike[str]) -> Recipe | None:
    """Returns the recipe in a run folder; None where there is none, or none that can be read here."""
    try:
        return Recipe.from_toml(Path(run) / RECIPE)
    except (ZephonError, ValueError, LookupError):  # in-memory data have no TOML, a variable is not set
        return None


def check_at_step(step: object) -> None:
    """Refuses what is no step."""
    if type(step) is not int or step < 0:
        raise ValueError(f"`at_step` must be a whole number >= 0, got {step!r}")


def _at_step(request: Request, history: History) -> int:
    if request.at_step is not None:
        check_at_step(request.at_step)
        return request.at_step
    if request.skip_steps is not None:
        return request.skip_steps[0]
    if not request.withdraw:
        raise AmendError("`at_step` is missing: the step from which the change holds")
    begins = history.begins()
    asked = {number: history.proposal(number) for number in request.withdraw if number not in begins}
    waiting = {number: proposal.at_step for number, proposal in asked.items() if proposal is not None}
    return min((begins | waiting).get(number, 0) for number in request.withdraw)


def _blobs(request: Request, names: tuple[str, ...]) -> Blobs:
    """Returns the big things that a request names, by their hashes."""
    tables, documents = {}, {}
    if request.schedule is not None:
        check_schedule(request.schedule, names)
        tables[table_hash(request.schedule)] = request.schedule
    if request.skip_documents is not None:
        found = tuple(
            sorted({document_of(list(given), "skip_documents") for given in request.skip_documents})
        )
        if not found:
            raise AmendError("the list of documents to skip is empty")
        documents[documents_hash(found)] = found
    return Blobs(tables, documents)


def _ops(request: Request, blobs: Blobs) -> Iterable[Op]:
    """Yields the ops of a request, in the order in which they act."""
    for number in request.withdraw:
        yield Withdraw(number)
    for name, config in request.add.items():
        dataset_of(name, config)
        yield Add(name, dict(config))
    yield from map(Replace, blobs.tables)
    if request.weights is not None:
        yield Weights(numbers(request.weights, "weights"))
    if request.scale is not None:
        yield Scale(numbers(request.scale, "scale"))
    if request.points is not None:
        yield Points(numbers(request.points, "points", signed=True))
    for name in request.retire:
        yield Retire(name)
    if request.skip_steps is not None:
        yield SkipSteps(*request.skip_steps)
    for sha, documents in blobs.documents.items():
        yield SkipDocuments(sha, len(documents))


def read_added(path: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Returns the datasets of a TOML file, [[datasets]] as in a recipe; paths start at its folder."""
    file, data = Path(path), _read_toml(path)
    entries = data.get("datasets", [data] if "name" in data else [])
    if not isinstance(entries, list) or not entries or not all("name" in entry for entry in entries):
        raise ValueError(f"{file}: a file of datasets has [[datasets]] tables with `name` and `path`")
    found = {}
    for entry in entries:
        config = {name: value for name, value in entry.items() if name != "name"}
        paths = config.get("path")
        anchored = [_anchor(str(p), file.parent) for p in (paths if isinstance(paths, list) else [paths])]
        found[str(entry["name"])] = config | {"path": anchored if isinstance(paths, list) else anchored[0]}
    return found


def _read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:  # of its TOML or its UTF-8, which do not say the file
        raise ValueError(f"{path} is no TOML file: {error}") from None


def _anchor(path: str, base: Path) -> str:
    if path.startswith(("~", "${")) or "://" in path:
        return path
    return os.path.normpath(base.absolute() / path)


def schedule_of(path: str | os.PathLike[str], recipe: Recipe) -> ScheduleTable:
    """Returns the table of another schedule: a recipe's, or a TOML file with its [schedule] alone.

    Relative paths in it start at its folder.
    """
    data = _read_toml(path)
    config = data.get("schedule", data)
    if not isinstance(config, dict) or "kind" not in config:
        raise ValueError(f"{path}: a schedule's file has a [schedule] table with its `kind`")
    return replace(recipe, schedule=config, base=Path(path).absolute().parent).compile_schedule()
