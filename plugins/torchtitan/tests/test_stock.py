"""The loader in TorchTitan's own trainer, by an override and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plugins.torchtitan.tests.corpus import STEPS, write_jsonl
from plugins.torchtitan.tests.fixtures import Titan
from plugins.torchtitan.tests.ranks import Job, digests_of

STOCK = ("--module", "plugins.torchtitan.tests.tiny", "--config", "stock")


@pytest.fixture
def overriding(titan: Titan, tmp_path: Path) -> list[str]:
    """Returns the arguments of a stock config on a recipe that says what a stock trainer does not."""
    recipe = titan.corpus.write(tmp_path / "recipe.toml", top="global_batch_size = 8")
    fields = {"recipe": str(recipe), "executor": "inline", "run_folder": str(tmp_path / "data")}
    return [*STOCK, "--override.imports", f"zephon_torchtitan.override.dataloader={json.dumps(fields)}"]


def test_a_stock_trainer_trains_the_same_run(
    titan: Titan, seeded: list[str], unbroken: Job, overriding: list[str], tmp_path: Path
) -> None:
    job = titan.run_plain(2, tmp_path / "dump", *overriding, *seeded).ok()
    assert digests_of(tmp_path / "data") == unbroken.digests
    assert list(job.losses) == list(range(1, STEPS + 1))
    assert job.losses == pytest.approx(unbroken.losses, abs=1e-4)
    assert not any(name.startswith("data/") for name in job.scalars)


@pytest.mark.full
def test_its_checkpoints_are_elastic_too(
    titan: Titan, seeded: list[str], unbroken: Job, overriding: list[str], tmp_path: Path
) -> None:
    titan.run_plain(2, tmp_path / "dump", *overriding, *seeded, "--training.steps", "3").ok()
    job = titan.run_plain(1, tmp_path / "dump", *overriding, *seeded).ok()
    assert digests_of(tmp_path / "data") == unbroken.digests
    assert job.losses == pytest.approx(
        {step: unbroken.losses[step] for step in range(4, STEPS + 1)}, abs=1e-4
    )


@pytest.mark.full
def test_data_that_ends_ends_all_ranks_of_a_stock_trainer(titan: Titan, tmp_path: Path) -> None:
    texts = [f"word{i} " * (60 if i % 8 < 4 else 12) for i in range(43)]  # the first ranks have more
    recipe = titan.corpus.write(
        tmp_path / "recipe.toml",
        top='global_batch_size = 8\nwhen_exhausted = "stop"',
        weights={0: {"once": 1}},
        paths={"once": str(write_jsonl(tmp_path / "once.jsonl", texts))},
        more={"once": 'max_epochs = 1\norder = "identity"'},
    )
    fields = json.dumps({"recipe": str(recipe), "executor": "inline"})
    override = ("--override.imports", f"zephon_torchtitan.override.dataloader={fields}")
    job = titan.run_plain(2, tmp_path / "dump", *STOCK, *override, "--training.steps", "50").ok()
    assert 1 < max(job.losses) < 10
    assert all("Ran out of data; last step was canceled." in log for log in job.logs)


def test_a_recipe_without_the_global_batch_size_is_refused(titan: Titan, tmp_path: Path) -> None:
    fields = json.dumps({"recipe": str(titan.corpus.recipe), "executor": "inline"})
    job = titan.run_plain(
        2, tmp_path / "dump", *STOCK, "--override.imports", f"zephon_torchtitan.override.dataloader={fields}"
    )
    assert set(job.codes) == {3}, job.tail()
    assert job.log.count("the run is refused") == 1
    assert "global_batch_size" in job.log.partition("the run is refused")[2]
