"""The loss of each dataset, measured beside the training at the steps that ask for it.

Upstream: TorchTitan's loss component, which is called as before, and the batches of the loader. Downstream:
`trainer.py`, which logs it and hands it to the curriculum. Under no_grad, on the logits that the loss got: no
loss, gradient or random number of the training is touched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import spmd_types as spmd
import torch
from numpy.typing import NDArray
from torch import distributed
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional
from torchtitan.components.loss import IGNORE_INDEX, CrossEntropyLoss, _LossParallelCrossEntropy
from torchtitan.distributed import ParallelDims

from zephon import Batch
from zephon_torchtitan.rank import RankLoader

PART_NUMBERS = 1 << 25
"""Logits that are worked on together: 128 MiB in 32 bits, and as much for their logarithms."""


def why_unseen(config: Any) -> str:
    """Returns why losses of datasets cannot be measured with a `Trainer.Config`, and the cure; else ""."""
    loss, parallel = config.loss, config.parallelism
    if type(loss) is not CrossEntropyLoss.Config:
        kind = type(loss).__qualname__.removesuffix(".Config")
        return (
            f"the loss is {kind}, and only CrossEntropyLoss is given the logits of whole rows, not one "
            "that is chunked, fused or another's; set `config.loss = CrossEntropyLoss.Config()`"
        )
    if parallel.pipeline_parallel_degree > 1:
        return "only the last stage of a pipeline sees logits; set --parallelism.pipeline-parallel-degree 1"
    if parallel.context_parallel_degree > 1:
        return "ranks see parts of rows; set --parallelism.context-parallel-degree 1"
    if parallel.spmd_backend == "full_dtensor" or (
        parallel.tensor_parallel_degree > 1 and parallel.spmd_backend != "partial_dtensor"
    ):
        return (
            f"logits are not read as {parallel.spmd_backend} has them; "
            "set --parallelism.spmd-backend partial_dtensor"
        )
    if not config.training.disable_cuda_graphs:
        return "a CUDA graph calls no Python; set --training.disable-cuda-graphs"
    return ""


class DatasetLosses:
    """Sums of the loss by dataset, over the micro-batches of one step."""

    def __init__(self, num_datasets: int, device: torch.device) -> None:
        self._num_datasets, self._device = num_datasets, device
        self._sums = torch.zeros((2, num_datasets), dtype=torch.float64, device=device)
        self._datasets: torch.Tensor | None = None

    def expect(self, batch: Batch | None) -> None:
        """Says of which batch the next logits are; None: they are not looked at."""
        self._datasets = None if batch is None else torch.from_numpy(datasets_of(batch)).to(self._device)

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Adds the loss of every label of the batch that is expected; collective over tensor parallelism."""
        if self._datasets is None:
            return
        with torch.no_grad(), spmd.no_typecheck():
            labels, datasets = labels.flatten(), self._datasets.flatten()
            local, parallel = _local(logits.detach())
            step = max(1, PART_NUMBERS // local.shape[-1])
            for first in range(0, len(labels), step):
                part = slice(first, first + step)
                losses = parallel(local[part].float(), labels[part])
                counts = labels[part] != IGNORE_INDEX
                values = torch.stack([losses * counts, counts]).double()
                self._sums.index_add_(1, datasets[part].clamp(min=0), values)

    def take(self) -> NDArray[np.float64]:
        """Returns (2, num_datasets) the sum of losses and the labels, and begins again at zero."""
        found: NDArray[np.float64] = self._sums.cpu().numpy().copy()
        self._sums.zero_()
        return found


class StepLosses:
    """The losses of the steps that ask for it, over all ranks."""

    def __init__(
        self, rank: RankLoader, dims: ParallelDims, device: torch.device, every: Sequence[int]
    ) -> None:
        """`every`: a step is measured when a whole multiple of one of these is complete with it."""
        self._rank, self._every, self._device = rank, tuple(every), device
        self._group = dims.get_mesh("batch").get_group() if dims.dp_enabled else None
        self.sums = DatasetLosses(len(rank.recipe.names), device)

    def begin(self, trainer_step: int) -> bool:
        """Returns whether the step is measured after which the trainer stands at `trainer_step`."""
        complete = trainer_step - self._rank.began_at
        if any(complete % number == 0 for number in self._every):
            self._rank.kept = deque()
        return self._rank.kept is not None

    def next_batch(self) -> None:
        """Says that the logits of the next batch of the step come."""
        kept = self._rank.kept
        self.sums.expect(kept.popleft() if kept else None)

    def end(self) -> dict[str, float]:
        """Returns the mean loss of each dataset, by metric, and hands them to the curriculum. Collective."""
        rank, names = self._rank, self._rank.recipe.names
        rank.kept = None
        self.sums.expect(None)
        mine = np.concatenate([self.sums.take().reshape(-1), rank.loader.progress().tokens])
        sums, labels, tokens = self._total(mine).reshape(3, len(names))
        losses = {name: float(sums[i] / labels[i]) if labels[i] else None for i, name in enumerate(names)}
        rank.observe(losses, {name: int(tokens[i]) for i, name in enumerate(names)})
        return {f"data/loss/{name}": loss for name, loss in losses.items() if loss is not None}

    def _total(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the sum over data-parallel ranks; whole numbers stay whole up to 2^53."""
        if self._group is None:
            return values
        tensor = torch.from_numpy(values).to(self._device)
        distributed.all_reduce(tensor, group=self._group)
        found: NDArray[np.float64] = tensor.cpu().numpy()
        return found


@dataclass(slots=True)
class ObservedLoss:
    """TorchTitan's loss component with an ear: what it returns is what it returned before."""

    loss: Callable[..., Any]
    losses: DatasetLosses

    def __call__(self, pred: torch.Tensor, labels: torch.Tensor, *values: Any, **named: Any) -> Any:
        """Returns the loss; the logits are looked at after it."""
        found = self.loss(pred, labels, *values, **named)
        self.losses.add(pred, labels)
        return found


Losses = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(tokens, vocabulary) logits, (tokens,) labels -> (tokens,) losses, anything where no label counts."""


def _local(logits: torch.Tensor) -> tuple[torch.Tensor, Losses]:
    """Returns this rank's logits, (tokens, its part of the vocabulary), and what makes losses of them."""
    if not isinstance(logits, DTensor):
        return logits.flatten(0, 1), _cross_entropy
    mesh, vocabulary = logits.device_mesh, logits.shape[-1]
    if logits.placements == (Shard(logits.ndim - 1),):
        group = mesh.get_group("tp")
        return logits.to_local().flatten(0, 1), lambda part, labels: _LossParallelCrossEntropy.apply(
            part, labels, group, vocabulary, "none"
        )
    if all(isinstance(placement, Replicate) for placement in logits.placements):
        return logits.to_local().flatten(0, 1), _cross_entropy
    raise ValueError(f"the losses of datasets cannot be measured on logits placed as {logits.placements}")


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORE_INDEX)


def datasets_of(batch: Batch) -> NDArray[np.int64]:
    """Returns (rows, seq_len) the dataset of every input token; that of padding is -1.

    Where a label is not masked at the end of a document, it counts for the dataset that ends there.
    """
    pieces = batch.pieces
    found = np.full(batch.inputs.shape, -1, dtype=np.int64)
    ends = pieces.length.cumsum()
    starts = ends - pieces.length
    first = np.searchsorted(pieces.row, pieces.row)  # of the row: rows ascend, and begin with a piece
    places = pieces.row * batch.inputs.shape[1] + starts - starts[first]
    inside = np.arange(int(pieces.length.sum())) - np.repeat(starts, pieces.length)
    found.reshape(-1)[np.repeat(places, pieces.length) + inside] = np.repeat(pieces.dataset, pieces.length)
    return found
