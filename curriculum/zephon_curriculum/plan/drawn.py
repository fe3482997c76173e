"""What a run on lengths draws, step by step, and the sizes of its datasets, every document counted.

Upstream: `exact_ends.py`, which runs the loader. Downstream: `make.py`, whose plan has it for estimates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from zephon import Batch, Opened
from zephon_curriculum.estimation.counting import as_packed, frame_of
from zephon_curriculum.estimation.estimates import CENSUS, DatasetEstimate, Estimates
from zephon_curriculum.plan.curve import Phase
from zephon_curriculum.plan.planned import PlannedDataset
from zephon_curriculum.quantity import Quantity

Int64 = NDArray[np.int64]


def counted(opened: Opened, lengths: Sequence[Int64]) -> Estimates:
    """Returns the sizes of datasets of which `lengths`, as of `census`, are known: nothing is estimated."""
    return Estimates(datasets=tuple(_counted(opened, i, each) for i, each in enumerate(lengths)))


def _counted(opened: Opened, index: int, lengths: Int64) -> DatasetEstimate:
    frame, drawn = frame_of(opened, index), as_packed(opened, lengths)
    documents, tokens = frame.num_documents, float(drawn.sum() - drawn[frame.held].sum())
    return DatasetEstimate(
        name=frame.name,
        how=CENSUS,
        documents=documents,
        bytes=None,
        tokens_per_byte=None,
        tokens_per_document=Quantity.exactly(tokens / documents) if documents else None,
        tokens=Quantity.exactly(tokens),
        num_chunks=len(frame.chunks),
        sampled_chunks=len(frame.chunks),
        sampled_documents=documents or 0,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drawn:
    """The tokens of a run on lengths; n steps, D datasets."""

    sizes: Estimates
    by_step: Int64
    """(n, D) drawn by the end of each step, those skipped included."""
    skipped: Int64
    """(D,) drawn and dropped where steps are skipped."""
    trained: Int64
    """(D,) labels that count."""
    earlier: Int64
    """(D,) delivered by earlier phases."""

    def tokens(self, index: int, num_steps: int) -> int:
        """Returns the tokens drawn by the end of steps [0, num_steps)."""
        return int(self.by_step[num_steps - 1, index]) if num_steps else 0

    def phase(self, phase: Phase) -> Phase:
        """Returns a phase with the tokens that its steps draw."""
        both = zip(*(self._row(step) for step in (phase.start, phase.stop)), strict=True)
        return replace(phase, drawn_tokens=tuple(after - before for before, after in both))

    def dataset(self, index: int, planned: PlannedDataset, unread: int | None) -> PlannedDataset:
        """Returns a dataset of a plan with what is drawn of it, and so many tokens `unread`."""
        tokens, size = self.tokens(index, len(self.by_step)), planned.size_tokens
        earlier, documents = int(self.earlier[index]), self.sizes[planned.name].documents
        return replace(
            planned,
            drawn_tokens=tokens,
            skipped_tokens=int(self.skipped[index]),
            trained_tokens=Quantity.exactly(int(self.trained[index])),
            documents=None if size is None else Quantity(value=tokens / size.value * (documents or 0)),
            epochs=None if size is None else Quantity.exactly((tokens + earlier) / size.value),
            first_repeat=None if size is None else self._step_above(index, size.value - earlier),
            unread_tokens=None if unread is None else Quantity.exactly(unread),
        )

    def _row(self, num_steps: int) -> list[int]:
        return [self.tokens(index, num_steps) for index in range(len(self.sizes))]

    def _step_above(self, index: int, tokens: float) -> Quantity | None:
        """Returns the step in which more than `tokens` have been drawn; None: no step is it."""
        step = int(np.searchsorted(self.by_step[:, index], tokens, side="right"))
        return Quantity.exactly(step) if step < len(self.by_step) else None


class Tally:
    """Counts what the steps of a run deliver and draw; D datasets, L lanes."""

    def __init__(self, num_datasets: int, num_lanes: int, *, masks: bool) -> None:
        """`masks` is the packing's `mask_document_ends`."""
        self.num_steps, self._masks, self._by_step = 0, masks, list[Int64]()
        self.given = np.zeros((num_datasets, num_lanes), np.int64)
        self.drawn = np.zeros((num_datasets, num_lanes), np.int64)
        """With what is skipped."""
        self.last_drawn = np.full((num_datasets, num_lanes), -1, np.int64)
        """The step that drew last of each, the first where none did; -1: none is made."""
        self.trained = np.zeros(num_datasets, np.int64)

    def add(self, batch: Batch, skipped: Int64) -> None:
        """Takes a step; `skipped`, (D, L), has been drawn and dropped by its end."""
        for index, tokens in enumerate(batch.tokens):
            np.add.at(self.given[index], batch.lanes, tokens)
        drawn, self.num_steps = self.given + skipped, batch.step + 1
        self.last_drawn[(drawn > self.drawn) | (self.last_drawn < 0)] = batch.step
        self.drawn = drawn
        self._by_step.append(drawn.sum(axis=1))
        pieces = batch.pieces
        ends = np.ones(len(pieces.row), np.int64)
        if not self._masks:  # only the last piece of a row has a label that does not count
            ends[:-1] = pieces.row[:-1] != pieces.row[1:]
        np.add.at(self.trained, pieces.dataset, pieces.length - ends)

    def add_late(self, lane: int, step: int, known: Int64, has_share: NDArray[np.bool_]) -> None:
        """Takes what a lane drew in rows skipped from `step` on, in which it ended: all that it had, (D,)."""
        more = has_share & (known > self.drawn[:, lane])
        self.drawn[more, lane] = known[more]
        self.last_drawn[more, lane] = np.maximum(self.last_drawn[more, lane], step)

    def found(self, sizes: Estimates, earlier: Int64) -> Drawn:
        """Returns what was counted; what came late counts for the last step."""
        total = self.drawn.sum(axis=1)
        steps = [*self._by_step[:-1], total] if self._by_step else []
        return Drawn(
            sizes=sizes,
            by_step=np.array(steps, np.int64).reshape(-1, len(total)),
            skipped=total - self.given.sum(axis=1),
            trained=self.trained,
            earlier=earlier,
        )
