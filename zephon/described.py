"""What the rows of a batch hold, as people ask for it: the file, record and place of every piece.

Upstream: a batch of `loader.py` and the opened recipe. Downstream: `zephon show` and previews. Nothing is
decoded here: a row keeps its tokens, so that text is made of those pieces only that are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from zephon.batch import Batch, Pieces, digest
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

    def __str__(self) -> str:
        rest = f", {self.offset} tokens in" if self.offset else ""
        return (
            f"[{self.begin}, {self.end})  {self.dataset}  {self.file} record {self.record}  "
            f"position {self.position}{rest}"
        )


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

    def __repr__(self) -> str:
        place = f"step {self.step}, lane {self.lane}, row {self.row}"
        return f"DescribedRow of {place}: {len(self.pieces)} pieces, digest {self.digest[:12]}"

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

    Cost: a look at the reader's table for each piece, and at the order for each dataset of a lane; no data is
    read.
    """
    found, columns = digest(batch), batch.pieces
    places = _locate(opened, batch, columns)
    for index in np.lexsort((batch.rows, batch.lanes)).tolist():
        lane, row, value = found[index]
        begin, pieces = 0, []
        for at in np.flatnonzero(columns.row == index).tolist():
            file, record = places[at]
            piece = DescribedPiece(
                dataset=batch.datasets[int(columns.dataset[at])],
                file=file,
                record=record,
                position=int(columns.position[at]),
                offset=int(columns.offset[at]),
                begin=begin,
                num_tokens=int(columns.length[at]),
            )
            pieces.append(piece)
            begin = piece.end
        yield DescribedRow(
            step=batch.step,
            lane=lane,
            row=row,
            digest=value,
            pieces=tuple(pieces),
            tokens=batch.inputs[index].astype(np.uint32),  # a copy: the batch's memory is used again
        )


def _locate(opened: Opened, batch: Batch, columns: Pieces) -> list[tuple[str, int]]:
    """Returns (file, record) of every piece; asks once for each dataset of a lane."""
    lanes = batch.lanes[columns.row]
    order = np.lexsort((lanes, columns.dataset))
    places = [("", 0)] * len(order)
    by_dataset, by_lane = (np.diff(column[order], prepend=-1) != 0 for column in (columns.dataset, lanes))
    firsts = np.flatnonzero(by_dataset | by_lane)
    for group in np.split(order, firsts[1:]) if len(order) else ():
        dataset, lane = int(columns.dataset[group[0]]), int(lanes[group[0]])
        positions, inverse = np.unique(columns.position[group], return_inverse=True)
        found = opened.locate(dataset, lane, positions)
        pairs = zip(found.chunk.tolist(), found.record.tolist(), strict=True)
        known = [opened.readers[dataset].where(chunk, record) for chunk, record in pairs]
        for at, i in zip(group.tolist(), inverse.tolist(), strict=True):
            places[at] = known[i]
    return places
