"""How a recipe with `max_epochs` ends: all ranks before the same step, which none of them hands over.

Upstream: `loader.py`, with the rows that this rank made of a step. Downstream: `LoaderOptions.any_rank`, by
which the ranks agree, once a step, in the thread that takes the batches.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Protocol, TypeVar

from zephon.dataset import PAD
from zephon.lane import LaneState, Row
from zephon.opened import Opened
from zephon.progress import sum_counts
from zephon.stream import Cursor


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
    unread = [
        f"{name} {sum(order.end(lane) - _position(state.cursors[i]) for lane, state in lanes.items()):,}"
        for i, (name, order) in enumerate(orders)
        if order.max_epochs is not None
    ]
    bad = [counts.get("bad", 0) for counts in sum_counts(lanes.values())]
    skipped = [f"{name} {number:,}" for name, number in zip(opened.recipe.names, bad, strict=True) if number]
    return (
        f"the data end after {num_steps:,} steps; lanes {min(lanes)} to {max(lanes)} leave unread, in "
        f"documents: {', '.join(unread)}; in tokens that packers hold: {held:,}"
    ) + (f"; records skipped: {', '.join(skipped)}" if skipped else "")


def _position(cursor: Cursor | None) -> int:
    return 0 if cursor is None else cursor.position
