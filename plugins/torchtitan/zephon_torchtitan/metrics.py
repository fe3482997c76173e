"""What the data did since the last look, as numbers for TorchTitan's logger.

Upstream: the loader of this rank. Downstream: `ZephonTrainer.train_step`, where TorchTitan itself logs. Two
all-reduces of a few numbers at each look, none between.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import distributed
from torchtitan.distributed import ParallelDims

from zephon import PARTS
from zephon_torchtitan.dataloader import ZephonDataLoader


class DataMetrics:
    """Shares, tokens, epochs and waits over all data-parallel ranks."""

    def __init__(self, data: ZephonDataLoader, dims: ParallelDims, device: torch.device) -> None:
        self._rank = data.rank
        self._group = dims.get_mesh("batch").get_group() if dims.dp_enabled else None
        self._device = device

    def collect(self) -> dict[str, float]:
        """Returns the metrics by name and begins the next interval; a collective call of the data ranks."""
        rank, loader = self._rank, self._rank.loader
        progress = loader.progress()
        columns = [rank.tokens, progress.tokens, progress.epochs * progress.num_lanes]
        sums = self._reduce(np.concatenate([*columns, [progress.num_lanes, rank.wait_s]]), "sum")
        slowest = float(self._reduce(np.array([rank.wait_s]), "max")[0])
        count = len(rank.recipe.names)
        drawn, total, epochs = (sums[i * count : (i + 1) * count] for i in range(3))
        num_lanes, waited = sums[-2:]
        first = progress.num_steps - 1 if rank.since is None else rank.since
        steps = range(first, progress.num_steps)
        shares = np.mean([loader.table.at(step) for step in steps], axis=0) / PARTS
        found: dict[str, float] = {
            "data/step": progress.num_steps - 1,
            "data/trainer_step": rank.trainer_step,
            "data/phase": loader.table.phase(progress.num_steps - 1),
            "data/wait(s)": slowest / len(steps),
            "data/wait_mean(s)": waited / self._num_ranks() / len(steps),
        }
        for i, name in enumerate(rank.recipe.names):
            found[f"data/planned_share/{name}"] = float(shares[i])
            found[f"data/share/{name}"] = float(drawn[i] / max(1.0, drawn.sum()))
            found[f"data/tokens/{name}"] = float(total[i])
            found[f"data/epochs/{name}"] = float(epochs[i] / num_lanes)
        rank.look()
        return found

    def _num_ranks(self) -> int:
        return 1 if self._group is None else distributed.get_world_size(self._group)

    def _reduce(self, values: np.ndarray, how: str) -> np.ndarray:
        if self._group is None:
            return values
        tensor = torch.from_numpy(values.astype(np.float64)).to(self._device)
        op = distributed.ReduceOp.SUM if how == "sum" else distributed.ReduceOp.MAX
        distributed.all_reduce(tensor, op=op, group=self._group)
        return tensor.cpu().numpy()
