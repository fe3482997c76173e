"""Rows -> arrays: inputs, labels, positions and segment ids, and the digests that prove them equal.

Upstream: `lane.py`. Downstream: the trainer, by way of `loader.py`. Everything is made for a whole batch at a
time, so the cost of Python is paid per batch and per run of pieces, not per token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from zephon.lane import Row

if TYPE_CHECKING:
    import torch

IGNORE = -100
"""The label that a loss leaves out."""
PADDING = -1
"""The dataset of the piece that pads a row."""

Int64 = NDArray[np.int64]
RowDigest = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of a batch in row order, each column (P,) int64; padding is left out."""

    row: Int64
    """The row of the batch, in [0, B)."""
    dataset: Int64
    position: Int64
    """Where the document stands in its lane's order of the dataset."""
    offset: Int64
    """Tokens of the document before the piece."""
    length: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows of one optimizer step, B of them, each S tokens long."""

    step: int
    inputs: Int64
    """(B, S) token ids."""
    labels: Int64
    """(B, S) the next token of the row, or -100."""
    positions: Int64
    """(B, S) from 0 at the begin of every piece."""
    segment_ids: Int64
    """(B, S) pieces counted from 1 in every row; padding is 0."""
    lanes: Int64
    """(B,) the lane of each row."""
    rows: Int64
    """(B,) the number of each row in its lane."""
    datasets: tuple[str, ...]
    pieces: Pieces
    tokens: Int64
    """(num_datasets, B) tokens of each dataset in each row."""
    extras: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    """Later arrays by name, (B, ...); part of the digest."""

    @property
    def tokens_by_dataset(self) -> dict[str, Int64]:
        """Returns, for each dataset, the tokens of it in each row, (B,)."""
        return dict(zip(self.datasets, self.tokens, strict=True))

    def torch(self) -> dict[str, torch.Tensor]:
        """Returns inputs, labels, positions and segment_ids as int64 tensors that share the arrays' memory."""
        from torch import from_numpy

        names = ("inputs", "labels", "positions", "segment_ids")
        return {name: from_numpy(getattr(self, name)) for name in names}


def digest(batch: Batch) -> list[RowDigest]:
    """Returns (lane, row, SHA-256 as hex) for each row of the batch.

    A row's digest is over inputs, labels, positions and segment_ids, each (S,) little-endian int32, then over
    every extra in order of name: name, dtype, shape, bytes. Cost: about 20 us for 2,048 tokens.
    """
    arrays = (batch.inputs, batch.labels, batch.positions, batch.segment_ids)
    columns = np.stack(arrays, axis=1).astype("<i4")  # (B, 4, S)
    found = []
    for i, (lane, row) in enumerate(zip(batch.lanes.tolist(), batch.rows.tolist(), strict=True)):
        sha = hashlib.sha256(columns[i].data)
        for name in sorted(batch.extras):
            extra = np.ascontiguousarray(batch.extras[name][i])
            extra = extra.astype(extra.dtype.newbyteorder("<"), copy=False)
            sha.update(f"{name}|{extra.dtype.str}|{extra.shape}|".encode() + extra.tobytes())
        found.append((lane, row, sha.hexdigest()))
    return found


def step_digest(rows: Iterable[RowDigest]) -> str:
    """Returns the SHA-256, as hex, over the digests of a step's rows (raw bytes) in (lane, row) order."""
    ordered = sorted(rows)
    if len({(lane, row) for lane, row, _ in ordered}) != len(ordered):
        raise ValueError("`rows` must hold every (lane, row) once, got one twice")
    return hashlib.sha256(b"".join(bytes.fromhex(value) for _, _, value in ordered)).hexdigest()


def new_array(shape: tuple[int, ...]) -> Int64:
    """Returns an uninitialised int64 array in ordinary memory."""
    return np.empty(shape, dtype=np.int64)


def new_pinned_array(shape: tuple[int, ...]) -> Int64:
    """Returns an uninitialised int64 array in page-locked memory, from which a GPU copies without waiting."""
    import torch

    pinned: Int64 = torch.empty(shape, dtype=torch.int64, pin_memory=True).numpy()
    return pinned


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """What all batches of a loader share."""

    seq_len: int
    datasets: tuple[str, ...]
    mask_document_ends: bool
    pad_id: int
    new_array: Callable[[tuple[int, ...]], Int64] = new_array


