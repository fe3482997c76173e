"""Rows -> arrays: inputs, labels, positions and segment ids, and the digests that prove them equal.

Upstream: `lane.py`. Downstream: the trainer, by way of `loader.py`. Everything is made for a whole batch at a
time, so the cost of Python is paid per batch and per run of pieces, not per token.
"""

from __future__ import annotations

import functools
import hashlib
import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zephon.lane import Row
from zephon.stream import new_tuple

if TYPE_CHECKING:
    import torch

IGNORE = -100
"""The label that a loss leaves out."""
PADDING = -1
"""The dataset of the piece that pads a row."""

GROUP_TOKENS = 1 << 16
"""Tokens that are worked on together."""
MAX_FREE = 4
"""Buffers that a pool keeps for later."""
MAX_LENT = 32
"""Buffers that a pool hopes to get back; those lent before them go with their last holder."""

Int64 = NDArray[np.int64]
RowDigest = tuple[int, int, str]


@dataclass(frozen=True, slots=True, eq=False)
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


class _Drawn(NamedTuple):
    """A run of pieces, or the padding of a row, as it stands in a batch; keeps no tokens alive."""

    row: int
    dataset: int
    num_tokens: int
    positions: Int64
    lengths: Int64
    """(n,) of the whole documents."""
    skip: int
    cut: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
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
    tokens: Int64
    """(num_datasets, B) tokens of each dataset in each row."""
    drawn: Sequence[_Drawn] = ()
    extras: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    """Later arrays by name, (B, ...); part of the digest."""
    pinned: torch.Tensor | None = None
    """The (4, B, S) page-locked tensor of which the four arrays are views."""

    def __repr__(self) -> str:
        rows, seq_len = self.inputs.shape
        counts = zip(self.datasets, self.tokens.sum(axis=1).tolist(), strict=True)
        tokens = ", ".join(f"{name} {count:,}" for name, count in counts)
        return f"Batch of step {self.step}: {rows} rows of {seq_len:,} tokens; {tokens}"

    @property
    def pieces(self) -> Pieces:
        """Returns the pieces of all rows, made when asked for."""
        counts = np.array([len(run.lengths) for run in self.drawn], dtype=np.int64)
        offset = np.zeros(int(counts.sum()), dtype=np.int64)
        offset[np.cumsum(counts) - counts] = [run.skip for run in self.drawn]
        return Pieces(
            row=np.repeat(np.array([run.row for run in self.drawn], dtype=np.int64), counts),
            dataset=np.repeat(np.array([run.dataset for run in self.drawn], dtype=np.int64), counts),
            position=np.concatenate([run.positions for run in self.drawn] or [_NONE]),
            offset=offset,
            length=_lengths(self.drawn),
        )

    @property
    def tokens_by_dataset(self) -> dict[str, Int64]:
        """Returns, for each dataset, the tokens of it in each row, (B,)."""
        return dict(zip(self.datasets, self.tokens, strict=True))

    def torch(self) -> dict[str, torch.Tensor]:
        """Returns inputs, labels, positions and segment_ids as int64 tensors over the same memory.

        With `pin_memory` they are views of one allocation of torch, which is used again only when the copies
        begun with `non_blocking=True` have ended; a tensor made of the numpy arrays lacks that protection.
        """
        from torch import from_numpy

        names = ("inputs", "labels", "positions", "segment_ids")
        if self.pinned is not None:
            return dict(zip(names, self.pinned.unbind(0), strict=True))
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


class BufferPool:
    """Hands out int64 arrays of any shape; those of the shape asked last are used again when nobody has them.

    Fresh memory costs a page fault for every 4 KiB. A buffer is free when the last array, view or tensor over
    it is gone, so a batch can be kept as long as one likes. Never for page-locked memory: a GPU may still
    copy from it then.

    For one thread; what it handed out may end in any other. No code runs at that end: a Ctrl-C that came
    during a `__del__` would be lost.
    """

    def __init__(self) -> None:
        self._free: list[Int64] = []
        self._lent: list[tuple[Int64, weakref.ref[_Lease]]] = []

    def __call__(self, shape: tuple[int, ...]) -> Int64:
        """Returns an uninitialised array."""
        self._take_back()
        size = math.prod(shape)
        buffer = self._free.pop() if self._free else None
        if buffer is None or buffer.size != size:
            buffer = np.empty(size, dtype=np.int64)
        lease = _Lease(buffer)
        self._lent.append((buffer, weakref.ref(lease)))
        return np.asarray(lease).reshape(shape)

    def _take_back(self) -> None:
        ended = [lease() is None for _, lease in self._lent]
        self._free += [buffer for (buffer, _), is_free in zip(self._lent, ended, strict=True) if is_free]
        lent = [lent for lent, is_free in zip(self._lent, ended, strict=True) if not is_free]
        self._lent, self._free = lent[-MAX_LENT:], self._free[-MAX_FREE:]


