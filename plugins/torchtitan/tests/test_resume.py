"""A run that is broken off and goes on elsewhere: the data and the losses are those of the unbroken run.

The mixture changes at step 5, between the checkpoints, so a resume also crosses the change.
"""

from __future__ import annotations

import shutil

import pytest

from plugins.torchtitan.tests.corpus import STEPS
from plugins.torchtitan.tests.fixtures import Titan
from plugins.torchtitan.tests.ranks import Job

full = pytest.mark.full


@pytest.mark.parametrize(
    "chain",
    [
        ((1, 3), (4, 6), (2, STEPS)),
        pytest.param(((4, 3), (2, STEPS)), marks=full),
        pytest.param(((4, 3), (1, STEPS)), marks=full),
        pytest.param(((2, 3), (4, STEPS)), marks=full),
        pytest.param(((2, 3), (1, 4), (4, 5), (2, STEPS)), marks=full),
    ],
    ids=lambda chain: "-".join(f"{ranks}to{step}" for ranks, step in chain),
)
def test_a_chain_of_resumes_is_the_unbroken_run(
    titan: Titan, seeded: list[str], unbroken: Job, chain: tuple[tuple[int, int], ...]
) -> None:
    losses: dict[int, float] = {}
    name = "chain_" + "_".join(str(ranks) for ranks, _ in chain)
    for ranks, last_step in chain:
        job = titan.run(ranks, name, *seeded, "--training.steps", str(last_step)).ok()
        assert list(job.losses) == list(range(len(losses) + 1, last_step + 1))
        losses |= job.losses
    assert job.digests == unbroken.digests
    assert losses == pytest.approx(unbroken.losses, abs=1e-4)


@full
def test_a_checkpoint_that_is_saved_behind_the_training(
    titan: Titan, seeded: list[str], unbroken: Job
) -> None:
    mode = (*seeded, "--checkpoint.async-mode", "async", "--checkpoint.interval", "3")
    titan.run(2, "async", *mode, "--training.steps", "5").ok()
    shutil.rmtree(titan.folder / "async" / "checkpoint" / "step-5")
    job = titan.run(1, "async", *mode).ok()
    assert list(job.losses) == [4, 5, 6, 7, 8]
    assert job.digests == unbroken.digests


def test_a_replay_stops_at_the_first_batch_that_is_another(
    titan: Titan, seeded: list[str], unbroken: Job
) -> None:
    replay = ("--dataloader.replay", str(unbroken.dump / "data"))
    job = titan.run(2, "replayed", *seeded, *replay).ok()
    assert job.losses == pytest.approx(unbroken.losses, abs=1e-4)
    other = ("--dataloader.set", "seed=8")
    job = titan.run(2, "not_replayed", *seeded, *replay, *other, grace_s=1)
    assert 0 not in job.codes
    assert not job.losses
    assert str(unbroken.dump / "data") in job.log


@pytest.mark.parametrize(
    ("before", "after", "killed"),
    [(2, 1, 1), pytest.param(4, 2, 2, marks=full), pytest.param(4, 1, 0, marks=full)],
)
def test_a_rank_that_is_killed_costs_only_the_steps_since_the_checkpoint(
    titan: Titan, seeded: list[str], unbroken: Job, before: int, after: int, killed: int
) -> None:
    name, saving = f"killed_{before}_{after}", ("--checkpoint.interval", "3")
    job = titan.run(before, name, *seeded, *saving, kill=(killed, 5), grace_s=2)
    assert job.codes[killed] == -9
    assert 0 not in job.codes
    assert max(job.digests) == 4  # of the step that was never finished the rows are in the log
    job = titan.run(after, name, *seeded, *saving).ok()
    assert job.digests == unbroken.digests
    assert list(job.losses) == [4, 5, 6, 7, 8]
    assert job.losses == pytest.approx({s: unbroken.losses[s] for s in job.losses}, abs=1e-4)
