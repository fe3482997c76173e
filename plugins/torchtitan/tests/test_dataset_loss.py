"""The loss of each dataset: exact, beside the training, without a trace in it; or refused with the cure."""

from __future__ import annotations

import math
import warnings
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader, load
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torchtitan.components.loss import CrossEntropyLoss

from plugins.torchtitan.tests.corpus import STEPS, Corpus
from plugins.torchtitan.tests.fixtures import Titan
from plugins.torchtitan.tests.logged_run import LoggedRun
from plugins.torchtitan.tests.ranks import Job
from zephon import Batch
from zephon_torchtitan import dataset_loss
from zephon_torchtitan.dataset_loss import DatasetLosses, ObservedLoss, datasets_of, why_unseen

NAMES = ("short", "long")
PLAIN = ("--config", "plain")
EVERY = ("--dataloader.dataset-loss-every", "3")
FULL = ("--checkpoint.no-last-save-model-only",)


@pytest.fixture(scope="module")
def batches(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> list[Batch]:
    """Returns the first batches of the corpus."""
    run = LoggedRun(corpus=corpus, folder=tmp_path_factory.mktemp("batches"), dp_world_size=1)
    with run.read_recipe().loader(executor="inline", micro_batch_size=4) as loader:
        return list(islice(loader, 6))


def test_every_token_is_of_the_dataset_that_its_piece_is_of(batches: list[Batch]) -> None:
    for batch in batches:
        found = datasets_of(batch)
        expected = np.full_like(found, -1)
        for row in range(len(found)):
            place = 0
            for piece in np.flatnonzero(batch.pieces.row == row):
                length = batch.pieces.length[piece]
                expected[row, place : place + length] = batch.pieces.dataset[piece]
                place += length
        assert np.array_equal(found, expected)
        for dataset in range(len(NAMES)):
            assert np.array_equal((found == dataset).sum(axis=1), batch.tokens[dataset])


@pytest.mark.parametrize("numbers", [1 << 25, 1, 1000], ids=["whole", "token_by_token", "parts"])
def test_sums_are_those_of_each_token(
    batches: list[Batch], numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_loss, "PART_NUMBERS", numbers)
    losses = DatasetLosses(len(NAMES), torch.device("cpu"))
    expected = np.zeros((2, len(NAMES)))
    generator = torch.Generator().manual_seed(5)
    for batch in batches:
        labels = batch.torch()["labels"]
        logits = torch.randn((*labels.shape, 320), generator=generator, requires_grad=True)
        losses.expect(batch)
        losses.add(logits, labels)
        logs = torch.log_softmax(logits.detach(), dim=-1)
        for row, place in np.argwhere(batch.labels != -100).tolist():
            dataset = datasets_of(batch)[row, place]
            expected[:, dataset] -= logs[row, place, labels[row, place]].item(), -1
    assert losses.take() == pytest.approx(expected, rel=1e-6)
    assert not losses.take().any()


def test_only_what_is_expected_is_looked_at(batches: list[Batch]) -> None:
    losses = DatasetLosses(len(NAMES), torch.device("cpu"))
    observed = ObservedLoss(lambda pred, labels, total, positions: (pred.sum() / total, {}), losses)
    labels = batches[0].torch()["labels"]
    logits = torch.ones((*labels.shape, 320))
    assert observed(logits, labels, 2, positions=None)[0] == logits.sum() / 2
    assert not losses.take().any()
    losses.expect(batches[0])
    observed(logits, labels, 2, positions=None)
    sums, counts = losses.take()
    assert sums == pytest.approx(counts * math.log(320))
    assert counts.sum() == (labels != -100).sum()


@pytest.fixture(scope="module")
def measured(titan: Titan, seeded: list[str]) -> Job:
    """Returns a run of one rank of which every third step is measured."""
    return titan.run(1, "measured", *PLAIN, *seeded, *FULL, *EVERY).ok()


def test_the_mean_over_datasets_is_the_loss_of_the_step(measured: Job, batches: list[Batch]) -> None:
    by_name = [measured.scalars[f"data/loss/{name}"] for name in NAMES]
    assert [list(column) for column in by_name] == [[3, 6]] * 2
    batch = batches[4]  # the first half of the third step; and the second
    labels = sum(_labels(half) for half in (batch, batches[5]))
    mean = sum(loss[3] * count for loss, count in zip(by_name, labels, strict=True)) / labels.sum()
    assert mean == pytest.approx(measured.losses[3], rel=1e-6)


def _labels(batch: Batch) -> np.ndarray:
    """Returns how many labels of each dataset count."""
    return np.bincount(datasets_of(batch)[batch.labels != -100], minlength=len(NAMES))


def test_a_measure_leaves_no_trace_in_the_training(titan: Titan, seeded: list[str], measured: Job) -> None:
    without = titan.run(1, "not_measured", *PLAIN, *seeded, *FULL).ok()
    assert without.losses == measured.losses
    assert without.digests == measured.digests
    assert not [name for name in without.scalars if name.startswith("data/loss/")]
    first, second = (read_checkpoint(job.dump) for job in (without, measured))
    assert first.keys() == second.keys()
    assert any(name.startswith("optimizer.") for name in first)
    assert all(torch.equal(first[name], second[name]) for name in first)


def read_checkpoint(dump: Path) -> dict[str, torch.Tensor]:
    """Returns all tensors of the last checkpoint, by name."""
    reader = FileSystemReader(dump / "checkpoint" / f"step-{STEPS}")
    found = reader.read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(meta.size, dtype=meta.properties.dtype)
        for name, meta in found.items()
        if isinstance(meta, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of reading alone, as is meant
        load(tensors, storage_reader=reader, no_dist=True)
    return tensors


@pytest.mark.parametrize(
    "arguments",
    [
        ("2",),
        pytest.param(("2", "--parallelism.tensor-parallel-degree", "2"), marks=pytest.mark.full),
        pytest.param(("4", "--parallelism.tensor-parallel-degree", "2"), marks=pytest.mark.full),
    ],
    ids=["data", "tensors", "both"],
)
def test_losses_are_those_of_all_ranks(
    titan: Titan, seeded: list[str], measured: Job, arguments: tuple[str, ...]
) -> None:
    ranks, *parallel = arguments
    job = titan.run(int(ranks), f"of_all_{len(parallel)}_{ranks}", *PLAIN, *seeded, *EVERY, *parallel).ok()
    for name in NAMES:
        losses = job.scalars[f"data/loss/{name}"]
        assert losses == pytest.approx(measured.scalars[f"data/loss/{name}"], abs=1e-4)


def test_a_loss_without_logits_is_told_at_launch_and_not_estimated(titan: Titan) -> None:
    job = titan.run(1, "chunked", *EVERY, "--training.steps", "3").ok()
    assert "the losses of datasets are not measured: the loss is ChunkedLossWrapper" in job.log
    assert "set `config.loss = CrossEntropyLoss.Config()`" in job.log
    assert not [name for name in job.scalars if name.startswith("data/loss/")]


@pytest.mark.parametrize(
    ("changes", "cure"),
    [
        ({}, ""),
        ({"loss": SimpleNamespace()}, "config.loss = CrossEntropyLoss.Config()"),
        ({"pipeline_parallel_degree": 2}, "--parallelism.pipeline-parallel-degree 1"),
        ({"context_parallel_degree": 2}, "--parallelism.context-parallel-degree 1"),
        ({"spmd_backend": "full_dtensor"}, "--parallelism.spmd-backend partial_dtensor"),
        ({"tensor_parallel_degree": 2}, "--parallelism.spmd-backend partial_dtensor"),
        ({"tensor_parallel_degree": 2, "spmd_backend": "partial_dtensor"}, ""),
        ({"disable_cuda_graphs": False}, "--training.disable-cuda-graphs"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_measured_has_a_cure(changes: dict[str, object], cure: str) -> None:
    values = {
        "pipeline_parallel_degree": 1,
        "context_parallel_degree": 1,
        "tensor_parallel_degree": 1,
        "spmd_backend": "spmd_types",
        "disable_cuda_graphs": True,
        "loss": CrossEntropyLoss.Config(),
    } | changes
    part = SimpleNamespace(**values)
    config = SimpleNamespace(loss=values["loss"], parallelism=part, training=part)
    why = why_unseen(config)
    assert bool(why) == bool(cure)
    assert why.endswith(f"set {cure}" if "config.loss" not in cure else f"set `{cure}`") or not cure