class _Lease:
    """The base of all arrays over one buffer; its end is the end of the last of them."""

    __slots__ = ("__array_interface__", "__weakref__", "_buffer")

    def __init__(self, buffer: Int64) -> None:
        self._buffer = buffer
        self.__array_interface__: dict[str, Any] = buffer.__array_interface__


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """What all batches of a loader share."""

    seq_len: int
    datasets: tuple[str, ...]
    mask_document_ends: bool
    pad_id: int
    new_array: Callable[[tuple[int, ...]], Int64] = field(default_factory=BufferPool)
    """Gives uninitialised memory for the arrays."""
    pin_memory: bool = False
    """Whether torch's page-locked memory is taken instead."""


def assemble(rows: Sequence[Row], step: int, plan: BatchPlan) -> Batch:
    """Returns the batch of `rows`, in that order.

    Works on some rows at a time, so that what is in between stays in the processor's cache.
    """
    num_rows = len(rows)
    shape = (4, num_rows, plan.seq_len)
    pinned = _new_pinned(shape) if plan.pin_memory else None
    arrays: Int64 = plan.new_array(shape) if pinned is None else pinned.numpy()
    tokens = np.zeros((len(plan.datasets), num_rows), dtype=np.int64)
    drawn: list[_Drawn] = []
    group = max(1, GROUP_TOKENS // plan.seq_len)
    for first in range(0, num_rows, group):
        last = min(first + group, num_rows)
        drawn += _fill(rows[first:last], first, arrays[:, first:last], plan)
    for run in drawn:
        tokens[run.dataset, run.row] += run.num_tokens
    return Batch(
        step=step,
        inputs=arrays[0],
        labels=arrays[1],
        positions=arrays[2],
        segment_ids=arrays[3],
        lanes=np.array([row.lane for row in rows], dtype=np.int64),
        rows=np.array([row.index for row in rows], dtype=np.int64),
        datasets=plan.datasets,
        tokens=tokens,
        drawn=drawn,
        pinned=pinned,
    )


def _new_pinned(shape: tuple[int, ...]) -> torch.Tensor:
    from torch import empty, int64

    return empty(shape, dtype=int64, pin_memory=True)


def _fill(rows: Sequence[Row], first_row: int, arrays: Int64, plan: BatchPlan) -> list[_Drawn]:
    """Fills `arrays`, (4, n, S), with the n rows, and returns their runs without the paddings."""
    inputs, labels, positions, segment_ids = (array.reshape(-1) for array in arrays)
    drawn = _copy_tokens(rows, first_row, inputs, plan)
    lengths = _lengths(drawn)
    ends = lengths.cumsum()
    np.subtract(_arange(len(inputs)), np.repeat(ends - lengths, lengths), out=positions)
    counts = [0] * len(rows)
    for run in drawn:
        counts[run.row - first_row] += len(run.lengths)
    numbers = np.concatenate([_arange(count + 1)[1:] for count in counts])
    segment_ids[:] = np.repeat(numbers, lengths)
    labels[:-1] = inputs[1:]
    labels[plan.seq_len - 1 :: plan.seq_len] = IGNORE
    if plan.mask_document_ends:
        labels[ends - 1] = IGNORE
    if not any(run.dataset == PADDING for run in drawn):
        return drawn
    for run in drawn:
        if run.dataset == PADDING:
            end = (run.row - first_row + 1) * plan.seq_len
            start = end - run.num_tokens
            labels[max(0, start - 1) : end] = IGNORE  # from the label that would predict padding
            positions[start:end] = 0
            segment_ids[start:end] = 0
    return [run for run in drawn if run.dataset != PADDING]


def _copy_tokens(rows: Sequence[Row], first_row: int, flat: Int64, plan: BatchPlan) -> list[_Drawn]:
    """Copies the tokens of all runs into `flat`, pads what they leave, and returns runs and paddings."""
    drawn: list[_Drawn] = []
    at = 0
    for i, row in enumerate(rows):
        end = (i + 1) * plan.seq_len
        for dataset, block, first, last, skip, cut, begin, num_tokens in row.runs:
            if at + num_tokens > end:
                got = sum(run.num_tokens for run in row.runs)
                raise ValueError(f"a packer gave a row of {got} tokens, over {plan.seq_len}")
            flat[at : at + num_tokens] = block.tokens[begin : begin + num_tokens]
            at += num_tokens
            positions, lengths = block.positions[first:last], block.lengths[first:last]
            fields = (first_row + i, dataset, num_tokens, positions, lengths, skip, cut)
            drawn.append(new_tuple(_Drawn, fields))
        if at < end:
            flat[at:end] = plan.pad_id
            length = np.array([end - at], dtype=np.int64)
            drawn.append(_Drawn(first_row + i, PADDING, end - at, _NONE, length, 0, 0))
            at = end
    return drawn


def _lengths(drawn: Sequence[_Drawn]) -> Int64:
    """Returns the tokens of every piece, (P,)."""
    lengths = np.concatenate([run.lengths for run in drawn] or [_NONE])
    at = 0
    for run in drawn:
        if run.skip:
            lengths[at] -= run.skip
        at += len(run.lengths)
        if run.cut:
            lengths[at - 1] -= run.cut
    return lengths


@functools.lru_cache(maxsize=256)
def _arange(size: int) -> Int64:
    """Returns the numbers [0, size), shared, not to be written to."""
    numbers = np.arange(size, dtype=np.int64)
    numbers.flags.writeable = False
    return numbers


_NONE = np.zeros(0, dtype=np.int64)