@dataclass(frozen=True, slots=True)
class _Columns:
    """The runs of a batch and their pieces, padding included, flattened."""

    run_row: Int64
    run_dataset: Int64
    piece_run: Int64
    position: Int64
    offset: Int64
    length: Int64


def assemble(rows: Sequence[Row], step: int, plan: BatchPlan) -> Batch:
    """Returns the batch of `rows`, in that order."""
    num_rows, seq_len = len(rows), plan.seq_len
    arrays = plan.new_array((4, num_rows, seq_len))
    inputs, labels, positions, segment_ids = arrays
    columns = _gather(rows, inputs.reshape(-1), plan)
    ends = np.cumsum(columns.length)
    starts = ends - columns.length
    piece_row = columns.run_row[columns.piece_run]
    padding = columns.run_dataset[columns.piece_run] == PADDING

    flat = positions.reshape(-1)
    np.subtract(np.arange(flat.size), np.repeat(starts, columns.length), out=flat)
    first_piece = np.searchsorted(piece_row, np.arange(num_rows))
    number = np.arange(1, len(ends) + 1) - first_piece[piece_row]
    number[padding] = 0
    segment_ids.reshape(-1)[:] = np.repeat(number, columns.length)
    labels[:, :-1] = inputs[:, 1:]
    labels[:, -1] = IGNORE
    if plan.mask_document_ends:
        labels.reshape(-1)[ends - 1] = IGNORE
    if padding.any():
        _mask_padding(arrays.reshape(4, -1), starts[padding], ends[padding])
    kept = ~padding
    tokens = np.zeros((len(plan.datasets), num_rows), dtype=np.int64)
    np.add.at(tokens, (columns.run_dataset[columns.piece_run][kept], piece_row[kept]), columns.length[kept])
    return Batch(
        step=step,
        inputs=inputs,
        labels=labels,
        positions=positions,
        segment_ids=segment_ids,
        lanes=np.array([row.lane for row in rows], dtype=np.int64),
        rows=np.array([row.index for row in rows], dtype=np.int64),
        datasets=plan.datasets,
        pieces=Pieces(
            piece_row[kept],
            columns.run_dataset[columns.piece_run][kept],
            columns.position[kept],
            columns.offset[kept],
            columns.length[kept],
        ),
        tokens=tokens,
    )


def _mask_padding(flat: Int64, starts: Int64, ends: Int64) -> None:
    """Masks labels and positions of the paddings [start, end), and the label that would predict padding."""
    _, labels, positions, _ = flat
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        labels[max(0, start - 1) : end] = IGNORE
        positions[start:end] = 0


def _gather(rows: Sequence[Row], flat: Int64, plan: BatchPlan) -> _Columns:
    """Copies the tokens of all runs into `flat` and returns their columns."""
    lengths: list[Int64] = []
    positions: list[Int64] = []
    runs: list[tuple[int, int, int, int, int]] = []  # row, dataset, pieces, skip, cut
    pad = np.array([0], dtype=np.int64)
    at = 0
    for i, row in enumerate(rows):
        for dataset, block, first, last, skip, cut, begin, num_tokens in row.runs:
            flat[at : at + num_tokens] = block.tokens[begin : begin + num_tokens]
            at += num_tokens
            lengths.append(block.lengths[first:last])
            positions.append(block.positions[first:last])
            runs.append((i, dataset, last - first, skip, cut))
        end = (i + 1) * plan.seq_len
        if at > end:
            raise ValueError(f"a packer gave a row of {at - end + plan.seq_len} tokens; a row has at most {plan.seq_len}")
        if at < end:
            flat[at:end] = plan.pad_id
            lengths.append(np.array([end - at], dtype=np.int64))
            positions.append(pad)
            runs.append((i, PADDING, 1, 0, 0))
            at = end
    run_row, run_dataset, counts, skips, cuts = np.array(runs, dtype=np.int64).T
    length = np.concatenate(lengths)
    last_piece = np.cumsum(counts) - 1
    first_piece = last_piece + 1 - counts
    offset = np.zeros_like(length)
    offset[first_piece] = skips
    length[first_piece] -= skips
    length[last_piece] -= cuts
    piece_run = np.repeat(np.arange(len(counts)), counts)
    return _Columns(run_row, run_dataset, piece_run, np.concatenate(positions), offset, length)
