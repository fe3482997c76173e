"""How far a rank's lanes have come, for metrics and people.

Upstream: the delivered states of `loader.py`. Downstream: trainers that log it. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zephon.lane import LaneState
from zephon.order import Order
from zephon.stream_order import StreamOrder


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankProgress:
    """What was delivered to one rank since the run began, restores included."""

    num_steps: int
    """Steps that are complete."""
    num_lanes: int
    tokens: NDArray[np.int64]
    """(num_datasets,) tokens drawn, over the rank's lanes."""
    documents: NDArray[np.int64]
    """(num_datasets,) documents begun."""
    epochs: NDArray[np.float64]
    """(num_datasets,) how often the lanes have gone through their documents, their mean."""


def measure(lanes: Mapping[int, LaneState], orders: Sequence[Order | StreamOrder], rows_per_step: int) -> RankProgress:
    """Returns the progress of `lanes`, by lane; cost: one pass over lanes times datasets."""
    epochs = np.zeros(len(orders))
    for lane, state in lanes.items():
        for dataset, cursor in enumerate(state.cursors):
            if cursor is not None:
                group, num_documents = orders[dataset].group(lane)
                epochs[dataset] += cursor.position * len(group) / num_documents
    return RankProgress(
        num_steps=min(state.delivered_rows for state in lanes.values()) // rows_per_step,
        num_lanes=len(lanes),
        tokens=np.array([state.tokens for state in lanes.values()], dtype=np.int64).sum(axis=0),
        documents=np.array([state.documents for state in lanes.values()], dtype=np.int64).sum(axis=0),
        epochs=epochs / len(lanes),
    )
