"""How far a rank's lanes have come, for metrics and people.

Upstream: the delivered states of `loader.py`. Downstream: trainers that log it. It decides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zephon.lane import LaneState
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
