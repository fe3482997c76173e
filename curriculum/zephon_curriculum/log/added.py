"""Datasets that amendments add: a run opens its datasets when it starts, so its recipe has them by then.

Upstream: the log. Downstream: the recipe that a run starts with, and `launch.py`, which compares the two.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zephon import Constant, DataError, Dataset, Recipe, ScheduleContext, find_plugin, open_recipe
from zephon_curriculum.log.entries import Proposal, summary
from zephon_curriculum.log.folder import CurriculumLog, log_of
from zephon_curriculum.log.history import History, adds

_log = logging.getLogger("zephon")


def with_added(recipe: Recipe, log: CurriculumLog) -> Recipe:
    """Returns the recipe with the datasets at its end that the log adds, or that waiting proposals ask for.

    The recipe itself where there are none, or no log.
    """
    if not log.exists:
        return recipe
    history = History.read(log)
    added = {name: config for name, config in history.wanted().items() if name not in recipe.names}
    if not added:
        return recipe
    datasets = []
    for name, config in added.items():
        try:
            datasets.append(dataset_of(name, config))
        except ValueError as error:  # written by hand, or by another release
            raise ValueError(f"{error}\n  from: {_asked(log, history, name)}") from None
    schedule = recipe.schedule
    if not isinstance(schedule, Mapping):
        to_config = getattr(schedule, "to_config", None)
        if to_config is None:
            raise ValueError(
                f"schedule {type(schedule).__name__} has no `to_config()`, so no dataset can be added to it; "
                "add it to the recipe itself, with weight 0 in the steps that are done"
            )
        schedule = to_config()
    config = {"kind": "added", "names": list(added), "schedule": dict(schedule)}
    return replace(recipe, datasets=(*recipe.datasets, *datasets), schedule=config)


def recipe_of_run(recipe: Recipe, run: str | os.PathLike[str]) -> Recipe:
    """Returns the recipe to start a run with: with the datasets that the log in its run folder adds.

    Logs which entry adds each, before it is opened.
    """
    log = log_of(run)
    found = with_added(recipe, log)
    for name in found.names[len(recipe.names) :]:
        _log.info("dataset %r is opened as %s", name, _asked(log, History.read(log), name))
    return found


@contextlib.contextmanager
def naming_added(recipe: Recipe, log: CurriculumLog) -> Iterator[None]:
    """Gives the part that opens a run's data; an added dataset that cannot be is named with its entry."""
    try:
        yield
    except DataError:
        history = History.read(log) if log.exists else History()
        for name, config in history.wanted().items():
            try:
                check_opens(recipe, name, config)
            except DataError as error:
                raise DataError(f"{error}\n  from: {_asked(log, history, name)}") from None
        raise


def _asked(log: CurriculumLog, history: History, name: str) -> str:
    """Returns the entry by which a run has an added dataset, and how to give up one that waits."""
    config = history.wanted()[name]
    proposals = ((e.number, e.body) for e in history.entries if isinstance(e.body, Proposal))
    number, body = next((n, body) for n, body in proposals if adds([body]).get(name) == config)
    rid = f"; give it up: `zephon amend {log.url} --withdraw {number} --reason WHY`"
    return f"entry {number}, {summary(body)}{rid if number in history.pending else ''}"


def dataset_of(name: str, config: Mapping[str, Any]) -> Dataset:
    """Returns the dataset of its table of a recipe, without the name."""
    fields = dict(config)
    path = fields.pop("path", None)
    try:
        return Dataset.from_path(name, path, **fields)
    except TypeError as error:
        raise ValueError(f"dataset {name!r}: {error}") from None


def check_opens(recipe: Recipe, name: str, config: Mapping[str, Any]) -> None:
    """Opens a dataset as a run of `recipe` would, and closes it; refuses what no run could start with."""
    alone = replace(
        recipe,
        datasets=(dataset_of(name, config),),
        schedule=Constant({name: 1}),
        controller=None,
        continues=None,
        catalogue="",
    )
    try:
        open_recipe(alone).close()
    except DataError as error:
        raise DataError(f"dataset {name!r} cannot be added: {error}") from None


@dataclass(frozen=True, slots=True)
class Added:
    """A schedule with datasets at the end that it does not know, at weight 0: `kind = "added"`."""

    schedule: Any
    names: tuple[str, ...]
    config: Mapping[str, Any]
    steps: Sequence[int]
    """At which the weights may change."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], context: ScheduleContext) -> Added:
        """Returns the schedule of `names = [...]` and `schedule = { kind = ... }`."""
        if set(config) != {"names", "schedule"} or not isinstance(config["schedule"], Mapping):
            raise ValueError(f"schedule added: takes `names` and `schedule`, got {', '.join(config)}")
        names, inner = tuple(config["names"]), dict(config["schedule"])
        kind = inner.pop("kind", None)
        known = tuple(name for name in context.names if name not in names)
        build = find_plugin("schedules", str(kind))
        schedule = build(inner, replace(context, names=known))
        if (changes := getattr(schedule, "changes", None)) is not None:
            steps = tuple(changes())
        elif context.total_steps is not None:
            steps = tuple(range(context.total_steps))
        else:
            raise ValueError(f"schedule {kind}: has no `changes()`, so the recipe must say `total_steps`")
        said = getattr(schedule, "to_config", None)  # without files, which lie elsewhere for a run folder
        inside = config["schedule"] if said is None else said()
        return cls(schedule, names, {"names": list(names), "schedule": dict(inside)}, steps)

    def to_config(self) -> dict[str, Any]:
        """Returns the schedule's table of a recipe."""
        return {"kind": "added", **self.config}

    def weights(self, step: int) -> Mapping[str, float]:
        """Returns the weights of the schedule, and 0 for the datasets added."""
        return {**self.schedule.weights(step), **dict.fromkeys(self.names, 0)}

    def changes(self) -> Sequence[int]:
        """Returns the steps at which the weights may change."""
        return self.steps
