"""The same run on other ranks: digests of the data equal, losses equal to rounding."""

from __future__ import annotations

import pytest

from plugins.torchtitan.tests.corpus import STEPS
from plugins.torchtitan.tests.fixtures import Titan
from plugins.torchtitan.tests.ranks import Job

full = pytest.mark.full
REPLICATED = ("--parallelism.data-parallel-replicate-degree", "2")
TENSORS = ("--parallelism.tensor-parallel-degree", "2")


def check_equal(job: Job, unbroken: Job, first_step: int = 1) -> None:
    """Fails where the job's data or, from `first_step` on, its losses are not those of the unbroken run."""
    assert job.digests == unbroken.digests
    assert list(job.losses) == list(range(first_step, STEPS + 1))
    expected = {step: loss for step, loss in unbroken.losses.items() if step >= first_step}
    assert job.losses == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("world_size", "local", "arguments"),
    [
        (2, 2, ("--dataloader.executor", "threads", "--dataloader.prefetch", "2")),
        (4, 2, REPLICATED),
        pytest.param(2, 2, (), marks=full),
        pytest.param(2, 2, ("--dataloader.executor", "processes"), marks=full),
        pytest.param(2, 4, TENSORS, marks=full),
        pytest.param(1, 1, (), marks=full),
        pytest.param(1, 4, (), marks=full),
        pytest.param(2, 1, (), marks=full),
        pytest.param(2, 4, (), marks=full),
        pytest.param(2, 2, (*REPLICATED, "--parallelism.data-parallel-shard-degree", "1"), marks=full),
        pytest.param(4, 1, (), marks=full),
        pytest.param(4, 2, (), marks=full),
        pytest.param(4, 1, REPLICATED, marks=full),
    ],
)
def test_any_ranks_train_the_same_run(
    titan: Titan, seeded: list[str], unbroken: Job, world_size: int, local: int, arguments: tuple[str, ...]
) -> None:
    name = f"elastic_{world_size}_{local}_{'_'.join(arguments[-1:])}"
    size = ("--training.local-batch-size", str(local))
    job = titan.run(world_size, name, *seeded, *size, *arguments).ok()
    assert len(unbroken.digests) == STEPS
    check_equal(job, unbroken)
