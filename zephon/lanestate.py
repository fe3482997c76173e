"""What a lane needs to go on after a row: plain integers, and what its packer holds as addresses.

Upstream: `lane.py`. Downstream: `state.py` writes it; a restore finds the pieces in blocks read once more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from zephon.errors import StateError
from zephon.prepare import Block
from zephon.stream import Counts, Cursor, Run


class CarriedPiece(NamedTuple):
    """A piece that a packer holds, as an address."""

    dataset: int
    position: int
    output: int
    offset: int
    num_tokens: int


class LaneState(NamedTuple):
    """All that a lane needs to go on after a row; plain integers."""

    rows: int = 0
    tokens: tuple[int, ...] = ()
    documents: tuple[int, ...] = ()
    credits: tuple[int, ...] = ()
    cursors: tuple[Cursor | None, ...] = ()
    counts: tuple[Counts, ...] = ()
    """For each dataset, what its stream counted."""
    carry: tuple[CarriedPiece, ...] = ()
    replay_rows: int = 0
    """Rows delivered since this state, to be made again and dropped; > 0 only for packers without carry and
    for lanes that have ended and give padding."""
    held: tuple[CarriedPiece, ...] = ()
    """What the packer of an earlier phase held and this one has not taken; it goes first, drawn already."""
    skipped: tuple[int, ...] = ()
    """Of the tokens drawn, those in rows that amendments dropped, by dataset; empty where none did."""

    @property
    def delivered_rows(self) -> int:
        """Returns the rows of the lane that were delivered."""
        return self.rows + self.replay_rows


def find_piece(piece: CarriedPiece, block: Block, lane: int) -> Run:
    """Returns the run of a carried piece in a block that was read again."""
    index = int(np.searchsorted(block.positions, piece.position))
    there = index < len(block.positions) and int(block.positions[index]) == piece.position
    length = int(block.lengths[index]) if there else 0
    cut = length - piece.offset - piece.num_tokens
    if cut < 0:
        raise StateError.explained(
            f"lane {lane}: a document that the packer holds changed (dataset {piece.dataset})",
            got=f"{length} tokens at position {piece.position}",
            rule=f"the state holds tokens [{piece.offset}, {piece.offset + piece.num_tokens}) of it",
            cure="restore with the data and the tokenizer of the state",
        )
    begin = int(block.lengths[:index].sum()) + piece.offset
    return Run(piece.dataset, block, index, index + 1, piece.offset, cut, begin, piece.num_tokens)


def cut_run(run: Run, num_tokens: int) -> tuple[Run, Run]:
    """Returns a run of one piece as two, the first of `num_tokens`."""
    rest = run.num_tokens - num_tokens
    head = run._replace(cut=run.cut + rest, num_tokens=num_tokens)
    return head, run._replace(skip=run.skip + num_tokens, begin=run.begin + num_tokens, num_tokens=rest)


def address_of(run: Run) -> CarriedPiece:
    """Returns the address of a run of one piece."""
    return CarriedPiece(run.dataset, int(run.block.positions[run.first]), 0, run.skip, run.num_tokens)
