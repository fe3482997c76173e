"""The data's numbers in TorchTitan's own logger."""

from __future__ import annotations

import pytest

from plugins.torchtitan.tests.corpus import GLOBAL_BATCH_SIZE, LONG, SEQ_LEN, SHORT, STEPS
from plugins.torchtitan.tests.fixtures import Titan
from plugins.torchtitan.tests.ranks import Job

TOKENS = GLOBAL_BATCH_SIZE * SEQ_LEN
NAMES = ("short", "long")


@pytest.fixture(scope="module")
def job(titan: Titan) -> Job:
    """Returns a run of two ranks."""
    return titan.run(2, "metrics").ok()


def test_both_numbers_of_a_step(job: Job) -> None:
    assert job.scalars["data/step"] == {step: step - 1 for step in range(1, STEPS + 1)}
    assert job.scalars["data/trainer_step"] == {step: step for step in range(1, STEPS + 1)}
    assert job.scalars["data/phase"] == {step: int(step > 5) for step in range(1, STEPS + 1)}


def test_tokens_are_those_of_all_ranks(job: Job) -> None:
    tokens = [job.scalars[f"data/tokens/{name}"] for name in NAMES]
    for step in range(1, STEPS + 1):
        assert sum(column[step] for column in tokens) == step * TOKENS
    assert all(0 < column[1] < column[STEPS] for column in tokens)


def test_shares_are_those_of_the_steps_since_the_last_look(job: Job) -> None:
    tokens = {name: job.scalars[f"data/tokens/{name}"] for name in NAMES}
    for step in range(1, STEPS + 1):
        planned = {"short": 0.75, "long": 0.25} if step <= 5 else {"short": 0.25, "long": 0.75}
        for name in NAMES:
            drawn = tokens[name][step] - tokens[name].get(step - 1, 0.0)
            assert job.scalars[f"data/share/{name}"][step] == pytest.approx(drawn / TOKENS, abs=1e-6)
            assert job.scalars[f"data/planned_share/{name}"][step] == pytest.approx(planned[name], abs=1e-6)


def test_epochs_are_the_part_of_a_dataset_that_is_read(job: Job) -> None:
    for name, texts in (("short", SHORT), ("long", LONG)):
        epochs, tokens = (job.scalars[f"data/{what}/{name}"] for what in ("epochs", "tokens"))
        assert list(epochs.values()) == sorted(epochs.values())
        part = tokens[STEPS] / sum(len(text) + 1 for text in texts)  # and </s>
        assert (
            part - 8 / len(texts) < epochs[STEPS] <= part + 1 / len(texts)
        )  # in each lane one is not read to its end


def test_waits_are_seconds(job: Job) -> None:
    slowest, mean = job.scalars["data/wait(s)"], job.scalars["data/wait_mean(s)"]
    assert all(0 < mean[step] <= slowest[step] * 1.001 < 60 for step in range(1, STEPS + 1))


def test_a_look_every_third_step_covers_the_steps_between(titan: Titan, job: Job) -> None:
    third = titan.run(1, "metrics_third", "--metrics.log-freq", "3").ok()
    assert list(third.scalars["data/step"]) == [1, 3, 6]
    assert third.scalars["data/tokens/long"][6] == job.scalars["data/tokens/long"][6]
    drawn = third.scalars["data/tokens/long"][6] - third.scalars["data/tokens/long"][3]
    assert third.scalars["data/share/long"][6] == pytest.approx(drawn / (3 * TOKENS), abs=1e-6)
    planned = (0.25 + 0.25 + 0.75) / 3
    assert third.scalars["data/planned_share/long"][6] == pytest.approx(planned, abs=1e-6)
