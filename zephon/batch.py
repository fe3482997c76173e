"""Rows -> arrays: inputs, labels, positions and segment ids, and the digests that prove them equal.

Upstream: `lane.py`. Downstream: the trainer, by way of `loader.py`. Everything is made for a whole batch at a
time, so the cost of Python is paid per batch and per run of pieces, not per token.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from zephon.buffers import BufferPool
from zephon.lane import Row

if TYPE_CHECKING:
    import torch

IGNORE = -100
"""The label that a loss leaves out."""
PADDING = -1
"""The dataset of the piece that pads a row."""

GROUP_TOKENS = 1 << 14
"""Tokens that are worked on together."""

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
        """Returns inputs, labels, positions and segment_ids as int64 tensors over the same memory."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """What all batches of a loader share."""

    seq_len: int
    datasets: tuple[str, ...]
    mask_document_ends: bool
    pad_id: int
    new_array: Callable[[tuple[int, ...]], Int64] = field(default_factory=BufferPool)
    """Gives uninitialised memory for the arrays."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """The pieces of some rows, padding included; as `Pieces`."""

    row: Int64
    dataset: Int64
    position: Int64
    offset: Int64
    length: Int64


def assemble(rows: Sequence[Row], step: int, plan: BatchPlan) -> Batch:
    """Returns the batch of `rows`, in that order.

    Works on a few rows at a time, so that what is in between stays in the processor's cache.
    """
    num_rows = len(rows)
    arrays = plan.new_array((4, num_rows, plan.seq_len))
    group = max(1, GROUP_TOKENS // plan.seq_len)
    parts = [
        _fill(rows[first : first + group], first, arrays[:, first : first + group], plan)
        for first in range(0, num_rows, group)
    ]
    row, dataset, position, offset, length = (
        np.concatenate([getattr(part, name) for part in parts]) for name in _Columns.__dataclass_fields__
    )
    if (padding := dataset == PADDING).any():
        row, dataset, position, offset, length = (
            column[~padding] for column in (row, dataset, position, offset, length)
        )
    counts = np.bincount(dataset * num_rows + row, weights=length, minlength=len(plan.datasets) * num_rows)
    return Batch(
        step=step,
        inputs=arrays[0],
        labels=arrays[1],
        positions=arrays[2],
        segment_ids=arrays[3],
        lanes=np.array([row.lane for row in rows], dtype=np.int64),
        rows=np.array([row.index for row in rows], dtype=np.int64),
        datasets=plan.datasets,
        pieces=Pieces(row, dataset, position, offset, length),
        tokens=counts.astype(np.int64).reshape(len(plan.datasets), num_rows),  # exact: far below 2^53
    )


def _fill(rows: Sequence[Row], first_row: int, arrays: Int64, plan: BatchPlan) -> _Columns:
    """Fills `arrays`, (4, n, S), with the n rows, and returns their pieces."""
    inputs, labels, positions, segment_ids = arrays
    num_rows, seq_len = inputs.shape
    columns = _gather(rows, inputs.reshape(-1), plan)
    ends = np.cumsum(columns.length)
    starts = ends - columns.length
    np.subtract(_arange(num_rows * seq_len), np.repeat(starts, columns.length), out=positions.reshape(-1))
    number = _arange(len(ends) + 1)[1:] - np.searchsorted(columns.row, _arange(num_rows))[columns.row]
    padding = columns.dataset == PADDING
    number[padding] = 0
    segment_ids.reshape(-1)[:] = np.repeat(number, columns.length)
    labels[:, :-1] = inputs[:, 1:]
    labels[:, -1] = IGNORE
    if plan.mask_document_ends:
        labels.reshape(-1)[ends - 1] = IGNORE
    for start, end in zip(starts[padding].tolist(), ends[padding].tolist(), strict=True):
        labels.reshape(-1)[max(0, start - 1) : end] = IGNORE  # from the label that would predict padding
        positions.reshape(-1)[start:end] = 0
    np.add(columns.row, first_row, out=columns.row)
    return columns


@functools.lru_cache(maxsize=8)
def _arange(size: int) -> Int64:
    numbers = np.arange(size, dtype=np.int64)
    numbers.flags.writeable = False
    return numbers


def _gather(rows: Sequence[Row], flat: Int64, plan: BatchPlan) -> _Columns:
    """Copies the tokens of all runs into `flat` and returns their pieces."""
    lengths: list[Int64] = []
    positions: list[Int64] = []
    runs: list[tuple[int, int, int, int, int]] = []  # row, dataset, pieces, skip, cut
    at = 0
    for i, row in enumerate(rows):
        end = (i + 1) * plan.seq_len
        for dataset, block, first, last, skip, cut, begin, num_tokens in row.runs:
            if at + num_tokens > end:
                got = sum(run.num_tokens for run in row.runs)
                raise ValueError(f"a packer gave a row of {got} tokens, over {plan.seq_len}")
            flat[at : at + num_tokens] = block.tokens[begin : begin + num_tokens]
            at += num_tokens
            lengths.append(block.lengths[first:last])
            positions.append(block.positions[first:last])
            runs.append((i, dataset, last - first, skip, cut))
        if at < end:
            flat[at:end] = plan.pad_id
            lengths.append(np.array([end - at], dtype=np.int64))
            positions.append(_NO_POSITION)
            runs.append((i, PADDING, 1, 0, 0))
            at = end
    run_row, run_dataset, counts, skips, cuts = np.array(runs, dtype=np.int64).T
    length = np.concatenate(lengths)
    last_piece = np.cumsum(counts) - 1
    first_piece = last_piece + 1 - counts
    offset = np.zeros(len(length), dtype=np.int64)
    offset[first_piece] = skips
    length[first_piece] -= skips
    length[last_piece] -= cuts
    return _Columns(
        np.repeat(run_row, counts), np.repeat(run_dataset, counts), np.concatenate(positions), offset, length
    )


_NO_POSITION = np.zeros(1, dtype=np.int64)
