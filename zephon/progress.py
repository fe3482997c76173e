"""How far a rank's lanes have come; how a recipe with `max_epochs` ends: all ranks before the same step.

Upstream: the delivered states of `loader.py`, and the rows that this rank made of a step, which it hands over
if no rank ends before it. Downstream: trainers that log progress; `LoaderOptions.any_rank`, by which the
ranks agree, once a step, in the thread that takes the batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from zephon.dataset import PAD
from zephon.lane import Row
from zephon.lanestate import LaneState
from zephon.opened import Opened
from zephon.order import Order
from zephon.stream import Cursor
from zephon.stream_order import StreamOrder


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankProgress:
    """What was delivered to one rank since the run began, restores included.

    In a run of several phases, steps, tokens and documents count from the start of the phase, and epochs and
    counts over all phases. Of a lane that is padded, its last rows count as given once the first of them is.
    """

    num_steps: int
    """Steps that are complete."""
    num_lanes: int
    tokens: NDArray[np.int64]
    """(num_datasets,) tokens drawn, over the rank's lanes."""
    documents: NDArray[np.int64]
    """(num_datasets,) documents begun."""
    epochs: NDArray[np.float64]
    """(num_datasets,) how often the lanes have gone through their documents, their mean."""
    counts: tuple[Mapping[str, int], ...]
    """For each dataset, how many documents were passed that are bad, empty, dropped, truncated, replaced or
    held_out, over the rank's lanes; a kind that was not met is left out."""


def measure(
    lanes: Mapping[int, LaneState], orders: Sequence[Order | StreamOrder], rows_per_step: int
) -> RankProgress:
    """Returns the progress of `lanes`, by lane; cost: one pass over lanes times datasets."""
    cursors = zip(*(state.cursors for state in lanes.values()), strict=True)
    epochs = [_epochs(order, lanes, column) for order, column in zip(orders, cursors, strict=True)]
    return RankProgress(
        num_steps=min(state.delivered_rows for state in lanes.values()) // rows_per_step,
        num_lanes=len(lanes),
        tokens=np.array([state.tokens for state in lanes.values()], dtype=np.int64).sum(axis=0),
        documents=np.array([state.documents for state in lanes.values()], dtype=np.int64).sum(axis=0),
        epochs=np.array(epochs, dtype=np.float64) / len(lanes),
        counts=tuple(sum_counts(lanes.values())),
    )


def sum_counts(lanes: Iterable[LaneState]) -> list[Mapping[str, int]]:
    """Returns for each dataset what was counted of it in all lanes, by kind."""
    found: list[Mapping[str, int]] = []
    for column in zip(*(state.counts for state in lanes), strict=True):
        total: Counter[str] = Counter()
        for counts in column:
            total.update(dict(counts))
        found.append(dict(sorted(total.items())))
    return found


def _epochs(order: Order | StreamOrder, lanes: Iterable[int], cursors: Iterable[Cursor | None]) -> float:
    """Returns how often the lanes have gone through the documents of a dataset, their sum."""
    total, group, num_documents = 0.0, range(0), 0
    for lane, cursor in zip(lanes, cursors, strict=True):
        if cursor is not None:
            if lane not in group:
                group, num_documents = order.group(lane)
            total += cursor.position * len(group) / num_documents
    return total


# The end --------------------------------------------------------------------------------------------------


class _HasRows(Protocol):
    rows: list[Row]


M = TypeVar("M", bound=_HasRows)


class Ending:
    """Takes the verdict of each step: whether the run ends before it."""

    def __init__(self, when_exhausted: str, any_rank: Callable[[bool], bool] | None) -> None:
        self._is_padded, self._any_rank = when_exhausted == PAD, any_rank

    def by_step(self, made: Iterator[M], rows_of_step: int, num_done: int) -> Generator[M | bool, None, None]:
        """Yields the batches of each step when all are made, and ahead of them what this rank says of it.

        With padding it says whether any row is more than that, else whether a row cannot be filled. Of the
        step that `num_done` rows are delivered of already it says nothing: that step was agreed on.
        """
        step: list[M] = []
        is_agreed = num_done > 0
        for batch in made:
            step.append(batch)
            num_done += len(batch.rows)
            if num_done < rows_of_step:
                continue
            if not is_agreed:
                yield self._is_padded and any(row.runs for done in step for row in done.rows)
            yield from step
            step, num_done, is_agreed = [], 0, False
        yield not self._is_padded

    def is_over(self, says: bool) -> bool:
        """Returns whether the run ends before the step of which this rank says `says`; asks all ranks."""
        answer = says if self._any_rank is None else bool(self._any_rank(says))
        if says and not answer:
            raise ValueError("`any_rank` must return true where a rank says true, got false for true")
        return answer is not self._is_padded


def describe_end(opened: Opened, lanes: Mapping[int, LaneState], num_steps: int) -> str:
    """Returns in one line how many steps the run gave, what it left unread and what it skipped.

    `lanes` are those of this rank as far as they were delivered; a lane that is padded, at its end.
    """
    held = sum(piece.num_tokens for state in lanes.values() for piece in state.carry + state.held)
    orders = zip(opened.recipe.names, opened.orders, strict=True)
    positions = {lane: [(c or Cursor()).position for c in state.cursors] for lane, state in lanes.items()}
    unread = [
        f"{name} {sum(order.end(lane) - at[i] for lane, at in positions.items()):,}"
        for i, (name, order) in enumerate(orders)
        if order.max_epochs is not None
    ]
    bad = [counts.get("bad", 0) for counts in sum_counts(lanes.values())]
    skipped = [f"{name} {number:,}" for name, number in zip(opened.recipe.names, bad, strict=True) if number]
    return (
        f"the data end after {num_steps:,} steps; lanes {min(lanes)} to {max(lanes)} leave unread, in "
        f"documents: {', '.join(unread)}; in tokens that packers hold: {held:,}"
    ) + (f"; records skipped: {', '.join(skipped)}" if skipped else "")
