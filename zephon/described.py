"""What the rows of a batch hold, as people ask for it: the file, record and place of every piece.

Upstream: a batch of `loader.py` and the opened recipe. Downstream: `zephon show` and previews. Nothing is
decoded here: a row keeps its tokens, so that text is made of those pieces only that are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from zephon.batch import Batch, digest
from zephon.opened import Opened


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedPiece:
    """One piece of a row: where it comes from and where it lies."""

    dataset: str
    file: str
    record: int
    """Number of the record in its file, from 0."""
    position: int
    """Place of the document in the lane's order of its dataset."""
    offset: int
    """Tokens of the document before this piece."""
    begin: int
    """First token of the piece in the row; it ends before `begin + num_tokens`."""
    num_tokens: int

    @property
    def end(self) -> int:
        """Returns one past the last token of the piece in the row."""
        return self.begin + self.num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedRow:
    """One packed training sequence."""

    step: int
    lane: int
    row: int
    """Number of the row in its lane."""
    digest: str
    """SHA-256 of the row, as batch logs have it."""
    pieces: tuple[DescribedPiece, ...]
    tokens: NDArray[np.uint32] = field(repr=False, compare=False)
    """(seq_len,) the inputs, padding included."""

    @property
    def num_tokens(self) -> int:
        """Returns the tokens of all pieces."""
        return self.pieces[-1].end if self.pieces else 0

    @property
    def padding_tokens(self) -> int:
        """Returns the tokens after the last piece."""
        return len(self.tokens) - self.num_tokens

    def tokens_of(self, piece: DescribedPiece) -> NDArray[np.uint32]:
        """Returns the tokens of one of its pieces."""
        return self.tokens[piece.begin : piece.end]


def describe_rows(opened: Opened, batch: Batch) -> Iterator[DescribedRow]:
    """Yields the rows of a batch in (lane, row) order.

    Cost: a look at the order and at the reader's table for each piece; no data is read.
    """
    found, columns = digest(batch), batch.pieces
    for index in np.lexsort((batch.rows, batch.lanes)).tolist():
        lane, row, value = found[index]
        begin, pieces = 0, []
        for at in np.flatnonzero(columns.row == index).tolist():
            dataset, position, length = (
                int(c[at]) for c in (columns.dataset, columns.position, columns.length)
            )
            file, record = _locate(opened, dataset, lane, position)
            pieces.append(
                DescribedPiece(
                    dataset=batch.datasets[dataset],
                    file=file,
                    record=record,
                    position=position,
                    offset=int(columns.offset[at]),
                    begin=begin,
                    num_tokens=length,
                )
            )
            begin += length
        yield DescribedRow(
            step=batch.step,
            lane=lane,
            row=row,
            digest=value,
            pieces=tuple(pieces),
            tokens=batch.inputs[index].astype(np.uint32),  # a copy: the batch's memory is used again
        )


def _locate(opened: Opened, dataset: int, lane: int, position: int) -> tuple[str, int]:
    """Returns (file, record) of the document at a position of a lane."""
    address = opened.locate(dataset, lane, np.array([position], dtype=np.int64))
    return opened.readers[dataset].where(int(address.chunk[0]), int(address.record[0]))
