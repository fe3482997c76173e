"""Progress sums what the lanes have drawn, and says how often they have gone through each dataset."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zephon.lanestate import LaneState
from zephon.order import Order
from zephon.progress import measure
from zephon.stream import Cursor
from zephon.stream_order import StreamOrder


def state(rows: int, positions: Sequence[int | None], replay_rows: int = 0) -> LaneState:
    """Returns the state of a lane that has drawn ten tokens and a document at every position."""
    return LaneState(
        rows=rows,
        tokens=tuple(10 * (position or 0) for position in positions),
        documents=tuple(position or 0 for position in positions),
        cursors=tuple(None if position is None else Cursor(position) for position in positions),
        counts=tuple((("bad", 1), ("empty", position)) if position else () for position in positions),
        replay_rows=replay_rows,
    )


def test_epochs_are_those_of_the_lanes_groups() -> None:
    small, large = np.array([4, 4]), np.full(64, 1000)
    orders: list[Order | StreamOrder] = [
        Order(seed=1, name="small", num_lanes=4, num_documents=small, num_bytes=small),
        Order(seed=1, name="large", num_lanes=4, num_documents=large, num_bytes=large),
        StreamOrder(
            seed=1, name="files", num_lanes=4, files=["a", "b", "c", "d"], num_bytes=np.ones(4, np.int64)
        ),
    ]
    assert [order.group(0)[1] for order in orders[:2]] == [8, 16_000]
    lanes = {2: state(6, [4, 8000, None]), 3: state(5, [2, None, 3 << 40], replay_rows=2)}
    found = measure(lanes, orders, rows_per_step=2)
    assert (found.num_steps, found.num_lanes) == (3, 2)
    assert found.epochs.tolist() == [(4 + 2) * 4 / 8 / 2, 8000 / 16_000 / 2, 3 / 2]
    assert found.tokens.tolist() == [60, 80_000, 30 << 40]
    assert found.documents.tolist() == [6, 8000, 3 << 40]
    assert found.counts == ({"bad": 2, "empty": 6}, {"bad": 1, "empty": 8000}, {"bad": 1, "empty": 3 << 40})
