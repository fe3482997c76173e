"""What the tests of the curriculum log share: a tiny run whose ranks take turns in one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.helpers import digest_of, make_recipe, take_steps, union, words
from zephon import Loader, LoaderOptions, Opened, Recipe, ScheduleTable, Stages
from zephon_curriculum.controllers.protocol import Observation
from zephon_curriculum.log.entries import Accepted, Entry, Refused
from zephon_curriculum.log.folder import CurriculumLog
from zephon_curriculum.log.follow import Updates, open_updates
from zephon_curriculum.log.history import History
from zephon_curriculum.log.propose import Request, make_draft, write_proposal

DOCUMENTS = {"web": words("web", 30), "code": words("code", 30), "math": words("math", 20)}
STAGES: Mapping[int, Mapping[str, float]] = {
    0: {"web": 3, "code": 1, "math": 0},
    7: {"web": 1, "code": 1, "math": 1},
    15: {"web": 0, "code": 1, "math": 2},
}
INLINE = LoaderOptions(executor="inline")


def recipe(stages: Mapping[int, Mapping[str, float]] = STAGES, **fields: Any) -> Recipe:
    return make_recipe(DOCUMENTS, Stages(stages), **fields)


@dataclass
class Bus:
    """A broadcast between ranks that take turns, rank 0 first."""

    messages: list[bytes] = field(default_factory=list)
    taken: dict[int, int] = field(default_factory=dict)

    def share(self, rank: int) -> Any:
        def share(message: bytes | None) -> bytes:
            if message is not None:
                self.messages.append(message)
                return message
            self.taken[rank] = self.taken.get(rank, 0) + 1
            return self.messages[self.taken[rank] - 1]

        return share


@dataclass
class Ranks:
    """The ranks of one attempt."""

    loaders: list[Loader]
    updates: list[Updates]
    bus: Bus

    def steps(self, number: int) -> list[str]:
        """Returns the digests of the next steps."""
        return [digest_of(take_steps(self.loaders, 1)[0]) for _ in range(number)]

    def state(self) -> dict[str, Any]:
        return union(self.loaders)


@contextmanager
def run(
    opened: Opened,
    folder: Path | str,
    state: Mapping[str, Any] | None = None,
    *,
    world: int = 1,
    options: LoaderOptions = INLINE,
    **more: Any,
) -> Iterator[Ranks]:
    """Gives the ranks of an attempt that follows the log in `folder`, from `state` on."""
    bus = Bus()
    with ExitStack() as stack:
        updates, loaders = [], []
        for rank in range(world):
            share = bus.share(rank) if world > 1 else None
            updates.append(open_updates(opened, folder, is_first=rank == 0, share=share, **more))
            chosen = replace(options, dp_rank=rank, dp_world_size=world, updates=updates[-1])
            loaders.append(stack.enter_context(Loader(opened, chosen)))
        for loader in loaders if state is not None else ():
            loader.load_state_dict(state or {})
        yield Ranks(loaders, updates, bus)


def propose(folder: Path | str, **given: Any) -> Entry:
    """Writes a proposal, as `zephon amend` does, and returns its entry."""
    log = CurriculumLog(folder)
    return write_proposal(log, make_draft(log, Request(**({"reason": "test"} | given))))


def verdict(folder: Path | str, entry: Entry) -> Accepted | Refused | None:
    return History.read(CurriculumLog(folder)).verdicts.get(entry.number)


def final_table(folder: Path | str) -> ScheduleTable:
    return History.read(CurriculumLog(folder)).composed.table()


def with_recipe(opened: Opened, other: Recipe) -> Opened:
    """Returns the opened data with another schedule."""
    return replace(opened, recipe=other, table=other.compile_schedule())


@dataclass(frozen=True)
class Chase:
    """The dataset with the highest loss gets most."""

    every: int = 3

    def decide(self, history: Sequence[Observation]) -> Mapping[str, float] | None:
        losses = history[-1].losses
        if len(history) % 4 == 0:
            return None
        return {name: (loss or 0) ** 2 + len(history) for name, loss in losses.items()}
